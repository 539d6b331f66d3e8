"""Figure of one training block with and without interleaving.

The left panel shows the corner of the matrix in frequency order, with the most common words only. The right panel shows
an interleaved block of the same size, which contains common and rare words alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swivel.reports.plots.style import in_style, need_matplotlib, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from swivel.counts import Matrix

MAX_PIXELS = 256  # per side; in a larger block several cells share a pixel
BRIGHTEST_QUANTILE = 0.999  # cells above this quantile all get the brightest color
GAMMA = 0.45  # below 1, it lightens dark cells, so that the few counts of a rare word are visible
COLOR_MAP = "magma"  # perceptually uniform, also in gray and for color-blind readers


def interleaved_block(matrix: Matrix) -> NDArray[np.float64]:
    """Return the counts of block (0, 0) as a dense array: every n-th row and column of the matrix."""
    cells = matrix.cells(0, 0)
    # A position packs (row << 16 | column) within the block.
    block = np.zeros((matrix.block_rows(0), matrix.block_columns(0)))
    block[cells.positions >> 16, cells.positions & 0xFFFF] = cells.counts
    return block


def frequency_corner(matrix: Matrix, rows: int, columns: int) -> NDArray[np.float64]:
    """Return the counts of the `rows` most common rows with the `columns` most common columns."""
    corner = np.zeros((rows, columns))

    # Block (i, j) holds the rows i, i + row_blocks, ... and the columns j, j + column_blocks, ...
    for i in range(min(matrix.row_blocks, rows)):
        for j in range(min(matrix.column_blocks, columns)):
            piece = corner[i :: matrix.row_blocks, j :: matrix.column_blocks]
            cells = matrix.cells(i, j)
            if cells.mirrored:
                piece = piece.T

            # Positions are sorted, so the cells of the first rows come first.
            kept = cells.positions[: np.searchsorted(cells.positions, np.uint32(len(piece) << 16))]
            inside = np.flatnonzero((kept & 0xFFFF) < piece.shape[1])
            piece[kept[inside] >> 16, kept[inside] & 0xFFFF] = cells.counts[inside]

    return corner


def shrink(picture: NDArray[np.float64], max_pixels: int) -> NDArray[np.float64]:
    """Return the means of squares of cells, so that no side is longer than `max_pixels`.

    Cells at the right and lower edge that do not fill a square are cut off.

    >>> shrink(np.array([[1.0, 3.0], [5.0, 7.0]]), 1).tolist()
    [[4.0]]
    """
    step = -(-max(picture.shape) // max_pixels)
    rows, columns = (max(size // step, 1) for size in picture.shape)
    height, width = (min(step, size) for size in picture.shape)

    trimmed = picture[: rows * height, : columns * width]
    return np.asarray(trimmed.reshape(rows, height, columns, width).mean(axis=(1, 3)))


@in_style
def plot_block(matrix: Matrix) -> Figure:
    """Draw log(1 + count) of the corner in frequency order beside that of an interleaved block of the same size."""
    block = interleaved_block(matrix)
    corner = frequency_corner(matrix, *block.shape)
    pictures = [shrink(np.log1p(piece), MAX_PIXELS) for piece in (corner, block)]

    # Both panels share the color scale of the corner.
    brightest = max(float(np.quantile(pictures[0], BRIGHTEST_QUANTILE)), 1e-9)
    scale = need_matplotlib().colors.PowerNorm(GAMMA, 0, brightest)

    figure, axes = new_figure(6.8, 3.5, ncols=2)
    size = f"{block.shape[0]:,} × {block.shape[1]:,}"
    titles = (f"sorted by frequency: the first {size}", f"interleaved: one block of {size}")
    for panel, picture, title in zip(axes, pictures, titles, strict=True):
        image = panel.imshow(picture, cmap=COLOR_MAP, norm=scale, interpolation="nearest")
        panel.set(title=title, xticks=[], yticks=[], xlabel="columns, common to rare")
        panel.spines[:].set_visible(False)

    axes[0].set_ylabel("rows, common to rare")
    bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, label="log (1 + count)", extend="max")
    bar.outline.set_visible(False)
    return figure
