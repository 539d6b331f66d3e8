"""Style and file output shared by all figures: colors, fonts, labels, PNG, SVG and PDF.

Figures are made without pyplot, and saving the same figure twice gives the same bytes.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from swivel.errors import ConfigError, missing_extra
from swivel.runtime.control_characters import escape_controls
from swivel.runtime.resources import check_libraries
from swivel.storage.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")

# The palette of Okabe and Ito for color-blind readers, without its yellow, which is too light for lines on white.
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY)
INK, FAINT, PAPER = "#1b1b1d", "#8a8a90", "#ffffff"
FORMATS = ("png", "svg", "pdf")
DOTS_PER_INCH = 200
_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # included in matplotlib, so figures are the same on every machine
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "path",
}


def need_matplotlib() -> Any:
    """Return the matplotlib module, or raise MissingExtra if it is not installed."""
    check_libraries("plotting")
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise missing_extra("plots", "matplotlib", "plot") from error
    return matplotlib


def in_style(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Decorate a function to draw with Swivel's style, regardless of the caller's matplotlib settings."""

    @functools.wraps(draw)
    def draw_in_style(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Figure:
        with need_matplotlib().rc_context(dict(_STYLE)):
            return draw(*arguments, **keywords)

    return draw_in_style


def new_figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """Return a Figure of `width` x `height` inches and its axes, `Figure.subplots(**grid)`."""
    figure = need_matplotlib().figure.Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    return figure, figure.subplots(**grid)


def label_end(axes: Axes, x: float, y: float, text: str, color: str, *, shift: float = 0.0) -> None:
    """Write a label after the end of a curve at (x, y), in the color of the curve, `shift` points above it."""
    axes.annotate(text, (x, y), (5, shift), textcoords="offset points", color=color, va="center", annotation_clip=False)


def spread_labels(heights: list[float], min_distance: float) -> list[float]:
    """Return heights that are at least `min_distance` apart, in the same order and close to the given ones.

    Labels that would overlap form a group, which is centered on the mean of its heights.

    >>> spread_labels([0.0, 0.1, 5.0], 1.0)
    [-0.45, 0.55, 5.0]
    """
    from scipy.optimize import isotonic_regression

    # Minus the distances between them, the labels only have to ascend: this is isotonic regression.
    order = np.argsort(heights, kind="stable")
    distances = min_distance * np.arange(len(heights))
    placed = np.empty(len(heights))
    placed[order] = isotonic_regression(np.array(heights)[order] - distances).x + distances
    return [round(height, 6) for height in placed.tolist()]


def short_number(value: float) -> str:
    """Return a number with a unit prefix: k, M or G.

    >>> short_number(300), short_number(30_000), short_number(1e6), short_number(2e9)
    ('300', '30 k', '1 M', '2 G')
    """
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def draw_figure(figure: Figure, kind: str) -> bytes:
    """Return the bytes of a figure as `png`, `svg` or `pdf`, the same bytes for the same figure."""
    matplotlib = need_matplotlib()
    file = io.BytesIO()
    # Times and names of versions would make other bytes of the same figure.
    no_date = {"Creator": None, "Producer": None, "CreationDate": None}
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": no_date}[kind]

    # Names that users choose, such as those of methods, may have characters that XML forbids and matplotlib refuses.
    for text in figure.findobj(matplotlib.text.Text):
        text.set_text("\n".join(map(escape_controls, text.get_text().split("\n"))))

    # matplotlib makes random ids for the elements of an SVG unless it is given a salt.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": "swivel"}):
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=metadata, facecolor=PAPER)
    return file.getvalue()


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file as PNG, SVG or PDF, according to the file extension."""
    path = Path(path)
    write_file(path, draw_figure(figure, check_format(path)))


def check_format(path: Path) -> str:
    """Return the format of a figure file from its extension, or raise ConfigError if it is another one."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"{path}: figures are written as .png, .svg or .pdf")
    return kind
