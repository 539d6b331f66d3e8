"""Initial vectors of the new words of a warm start, from their counts with old words.

With the old columns fixed, the loss of a new row is nearly quadratic. The loss of an observed cell is quadratic, and
that of an unobserved cell is replaced by u/2 (w . c)^2, with a small weight u that keeps the product near 0. This gives
one least-squares problem per row::

    (sum_j (f_j - u) c_j c_j' + u C'C + n decay I) w = sum_j f_j pmi_j c_j          j: the observed old columns

C'C is the same for all rows, so that a row needs only its observed cells. `fold_in` finds the minimum (above 8,192
columns, a close estimate), but takes longer: several matrix products per row, where this takes one linear system.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.runtime.parallel import open_torch_pool
from swivel.training.fold_in import MIN_WEIGHT_DECAY
from swivel.training.initialization import WarmStart
from swivel.training.objective import Objective, column_offsets, find_decays, observed_targets, row_offsets

UNSEEN_WEIGHT = 0.02  # u; with .1 and .25 the vectors of new words are too short (experiments/notes.md)
CELLS_PER_PIECE = 1 << 22  # cells of the matrix that are read at a time


@dataclass(frozen=True, slots=True)
class _KnownSide:
    """Known and new rows, or columns, of a matrix."""

    ids: NDArray[np.int64]  # of those with a known vector
    vectors: NDArray[np.float32]
    offsets: NDArray[np.float64]  # of all rows or columns
    sums: NDArray[np.float64]

    @property
    def new(self) -> NDArray[np.int64]:
        """Row or column numbers without a known vector."""
        return np.setdiff1d(np.arange(len(self.offsets)), self.ids)

    def index(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, for all rows or columns, the index in `places`, or -1."""
        index = np.full(len(self.offsets), -1, np.int64)
        index[places] = np.arange(len(places))
        return index


def add_new_words(matrix: Matrix, start: WarmStart, config: TrainConfig, *, threads: int = 1) -> WarmStart:
    """Return a warm start that also has vectors for new rows and columns, from their counts with old ones.

    Rows and columns that have no counts with old ones are omitted; training starts them from random vectors.
    """
    objective = Objective.from_config(config)
    offsets = row_offsets(matrix.row_sums, matrix.total, objective), column_offsets(matrix.column_sums)
    rows = _KnownSide(start.ids[0], start.vectors[0], offsets[0], matrix.row_sums)
    columns = _KnownSide(start.ids[1], start.vectors[1], offsets[1], matrix.column_sums)

    row_ids, row_vectors = _solve(_gather_counts(matrix, rows, columns), rows, columns, config, threads)
    counts = _gather_counts(matrix, columns, rows, transposed=True)
    column_ids, column_vectors = _solve(counts, columns, rows, config, threads)
    return WarmStart((row_ids, column_ids), (row_vectors, column_vectors), start.fingerprint)


def _gather_counts(
    matrix: Matrix, new: _KnownSide, old: _KnownSide, *, transposed: bool = False
) -> scipy.sparse.csr_array:
    """Return counts of shape (new, known): those of the new rows with the known columns, or transposed."""
    new_index = new.index(new.new)
    old_index = old.index(old.ids)

    pieces = []
    stored = matrix.stored
    for rows, columns, units in stored.walk(CELLS_PER_PIECE):
        a, b = (columns, rows) if transposed else (rows, columns)
        kept = (new_index[a] >= 0) & (old_index[b] >= 0)
        pieces.append((new_index[a[kept]], old_index[b[kept]], stored.to_counts(units[kept])))

    a, b, counts = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return scipy.sparse.csr_array((counts, (a, b)), shape=(len(new.new), len(old.ids)))


def _solve(
    counts: scipy.sparse.csr_array, new: _KnownSide, old: _KnownSide, config: TrainConfig, threads: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return ids and vectors: the known ones, and least-squares vectors of the new rows that have counts."""
    objective = Objective.from_config(config)
    places = new.new
    old_offsets = old.offsets[old.ids]
    C = torch.from_numpy(old.vectors.astype(np.float64))

    shared = UNSEEN_WEIGHT * C.T @ C  # the part of the matrix that is the same for all rows
    ridges = np.maximum(find_decays(new.sums[places], config), MIN_WEIGHT_DECAY) * len(C)

    def solve(row: int) -> NDArray[np.float32]:
        """Return the vector of one row of the counts. Threads share only arrays that do not change."""
        cells = slice(counts.indptr[row], counts.indptr[row + 1])
        x = counts.data[cells]
        ids = counts.indices[cells].astype(np.int64)
        targets = observed_targets(x, new.offsets[places[row]] + old_offsets[ids])
        confidences = objective.confidence(x)

        # Left and right side of the equation in the module's docstring.
        weights = torch.from_numpy(np.maximum(confidences - UNSEEN_WEIGHT, 0))
        seen = C[torch.from_numpy(ids)]
        left = torch.addmm(shared, seen.T * weights, seen)
        left.diagonal().add_(float(ridges[row]))
        right = seen.T @ torch.from_numpy(confidences * targets)

        solution = torch.cholesky_solve(right[:, None], torch.linalg.cholesky(left))
        return np.asarray(solution[:, 0].numpy(), np.float32)

    # Matrix products of this size are slower with several threads, so that each row uses one.
    filled = np.flatnonzero(np.diff(counts.indptr))
    with open_torch_pool(threads) as pool:
        vectors = np.array(list(pool.map(solve, filled.tolist())), np.float32).reshape(-1, config.dim)

    return np.concatenate([new.ids, places[filled]]), np.concatenate([new.vectors, vectors])
