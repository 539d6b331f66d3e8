"""A matrix that is read as log(1 + x) in place of every count x."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swivel.counts.matrix import Matrix, MatrixCells

if TYPE_CHECKING:
    import scipy.sparse

_PIECE = 1 << 20  # cells at a time


class LogMatrix(Matrix):
    """A matrix whose counts and sums are those of log(1 + x); the files and the fingerprint are those of x."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__(matrix._folder, matrix.layout, matrix._mapped)

    @property
    def stored(self) -> MatrixCells:
        """All stored cells, with transformed counts."""
        return dataclasses.replace(super().stored, is_log=True)

    @cached_property
    def _sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums of the rows and of the columns; they are not in the files, so that all cells are read."""
        stored = self.stored
        row_sums, column_sums = (np.zeros(size) for size in self.shape)
        for rows, columns, units in stored.walk(_PIECE):
            counts = stored.to_counts(units)
            row_sums += np.bincount(rows, counts, len(row_sums))
            column_sums += np.bincount(columns, counts, len(column_sums))
        return row_sums, column_sums

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        """Row sums, float64."""
        return self._sums[0]

    @cached_property
    def column_sums(self) -> NDArray[np.float64]:
        """Column sums, float64."""
        return self._sums[1]

    @cached_property
    def total(self) -> float:
        """Sum of all transformed counts."""
        return float(self.row_sums.sum())

    def count(self, row: str, column: str) -> float:
        """Return the transformed count of a row feature with a column feature."""
        return float(np.log1p(super().count(row, column)))

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the whole matrix in memory, float64."""
        return super().to_scipy().log1p()

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int = 1) -> Matrix:
        """Return the same matrix in other blocks; see `Matrix.reblocked`."""
        blocked = LogMatrix(super().reblocked(row_blocks, column_blocks, scratch=scratch, threads=threads))
        blocked._sums = self._sums
        return blocked


def transform_counts(matrix: Matrix, transform: str) -> Matrix:
    """Return a matrix as training reads it with the setting `transform`; nothing is written."""
    return LogMatrix(matrix) if transform == "log" else matrix
