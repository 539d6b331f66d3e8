"""Read baskets and sessions, one per line or one per list, and count the pairs of their items.

Every unordered pair of distinct items of a basket counts 1, in both directions. The ids of the items are kept in
scratch files, from which cells are generated.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from swivel.corpus.streams import read_table_lines
from swivel.corpus.vocabulary import to_label
from swivel.counts.block_layout import Ints, UnitCells
from swivel.counts.importers.context import PIECE, ImportContext, Place, number_places, open_spill
from swivel.counts.importers.import_config import SEPARATORS
from swivel.counts.shards import shard_ranges, start_shards
from swivel.errors import CountsError

_ITEMS = 1 << 24  # items paired at a time: their arrays take 0.6 GiB
_LISTS = 1 << 13  # baskets per batch


# A batch of baskets: the ids of all items, and the number of items of each basket.
Baskets: TypeAlias = tuple[Ints, Ints]


def read_basket_file(file: Path, context: ImportContext) -> Iterator[Baskets]:
    """Yield the baskets of a text file with one basket per line; empty items and blank lines are skipped."""
    separator = SEPARATORS[context.config.separator] if context.config.separator else None
    mark = context.config.comment.encode() if context.config.comment else None
    is_header = bool(context.config.header)

    for block in read_table_lines(file, context.task):
        separator = separator or next((each for each in (b"\t", b",", b";") if each in block.data), b" ")
        baskets: list[list[bytes]] = []

        for line in block.lines():
            if is_header or (mark and line.startswith(mark)):
                baskets.append([])  # keeps the number of the next line
            elif separator == b" ":
                baskets.append(line.split())
            else:
                baskets.append([item for item in map(bytes.strip, line.split(separator)) if item])
            is_header = False

        yield _number_baskets(baskets, context, block.place)


def read_basket_lists(baskets: Iterable[Any], context: ImportContext) -> Iterator[Baskets]:
    """Yield the baskets of an iterable of lists of strings or integers."""
    lists = iter(baskets)
    begin = 0

    while batch := list(itertools.islice(lists, _LISTS)):
        place = number_places("the baskets", "basket", begin)
        names = []

        for index, basket in enumerate(batch):
            if isinstance(basket, (str, bytes)) or not isinstance(basket, Iterable):
                raise CountsError(f"{place(index)}: expected a list of items, got {type(basket).__name__}")
            names.append(list(map(to_label, basket)))

        yield _number_baskets(names, context, place)
        begin += len(batch)


def _number_baskets(baskets: list[list[Any]], context: ImportContext, place: Place) -> Baskets:
    """Return baskets as ids; each item of a basket counts once, and baskets may not be too large."""
    with contextlib.suppress(TypeError):  # `look_up` raises the error for items that are not hashable
        baskets = [list(dict.fromkeys(basket)) for basket in baskets]

    lengths = np.array([len(basket) for basket in baskets], np.int64)
    longest = int(lengths.max(initial=0))
    if longest > context.config.largest_basket:
        pairs = longest * (longest - 1) // 2
        raise CountsError(
            f"{place(int(lengths.argmax()))}: a basket of {longest:,} items makes {pairs:,} pairs; "
            "pass a larger largest_basket",
            argument="largest_basket",
        )

    ends = np.cumsum(lengths)
    items = list(itertools.chain.from_iterable(baskets))
    ids = context.rows.look_up(items, lambda index: place(int(np.searchsorted(ends, index, "right"))))
    return ids, lengths


class BasketSpill:
    """Files of items and basket lengths, from which the cells are generated."""

    length = None  # number of cells: not known before they are generated
    unit = 1

    def __init__(self, folder: Path | None) -> None:
        self.files = open_spill(folder, items=np.uint32, lengths=np.uint32)

    def add(self, baskets: Baskets) -> None:
        """Append baskets to the files."""
        for file, values in zip(self.files, baskets, strict=True):
            file.append(values)

    def finish(self, name: str) -> None:
        """Close the files; raise CountsError if the source `name` has no baskets."""
        for file in self.files:
            file.close()
        if not self.files[0].length:
            raise CountsError(f"{name}: there are no baskets")

    def count_items(self, size: int) -> Ints:
        """Return the number of occurrences of each item."""
        counts = np.zeros(size, np.int64)
        for items, _ in self._blocks():
            counts += np.bincount(items, minlength=size)
        return counts

    def _blocks(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield blocks of whole baskets: items, and for each the number of items after it in its basket."""
        items, lengths = (file.open() for file in self.files)
        offsets = start_shards(lengths.astype(np.int64))
        for first, last in shard_ranges(offsets, _ITEMS):
            ends = offsets[0, first + 1 : last + 1]
            begin, end = offsets[0, [first, last]].tolist()
            after = np.repeat(ends, lengths[first:last]) - np.arange(begin, end) - 1
            yield items[begin:end].astype(np.int64), after

    def pieces(self, threads: int) -> Iterator[UnitCells]:
        """Yield the cells of all pairs of a block of baskets, summed within the block; `threads` is not used."""
        for items, after in self._blocks():
            # In ascending order within each basket, so that a pair is counted in one direction only. The last item of a
            # basket has none after it.
            numbers = np.cumsum(after == 0) - (after == 0)
            items = items[np.lexsort((items, numbers))]
            for rows, columns, units in _count_pairs(items, after):
                yield rows, columns, units
                yield columns, rows, units


def _count_pairs(items: Ints, after: Ints) -> Iterator[UnitCells]:
    """Yield the cells of all pairs of an item and one of the `after` items behind it, each cell once."""
    from swivel.counts import matrix_kernels as kernels  # imports numba, after `check_libraries`

    places = np.argsort(items, kind="stable")
    size = int(items.max(initial=-1)) + 1
    starts = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=size))])

    # The cells of an item are at most its pairs, and at most one per item.
    pairs = np.concatenate([[0], np.cumsum(after[places])])[starts]
    cells = start_shards(np.minimum(np.diff(pairs), size))
    for span in shard_ranges(cells, PIECE):
        block = np.empty((3, int(np.diff(cells[0, list(span)])[0])), np.int64)
        length = kernels.count_pairs(items, after, places, starts, span, block)
        yield block[0, :length], block[1, :length], block[2, :length]
