"""The figures that explain the paper's method: the two losses, and a block before and after interleaving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.frequency import label_end
from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.reports.plots import BLUE, FAINT, INK, ORANGE, in_style, need_matplotlib, new_figure
from swivel.training.objective import loss_and_gradient

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Doubles = NDArray[np.float64]

TARGET = 2.0  # as in the paper
COUNTS = (1.0, 10.0, 100.0)
PREDICTIONS = np.linspace(-4.0, 8.0, 241)
MAX_LOSS = 10.0

MAX_PIXELS = 256  # per side of a panel; in a larger block several cells share a pixel
BRIGHTEST_QUANTILE = 0.999  # cells above this quantile all get the brightest color
GAMMA = 0.45  # below 1, it lightens dark cells, so that the few counts of a rare word are visible


def losses_of(count: float, predictions: Doubles) -> Doubles:
    """Return the loss of a cell with the given count (0 if unobserved) and the target 2, for each prediction.

    >>> losses_of(4.0, np.array([1.0, 2.0])).tolist()
    [0.3, 0.0]
    """
    objective = TrainConfig()
    # PMI = log x + offset, so this offset gives the cell its target.
    offsets = np.full((1, 1), TARGET - float(np.log(count or objective.unseen)))
    losses = []
    for prediction in predictions:
        loss, _ = loss_and_gradient(np.full((1, 1), prediction), np.full((1, 1), count), offsets, objective)
        losses.append(loss.observed + loss.unobserved)
    return np.array(losses)


@in_style
def plot_losses() -> Figure:
    """Draw the loss of observed cells with several counts, and of an unobserved one, against w . c."""
    figure, axes = new_figure(6.4, 3.6)
    axes.axvline(TARGET, color=FAINT, linewidth=0.6)
    axes.annotate("target", (TARGET, MAX_LOSS), (0, 4), textcoords="offset points", ha="center", color=INK)

    for index, count in enumerate((*COUNTS, 0.0)):
        line = losses_of(count, PREDICTIONS)
        last = np.flatnonzero(line <= MAX_LOSS)[-1]  # inside the figure
        end = float(PREDICTIONS[last]), float(line[last])
        if count:
            axes.plot(PREDICTIONS, line, color=BLUE, linewidth=0.9 + 0.6 * index)
            label_end(axes, *end, f"seen, x = {count:g}" if index == 0 else f"x = {count:g}", BLUE)
        else:
            axes.plot(PREDICTIONS, line, color=ORANGE, linestyle=(0, (1, 1.6)), linewidth=2)
            label_end(axes, *end, "never seen", ORANGE, shift=-9)

    limits = (float(PREDICTIONS[0]), float(PREDICTIONS[-1]))
    axes.set(xlim=limits, ylim=(0, MAX_LOSS), xlabel="prediction, w · c", ylabel="loss of the cell")
    return figure


def shrink(picture: Doubles) -> Doubles:
    """Return the means of squares of cells, so that no side is longer than `MAX_PIXELS`.

    Cells at the right and lower edge that do not fill a square are cut off.
    """
    step = -(-max(picture.shape) // MAX_PIXELS)
    rows, columns = (max(size // step, 1) for size in picture.shape)
    height, width = (min(step, size) for size in picture.shape)

    trimmed = picture[: rows * height, : columns * width]
    return np.asarray(trimmed.reshape(rows, height, columns, width).mean(axis=(1, 3)))


@in_style
def plot_block(matrix: Matrix) -> Figure:
    """Draw log(1 + count) of the most common rows and columns beside that of an interleaved block of the same size."""
    counts = matrix.to_scipy()
    block = counts[:: matrix.row_blocks, :: matrix.column_blocks].toarray()
    corner = counts[: block.shape[0], : block.shape[1]].toarray()
    pictures = [shrink(np.log1p(piece)) for piece in (corner, block)]

    # Both panels share the color scale of the corner.
    brightest = max(float(np.quantile(pictures[0], BRIGHTEST_QUANTILE)), 1e-9)
    scale = need_matplotlib().colors.PowerNorm(GAMMA, 0, brightest)

    figure, axes = new_figure(6.8, 3.5, ncols=2)
    size = f"{block.shape[0]:,} × {block.shape[1]:,}"
    titles = (f"sorted by frequency: the first {size}", f"interleaved: one block of {size}")
    for panel, picture, title in zip(axes, pictures, titles, strict=True):
        image = panel.imshow(picture, cmap="magma", norm=scale, interpolation="nearest")
        panel.set(title=title, xticks=[], yticks=[], xlabel="columns, common to rare")
        panel.spines[:].set_visible(False)

    axes[0].set_ylabel("rows, common to rare")
    bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, label="log (1 + count)", extend="max")
    bar.outline.set_visible(False)
    return figure
