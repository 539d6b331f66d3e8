"""Rank correlation, bootstrap confidence intervals and p-values.

Items are resampled with replacement. The random numbers depend only on the seed, so a result does not depend on what
else is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

DRAWS = 10_000
SEED = 1
LEVEL = 0.95
Interval = tuple[float, float]
Doubles = NDArray[np.float64]
_MAX_CELLS = 1 << 17  # draws x items computed at a time: a few arrays of 1 MiB, which fit in the caches


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Spearman's rho with average ranks for ties, or None if it is not defined.

    >>> rank_correlation([1, 2, 3], [10, 20, 15])
    0.5
    >>> rank_correlation([1], [2]) is None
    True
    """
    # scipy.stats.spearmanr does the same, but importing it takes a second.
    first = _centered_ranks(x)
    second = _centered_ranks(y)
    scale = float(np.sqrt((first @ first) * (second @ second)))
    if not scale > 0:  # fewer than two values, or all values equal
        return None
    return float(np.clip(first @ second / scale, -1, 1))


def _centered_ranks(values: ArrayLike) -> Doubles:
    """Return ranks minus their mean, with average ranks for ties."""
    _, groups, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[groups]
    return np.asarray(ranks - (len(ranks) + 1) / 2, np.float64)


def share_interval(right: int, items: int, *, draws: int = DRAWS) -> Interval | None:
    """Return the 95 % interval of the fraction of right items, or None if there are no items.

    >>> share_interval(50, 100)
    (0.4, 0.6)
    """
    if items == 0:
        return None
    # If k of n items are right, the number of right items in a resampling has a binomial distribution, so items need
    # not be drawn one by one.
    return percentile_interval(np.random.default_rng(SEED).binomial(items, right / items, draws) / items)


def draw_share_differences(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, draws: int = DRAWS, seed: int = SEED
) -> Doubles:
    """Return for each resampling of the items the difference of two fractions over the same items."""
    items = len(first)
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())

    # Only items on which the two disagree change the difference: three classes of items are enough.
    probabilities = np.array([only_first, only_second, items - only_first - only_second]) / items
    counts = np.random.default_rng(seed).multinomial(items, probabilities, draws)
    return np.asarray((counts[:, 0] - counts[:, 1]) / items)


def percentile_interval(values: Doubles) -> Interval | None:
    """Return the middle 95 % of resampled values, or None if all are NaN; NaN values are skipped."""
    defined = values[~np.isnan(values)]
    if len(defined) == 0:
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def two_sided_p(differences: Doubles) -> float:
    """Return the two-sided p-value of resampled differences: twice the smaller fraction on one side of zero.

    >>> two_sided_p(np.array([0.1, 0.2, 0.3]))
    0.5
    """
    defined = differences[~np.isnan(differences)]
    fewer = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    # One is added to both counts, because a resampling cannot show that p is 0.
    return min(1.0, 2 * (fewer + 1) / (len(defined) + 1))


def draw_correlations(
    columns: Sequence[ArrayLike], target: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> Doubles:
    """Return Spearman's rho (columns, draws) of each column with `target`, on the same resamplings."""
    values = [np.asarray(column, np.float64) for column in (*columns, target)]
    if len(values[0]) < 2 or draws == 0:
        return np.full((len(columns), draws), np.nan)

    # Sort the items by the first column: its ranks are then a cumulative sum without indexing.
    order = np.argsort(values[0], kind="stable")
    rankers = [_Ranker(column[order]) for column in values]
    parts = [_correlate_ranks(rankers, counts) for counts in _resample(len(order), draws, seed)]
    return np.concatenate(parts, axis=1)


def _resample(items: int, draws: int, seed: int) -> Iterator[Doubles]:
    """Yield how often each item was drawn, as arrays (draws, items) that fit in the caches."""
    rng = np.random.default_rng(seed)
    draws_per_chunk = max(1, _MAX_CELLS // items)

    for start in range(0, draws, draws_per_chunk):
        rows = min(draws_per_chunk, draws - start)
        # Offset the items of each row, so that one bincount counts all rows.
        drawn = rng.integers(0, items, (rows, items)) + items * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float64)


class _Ranker:
    """Ranks resampled values; items with equal values form a group, and groups have ascending order."""

    # The items are sorted once, and the ranks of a resampling are cumulative sums of how often each item was drawn.
    # scipy.stats.bootstrap would sort every resampling, which takes seven times as long with 3,000 pairs.
    def __init__(self, values: Doubles) -> None:
        order = np.argsort(values, kind="stable")
        is_first = np.diff(values[order], prepend=-np.inf) > 0
        group_of = np.empty(len(values), np.intp)
        group_of[order] = np.cumsum(is_first) - 1

        is_ordered = bool((order == np.arange(len(order))).all())
        all_differ = bool(is_first.all())

        # None where the indices would be 0, 1, 2, ..., to save copies.
        self.order = None if is_ordered else order  # items by ascending value
        self.starts = None if all_differ else np.flatnonzero(is_first)  # first item of each group in `order`
        self.group_of = None if is_ordered and all_differ else group_of  # group of each item

    def rank(self, counts: Doubles) -> tuple[Doubles, Doubles]:
        """Return the centered rank of each item in each resampling, and the sum of squares of these ranks."""
        # `counts` has how often each item was drawn, so a group's size is the sum over its items.
        ordered = counts if self.order is None else counts.take(self.order, axis=1)
        sizes = ordered if self.starts is None else np.add.reduceat(ordered, self.starts, axis=1)

        # The rank of a group is the number of items below it plus half of its own size: equal values, including an item
        # drawn twice, share their average rank. This is 1/2 less than the usual rank, so the mean to subtract is n / 2.
        ranks = np.cumsum(sizes, axis=1)
        ranks -= 0.5 * sizes
        ranks -= counts.shape[1] / 2

        spread = np.einsum("ij,ij->i", ranks * sizes, ranks)
        if self.group_of is not None:
            ranks = ranks.take(self.group_of, axis=1)
        return ranks, spread


def _correlate_ranks(rankers: Sequence[_Ranker], counts: Doubles) -> Doubles:
    # rho = sum(n x y) / sqrt(sum(n x^2) sum(n y^2)), with centered ranks x, y and n draws of an item.
    *columns, (target, spread) = (ranker.rank(counts) for ranker in rankers)
    target *= counts
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 = NaN if all values are equal
        rhos = [np.einsum("ij,ij->i", ranks, target) / np.sqrt(own * spread) for ranks, own in columns]
    return np.asarray(np.clip(np.array(rhos).reshape(len(columns), len(counts)), -1, 1))
