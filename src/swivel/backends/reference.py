"""The step in NumPy float64, by the book: slow, and right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.backends.base import (
    Band,
    Finished,
    Gradients,
    HeldSides,
    ObservedCells,
    Side,
    Step,
    StepSettings,
    run_in_turn,
)
from swivel.backends.recovering import recover_gradients
from swivel.objective import Loss, adagrad, loss_and_gradient


class ReferenceBackend(HeldSides):
    """Computes every cell densely in float64."""

    name = "reference"

    def __init__(self, settings: StepSettings) -> None:
        self.settings = settings

    def describe(self) -> str:
        """Say what runs."""
        return "reference, NumPy float64"

    def put(self, array: NDArray[Any]) -> Any:
        """Return a float64 copy."""
        return np.array(array, np.float64)

    def get(self, array: Any) -> NDArray[Any]:
        """Return the array as it is, in float64: a checkpoint loses nothing."""
        return np.asarray(array)

    def close(self) -> None:
        """Hold nothing."""

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> Finished:
        """Run steps one after the other."""
        return run_in_turn(self._run_step, steps, should_stop)

    def gradients(self, step: Step, rows: Side, columns: Side) -> Gradients:
        """Return the gradients of a step, read off the step itself."""
        return recover_gradients(self, step, rows, columns)

    def _run_step(self, step: Step) -> Loss:
        cells, rows, columns = self.open_step(step)
        loss, row_gradient, column_gradient = block_gradients(cells, rows, columns, self.settings, step.seed)
        decay = self.settings.decay
        row_gradient = row_gradient / len(columns.vectors) + decay * rows.vectors
        column_gradient = column_gradient / len(rows.vectors) + decay * columns.vectors
        adagrad(rows.vectors, rows.accumulators, row_gradient, step.rate)
        adagrad(columns.vectors, columns.accumulators, column_gradient, step.rate)
        return loss


def block_gradients(
    cells: ObservedCells, rows: Side, columns: Side, settings: StepSettings, seed: tuple[int, ...]
) -> tuple[Loss, NDArray[np.float64], NDArray[np.float64]]:
    """Return the loss of a block and its gradients with respect to both sides' vectors."""
    W, C = np.asarray(rows.vectors, np.float64), np.asarray(columns.vectors, np.float64)
    x = np.zeros((len(W), len(C)))
    x[cells.positions >> 16, cells.positions & 0xFFFF] = cells.counts
    offsets = np.asarray(rows.offsets, np.float64)[:, None] + np.asarray(columns.offsets, np.float64)
    weights = np.empty_like(x)
    for band in settings.zeros.bands(len(W), len(C), seed):
        weights[band.start : band.stop] = _zero_weights(band, len(C))
    weights[x > 0] = 1.0
    products = W @ C.T
    _, gradient = loss_and_gradient(products, x, offsets, settings.objective)
    gradient *= weights
    return _weighted_loss(products, x, offsets, weights, settings), gradient @ C, gradient.T @ W


def _zero_weights(band: Band, columns: int) -> NDArray[np.float64]:
    if band.chosen is None:
        return np.ones(columns)
    weights = np.zeros(columns)
    weights[band.chosen] = 1.0 if band.weights is None else band.weights
    return weights


def _weighted_loss(products: Any, x: Any, offsets: Any, weights: Any, settings: StepSettings) -> Loss:
    """Sum the loss row by row of equal weight: each distinct weight is one call of the oracle."""
    total = Loss()
    for weight in np.unique(weights):
        mask = weights == weight
        part, _ = loss_and_gradient(products[mask], x[mask], offsets[mask], settings.objective)
        total += Loss(part.observed, part.observed_cells, weight * part.unobserved, weight * part.unobserved_cells)
    return total
