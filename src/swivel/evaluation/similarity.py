"""Word similarity: do vectors rank pairs of words as people do?

Receives vectors and a `SimilaritySet`, hands on Spearman's rho. Pairs with an unknown word are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from swivel.evaluation.datasets import SimilaritySet
from swivel.vectors import Vectors


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """Spearman's rho over the known pairs; None where it has none (fewer than two pairs, or all of them equal)."""

    name: str
    rho: float | None
    known: int
    total: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "kind": "similarity", "rho": self.rho, "known": self.known, "total": self.total}


def score_similarity(vectors: Vectors, pairs: SimilaritySet) -> SimilarityResult:
    """Compare the cosines of the known pairs with people's scores."""
    ids = vectors.vocabulary.ids
    known = [n for n, (first, second) in enumerate(pairs.pairs) if first in ids and second in ids]
    firsts, seconds = ([ids[pairs.pairs[n][side]] for n in known] for side in (0, 1))
    cosines = compute_cosines(vectors, firsts, seconds)
    rho = rank_correlation(cosines, [pairs.scores[n] for n in known])
    return SimilarityResult(pairs.name, rho, len(known), len(pairs.pairs))


def compute_cosines(vectors: Vectors, firsts: Sequence[int], seconds: Sequence[int]) -> NDArray[np.float64]:
    """Return the cosine of each pair of ids; 0 where one is a vector of zeros."""
    unit = vectors.unit_vectors
    left = unit[np.asarray(firsts, np.intp)].astype(np.float64)
    return np.asarray(np.einsum("ij,ij->i", left, unit[np.asarray(seconds, np.intp)]))


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Spearman's rho, equal values sharing their average rank; None where it is not defined.

    >>> rank_correlation([1, 2, 3], [10, 20, 15])
    0.5
    >>> rank_correlation([1], [2]) is None
    True
    """
    first, second = rank_values(x), rank_values(y)
    if len(first) < 2:
        return None
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(np.clip(first @ second / scale, -1, 1)) if scale > 0 else None


def rank_values(values: ArrayLike) -> NDArray[np.float64]:
    """Return ranks from 1, equal values sharing their average.

    >>> rank_values([5, 3, 5]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, places, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places], np.float64)
