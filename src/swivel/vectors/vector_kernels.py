"""Numba kernels that release the GIL: the highest of many scores, and epochs of UMAP (McInnes et al., 2018).

umap-learn moves both ends of an edge at once, so that its result depends on the order in which threads take the edges.
Here, an epoch computes the new place of each point from the old places of all others: the result is the same with any
number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from swivel.runtime.kernels import njit_cached

_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
_jit = njit_cached(**_OPTIONS)
_inline = njit_cached(forceinline=True, **_OPTIONS)

LANES = 64  # scores that are compared at once
PUSHES = 5  # random points that push a point away, per neighbor that pulls it
MAX_MOVE = np.float32(4)  # of a coordinate by one push, times the step size
NEAR = np.float32(0.001)  # keeps the push of equal points finite


@_jit
def keep_best(scores, biases, first, ids, best):  # type: ignore[no-untyped-def]
    """Insert the scores (queries, rows) + biases of the rows from `first` on into the best so far of each query."""
    # `ids` and `best` (queries, count) are sorted, the highest score first. Of equal scores the earlier row stays, and
    # a score of -inf is never inserted.
    queries, rows = scores.shape
    last = best.shape[1] - 1
    for query in range(queries):
        line = scores[query]
        floor = best[query, last]
        for start in range(0, rows, LANES):
            group = line[start : start + LANES]
            offsets = biases[start : start + LANES]
            better = 0
            # Indices from 0 on, which need no check for negative ones: one comparison of many lanes is made of it.
            for lane in range(len(group)):
                better += group[lane] + offsets[lane] > floor
            if better == 0:
                continue

            for lane in range(len(group)):
                score = group[lane] + offsets[lane]
                if score > floor:
                    place = last
                    while place > 0 and best[query, place - 1] < score:
                        best[query, place] = best[query, place - 1]
                        ids[query, place] = ids[query, place - 1]
                        place -= 1
                    best[query, place] = score
                    ids[query, place] = first + start + lane
                    floor = best[query, last]


@_inline
def _join(third, pair, is_product):  # type: ignore[no-untyped-def]
    return third * pair if is_product else third + pair


@_jit
def keep_answers(  # type: ignore[no-untyped-def]
    thirds, pairs, highest_thirds, highest_pairs, is_product, first, questions, parts_of, best, answers
):
    """Write better answers to analogy questions (a, b, c) than those so far, among the words from `first` on.

    The score of a word is the sum, or the product, of a row of `thirds` and a row of `pairs`, which `parts_of` names
    for each question.
    """
    for number in range(len(questions)):
        third = parts_of[number, 0]
        pair = parts_of[number, 1]
        floor = best[number]
        # If even the maxima of its rows together are not better, a question is skipped. This is exact, because
        # rounding is monotonic, and saves more than half of the work with trained vectors.
        if _join(highest_thirds[third], highest_pairs[pair], is_product) <= floor:
            continue

        a, b, c = questions[number]
        for start in range(0, thirds.shape[1], LANES):
            of_third = thirds[third, start : start + LANES]
            of_pair = pairs[pair, start : start + LANES]
            better = 0
            for lane in range(len(of_third)):
                better += _join(of_third[lane], of_pair[lane], is_product) > floor
            if better == 0:
                continue

            for lane in range(len(of_third)):
                score = _join(of_third[lane], of_pair[lane], is_product)
                word = first + start + lane
                if score > floor and word != a and word != b and word != c:
                    floor = score
                    answers[number] = word
        best[number] = floor


@_inline
def _mix(value):  # type: ignore[no-untyped-def]
    """Return 64 bits that look random and depend on `value` only (splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@_inline
def _clip(move):  # type: ignore[no-untyped-def]
    return min(max(move, -MAX_MOVE), MAX_MOVE)


@_jit
def move_points(points, moved, first, stop, edges, epoch, step, curve):  # type: ignore[no-untyped-def]
    """Write the places of the points first .. stop - 1 after one epoch to `moved`; `points` are those before it."""
    # The neighbors of point i are `ends[starts[i] : starts[i + 1]]`. Each pulls in a share `rates` of all epochs,
    # and `PUSHES` random points push then. The similarity of two points in the layout is 1 / (1 + a d^2b).
    starts, ends, rates = edges
    a, b = curve
    for point in range(first, stop):
        x = points[point, 0]
        y = points[point, 1]
        state = _mix(np.uint64(epoch) << np.uint64(32) | np.uint64(point))

        for edge in range(starts[point], starts[point + 1]):
            rate = rates[edge]
            if math.floor((epoch + 1) * rate) == math.floor(epoch * rate):
                continue

            other = ends[edge]
            dx = x - points[other, 0]
            dy = y - points[other, 1]
            square = dx * dx + dy * dy
            if square > np.float32(0):
                power = square**b
                pull = np.float32(2) * a * b * power / (square * (np.float32(1) + a * power))
                share = min(step * pull, np.float32(1))  # not beyond the other point, unlike umap-learn
                x -= share * dx
                y -= share * dy

            for _ in range(PUSHES):
                state += np.uint64(0x9E3779B97F4A7C15)
                other = ((_mix(state) >> np.uint64(32)) * np.uint64(points.shape[0])) >> np.uint64(32)
                dx = x - points[other, 0]
                dy = y - points[other, 1]
                square = dx * dx + dy * dy
                if square > np.float32(0) and other != point:
                    push = np.float32(2) * b / ((NEAR + square) * (np.float32(1) + a * square**b))
                    x += step * _clip(push * dx)
                    y += step * _clip(push * dy)

        moved[point, 0] = x
        moved[point, 1] = y
