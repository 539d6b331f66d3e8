"""The two losses against the prediction: what an observed and an unobserved cell cost.

Receives the settings of the loss, hands on a Figure. The formulas are those of `objective`, asked point by point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swivel.reports.plots.style import BLUE, FAINT, INK, ORANGE, in_style, label_end, new_figure
from swivel.training.objective import Objective, loss_and_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TARGET = 2.0  # as in the paper
COUNTS = (1.0, 10.0, 100.0)
LOWEST, HIGHEST, MOST_LOSS = -4.0, 8.0, 10.0
_POINTS = 241


def losses_of(count: float, predictions: NDArray[np.float64], objective: Objective) -> NDArray[np.float64]:
    """Return the loss of a cell with that count (0: unobserved) and a target of 2, for each prediction.

    >>> losses_of(4.0, np.array([1.0, 2.0]), Objective()).tolist()
    [0.3, 0.0]
    """
    offset = TARGET - float(np.log(count or objective.unseen))
    x, offsets = np.full((1, 1), count), np.full((1, 1), offset)
    found = [loss_and_gradient(np.full((1, 1), prediction), x, offsets, objective)[0] for prediction in predictions]
    return np.array([loss.observed + loss.unobserved for loss in found])


@in_style
def plot_losses(objective: Objective | None = None) -> Figure:
    """Draw the loss of observed cells with several counts, and of an unobserved one, against w . c.

    >>> len(plot_losses().axes)
    1
    """
    objective = objective or Objective()
    figure, axes = new_figure(6.4, 3.6)
    predictions = np.linspace(LOWEST, HIGHEST, _POINTS)
    axes.axvline(TARGET, color=FAINT, linewidth=0.6)
    axes.annotate("target", (TARGET, MOST_LOSS), (0, 4), textcoords="offset points", ha="center", color=INK)
    for place, count in enumerate(COUNTS):
        line = losses_of(count, predictions, objective)
        axes.plot(predictions, line, color=BLUE, linewidth=0.9 + 0.6 * place)
        label_end(axes, *_end_of(predictions, line), f"seen, x = {count:g}" if place == 0 else f"x = {count:g}", BLUE)
    line = losses_of(0.0, predictions, objective)
    axes.plot(predictions, line, color=ORANGE, linestyle=(0, (1, 1.6)), linewidth=2)
    label_end(axes, *_end_of(predictions, line), "never seen", ORANGE, shift=-9)
    axes.set(xlim=(LOWEST, HIGHEST), ylim=(0, MOST_LOSS), xlabel="prediction, w · c", ylabel="loss of the cell")
    return figure


def _end_of(predictions: NDArray[np.float64], line: NDArray[np.float64]) -> tuple[float, float]:
    """Return where a curve leaves the picture."""
    inside = np.flatnonzero(line <= MOST_LOSS)[-1]
    return float(predictions[inside]), float(line[inside])
