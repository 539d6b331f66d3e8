"""What all figures share: a sheet of paper, ink, colours that everyone can tell apart, and the way into files.

Receives sizes, hands on Figures without pyplot; the same figure gives the same bytes, today and tomorrow.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from swivel.errors import ConfigError, missing_extra
from swivel.storage import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Given = ParamSpec("Given")

# Okabe and Ito's palette, without its yellow, which is too light for lines on white.
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY)
INK, FAINT, PAPER = "#1b1b1d", "#8a8a90", "#ffffff"
FORMATS = ("png", "svg")
DOTS_PER_INCH = 200
_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # it comes with matplotlib: the same picture on every machine
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
    """Return matplotlib, or raise MissingExtra."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise missing_extra("plots", "matplotlib", "plot") from error
    return matplotlib


def in_style(draw: Callable[Given, Figure]) -> Callable[Given, Figure]:
    """Make a function draw in the style of the house, whatever the settings of matplotlib are around it."""

    @functools.wraps(draw)
    def draw_in_style(*arguments: Given.args, **keywords: Given.kwargs) -> Figure:
        with need_matplotlib().rc_context(dict(_STYLE)):
            return draw(*arguments, **keywords)

    return draw_in_style


def new_figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """Return a Figure of so many inches and its axes, as `Figure.subplots` gives them for `grid`."""
    figure = need_matplotlib().figure.Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    return figure, figure.subplots(**grid)


def label_end(axes: Axes, x: float, y: float, text: str, colour: str, *, shift: float = 0.0) -> None:
    """Write a name behind the end of a curve, in its colour, `shift` points above it."""
    axes.annotate(
        text, (x, y), (5, shift), textcoords="offset points", color=colour, va="center", annotation_clip=False
    )


def spread_labels(heights: list[float], least: float) -> list[float]:
    """Return heights that are `least` apart or more, in the same order, moved as little as a sweep does.

    >>> spread_labels([0.0, 0.1, 5.0], 1.0)
    [-0.45, 0.55, 5.0]
    """
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    groups: list[list[int]] = []
    for number in order:
        groups.append([number])
        while len(groups) > 1 and _lowest(groups[-1], heights, least) < _highest(groups[-2], heights, least) + least:
            last = groups.pop()
            groups[-1] += last
    placed = list(heights)
    for group in groups:
        start = _lowest(group, heights, least)
        for place, number in enumerate(group):
            placed[number] = round(start + place * least, 6)
    return placed


def _lowest(group: list[int], heights: list[float], least: float) -> float:
    return sum(heights[number] for number in group) / len(group) - least * (len(group) - 1) / 2


def _highest(group: list[int], heights: list[float], least: float) -> float:
    return _lowest(group, heights, least) + least * (len(group) - 1)


def short_number(value: float) -> str:
    """Return a number as briefly as can be.

    >>> short_number(300), short_number(30_000), short_number(1e6), short_number(2e9)
    ('300', '30 k', '1 M', '2 G')
    """
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def draw_figure(figure: Figure, kind: str) -> bytes:
    """Return a figure as `png` or `svg`: the same bytes each time."""
    matplotlib = need_matplotlib()
    file = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[kind]
    # The names of an SVG's parts are made of random numbers, unless they are given this salt.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": "swivel"}):
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=metadata, facecolor=PAPER)
    return file.getvalue()


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG or SVG, by the file's ending."""
    path = Path(path)
    write_file(path, draw_figure(figure, check_format(path)))


def check_format(path: Path) -> str:
    """Return the kind of a file by its ending, or raise ConfigError where that is neither PNG nor SVG."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"{path}: figures are written as .png or .svg")
    return kind
