"""What a training run looks like: its losses, the lengths of its vectors, how well common and rare words fit.

Receives numbers by pass or by frequency, hands on Figures. `reporting` finds the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.reports.plots.style import BLUE, FAINT, GREEN, ORANGE, in_style, need_matplotlib, new_figure, short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS_OF_X = "frequency of the word (log scale)"


@dataclass(frozen=True, slots=True)
class EpochLoss:
    """Mean losses of an epoch: of all cells, of the observed, of the unobserved."""

    mean: float
    observed: float
    unobserved: float


@dataclass(frozen=True, slots=True)
class NormBucket:
    """Lengths of the vectors of words whose frequency is at least `low` and below `high`: three quantiles."""

    low: float
    high: float
    words: int
    tenth: float
    median: float
    ninetieth: float


@dataclass(frozen=True, slots=True)
class Norms:
    """Lengths of vectors against the frequency of their words: some of them, and all in buckets."""

    name: str
    frequencies: NDArray[np.float64]
    lengths: NDArray[np.float64]
    buckets: tuple[NormBucket, ...]


@dataclass(frozen=True, slots=True)
class FitBucket:
    """Observed cells of rows whose frequency is at least `low` and below `high`.

    `loss` is the mean over the sampled `cells`, `error` the root of the mean squared distance of w . c from its target,
    every cell counting alike.
    """

    low: float
    high: float
    words: int
    cells: int
    loss: float
    error: float


@in_style
def plot_epochs(epochs: Sequence[EpochLoss]) -> Figure:
    """Draw the mean loss of all cells, of the observed and of the unobserved ones, pass by pass.

    >>> len(plot_epochs([EpochLoss(0.3, 2.0, 0.2), EpochLoss(0.2, 1.0, 0.1)]).axes)
    3
    """
    if not epochs:
        raise ConfigError("the vectors' manifest has no losses: only what training wrote has a curve")
    panels = [("all cells", BLUE, [each.mean for each in epochs])]
    if any(each.unobserved for each in epochs):
        panels.append(("observed", GREEN, [each.observed for each in epochs]))
        panels.append(("unobserved", ORANGE, [each.unobserved for each in epochs]))
    figure, axes = new_figure(1.2 + 2.5 * len(panels), 2.6, ncols=len(panels), squeeze=False)
    for place, (title, colour, values) in zip(axes[0], panels, strict=True):
        numbers = range(1, len(values) + 1)
        place.plot(numbers, values, color=colour, linewidth=1.8, marker="o", markersize=3 if len(values) <= 30 else 0)
        place.set(title=title, xlabel="pass", ylim=(0, 1.05 * max(values) or 1))
        place.xaxis.set_major_locator(need_matplotlib().ticker.MaxNLocator(integer=True, nbins=6))
    axes[0][0].set_ylabel("mean loss of a cell")
    return figure


@in_style
def plot_norms(sides: Sequence[Norms]) -> Figure:
    """Draw the lengths of vectors against frequency: points, and the median with the middle four fifths."""
    if not sides:
        raise ConfigError("these vectors do not say how frequent words are: open the folder that training wrote")
    figure, axes = new_figure(1.2 + 3.3 * len(sides), 3.2, ncols=len(sides), squeeze=False)
    for place, side in zip(axes[0], sides, strict=True):
        place.plot(side.frequencies, side.lengths, ".", color=FAINT, markersize=2.6, alpha=0.7, markeredgewidth=0)
        x = [_middle(bucket) for bucket in side.buckets]
        low, high = [each.tenth for each in side.buckets], [each.ninetieth for each in side.buckets]
        place.fill_between(x, low, high, color=BLUE, alpha=0.15, linewidth=0)
        place.plot(x, [each.median for each in side.buckets], color=BLUE, linewidth=1.8, marker="o", markersize=3)
        place.set(title=side.name, xlabel=WORDS_OF_X, ylim=(0, None))
        _log_axis(place)
    axes[0][0].set_ylabel("length of the vector")
    return figure


@in_style
def plot_fit(buckets: Sequence[FitBucket]) -> Figure:
    """Draw the mean loss of observed cells, and how far off their products are, against the frequency of the row."""
    if not buckets:
        raise ConfigError("there is no loss by frequency: vectors without columns (objective glove) have no scores")
    figure, axes = new_figure(7.8, 2.9, ncols=2)
    x = [_middle(bucket) for bucket in buckets]
    drawn = (
        ("mean loss of an observed cell", BLUE, [each.loss for each in buckets]),
        ("distance from the target", GREEN, [each.error for each in buckets]),
    )
    for place, (title, colour, values) in zip(axes, drawn, strict=True):
        place.plot(x, values, color=colour, linewidth=1.8, marker="o", markersize=3.5)
        place.set(title=title, xlabel=WORDS_OF_X, ylim=(0, 1.08 * max(values) or 1))
        _log_axis(place)
    return figure


def _middle(bucket: Any) -> float:
    """Return the middle of a bucket on a scale of logarithms."""
    return float(np.sqrt(bucket.low * bucket.high))


def _log_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(need_matplotlib().ticker.FuncFormatter(lambda value, _: short_number(value)))
    axes.xaxis.set_minor_locator(need_matplotlib().ticker.NullLocator())
