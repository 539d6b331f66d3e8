"""Figures of analogy accuracy against word frequency: one curve per method, and differences between methods.

`evaluation.results` defines the buckets, which are the points of the curves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from swivel.errors import ConfigError
from swivel.evaluation import SetResult
from swivel.evaluation.results import Counts, Point, bucket_by_frequency, compare_buckets
from swivel.reports.plots.style import (
    COLORS,
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

X_LABEL = "mean frequency of a question's four words (log scale)"
_LABEL_SPACING = 12.0  # points between two labels
_PANELS_PER_ROW = 4


Curves = Mapping[str, Sequence[Point]]  # the points of each method, in order of increasing frequency


def _join_analogies(results: Sequence[SetResult]) -> SetResult:
    """Return the results of several analogy sets as one result, as the paper does with Google's and MSR's."""
    return replace(
        results[0],
        name=" + ".join(result.name for result in results),
        values=np.concatenate([result.values for result in results]),
        items=tuple(question for result in results for question in result.items),
    )


def make_curves(methods: Mapping[str, Sequence[SetResult]], counts: Counts) -> tuple[Curves, Curves]:
    """Return one curve of accuracy per method, and the differences of the first method from each other one.

    All methods must have answered the same questions. Both are empty if there are too few questions.
    """
    joined = {name: _join_analogies(results) for name, results in methods.items() if results}
    curves = {name: bucket_by_frequency(result, counts) for name, result in joined.items()}
    if not any(curves.values()):
        return {}, {}

    (_, first), *others = joined.items()
    return curves, {name: compare_buckets(first, result, counts) for name, result in others}


@in_style
def plot_frequency(curves: Curves) -> Figure:
    """Draw accuracy against log10 of the mean frequency: one curve per method, with its 95 % interval as a band.

    The first curve is emphasized; the others are compared with it.

    >>> figure = plot_frequency({"ours": [Point(2, .5, .4, .6, 100), Point(3, .7, .6, .8, 120)]})
    >>> figure.axes[0].get_xlabel()
    "mean frequency of a question's four words (log scale)"
    """
    _need_points(curves)
    figure, axes = new_figure(6.8, 4.2)

    for index, points in reversed(list(enumerate(curves.values()))):  # The first curve is drawn last, above the others.
        is_first = index == 0
        color = COLORS[index % len(COLORS)]
        x = [point.x for point in points]
        y = [point.y for point in points]
        low = [point.low for point in points]
        high = [point.high for point in points]

        # The first method is ours: its curve and its band are stronger.
        axes.fill_between(x, low, high, color=color, alpha=0.16 if is_first else 0.09, linewidth=0)
        axes.plot(x, y, color=color, linewidth=2.2 if is_first else 1.3, marker="o", markersize=3 if is_first else 2)

    highest = max(point.high for points in curves.values() for point in points)
    axes.set(ylim=(0, highest * 1.04 or 1), xlabel=X_LABEL, ylabel="accuracy")
    _write_frequencies(axes, 1, 3)
    _label_curves(figure, axes, curves)
    return figure


def _need_points(curves: Curves) -> None:
    if not curves or not all(curves.values()):
        raise ConfigError("too few analogies to draw against frequency: all four words of a question need a count")


def _write_frequencies(axes: Axes, *steps: int) -> None:
    """Label the log10 axis with frequencies: powers of ten, multiplied by each of `steps`."""
    low, high = axes.get_xlim()
    values = [step * 10.0**power for power in range(int(low) - 1, int(high) + 2) for step in steps]
    marks = {math.log10(value): short_number(value) for value in values if low <= math.log10(value) <= high}
    axes.set_xticks(list(marks), list(marks.values()))


def _label_curves(figure: Figure, axes: Axes, curves: Curves) -> None:
    """Write the name of each curve after its end, without overlaps."""
    # Labels are spread in printer's points, because their height does not depend on the scale of the axis.
    height_points = axes.get_position().height * figure.get_figheight() * 72  # 72 points per inch
    scale = height_points / (axes.get_ylim()[1] - axes.get_ylim()[0])

    ends = [points[-1] for points in curves.values()]
    heights = spread_labels([end.y * scale for end in ends], _LABEL_SPACING)
    right = max(end.x for end in ends)

    for index, (name, end, height) in enumerate(zip(curves, ends, heights, strict=True)):
        label_end(axes, right, end.y, name, COLORS[index % len(COLORS)], shift=height - end.y * scale)


@in_style
def plot_differences(curves: Curves, ours: str) -> Figure:
    """Draw the accuracy of `ours` minus that of each other method, per bucket, with paired 95 % intervals.

    Blue: the whole interval is above 0; orange: below 0; gray and hollow: the interval contains 0.
    """
    _need_points(curves)

    columns = min(len(curves), _PANELS_PER_ROW)
    rows = -(-len(curves) // columns)
    figure, grid = new_figure(
        1.0 + 1.8 * columns, 1.0 + 1.9 * rows, nrows=rows, ncols=columns, sharex=True, sharey=True, squeeze=False
    )
    panels: list[Any] = list(grid.flat)

    for panel, (name, points) in zip(panels, curves.items(), strict=False):
        _draw_differences(panel, points)
        above = sum(point.verdict == 1 for point in points)
        below = sum(point.verdict == -1 for point in points)
        panel.set_title(f"{ours} − {name}\nabove in {above}, below in {below} of {len(points)}")
    for panel in panels[len(curves) :]:
        panel.set_visible(False)

    _write_frequencies(panels[0], 1)
    figure.supxlabel(X_LABEL, fontsize=9, color=INK)
    figure.supylabel("difference of accuracy", fontsize=9, color=INK)
    return figure


def _draw_differences(axes: Axes, curve: Sequence[Point]) -> None:
    axes.axhline(0, color=FAINT, linewidth=0.8)
    for verdict, color, fill in ((1, COLORS[0], COLORS[0]), (0, FAINT, PAPER), (-1, COLORS[1], COLORS[1])):
        points = [point for point in curve if point.verdict == verdict]
        if points:
            x = [point.x for point in points]
            axes.vlines(x, [point.low for point in points], [point.high for point in points], color=color, linewidth=1)
            axes.plot(x, [point.y for point in points], "o", color=color, markerfacecolor=fill, markersize=3.5)
