"""Clusters of vectors, for the colors of a map."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.vectors.search import Floats, scale_to_unit

CLUSTERS = 12  # as many as there are distinguishable colors
TYPICAL = 6  # ids that describe a cluster
_SAMPLE = 20_000  # k-means is fitted to this many most common words, and predicts the cluster of all words


class Clusters(NamedTuple):
    """The cluster of each vector, the most informative ids of each cluster, and all ids, informative ones first."""

    numbers: NDArray[np.uint16]
    typical: tuple[tuple[int, ...], ...]
    order: NDArray[np.uint32]


def find_clusters(components: Floats, weights: Floats | None = None, *, count: int = CLUSTERS) -> Clusters:
    """Return k-means clusters, fitted to the most common vectors; cluster 0 is the largest.

    A label is informative about its cluster if it is near the center and its weight, of `weigh_labels`, is large.
    """
    from sklearn.cluster import MiniBatchKMeans

    sample = components[:_SAMPLE]
    means = MiniBatchKMeans(min(count, len(sample)), random_state=1, n_init=3, batch_size=4_096)
    # scikit-learn warns about fewer distinct vectors than clusters, and about MKL on Windows; the user can do nothing.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        means.fit(sample)
        labels = means.predict(components)

    # Renumber the clusters by decreasing size.
    order = np.argsort(-np.bincount(labels, minlength=len(means.cluster_centers_)), kind="stable")
    rank = np.empty(len(order), np.uint16)
    rank[order] = np.arange(len(order))
    numbers = rank[labels]

    directions = scale_to_unit(means.cluster_centers_[order])[numbers]
    cosines = np.einsum("ij,ij->i", scale_to_unit(components), directions)
    importance = np.maximum(cosines, 0) if weights is None else np.maximum(cosines, 0) * weights
    falling = np.argsort(-importance, kind="stable").astype(np.uint32)
    members = (falling[numbers[falling] == number] for number in range(len(order)))
    return Clusters(numbers, tuple(tuple(ids[:TYPICAL].tolist()) for ids in members), falling)
