"""Gradients of a step from a backend that has no other operation than the step itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.training.backends.base import Backend, Gradients, ParameterBlock, Step
from swivel.training.backends.cpu_kernels import recover_gradient

# Initial accumulators, if only the gradient is wanted: negligible beside the square of any gradient that matters.
TINY = 1e-37


def recover_gradients(backend: Backend, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
    """Return the loss and the gradients of a step, recovered from the effect of Adagrad.

    With accumulators close to zero, a step with learning rate 1 leaves the squares of the gradients in the
    accumulators, and their signs in the direction in which the vectors moved.
    """
    sides = rows, columns
    for number, side in enumerate(sides):
        start = np.full(side.vectors.shape, TINY, np.float32)
        # A copy: the given vectors may be read-only, and torch warns about those.
        vectors = np.array(side.vectors, np.float32)
        backend.set_block(number, step.block[number], ParameterBlock(vectors, start, side.offsets))

    (loss,) = backend.run([replace(step, learning_rate=1.0)], lambda: False).losses()

    row_gradient = _read_gradient(backend.get_block(0, step.block[0]), rows)
    column_gradient = _read_gradient(backend.get_block(1, step.block[1]), columns)
    return Gradients(loss, row_gradient, column_gradient)


def _read_gradient(after: ParameterBlock, before: ParameterBlock) -> NDArray[np.float32]:
    vectors = _as_host(after.vectors)
    accumulators = _as_host(after.accumulators)
    recover_gradient(before.vectors, vectors, accumulators, TINY)
    return np.asarray(accumulators, np.float32)


def _as_host(values: Any) -> NDArray[Any]:
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)
