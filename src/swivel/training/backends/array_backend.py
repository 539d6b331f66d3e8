"""Base class of backends that compute the gradients of a step as arrays and then apply Adagrad."""

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
    """Runs one step at a time. Subclasses implement `compute` and `update`."""

    settings: StepSettings

    def compute(
        self, cells: ObservedCells, rows: ParameterBlock, columns: ParameterBlock, seed: Sequence[int]
    ) -> tuple[Loss, Any, Any]:
        """Return the loss of a block and its gradients, summed over the cells, without weight decay."""
        raise NotImplementedError

    def update(self, side: ParameterBlock, gradient: Any, learning_rate: float) -> None:
        """Apply one Adagrad update in place."""
        raise NotImplementedError

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> FinishedSteps:
        """Run steps one after the other until `should_stop` returns true."""
        return run_in_turn(self._run_step, steps, should_stop)

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the loss and the gradients of a step at the given vectors; the held parameters do not change."""
        cells = step.load()
        row_side = ParameterBlock(self.put(rows.vectors), None, self.put(rows.offsets))
        column_side = ParameterBlock(self.put(columns.vectors), None, self.put(columns.offsets))

        if cells.mirrored:
            loss, column_gradient, row_gradient = self._mean_gradients(cells, column_side, row_side, step.seed)
        else:
            loss, row_gradient, column_gradient = self._mean_gradients(cells, row_side, column_side, step.seed)

        return Gradients(
            loss,
            np.asarray(self.get(row_gradient), np.float32),
            np.asarray(self.get(column_gradient), np.float32),
        )

    def _run_step(self, step: Step) -> Loss:
        cells, rows, columns = self.open_step(step)
        loss, row_gradient, column_gradient = self._mean_gradients(cells, rows, columns, step.seed)
        self.update(rows, row_gradient, step.learning_rate)
        self.update(columns, column_gradient, step.learning_rate)
        return loss

    def _mean_gradients(
        self, cells: ObservedCells, rows: ParameterBlock, columns: ParameterBlock, seed: Sequence[int]
    ) -> tuple[Loss, Any, Any]:
        """Return the loss and the gradients that Adagrad applies: means over the other side, plus weight decay."""
        loss, row_sums, column_sums = self.compute(cells, rows, columns, seed)
        weight_decay = self.settings.weight_decay
        row_gradient = row_sums / len(columns.vectors) + weight_decay * rows.vectors
        column_gradient = column_sums / len(rows.vectors) + weight_decay * columns.vectors
        return loss, row_gradient, column_gradient
