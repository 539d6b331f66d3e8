"""Read baskets and sessions, one per line or one per list, and count the pairs of their items.

Without a window, every unordered pair of distinct items of a basket counts 1, in both directions. With a window, a pair
at distance t counts 1/t, or 1. The ids of the items are kept in scratch files, from which cells are generated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.counts.cooccurrence.windows import window_weights
from swivel.counts.importers.config import SEPARATORS, ImportConfig
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import Place
from swivel.counts.importers.lines import read_lines
from swivel.counts.importers.spill import PIECE, UnitCells, add_sums
from swivel.errors import ConfigError, CountsError
from swivel.storage import ArrayAppender, open_array

_ITEMS = 1 << 16  # items paired at a time
_LISTS = 1 << 13  # baskets per batch


@dataclass(frozen=True, slots=True)
class Baskets:
    """A batch of baskets: the ids of all items, and the number of items of each basket."""

    items: NDArray[np.int64]
    lengths: NDArray[np.int64]


def check_basket_sides(sides: str) -> str:
    """Return the relation of rows and columns for baskets: "mirrored", or "same" if order matters."""
    if sides == "apart":
        raise ConfigError("sides must be mirrored or same for baskets, because items are rows and columns; got 'apart'")
    return "mirrored" if sides == "undirected" else sides


def read_basket_file(file: Path, context: ImportContext) -> Iterator[Baskets]:
    """Yield the baskets of a text file with one basket per line; empty items and blank lines are skipped."""
    separator = SEPARATORS[context.config.separator] if context.config.separator else None
    mark = context.config.comment.encode() if context.config.comment else None
    skip = int(context.config.header)

    for lines in read_lines(file):
        separator = separator or _guess_separator(lines.data)
        baskets = []

        for line in lines.data.split(b"\n")[:-1]:
            is_skipped = skip or (mark and line.startswith(mark))
            baskets.append([] if is_skipped else _split(line, separator))
            skip = 0

        yield _number_baskets(baskets, context, lines.place)
        context.advance(lines.cost)


def _guess_separator(data: bytes) -> bytes:
    return next((separator for separator in (b"\t", b",", b";") if separator in data), b" ")


def _split(line: bytes, separator: bytes) -> list[bytes]:
    if separator == b" ":
        return line.split()
    return [item for item in map(bytes.strip, line.split(separator)) if item]


def read_basket_lists(baskets: Iterable[Any], context: ImportContext) -> Iterator[Baskets]:
    """Yield the baskets of an iterable of lists of strings or integers."""
    lists = iter(baskets)
    begin = 0

    while batch := list(itertools.islice(lists, _LISTS)):
        place = _placer(begin)
        named = []

        for index, basket in enumerate(batch):
            if isinstance(basket, (str, bytes)) or not isinstance(basket, Iterable):
                raise CountsError(f"{place(index)}: expected a list of items, got {type(basket).__name__}")
            named.append([str(item) if type(item) is int else item for item in basket])

        yield _number_baskets(named, context, place)
        begin += len(batch)


def _placer(begin: int) -> Place:
    return lambda index: f"basket {begin + index + 1:,}"


def _number_baskets(baskets: list[list[Any]], context: ImportContext, place: Place) -> Baskets:
    """Return baskets as ids.

    Without a window, each item of a basket counts once, and baskets over `largest_basket` raise CountsError.
    """
    config = context.config
    if config.window is None:
        baskets = [_distinct(basket) for basket in baskets]

    lengths = np.array([len(basket) for basket in baskets], np.int64)
    if config.window is None and int(lengths.max(initial=0)) > config.largest_basket:
        index = int(lengths.argmax())
        longest = int(lengths.max())
        raise CountsError(
            f"{place(index)}: a basket of {longest:,} items makes {longest * (longest - 1) // 2:,} pairs; "
            "pass a larger largest_basket, or a window"
        )

    ends = np.cumsum(lengths)
    items = list(itertools.chain.from_iterable(baskets))
    return Baskets(
        context.rows.look_up(items, lambda index: place(int(np.searchsorted(ends, index, "right")))), lengths
    )


def _distinct(basket: list[Any]) -> list[Any]:
    """Return the distinct items of a basket; `look_up` raises the error for unhashable items."""
    try:
        return list(dict.fromkeys(basket))
    except TypeError:
        return basket


class BasketSpill:
    """Two growing files of items and basket lengths, from which the cells are generated."""

    def __init__(self, folder: Path, config: ImportConfig, sides: str) -> None:
        self._files = [ArrayAppender(folder / f"{name}.npy", np.uint32) for name in ("items", "lengths")]
        self._both_ways = sides != "same"
        self._weights: NDArray[np.int64] | None = None
        self.unit = 1

        if config.window is not None:
            weights = window_weights(CountConfig(window=config.window, weight=config.weight))
            self.unit = weights.unit
            self._weights = weights.left

    def add(self, baskets: Baskets) -> None:
        """Append baskets to the files."""
        for file, values in zip(self._files, (baskets.items, baskets.lengths), strict=True):
            file.append(values)

    def close(self, name: str) -> None:
        """Close the files; raise CountsError if the source `name` has no baskets."""
        self.close_files()
        if not self._files[0].length:
            raise CountsError(f"{name}: there are no baskets")

    def close_files(self) -> None:
        """Close the files. A second call does nothing."""
        for file in self._files:
            file.close()

    def count_items(self, size: int) -> NDArray[np.int64]:
        """Return the number of occurrences of each item."""
        counts = np.zeros(size, np.int64)
        for items, _ in self._blocks():
            add_sums(counts, items, np.ones(items.size, np.int64))
        return counts

    def _blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield blocks of whole baskets: items, and for each the number of items after it in its basket."""
        items, lengths = (open_array(file.path) for file in self._files)
        ends = np.cumsum(lengths, dtype=np.int64)
        first = done = 0

        while first < len(lengths):
            last = max(int(np.searchsorted(ends, done + _ITEMS, "right")), first + 1)
            end = int(ends[last - 1])
            after = np.repeat(ends[first:last], lengths[first:last]) - np.arange(done, end) - 1
            yield items[done:end].astype(np.int64), after
            first = last
            done = end

    def pieces(self) -> Iterator[UnitCells]:
        """Yield the cells of all pairs; repeated cells are not summed."""
        gathered: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        size = 0

        for pairs in self._pairs():
            gathered.append(pairs)
            size += pairs[0].size
            if size >= PIECE:
                yield _join(gathered)
                gathered = []
                size = 0

        if size:
            yield _join(gathered)

    def _pairs(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield earlier items, later items and units, one distance of one block at a time."""
        for items, after in self._blocks():
            farthest = int(after.max(initial=0))
            if self._weights is not None:
                farthest = min(farthest, len(self._weights))

            # `alive`: items that have another item at this distance in their basket.
            alive = np.arange(items.size)

            for distance in range(1, farthest + 1):
                alive = alive[after[alive] >= distance]
                earlier = items[alive]
                later = items[alive + distance]
                weight = 1 if self._weights is None else self._weights[distance - 1]
                units = np.full(alive.size, weight, np.int64)
                yield earlier, later, units
                if self._both_ways:
                    yield later, earlier, units


def _join(parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]) -> UnitCells:
    return UnitCells(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
