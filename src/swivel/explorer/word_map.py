"""The map of the explorer as a picture, or as one HTML file to share."""

from __future__ import annotations

import html
import importlib.util
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from swivel.errors import ConfigError, missing_extra
from swivel.explorer.maps import MAX_POINTS, Clusters, Map
from swivel.explorer.queries import MAX_TEXT_LENGTH
from swivel.reports.plots import FORMATS, draw_figure, plot_map
from swivel.reports.plots.map_plot import PALETTE
from swivel.runtime.control_characters import escape_controls
from swivel.runtime.progress import Progress, choose_progress, track
from swivel.storage.files import write_file
from swivel.vectors import Vectors
from swivel.vectors.projection import compute_umap
from swivel.vectors.search import Floats

LAYOUTS = ("umap", "pca")
MAP_FORMATS = (*FORMATS, "html")
_SCRIPTS = ("points.js", "map_view.js")
_PRECISION = 10_000  # of the coordinates in HTML


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
        kind = check_map_format(path)
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


def check_map_format(path: Path) -> str:
    """Return the format of a map from the suffix of its file, or raise ConfigError."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in MAP_FORMATS:
        raise ConfigError(f"{path}: maps are written as {', '.join('.' + name for name in MAP_FORMATS)}")
    return kind


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
