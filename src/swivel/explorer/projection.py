"""Project vectors to two dimensions by principal components or UMAP, and cluster them."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.child_process import SentProgress
from swivel.runtime.resources import count_cores
from swivel.vectors.search import scale_to_unit

Floats = NDArray[np.float32]
Show = Callable[[Floats], None]  # receives a draft of the coordinates

KEPT = 50  # components for UMAP and the clusters; at dim 300 the rest is mostly noise and six times the work
CLUSTERS = 12  # as many as there are distinguishable colors
NEIGHBORS = 14  # of every vector; with itself 15, the default of umap-learn
MIN_UMAP = 4  # vectors
CURVE = (1.5769, 0.8951)  # a and b of the similarity 1 / (1 + a d^2b), which umap-learn fits to min_dist=0.1
EPOCHS = 200
SMALL_MAP = 10_000  # Up to so many vectors there are more epochs, as in umap-learn.
SMALL_MAP_EPOCHS = 500
UMAP = {"neighbors": NEIGHBORS, "curve": CURVE, "epochs": (EPOCHS, SMALL_MAP_EPOCHS)}
_CHUNK = 16_384
_QUERIES = 1_024
_ROWS = 512  # compared with the queries at once: 2 MiB of scores stay in the cache
_DRAFT_SECONDS = 1.0  # between two drafts of a map
_CORE = 0.85  # share of the points that are in the middle
_INSIDE = 0.985  # share of the points in -1 .. 1
_SAMPLE = 20_000  # k-means is fitted to this many most common words, and predicts the cluster of all words


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster of each vector, the most informative ids of each cluster, and all ids, informative ones first."""

    numbers: NDArray[np.uint16]
    typical: tuple[tuple[int, ...], ...]
    order: NDArray[np.uint32]


def reduce_vectors(unit: Floats) -> Floats:
    """Return the principal components (n, up to 50) of vectors, by decreasing variance.

    The sign of an axis is arbitrary. It is chosen such that the largest entry is positive, so that equal vectors give
    equal maps.

    >>> rng = np.random.default_rng(0)
    >>> reduce_vectors(rng.standard_normal((20, 3), dtype=np.float32)).shape
    (20, 3)
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
    return np.asarray(unit @ axes - mean @ axes)


def take_plane(components: Floats) -> Floats:
    """Return coordinates (n, 2): the first two components, zeros for a second one that does not exist."""
    points = np.zeros((len(components), 2), np.float32)
    points[:, : components.shape[1]] = components[:, :2]
    return points


def find_clusters(
    components: Floats, weights: Floats | None = None, *, count: int = CLUSTERS, typical: int = 6
) -> Clusters:
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
    return Clusters(numbers, tuple(tuple(ids[:typical].tolist()) for ids in members), falling)


def fit_to_frame(points: Floats) -> Floats:
    """Return points of which nearly all are in -1 .. 1.

    Points outside the middle are drawn nearer, by a logarithm: islands far out keep their direction and shape, and do
    not squeeze the rest. How far islands are apart means nothing in UMAP.
    """
    # Medians and quantiles, not means: a few islands far out must not move or shrink the rest.
    centered = points - np.median(points, axis=0)
    radius = np.linalg.norm(centered, axis=1)
    core = float(np.quantile(radius, _CORE)) or 1.0
    pulled = np.where(radius > core, core * (1 + np.log(np.maximum(radius, core) / core) / 2), radius)
    edge = float(np.quantile(pulled, _INSIDE)) or 1.0
    return np.asarray(centered * (pulled / np.maximum(radius, 1e-12) / edge)[:, None], np.float32)


def compute_umap(components: Floats, show: Show | None = None) -> Floats:
    """Return the UMAP coordinates (n, 2); deterministic, whatever the number of threads.

    The layout starts with the principal components, and `show` is called with every draft of it. These are the
    principal components if there are fewer than four vectors.
    """
    plane = take_plane(components)
    if len(plane) < MIN_UMAP:
        return plane

    graph = connect_neighbors(*find_neighbors(components, min(NEIGHBORS, len(plane) - 1)))
    start = plane / max(float(np.abs(plane).max()), 1e-12) * 10  # the scale of umap-learn's start
    epochs = SMALL_MAP_EPOCHS if len(plane) <= SMALL_MAP else EPOCHS
    points = start
    for points in improve_layout(graph, start, epochs):
        if show is not None:
            show(points)
    return points


def find_neighbors(values: Floats, count: int) -> tuple[NDArray[np.int32], Floats]:
    """Return the ids of the vectors nearest to each vector by Euclidean distance, nearest first, and the distances.

    >>> ids, distances = find_neighbors(np.array([[0, 0], [3, 4], [0, 1]], np.float32), 1)
    >>> ids.tolist(), distances.tolist()
    ([[2], [2], [0]], [[1.0], [4.242640495300293], [1.0]])
    """
    from threadpoolctl import threadpool_limits

    from swivel.explorer.umap_kernels import keep_nearest

    # |x - y|^2 = |x|^2 - 2 (x . y - |y|^2 / 2): the nearest y has the largest product [x, 1] . [y, -|y|^2 / 2].
    halves = (values * values).sum(axis=1, dtype=np.float32) / 2
    rows = np.column_stack([values, -halves])
    queries = np.column_stack([values, np.ones_like(halves)])

    ids = np.zeros((len(values), count), np.int32)
    best = np.full((len(values), count), -np.inf, np.float32)
    distances = np.empty((len(values), count), np.float32)

    def search(start: int) -> None:
        piece = slice(start, start + _QUERIES)
        for first in range(0, len(values), _ROWS):
            keep_nearest(queries[piece] @ rows[first : first + _ROWS].T, start, first, ids[piece], best[piece])
        distances[piece] = np.linalg.norm(values[piece, None] - values[ids[piece]], axis=2)  # exact also near 0

    # A thread takes queries of its own: threads that share a product wait for each other on busy cores.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(count_cores()) as pool:
        list(pool.map(search, range(0, len(values), _QUERIES)))
    return ids, distances


def connect_neighbors(ids: NDArray[np.int32], distances: Floats) -> Any:
    """Return the graph of UMAP, a symmetric sparse matrix.

    An edge has the weight p + q - pq, where p and q are the weights that its ends give to each other.
    """
    from scipy.sparse import csr_array

    from swivel.explorer.umap_kernels import weigh_neighbors

    # Row i of the graph has the weights that i gives; every row has the same number of neighbors.
    weights = np.empty_like(distances)
    weigh_neighbors(distances, weights)
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    graph = csr_array((weights.ravel(), ids.ravel(), starts), shape=(len(ids), len(ids)))
    transposed = graph.T.tocsr()
    return csr_array(graph + transposed - graph.multiply(transposed))


def improve_layout(graph: Any, start: Floats, epochs: int) -> Iterator[Floats]:
    """Yield the coordinates after each epoch, from the coordinates `start`; the array is reused."""
    from swivel.explorer.umap_kernels import move_points

    edges = (graph.indptr.astype(np.int64), graph.indices.astype(np.int32), graph.data / graph.data.max())
    curve = (np.float32(CURVE[0]), np.float32(CURVE[1]))
    points = start.astype(np.float32)
    moved = np.empty_like(points)

    # A point moves by the places of all points before the epoch, so that ranges of points are independent. Four per
    # thread, because points have different numbers of neighbors.
    threads = count_cores()
    bounds = np.linspace(0, len(points), 4 * threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        for epoch in range(epochs):
            shared = {"edges": edges, "epoch": epoch, "step": np.float32(1 - epoch / epochs), "curve": curve}
            list(pool.map(partial(move_points, points, moved, **shared), bounds[:-1], bounds[1:]))
            points, moved = moved, points
            yield points


def send_umap(components: Floats, *, progress: SentProgress) -> Floats:
    """Return the UMAP coordinates, and send drafts of them, one per second.

    It is called in a process of its own, which gets a low priority.
    """
    if hasattr(os, "nice"):
        os.nice(10)

    shown = time.monotonic()

    def show(points: Floats) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _DRAFT_SECONDS:
            progress.send(points)
            shown = time.monotonic()

    return compute_umap(components, show)
