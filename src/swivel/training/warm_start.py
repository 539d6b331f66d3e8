"""New words among old ones: where a warm start puts a word that it has counts of and no vector.

Receives a matrix and the old vectors of some of its rows and columns; hands on the same with vectors for the others. It
trains nothing: what it finds is a place to start from.

A new row's loss with the old columns held fixed is nearly quadratic: observed cells are, and unobserved ones stay about
where they are if their products are held near 0 with a small weight u. That is a least-squares problem a row,

    (sum_j (f_j - u) c_j c_j' + u C'C + n decay I) w = sum_j f_j pmi_j c_j          j: the observed old columns

whose matrix needs the observed cells alone. `folding` finds the true minimum and costs some fifty times as much: more
than the epochs that a warm start saves.
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
from swivel.training.initialization import Known, WarmStart
from swivel.training.objective import Objective, column_offsets, observed_targets, row_offsets

Array = NDArray[np.float32]
UNSEEN_WEIGHT = 0.02  # u; .1 and .25 hold new words too short (docs/experiments.md)
LEAST_DECAY = 5e-5  # the recipe default's, also where training has none: keeps the least squares solvable
PIECE_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class _KnownSide:
    """What is known and unknown of the rows, or of the columns."""

    known: Known
    new: NDArray[np.int64]
    offsets: NDArray[np.float64]


def join_words(matrix: Matrix, start: WarmStart, config: TrainConfig, *, threads: int = 1) -> WarmStart:
    """Return a start that has vectors for the new rows and columns, too, from their counts with the old ones.

    Those without a count with an old one are left out, to be drawn.
    """
    objective = Objective.from_config(config)
    rows = _make_side(start.rows, row_offsets(matrix.row_sums, matrix.total, objective))
    columns = _make_side(start.columns, column_offsets(matrix.column_sums, objective))
    new_rows = _place(_gather(matrix, rows, columns), rows, columns, config, threads)
    new_columns = _place(_gather(matrix, columns, rows, transposed=True), columns, rows, config, threads)
    return WarmStart(_extend(start.rows, new_rows), _extend(start.columns, new_columns), start.fingerprint)


def _make_side(known: Known, offsets: NDArray[np.float64]) -> _KnownSide:
    return _KnownSide(known, np.setdiff1d(np.arange(len(offsets)), known.places), offsets)


def _extend(known: Known, more: Known) -> Known:
    places = np.concatenate([known.places, more.places])
    return Known(places, np.concatenate([known.vectors, more.vectors]))


def _gather(matrix: Matrix, new: _KnownSide, old: _KnownSide, *, transposed: bool = False) -> scipy.sparse.csr_array:
    """Return the counts of new ones (in their order) with old ones (in theirs)."""
    at, beside = (np.full(len(side.offsets), -1, np.int64) for side in (new, old))
    at[new.new], beside[old.known.places] = np.arange(len(new.new)), np.arange(len(old.known.places))
    found = []
    for rows, columns, units in walk_cells(matrix.stored, PIECE_CELLS):
        a, b = (columns, rows) if transposed else (rows, columns)
        kept = (at[a] >= 0) & (beside[b] >= 0)
        found.append((at[a[kept]], beside[b[kept]], units[kept] / matrix.unit))
    a, b, counts = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return scipy.sparse.csr_array((counts, (a, b)), shape=(len(new.new), len(old.known.places)))


def _place(
    counts: scipy.sparse.csr_array, new: _KnownSide, old: _KnownSide, config: TrainConfig, threads: int
) -> Known:
    """Return the least-squares vectors of the new ones that have counts."""
    problem = _Problem(counts, new.offsets[new.new], old.offsets[old.known.places], old.known.vectors, config)
    filled = np.flatnonzero(np.diff(counts.indptr))
    # Products as small as these are slower with several threads each than with one: a thread takes a row of its own.
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        vectors = list(pool.map(problem.solve, filled.tolist()))
    return Known(new.new[filled], np.array(vectors, np.float32).reshape(len(filled), config.dim))


class _Problem:
    """The least squares of all new ones; `solve` may be called by several threads."""

    def __init__(
        self,
        counts: scipy.sparse.csr_array,
        offsets: NDArray[np.float64],
        old_offsets: NDArray[np.float64],
        vectors: Array,
        config: TrainConfig,
    ) -> None:
        self._counts, self._offsets, self._old_offsets = counts, offsets, old_offsets
        self._objective = Objective.from_config(config)
        self._C = torch.from_numpy(vectors.astype(np.float64))
        ridge = max(config.weight_decay, LEAST_DECAY) * len(vectors)
        self._shared = UNSEEN_WEIGHT * self._C.T @ self._C + ridge * torch.eye(config.dim, dtype=torch.float64)

    def solve(self, row: int) -> Array:
        """Return the vector of a row of the counts."""
        cells = slice(self._counts.indptr[row], self._counts.indptr[row + 1])
        x, ids = self._counts.data[cells], self._counts.indices[cells].astype(np.int64)
        targets = observed_targets(x, self._offsets[row] + self._old_offsets[ids])
        confidences = self._objective.confidence(x)
        weights = torch.from_numpy(np.maximum(confidences - UNSEEN_WEIGHT, 0))
        seen = self._C[torch.from_numpy(ids)]
        wanted = seen.T @ torch.from_numpy(confidences * targets)
        factor = torch.linalg.cholesky(torch.addmm(self._shared, seen.T * weights, seen))
        return np.asarray(torch.cholesky_solve(wanted[:, None], factor)[:, 0].numpy(), np.float32)
