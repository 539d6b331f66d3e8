"""The interface between the training loop and a backend, and base classes of backends.

A backend works on arrays, not on files. It takes over the parameters, runs steps, and returns their losses and the
parameters. `swivel.training.training_plan.create_backend` creates one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts import BlockCells, Matrix
from swivel.training.objective import Loss
from swivel.training.schedule import Block
from swivel.training.zero_sampling import ZeroSampling


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Parameters of the rows, or of the columns, of a matrix or block, and their part of every target (`offsets`)."""

    vectors: Any  # (size, dim); a host array or the backend's array type
    state: Any  # (size,); of the optimizer
    offsets: Any  # (size,)

    def part(self, start: int, stop: int) -> ParameterBlock:
        """Return rows `start` to `stop`; the arrays are views."""
        return ParameterBlock(self.vectors[start:stop], self.state[start:stop], self.offsets[start:stop])

    def map(self, function: Callable[[Any], Any]) -> ParameterBlock:
        """Return a block with the results of `function` for each array."""
        return ParameterBlock(function(self.vectors), function(self.state), function(self.offsets))

    def is_finite(self) -> bool:
        """Return whether vectors and state are finite, NumPy arrays or torch tensors; computed on their device."""
        for array in (self.vectors, self.state):
            flags = np.isfinite(array) if isinstance(array, np.ndarray) else array.isfinite()
            if not flags.all():
                return False
        return True


Sides = tuple[ParameterBlock, ParameterBlock]  # rows and columns
Gradients = tuple[Loss, Any, Any]  # loss of a step, and the gradients of rows and columns
PendingLosses = Callable[[], list[Loss]]  # waits for steps that may still be running, and returns the loss of each
_Part = tuple[ParameterBlock, Any, int, Any]  # one side of a step: parameters, summed gradient, cells, weight decay
Starts = tuple[Sequence[int] | NDArray[np.int64], Sequence[int] | NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Step:
    """One block to train."""

    block: Block
    learning_rate: float
    seed: tuple[int, ...]  # of the sampled zeros


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What a backend is created with: the mathematics of a step, sizes of the run, and what it may use."""

    config: TrainConfig  # of the loss, the optimizer and the weight decay
    zeros: ZeroSampling  # The triton backend computes all zeros.
    unit_offsets: tuple[float, float] = (0.0, 0.0)  # offset of a row, and of a column, whose sum is 1

    cells: int = 0  # upper bound of the observed cells in the device layout
    is_halved: bool = False  # whether blocks below the diagonal are read from those above it
    groups: tuple[int, int] | None = None  # row and column blocks that are trained together; None: all

    device: str = "cpu"
    dtype: str = "float32"  # of the operands of the matrix products
    threads: int = 1
    memory: int | None = None  # bytes of device memory to use; None: all that is free

    def find_decays(self, offsets: Any, side: int) -> Any:
        """Return the weight decay of each row (side 0) or column (side 1) from the offsets, an array or a tensor.

        An offset is that of a sum of 1 minus the logarithm of the sum.
        """
        return self.config.weight_decay * math.e ** (self.config.decay_power * (self.unit_offsets[side] - offsets))


class Backend(Protocol):
    """Runs training steps on one device."""

    name: str
    builds_layout: bool = False  # True: `take` lays out all cells; False: the matrix must have the blocks of the steps
    rounds_ahead: int = 1  # rounds that are started before the losses of the oldest are waited for

    def describe(self) -> str:
        """Return a short description for messages and reports: backend, device, dtype."""

    def take(self, matrix: Matrix) -> None:
        """Get the matrix whose cells the steps read, after `hold`."""

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Take over the parameters, which are in block order; `starts` has the first row of each block, and the end.

        The caller must not use their arrays any more: the backend may train in them, to have no second copy.
        """

    def hold_some(self, starts: Starts, dim: int, capacity: tuple[int, int]) -> None:
        """Prepare for blocks that `set_block` adds and `drop_block` removes: at most `capacity` of rows and of columns.

        It is called instead of `hold` if other processes have the other blocks; `fetch` does not work then.
        """

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Prefetch parameters if necessary: these are the next blocks in their order, which may still change."""
        return  # nothing to do by default

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> PendingLosses:
        """Start steps of one learning rate that share no parameters; return a function that waits for their losses.

        If `should_stop` returns true, the backend finishes the steps it has started and skips the others; the
        finished steps are always the first ones. Steps take effect in the order of the calls, so the losses can be
        requested later.
        """

    def fetch(self) -> Sides:
        """Return the parameters after all steps so far as host arrays, in the backend's precision.

        The next step may change them.
        """

    def is_finite(self) -> bool:
        """Return whether all parameters are finite after all steps so far; computed on the device."""

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the backend's arrays of a block of rows (side 0) or columns (side 1) after all steps so far."""

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Replace the parameters of a block; `values` may be host arrays or torch tensors."""

    def drop_block(self, side: int, block: int) -> None:
        """Free the memory of a block, after `hold_some`."""

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the loss and the gradients of a step at these vectors, as host arrays valid until the next call.

        The gradients include the weight decay. The states of `rows` and `columns` are not used. The backend's
        parameters of the step's blocks are undefined afterwards.
        """

    def close(self) -> None:
        """Release threads and memory, if there are any; a second call does nothing."""
        return  # nothing to do by default


class ArrayBackend(Backend):
    """Base class of backends that keep all parameters in arrays of which blocks are views, or each block in its own."""

    settings: BackendSettings
    _matrix: Matrix
    _sides: Sides  # all parameters, after `hold`
    _blocks: tuple[dict[int, ParameterBlock], dict[int, ParameterBlock]]  # of rows and of columns, by number

    def put(self, array: NDArray[Any]) -> Any:
        """Return a host array as the backend's array type: itself, if the backend can write to it, or a copy."""
        raise NotImplementedError

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of the backend's type as a host array, in the backend's precision."""
        raise NotImplementedError

    def add_gradients(self, cells: BlockCells, sides: Sides, seed: Sequence[int]) -> Gradients:
        """Return the loss of a block and its gradients, summed over the cells, without weight decay.

        The two sides are in the order of the cells' positions.
        """
        raise NotImplementedError

    def mean_gradient(self, side: ParameterBlock, total: Any, size: int, decay: Any) -> Any:
        """Return total / size + decay * vectors, which may overwrite `total`; decay: a number, or a column of them."""
        total /= size
        total += decay * side.vectors
        return total

    def update(self, side: ParameterBlock, total: Any, size: int, decay: Any, learning_rate: float) -> None:
        """Take a step of the optimizer in place, with the result of `mean_gradient`."""
        raise NotImplementedError

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        self._sides = rows.map(self.put), columns.map(self.put)
        self._blocks = _split(self._sides[0], starts[0]), _split(self._sides[1], starts[1])

    def close(self) -> None:
        for name in ("_sides", "_blocks"):
            self.__dict__.pop(name, None)

    def hold_some(self, starts: Starts, dim: int, capacity: tuple[int, int]) -> None:
        """Start without any block; `set_block` adds them."""
        self._blocks = {}, {}

    def take(self, matrix: Matrix) -> None:
        self._matrix = matrix

    def drop_block(self, side: int, block: int) -> None:
        self._blocks[side].pop(block, None)

    def fetch(self) -> Sides:
        rows, columns = (side.map(self.get) for side in self._sides)
        return rows, columns

    def is_finite(self) -> bool:
        return all(block.is_finite() for side in self._blocks for block in side.values())

    def get_block(self, side: int, block: int) -> ParameterBlock:
        return self._blocks[side][block]

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        new = values.map(self.put)
        old = self._blocks[side].setdefault(block, new)
        if old is not new:  # The arrays of a block may be views of `_sides`.
            old.vectors[:], old.state[:], old.offsets[:] = new.vectors, new.state, new.offsets

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> PendingLosses:
        """Run steps one after the other until `should_stop` returns true."""
        losses: list[Loss] = []
        for step in steps:
            if should_stop():
                break
            losses.append(self.run_step(step))
        return lambda: losses

    def run_step(self, step: Step) -> Loss:
        """Train one block and return its loss.

        A mirrored block is trained with the two sides swapped. The loss is symmetric in rows and columns, so the step
        is the same.
        """
        loss, parts, _ = self._compute(step, self.get_block(0, step.block[0]), self.get_block(1, step.block[1]))
        # Both gradients are those of the parameters before the step: no side changes until both are computed.
        for side, total, size, decay in parts:
            self.update(side, total, size, decay, step.learning_rate)
        return loss

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the loss and the gradients of a step at these vectors; the parameters do not change."""
        placed = (ParameterBlock(self.put(side.vectors), None, self.put(side.offsets)) for side in (rows, columns))
        loss, parts, is_mirrored = self._compute(step, *placed)
        first, second = (np.asarray(self.get(self.mean_gradient(*part)), np.float32) for part in parts)
        return (loss, second, first) if is_mirrored else (loss, first, second)

    def _compute(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> tuple[Loss, list[_Part], bool]:
        """Return the loss of a step, what `mean_gradient` needs of both sides, and whether these are swapped."""
        cells = self._matrix.cells(*step.block)
        sides = (columns, rows) if cells.mirrored else (rows, columns)
        loss, *totals = self.add_gradients(cells, sides, step.seed)

        settings = self.settings
        parts = []
        for number, (side, total) in enumerate(zip(sides, totals, strict=True)):
            decay: Any = settings.config.weight_decay
            if settings.config.decay_power:
                decay = settings.find_decays(side.offsets, number ^ int(cells.mirrored))[:, None]
            # A gradient of a row is the mean over the columns, and the other way round.
            parts.append((side, total, len(sides[1 - number].vectors), decay))
        return loss, parts, cells.mirrored


def _split(side: ParameterBlock, starts: Sequence[int] | NDArray[np.int64]) -> dict[int, ParameterBlock]:
    """Return the blocks of a side, by number; their arrays are views."""
    return {number: side.part(int(a), int(b)) for number, (a, b) in enumerate(pairwise(starts))}
