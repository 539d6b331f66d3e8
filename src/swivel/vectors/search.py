"""Array functions for similarity search: unit vectors, cosines and the highest of many scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.runtime.estimates import check_memory
from swivel.runtime.parallel import map_in_order, run_in_chunks
from swivel.runtime.resources import count_cores

Floats = NDArray[np.float32]

LABEL_BYTES = 150  # memory of a label in a vocabulary, with its entries in dictionaries
# Keeps 3CosMul from dividing by zero (Levy and Goldberg, 2014).
EPSILON = np.float32(0.001)
_CHUNK_ROWS = 16_384
_PEAK_WIDTH = 256  # scores per group; only the highest of each group is compared first
_SCORES_PER_BLOCK = 1 << 21  # for many queries: 8 MiB fit in the last-level cache (benchmarks/lookup.py)


def scale_to_unit(array: Floats) -> Floats:
    """Return the rows scaled to length 1; rows of zeros stay zero."""
    return scale_and_measure(array)[0]


def scale_and_measure(array: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Return the rows scaled to length 1, and their lengths; rows of zeros stay zero."""
    unit = np.zeros(array.shape, np.float32)
    lengths = np.zeros(len(array))

    def scale(rows: slice) -> None:
        # float64: the squares of very large or very small float32 values would overflow or underflow in float32.
        chunk = array[rows].astype(np.float64)
        np.sqrt(np.einsum("ij,ij->i", chunk, chunk), out=lengths[rows])
        divisors = lengths[rows, None]
        with np.errstate(invalid="ignore"):  # An infinite value becomes NaN; callers check for it.
            np.divide(chunk, divisors, out=chunk, where=divisors > 0)
        unit[rows] = chunk

    threads = count_cores()
    run_in_chunks(scale, len(array), rows=max(_CHUNK_ROWS // threads, 1), threads=threads)
    return unit, lengths


def check_search(array: Floats) -> None:
    """Raise MemoryBudgetError if there is too little memory to scale many rows to length 1."""
    # The result, whether its values are finite, a chunk in float64, and the labels of the rows.
    chunk_bytes = 16 * min(len(array), _CHUNK_ROWS) * array.shape[1]
    check_memory("searching", array.nbytes + array.size + chunk_bytes + LABEL_BYTES * len(array))


def best_ids(scores: Floats, count: int) -> NDArray[np.intp]:
    """Return the ids of the `count` highest scores, highest first, ties by id; a score of -inf is never returned.

    >>> best_ids(np.array([1, 3, -np.inf, 3], np.float32), 10).tolist()
    [1, 3, 0]
    """
    count = min(count, len(scores))
    if count == 0:
        return np.empty(0, np.intp)

    # argpartition may return any of several equal scores: keep all of them, then sort by score and id.
    candidates = np.flatnonzero(scores >= _lower_bound(scores, count))
    values = scores[candidates]
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    is_best = (values >= threshold) & (values > -np.inf)

    candidates = candidates[is_best]
    values = values[is_best]
    order = np.lexsort((candidates, -values))[:count]
    return np.asarray(candidates[order])


def best_of_each(scores: Floats, count: int) -> NDArray[np.intp]:
    """Return the ids of the `count` highest scores of each row, highest first, of shape (rows, count).

    >>> best_of_each(np.array([[1, 5, 3], [4, 2, 6]], np.float32), 2).tolist()
    [[1, 2], [2, 0]]
    """
    # Only the groups with the highest maxima are searched, as in `top_columns`. Group g has the columns g, g + groups,
    # g + 2 groups, ...
    size = scores.shape[1]
    members = max(1, math.isqrt(size // count))
    groups = size // members
    peaks = scores[:, :groups].copy()
    for member in range(1, members):
        np.maximum(peaks, scores[:, member * groups : (member + 1) * groups], out=peaks)

    best_groups = np.argpartition(-peaks, count - 1, axis=1)[:, :count]
    candidates = (best_groups[:, None, :] + groups * np.arange(members)[:, None]).reshape(len(scores), -1)
    rest = np.broadcast_to(np.arange(members * groups, size), (len(scores), size - members * groups))
    candidates = np.concatenate([candidates, rest], axis=1)

    # The members that did not fill a group, at the end, are always candidates.
    values = np.take_along_axis(scores, candidates, axis=1)
    top = np.argpartition(-values, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, top, axis=1), axis=1, kind="stable")
    return np.take_along_axis(candidates, np.take_along_axis(top, order, axis=1), axis=1)


def _lower_bound(scores: Floats, count: int) -> np.float32:
    """Return a value that at least `count` scores reach, and few others.

    The maxima of `count` groups are `count` different scores, so the `count`-th highest maximum is such a value.
    """
    groups = len(scores) // _PEAK_WIDTH
    if groups < count:
        return np.float32(-np.inf)
    peaks = scores[: groups * _PEAK_WIDTH].reshape(groups, _PEAK_WIDTH).max(axis=1)
    return np.float32(np.partition(peaks, groups - count)[groups - count])


class _Best:
    """The best rows so far of several queries, best first, ties by id; a score of -inf marks an empty place."""

    def __init__(self, queries: int, count: int) -> None:
        self.ids = np.zeros((queries, count), np.intp)
        self.scores = np.full((queries, count), -np.inf, np.float32)

    def update(self, scores: Floats, first: int) -> None:
        """Add the scores (queries, rows) of the rows from `first` on, which must come after all rows added before."""
        count = self.scores.shape[1]
        floor = self.scores[:, -1]  # the lowest score kept for each query
        if scores.shape[1] > count and np.isneginf(floor).any():
            # While places are empty every score is an improvement: sort only the best `count` of this block.
            split = scores.shape[1] - count
            lowest = np.nextafter(np.partition(scores, split, axis=1)[:, split], np.float32(-np.inf))
            floor = np.maximum(floor, lowest)

        # Strictly greater: of equal scores the earlier row stays.
        queries = np.flatnonzero(scores.max(axis=1) > floor)
        if len(queries):
            # np.nonzero on a matrix is five times as slow as np.flatnonzero.
            better = np.flatnonzero(scores[queries] > floor[queries, None])
            which, columns = np.divmod(better, scores.shape[1])
            self._merge(queries, which, columns + first, scores[queries[which], columns])

    def _merge(self, queries: NDArray[np.intp], which: NDArray[np.intp], ids: NDArray[np.intp], scores: Floats) -> None:
        """Merge new candidates; `which` is the query of each candidate, as an index into `queries`."""
        count = self.scores.shape[1]
        which = np.concatenate([np.repeat(np.arange(len(queries)), count), which])
        ids = np.concatenate([self.ids[queries].reshape(-1), ids])
        scores = np.concatenate([self.scores[queries].reshape(-1), scores])

        # Sorted by query, then by descending score, then by id; keep the first `count` of each query.
        order = np.lexsort((ids, -scores, which))
        starts = np.searchsorted(which[order], np.arange(len(queries)))
        best = order[starts[:, None] + np.arange(count)]

        self.ids[queries] = ids[best]
        self.scores[queries] = scores[best]


def best_rows(
    unit: Floats, queries: Floats, count: int, *, excluded: Sequence[Sequence[int]], is_zero: NDArray[np.bool_]
) -> _Best:
    """Return ids and scores of the rows with the highest dot product with each query, highest first, ties by id.

    Rows marked by `is_zero`, and for each query the rows in `excluded`, get the score -inf. Scores are computed for one
    block of rows at a time, so memory does not grow with rows x queries.
    """
    best = _Best(len(queries), min(count, len(unit)))
    width = max(_SCORES_PER_BLOCK // max(len(queries), 1), 1)
    buffers = np.empty((2, len(queries) * min(width, len(unit))), np.float32)

    # Pairs (row, query), sorted by row, so that the excluded pairs of a block are a slice.
    excluded_rows = np.concatenate([np.asarray(rows, np.intp) for rows in excluded] or [np.empty(0, np.intp)])
    excluded_queries = np.repeat(np.arange(len(excluded)), [len(rows) for rows in excluded])
    order = np.argsort(excluded_rows, kind="stable")
    excluded_rows = excluded_rows[order]
    excluded_queries = excluded_queries[order]

    def score(number: int) -> Floats:
        first = number * width
        block = unit[first : first + width]
        scores = buffers[number % 2, : len(queries) * len(block)].reshape(len(queries), len(block))

        np.matmul(queries, block.T, out=scores)
        # Ids are usually few: writing them is faster than a boolean mask over the block.
        scores[:, np.flatnonzero(is_zero[first : first + width])] = -np.inf
        inside = slice(*np.searchsorted(excluded_rows, (first, first + width)))
        scores[excluded_queries[inside], excluded_rows[inside] - first] = -np.inf

        return scores

    # BLAS uses all cores for a product, and merging uses one.
    # One thread computes the next block's scores while this one merges a block; two buffers are enough for that.
    blocks = range(-(-len(unit) // width))
    for number, scores in enumerate(map_in_order(score, blocks, threads=1, ahead=2)):
        best.update(scores, number * width)

    return best


def score_3cosmul(unit: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    """Return the 3CosMul score of every row for "a is to b as c is to ?"; all vectors have length 1."""
    to_a, to_b, to_c = (shift_cosine(unit @ word) for word in (a, b, c))
    return to_b * to_c / (to_a + EPSILON)


def shift_cosine(cosine: Floats) -> Floats:
    """Return cosines mapped from [-1, 1] to [0, 1]."""
    return (cosine + np.float32(1)) * np.float32(0.5)


def pool_scores(scores: Floats, weights: NDArray[np.float64]) -> float:
    """Return the PMI with several columns together: the log of the mean of exp(PMI), weighted by the column sums.

    Each column p estimates log(x_ip |D| / (x_i* x_*p)). Summing x_ip and x_*p over p gives this mean.
    """
    if weights.sum() == 0:
        weights = np.ones(len(scores))

    highest = float(scores.max())  # subtracted before exp to avoid overflow
    return highest + float(np.log(np.average(np.exp(scores.astype(np.float64) - highest), weights=weights)))


def check_count(count: int) -> None:
    """Raise ConfigError if a number of results is not a positive integer."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ConfigError(f"count must be a positive integer, got {count!r}", argument="count")
