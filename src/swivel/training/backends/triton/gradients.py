"""Gradients from a backend that has no other door than the step.

Receives a step and the vectors it is to be taken at, hands on what it loses and both gradients as host arrays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.training.backends.base import Backend, Gradients, ParameterBlock, Step
from swivel.training.backends.cpu_kernels import recover_gradient

# What accumulators begin at where only the gradient is asked for: nothing beside any square that matters.
TINY = 1e-37


def recover_gradients(backend: Backend, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
    """Return the gradients of a step from a backend that has no other door than the step.

    They are read off Adagrad: from accumulators of next to nothing, a step at a rate of 1 leaves the squares in the
    accumulators and the signs in which way the vectors moved.
    """
    sides = rows, columns
    for number, side in enumerate(sides):
        start = np.full(side.vectors.shape, TINY, np.float32)
        # A copy: vectors that came from elsewhere may not be written to, which torch warns of.
        backend.set_block(
            number, step.block[number], ParameterBlock(np.array(side.vectors, np.float32), start, side.offsets)
        )
    (loss,) = backend.run([replace(step, learning_rate=1.0)], lambda: False).losses()
    found = [_read_gradient(backend.get_block(number, step.block[number]), sides[number]) for number in (0, 1)]
    return Gradients(loss, *found)


def _read_gradient(after: ParameterBlock, before: ParameterBlock) -> NDArray[np.float32]:
    vectors, accumulators = (_as_host(values) for values in (after.vectors, after.accumulators))
    recover_gradient(before.vectors, vectors, accumulators, TINY)
    return np.asarray(accumulators, np.float32)


def _as_host(values: Any) -> NDArray[Any]:
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)
