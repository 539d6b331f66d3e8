"""Weights of the window, and the column of each neighbor. Pure integer arithmetic.

Weights are integers in units of 1 / unit. A word has one column, or several *parts*: left and right, near and far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import Vocabulary

_MAX_UNIT = 1 << 24
_BINARY_UNIT = 1 << 20  # unit of rounded weights, if the exact common unit is too large


@dataclass(frozen=True, slots=True)
class WindowWeights:
    """Weights of the window in units of 1 / unit; `left[t - 1]` is the weight at distance t."""

    unit: int
    left: NDArray[np.int64]
    right: NDArray[np.int64]


def window_weights(config: CountConfig) -> WindowWeights:
    """Return the weights of the left and the right side of the window.

    >>> window_weights(CountConfig(window=3)).left.tolist()
    [6, 3, 2]
    """
    unit = _choose_unit(config)
    left = _weigh_side(config.weight, config.window_left, unit)
    right = _weigh_side(config.weight, config.window_right, unit)
    return WindowWeights(unit, left, right)


def _choose_unit(config: CountConfig) -> int:
    """Return the least common multiple of the denominators of all weights, or _BINARY_UNIT if it is too large."""
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


def _weigh_side(weight: str, size: int, unit: int) -> NDArray[np.int64]:
    distances = np.arange(1, size + 1, dtype=np.int64)
    if weight == "uniform":
        return np.full(size, unit, np.int64)

    # The weight is numerator / denominator: 1/t, or (size + 1 - t) / size.
    numerator, denominator = (1, distances) if weight == "harmonic" else (size + 1 - distances, max(size, 1))
    rounded = (2 * unit * numerator + denominator) // (2 * denominator)  # half up
    return np.maximum(rounded, 1).astype(np.int64)


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


def place_parts(config: CountConfig) -> NDArray[np.int64]:
    """Return the part of each place of the window, from left to right."""
    places = np.arange(-config.window_left, config.window_right + 1)
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
