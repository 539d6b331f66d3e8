"""Word similarity: how well cosines rank pairs of words as people do, as Spearman's rho.

Pairs with an unknown word are skipped, or scored by another rule of `EvaluationConfig`.
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
    """Spearman's rho; None if it is not defined (fewer than two pairs, or all values equal).

    `cosines`, `scores` and the pairs in `items` have the order of the file; the cosine of a skipped pair is NaN.
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
        """Spearman's rho; the same as `figure`."""
        return self.figure

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without the pairs."""
        return describe_result(self)


def describe_result(result: Any) -> dict[str, Any]:
    """Return the fields that all kinds of results share, as a dictionary for JSON."""
    names = ("name", "kind", "measure", "figure", "interval", "known", "total")
    values = {name: getattr(result, name) for name in names}
    return values | {"interval": None if result.interval is None else list(result.interval)}


def score_similarity(vectors: Vectors, pairs: SimilaritySet, rules: EvaluationConfig | None = None) -> SimilarityResult:
    """Return the rank correlation between the cosines of the pairs and their human scores."""
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
    """Return the result for given cosines, one per pair; NaN for a pair to skip.

    >>> pairs = SimilaritySet("p", (("a", "b"), ("a", "c"), ("b", "c")), (9, 5, 1))
    >>> summarise_pairs(pairs, [0.5, 0.4, np.nan], draws=0)
    SimilarityResult(name='p', figure=1.0, interval=None, known=2, total=3)
    """
    values = np.array(cosines, np.float64)
    scores = np.array(pairs.scores, np.float64)
    is_counted = ~np.isnan(values)
    if known is None:
        known = int(is_counted.sum())

    figure = interval = None
    if known:
        figure = rank_correlation(values[is_counted], scores[is_counted])
    if figure is not None:
        interval = correlation_interval(values[is_counted], scores[is_counted], draws=draws)

    return SimilarityResult(pairs.name, figure, interval, known, pairs.size, values, scores, pairs.pairs)


def compute_cosines(unit: Floats, firsts: NDArray[Any], seconds: NDArray[Any]) -> Doubles:
    """Return the cosine of each pair of unit vectors; 0 if one of them is all zeros."""
    return np.asarray(np.einsum("ij,ij->i", unit[firsts].astype(np.float64), unit[seconds]))


def _cosines_with_mean(vectors: Vectors, ids: NDArray[np.int64], rules: EvaluationConfig) -> Doubles:
    """Return the cosines with the mean of all known vectors, not scaled, in place of unknown ones."""
    mean = vectors.vectors[: rules.known_words(vectors)].mean(axis=0, dtype=np.float64)
    words, indices = np.unique(ids, return_inverse=True)
    rows = np.where(words[:, None] < 0, scale_to_unit(mean[None]), vectors.unit_vectors[words])
    return compute_cosines(rows, *indices.reshape(ids.shape).T)


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Spearman's rho with average ranks for ties, or None if it is not defined.

    >>> rank_correlation([1, 2, 3], [10, 20, 15])
    0.5
    >>> rank_correlation([1], [2]) is None
    True
    """
    first = rank_values(x)
    second = rank_values(y)
    if len(first) < 2:
        return None

    # Pearson correlation of the ranks.
    first = first - first.mean()
    second = second - second.mean()
    scale = float(np.sqrt((first @ first) * (second @ second)))
    if not scale > 0:
        return None
    return float(np.clip(first @ second / scale, -1, 1))


def rank_values(values: ArrayLike) -> Doubles:
    """Return ranks starting from 1, with average ranks for ties.

    >>> rank_values([5, 3, 5]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, groups, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[groups], np.float64)
