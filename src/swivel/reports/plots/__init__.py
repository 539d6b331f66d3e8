"""The losses of a training run, maps of words, and the accuracy of analogies by frequency.

The `plot_...` functions return matplotlib Figures, which `save_figure` writes to files. matplotlib (the extra `plot`)
is imported when a figure is drawn. pyplot and its global state are not used.
"""

from swivel.evaluation.results import Point as Point
from swivel.reports.plots.frequency import make_curves as make_curves
from swivel.reports.plots.frequency import plot_differences as plot_differences
from swivel.reports.plots.frequency import plot_frequency as plot_frequency
from swivel.reports.plots.map_plot import plot_map as plot_map
from swivel.reports.plots.style import FORMATS as FORMATS
from swivel.reports.plots.style import draw_figure as draw_figure
from swivel.reports.plots.style import save_figure as save_figure
from swivel.reports.plots.training_run import plot_epochs as plot_epochs
