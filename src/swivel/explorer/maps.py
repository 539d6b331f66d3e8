"""Compute maps of views in the background.

The principal components are available at once. UMAP takes 20 seconds for 100,000 words (benchmarks/maps.py) and runs in
a separate process.
"""

from __future__ import annotations

import html
import importlib.util
import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError, SwivelError, missing_extra
from swivel.reports.plots import FORMATS, PALETTE, check_format, draw_figure, plot_map
from swivel.runtime.child_process import ChildProcess, can_start_processes
from swivel.runtime.display import escape_controls
from swivel.runtime.progress import SILENT, Progress, choose_progress, track
from swivel.storage.files import write_file
from swivel.vectors import Vectors
from swivel.vectors.projection import compute_umap, fit_to_frame, reduce_vectors, take_plane, weigh_labels
from swivel.vectors.search import Floats, scale_to_unit

MAX_POINTS = 100_000  # of a map
MAX_TEXT_LENGTH = 1_000  # characters of a label on a map, and of a query
CLUSTERS = 12  # as many as there are distinguishable colors
TYPICAL = 6  # ids that describe a cluster
_UMAP_LOCK = threading.Lock()  # Two UMAPs at once would take the cores from the queries.
_SAMPLE = 20_000  # k-means is fitted to this many most common words, and predicts the cluster of all words
LAYOUTS = ("umap", "pca")
MAP_FORMATS = (*FORMATS, "html")
_SCRIPTS = ("points.js", "map_view.js")
_PRECISION = 10_000  # of the coordinates in HTML


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
        self.clusters = find_clusters(self.components, weigh_labels(self.vectors, slice(len(self))))
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


@dataclass(frozen=True, slots=True, repr=False)
class WordMap:
    """A map of words: labels, coordinates (n, 2) in about -1 .. 1, and clusters. Notebooks show it as a picture."""

    title: str
    labels: tuple[str, ...]
    points: Floats
    clusters: Clusters

    def __repr__(self) -> str:
        return f"<WordMap of {len(self.labels):,} words>"

    def save(self, path: str | Path) -> None:
        """Write the map as .png, .svg or .pdf, or as .html: one file that loads nothing else, to search and zoom."""
        path = Path(path)
        kind = check_format(path, MAP_FORMATS, "maps")
        write_file(path, self.to_html().encode() if kind == "html" else draw_figure(self.plot(), kind))

    def plot(self) -> Any:
        """Return the map as a figure of matplotlib."""
        return plot_map(self.labels, self.points, clusters=self.clusters.numbers, order=self.clusters.order)

    def _repr_png_(self) -> bytes:
        return draw_figure(self.plot(), "png")

    def to_html(self) -> str:
        """Return a page that draws the map, with the same script as the explorer."""
        data = {
            "labels": [label[:MAX_TEXT_LENGTH] for label in self.labels],
            "points": np.rint(self.points * _PRECISION).astype(int).ravel().tolist(),
            "precision": _PRECISION,
            "clusters": self.clusters.numbers.tolist(),
            "order": self.clusters.order.tolist(),
            "names": [[self.labels[number] for number in ids[:4]] for ids in self.clusters.typical],
            "palette": PALETTE,
        }
        page = files("swivel").joinpath("data", "map.html").read_text(encoding="utf-8")
        # The modules of the page become one script: without imports and exports.
        modules = [(files("swivel.explorer") / "page" / name).read_text(encoding="utf-8") for name in _SCRIPTS]
        lines = [line for module in modules for line in module.splitlines() if not line.startswith("import ")]
        scripts = "".join(line.removeprefix("export ") + "\n" for line in lines)

        # In a script element, < could start a tag: JSON has an escape for it.
        parts = {
            "TITLE": html.escape(escape_controls(self.title)),
            "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
            "SCRIPTS": scripts,
        }
        for name in ("TITLE", "SCRIPTS", "DATA"):
            page = page.replace(f"@{name}@", parts[name])
        return page


def make_map(
    vectors: Vectors,
    *,
    words: int = 10_000,
    layout: str = "umap",
    title: str = "Map of words",
    progress: Progress | bool | None = None,
) -> WordMap:
    """Return a map of the most common words.

    Parameters
    ----------
    vectors
        The vectors to show.
    words
        Number of words, at most 100,000.
    layout
        "umap", or "pca" for principal components. UMAP takes seconds.
    title
        The title of the page in HTML.
    progress
        A receiver of progress events; by default a bar for work that takes longer than a second, False for none.

    Returns
    -------
    WordMap

    Examples
    --------
    >>> import swivel
    >>> matrix = swivel.count(["tea with milk", "milk and sugar", "tea and sugar"] * 9)
    >>> vectors = swivel.train(matrix, dim=4)
    >>> swivel.make_map(vectors, layout="pca").points.shape
    (5, 2)
    """
    if not isinstance(words, (int, np.integer)) or not 1 <= words <= MAX_POINTS:
        raise ConfigError(f"words must be an integer from 1 to {MAX_POINTS:,}, got {words!r}", argument="words")
    if layout not in LAYOUTS:
        raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}", argument="layout")
    if importlib.util.find_spec("sklearn") is None:
        raise missing_extra("maps", "scikit-learn", "explore")

    target = Map(lambda: vectors, words)
    with track(choose_progress(progress), "computing the map", None, "words"):
        clusters = target.find_clusters()
        if layout == "umap":
            # In this process: a script without `if __name__ == "__main__"` cannot start another one.
            target.umap = compute_umap(target.components)

    points = target.points(layout)
    assert points is not None
    return WordMap(title, vectors.vocabulary.tokens[: len(target)], points, clusters)
