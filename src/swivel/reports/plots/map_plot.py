"""A map of words: points, colored by cluster, and as many labels as fit without overlapping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.reports.plots.style import FAINT, in_style, new_figure
from swivel.runtime.control_characters import escape_controls

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colors of clusters, also those of the explorer.
PALETTE = (
    *("#4c78c9", "#e8833a", "#4fa35b", "#d9534f", "#9a6fc4", "#3fa7a3"),
    *("#d4a72c", "#e377a8", "#96684a", "#6b8e23", "#5b6abf", "#8a8f98"),
)
MAX_LABEL = 28  # letters
_EDGE = 1.15
_LABEL_POINTS = 6.5  # size of the letters
_RASTER = 5_000  # with more points, SVG and PDF contain them as an image


@in_style
def plot_map(
    labels: Sequence[str],
    points: NDArray[np.float32],
    *,
    clusters: NDArray[Any] | None = None,
    order: Sequence[int] | NDArray[Any] | None = None,
    size: tuple[float, float] = (7.0, 6.0),
) -> Figure:
    """Return the figure of a map: points (n, 2), nearly all in -1 .. 1, and their labels, of which long ones are cut.

    `clusters` are numbers that select colors, and `size` is in inches. Labels are placed in the `order` of these ids,
    and one that would overlap another is left out.
    """
    figure, axes = new_figure(*size)
    axes.set_axis_off()
    lowest, highest = _find_frame(points)
    axes.set(xlim=(lowest[0], highest[0]), ylim=(lowest[1], highest[1]))

    colors = FAINT if clusters is None else [PALETTE[number % len(PALETTE)] for number in clusters.tolist()]
    dots = float(np.clip(20_000 / max(len(points), 1), 2, 16))
    axes.scatter(*points.T, s=dots, c=colors, alpha=0.75, linewidths=0, rasterized=len(points) > _RASTER)

    # In printer's points, 72 per inch, in which letters are measured.
    places = (points - lowest) / (highest - lowest) * np.array(size) * 72
    for number, label in _choose_labels(labels, places, range(len(labels)) if order is None else order, size):
        x, y = points[number].tolist()
        # A $ in a label is not the start of a formula.
        axes.annotate(
            label, (x, y), (2.5, 0), textcoords="offset points", va="center", fontsize=_LABEL_POINTS, parse_math=False
        )
    return figure


def _find_frame(points: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lower left and upper right corner of the visible part; the right margin is wider, for labels."""
    inside = points[(np.abs(points) <= _EDGE).all(axis=1)]
    if not len(inside):
        return np.full(2, -_EDGE), np.full(2, _EDGE)

    # Points far outside would shrink the rest; they are cut off.
    lowest, highest = inside.min(axis=0), inside.max(axis=0)
    margin = np.maximum(highest - lowest, 1e-3) * 0.03
    return lowest - margin, highest + margin * (4, 1)


def _choose_labels(
    labels: Sequence[str], places: NDArray[Any], order: Any, size: tuple[float, float]
) -> Iterator[tuple[int, str]]:
    """Yield the ids and the short texts of labels that do not overlap; places are in printer's points."""
    boxes = np.empty((0, 4))  # left, bottom, right, top of the labels so far
    for number in np.asarray(order).tolist():
        label = escape_controls(labels[number])  # one line, and no character that has no letter in the font
        label = label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
        # The width of a letter is about two thirds of its size; measuring the text would draw it first.
        left, middle = places[number]
        box = np.array([left, middle - 0.7 * _LABEL_POINTS, 0, middle + 0.7 * _LABEL_POINTS])
        box[2] = left + 0.66 * _LABEL_POINTS * len(label) + 5

        # Two boxes overlap if each begins before the other ends, in both directions.
        is_inside = left >= 0 and box[2] <= 72 * size[0] and 0 <= middle <= 72 * size[1]
        overlaps = (boxes[:, :2] < box[2:]).all(axis=1) & (boxes[:, 2:] > box[:2]).all(axis=1)
        if is_inside and not overlaps.any():
            boxes = np.vstack([boxes, box])
            yield number, label
