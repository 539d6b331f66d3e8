"""Initial vectors of the new words of a warm start, from their counts with old words.

With the old columns fixed, the loss of a new row is nearly quadratic. The loss of an observed cell is quadratic, and
that of an unobserved cell is replaced by u/2 (w . c)^2, with a small weight u that keeps the product near 0. This gives
one least-squares problem per row::

    (sum_j (f_j - u) c_j c_j' + u C'C + n decay I) w = sum_j f_j pmi_j c_j          j: the observed old columns

C'C is the same for all rows, so that a row needs only its observed cells. `fold_in` finds the true minimum, but takes
about fifty times as long: more than the epochs that a warm start saves.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.counts.add import walk_cells
from swivel.training.fold_in import MIN_WEIGHT_DECAY
from swivel.training.initialization import Known, WarmStart
from swivel.training.objective import Objective, column_offsets, observed_targets, row_offsets

Array = NDArray[np.float32]
UNSEEN_WEIGHT = 0.02  # u; with .1 and .25 the vectors of new words are too short (docs/experiments.md)
CELLS_PER_PIECE = 1 << 22  # cells of the matrix that are read at a time


@dataclass(frozen=True, slots=True)
class _KnownSide:
    """Known and new rows, or columns, of a matrix."""

    known: Known
    new: NDArray[np.int64]  # row or column numbers without a known vector
    offsets: NDArray[np.float64]  # of all rows or columns


def add_new_words(matrix: Matrix, start: WarmStart, config: TrainConfig, *, threads: int = 1) -> WarmStart:
    """Return a warm start that also has vectors for new rows and columns, from their counts with old ones.

    Rows and columns that have no counts with old ones are omitted; training starts them from random vectors.
    """
    objective = Objective.from_config(config)
    rows = _make_side(start.rows, row_offsets(matrix.row_sums, matrix.total, objective))
    columns = _make_side(start.columns, column_offsets(matrix.column_sums, objective))

    new_rows = _solve(_gather_counts(matrix, rows, columns), rows, columns, config, threads)
    new_columns = _solve(_gather_counts(matrix, columns, rows, transposed=True), columns, rows, config, threads)
    return WarmStart(_extend(start.rows, new_rows), _extend(start.columns, new_columns), start.fingerprint)


def _make_side(known: Known, offsets: NDArray[np.float64]) -> _KnownSide:
    return _KnownSide(known, np.setdiff1d(np.arange(len(offsets)), known.places), offsets)


def _extend(known: Known, more: Known) -> Known:
    places = np.concatenate([known.places, more.places])
    return Known(places, np.concatenate([known.vectors, more.vectors]))


def _gather_counts(
    matrix: Matrix, new: _KnownSide, old: _KnownSide, *, transposed: bool = False
) -> scipy.sparse.csr_array:
    """Return counts of shape (new, known): those of the new rows with the known columns, or transposed."""
    # Index in the result of every row and column of the matrix, -1 for those that are not in it.
    new_index = np.full(len(new.offsets), -1, np.int64)
    new_index[new.new] = np.arange(len(new.new))
    old_index = np.full(len(old.offsets), -1, np.int64)
    old_index[old.known.places] = np.arange(len(old.known.places))

    pieces = []
    for rows, columns, units in walk_cells(matrix.stored, CELLS_PER_PIECE):
        a, b = (columns, rows) if transposed else (rows, columns)
        kept = (new_index[a] >= 0) & (old_index[b] >= 0)
        pieces.append((new_index[a[kept]], old_index[b[kept]], units[kept] / matrix.unit))

    a, b, counts = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return scipy.sparse.csr_array((counts, (a, b)), shape=(len(new.new), len(old.known.places)))


def _solve(
    counts: scipy.sparse.csr_array, new: _KnownSide, old: _KnownSide, config: TrainConfig, threads: int
) -> Known:
    """Return the least-squares vectors of the new rows that have counts."""
    problem = _Problem(counts, new.offsets[new.new], old.offsets[old.known.places], old.known.vectors, config)
    filled = np.flatnonzero(np.diff(counts.indptr))

    # Matrix products of this size are slower with several threads, so that each row uses one.
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        vectors = list(pool.map(problem.solve, filled.tolist()))
    return Known(new.new[filled], np.array(vectors, np.float32).reshape(len(filled), config.dim))


class _Problem:
    """The least-squares problems of all new rows. Several threads may call `solve`."""

    def __init__(
        self,
        counts: scipy.sparse.csr_array,
        offsets: NDArray[np.float64],
        old_offsets: NDArray[np.float64],
        vectors: Array,
        config: TrainConfig,
    ) -> None:
        self._counts = counts
        self._offsets = offsets
        self._old_offsets = old_offsets
        self._objective = Objective.from_config(config)
        self._C = torch.from_numpy(vectors.astype(np.float64))

        # The part of the matrix that all rows share: u C'C + n decay I.
        ridge = max(config.weight_decay, MIN_WEIGHT_DECAY) * len(vectors)
        self._shared = UNSEEN_WEIGHT * self._C.T @ self._C + ridge * torch.eye(config.dim, dtype=torch.float64)

    def solve(self, row: int) -> Array:
        """Return the vector of one row of the counts."""
        cells = slice(self._counts.indptr[row], self._counts.indptr[row + 1])
        x = self._counts.data[cells]
        ids = self._counts.indices[cells].astype(np.int64)
        targets = observed_targets(x, self._offsets[row] + self._old_offsets[ids])
        confidences = self._objective.confidence(x)

        # Left and right side of the equation in the module's docstring.
        weights = torch.from_numpy(np.maximum(confidences - UNSEEN_WEIGHT, 0))
        seen = self._C[torch.from_numpy(ids)]
        left = torch.addmm(self._shared, seen.T * weights, seen)
        right = seen.T @ torch.from_numpy(confidences * targets)

        solution = torch.cholesky_solve(right[:, None], torch.linalg.cholesky(left))
        return np.asarray(solution[:, 0].numpy(), np.float32)
