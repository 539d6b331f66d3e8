"""What is chosen for a run, once: blocks, passes, backend, device, dtype.

Receives a matrix and a configuration, hands on a plan, which is written down before the first step so that a resumed
run never chooses again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swivel.backends import choose_backend, choose_dtype
from swivel.backends.base import ObservedCells, StoredCells
from swivel.config import TrainConfig
from swivel.errors import DamagedFolder
from swivel.schedule import choose_block_count, default_block_size, default_passes

MOST_PASSES = 100  # with end="converged"


class BlockedMatrix(Protocol):
    """What the loop needs of a matrix."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def row_blocks(self) -> int:
        """Number of row blocks."""

    @property
    def column_blocks(self) -> int:
        """Number of column blocks."""

    @property
    def row_sums(self) -> NDArray[np.float64]:
        """Sum of each row."""

    @property
    def column_sums(self) -> NDArray[np.float64]:
        """Sum of each column."""

    @property
    def total(self) -> float:
        """Sum of all counts."""

    @property
    def fingerprint(self) -> str:
        """Digest of the content."""

    @property
    def stored(self) -> StoredCells:
        """All observed cells."""

    def cells(self, i: int, j: int) -> ObservedCells:
        """Observed cells of a block."""

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int) -> BlockedMatrix:
        """The same matrix in other blocks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was chosen for a run, once."""

    row_blocks: int
    column_blocks: int
    passes: int
    backend: str
    device: str
    dtype: str


def make_plan(matrix: BlockedMatrix, config: TrainConfig) -> Plan:
    """Choose block size, passes, backend and dtype, where the configuration leaves them open."""
    rows, columns = matrix.shape
    backend, device = choose_backend(config)
    if config.block_size is None:
        size = default_block_size(rows, columns, device)
        row_blocks = choose_block_count(rows, size, matrix.row_blocks)
        column_blocks = choose_block_count(columns, size, matrix.column_blocks)
    else:
        row_blocks, column_blocks = math.ceil(rows / config.block_size), math.ceil(columns / config.block_size)
    most = MOST_PASSES if config.end == "converged" else default_passes(row_blocks, column_blocks)
    passes = config.passes or most
    dtype = choose_dtype(config, backend, device, cells=float(rows) * columns * passes)
    return Plan(row_blocks, column_blocks, passes, backend, device, dtype)


def read_plan(saved: dict[str, Any], folder: Path) -> Plan:
    """Return a plan as it was written down."""
    try:
        return Plan(**saved)
    except TypeError as error:
        raise DamagedFolder(
            f"{folder}: a run that another version of Swivel began; remove it to start again"
        ) from error
