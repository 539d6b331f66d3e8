"""The arithmetic of searching: lengths, cosines, the best of many scores.

Receives arrays, hands on arrays. It knows no tokens and no files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Keeps 3CosMul from dividing by zero (Levy and Goldberg, 2014).
EPSILON = np.float32(0.001)
_CHUNK_ROWS = 16_384


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
    threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
    candidates = np.flatnonzero((scores >= threshold) & (scores > -np.inf))
    order = np.lexsort((candidates, -scores[candidates]))
    return candidates[order[:count]]


def score_3cosmul(unit: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    """Return the 3CosMul score of every row for "a is to b as c is to ?", the four of length 1."""
    to_a, to_b, to_c = (shift_cosine(unit @ word) for word in (a, b, c))
    return to_b * to_c / (to_a + EPSILON)


def shift_cosine(cosine: Floats) -> Floats:
    """Return a cosine, which may be negative, moved to 0 .. 1."""
    return (cosine + np.float32(1)) * np.float32(0.5)
