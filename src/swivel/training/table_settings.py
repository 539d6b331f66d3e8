"""Settings of training that follow from a table: ratings, purchases, tags and other rows and columns of two kinds.

docs/tables.md has the measurements behind the constants, and names the tables on which they were chosen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import RECIPES
from swivel.counts import Matrix
from swivel.training.schedule import default_epochs

UNSEEN_GAP = 6.0  # targets of unobserved cells are this much below those of observed cells
STRENGTH = 1.5  # factor of the weight decay
BLOCK_SIZE = 512
MAX_SIZE = 65_536  # more rows or columns: the block size and the epochs of text
UPDATES_PER_VECTOR = 240  # about how many times every vector is updated, in at most MAX_EPOCHS
MAX_EPOCHS = 40
FEW_CELLS = (
    2_000_000  # observed or not: all zeros of smaller tables are computed, because few steps average few samples
)


def is_table(matrix: Matrix) -> bool:
    """Return whether rows and columns are things of different kinds, such as users and products."""
    return matrix.columns_per_row == 0


def choose_table_settings(matrix: Matrix) -> dict[str, Any]:
    """Return the settings of the recipe `table` that depend on the table."""
    rows, columns = matrix.shape
    cells = matrix.cell_count
    weight_decay = choose_weight_decay(matrix.row_sums, matrix.column_sums, cells)
    unseen = math.exp(-UNSEEN_GAP) * matrix.total / cells

    # The last digits of sums of logarithms differ between CPUs, but a run must have one configuration on all of them.
    settings: dict[str, Any] = {"weight_decay": float(f"{weight_decay:.9g}"), "unseen": float(f"{unseen:.9g}")}
    if max(rows, columns) <= MAX_SIZE:
        settings["block_size"] = BLOCK_SIZE
        blocks = math.ceil(rows / BLOCK_SIZE), math.ceil(columns / BLOCK_SIZE)
        settings["epochs"] = min(default_epochs(*blocks, UPDATES_PER_VECTOR), MAX_EPOCHS)
    if rows * columns <= FEW_CELLS:
        settings["zeros"] = "all"
    return settings


def choose_weight_decay(row_sums: NDArray[np.float64], column_sums: NDArray[np.float64], cells: int) -> float:
    """Return the weight decay of a table with some marginal sums and a number of observed cells.

    The decay of a row competes with the mean gradient over all columns, which is proportional to the density and to
    the confidence of an observed cell. It has to grow with the targets, whose mean is the mutual information of rows
    and columns, and with the noise, which is larger if rows or columns have few cells.
    """
    rows, columns = np.count_nonzero(row_sums), np.count_nonzero(column_sums)
    density = cells / (rows * columns)
    information = max(_entropy(row_sums) + _entropy(column_sums) - math.log(cells), 0.1)
    noise = rows / cells + columns / cells  # 1 / mean cells of a row + 1 / mean cells of a column
    confidence = RECIPES["table"]["train"]["confidence_base"]
    return float(STRENGTH * confidence * density * math.sqrt(information) * noise**0.25)


def _entropy(sums: NDArray[np.float64]) -> float:
    shares = sums[sums > 0] / sums.sum()
    return float(-(shares * np.log(shares)).sum())
