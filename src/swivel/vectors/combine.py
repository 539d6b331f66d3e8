"""How trained rows and columns become the vectors that users get.

Receives both sides as arrays, hands on one array. It knows no tokens and no files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swivel.config import VectorsConfig
from swivel.errors import ConfigError
from swivel.vectors.search import Floats, scale_to_unit

# An SVD over the commonest rows keeps the figures of one over all rows, and rare rows are the noisier ones.
SVD_ROWS = 30_000
_CHUNK_ROWS = 8_192
_WEAKEST = 1e-6  # of the strongest singular value: below it is rounding, which no power may blow up
_LEAST_EIGENVALUE = 1e-10  # of the largest: below it a Gram matrix is rounding


def combine_vectors(
    rows: Floats, columns: Floats | None, columns_per_row: int, config: VectorsConfig, *, axes: Floats | None = None
) -> Floats:
    """Return one vector a row.

    Parameters
    ----------
    rows
        (m, d), by falling frequency.
    columns
        (m * columns_per_row, d); column `row * columns_per_row + part` belongs to the row.
    columns_per_row
        How many columns a row has; 0 where rows and columns are different things.
    config
        Whether to take the rows alone, the sum, or the parts side by side.
    axes
        With parts: what they are multiplied by, from `recover_axes`, for rows that join others; by default the main
        axes of these rows.

    >>> rows, columns = np.eye(2, dtype=np.float32), np.ones((4, 2), np.float32)
    >>> combine_vectors(rows, columns, 2, VectorsConfig(combine="sum")).tolist()
    [[3.0, 2.0], [2.0, 3.0]]
    """
    rows = np.asarray(rows, np.float32)
    if config.combine == "rows":
        return rows
    parts = _split_parts(rows, columns, columns_per_row, config.combine)
    if config.combine == "sum":
        return np.asarray(rows + parts.sum(axis=1))
    return _project(rows, parts, _find_axes(rows, parts, config) if axes is None else axes, config)


def recover_axes(rows: Floats, columns: Floats, vectors: Floats, config: VectorsConfig) -> Floats:
    """Return the axes by which parts were cut to `vectors`, (width, dim): what `combine_vectors` takes for others.

    They are the least squares' answer, and the shortest one. The axes lie in what the parts of the commonest rows
    span, so that it is they, whatever the number of rows, up to the rounding of the vectors.
    """
    parts = _split_parts(rows, columns, len(columns) // max(len(rows), 1), config.combine)
    gram, right = _gram(rows, parts, config, vectors)
    axes = np.linalg.lstsq(gram, right, rcond=_LEAST_EIGENVALUE)[0]
    return np.asarray(axes, np.float32)


def _split_parts(rows: Floats, columns: Floats | None, columns_per_row: int, combine: str) -> Floats:
    """Return the columns as (row, part, dimension)."""
    if columns is None or columns_per_row == 0:
        raise ConfigError(
            f"combine={combine} needs columns that belong to the rows; these rows and columns are different "
            "things: take combine=rows"
        )
    if len(columns) != len(rows) * columns_per_row:
        raise ConfigError(
            f"{len(rows):,} rows with {columns_per_row} columns each need {len(rows) * columns_per_row:,} columns, "
            f"got {len(columns):,}"
        )
    return np.asarray(columns, np.float32).reshape(len(rows), columns_per_row, columns.shape[1])


def _gram(
    rows: Floats, parts: Floats, config: VectorsConfig, vectors: Floats
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return X'X and X'V, where X is the commonest rows' parts side by side and V their vectors."""
    common = min(SVD_ROWS, len(rows))
    width = rows.shape[1] * (1 + parts.shape[1] + (config.sum_weight > 0))
    gram, right = np.zeros((width, width)), np.zeros((width, vectors.shape[1]))
    for start in range(0, common, _CHUNK_ROWS):
        piece = slice(start, min(start + _CHUNK_ROWS, common))
        chunk = _lay_side_by_side(rows[piece], parts[piece], config).astype(np.float64)
        gram += chunk.T @ chunk
        right += chunk.T @ vectors[piece]
    return gram, right


def _find_axes(rows: Floats, parts: Floats, config: VectorsConfig) -> Floats:
    """Return the main axes of rows, parts and their sum side by side, as many as the rows have dimensions."""
    gram, _ = _gram(rows, parts, config, np.empty((len(rows), 0), np.float32))
    return find_main_axes(gram, rows.shape[1], power=config.spectrum).astype(np.float32)


def _project(rows: Floats, parts: Floats, axes: Floats, config: VectorsConfig) -> Floats:
    """Return rows, parts and their sum side by side, each of length 1, cut back to the rows' dimensions."""
    result = np.empty(rows.shape, np.float32)
    for start in range(0, len(rows), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        np.matmul(_lay_side_by_side(rows[piece], parts[piece], config), axes, out=result[piece])
    return result


def _lay_side_by_side(rows: Floats, parts: Floats, config: VectorsConfig) -> Floats:
    columns = scale_to_unit(parts.reshape(-1, parts.shape[2])) * np.float32(config.column_weight)
    pieces = [scale_to_unit(rows), columns.reshape(len(rows), -1)]
    if config.sum_weight > 0:
        pieces.append(scale_to_unit(rows + parts.sum(axis=1)) * np.float32(config.sum_weight))
    return np.concatenate(pieces, axis=1)


def find_main_axes(gram: NDArray[np.float64], count: int, *, power: float = 1.0) -> NDArray[np.float64]:
    """Return the right singular vectors of X as columns, the strongest first, from the Gram matrix X'X.

    X times them has the singular values s as its columns' lengths; each is scaled so that they become s^power (times
    a constant). A singular vector's sign is free; here its largest component is positive, so that equal input gives
    equal axes.
    """
    values, axes = np.linalg.eigh(gram)  # by rising eigenvalue
    strengths = np.sqrt(np.maximum(values[::-1][:count], 0.0))
    axes = axes[:, ::-1][:, :count]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None, :], axis=0)
    signs = np.where(largest < 0, -1.0, 1.0)
    relative = strengths / (strengths[0] or 1.0)
    scales = np.where(relative > _WEAKEST, np.maximum(relative, _WEAKEST) ** (power - 1), 0.0)
    return np.asarray(axes * signs * scales)
