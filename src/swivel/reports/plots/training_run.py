"""The figure of a training run: losses per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swivel.errors import ConfigError
from swivel.reports.plots.style import BLUE, GREEN, ORANGE, in_style, need_matplotlib, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
