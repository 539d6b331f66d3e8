"""Compute maps of views in the background.

The principal components are available at once. UMAP takes 20 seconds for 100,000 words (benchmarks/maps.py) and runs in
a separate process.
"""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.config import POSITIVE_INT, plain_number
from swivel.errors import ConfigError, SwivelError, missing_extra
from swivel.evaluation.datasets import read_lines
from swivel.reports.plots import FORMATS, PALETTE, draw_figure, plot_map
from swivel.runtime.child_process import ChildProcess, can_start_processes
from swivel.runtime.display import escape_controls
from swivel.runtime.progress import SILENT, Progress, choose_progress, track
from swivel.storage.files import write_file
from swivel.storage.output_folder import check_format
from swivel.vectors import Vectors
from swivel.vectors.formats import as_vectors
from swivel.vectors.projection import compute_umap, fit_to_frame, reduce_vectors, take_plane, weigh_labels
from swivel.vectors.search import Floats, scale_to_unit

MAX_POINTS = 100_000  # of a map
MAX_TEXT_LENGTH = 1_000  # characters of a label on a map, and of a query
COLORS = len(PALETTE)  # the number of clusters of data without clear ones
MAX_CLUSTERS = 1_000  # in the legend
_MIN_SILHOUETTE = 0.15  # of clear clusters; those of words have about 0.05
_CHOICE_SAMPLE = 2_000  # vectors from which the number of clusters is chosen
NO_CLASS = "no class"
TYPICAL = 6  # ids that describe a cluster
_UMAP_LOCK = threading.Lock()  # Two UMAPs at once would take the cores from the queries.
_SAMPLE = 20_000  # k-means is fitted to this many most common words, and predicts the cluster of all words
LAYOUTS = ("umap", "pca")
MAP_FORMATS = (*FORMATS, "html")
_SCRIPTS = ("points.js", "map_view.js")
_PRECISION = 10_000  # of the coordinates in HTML


class Clusters(NamedTuple):
    """The cluster of each vector, the most informative ids of each cluster, all ids, informative ones first, and names.

    Only clusters that are classes of the user have names.
    """

    numbers: NDArray[np.uint16]
    typical: tuple[tuple[int, ...], ...]
    order: NDArray[np.uint32]
    names: tuple[str, ...] = ()


def find_clusters(components: Floats, weights: Floats | None = None, *, count: int | None = None) -> Clusters:
    """Return k-means clusters, fitted to the most common vectors; cluster 0 is the largest.

    Without a `count` there are as many as the data has, or one for each color if it has no clear ones.
    """
    sample = components[:_SAMPLE]
    means = _fit_means(sample, choose_cluster_count(sample) if count is None else count)
    labels = means.predict(components)

    # Renumber the clusters by decreasing size.
    order = np.argsort(-np.bincount(labels, minlength=len(means.cluster_centers_)), kind="stable")
    rank = np.empty(len(order), np.uint16)
    rank[order] = np.arange(len(order))
    return _describe_clusters(components, rank[labels], means.cluster_centers_[order], weights)


def choose_cluster_count(components: Floats) -> int:
    """Return the number of k-means clusters with the largest mean silhouette, the number of colors if all are small."""
    from sklearn.metrics import silhouette_score

    sample = components[:: max(1, len(components) // _CHOICE_SAMPLE)]
    best, best_score = COLORS, _MIN_SILHOUETTE
    for count in range(2, min(COLORS, len(sample) - 1) + 1):
        labels = _fit_means(sample, count).labels_
        score = silhouette_score(sample, labels) if 1 < len(np.unique(labels)) < len(sample) else 0.0
        if score > best_score:
            best, best_score = count, score
    return best


def _fit_means(sample: Floats, count: int) -> Any:
    """Return k-means that are fitted to a sample."""
    from sklearn.cluster import MiniBatchKMeans

    means = MiniBatchKMeans(min(count, len(sample)), random_state=1, n_init=3, batch_size=4_096)
    # scikit-learn warns about fewer distinct vectors than clusters, and about MKL on Windows; the user can do nothing.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return means.fit(sample)


def group_by_class(
    components: Floats, labels: Sequence[str], classes: Mapping[str, str], weights: Floats | None = None
) -> Clusters:
    """Return the classes of labels as clusters, the largest first; those without a class are the last one."""
    class_of = [classes.get(label, NO_CLASS) for label in labels]
    sizes = Counter(class_of)
    names = sorted(sizes, key=lambda name: (name == NO_CLASS, -sizes[name], name))
    rank = {name: number for number, name in enumerate(names)}
    numbers = np.array([rank[name] for name in class_of], np.uint16)
    centers = np.stack([components[numbers == number].mean(axis=0) for number in range(len(names))])
    return _describe_clusters(components, numbers, centers, weights)._replace(names=tuple(names))


def _describe_clusters(
    components: Floats, numbers: NDArray[np.uint16], centers: Floats, weights: Floats | None
) -> Clusters:
    # A label is informative about its cluster if it is near the center and its weight, of `weigh_labels`, is large.
    directions = scale_to_unit(centers)[numbers]
    cosines = np.einsum("ij,ij->i", scale_to_unit(components), directions)
    importance = np.maximum(cosines, 0) if weights is None else np.maximum(cosines, 0) * weights
    falling = np.argsort(-importance, kind="stable").astype(np.uint32)
    members = (falling[numbers[falling] == number] for number in range(len(centers)))
    return Clusters(numbers, tuple(tuple(ids[:TYPICAL].tolist()) for ids in members), falling)


def as_classes(color_by: Mapping[str, Any] | str | Path | None, vectors: Vectors) -> dict[str, str]:
    """Return the class of each label, from a mapping or a file of lines such as `paris<TAB>city`.

    Raises ConfigError if no vector has one, or if there are too many.
    """
    if color_by is None:
        return {}
    source = "color_by"
    if isinstance(color_by, (str, Path)):
        source = str(color_by)
        color_by = dict(line.take(2, "a label, a tab and its class") for line in read_lines(Path(color_by)))
    if not isinstance(color_by, Mapping):
        raise ConfigError(f"color_by must be a mapping from labels to classes, or a file, got {color_by!r}")

    classes = {label: str(name) for label, name in color_by.items()}
    count = len(set(classes.values()))
    if count > MAX_CLUSTERS:
        raise ConfigError(f"{source}: has {count:,} classes, more than {MAX_CLUSTERS:,}", argument="color_by")
    if classes.keys().isdisjoint(vectors.vocabulary.ids):
        raise ConfigError(f"{source}: none of its labels is one of these vectors", argument="color_by")
    return classes


def check_cluster_count(clusters: int | None) -> None:
    """Raise ConfigError if a number of clusters is not allowed."""
    if clusters is not None and not (POSITIVE_INT.holds(plain_number(clusters)) and clusters <= MAX_CLUSTERS):
        message = f"clusters must be an integer from 1 to {MAX_CLUSTERS:,}, got {clusters!r}"
        raise ConfigError(message, argument="clusters")


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
        self.cluster_count: int | None = None  # None: as many as the data has
        self.classes: Mapping[str, str] = {}  # of labels, instead of clusters
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
        """Compute the clusters, or take the classes, and keep them."""
        labels = self.vectors.vocabulary.tokens[: len(self)]
        weights = weigh_labels(self.vectors, slice(len(self)))
        if not self.classes.keys().isdisjoint(labels):  # The columns of a table may have none.
            self.clusters = group_by_class(self.components, labels, self.classes, weights)
        else:
            self.clusters = find_clusters(self.components, weights, count=self.cluster_count)
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
            names = self.clusters.names or [str(number + 1) for number in range(len(sizes))]
            clusters = [
                {"name": name, "size": size, "typical": [tokens[number] for number in typical]}
                for name, size, typical in zip(names, sizes, self.clusters.typical, strict=True)
            ]
        return {
            "points": len(self),
            "total": len(self.vectors),
            "umap": state,
            "problem": self.problem,
            "seconds": round(time.monotonic() - self.began, 1) if is_running else 0,
            "clusters": clusters,
            "has_classes": bool(self.clusters and self.clusters.names),
        }


@dataclass(frozen=True, slots=True, repr=False)
class WordMap:
    """A map of words: labels, coordinates (n, 2) in about -1 .. 1, and clusters. Notebooks show it as a picture."""

    title: str
    labels: tuple[str, ...]
    points: Floats
    clusters: Clusters
    noun: str = "word"  # or row, of a table

    def __repr__(self) -> str:
        return f"<WordMap of {len(self.labels):,} {self.noun}s>"

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
            "names": [[name] for name in self.clusters.names]
            or [[self.labels[number] for number in ids[:4]] for ids in self.clusters.typical],
            "kind": "Classes" if self.clusters.names else "Clusters",
            "noun": self.noun,
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
        return re.sub("@(TITLE|DATA|SCRIPTS)@", lambda match: parts[match[1]], page)


def make_map(
    vectors: Vectors | str | Path,
    *,
    words: int = 10_000,
    layout: str = "umap",
    title: str | None = None,
    clusters: int | None = None,
    color_by: Mapping[str, Any] | str | Path | None = None,
    progress: Progress | bool | None = None,
) -> WordMap:
    """Return a map of the most common words, or rows of a table.

    Parameters
    ----------
    vectors
        The vectors to show, or their file or folder.
    words
        Number of words, at most 100,000.
    layout
        "umap", or "pca" for principal components. UMAP takes seconds.
    title
        The title of the page in HTML, by default "Map of words", or of rows.
    clusters
        Number of clusters, which have colors; by default as many as the data has, or 12 if it has no clear ones.
    color_by
        Classes to color by instead: a mapping from labels, or a file of lines with a label, a tab and its class.
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
    check_cluster_count(clusters)
    if importlib.util.find_spec("sklearn") is None:
        raise missing_extra("maps", "scikit-learn", "explore")

    vectors = as_vectors(vectors)
    target = Map(lambda: vectors, words)
    target.cluster_count = clusters
    target.classes = as_classes(color_by, vectors)
    noun = "row" if vectors.columns is not None and not vectors.columns_per_row else "word"
    with track(choose_progress(progress), "computing the map", None, f"{noun}s"):
        found = target.find_clusters()
        if layout == "umap":
            # In this process: a script without `if __name__ == "__main__"` cannot start another one.
            target.umap = compute_umap(target.components)

    points = target.points(layout)
    assert points is not None
    return WordMap(title or f"Map of {noun}s", vectors.vocabulary.tokens[: len(target)], points, found, noun)
