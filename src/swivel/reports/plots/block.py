"""A block before and after the mod-interleaving: why every block of training is like every other.

Receives a Matrix, hands on a Figure of two pieces of it of the same size: the corner of the matrix as frequency
sorts it, where common words meet common words, and one interleaved block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.reports.plots.style import in_style, need_matplotlib, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from swivel.counts import Matrix

MOST_PIXELS = 256  # of a side: several cells are one pixel where a block is larger
BRIGHTEST = 0.999  # the share of cells that are not the brightest
GAMMA = 0.45  # below 1: lightens what is dark, so that the few counts of a rare word are seen
COLOUR_MAP = "magma"  # even steps of lightness, in print and to every eye


def interleaved_block(matrix: Matrix) -> NDArray[np.float64]:
    """Return the counts of the first stored block, (rows, columns): every n-th row and column of the matrix."""
    cells = matrix.cells(0, 0)
    block = np.zeros((matrix.block_rows(0), matrix.block_columns(0)))
    block[cells.positions >> 16, cells.positions & 0xFFFF] = cells.counts
    return block


def frequency_corner(matrix: Matrix, rows: int, columns: int) -> NDArray[np.float64]:
    """Return the counts of the commonest `rows` with the commonest `columns`."""
    corner = np.zeros((rows, columns))
    for i in range(min(matrix.row_blocks, rows)):
        for j in range(min(matrix.column_blocks, columns)):
            piece = corner[i :: matrix.row_blocks, j :: matrix.column_blocks]
            cells = matrix.cells(i, j)
            if cells.mirrored:
                _fill(piece.T, cells)
            else:
                _fill(piece, cells)
    return corner


def _fill(piece: NDArray[np.float64], cells: Any) -> None:
    """Put the cells of a block that lie in its first rows and columns into a view of a dense array."""
    kept = cells.positions[: np.searchsorted(cells.positions, np.uint32(len(piece) << 16))]
    inside = np.flatnonzero((kept & 0xFFFF) < piece.shape[1])
    piece[kept[inside] >> 16, kept[inside] & 0xFFFF] = cells.counts[inside]


def shrink(picture: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return the means of squares of cells, so that no side is longer than `most`; what is left over is cut off.

    >>> shrink(np.array([[1.0, 3.0], [5.0, 7.0]]), 1).tolist()
    [[4.0]]
    """
    step = -(-max(picture.shape) // most)
    rows, columns = (max(size // step, 1) for size in picture.shape)
    height, width = (min(step, size) for size in picture.shape)
    trimmed = picture[: rows * height, : columns * width]
    return np.asarray(trimmed.reshape(rows, height, columns, width).mean(axis=(1, 3)))


@in_style
def plot_block(matrix: Matrix) -> Figure:
    """Draw log(1 + count) of the corner by frequency beside that of an interleaved block of the same size."""
    block = interleaved_block(matrix)
    corner = frequency_corner(matrix, *block.shape)
    pictures = [shrink(np.log1p(piece), MOST_PIXELS) for piece in (corner, block)]
    brightest = max(float(np.quantile(pictures[0], BRIGHTEST)), 1e-9)
    scale = need_matplotlib().colors.PowerNorm(GAMMA, 0, brightest)
    figure, axes = new_figure(6.8, 3.5, ncols=2)
    size = f"{block.shape[0]:,} × {block.shape[1]:,}"
    titles = f"sorted by frequency: the first {size}", f"interleaved: one block of {size}"
    for place, picture, title in zip(axes, pictures, titles, strict=True):
        image = place.imshow(picture, cmap=COLOUR_MAP, norm=scale, interpolation="nearest")
        place.set(title=title, xticks=[], yticks=[], xlabel="columns, common to rare")
        place.spines[:].set_visible(False)
    axes[0].set_ylabel("rows, common to rare")
    bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, label="log (1 + count)", extend="max")
    bar.outline.set_visible(False)
    return figure
