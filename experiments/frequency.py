"""The accuracy of analogies by the frequency of their words, as in the paper's figure 3, and its figures.

    python -m experiments.frequency [NAME=]VECTORS... -o FILE [--data DIR] [--differences]

VECTORS are folders, or text files of other tools. Frequencies are the counts of the first folder's vocabulary. The
frequency of a question is the mean count of its four words. Buckets of frequency depend on the questions and counts
alone, so that the points of two methods can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

import swivel
from experiments.stages import run_command
from swivel.cli.evaluate import name_run
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, EvaluationError
from swivel.evaluation import SetResult, bootstrap
from swivel.evaluation.bootstrap import Doubles
from swivel.reports.plots import (
    COLORS,
    FAINT,
    FORMATS,
    INK,
    PAPER,
    in_style,
    new_figure,
    save_figure,
)
from swivel.runtime.options import RunOptions
from swivel.storage.output_folder import check_format, refuse_overlap
from swivel.vectors import Vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X_LABEL = "mean frequency of a question's four words (log scale)"
LABEL_SPACING = 12.0  # points between the names of two curves
PANELS_PER_ROW = 4
AT_LEAST = 100  # questions in a bucket
STEPS = 8  # buckets per factor of ten, before buckets with too few questions are merged
FourWords = tuple[str, str, str, str]
Counts = Mapping[str, float] | Vocabulary


class Point(NamedTuple):
    """A bucket of questions as a point of a curve; questions with an unknown word count as wrong."""

    x: float  # mean of the log10 frequencies of its questions
    y: float  # their accuracy, or the difference of two accuracies
    low: float  # 95 % interval of y
    high: float
    questions: int

    @property
    def verdict(self) -> int:
        """Sign of a significant difference: 1 if the whole interval is above 0, -1 if it is below, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def bucket_by_frequency(result: SetResult, counts: Counts, *, at_least: int = AT_LEAST) -> tuple[Point, ...]:
    """Return the accuracy by frequency, rare to frequent, in buckets of `at_least` questions or more.

    Questions with a word that has no count are left out. If fewer than `at_least` remain, there is no bucket.

    >>> from swivel.evaluation import AnalogySet, summarize_answers
    >>> questions = AnalogySet("q", (("a", "b", "c", "d"), ("e", "f", "g", "h")), ("s", "s"))
    >>> result = summarize_answers(questions, np.array([True, False]), np.array([True, True]))
    >>> counts = dict.fromkeys("abcd", 1000) | dict.fromkeys("efgh", 10)
    >>> [(point.x, point.y) for point in bucket_by_frequency(result, counts, at_least=1)]
    [(1.0, 0.0), (3.0, 1.0)]
    """
    return _make_points(result, None, counts, at_least)


def compare_buckets(first: SetResult, second: SetResult, counts: Counts) -> tuple[Point, ...]:
    """Return, in the same buckets, the accuracy of `first` minus that of `second`, with paired 95 % intervals."""
    if first.items != second.items:
        raise EvaluationError(f"{first.name} and {second.name} do not have the same questions in the same order")
    return _make_points(first, second, counts, AT_LEAST)


def _make_points(first: SetResult, second: SetResult | None, counts: Counts, at_least: int) -> tuple[Point, ...]:
    """Merge steps of the scale from rare to frequent until each bucket is large enough; the rest joins the last one."""
    logs = _log_frequencies(first.items, counts)
    steps = np.floor(logs * STEPS)
    different = np.unique(steps[~np.isnan(steps)]).tolist()

    # A step starts a new bucket once the current one has enough questions.
    edges: list[float] = []
    for step in different:
        if not edges or ((steps >= edges[-1]) & (steps < step)).sum() >= at_least:
            edges.append(step)

    # A last bucket that is too small joins the one before.
    if edges and (steps >= edges[-1]).sum() < at_least:
        edges.pop()
    if edges:
        edges.append(different[-1] + 1)

    points = []
    for start, stop in pairwise(edges):
        is_member = (steps >= start) & (steps < stop)
        is_right = first.is_right[is_member]
        figure = float(is_right.mean())
        interval = bootstrap.share_interval(int(is_right.sum()), len(is_right))
        if second is not None:
            others = second.is_right[is_member]
            figure -= float(others.mean())
            interval = bootstrap.percentile_interval(bootstrap.draw_share_differences(is_right, others))

        low, high = interval or (figure, figure)
        points.append(Point(float(logs[is_member].mean()), figure, low, high, len(is_right)))
    return tuple(points)


def _log_frequencies(questions: tuple[FourWords, ...], counts: Counts) -> Doubles:
    """Return the log10 of the mean count of each question's words; NaN if a word has no count."""
    if isinstance(counts, Vocabulary):
        counts = dict(zip(counts, counts.counts.tolist(), strict=True))
    rows = [[counts.get(word, 0) for word in words] for words in questions]
    table = np.array(rows, np.float64).reshape(-1, 4)

    logs = np.full(len(table), np.nan)
    has_counts = (table > 0).all(axis=1)
    logs[has_counts] = np.log10(table[has_counts].mean(axis=1))
    return logs


Curves = Mapping[str, Sequence[Point]]  # the points of each method, in order of increasing frequency


def short_number(value: float) -> str:
    """Return a number with a unit prefix: k, M or G.

    >>> short_number(300), short_number(30_000), short_number(1e6), short_number(2e9)
    ('300', '30 k', '1 M', '2 G')
    """
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def label_end(axes: Axes, x: float, y: float, text: str, color: str, *, shift: float = 0.0) -> None:
    """Write a label after the end of a curve at (x, y), in the color of the curve, `shift` points above it."""
    axes.annotate(text, (x, y), (5, shift), textcoords="offset points", color=color, va="center", annotation_clip=False)


def spread_labels(heights: list[float], min_distance: float) -> list[float]:
    """Return heights that are at least `min_distance` apart, in the same order and close to the given ones.

    Labels that would overlap form a group, which is centered on the mean of its heights.

    >>> spread_labels([0.0, 0.1, 5.0], 1.0)
    [-0.45, 0.55, 5.0]
    """
    from scipy.optimize import isotonic_regression

    # Minus the distances between them, the labels only have to ascend: this is isotonic regression.
    order = np.argsort(heights, kind="stable")
    distances = min_distance * np.arange(len(heights))
    placed = np.empty(len(heights))
    placed[order] = isotonic_regression(np.array(heights)[order] - distances).x + distances
    return [round(height, 6) for height in placed.tolist()]


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
    heights = spread_labels([end.y * scale for end in ends], LABEL_SPACING)
    right = max(end.x for end in ends)

    for index, (name, end, height) in enumerate(zip(curves, ends, heights, strict=True)):
        label_end(axes, right, end.y, name, COLORS[index % len(COLORS)], shift=height - end.y * scale)


@in_style
def plot_differences(curves: Curves, ours: str) -> Figure:
    """Draw the accuracy of `ours` minus that of each other method, per bucket, with paired 95 % intervals.

    Blue: the whole interval is above 0; orange: below 0; gray and hollow: the interval contains 0.
    """
    _need_points(curves)

    columns = min(len(curves), PANELS_PER_ROW)
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


@click.command()
@click.argument("vectors", nargs=-1, required=True, metavar="[NAME=]VECTORS...")
@click.option("-o", "--output", required=True, metavar="FILE", help="file to write: .png, .svg or .pdf")
@click.option("--data", metavar="DIR", help="folder of test sets  [default: the paper's eight, from the cache]")
@click.option("--differences", is_flag=True, help="draw the first minus each other one, bucket by bucket")
def main(vectors: tuple[str, ...], output: str, data: str | None, differences: bool) -> None:
    """Plot the accuracy of analogies against the mean frequency of their words, one curve per VECTORS."""
    if differences and len(vectors) < 2:
        raise ConfigError("--differences compares the first VECTORS with others: name two or more")
    file = Path(output)
    check_format(file, FORMATS, "figures")
    models = open_named(vectors)
    refuse_overlap([file], [*(each.path for each in models.values()), Path(data) if data else None])
    save_figure(draw_answers(models, data, differences=differences), file)
    click.echo(output)


def draw_answers(models: Mapping[str, Vectors], data: str | None, *, differences: bool = False) -> Figure:
    """Return the figure of the answers of some vectors to the analogies of a folder."""
    counts = next((each.vocabulary for each in models.values() if each.vocabulary.counts.any()), None)
    if counts is None:
        raise ConfigError("text files do not say how frequent words are: name a folder of Swivel's, too")

    progress = RunOptions().progress
    answers = {}
    for name, each in models.items():
        results = swivel.evaluate(each, data, draws=0, progress=progress).results
        answers[name] = [result for result in results if result.kind == "analogies"]
    curves, gaps = make_curves(answers, counts)
    return plot_differences(gaps, next(iter(models))) if differences else plot_frequency(curves)


def open_named(texts: Iterable[str]) -> dict[str, Vectors]:
    """Return vectors by name, each given as PATH or NAME=PATH; names must differ."""
    models: dict[str, Vectors] = {}
    for text in texts:
        name, path = split_name(text)
        if name in models:
            raise ConfigError(f"several VECTORS are called {name!r}: give each a name of its own, as NAME=VECTORS")
        models[name] = swivel.load(path)
    return models


def split_name(text: str) -> tuple[str, str]:
    """Return name and path of NAME=PATH; a path alone has the name of its run.

    >>> split_name("ours=work/vectors"), split_name("work/vectors")
    (('ours', 'work/vectors'), ('work', 'work/vectors'))
    """
    name, sign, path = text.partition("=")
    # A path may contain =, so that only what cannot be a path is a name.
    return (name, path) if sign and name and "/" not in name else (name_run(text), text)


if __name__ == "__main__":
    run_command(main)
