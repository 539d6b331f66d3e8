"""Accuracy of analogies against the frequency of their words: one curve a method, and where ours is above.

Receives curves of points, hands on Figures. `buckets` makes the curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swivel.errors import ConfigError
from swivel.reports.plots.style import (
    COLOURS,
    FAINT,
    INK,
    PAPER,
    in_style,
    label_end,
    new_figure,
    short_number,
    spread_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS_OF_X = "mean frequency of a question's four words (log scale)"
_LABEL_POINTS = 12.0  # from one label to the next
_PANELS_A_ROW = 4


@dataclass(frozen=True, slots=True)
class Point:
    """One bucket of questions: log10 of the mean frequency, a figure, and its 95 % interval."""

    x: float
    y: float
    low: float
    high: float
    questions: int

    @property
    def verdict(self) -> int:
        """For a difference: 1 where the whole interval is above 0, -1 where it is below, else 0."""
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a method, by rising frequency."""

    name: str
    points: tuple[Point, ...]


@in_style
def plot_frequency(curves: Sequence[Curve]) -> Figure:
    """Draw accuracy against log10 of the mean frequency, one curve a method with its band; the first one is ours.

    >>> figure = plot_frequency([Curve("ours", (Point(2, .5, .4, .6, 100), Point(3, .7, .6, .8, 120)))])
    >>> figure.axes[0].get_xlabel()
    "mean frequency of a question's four words (log scale)"
    """
    _need_points(curves)
    figure, axes = new_figure(6.8, 4.2)
    for place, curve in reversed(list(enumerate(curves))):  # Ours is drawn last, above the others.
        colour = COLOURS[place % len(COLOURS)]
        x = [point.x for point in curve.points]
        low, high = [point.low for point in curve.points], [point.high for point in curve.points]
        axes.fill_between(x, low, high, color=colour, alpha=0.16 if place == 0 else 0.09, linewidth=0)
        axes.plot(
            x,
            [point.y for point in curve.points],
            color=colour,
            linewidth=2.2 if place == 0 else 1.3,
            marker="o",
            markersize=3 if place == 0 else 2,
        )
    highest = max(point.high for curve in curves for point in curve.points)
    axes.set(ylim=(0, highest * 1.04 or 1), xlabel=WORDS_OF_X, ylabel="accuracy")
    _write_frequencies(axes, 1, 3)
    _label_curves(figure, axes, curves)
    return figure


def _need_points(curves: Sequence[Curve]) -> None:
    if not curves or not all(curve.points for curve in curves):
        raise ConfigError(
            "too few analogies to draw against frequency: a bucket needs questions all of whose words have a count"
        )


def _write_frequencies(axes: Axes, *steps: int) -> None:
    """Label the axis of log10 with the frequencies themselves: powers of ten, times each of `steps`."""
    low, high = axes.get_xlim()
    values = [step * 10.0**power for power in range(int(low) - 1, int(high) + 2) for step in steps]
    marks = {math.log10(value): short_number(value) for value in values if low <= math.log10(value) <= high}
    axes.set_xticks(list(marks), list(marks.values()))


def _label_curves(figure: Figure, axes: Axes, curves: Sequence[Curve]) -> None:
    """Write the names behind the curves' ends, apart from each other."""
    points_high = axes.get_position().height * figure.get_figheight() * 72
    scale = points_high / (axes.get_ylim()[1] - axes.get_ylim()[0])
    ends = [curve.points[-1] for curve in curves]
    heights = spread_labels([end.y * scale for end in ends], _LABEL_POINTS)
    right = max(end.x for end in ends)
    for place, (curve, end, height) in enumerate(zip(curves, ends, heights, strict=True)):
        label_end(axes, right, end.y, curve.name, COLOURS[place % len(COLOURS)], shift=height - end.y * scale)


@in_style
def plot_differences(curves: Sequence[Curve], ours: str) -> Figure:
    """Draw, bucket by bucket, accuracy of ours minus that of each other method with its paired 95 % interval.

    Blue: ours is above, the whole interval is; orange: below; grey and hollow: no telling.
    """
    _need_points(curves)
    columns = min(len(curves), _PANELS_A_ROW)
    rows = -(-len(curves) // columns)
    figure, grid = new_figure(
        1.0 + 1.8 * columns, 1.0 + 1.9 * rows, nrows=rows, ncols=columns, sharex=True, sharey=True, squeeze=False
    )
    places: list[Any] = list(grid.flat)
    for place, curve in zip(places, curves, strict=False):
        _draw_differences(place, curve)
        above, below = (sum(point.verdict == verdict for point in curve.points) for verdict in (1, -1))
        place.set_title(f"{ours} − {curve.name}\nabove in {above}, below in {below} of {len(curve.points)}")
    for place in places[len(curves) :]:
        place.set_visible(False)
    _write_frequencies(places[0], 1)
    figure.supxlabel(WORDS_OF_X, fontsize=9, color=INK)
    figure.supylabel("difference of accuracy", fontsize=9, color=INK)
    return figure


def _draw_differences(axes: Axes, curve: Curve) -> None:
    axes.axhline(0, color=FAINT, linewidth=0.8)
    for verdict, colour, fill in ((1, COLOURS[0], COLOURS[0]), (0, FAINT, PAPER), (-1, COLOURS[1], COLOURS[1])):
        points = [point for point in curve.points if point.verdict == verdict]
        if points:
            x = [point.x for point in points]
            axes.vlines(x, [point.low for point in points], [point.high for point in points], color=colour, linewidth=1)
            axes.plot(x, [point.y for point in points], "o", color=colour, markerfacecolor=fill, markersize=3.5)
