"""Categories: do words of one kind lie together?

Receives vectors and a `CategorySet`, hands on the purity of clusters: as many clusters as there are categories among
the known words, by k-means on vectors of length 1; each cluster stands for its commonest category, and purity is the
share of words that lie in a cluster of their own. Unknown words are left out. scikit-learn, of the extra `evaluate`, is
loaded when a set of categories is scored.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from swivel.errors import missing_extra
from swivel.evaluation.analogies import Flags
from swivel.evaluation.bootstrap import Interval, share_interval
from swivel.evaluation.config import EvaluationConfig, find_ids
from swivel.evaluation.datasets import CategorySet
from swivel.evaluation.similarity import describe_result
from swivel.vectors import Vectors

STARTS, SEED = 10, 1


@dataclass(frozen=True, slots=True)
class CategoryResult:
    """Purity of the clusters; None where the known words are of fewer than two categories.

    `is_right` (a word's category is that of its cluster) and `is_known` stand in the file's order, as do the words,
    `items`.
    """

    kind: ClassVar[str] = "categories"
    measure: ClassVar[str] = "purity"

    name: str
    figure: float | None
    interval: Interval | None
    known: int
    total: int
    is_right: Flags = field(compare=False, repr=False)
    is_known: Flags = field(compare=False, repr=False)
    items: tuple[str, ...] = field(compare=False, repr=False)

    @property
    def purity(self) -> float | None:
        """The figure."""
        return self.figure

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the words."""
        return describe_result(self)


def score_categories(vectors: Vectors, words: CategorySet, rules: EvaluationConfig | None = None) -> CategoryResult:
    """Cluster the known words of a set and compare clusters with categories."""
    rules = rules or EvaluationConfig()
    ids = np.array(find_ids(vectors, words.words, rules), np.int64)
    is_known, is_right = ids >= 0, np.zeros(len(ids), bool)
    known = int(is_known.sum())
    names, categories = np.unique(np.array(words.categories)[is_known], return_inverse=True)
    figure = interval = None
    if len(names) > 1:
        clusters = cluster_vectors(vectors.unit_vectors[ids[is_known]].astype(np.float64), len(names))
        is_right[is_known] = lie_in_own_cluster(clusters, categories)
        correct = int(is_right.sum())
        figure, interval = correct / known, share_interval(correct, known, draws=rules.draws)
    return CategoryResult(words.name, figure, interval, known, len(ids), is_right, is_known, words.words)


def cluster_vectors(unit: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the cluster of each vector, by k-means with a fixed seed."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise missing_extra("sets of categories", "scikit-learn", "evaluate") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Equal vectors may leave a cluster empty: no harm to purity.
        return np.asarray(KMeans(count, n_init=STARTS, random_state=SEED).fit_predict(unit), np.int64)


def lie_in_own_cluster(clusters: NDArray[np.int64], categories: NDArray[np.intp]) -> Flags:
    """Return whether the category of each item is the commonest of its cluster; of equally common ones, the first.

    >>> lie_in_own_cluster(np.array([0, 0, 0, 1]), np.array([1, 1, 0, 0])).tolist()
    [True, True, False, True]
    """
    table = np.zeros((clusters.max() + 1, categories.max() + 1), np.int64)
    np.add.at(table, (clusters, categories), 1)
    return np.asarray(table.argmax(axis=1)[clusters] == categories)
