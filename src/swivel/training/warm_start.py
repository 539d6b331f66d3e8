"""Initial vectors of the new words of a warm start, from their counts with old words.

With the old columns fixed, the loss of a new row is nearly quadratic. The loss of an observed cell is quadratic, and
that of an unobserved cell is replaced by u/2 (w . c)^2, with a small weight u that keeps the product near 0. This gives
one least-squares problem per row::

    (sum_j (f_j - u) c_j c_j' + u C'C + n decay I) w = sum_j f_j pmi_j c_j          j: the observed old columns

C'C is the same for all rows, so that a row needs only its observed cells. `fold_in` finds the minimum (above 8,192
columns, a close estimate), but takes longer: several matrix products per row, where this takes one linear system.
"""

from __future__ import annotations

from dataclasses import replace

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


def add_new_words(matrix: Matrix, start: WarmStart, config: TrainConfig, *, threads: int = 1) -> WarmStart:
    """Return a warm start that also has vectors for new rows and columns, from their counts with old ones.

    Rows and columns that have no counts with old ones are omitted; training starts them from random vectors.
    """
    of_rows = row_offsets(matrix.row_sums, matrix.total, Objective.from_config(config))
    offsets = of_rows, column_offsets(matrix.column_sums)
    sums = matrix.row_sums, matrix.column_sums

    ids: list[NDArray[np.int64]] = []
    vectors: list[NDArray[np.float32]] = []
    for side in (0, 1):
        new = np.setdiff1d(np.arange(len(sums[side])), start.ids[side])
        old = start.ids[1 - side]
        new_places = _find_places(new, len(sums[side]))
        old_places = _find_places(old, len(sums[1 - side]))
        if side == 0:
            counts = matrix.select(new_places, old_places, (len(new), len(old)))
        else:
            counts = matrix.select(old_places, new_places, (len(old), len(new))).T.tocsr()
        decays = np.maximum(find_decays(sums[side][new], config), MIN_WEIGHT_DECAY)

        parts = offsets[side][new], offsets[1 - side][old]
        rows, solved = _solve(counts, start.vectors[1 - side], parts, decays, config, threads)
        ids.append(np.concatenate([start.ids[side], new[rows]]))
        vectors.append(np.concatenate([start.vectors[side], solved]))
    return replace(start, ids=(ids[0], ids[1]), vectors=(vectors[0], vectors[1]))


def _find_places(ids: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the position in `ids` of each number below `size`, or -1."""
    places = np.full(size, -1, np.int64)
    places[ids] = np.arange(len(ids))
    return places


def _solve(
    counts: scipy.sparse.csr_array,
    old_vectors: NDArray[np.float32],
    offsets: tuple[NDArray[np.float64], NDArray[np.float64]],
    decays: NDArray[np.float64],
    config: TrainConfig,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows that have counts, and their least-squares vectors; offsets: of the rows and of the columns."""
    objective = Objective.from_config(config)
    C = torch.from_numpy(old_vectors.astype(np.float64))
    shared = UNSEEN_WEIGHT * C.T @ C  # the part of the matrix that is the same for all rows
    ridges = decays * len(C)

    def solve(row: int) -> NDArray[np.float32]:
        """Return the vector of one row of the counts. Threads share only arrays that do not change."""
        cells = slice(counts.indptr[row], counts.indptr[row + 1])
        x = counts.data[cells]
        ids = counts.indices[cells].astype(np.int64)
        targets = observed_targets(x, offsets[0][row] + offsets[1][ids])
        confidences = objective.confidence(x)

        # Left and right side of the equation in the module's docstring.
        weights = torch.from_numpy(np.maximum(confidences - UNSEEN_WEIGHT, 0))
        columns = C[torch.from_numpy(ids)]
        left_side = torch.addmm(shared, columns.T * weights, columns)
        left_side.diagonal().add_(float(ridges[row]))
        right_side = columns.T @ torch.from_numpy(confidences * targets)

        solution = torch.cholesky_solve(right_side[:, None], torch.linalg.cholesky(left_side))
        return np.asarray(solution[:, 0].numpy(), np.float32)

    # Matrix products of this size are slower with several threads, so that each row uses one.
    rows = np.flatnonzero(np.diff(counts.indptr))
    with open_torch_pool(threads) as pool:
        vectors = np.array(list(pool.map(solve, rows.tolist())), np.float32).reshape(-1, config.dim)
    return rows, vectors
