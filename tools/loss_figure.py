"""Draws docs/images/loss.svg: the loss of one cell as a function of the dot product, as in the paper.

python tools/loss_figure.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from swivel.config import TrainConfig
from swivel.training.objective import loss_and_gradient

TARGET = Path(__file__).parent.parent / "docs" / "images" / "loss.svg"
INK = "#7a7a7a"  # readable on white and on black


def main() -> None:
    """Draw the loss of an unobserved cell, and of observed ones with three counts and the same PMI."""
    predicted = np.linspace(-4, 4, 321)
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for count, color in ((1, "#6baed6"), (10, "#2f7fc1"), (100, "#d0588c")):
        axes.plot(predicted, compute_losses(predicted, count), color=color, label=f"observed, x = {count}")
    axes.plot(predicted, compute_losses(predicted, 0), color="#d98c1f", linestyle="--", label="never observed")

    axes.set(xlim=(-4, 4), ylim=(0, 6), ylabel="loss")
    axes.set_xlabel("predicted value minus target: pmi if observed, pmi* if not")
    axes.legend(frameon=False, labelcolor=INK, loc="upper center")
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    with mpl.rc_context({"svg.hashsalt": "loss", "svg.fonttype": "path"}):
        figure.savefig(TARGET, transparent=True, metadata={"Date": None})


def compute_losses(predicted: np.ndarray, count: int) -> list[float]:
    """Return the loss of a cell whose target is 0, for each predicted value."""
    config = TrainConfig()
    x = np.full((1, 1), float(count))
    offset = np.full((1, 1), -np.log(max(count, 1)))
    losses = [loss_and_gradient(np.full((1, 1), value), x, offset, config)[0] for value in predicted]
    return [loss.observed + loss.unobserved for loss in losses]


if __name__ == "__main__":
    main()
