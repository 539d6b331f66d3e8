"""Steps one after the other, each its gradients first and then Adagrad's update.

Receives steps, hands on what they lost, or their gradients alone. What computes them is a backend of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from swivel.training.backends.base import (
    FinishedSteps,
    Gradients,
    HeldParameters,
    ObservedCells,
    ParameterBlock,
    Step,
    StepSettings,
    run_in_turn,
)
from swivel.training.objective import Loss


class ArrayBackend(HeldParameters):
    """A backend that computes gradients as arrays."""

    settings: StepSettings

    def compute(
        self, cells: ObservedCells, rows: ParameterBlock, columns: ParameterBlock, seed: Sequence[int]
    ) -> tuple[Loss, Any, Any]:
        """Return the loss of a block and its gradients, summed over the cells, without weight decay."""
        raise NotImplementedError

    def update(self, side: ParameterBlock, gradient: Any, learning_rate: float) -> None:
        """Take an Adagrad step."""
        raise NotImplementedError

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> FinishedSteps:
        """Run steps one after the other."""
        return run_in_turn(self._run_step, steps, should_stop)

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return what a step at these vectors loses, and its gradients; what is held is not touched."""
        cells = step.load()
        row_side, column_side = (
            ParameterBlock(self.put(side.vectors), None, self.put(side.offsets)) for side in (rows, columns)
        )
        if cells.mirrored:
            loss, column_gradient, row_gradient = self._mean_gradients(cells, column_side, row_side, step.seed)
        else:
            loss, row_gradient, column_gradient = self._mean_gradients(cells, row_side, column_side, step.seed)
        return Gradients(loss, *(np.asarray(self.get(found), np.float32) for found in (row_gradient, column_gradient)))

    def _run_step(self, step: Step) -> Loss:
        cells, rows, columns = self.open_step(step)
        loss, row_gradient, column_gradient = self._mean_gradients(cells, rows, columns, step.seed)
        self.update(rows, row_gradient, step.learning_rate)
        self.update(columns, column_gradient, step.learning_rate)
        return loss

    def _mean_gradients(
        self, cells: ObservedCells, rows: ParameterBlock, columns: ParameterBlock, seed: Sequence[int]
    ) -> tuple[Loss, Any, Any]:
        """Return the loss and the gradients that vectors are moved by: a mean over the other side, with decay."""
        loss, row_sums, column_sums = self.compute(cells, rows, columns, seed)
        weight_decay = self.settings.weight_decay
        row_gradient = row_sums / len(columns.vectors) + weight_decay * rows.vectors
        column_gradient = column_sums / len(rows.vectors) + weight_decay * columns.vectors
        return loss, row_gradient, column_gradient
