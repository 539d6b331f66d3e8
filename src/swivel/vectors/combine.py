"""Functions that combine trained row and column vectors into one vector per row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swivel.config import VectorsConfig
from swivel.errors import ConfigError
from swivel.vectors.search import Floats

if TYPE_CHECKING:
    import torch

# The SVD uses the most frequent rows only: evaluation results are the same as with all rows, and rare rows are noisy.
SVD_ROWS = 30_000
_CHUNK_ROWS = 4_096
_EPSILON = 1e-300  # below all lengths: only vectors of zeros have no length 1, and stay zero
_MIN_SINGULAR_RATIO = 1e-6  # of the largest singular value; smaller ones are noise, which a power would amplify
_MIN_EIGENVALUE_RATIO = 1e-10  # of the largest eigenvalue of a Gram matrix; smaller ones are rounding noise


def combine_vectors(
    rows: Floats,
    columns: Floats | None,
    columns_per_row: int,
    config: VectorsConfig,
    *,
    axes: Floats | None = None,
    device: str = "cpu",
) -> Floats:
    """Return one vector per row, of shape (m, dim) and float32.

    `rows` has shape (m, d), most frequent row first. `columns` has shape (m * columns_per_row, d): column
    `row * columns_per_row + part` belongs to the row; 0 columns per row mean that columns are different things.
    `config` selects the rows, the sum of row and columns, or a projection of all parts side by side, by default onto
    the principal axes of these rows. For rows that are added to a model, `axes` is the projection from `recover_axes`.
    Axes and projection are computed on `device` if it is a CUDA device that this process has, with enough memory.

    >>> rows, columns = np.eye(2, dtype=np.float32), np.ones((4, 2), np.float32)
    >>> combine_vectors(rows, columns, 2, VectorsConfig(combine="sum")).tolist()
    [[3.0, 2.0], [2.0, 3.0]]
    """
    rows = np.asarray(rows, np.float32)
    if config.combine == "rows":
        return rows

    parts = _split_parts(rows, columns, columns_per_row, config.combine)
    if config.combine == "sum":
        result: Floats = parts[:, 0].copy()
        for part in range(1, columns_per_row):
            result += parts[:, part]
        result += rows
        return result

    if has_cuda(device):
        import torch

        with contextlib.suppress(torch.OutOfMemoryError):  # The CPU does the same.
            return _project(rows, parts, axes, config, device)
    return _project(rows, parts, axes, config, "cpu")


def recover_axes(rows: Floats, columns: Floats, vectors: Floats, config: VectorsConfig) -> Floats:
    """Return the projection matrix (width, dim) by which `combine_vectors` computed `vectors` from rows and columns."""
    parts = _split_parts(rows, columns, len(columns) // max(len(rows), 1), config.combine)
    gram, right = _gram(rows, parts, vectors, config, "cpu")

    # Normal equations X'X A = X'V of the least-squares problem X A = V. The original axes lie in the span of the parts
    # of the most frequent rows, so the solution of smallest norm equals them up to rounding.
    axes = np.linalg.lstsq(gram, right, rcond=_MIN_EIGENVALUE_RATIO)[0]
    return np.asarray(axes, np.float32)


def _split_parts(rows: Floats, columns: Floats | None, columns_per_row: int, combine: str) -> Floats:
    """Return the columns as an array (row, part, dimension)."""
    if columns is None or columns_per_row == 0:
        raise ConfigError(
            f"combine={combine!r} needs columns that belong to the rows, but these rows and columns are different "
            "things: use combine='rows'"
        )

    return np.asarray(columns, np.float32).reshape(len(rows), columns_per_row, columns.shape[1])


def _gram(
    rows: Floats, parts: Floats, vectors: Floats, config: VectorsConfig, device: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return X'X and X'V, where X holds the parts of the most frequent rows side by side and V their vectors."""
    import torch

    width = rows.shape[1] * (1 + parts.shape[1] + (config.sum_weight > 0))
    # In float64: the eigenvalues of X'X are squares, and float32 would lose the small half of them.
    gram = torch.zeros((width, width), dtype=torch.float64, device=device)
    right = gram.new_zeros((width, vectors.shape[1]))
    for piece, chunk in _concatenate_parts(rows[:SVD_ROWS], parts[:SVD_ROWS], config, device):
        gram.addmm_(chunk.T, chunk)
        right.addmm_(chunk.T, torch.from_numpy(np.array(vectors[piece])).to(chunk))
    return gram.cpu().numpy(), right.cpu().numpy()


def _project(rows: Floats, parts: Floats, axes: Floats | None, config: VectorsConfig, device: str) -> Floats:
    """Return all parts of each row side by side, projected onto `axes`, by default the principal ones."""
    import torch

    if axes is None:
        gram, _ = _gram(rows, parts, np.empty((len(rows), 0), np.float32), config, device)
        axes = find_main_axes(gram, rows.shape[1], power=config.spectrum).astype(np.float32)

    projection = torch.from_numpy(axes).to(device)
    result = np.empty(rows.shape, np.float32)
    for piece, chunk in _concatenate_parts(rows, parts, config, device):
        result[piece] = (chunk.float() @ projection).cpu().numpy()
    return result


def _concatenate_parts(
    rows: Floats, parts: Floats, config: VectorsConfig, device: str
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield [w, column_weight c_1, ..., column_weight c_p, sum_weight (w + c_1 + ... + c_p)] of unit vectors, float64.

    They are those of some rows at a time, on the device.
    """
    import torch
    from torch.nn.functional import normalize

    for start in range(0, len(rows), _CHUNK_ROWS):
        piece = slice(start, min(start + _CHUNK_ROWS, len(rows)))
        w, c = (torch.from_numpy(np.array(values[piece])).to(device).double() for values in (rows, parts))
        pieces = [normalize(w, eps=_EPSILON), config.column_weight * normalize(c, dim=2, eps=_EPSILON).flatten(1)]
        if config.sum_weight > 0:
            pieces.append(config.sum_weight * normalize(w + c.sum(1), eps=_EPSILON))
        yield piece, torch.cat(pieces, dim=1)


def has_cuda(device: str) -> bool:
    """Return whether a device is a CUDA device and available here; on Ray, only the workers may have one."""
    if not device.startswith("cuda"):
        return False
    import torch

    return torch.cuda.is_available()


def find_main_axes(gram: NDArray[np.float64], count: int, *, power: float = 1.0) -> NDArray[np.float64]:
    """Return the right singular vectors of X as columns, largest singular value first, from the Gram matrix X'X."""
    # The columns of X times these axes have the norms s^power, up to a constant, for the singular values s.
    # X'X = V S^2 V': its eigenvectors are the right singular vectors, its eigenvalues the squares of s.
    values, axes = np.linalg.eigh(gram)  # ascending eigenvalues
    singular_values = np.sqrt(np.maximum(values[::-1][:count], 0.0))
    axes = axes[:, ::-1][:, :count]

    # The sign of a singular vector is arbitrary: its largest component is made positive, so that equal input gives
    # equal axes.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None, :], axis=0)
    signs = np.where(largest < 0, -1.0, 1.0)

    # X v has norm s. Scaled by (s / s_max)^(power - 1), it has norm s^power up to a constant.
    relative = singular_values / (singular_values[0] or 1.0)
    scales = np.where(relative > _MIN_SINGULAR_RATIO, np.maximum(relative, _MIN_SINGULAR_RATIO) ** (power - 1), 0.0)

    return np.asarray(axes * signs * scales)
