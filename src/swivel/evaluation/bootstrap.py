"""How sure a figure is: resampling of items, with replacement.

Receives figures of items (cosines and scores, or right and wrong), hands on 95 % intervals and p-values. The same seed
gives the same numbers, whatever else is evaluated. It knows no words and no sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

DRAWS, SEED = 10_000, 1
LEVEL = 0.95
Interval = tuple[float, float]
Doubles = NDArray[np.float64]
_CELLS = 1 << 17  # items of resamplings that are under way at a time: a few arrays of 1 MiB, inside the caches


def correlation_interval(x: ArrayLike, y: ArrayLike, *, draws: int = DRAWS, seed: int = SEED) -> Interval | None:
    """Return the 95 % interval of Spearman's rho; None where it is never defined.

    >>> low, high = correlation_interval(range(50), [n + 7 * (n % 5) for n in range(50)])
    >>> 0.7 < low < high < 1
    True
    """
    return percentile_interval(draw_correlations([x], y, draws=draws, seed=seed)[0])


def share_interval(right: int, items: int, *, draws: int = DRAWS, seed: int = SEED) -> Interval | None:
    """Return the 95 % interval of a share of right items; None where there are no items.

    Resampling n items of which k are right makes the number of right ones binomial: no item need be drawn.

    >>> share_interval(50, 100)
    (0.4, 0.6)
    """
    if items == 0 or draws == 0:
        return None
    return percentile_interval(np.random.default_rng(seed).binomial(items, right / items, draws) / items)


def draw_share_differences(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, draws: int = DRAWS, seed: int = SEED
) -> Doubles:
    """Return the difference of two shares over the same items, for each resampling of the items."""
    items = len(first)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    chances = np.array([only_first, only_second, items - only_first - only_second]) / items
    counts = np.random.default_rng(seed).multinomial(items, chances, draws)
    return np.asarray((counts[:, 0] - counts[:, 1]) / items)


def percentile_interval(values: Doubles) -> Interval | None:
    """Return the middle 95 % of resampled figures; those that are not defined (NaN) are left out."""
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def two_sided_p(differences: Doubles) -> float:
    """Return the two-sided p-value of resampled differences: twice the smaller share on one side of zero.

    One is added to both counts, so that it is never 0: so many draws cannot say less than 2 / (draws + 1).

    >>> two_sided_p(np.array([0.1, 0.2, 0.3]))
    0.5
    """
    defined = differences[~np.isnan(differences)]
    fewer = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    return min(1.0, 2 * (fewer + 1) / (len(defined) + 1))


def draw_correlations(
    columns: Sequence[ArrayLike], target: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> Doubles:
    """Return Spearman's rho (columns, draws) of each column with `target`, for the same resamplings of the items.

    NaN where a resampling has fewer than two different values. Ranks are those of each resampling, equal values (an
    item drawn twice included) sharing their average.
    """
    values = [np.asarray(column, np.float64) for column in columns]
    # Items in the order of the first column: its ranks are then a running sum, without gathering.
    order = np.argsort(values[0], kind="stable") if values else np.empty(0, np.intp)
    rankers = [_Ranker.of(column[order]) for column in [*values, np.asarray(target, np.float64)]]
    parts = [_correlate_ranks(rankers, counts) for counts in _resample(len(order), draws, seed)]
    return np.concatenate(parts, axis=1) if parts else np.empty((len(values), 0))


def _resample(items: int, draws: int, seed: int) -> Iterator[Doubles]:
    """Yield how often each item was drawn, as arrays (draws, items) that are small enough for the caches."""
    rng = np.random.default_rng(seed)
    at_once = max(1, _CELLS // max(items, 1))
    for start in range(0, draws if items > 1 else 0, at_once):
        rows = min(at_once, draws - start)
        drawn = rng.integers(0, items, (rows, items)) + items * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Ranker:
    """Groups of equal values in rising order: where each item's group is, and each group's items."""

    order: NDArray[np.intp] | None  # None: the items are in order
    starts: NDArray[np.intp] | None  # None: all values differ
    group_of: NDArray[np.intp] | None  # None: the group of item n is n

    @classmethod
    def of(cls, values: Doubles) -> _Ranker:
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(values) else np.empty(0, bool)
        group_of = np.empty(len(values), np.intp)
        group_of[order] = np.cumsum(is_first) - 1
        is_ordered = bool((order == np.arange(len(order))).all())
        is_plain = is_ordered and bool(is_first.all())
        starts = None if is_first.all() else np.flatnonzero(is_first)
        return cls(None if is_ordered else order, starts, None if is_plain else group_of)

    def rank(self, counts: Doubles) -> tuple[Doubles, Doubles]:
        """Return each item's rank in each resampling, and the sum of the squared distances from the mean rank.

        A group's rank is the number of items below it, and half of its own and one.
        """
        ordered = counts if self.order is None else counts.take(self.order, axis=1)
        sizes = ordered if self.starts is None else np.add.reduceat(ordered, self.starts, axis=1)
        ranks = np.cumsum(sizes, axis=1)
        ranks -= 0.5 * sizes
        ranks -= counts.shape[1] / 2  # The mean rank, of items from 1/2 on.
        spread = np.einsum("ij,ij->i", ranks * sizes, ranks)
        return (ranks if self.group_of is None else ranks.take(self.group_of, axis=1)), spread


def _correlate_ranks(rankers: Sequence[_Ranker], counts: Doubles) -> Doubles:
    *columns, (target, spread) = (ranker.rank(counts) for ranker in rankers)
    target *= counts
    with np.errstate(invalid="ignore", divide="ignore"):  # no spread: not defined
        rhos = [np.einsum("ij,ij->i", ranks, target) / np.sqrt(own * spread) for ranks, own in columns]
    return np.asarray(np.clip(np.array(rhos).reshape(len(columns), len(counts)), -1, 1))
