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

Floats = NDArray[np.float32]

KEPT = 50  # components for UMAP and the clusters; at dim 300 the rest is mostly noise and six times the work
CLUSTERS = 12  # as many as there are distinguishable colors
NEIGHBORS = 15  # the default of UMAP
UMAP = {"n_neighbors": NEIGHBORS, "min_dist": 0.1, "random_state": 1, "n_jobs": 1}
_CHUNK = 16_384
_SAMPLE = 20_000  # k-means is fitted to this many most common words, and predicts the cluster of all words


@dataclass(frozen=True, slots=True)
class Reduced:
    """Principal components (n, up to 50) of vectors, by decreasing variance."""

    values: Floats

    @property
    def points(self) -> Floats:
        """Coordinates (n, 2) on the map: the first two components."""
        points = np.zeros((len(self.values), 2), np.float32)
        points[:, : self.values.shape[1]] = self.values[:, :2]
        return points


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster of each vector, and for each cluster the ids of common vectors near its center."""

    numbers: NDArray[np.uint16]
    typical: tuple[tuple[int, ...], ...]


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


def find_clusters(reduced: Reduced, count: int = CLUSTERS, typical: int = 6) -> Clusters:
    """Return k-means clusters, fitted to the most common vectors; cluster 0 is the largest."""
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
    return Clusters(numbers, _find_typical(values, numbers, means.cluster_centers_[order], typical))


def _find_typical(
    values: Floats, numbers: NDArray[np.uint16], centers: Floats, count: int
) -> tuple[tuple[int, ...], ...]:
    """Return, for each cluster, the members nearest to its center among the more common half of its members."""
    typical = []
    for number, center in enumerate(centers):
        members = np.flatnonzero(numbers == number)
        members = members[: max(len(members) // 2, count)]
        distances = np.linalg.norm(values[members] - center, axis=1)
        typical.append(tuple(members[np.argsort(distances, kind="stable")[:count]].tolist()))
    return tuple(typical)


def compute_umap(reduced: Reduced) -> Floats:
    """Return the UMAP coordinates (n, 2), initialized with the principal components; deterministic."""
    import umap

    values = reduced.values
    start = reduced.points / max(float(np.abs(reduced.points).max()), 1e-12) * 10  # the scale of UMAP's initialization
    settings: dict[str, Any] = UMAP | {"n_neighbors": min(NEIGHBORS, max(len(values) - 1, 2))}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # UMAP warns that a seed allows only one thread, which is intended.
        return np.asarray(umap.UMAP(init=start, **settings).fit_transform(values), np.float32)


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
