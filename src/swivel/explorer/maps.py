"""Compute maps of views in the background.

The principal components are available at once. UMAP takes 20 seconds for 100,000 words (benchmarks/maps.py) and runs in
a separate process.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import SwivelError
from swivel.runtime.child_process import ChildProcess, can_start_processes
from swivel.runtime.progress import SILENT
from swivel.vectors import Vectors
from swivel.vectors.projection import compute_umap, fit_to_frame, reduce_vectors, take_plane, weigh_labels
from swivel.vectors.search import Floats, scale_to_unit

MAX_POINTS = 100_000  # of a map
CLUSTERS = 12  # as many as there are distinguishable colors
TYPICAL = 6  # ids that describe a cluster
_UMAP_LOCK = threading.Lock()  # Two UMAPs at once would take the cores from the queries.
_SAMPLE = 20_000  # k-means is fitted to this many most common words, and predicts the cluster of all words


class Clusters(NamedTuple):
    """The cluster of each vector, the most informative ids of each cluster, and all ids, informative ones first."""

    numbers: NDArray[np.uint16]
    typical: tuple[tuple[int, ...], ...]
    order: NDArray[np.uint32]


def find_clusters(components: Floats, weights: Floats | None = None, *, count: int = CLUSTERS) -> Clusters:
    """Return k-means clusters, fitted to the most common vectors; cluster 0 is the largest."""
    # A label is informative about its cluster if it is near the center and its weight, of `weigh_labels`, is
    # large.
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


def compute_in_process(components: Floats) -> Floats:
    """Return the UMAP coordinates, computed in a new process, which ends with this one."""
    if not can_start_processes():
        return compute_umap(components)
    with ChildProcess() as process:
        return process.call(compute_politely, components).wait(SILENT)


def compute_politely(components: Floats) -> Floats:
    """Return the UMAP coordinates; the whole process has a low priority."""
    if hasattr(os, "nice"):
        os.nice(10)  # This process computes nothing else, and queries come first.
    return compute_umap(components)


class Map:
    """The map of the vectors that `get_vectors` returns: their most common labels, by default 100,000."""

    # A background thread sets `clusters`, then `umap` or `problem`. `began` is the time when UMAP started, or 0.

    def __init__(self, get_vectors: Callable[[], Vectors], max_points: int = MAX_POINTS) -> None:
        self.get_vectors = get_vectors
        self.compute: Callable[[Floats], Floats] = compute_in_process
        self.max_points = max_points
        self.umap: Floats | None = None
        self.clusters: Clusters | None = None
        self.problem = ""
        self.began = 0.0
        # Threads of requests and the thread of the map need the principal components: one of them computes these and
        # holds the lock. The other attributes are set by the thread of the map alone, each by one assignment, so that
        # requests read them without a lock.
        self._lock = threading.Lock()
        self._components: Floats | None = None
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return min(len(self.vectors), self.max_points)

    @property
    def vectors(self) -> Vectors:
        """The vectors that are shown."""
        return self.get_vectors()

    def start(self) -> None:
        """Compute clusters and UMAP in a background thread; only the first call does so."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._make, daemon=True)
                self._thread.start()

    def _make(self) -> None:
        try:
            self.find_clusters()
            with _UMAP_LOCK:
                self.began = time.monotonic()
                self.umap = self.compute(self.components)
        except SwivelError as error:
            self.problem = str(error)
        except Exception as error:  # An error in a thread would be lost; the page shows it.
            self.problem = f"{type(error).__name__}: {error}"

    @property
    def components(self) -> Floats:
        """The principal components of the vectors; the first thread computes them and the others wait."""
        with self._lock:
            if self._components is None:
                self._components = reduce_vectors(self.vectors.unit_vectors[: len(self)])
            return self._components

    def points(self, layout: str) -> Floats | None:
        """Return the coordinates (n, 2) of a layout, nearly all in -1 .. 1, None if they are not computed yet."""
        points = take_plane(self.components) if layout == "pca" else self.umap
        return None if points is None else fit_to_frame(points)

    def find_clusters(self) -> Clusters:
        """Compute the clusters, and keep them."""
        self.clusters = find_clusters(self.components, weigh_labels(self.vectors, len(self)))
        return self.clusters

    def describe(self) -> dict[str, Any]:
        """Return the size of the map, the state of UMAP, and the clusters, for JSON."""
        state = "missing" if self.problem else "computing"
        if self.umap is not None:
            state = "ready"
        is_running = state == "computing" and self.began > 0

        clusters = None
        if self.clusters is not None:
            sizes = np.bincount(self.clusters.numbers, minlength=len(self.clusters.typical)).tolist()
            tokens = self.vectors.vocabulary.tokens
            clusters = [
                {"size": size, "typical": [tokens[number] for number in typical]}
                for size, typical in zip(sizes, self.clusters.typical, strict=True)
            ]
        return {
            "points": len(self),
            "total": len(self.vectors),
            "umap": state,
            "problem": self.problem,
            "seconds": round(time.monotonic() - self.began, 1) if is_running else 0,
            "clusters": clusters,
        }
