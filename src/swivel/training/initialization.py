"""Initial parameters of a training run: small random vectors, or vectors that were trained before (a warm start).

A warm start keeps old words near their old vectors and adds new ones. An old word starts from its old row and column
vectors, with Adagrad accumulators of `WARM_ACCUMULATOR`, so that the first steps are small. So does a new word that has
counts with old words; other new words start from random vectors. Measurements are in experiments/notes.md.

With the old columns fixed, the loss of a new row is nearly quadratic. The loss of an observed cell is quadratic, and
that of an unobserved cell is replaced by u/2 (w . c)^2, with a small weight u that keeps the product near 0. This gives
one least-squares problem per row::

    (sum_j (f_j - u) c_j c_j' + u C'C + n decay I) w = sum_j f_j pmi_j c_j          j: the observed old columns

C'C is the same for all rows, so that a row needs only its observed cells. `fold_in` finds the minimum (above 8,192
columns, a close estimate), but takes longer: several matrix products per row, where this takes one linear system.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.errors import ConfigError
from swivel.runtime.parallel import open_torch_pool, run_in_chunks
from swivel.training.fold_in import MIN_WEIGHT_DECAY
from swivel.training.objective import column_offsets, confidence, find_decays, observed_targets, row_offsets
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.vector_table import fingerprint_vectors

Array = NDArray[np.float32]
Ids = NDArray[np.int64]
SIDES = "rows", "columns"  # names of the arrays of parameters
ROWS_PER_DRAW = 4096  # random vectors with one seed; changing it changes the initial vectors
# A run of default length ends with accumulators of about 1e-2. With that value old words hardly move (cosine .99), and
# a third of the epochs does not reach the loss of training from scratch. With 1e-6, the value for new words, it does,
# and old words keep a cosine of .91. This value is in between (8,000 words, 30 % more text; benchmarks/more_data.py).
WARM_ACCUMULATOR = 1e-4
UNSEEN_WEIGHT = 0.02  # u; with .1 and .25 the vectors of new words are too short (experiments/notes.md)


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Vectors that a warm start uses as initial values of some rows and columns."""

    ids: tuple[Ids, Ids]  # row numbers and column numbers in the matrix
    vectors: tuple[Array, Array]  # one vector for each row, and for each column
    fingerprint: str  # of all old vectors, including those that the matrix does not contain
    source: Vectors  # all old vectors


def find_start(matrix: Matrix, vectors: Vectors, config: TrainConfig) -> WarmStart:
    """Return the vectors of an earlier training for the rows and columns of a matrix, matched by label.

    Raises
    ------
    ConfigError
        The vectors have no columns, other columns than the matrix, another `dim`, or no label in common with it.
    """
    rows = vectors.row_table
    columns = vectors.column_table
    if columns is None:
        raise ConfigError("init has no column vectors; pass a folder written by `swivel train`", argument="init")
    if vectors.columns_per_row != matrix.columns_per_row:
        raise ConfigError(
            f"init has {_describe(vectors.columns_per_row)}, the matrix has {_describe(matrix.columns_per_row)}: "
            "count with the same columns as for init, or train without init",
            argument="init",
        )
    if rows.values.shape[1] != config.dim:
        raise ConfigError(
            f"dim must be {rows.values.shape[1]} like init, got {config.dim}; omit dim, or train without init",
            argument=("dim", "init"),
        )

    row_ids, row_vectors = _find_labels(matrix.rows, rows)
    column_ids, column_vectors = _find_labels(matrix.columns, columns)
    if not len(row_ids) or not len(column_ids):
        raise ConfigError(
            f"init has no words in common with the matrix: its first word is {rows.vocabulary[0]!r}, that of the "
            f"matrix is {matrix.rows[0]!r}",
            argument="init",
        )
    fingerprint = fingerprint_vectors(rows, columns)
    return WarmStart((row_ids, column_ids), (row_vectors, column_vectors), fingerprint, vectors)


def _describe(columns_per_row: int) -> str:
    if not columns_per_row:
        return "columns with separate labels"
    return f"{columns_per_row} column{'s' * (columns_per_row > 1)} per row"


def _find_labels(vocabulary: Vocabulary, side: VectorTable) -> tuple[Ids, Array]:
    """Return the ids of tokens that have a vector, and their vectors. Zero vectors are left out: they had no counts."""
    is_nonzero = np.count_nonzero(side.values, axis=1)
    matches = []
    for number, token in enumerate(side.vocabulary):
        if token in vocabulary and is_nonzero[number]:
            matches.append((vocabulary.ids[token], number))

    ids, numbers = np.array(matches, np.int64).reshape(-1, 2).T
    vectors = np.asarray(side.values[numbers], np.float32)
    is_finite = np.isfinite(vectors).all(axis=1)
    if not is_finite.all():
        raise ConfigError(
            f"init: the vector of {vocabulary[int(ids[np.argmin(is_finite)])]!r} is not finite", argument="init"
        )
    return ids, vectors


def add_new_words(matrix: Matrix, start: WarmStart, config: TrainConfig, *, threads: int = 1) -> WarmStart:
    """Return a warm start that also has vectors for new rows and columns, from their counts with old ones.

    Rows and columns that have no counts with old ones are omitted; training starts them from random vectors.
    """
    of_rows = row_offsets(matrix.row_sums, matrix.total, config)
    offsets = of_rows, column_offsets(matrix.column_sums)
    sums = matrix.row_sums, matrix.column_sums

    ids: list[NDArray[np.int64]] = []
    vectors: list[NDArray[np.float32]] = []
    for side in (0, 1):
        new = np.setdiff1d(np.arange(len(sums[side])), start.ids[side])
        old = start.ids[1 - side]
        counts = matrix.select(new, old) if side == 0 else matrix.select(old, new).T.tocsr()
        decays = np.maximum(find_decays(sums[side][new], config), MIN_WEIGHT_DECAY)

        parts = offsets[side][new], offsets[1 - side][old]
        rows, solved = _solve(counts, start.vectors[1 - side], parts, decays, config, threads)
        ids.append(np.concatenate([start.ids[side], new[rows]]))
        vectors.append(np.concatenate([start.vectors[side], solved]))
    return replace(start, ids=(ids[0], ids[1]), vectors=(vectors[0], vectors[1]))


def _solve(
    counts: scipy.sparse.csr_array,
    old_vectors: NDArray[np.float32],
    offsets: tuple[NDArray[np.float64], NDArray[np.float64]],
    decays: NDArray[np.float64],
    config: TrainConfig,
    threads: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows that have counts, and their least-squares vectors; offsets: of the rows and of the columns."""
    C = torch.from_numpy(old_vectors.astype(np.float64))
    shared = UNSEEN_WEIGHT * C.T @ C  # the part of the matrix that is the same for all rows
    ridges = decays * len(C)

    def solve(row: int) -> NDArray[np.float32]:
        """Return the vector of one row of the counts. Threads share only arrays that do not change."""
        cells = slice(counts.indptr[row], counts.indptr[row + 1])
        x = counts.data[cells]
        ids = counts.indices[cells].astype(np.int64)
        targets = observed_targets(x, offsets[0][row] + offsets[1][ids])
        confidences = confidence(x, config)

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


def make_arrays(
    sums: Sequence[NDArray[np.float64]],
    orders: Sequence[Ids],
    config: TrainConfig,
    *,
    start: WarmStart | None = None,
    threads: int = 1,
) -> dict[str, Array]:
    """Return the arrays `rows`, `rows_accumulators`, `columns` and `columns_accumulators`, in block order.

    `orders` has the row numbers and the column numbers in block order. Vectors that are not in `start` are random;
    those of rows or columns without counts (a sum of zero) are zero. The result does not depend on `threads`.

    >>> arrays = make_arrays([np.ones(3), np.ones(2)], [np.arange(3), np.arange(2)], TrainConfig(dim=4))
    >>> arrays["rows"].shape, arrays["columns_accumulators"].shape
    ((3, 4), (2,))
    """
    arrays: dict[str, Array] = {}
    for side, (name, order) in enumerate(zip(SIDES, orders, strict=True)):
        places = np.argsort(order)  # of the rows in block order
        vectors = _draw(side, sums[side], places, config, threads)
        first = np.full(len(vectors), config.initial_accumulator, np.float32)  # accumulators of each vector

        if start is not None:
            vectors[places[start.ids[side]]] = start.vectors[side]
            first[places[start.ids[side]]] = max(config.initial_accumulator, WARM_ACCUMULATOR)
            vectors[sums[side][order] <= 0] = 0

        arrays[name] = vectors
        arrays[f"{name}_accumulators"] = first
    return arrays


def _draw(side: int, sums: NDArray[np.float64], places: Ids, config: TrainConfig, threads: int) -> Array:
    """Return normal vectors of expected length 1, zero without counts; that of row i is at places[i].

    Every piece has its own seed, so that the result does not depend on the number of threads.
    """
    vectors = np.empty((len(sums), config.dim), np.float32)

    def draw(rows: slice) -> None:
        rng = np.random.default_rng((config.seed, 0, side, rows.start))
        piece = rng.standard_normal((len(sums[rows]), config.dim), np.float32)
        piece *= np.float32(1 / math.sqrt(config.dim))
        piece[sums[rows] <= 0] = 0
        vectors[places[rows]] = piece

    run_in_chunks(draw, len(sums), rows=ROWS_PER_DRAW, threads=threads)
    return vectors
