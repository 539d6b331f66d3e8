"""The figures of the paper, the figures of a training run, maps of words, and the table of very rare words.

The `plot_...` functions return matplotlib Figures, which `save_figure` writes to files. matplotlib (the extra `plot`)
is imported when a figure is drawn. pyplot and its global state are not used.
"""

from swivel.evaluation import Point
from swivel.reports.plots.block import plot_block
from swivel.reports.plots.frequency import Curve, make_curves, plot_differences, plot_frequency
from swivel.reports.plots.loss_function import plot_losses
from swivel.reports.plots.rare_words import RareWords, choose_rare_words, find_rare_neighbors
from swivel.reports.plots.style import FORMATS, draw_figure, save_figure
from swivel.reports.plots.training_run import EpochLoss, FitBucket, NormBucket, Norms, plot_epochs, plot_fit, plot_norms
from swivel.reports.plots.word_map import plot_map

__all__ = [
    "FORMATS",
    "Curve",
    "FitBucket",
    "NormBucket",
    "Norms",
    "EpochLoss",
    "Point",
    "RareWords",
    "choose_rare_words",
    "draw_figure",
    "find_rare_neighbors",
    "make_curves",
    "plot_block",
    "plot_differences",
    "plot_fit",
    "plot_frequency",
    "plot_losses",
    "plot_map",
    "plot_norms",
    "plot_epochs",
    "save_figure",
]
