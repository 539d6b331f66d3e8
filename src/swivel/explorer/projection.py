"""Places on a map: principal components at once, UMAP when there is time, and clusters.

Receives vectors of length 1, hands on arrays. It knows no words, no files and no threads; `run_umap` is what a process
of its own does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

KEPT = 50  # components: what UMAP and the clusters see; the rest is mostly noise, and six times the work at dim 300
CLUSTERS = 12  # as many as there are colours that can be told apart
NEIGHBOURS = 15  # UMAP's own default
UMAP = {"n_neighbors": NEIGHBOURS, "min_dist": 0.1, "random_state": 1, "n_jobs": 1}
_CHUNK = 16_384
_SAMPLE = 20_000  # common words that the clusters are found on; all are then assigned to them


@dataclass(frozen=True, slots=True)
class Reduced:
    """Vectors (n, up to 50) along their main axes, the strongest first."""

    values: Floats

    @property
    def points(self) -> Floats:
        """Places (n, 2): the first two components."""
        points = np.zeros((len(self.values), 2), np.float32)
        points[:, : self.values.shape[1]] = self.values[:, :2]
        return points


@dataclass(frozen=True, slots=True)
class Clusters:
    """Which cluster each vector is of, and the vectors nearest to the middle of each, common ones only."""

    numbers: NDArray[np.uint16]
    typical: tuple[tuple[int, ...], ...]


def reduce_vectors(unit: Floats) -> Reduced:
    """Return vectors along their main axes.

    >>> rng = np.random.default_rng(0)
    >>> reduce_vectors(rng.standard_normal((20, 3), dtype=np.float32)).points.shape
    (20, 2)
    """
    mean = unit.mean(axis=0, dtype=np.float64).astype(np.float32)
    gram = np.zeros((unit.shape[1], unit.shape[1]))
    for start in range(0, len(unit), _CHUNK):
        chunk = unit[start : start + _CHUNK] - mean
        gram += chunk.T @ chunk
    _, axes = np.linalg.eigh(gram)  # by rising eigenvalue
    axes = axes[:, ::-1][:, :KEPT]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None, :], axis=0)
    axes = (axes * np.where(largest < 0, -1.0, 1.0)).astype(np.float32)  # A sign is free: equal vectors, equal maps.
    return Reduced(np.asarray(unit @ axes - mean @ axes))


def find_clusters(reduced: Reduced, count: int = CLUSTERS, typical: int = 6) -> Clusters:
    """Return clusters by k-means over the commonest vectors, the largest cluster first."""
    from sklearn.cluster import MiniBatchKMeans

    values = reduced.values
    known = values[:_SAMPLE]
    means = MiniBatchKMeans(min(count, len(known)), random_state=1, n_init=3, batch_size=4_096)
    with warnings.catch_warnings():  # Fewer distinct vectors than clusters, or an odd platform: nothing to act on.
        warnings.simplefilter("ignore")
        means.fit(known)
        labels = means.predict(values)
    order = np.argsort(-np.bincount(labels, minlength=len(means.cluster_centers_)), kind="stable")
    place = np.empty(len(order), np.uint16)
    place[order] = np.arange(len(order))
    numbers = place[labels]
    return Clusters(numbers, _find_typical(values, numbers, means.cluster_centers_[order], typical))


def _find_typical(
    values: Floats, numbers: NDArray[np.uint16], centres: Floats, count: int
) -> tuple[tuple[int, ...], ...]:
    """Return, of each cluster, the members nearest to its middle among its commoner half (which people know)."""
    found = []
    for number, centre in enumerate(centres):
        members = np.flatnonzero(numbers == number)
        members = members[: max(len(members) // 2, count)]
        distances = np.linalg.norm(values[members] - centre, axis=1)
        found.append(tuple(members[np.argsort(distances, kind="stable")[:count]].tolist()))
    return tuple(found)


def compute_umap(reduced: Reduced) -> Floats:
    """Return UMAP's places (n, 2), begun from the principal components: the same vectors, the same map."""
    import umap

    values = reduced.values
    start = reduced.points / max(float(np.abs(reduced.points).max()), 1e-12) * 10  # UMAP's own scale
    settings: dict[str, Any] = UMAP | {"n_neighbors": min(NEIGHBOURS, max(len(values) - 1, 2))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns that a seed means one thread, which is what is wanted here.
        return np.asarray(umap.UMAP(init=start, **settings).fit_transform(values), np.float32)


def _leave_with_parent() -> None:
    """End this process when the server is gone, even if it was killed: nobody waits for the map any more."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_umap(server: Connection) -> None:
    """Take vectors, send UMAP's places, or the error as a text: the work of a process that yields to all others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process.
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(10)
    try:
        server.send(compute_umap(Reduced(server.recv())))
    except Exception as error:
        server.send(f"{type(error).__name__}: {error}")
