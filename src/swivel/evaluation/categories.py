"""Categories: whether words of the same category are close to each other.

The known words are clustered by k-means on unit vectors, with as many clusters as categories. Each cluster is assigned
its most frequent category; purity is the fraction of words whose category is that of their cluster. scikit-learn, in
the extra `evaluate`, is imported when a set is scored.
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

STARTS = 10
SEED = 1


@dataclass(frozen=True, slots=True)
class CategoryResult:
    """Purity of the clusters; None if the known words have fewer than two categories.

    `is_right` (the category of the word is that of its cluster), `is_known` and the words in `items` have the order of
    the file.
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
        """Purity of the clusters; the same as `figure`."""
        return self.figure

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without the words."""
        return describe_result(self)


def score_categories(vectors: Vectors, words: CategorySet, rules: EvaluationConfig | None = None) -> CategoryResult:
    """Cluster the known words of a set and return the purity of the clusters."""
    rules = rules or EvaluationConfig()
    ids = np.array(find_ids(vectors, words.words, rules), np.int64)
    is_known = ids >= 0
    is_right = np.zeros(len(ids), bool)
    known = int(is_known.sum())
    names, categories = np.unique(np.array(words.categories)[is_known], return_inverse=True)

    figure = interval = None
    if len(names) > 1:
        clusters = cluster_vectors(vectors.unit_vectors[ids[is_known]].astype(np.float64), len(names))
        is_right[is_known] = lie_in_own_cluster(clusters, categories)
        correct = int(is_right.sum())
        figure = correct / known
        interval = share_interval(correct, known, draws=rules.draws)

    return CategoryResult(words.name, figure, interval, known, len(ids), is_right, is_known, words.words)


def cluster_vectors(unit: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the cluster of each vector, from k-means with a fixed seed."""
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise missing_extra("sets of categories", "scikit-learn", "evaluate") from error

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Equal vectors may leave a cluster empty, which does not affect purity.
        return np.asarray(KMeans(count, n_init=STARTS, random_state=SEED).fit_predict(unit), np.int64)


def lie_in_own_cluster(clusters: NDArray[np.int64], categories: NDArray[np.intp]) -> Flags:
    """Return whether the category of each item is the most frequent of its cluster; of ties the first one.

    >>> lie_in_own_cluster(np.array([0, 0, 0, 1]), np.array([1, 1, 0, 0])).tolist()
    [True, True, False, True]
    """
    table = np.zeros((clusters.max() + 1, categories.max() + 1), np.int64)
    np.add.at(table, (clusters, categories), 1)
    return np.asarray(table.argmax(axis=1)[clusters] == categories)
