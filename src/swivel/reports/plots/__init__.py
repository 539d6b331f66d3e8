"""Figures of a training run, maps of words, and the accuracy of analogies by frequency.

The `plot_...` functions return matplotlib Figures, which `save_figure` writes to files. matplotlib (the extra `plot`)
is imported when a figure is drawn. pyplot and its global state are not used.
"""

from swivel.evaluation import Point
from swivel.reports.plots.frequency import make_curves, plot_differences, plot_frequency
from swivel.reports.plots.map_plot import plot_map
from swivel.reports.plots.style import FORMATS, draw_figure, save_figure
from swivel.reports.plots.training_run import FitBucket, NormBucket, Norms, plot_epochs, plot_fit, plot_norms

__all__ = [
    "FORMATS",
    "FitBucket",
    "NormBucket",
    "Norms",
    "Point",
    "draw_figure",
    "make_curves",
    "plot_differences",
    "plot_fit",
    "plot_frequency",
    "plot_map",
    "plot_norms",
    "plot_epochs",
    "save_figure",
]
