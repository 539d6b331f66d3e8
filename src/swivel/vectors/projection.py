"""Maps of vectors in two dimensions, by principal components or UMAP, and which of their labels tell most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.resources import count_cores
from swivel.vectors.combine import find_main_axes
from swivel.vectors.search import Floats, best_rows
from swivel.vectors.vectors import Vectors

KEPT = 50  # components for UMAP and the clusters; at dim 300 the rest is mostly noise and six times the work
NEIGHBORS = 14  # of every vector; with itself 15, the default of umap-learn
MIN_UMAP = 4  # vectors
CURVE = (1.5769, 0.8951)  # a and b of the similarity 1 / (1 + a d^2b), which umap-learn fits to min_dist=0.1
EPOCHS = 200
SMALL_MAP = 10_000  # Up to so many vectors there are more epochs, as in umap-learn.
SMALL_MAP_EPOCHS = 500
UMAP = {"neighbors": NEIGHBORS, "curve": CURVE, "epochs": (EPOCHS, SMALL_MAP_EPOCHS)}
_CHUNK = 16_384
_QUERIES = 1_024
_HALVINGS = 64  # of the interval of sigma
_TOLERANCE = 1e-5  # of the sum of weights
_MIN_SIGMA = 1e-3  # times the mean distance
_EXAMPLE_QUANTILE = 0.95  # of the weights of labels
_MIN_LETTERS = 5
_CORE = 0.85  # share of the points that are in the middle
_INSIDE = 0.985  # share of the points in -1 .. 1


def weigh_labels(vectors: Vectors, ids: slice | Sequence[int]) -> Floats:
    """Return how informative each of some labels is: the length of its row times the logarithm of its count."""
    # w . c is the PMI of two words, so a row is short if its word occurs with all others as often as by chance:
    # "of" and "and" are not informative. Without counts, the rank by count replaces them.
    counts = vectors.vocabulary.counts
    frequencies = counts[ids] if counts.any() else len(vectors) / (np.arange(len(vectors))[ids] + 1)
    with np.errstate(over="ignore"):  # Rows of a training that diverged tell nothing in any case.
        lengths = np.linalg.norm(vectors.rows[ids], axis=1)
        return np.asarray(lengths * np.log1p(frequencies), np.float32)


def choose_example(vectors: Vectors, ids: Sequence[int]) -> int:
    """Return the one of some labels to show readers who do not know the vectors yet."""
    # Function words weigh least. Junk, such as parts of addresses, weighs most: it occurs with little else.
    order = np.argsort(weigh_labels(vectors, ids), kind="stable")
    return ids[int(order[int(_EXAMPLE_QUANTILE * (len(ids) - 1))])]


def is_plain_word(word: str) -> bool:
    """Return whether a word has only lower-case letters, and not too few of them.

    >>> is_plain_word("energy"), is_plain_word("the"), is_plain_word("20books"), is_plain_word("NASA")
    (True, False, False, False)
    """
    # Names, numbers and abbreviations say less to a reader than words, and most short words are function words.
    return len(word) >= _MIN_LETTERS and word.isalpha() and word == word.lower()


def reduce_vectors(unit: Floats) -> Floats:
    """Return the principal components (n, up to 50) of vectors, by decreasing variance.

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

    axes = find_main_axes(gram, KEPT).astype(np.float32)
    return np.asarray(unit @ axes - mean @ axes)


def take_plane(components: Floats) -> Floats:
    """Return coordinates (n, 2): the first two components, zeros for a second one that does not exist."""
    points = np.zeros((len(components), 2), np.float32)
    points[:, : components.shape[1]] = components[:, :2]
    return points


def fit_to_frame(points: Floats) -> Floats:
    """Return points of which nearly all are in -1 .. 1."""
    # Points outside the middle are drawn nearer, by a logarithm: islands far out keep their direction and shape,
    # and do not squeeze the rest. How far islands are apart means nothing in UMAP.
    # Medians and quantiles, not means: a few islands far out must not move or shrink the rest.
    centered = points - np.median(points, axis=0)
    radius = np.linalg.norm(centered, axis=1)
    core = float(np.quantile(radius, _CORE)) or 1.0
    pulled = np.where(radius > core, core * (1 + np.log(np.maximum(radius, core) / core) / 2), radius)
    edge = float(np.quantile(pulled, _INSIDE)) or 1.0
    return np.asarray(centered * (pulled / np.maximum(radius, 1e-12) / edge)[:, None], np.float32)


def compute_umap(components: Floats) -> Floats:
    """Return the UMAP coordinates (n, 2); deterministic, whatever the number of threads."""
    # The layout starts with the principal components, which are the result for fewer than four vectors.
    plane = take_plane(components)
    if len(plane) < MIN_UMAP:
        return plane

    graph = connect_neighbors(*find_neighbors(components, min(NEIGHBORS, len(plane) - 1)))
    start = plane / max(float(np.abs(plane).max()), 1e-12) * 10  # the scale of umap-learn's start
    epochs = SMALL_MAP_EPOCHS if len(plane) <= SMALL_MAP else EPOCHS
    return improve_layout(graph, start, epochs)


def find_neighbors(values: Floats, count: int) -> tuple[NDArray[np.intp], Floats]:
    """Return the ids of the vectors nearest to each vector by Euclidean distance, nearest first, and the distances.

    >>> ids, distances = find_neighbors(np.array([[0, 0], [3, 4], [0, 1]], np.float32), 1)
    >>> ids.tolist(), distances.tolist()
    ([[2], [2], [0]], [[1.0], [4.242640495300293], [1.0]])
    """
    # |x - y|^2 = |x|^2 - 2 (x . y - |y|^2 / 2): the nearest y has the largest x . y - |y|^2 / 2.
    biases = -(values * values).sum(axis=1, dtype=np.float32) / 2
    own = np.arange(len(values))[:, None]  # No vector is its own neighbor.
    ids, _ = best_rows(values, values, count, biases=biases, excluded=own)

    distances = np.empty(ids.shape, np.float32)
    for start in range(0, len(values), _QUERIES):
        piece = slice(start, start + _QUERIES)
        distances[piece] = np.linalg.norm(values[piece, None] - values[ids[piece]], axis=2)  # exact also near 0
    return ids, distances


def connect_neighbors(ids: NDArray[np.intp], distances: Floats) -> Any:
    """Return the graph of UMAP, a symmetric sparse matrix."""
    # An edge has the weight p + q - pq, where p and q are the weights that its ends give to each other.
    from scipy.sparse import csr_array

    # Row i of the graph has the weights that i gives; every row has the same number of neighbors.
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    weights = _weigh_neighbors(distances.astype(np.float64))
    graph = csr_array((weights.ravel(), ids.ravel(), starts), shape=(len(ids), len(ids)))
    transposed = graph.T.tocsr()
    return csr_array(graph + transposed - graph.multiply(transposed))


def _weigh_neighbors(distances: NDArray[np.float64]) -> Floats:
    """Return the weight of each neighbor, exp(-(distance - rho) / sigma), at most 1."""
    # rho is the smallest distance of a vector that is not 0.
    rho = np.where(distances > 0, distances, np.inf).min(axis=1)
    scale = np.where(np.isinf(rho), distances.mean(), distances.mean(axis=1))
    above = np.maximum(distances - np.where(np.isinf(rho), 0, rho)[:, None], 0)

    # Bisection for the sigma of each vector that makes its weights sum to log2(neighbors + 1); the interval doubles
    # until it has an upper end.
    target = math.log2(distances.shape[1] + 1)
    low, high, sigma = np.zeros(len(above)), np.full(len(above), np.inf), np.ones(len(above))
    for _ in range(_HALVINGS):
        excess = np.exp(-above / sigma[:, None]).sum(axis=1) - target
        high = np.where(excess > 0, sigma, high)
        low = np.where(excess > 0, low, sigma)
        sigma = np.where(np.isinf(high), 2 * sigma, (low + high) / 2)
        if np.abs(excess).max() < _TOLERANCE:
            break

    sigma = np.maximum(sigma, _MIN_SIGMA * scale)
    return np.asarray(np.exp(-above / sigma[:, None]), np.float32)


def improve_layout(graph: Any, start: Floats, epochs: int) -> Floats:
    """Return the coordinates after so many epochs, from the coordinates `start`."""
    from swivel.vectors.vector_kernels import move_points

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
    return points
