"""A matrix with log(1 + x) in place of every count x."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swivel.counts.builder import MatrixBuilder, MatrixSpec, to_units
from swivel.counts.matrix import Matrix

_UNIT = 1 << 20  # of the transformed counts: rounding errors are below 1e-6
_PIECE = 1 << 20  # cells at a time


def write_log_counts(matrix: Matrix, path: Path, *, memory_bytes: int, threads: int) -> Matrix:
    """Write a matrix whose counts are log(1 + x) to the folder `path` and return it; the labels stay the same."""
    spec = MatrixSpec(
        rows=matrix.rows,
        columns=matrix.columns if matrix.columns_per_row == 0 or matrix.column_parts else None,
        unit=_UNIT,
        symmetric=matrix.is_symmetric,
        column_parts=matrix.column_parts,
    )
    with MatrixBuilder(path, spec, memory_bytes=memory_bytes, threads=threads) as builder:
        for rows, columns, units in matrix.stored.walk(_PIECE):
            builder.add(rows, columns, to_units(np.log1p(units / matrix.unit), _UNIT))
        return builder.finish(config=matrix.config)
