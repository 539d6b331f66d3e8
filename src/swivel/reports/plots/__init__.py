"""The paper's figures, those of a training run, and the table of very rare words.

Receives results, matrices and vectors, hands on matplotlib Figures (`save_figure` puts them into files, through
`storage`) and a `RareWords` table. It evaluates nothing. matplotlib, the extra `plot`, is loaded when a figure is
drawn; no figure touches pyplot or its global state.
"""

from swivel.reports.plots.block import plot_block
from swivel.reports.plots.frequency import Curve, Point, plot_differences, plot_frequency
from swivel.reports.plots.loss_function import plot_losses
from swivel.reports.plots.rare_words import PAPER_WORDS, RareWords, choose_rare_words, find_rare_neighbours
from swivel.reports.plots.style import FORMATS, draw_figure, save_figure
from swivel.reports.plots.training_run import EpochLoss, FitBucket, NormBucket, Norms, plot_epochs, plot_fit, plot_norms

__all__ = [
    "FORMATS",
    "PAPER_WORDS",
    "Curve",
    "FitBucket",
    "NormBucket",
    "Norms",
    "EpochLoss",
    "Point",
    "RareWords",
    "choose_rare_words",
    "draw_figure",
    "find_rare_neighbours",
    "plot_block",
    "plot_differences",
    "plot_fit",
    "plot_frequency",
    "plot_losses",
    "plot_norms",
    "plot_epochs",
    "save_figure",
]
