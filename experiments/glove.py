"""GloVe, trained as Stanford's program does: one observed cell at a time, in random order, with Adagrad.

    1/2 f(x) (w . c + b + b' - log x)^2,  f(x) = min(1, (x / x_max)^alpha)

Threads change the shared parameters without locks (Recht et al. 2011, "Hogwild"): the same seed gives the same vectors
on one thread only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from swivel.counts import Matrix
from swivel.runtime.progress import SILENT, Progress, track

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GloveConfig:
    """Settings of GloVe; the defaults are those of the Swivel paper, and the learning rate is Stanford's."""

    dim: int = 300
    epochs: int = 100
    x_max: float = 100.0
    alpha: float = 0.75
    learning_rate: float = 0.05
    seed: int = 1


def train_glove(
    matrix: Matrix, config: GloveConfig, *, sums: Floats | None = None, threads: int = 1, progress: Progress = SILENT
) -> tuple[Floats, list[float]]:
    """Return w + c for every row of a matrix whose rows and columns are the same, and the mean loss of each epoch.

    With `sums` of the rows, PMI replaces log x, so that the biases need not learn them.
    """
    rng = np.random.default_rng(config.seed)
    cells = matrix.to_scipy().tocoo()
    order = rng.permutation(cells.nnz)
    rows, columns, counts = cells.row[order].astype(np.int32), cells.col[order].astype(np.int32), cells.data[order]
    weights = np.minimum(1, (counts / config.x_max) ** config.alpha).astype(np.float32)
    log_counts = np.log(counts).astype(np.float32)
    if sums is not None:
        log_counts += np.log(sums.sum() / (sums[rows] * sums[columns]))

    # Vector and bias of each row, then of each column; the sums of squared steps begin at 1.
    shape = (2, len(matrix.rows), config.dim + 1)
    parameters = (rng.random(shape, np.float32) - np.float32(0.5)) / np.float32(config.dim + 1)
    squares = np.ones(shape, np.float32)

    numba.set_num_threads(threads)
    losses: list[float] = []
    with track(progress, "training glove", config.epochs * len(rows), "cells") as task:
        for epoch in range(1, config.epochs + 1):
            loss = train_epoch(rows, columns, log_counts, weights, parameters, squares, config.learning_rate, threads)
            losses.append(loss / len(rows))
            task.advance(len(rows), f"epoch {epoch}/{config.epochs}, loss {losses[-1]:.5f}")

    return parameters[0, :, :-1] + parameters[1, :, :-1], losses


@numba.njit(parallel=True, fastmath=True, cache=True)
def train_epoch(
    rows: Ids,
    columns: Ids,
    log_counts: Floats,
    weights: Floats,
    parameters: Floats,
    squares: Floats,
    learning_rate: float,
    threads: int,
) -> float:
    """Take one step per cell and return the sum of the losses; each thread takes a contiguous part of the cells."""
    dim = parameters.shape[2] - 1
    losses = np.zeros(threads)
    for part in numba.prange(threads):
        total = 0.0
        for n in range(len(rows) * part // threads, len(rows) * (part + 1) // threads):
            w, c = parameters[0, rows[n]], parameters[1, columns[n]]
            w_squares, c_squares = squares[0, rows[n]], squares[1, columns[n]]

            error = w[dim] + c[dim] - log_counts[n]
            for d in range(dim):
                error += w[d] * c[d]
            total += 0.5 * weights[n] * error * error

            # Stanford's program multiplies by the learning rate before it squares, and adds the square after the step.
            step = np.float32(learning_rate) * weights[n] * error
            for d in range(dim):
                w_step, c_step = step * c[d], step * w[d]
                w[d] -= w_step / np.sqrt(w_squares[d])
                c[d] -= c_step / np.sqrt(c_squares[d])
                w_squares[d] += w_step * w_step
                c_squares[d] += c_step * c_step
            w[dim] -= step / np.sqrt(w_squares[dim])
            c[dim] -= step / np.sqrt(c_squares[dim])
            w_squares[dim], c_squares[dim] = w_squares[dim] + step * step, c_squares[dim] + step * step
        losses[part] = total
    return float(losses.sum())
