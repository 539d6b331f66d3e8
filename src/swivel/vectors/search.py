"""The arithmetic of searching: lengths, cosines, the best of many scores.

Receives arrays, hands on arrays. It knows no tokens and no files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.parallel import map_in_order

Floats = NDArray[np.float32]

# Keeps 3CosMul from dividing by zero (Levy and Goldberg, 2014).
EPSILON = np.float32(0.001)
_CHUNK_ROWS = 16_384
_PEAK_WIDTH = 256  # scores of which only the highest is looked at first
_SCORES_AT_A_TIME = 1 << 21  # when many queries are asked: 8 MiB stay in the last cache (benchmarks/lookup.py)


def scale_to_unit(array: Floats) -> Floats:
    """Return the rows with length 1; rows of zeros stay as they are.

    >>> scale_to_unit(np.array([[3, 4], [0, 0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    unit = np.zeros(array.shape, np.float32)
    for start in range(0, len(array), _CHUNK_ROWS):
        # In float64, the squares of very large and very small float32 values neither overflow nor vanish.
        chunk = array[start : start + _CHUNK_ROWS].astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))[:, None]
        with np.errstate(invalid="ignore"):  # An infinite value becomes NaN, which callers look for.
            np.divide(chunk, lengths, out=chunk, where=lengths > 0)
        unit[start : start + _CHUNK_ROWS] = chunk
    return unit


def best_ids(scores: Floats, count: int) -> NDArray[np.intp]:
    """Return the ids of the highest scores, highest first, equal ones by id; -inf is no candidate.

    >>> best_ids(np.array([1, 3, -np.inf, 3], np.float32), 10).tolist()
    [1, 3, 0]
    """
    count = min(count, len(scores))
    if count == 0:
        return np.empty(0, np.intp)
    # argpartition leaves open which of several equal scores it takes: take all of them, then sort.
    candidates = np.flatnonzero(scores >= _reach(scores, count))
    found = scores[candidates]
    is_best = (found >= np.partition(found, len(found) - count)[len(found) - count]) & (found > -np.inf)
    candidates, found = candidates[is_best], found[is_best]
    order = np.lexsort((candidates, -found))[:count]
    return np.asarray(candidates[order])


def _reach(scores: Floats, count: int) -> np.float32:
    """Return what at least `count` scores reach, and few others: each of so many peaks is a score of its own."""
    whole = len(scores) // _PEAK_WIDTH
    if whole < count:
        return np.float32(-np.inf)
    peaks = scores[: whole * _PEAK_WIDTH].reshape(whole, _PEAK_WIDTH).max(axis=1)
    return np.float32(np.partition(peaks, whole - count)[whole - count])


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which rows are no answers to which queries."""

    queries: NDArray[np.intp]
    rows: NDArray[np.intp]


class _Best:
    """The best rows so far of several queries, best first, equal ones by id; a score of -inf is none."""

    def __init__(self, queries: int, count: int) -> None:
        self.ids = np.zeros((queries, count), np.intp)
        self.scores = np.full((queries, count), -np.inf, np.float32)

    def take(self, scores: Floats, first: int) -> None:
        """Take in scores (queries, rows) of the rows from `first` on, which come after all that were taken."""
        count = self.scores.shape[1]
        floor = self.scores[:, -1]
        if scores.shape[1] > count and np.isneginf(floor).any():
            # At the beginning everything is better than nothing: only the block's own best need be sorted.
            place = scores.shape[1] - count
            lowest = np.nextafter(np.partition(scores, place, axis=1)[:, place], np.float32(-np.inf))
            floor = np.maximum(floor, lowest)
        asked = np.flatnonzero(
            scores.max(axis=1) > floor
        )  # later rows of an equal score come after those that are there
        if len(asked):
            self._merge(asked, *_list_better(scores[asked], floor[asked], first))

    def _merge(self, asked: NDArray[np.intp], which: NDArray[np.intp], ids: NDArray[np.intp], scores: Floats) -> None:
        """Sort new candidates in; `which` says of each whose it is, as a place in `asked`."""
        count = self.scores.shape[1]
        which = np.concatenate([np.repeat(np.arange(len(asked)), count), which])
        ids = np.concatenate([self.ids[asked].reshape(-1), ids])
        scores = np.concatenate([self.scores[asked].reshape(-1), scores])
        order = np.lexsort((ids, -scores, which))
        starts = np.searchsorted(which[order], np.arange(len(asked)))
        kept = order[starts[:, None] + np.arange(count)]
        self.ids[asked], self.scores[asked] = ids[kept], scores[kept]


def _list_better(scores: Floats, floor: Floats, first: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Return query, row id and score of all that is above the query's floor."""
    # Flat: of a matrix, numpy finds what is not zero five times as slowly.
    found = np.flatnonzero(scores > floor[:, None])
    which, places = np.divmod(found, scores.shape[1])
    return which, places + first, scores.reshape(-1)[found]


def best_rows(unit: Floats, queries: Floats, count: int, *, excluded: Pairs, is_zero: NDArray[np.bool_]) -> _Best:
    """Return ids and scores of the rows with the highest dot products with each query, highest first, equal ones by id.

    Rows that `is_zero` marks, and those that a query excludes, are no candidates: their score is -inf. Scores are
    computed for a part of the rows at a time, so that memory does not grow with rows times queries.

    >>> unit = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    >>> none = Pairs(np.empty(0, np.intp), np.empty(0, np.intp))
    >>> best_rows(unit, unit[:1], 2, excluded=none, is_zero=np.zeros(3, bool)).ids.tolist()
    [[0, 2]]
    """
    best = _Best(len(queries), min(count, len(unit)))
    width = max(_SCORES_AT_A_TIME // max(len(queries), 1), 1)
    buffers = np.empty((2, len(queries) * min(width, len(unit))), np.float32)
    order = np.argsort(excluded.rows, kind="stable")
    asked, rows = excluded.queries[order], excluded.rows[order]

    def score(number: int) -> Floats:
        first, block = number * width, unit[number * width : (number + 1) * width]
        scores = buffers[number % 2, : len(queries) * len(block)].reshape(len(queries), len(block))
        np.matmul(queries, block.T, out=scores)
        scores[:, np.flatnonzero(is_zero[first : first + width])] = -np.inf
        inside = slice(*np.searchsorted(rows, (first, first + width)))
        scores[asked[inside], rows[inside] - first] = -np.inf
        return scores

    # The next product is under way while the best of one are looked for; there are never more than these two.
    blocks = range(-(-len(unit) // width))
    for number, scores in enumerate(map_in_order(score, blocks, threads=1, ahead=2)):
        best.take(scores, number * width)
    return best


def score_3cosmul(unit: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    """Return the 3CosMul score of every row for "a is to b as c is to ?", the four of length 1."""
    to_a, to_b, to_c = (shift_cosine(unit @ word) for word in (a, b, c))
    return to_b * to_c / (to_a + EPSILON)


def shift_cosine(cosine: Floats) -> Floats:
    """Return a cosine, which may be negative, moved to 0 .. 1."""
    return (cosine + np.float32(1)) * np.float32(0.5)
