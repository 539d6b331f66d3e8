"""Weights of the window, and the column of each neighbor. Pure integer arithmetic.

Weights are integers in units of 1 / unit. A word has one column, or several *parts*: left and right, near and far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints

_MAX_REACH = 1 << 40  # None, but distances stay integers of 64 bits. Texts are shorter, and what uses them cuts them.
_MAX_UNIT = 1 << 24
_BINARY_UNIT = 1 << 20  # unit of rounded weights, if the exact common unit is too large


def window_unit(config: CountConfig) -> int:
    """Return the unit of the weights: the least common multiple of their denominators, or a power of 2 if too large."""
    sizes = (config.window_left, config.window_right)
    divisors: Iterable[int] = ()
    if config.weight == "harmonic":
        divisors = range(1, max(sizes) + 1)  # weights are 1/t for t = 1, 2, ...
    elif config.weight == "linear":
        divisors = [max(size, 1) for size in sizes]  # weights are multiples of 1/left and 1/right

    unit = 1
    for divisor in divisors:
        unit = math.lcm(unit, divisor)
        if unit > _MAX_UNIT:
            return _BINARY_UNIT
    return unit


def window_weights(config: CountConfig, reach: int = _MAX_REACH) -> tuple[Ints, Ints]:
    """Return the weights at distances 1, 2, ... on the left and on the right, in units, no farther than `reach`.

    >>> window_weights(CountConfig(window=3, right=5), reach=4)[1].tolist()
    [60, 30, 20, 15]
    """
    unit = window_unit(config)
    sides = []
    for size in (config.window_left, config.window_right):
        # Python integers where a window may be wider than any text: its distances are cut, but not its weights.
        distances = np.arange(1, min(size, reach) + 1)
        if config.weight == "harmonic":
            weights = (2 * unit + distances) // (2 * distances)  # 1 / t, rounded half up
        elif config.weight == "linear":
            exact = (
                (2 * unit * (size + 1 - t) + size) // (2 * size) for t in distances.tolist()
            )  # (size + 1 - t) / size
            weights = np.fromiter(exact, np.int64, distances.size)
        else:
            weights = np.full(distances.size, unit)
        sides.append(np.maximum(weights, 1).astype(np.int64))
    return sides[0], sides[1]


def part_names(config: CountConfig) -> tuple[str, ...]:
    """Return the names of the columns of a word, or () if the word itself is its only column.

    >>> part_names(CountConfig(columns="directional-bands"))
    ('left 1', 'left 2-10', 'right 1', 'right 2-10')
    """
    sides = ("left", "right") if config.is_directional else ("",)
    bands = [""]
    if config.has_bands:
        longest = max(config.window_left, config.window_right)
        bands = [_range_name(1, config.near), _range_name(config.near + 1, longest)]

    names = tuple(f"{side} {band}".strip() for side in sides for band in bands)
    return () if names == ("",) else names


def _range_name(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def place_parts(config: CountConfig, reach: int = _MAX_REACH) -> Ints:
    """Return the part of each place of the window, from left to right, no farther from its middle than `reach`."""
    places = np.arange(-min(config.window_left, reach), min(config.window_right, reach) + 1)
    parts = np.zeros(places.size, np.int64)
    if config.has_bands:
        parts += np.abs(places) > config.near
    if config.is_directional:
        parts += (places > 0) * (2 if config.has_bands else 1)
    return parts


def column_vocabulary(vocabulary: Vocabulary, config: CountConfig) -> Vocabulary | None:
    """Return the vocabulary of the columns, all parts of a word adjacent; None if columns are the rows.

    >>> column_vocabulary(Vocabulary(["the"], [3]), CountConfig(columns="directional")).tokens
    ('left:the', 'right:the')
    """
    names = part_names(config)
    return _PartVocabulary(vocabulary, names) if names else None


class _PartVocabulary(Vocabulary):
    """Labels of several columns per word, which are made when they are used: four per word take 300 bytes."""

    def __init__(self, words: Vocabulary, names: tuple[str, ...]) -> None:
        self._words = words
        self._names = names

    def __len__(self) -> int:
        return len(self._words) * len(self._names)

    @cached_property
    def tokens(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"{name}:{token}" for token in self._words.tokens for name in self._names)

    @cached_property
    def counts(self) -> NDArray[np.int64]:  # type: ignore[override]
        return np.repeat(self._words.counts, len(self._names))

    def to_lines(self) -> Iterator[str]:
        """Yield one line per column, without keeping the labels."""
        for line in self._words.to_lines():
            for name in self._names:
                yield f"{name}:{line}"
