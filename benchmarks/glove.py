"""GloVe as Stanford's program trains it: one cell at a time, in random order, by threads that share the parameters.

Adagrad with a learning rate of .05 and accumulators that start at 1, vectors and biases that start uniform within
.5 / dim, f(x) = min(1, (x / x_max)^.75), w + c as the result.
Threads write over one another without locks, as in the original (Recht et al. 2011, "Hogwild").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from swivel.counts import Matrix

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Parameters = tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats]


@dataclass(frozen=True)
class GloveConfig:
    """The settings of Stanford's `demo.sh`, with its number of iterations for vectors of up to 300 dimensions."""

    dim: int = 300
    epochs: int = 25
    x_max: float = 10.0
    alpha: float = 0.75
    learning_rate: float = 0.05
    seed: int = 1


def train_glove(
    matrix: Matrix, config: GloveConfig, *, threads: int, report: Callable[[str], None] = print
) -> tuple[Floats, list[float]]:
    """Return w + c for every row of a symmetric matrix, and the mean loss of each epoch."""
    rows, columns, counts = shuffled_cells(matrix, config.seed)
    log_counts = np.log(counts)
    weights = np.minimum(1, (counts / config.x_max) ** config.alpha).astype(np.float32)
    parameters = initial_parameters(len(matrix.rows), config)

    numba.set_num_threads(threads)
    losses: list[float] = []
    for epoch in range(1, config.epochs + 1):
        started = time.perf_counter()
        loss = run_epoch(rows, columns, log_counts, weights, *parameters, np.float32(config.learning_rate), threads)
        losses.append(loss / len(rows))
        report(f"GloVe epoch {epoch}/{config.epochs}: loss {losses[-1]:.5f}, {time.perf_counter() - started:.1f} s")

    row_vectors, column_vectors = parameters[0], parameters[1]
    return row_vectors + column_vectors, losses


def shuffled_cells(matrix: Matrix, seed: int) -> tuple[Ids, Ids, Floats]:
    """Return row, column and count of every observed cell, both mirrors of a symmetric one, in random order."""
    height, width = matrix.row_blocks, matrix.column_blocks
    parts = []
    for i in range(height):
        for j in range(width):
            cells = matrix.cells(i, j)
            first = (cells.positions >> 16).astype(np.int32)
            second = (cells.positions & 0xFFFF).astype(np.int32)
            local_rows, local_columns = (second, first) if cells.mirrored else (first, second)
            parts.append((local_rows * height + i, local_columns * width + j, cells.counts.astype(np.float32)))

    rows, columns, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows[order], columns[order], counts[order]


def initial_parameters(size: int, config: GloveConfig) -> Parameters:
    """Return row and column vectors, their accumulators, biases and their accumulators."""
    random = np.random.default_rng(config.seed)

    def uniform(*shape: int) -> Floats:
        return ((random.random(shape, np.float32) - np.float32(0.5)) / np.float32(config.dim + 1)).astype(np.float32)

    vectors = uniform(size, config.dim), uniform(size, config.dim)
    vector_accumulators = np.ones((size, config.dim), np.float32), np.ones((size, config.dim), np.float32)
    biases = uniform(size), uniform(size)
    bias_accumulators = np.ones(size, np.float32), np.ones(size, np.float32)
    return *vectors, *vector_accumulators, *biases, *bias_accumulators


@numba.njit(parallel=True, fastmath=True, cache=True)
def run_epoch(
    rows: Ids,
    columns: Ids,
    log_counts: Floats,
    weights: Floats,
    row_vectors: Floats,
    column_vectors: Floats,
    row_accumulators: Floats,
    column_accumulators: Floats,
    row_biases: Floats,
    column_biases: Floats,
    row_bias_accumulators: Floats,
    column_bias_accumulators: Floats,
    learning_rate: np.float32,
    threads: int,
) -> float:
    """Take one step per cell and return the sum of the losses; each thread takes a contiguous part of the cells."""
    losses = np.zeros(threads)
    for part in numba.prange(threads):
        start = len(rows) * part // threads
        stop = len(rows) * (part + 1) // threads
        total = 0.0
        for n in range(start, stop):
            i, j = rows[n], columns[n]
            w, c = row_vectors[i], column_vectors[j]
            a, b = row_accumulators[i], column_accumulators[j]

            product = np.float32(0)
            for d in range(w.shape[0]):
                product += w[d] * c[d]
            error = product + row_biases[i] + column_biases[j] - log_counts[n]
            total += 0.5 * weights[n] * error * error

            # Stanford's program multiplies by the learning rate before it squares, and adds the square after the step.
            step = learning_rate * weights[n] * error
            for d in range(w.shape[0]):
                row_step = step * c[d]
                column_step = step * w[d]
                w[d] -= row_step / np.sqrt(a[d])
                c[d] -= column_step / np.sqrt(b[d])
                a[d] += row_step * row_step
                b[d] += column_step * column_step

            row_biases[i] -= step / np.sqrt(row_bias_accumulators[i])
            column_biases[j] -= step / np.sqrt(column_bias_accumulators[j])
            row_bias_accumulators[i] += step * step
            column_bias_accumulators[j] += step * step
        losses[part] = total
    return float(losses.sum())
