"""The training step in NumPy float64. It is slow; the other backends are tested against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts import BlockCells
from swivel.training.backends.base import ArrayBackend, BackendSettings, Gradients, ParameterBlock, Sides
from swivel.training.objective import loss_and_gradient, update_parameters


class ReferenceBackend(ArrayBackend):
    """Computes every cell of a block densely in float64."""

    name = "reference"

    def __init__(self, settings: BackendSettings) -> None:
        self.settings = settings

    def describe(self) -> str:
        return "reference, NumPy float64"

    def put(self, array: NDArray[Any]) -> Any:
        """Return a float64 copy."""
        return np.array(array, np.float64)

    def get(self, array: Any) -> NDArray[Any]:
        """Return the array in float64, so that a checkpoint has the full precision."""
        return np.asarray(array)

    @np.errstate(over="ignore", invalid="ignore")  # The training loop detects divergence.
    def add_gradients(self, cells: BlockCells, sides: Sides, seed: Sequence[int]) -> Gradients:
        rows, columns = sides
        W = np.asarray(rows.vectors, np.float64)
        C = np.asarray(columns.vectors, np.float64)
        x = np.zeros((len(W), len(C)))
        x[cells.positions >> 16, cells.positions & 0xFFFF] = cells.counts
        offsets = np.asarray(rows.offsets, np.float64)[:, None] + np.asarray(columns.offsets, np.float64)

        # A zero has the weight of its column in the panel of its row, 0 if not sampled.
        weights = np.zeros_like(x)
        for panel in self.settings.zeros.panels(len(W), len(C), seed):
            columns_of_panel = slice(None) if panel.columns is None else panel.columns
            weights[panel.start : panel.stop, columns_of_panel] = 1.0 if panel.weights is None else panel.weights

        # G = dL / d(W C^T), then dL/dW = G C and dL/dC = G^T W.
        loss, gradient = loss_and_gradient(W @ C.T, x, offsets, self.settings.config, weights)
        return loss, gradient @ C, gradient.T @ W

    @np.errstate(over="ignore", invalid="ignore")
    def update(self, side: ParameterBlock, total: Any, size: int, decay: Any, learning_rate: float) -> None:
        gradient = self.mean_gradient(side, total, size, decay)
        update_parameters(side.vectors, side.state, gradient, learning_rate, self.settings.config.accumulator_decay)
