"""Sampling of the unobserved cells that a training step computes.

A block has far more unobserved cells (zeros) than observed ones. `ZeroSampling` selects the columns whose zeros a step
computes for each panel of rows, and the weight of each zero, so that the expected gradient is that of all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
Strides = tuple[NDArray[np.float64], NDArray[np.float64]]  # first column of each stride, and how many it has
# Rows of a block in one tier of frequency, and the strides over the columns they are combined with: a step takes one
# column from every stride. None: it takes every column.
Tier = tuple[range, Strides | None]


@dataclass(frozen=True, slots=True)
class RowPanel:
    """Consecutive rows of a block that are combined with the same columns in one step."""

    start: int
    stop: int
    columns: NDArray[np.int64] | None = None  # local columns, ascending; None: all columns
    weights: NDArray[np.float32] | None = None  # weight of a zero in each of these columns; None: 1

    def pieces(self, max_rows: int) -> list[RowPanel]:
        """Return the panel split into pieces of at most `max_rows` rows."""
        if self.stop - self.start <= max_rows:
            return [self]

        starts = range(self.start, self.stop, max_rows)
        return [replace(self, start=start, stop=min(start + max_rows, self.stop)) for start in starts]


@dataclass(frozen=True, slots=True)
class ZeroSampling:
    """Selects the unobserved cells of a training step: all, or a sample of those between features that are not common.

    Rows and columns of a block are sorted by descending frequency and divided into three tiers: common (the first
    fraction `common` of them), middle (up to the fraction `middle`) and rare. A step computes all zeros of common rows
    and of common columns. For the other rows it draws a new sample of the middle and rare columns, and weights each
    zero by the inverse of its sampling probability, so that the expected gradient equals the full gradient.

    The gradient of the hinge is proportional to the product of the two frequencies. The sampling probability with the
    lowest variance decreases with it: share / (r s), where r and s are the relative ranks at the middle of the row
    tier and of the column tier.
    """

    common: float = 1.0  # With 1.0, no zero is sampled.
    middle: float = 1.0
    share: float = 1.0  # sampling probability of a zero at the relative ranks r = s = 1
    # About how many rows of a tier share a sample of columns; None: all of them. A rare column is then sampled by some
    # rows in most steps, instead of by all rows in a few: the same work, and less variance of its gradient.
    rows: int | None = None

    def panels(self, rows: int, columns: int, seed: Sequence[int]) -> Iterator[RowPanel]:
        """Yield the panels of one step; every row of the block is in exactly one panel."""
        # The tier of common rows, which is never sampled, has number -1: the sampled ones count from 0.
        for number, (tier, strides) in enumerate(self.tiers(rows, columns), -1):
            if strides is None:
                yield RowPanel(tier.start, tier.stop)
                continue

            # The length of a stride is the inverse of the probability of its columns: the weight of their zeros.
            starts, lengths = strides
            weights = lengths.astype(np.float32)
            first = random_fraction((*seed, number))
            # One random number per tier and step: all strides take their column at the same relative position.
            for panel, (start, stop) in enumerate(self._split_rows(tier)):
                ids = (starts + spread_fraction(first, panel) * lengths).astype(np.int64)
                yield RowPanel(start, stop, ids, weights)

    def computed_share(self, rows: int, columns: int) -> float:
        """Return the share of a block's cells that a step computes.

        >>> ZeroSampling().computed_share(100, 50), round(ZeroSampling(0.1, 0.3, 0.01).computed_share(1000, 1000), 2)
        (1.0, 0.25)
        """
        cells = 0
        for tier, strides in self.tiers(rows, columns):
            cells += len(tier) * (columns if strides is None else len(strides[0]))
        return cells / (rows * columns)

    def _split_rows(self, tier: range) -> list[tuple[int, int]]:
        """Return start and stop of the panels of a tier, all of about the same size."""
        count = 1 if self.rows is None else max(1, round(len(tier) / self.rows))
        edges = [tier.start + len(tier) * n // count for n in range(count + 1)]
        return list(pairwise(edges))

    @lru_cache(maxsize=64)  # noqa: B019  (few frozen instances, each with a few block sizes)
    def tiers(self, rows: int, columns: int) -> tuple[Tier, ...]:
        """Return the tiers of the rows of a block, the common rows first."""
        tiers: list[Tier] = [(range(self._count_common(rows)), None)]
        for start, stop, rank in self._sampled_tiers(rows):
            strides = self._strides(columns, rank)
            tiers.append((range(start, stop), strides if len(strides[0]) < columns else None))
        return tuple(tiers)

    def _count_common(self, size: int) -> int:
        """Return how many of `size` rows, or columns, of a block are common."""
        tiers = self._sampled_tiers(size)
        return tiers[0][0] if tiers else size

    def _sampled_tiers(self, size: int) -> list[tuple[int, int, float]]:
        """Return start, stop and middle rank (relative, geometric mean) of the middle and the rare tier."""
        edges = [round(size * self.common), round(size * max(self.middle, self.common)), size]
        return [
            (start, stop, math.sqrt((start + 0.5) * (stop - 0.5)) / size)
            for start, stop in pairwise(edges)
            if stop > start
        ]

    def _strides(self, columns: int, row_rank: float) -> Strides:
        """Return starts and lengths of the strides over the columns for one tier of rows.

        The columns of a tier are taken at equal distances from a random start (systematic sampling). All of them have
        the same probability, and all frequencies are represented.
        """
        # Each common column is a stride of length 1: it is always taken, and its zeros have the weight 1.
        common = self._count_common(columns)
        starts: list[NDArray[np.float64]] = [np.arange(common, dtype=np.float64)]
        lengths: list[NDArray[np.float64]] = [np.ones(common)]

        for start, stop, rank in self._sampled_tiers(columns):
            size = stop - start
            # The probability share / (r s) times the size of the tier, but at least one column and at most all. A tier
            # without any column would make the gradient of its zeros biased.
            count = min(size, max(1, round(size * self.share / (row_rank * rank))))
            starts.append(np.asarray(start + np.arange(count) * (size / count), np.float64))
            lengths.append(np.full(count, size / count))

        return np.concatenate(starts), np.concatenate(lengths)


def spread_fraction(first: float, number: int) -> float:
    """Return the position within every stride of the columns that panel `number` of a tier takes.

    Multiples of the golden ratio, modulo 1, are spread evenly, so that the panels together sample most columns.

    >>> [round(spread_fraction(0.5, number), 3) for number in range(4)]
    [0.5, 0.118, 0.736, 0.354]
    """
    # Below 1, so that rounding does not reach the next stride.
    return min((first + number * GOLDEN_RATIO) % 1, 1 - 1e-9)


def random_fraction(seed: Sequence[int]) -> float:
    """Return a number in [0, 1) that depends only on the seed (splitmix64 over its parts).

    The quality equals that of a NumPy generator, but creating one takes too long for a single step.
    """
    # Each part is added to the mixed state of the parts before it, so that (1, 2) and (2, 1) give different numbers.
    state = 0
    for part in seed:
        state = (state + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31

    # A double has a mantissa of 53 bits: the quotient is exact, and below 1.
    return (state >> 11) / (1 << 53)
