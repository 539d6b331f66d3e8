"""Figure of the loss of observed and unobserved cells against the prediction w . c.

The losses are computed by `training.objective`, so that the figure shows the loss that is minimized.
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
MIN_PREDICTION, MAX_PREDICTION = -4.0, 8.0
MAX_LOSS = 10.0
_POINTS = 241  # per curve


def losses_of(count: float, predictions: NDArray[np.float64], objective: Objective) -> NDArray[np.float64]:
    """Return the loss of a cell with the given count (0 if unobserved) and the target 2, for each prediction.

    >>> losses_of(4.0, np.array([1.0, 2.0]), Objective()).tolist()
    [0.3, 0.0]
    """
    # PMI = log x + offset, so this offset gives the cell its target.
    offset = TARGET - float(np.log(count or objective.unseen))
    counts = np.full((1, 1), count)
    offsets = np.full((1, 1), offset)

    losses = []
    for prediction in predictions:
        loss, _ = loss_and_gradient(np.full((1, 1), prediction), counts, offsets, objective)
        losses.append(loss.observed + loss.unobserved)
    return np.array(losses)


@in_style
def plot_losses(objective: Objective | None = None) -> Figure:
    """Draw the loss of observed cells with several counts, and of an unobserved one, against w . c.

    >>> len(plot_losses().axes)
    1
    """
    objective = objective or Objective()
    predictions = np.linspace(MIN_PREDICTION, MAX_PREDICTION, _POINTS)

    figure, axes = new_figure(6.4, 3.6)
    axes.axvline(TARGET, color=FAINT, linewidth=0.6)
    axes.annotate("target", (TARGET, MAX_LOSS), (0, 4), textcoords="offset points", ha="center", color=INK)

    for index, count in enumerate(COUNTS):
        line = losses_of(count, predictions, objective)
        label = f"seen, x = {count:g}" if index == 0 else f"x = {count:g}"
        axes.plot(predictions, line, color=BLUE, linewidth=0.9 + 0.6 * index)
        label_end(axes, *_end_of(predictions, line), label, BLUE)

    line = losses_of(0.0, predictions, objective)
    axes.plot(predictions, line, color=ORANGE, linestyle=(0, (1, 1.6)), linewidth=2)
    label_end(axes, *_end_of(predictions, line), "never seen", ORANGE, shift=-9)

    xlim = (MIN_PREDICTION, MAX_PREDICTION)
    axes.set(xlim=xlim, ylim=(0, MAX_LOSS), xlabel="prediction, w · c", ylabel="loss of the cell")
    return figure


def _end_of(predictions: NDArray[np.float64], line: NDArray[np.float64]) -> tuple[float, float]:
    """Return the last point of a curve inside the figure."""
    inside = np.flatnonzero(line <= MAX_LOSS)[-1]
    return float(predictions[inside]), float(line[inside])
