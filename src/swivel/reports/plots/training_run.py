"""Figures of a training run: losses per epoch, lengths of vectors, and the fit of common and rare words.

`reports.run_summary` computes the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.reports.plots.style import BLUE, FAINT, GREEN, ORANGE, in_style, need_matplotlib, new_figure, short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X_LABEL = "frequency of the word (log scale)"


class NormBucket(NamedTuple):
    """Quantiles (10 %, 50 %, 90 %) of the vector lengths of words with a frequency in [low, high)."""

    low: float
    high: float
    words: int
    tenth: float
    median: float
    ninetieth: float


class Norms(NamedTuple):
    """Lengths of vectors against the frequency of their words: a sample of points, and quantiles per bucket."""

    name: str
    frequencies: NDArray[np.float64]
    lengths: NDArray[np.float64]
    buckets: tuple[NormBucket, ...]


class FitBucket(NamedTuple):
    """Observed cells of rows with a frequency in [low, high)."""

    low: float
    high: float
    words: int
    cells: int  # sampled
    loss: float  # mean
    error: float  # unweighted root mean square of w . c minus its target


@in_style
def plot_epochs(epochs: Sequence[Mapping[str, float]]) -> Figure:
    """Draw the mean loss of all cells, of the observed and of the unobserved ones, per epoch.

    >>> len(plot_epochs([{"mean": 0.3, "observed": 2.0, "unobserved": 0.2}]).axes)
    3
    """
    if not epochs:
        raise ConfigError("the manifest of the vectors has no losses; open a folder written by training")

    kinds = [("all cells", BLUE, "mean")]
    if any(loss["unobserved"] for loss in epochs):
        kinds += [("observed", GREEN, "observed"), ("unobserved", ORANGE, "unobserved")]

    figure, axes = new_figure(1.2 + 2.5 * len(kinds), 2.6, ncols=len(kinds), squeeze=False)
    marker_size = 3 if len(epochs) <= 30 else 0
    for panel, (title, color, kind) in zip(axes[0], kinds, strict=True):
        values = [loss[kind] for loss in epochs]
        panel.plot(range(1, len(values) + 1), values, color=color, linewidth=1.8, marker="o", markersize=marker_size)
        panel.set(title=title, xlabel="epoch", ylim=(0, 1.05 * max(values) or 1))
        panel.xaxis.set_major_locator(need_matplotlib().ticker.MaxNLocator(integer=True, nbins=6))

    axes[0][0].set_ylabel("mean loss of a cell")
    return figure


@in_style
def plot_norms(sides: Sequence[Norms]) -> Figure:
    """Draw the lengths of vectors against frequency: a sample, the median, and the 10 % to 90 % band."""
    if not sides:
        raise ConfigError("these vectors have no word frequencies; open a folder written by training")

    figure, axes = new_figure(1.2 + 3.3 * len(sides), 3.2, ncols=len(sides), squeeze=False)
    for panel, side in zip(axes[0], sides, strict=True):
        x = _find_middles(side.buckets)
        _, _, _, low, medians, high = zip(*side.buckets, strict=True)
        panel.plot(side.frequencies, side.lengths, ".", color=FAINT, markersize=2.6, alpha=0.7, markeredgewidth=0)
        panel.fill_between(x, low, high, color=BLUE, alpha=0.15, linewidth=0)
        panel.plot(x, medians, color=BLUE, linewidth=1.8, marker="o", markersize=3)
        panel.set(title=side.name, xlabel=X_LABEL, ylim=(0, None))
        _log_axis(panel)

    axes[0][0].set_ylabel("length of the vector")
    return figure


@in_style
def plot_fit(buckets: Sequence[FitBucket]) -> Figure:
    """Draw the mean loss of observed cells, and the error of their predictions, against the frequency of the row."""
    if not buckets:
        raise ConfigError("no loss by frequency: these vectors have no columns")

    x = _find_middles(buckets)
    panels = (
        ("mean loss of an observed cell", BLUE, [each.loss for each in buckets]),
        ("distance from the target", GREEN, [each.error for each in buckets]),
    )

    figure, axes = new_figure(7.8, 2.9, ncols=2)
    for panel, (title, color, values) in zip(axes, panels, strict=True):
        panel.plot(x, values, color=color, linewidth=1.8, marker="o", markersize=3.5)
        panel.set(title=title, xlabel=X_LABEL, ylim=(0, 1.08 * max(values) or 1))
        _log_axis(panel)
    return figure


def _find_middles(buckets: Sequence[NormBucket] | Sequence[FitBucket]) -> list[float]:
    # Geometric means, because the axis is logarithmic.
    return [math.sqrt(bucket.low * bucket.high) for bucket in buckets]


def _log_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(need_matplotlib().ticker.FuncFormatter(lambda value, _: short_number(value)))
    axes.xaxis.set_minor_locator(need_matplotlib().ticker.NullLocator())
