"""Project vectors to two dimensions by principal components or UMAP, and cluster them.

`run_umap` is the main function of the process that computes UMAP.
"""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.signals import exit_with_parent
from swivel.vectors.search import best_rows, scale_to_unit

Floats = NDArray[np.float32]

KEPT = 50  # components for UMAP and the clusters; at dim 300 the rest is mostly noise and six times the work
CLUSTERS = 12  # as many as there are distinguishable colors
NEIGHBORS = 15  # the default of UMAP
MIN_UMAP = 4  # vectors; UMAP fails with two
UMAP = {"n_neighbors": NEIGHBORS, "min_dist": 0.1, "n_epochs": 200, "random_state": 1, "n_jobs": 1}
# Up to this many vectors, UMAP gets their exact neighbors. Its own search is approximate, and compiling it takes most
# of a minute in every process; above, the exact search takes longer than that.
MAX_EXACT = 30_000
_CHUNK = 16_384
_QUERIES = 4_096
_CORE = 0.85  # share of the points that are in the middle
_INSIDE = 0.985  # share of the points in -1 .. 1
_SAMPLE = 20_000  # k-means is fitted to this many most common words, and predicts the cluster of all words


@dataclass(frozen=True, slots=True)
class Reduced:
    """Principal components (n, up to 50) of vectors, by decreasing variance."""

    values: Floats

    @property
    def points(self) -> Floats:
        """Coordinates (n, 2): the first two components."""
        points = np.zeros((len(self.values), 2), np.float32)
        points[:, : self.values.shape[1]] = self.values[:, :2]
        return points


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster of each vector, the most informative ids of each cluster, and all ids, informative ones first."""

    numbers: NDArray[np.uint16]
    typical: tuple[tuple[int, ...], ...]
    order: NDArray[np.uint32]


def reduce_vectors(unit: Floats) -> Reduced:
    """Return the principal components of vectors.

    The sign of an axis is arbitrary. It is chosen such that the largest entry is positive, so that equal vectors give
    equal maps.

    >>> rng = np.random.default_rng(0)
    >>> reduce_vectors(rng.standard_normal((20, 3), dtype=np.float32)).points.shape
    (20, 2)
    """
    mean = unit.mean(axis=0, dtype=np.float64).astype(np.float32)

    # In chunks, because a centered copy of all vectors would double the memory.
    gram = np.zeros((unit.shape[1], unit.shape[1]))
    for start in range(0, len(unit), _CHUNK):
        chunk = unit[start : start + _CHUNK] - mean
        gram += chunk.T @ chunk

    _, axes = np.linalg.eigh(gram)  # in order of increasing eigenvalue
    axes = axes[:, ::-1][:, :KEPT]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None, :], axis=0)
    axes = (axes * np.where(largest < 0, -1.0, 1.0)).astype(np.float32)
    return Reduced(np.asarray(unit @ axes - mean @ axes))


def find_clusters(
    reduced: Reduced, weights: Floats | None = None, *, count: int = CLUSTERS, typical: int = 6
) -> Clusters:
    """Return k-means clusters, fitted to the most common vectors; cluster 0 is the largest.

    A label is informative about its cluster if it is near the center and its weight, of `weigh_labels`, is large.
    """
    from sklearn.cluster import MiniBatchKMeans

    values = reduced.values
    sample = values[:_SAMPLE]
    means = MiniBatchKMeans(min(count, len(sample)), random_state=1, n_init=3, batch_size=4_096)
    # scikit-learn warns about fewer distinct vectors than clusters, and about MKL on Windows; the user can do nothing.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        means.fit(sample)
        labels = means.predict(values)

    # Renumber the clusters by decreasing size.
    order = np.argsort(-np.bincount(labels, minlength=len(means.cluster_centers_)), kind="stable")
    rank = np.empty(len(order), np.uint16)
    rank[order] = np.arange(len(order))
    numbers = rank[labels]

    directions = scale_to_unit(means.cluster_centers_[order])[numbers]
    cosines = np.einsum("ij,ij->i", scale_to_unit(values), directions)
    importance = np.maximum(cosines, 0) if weights is None else np.maximum(cosines, 0) * weights
    falling = np.argsort(-importance, kind="stable").astype(np.uint32)
    members = (falling[numbers[falling] == number] for number in range(len(order)))
    return Clusters(numbers, tuple(tuple(ids[:typical].tolist()) for ids in members), falling)


def fit_to_frame(points: Floats) -> Floats:
    """Return points of which nearly all are in -1 .. 1.

    Points outside the middle are drawn nearer, by a logarithm: islands far out keep their direction and shape, and do
    not squeeze the rest. How far islands are apart means nothing in UMAP.
    """
    centered = points - np.median(points, axis=0)
    radius = np.linalg.norm(centered, axis=1)
    core = float(np.quantile(radius, _CORE)) or 1.0
    pulled = np.where(radius > core, core * (1 + np.log(np.maximum(radius, core) / core) / 2), radius)
    edge = float(np.quantile(pulled, _INSIDE)) or 1.0
    return np.asarray(centered * (pulled / np.maximum(radius, 1e-12) / edge)[:, None], np.float32)


def compute_umap(reduced: Reduced) -> Floats:
    """Return the UMAP coordinates (n, 2), initialized with the principal components; deterministic.

    These are the principal components if there are fewer than four vectors, or if UMAP fails because many are equal.
    """
    import umap

    values = reduced.values
    if len(values) < MIN_UMAP:
        return reduced.points

    start = reduced.points / max(float(np.abs(reduced.points).max()), 1e-12) * 10  # the scale of UMAP's initialization
    settings: dict[str, Any] = UMAP | {"n_neighbors": min(NEIGHBORS, len(values) - 1)}
    if len(values) <= MAX_EXACT:
        settings["precomputed_knn"] = find_neighbors(values, settings["n_neighbors"])
        settings["force_approximation_algorithm"] = True  # Otherwise UMAP ignores known neighbors of few vectors.

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # UMAP warns that a seed allows only one thread, which is intended.
        points = np.asarray(umap.UMAP(init=start, **settings).fit_transform(values), np.float32)
    return points if np.isfinite(points).all() else reduced.points


def find_neighbors(values: Floats, count: int) -> tuple[NDArray[np.int32], Floats]:
    """Return the ids of every vector and of its nearest ones by Euclidean distance, `count` in all, and the distances.

    >>> ids, distances = find_neighbors(np.array([[0, 0], [3, 4], [0, 1]], np.float32), 2)
    >>> ids.tolist(), distances.tolist()
    ([[0, 2], [1, 2], [2, 0]], [[0.0, 1.0], [0.0, 4.242640495300293], [0.0, 1.0]])
    """
    # |x - y|^2 = |x|^2 - 2 (x . y - |y|^2 / 2): the nearest y has the largest product [x, 1] . [y, -|y|^2 / 2].
    halves = (values * values).sum(axis=1, dtype=np.float32) / 2
    rows = np.column_stack([values, -halves])
    queries = np.column_stack([values, np.ones_like(halves)])
    no_zeros = np.zeros(len(values), np.bool_)

    ids = np.empty((len(values), count), np.int32)
    distances = np.empty((len(values), count), np.float32)
    for start in range(0, len(values), _QUERIES):
        piece = slice(start, start + _QUERIES)
        own = np.arange(len(values))[piece, None]
        best = best_rows(rows, queries[piece], count - 1, excluded=own.tolist(), is_zero=no_zeros)
        ids[piece] = np.hstack([own, best.ids])
        distances[piece] = np.linalg.norm(values[piece, None] - values[ids[piece]], axis=2)  # exact also near 0

    return ids, distances


def run_umap(server: Connection, spare_cache: Path) -> None:
    """Receive vectors from the server, and send their UMAP coordinates or an error message.

    This is the main function of a process with low priority. The kernels of UMAP are kept in the folder `spare_cache`
    where there is no other place for them.
    """
    from swivel.runtime.kernels import use_spare_cache

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the server, which then stops this process.
    exit_with_parent()
    if hasattr(os, "nice"):
        os.nice(10)

    try:
        use_spare_cache("umap", spare_cache)
        server.send(compute_umap(Reduced(server.recv())))
    except Exception as error:
        server.send(f"{type(error).__name__}: {error}")
