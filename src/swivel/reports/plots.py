"""Figures: the losses of a training run, and maps of words.

The `plot_...` functions return matplotlib Figures, which `save_figure` writes as PNG, SVG or PDF; the same figure gives
the same bytes. matplotlib (the extra `plot`) is imported when a figure is drawn, and pyplot and its global
state are not used.
"""

from __future__ import annotations

import functools
import io
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError, needs_extra
from swivel.runtime.display import escape_controls
from swivel.runtime.resources import check_libraries
from swivel.storage.files import write_file
from swivel.storage.output_folder import check_format

if TYPE_CHECKING:
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
# The colors of clusters, also those of the explorer.
PALETTE = (
    *("#4c78c9", "#e8833a", "#4fa35b", "#d9534f", "#9a6fc4", "#3fa7a3"),
    *("#d4a72c", "#e377a8", "#96684a", "#6b8e23", "#5b6abf", "#8a8f98"),
)
MAX_LABEL = 28  # letters on a map
_EDGE = 1.15  # of the visible part of a map
_LABEL_POINTS = 6.5  # size of these letters
_SCRIPT_NAMES = {"Cjk": "Chinese"}
_RASTER = 5_000  # with more points, SVG and PDF contain them as an image


def need_matplotlib() -> Any:
    """Return the matplotlib module, or raise MissingExtra if it is not installed."""
    check_libraries("plotting")
    with needs_extra("plots", "matplotlib", "plot"):
        import matplotlib
        import matplotlib.figure
        import matplotlib.font_manager
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
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": "swivel"}), warnings.catch_warnings():
        # `find_fonts` has said which letters have no font; matplotlib would say it for each of them.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=metadata, facecolor=PAPER)
    return file.getvalue()


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file as PNG, SVG or PDF, according to the file extension."""
    path = Path(path)
    write_file(path, draw_figure(figure, check_format(path, FORMATS, "figures")))


@in_style
def plot_epochs(epochs: Sequence[Mapping[str, float]]) -> Figure:
    """Draw the mean loss of all cells, of the observed and of the unobserved ones, per epoch.

    >>> len(plot_epochs([{"mean": 0.3, "observed": 2.0, "unobserved": 0.2}]).axes)
    3
    """
    if not epochs:
        raise ConfigError("the manifest of the vectors has no losses; open a folder written by training")

    kinds = [("all cells", BLUE, "mean")]
    if any(loss["unobserved"] for loss in epochs):
        kinds += [("observed", GREEN, "observed"), ("unobserved", ORANGE, "unobserved")]

    figure, axes = new_figure(1.2 + 2.5 * len(kinds), 2.6, ncols=len(kinds), squeeze=False)
    marker_size = 3 if len(epochs) <= 30 else 0
    for panel, (title, color, kind) in zip(axes[0], kinds, strict=True):
        values = [loss[kind] for loss in epochs]
        panel.plot(range(1, len(values) + 1), values, color=color, linewidth=1.8, marker="o", markersize=marker_size)
        panel.set(title=title, xlabel="epoch", xlim=(0, len(values) + 0.5), ylim=(0, 1.05 * max(values) or 1))
        panel.xaxis.set_major_locator(need_matplotlib().ticker.MaxNLocator(integer=True, nbins=6))

    axes[0][0].set_ylabel("mean loss of a cell")
    return figure


def find_fonts(text: str) -> list[str]:
    """Return the fonts for a text: matplotlib's own, and installed ones for the letters that it lacks.

    Warns, once, if no installed font has some of the letters.
    """
    fonts = [str(_STYLE["font.family"])]
    manager = need_matplotlib().font_manager
    missing = {ord(char) for char in text if char.isprintable()}
    missing -= _letters_of(manager.findfont(fonts[0]))
    # Last Resort, which matplotlib contains since 3.11, has a box for every letter.
    found_fonts = {(entry.name, entry.fname) for entry in manager.fontManager.ttflist if missing}
    installed = sorted(font for font in found_fonts if "Last Resort" not in font[0])

    while missing:
        # The font with most of the letters; of several, the first by name, so that a machine always takes the same.
        best = max(installed, key=lambda font: len(missing & _letters_of(font[1])))
        found = missing & _letters_of(best[1])
        if not found:
            break
        fonts.append(best[0])
        missing -= found

    if missing:
        scripts = {
            unicodedata.name(char, "other").split()[0].capitalize() for char in map(chr, missing) if char.isalpha()
        }
        names = [_SCRIPT_NAMES.get(name, name) for name in sorted(scripts)] or ["symbols such as emoji"]
        warnings.warn(
            f"no installed font has the letters of {', '.join(names)}, which are boxes in the figure: install one, "
            "such as Noto Sans, and delete the font cache of matplotlib",
            stacklevel=2,
        )
    return fonts


@functools.cache
def _letters_of(path: str) -> frozenset[int]:
    """Return the code points that a font file has."""
    try:
        return frozenset(need_matplotlib().ft2font.FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # removed since matplotlib listed it, or damaged
        return frozenset()


@in_style
def plot_map(
    labels: Sequence[str],
    points: NDArray[np.float32],
    *,
    clusters: NDArray[Any] | None = None,
    order: Sequence[int] | NDArray[Any] | None = None,
    size: tuple[float, float] = (7.0, 6.0),
) -> Figure:
    """Return the figure of a map: points (n, 2), nearly all in -1 .. 1, and their labels, of which long ones are cut.

    `clusters` are numbers that select colors, and `size` is in inches. Labels are placed in the `order` of these ids,
    and one that would overlap another is left out.
    """
    figure, axes = new_figure(*size)
    axes.set_axis_off()
    lowest, highest = _find_frame(points)
    axes.set(xlim=(lowest[0], highest[0]), ylim=(lowest[1], highest[1]))

    colors = FAINT if clusters is None else [PALETTE[number % len(PALETTE)] for number in clusters.tolist()]
    dots = float(np.clip(20_000 / max(len(points), 1), 2, 16))
    axes.scatter(*points.T, s=dots, c=colors, alpha=0.75, linewidths=0, rasterized=len(points) > _RASTER)

    # In printer's points, 72 per inch, in which letters are measured.
    places = (points - lowest) / (highest - lowest) * np.array(size) * 72
    shown = dict(_choose_labels(labels, places, range(len(labels)) if order is None else order, size))
    fonts = find_fonts("".join(shown.values()))
    for number, label in shown.items():
        x, y = points[number].tolist()
        # A $ in a label is not the start of a formula.
        axes.annotate(
            label, (x, y), (2.5, 0), textcoords="offset points", va="center", parse_math=False,
            fontsize=_LABEL_POINTS, fontfamily=fonts,
        )  # fmt: skip
    return figure


def _find_frame(points: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lower left and upper right corner of the visible part; the right margin is wider, for labels."""
    inside = points[(np.abs(points) <= _EDGE).all(axis=1)]
    if not len(inside):
        return np.full(2, -_EDGE), np.full(2, _EDGE)

    # Points far outside would shrink the rest; they are cut off.
    lowest, highest = inside.min(axis=0), inside.max(axis=0)
    margin = np.maximum(highest - lowest, 1e-3) * 0.03
    return lowest - margin, highest + margin * (4, 1)


def _choose_labels(
    labels: Sequence[str], places: NDArray[Any], order: Any, size: tuple[float, float]
) -> Iterator[tuple[int, str]]:
    """Yield the ids and the short texts of labels that do not overlap; places are in printer's points."""
    boxes = np.empty((0, 4))  # left, bottom, right, top of the labels so far
    for number in np.asarray(order).tolist():
        label = escape_controls(labels[number])  # one line, and no character that has no letter in the font
        label = label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
        # The width of a letter is about two thirds of its size; measuring the text would draw it first.
        left, middle = places[number]
        box = np.array([left, middle - 0.7 * _LABEL_POINTS, 0, middle + 0.7 * _LABEL_POINTS])
        box[2] = left + 0.66 * _LABEL_POINTS * len(label) + 5

        # Two boxes overlap if each begins before the other ends, in both directions.
        is_inside = left >= 0 and box[2] <= 72 * size[0] and 0 <= middle <= 72 * size[1]
        overlaps = (boxes[:, :2] < box[2:]).all(axis=1) & (boxes[:, 2:] > box[:2]).all(axis=1)
        if is_inside and not overlaps.any():
            boxes = np.vstack([boxes, box])
            yield number, label
