"""Word similarity: do vectors rank pairs of words as people do?

Receives vectors and a `SimilaritySet`, hands on Spearman's rho. Pairs with an unknown word are left out, or count by
another of the `EvaluationConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from swivel.evaluation.bootstrap import Doubles, Interval, correlation_interval
from swivel.evaluation.config import EvaluationConfig, find_ids
from swivel.evaluation.datasets import SimilaritySet
from swivel.vectors import Vectors
from swivel.vectors.search import Floats, scale_to_unit


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """Spearman's rho; None where it has none (fewer than two pairs, or all of them equal).

    `cosines` and `scores` stand in the file's order, as do the pairs, `items`; the cosine of a pair that does not count
    is NaN.
    """

    kind: ClassVar[str] = "similarity"
    measure: ClassVar[str] = "rho"

    name: str
    figure: float | None
    interval: Interval | None
    known: int
    total: int
    cosines: Doubles = field(compare=False, repr=False)
    scores: Doubles = field(compare=False, repr=False)
    items: tuple[tuple[str, str], ...] = field(compare=False, repr=False)

    @property
    def rho(self) -> float | None:
        """The figure."""
        return self.figure

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the items."""
        return describe_result(self)


def describe_result(result: Any) -> dict[str, Any]:
    """Return what every kind of result has, as plain values."""
    names = ("name", "kind", "measure", "figure", "interval", "known", "total")
    values = {name: getattr(result, name) for name in names}
    return values | {"interval": None if result.interval is None else list(result.interval)}


def score_similarity(vectors: Vectors, pairs: SimilaritySet, rules: EvaluationConfig | None = None) -> SimilarityResult:
    """Compare the cosines of the pairs with people's scores."""
    rules = rules or EvaluationConfig()
    ids = np.array([find_ids(vectors, pair, rules) for pair in pairs.pairs], np.int64).reshape(-1, 2)
    is_known = (ids >= 0).all(axis=1)
    cosines = np.full(pairs.size, np.nan if rules.unknown_pairs == "skip" else 0.0)
    if rules.unknown_pairs == "mean":
        cosines = _cosines_with_mean(vectors, ids, rules)
    cosines[is_known] = compute_cosines(vectors.unit_vectors, *ids[is_known].T)
    return summarise_pairs(pairs, cosines, known=int(is_known.sum()), draws=rules.draws)


def summarise_pairs(
    pairs: SimilaritySet, cosines: ArrayLike, *, known: int | None = None, draws: int = EvaluationConfig().draws
) -> SimilarityResult:
    """Return the result of cosines, one a pair, wherever they come from; NaN for a pair that does not count.

    >>> pairs = SimilaritySet("p", (("a", "b"), ("a", "c"), ("b", "c")), (9, 5, 1))
    >>> summarise_pairs(pairs, [0.5, 0.4, np.nan], draws=0)
    SimilarityResult(name='p', figure=1.0, interval=None, known=2, total=3)
    """
    values, scores = np.array(cosines, np.float64), np.array(pairs.scores, np.float64)
    counts = ~np.isnan(values)
    known = int(counts.sum()) if known is None else known
    figure = rank_correlation(values[counts], scores[counts]) if known else None
    interval = None if figure is None else correlation_interval(values[counts], scores[counts], draws=draws)
    return SimilarityResult(pairs.name, figure, interval, known, pairs.size, values, scores, pairs.pairs)


def compute_cosines(unit: Floats, firsts: NDArray[Any], seconds: NDArray[Any]) -> Doubles:
    """Return the cosine of each pair of rows of length 1; 0 where one is all zeros."""
    return np.asarray(np.einsum("ij,ij->i", unit[firsts].astype(np.float64), unit[seconds]))


def _cosines_with_mean(vectors: Vectors, ids: NDArray[np.int64], rules: EvaluationConfig) -> Doubles:
    """Return the cosines with the mean of all known vectors, as they are, in the place of an unknown one."""
    mean = vectors.vectors[: rules.known_words(vectors)].mean(axis=0, dtype=np.float64)
    words, places = np.unique(ids, return_inverse=True)
    rows = np.where(words[:, None] < 0, scale_to_unit(mean[None]), vectors.unit_vectors[words])
    return compute_cosines(rows, *places.reshape(ids.shape).T)


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


def rank_values(values: ArrayLike) -> Doubles:
    """Return ranks from 1, equal values sharing their average.

    >>> rank_values([5, 3, 5]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, places, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places], np.float64)
