"""Compute maps of views in the background and cache them on disk.

The principal components are available at once. UMAP takes a minute for 100,000 words; it runs in a separate
process, which sends drafts, and its result is saved in the cache of the user under the fingerprint of the vectors.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import StorageError, SwivelError
from swivel.explorer.models import View
from swivel.runtime.child_process import SentProgress, call_in_process, can_start_processes
from swivel.runtime.progress import SILENT
from swivel.storage import fingerprint, open_array, write_file
from swivel.vectors.projection import (
    UMAP,
    Show,
    compute_umap,
    fit_to_frame,
    reduce_vectors,
    take_plane,
    weigh_labels,
)
from swivel.vectors.search import Floats, scale_to_unit

Compute = Callable[[Floats, Show], Floats]
MAX_POINTS = 100_000  # of a map
_DRAFT_SECONDS = 1.0  # between two drafts of a map
CLUSTERS = 12  # as many as there are distinguishable colors
TYPICAL = 6  # ids that describe a cluster
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


def cache_folder() -> Path | None:
    """Return the folder of cached maps, `swivel/maps` in the cache directory of the user; None if there is no home."""
    try:
        if os.name == "nt":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # A container may have users without a home folder.
        return None
    return Path(base) / "swivel" / "maps"


def send_umap(components: Floats, *, progress: SentProgress) -> Floats:
    """Return the UMAP coordinates, and send drafts of them, one per second."""
    if hasattr(os, "nice"):
        os.nice(10)  # This process computes nothing else, and queries come first.

    shown = time.monotonic()

    def show(points: Floats) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _DRAFT_SECONDS:
            progress.send(points)
            shown = time.monotonic()

    return compute_umap(components, show)


def compute_in_process(components: Floats, show: Show) -> Floats:
    """Return the UMAP coordinates, computed in a new process, which ends with this one."""
    # `show` is called with the drafts that the process sends.
    if not can_start_processes():
        return compute_umap(components, show)
    with call_in_process(send_umap, components) as call:
        return call.wait(SILENT, receive=show)


class Map:
    """The map of one view: its most common labels, by default 100,000."""

    # A background thread sets `clusters`, then drafts, then `umap` or `problem`. `began` is the time when UMAP
    # started, or 0.

    def __init__(self, view: View, max_points: int = MAX_POINTS) -> None:
        self.view = view
        self.max_points = max_points
        self.umap: Floats | None = None
        self.clusters: Clusters | None = None
        self.draft: Floats | None = None
        self.drafts = 0
        self.problem = ""
        self.began = 0.0
        # Threads of requests and the thread of the map need the principal components: one of them computes these and
        # holds the lock. The other attributes are set by the thread of the map alone, each by one assignment, so that
        # requests read them without a lock.
        self._lock = threading.Lock()
        self._components: Floats | None = None

    def __len__(self) -> int:
        return min(len(self.view.vectors), self.max_points)

    @property
    def components(self) -> Floats:
        """The principal components of the vectors; the first thread computes them and the others wait."""
        with self._lock:
            if self._components is None:
                self._components = reduce_vectors(self.view.vectors.unit_vectors[: len(self)])
            return self._components

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the vectors and the settings of UMAP, which names the cached file."""
        digest = hashlib.sha256(np.ascontiguousarray(self.view.vectors.vectors[: len(self)]).view(np.uint8).data)
        return fingerprint({"vectors": digest.hexdigest(), "umap": UMAP})

    def points(self, layout: str) -> Floats | None:
        """Return the coordinates (n, 2) of a layout, nearly all in -1 .. 1, None if they are not computed yet."""
        # Those of UMAP are the last draft until they are final.
        if layout == "pca":
            return fit_to_frame(take_plane(self.components))
        points = self.draft if self.umap is None else self.umap
        return None if points is None else fit_to_frame(points)

    def show_draft(self, points: Floats) -> None:
        """Show a draft of the coordinates of UMAP."""
        self.draft = points
        self.drafts += 1

    def find_clusters(self) -> Clusters:
        """Compute the clusters, and keep them."""
        self.clusters = find_clusters(self.components, weigh_labels(self.view.vectors, len(self)))
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
            tokens = self.view.vectors.vocabulary.tokens
            clusters = [
                {"size": size, "typical": [tokens[number] for number in typical]}
                for size, typical in zip(sizes, self.clusters.typical, strict=True)
            ]
        return {
            "points": len(self),
            "total": len(self.view.vectors),
            "umap": state,
            "drafts": self.drafts,
            "problem": self.problem,
            "seconds": round(time.monotonic() - self.began, 1) if is_running else 0,
            "clusters": clusters,
        }


class MapMaker:
    """Compute maps in background threads, one UMAP at a time, and save them in the folder `cache`, if it is given."""

    def __init__(self, cache: Path | None, compute: Compute = compute_in_process) -> None:
        self._cache = cache
        self._compute = compute
        self._maps: dict[int, Map] = {}  # by id(view)
        self._lock = threading.Lock()  # held while _maps is read or changed
        # Held while one UMAP is computed: two at once would take the cores from the queries.
        self._umap_lock = threading.Lock()

    def map_of(self, view: View) -> Map:
        """Return the map of a view; the first call for a view starts its computation."""
        with self._lock:
            if id(view) not in self._maps:
                self._maps[id(view)] = Map(view)
                threading.Thread(target=self._make, args=(self._maps[id(view)],), daemon=True).start()
            return self._maps[id(view)]

    def _make(self, target: Map) -> None:
        """Compute clusters and UMAP of a map: the main function of a background thread."""
        try:
            target.find_clusters()
            with self._umap_lock:
                target.began = time.monotonic()
                target.umap = self.load_or_compute(target)
        except SwivelError as error:
            target.problem = str(error)
        except Exception as error:  # An error in a thread would be lost; the page shows it.
            target.problem = f"{type(error).__name__}: {error}"

    def load_or_compute(self, target: Map) -> Floats:
        """Return the UMAP coordinates from the cache, or compute and save them."""
        if self._cache is None:
            return self._compute(target.components, target.show_draft)

        # A file that is missing, damaged or of another size is replaced.
        file = self._cache / f"{target.fingerprint}.npy"
        with contextlib.suppress(StorageError, OSError):
            points = np.array(open_array(file))
            if points.shape == (len(target), 2) and points.dtype == np.float32 and np.isfinite(points).all():
                return points

        points = self._compute(target.components, target.show_draft)
        data = io.BytesIO()
        np.lib.format.write_array(data, points, allow_pickle=False)
        # On a full or read-only disk, the next start computes the map again.
        with contextlib.suppress(StorageError, OSError):
            write_file(file, data.getvalue())
        return points
