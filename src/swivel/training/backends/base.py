"""The interface between the training loop and a backend.

A backend works on arrays, not on files. It copies the parameters, runs steps, and returns their losses and the
parameters. `swivel.training.backends.create_backend` creates one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swivel.training.objective import Loss, Objective
from swivel.training.zero_sampling import ZeroSampling


class ObservedCells(Protocol):
    """The observed cells of one block."""

    @property
    def positions(self) -> NDArray[np.uint32]:
        """Local row << 16 | local column, ascending."""

    @property
    def counts(self) -> NDArray[np.float32]:
        """Count of each cell, in the order of `positions`."""

    @property
    def mirrored(self) -> bool:
        """Whether rows and columns are swapped in `positions`."""


class StoredCells(Protocol):
    """All observed cells of a matrix in their on-disk order, for backends that build their own layout.

    Shard (i, j), at index `i * column_blocks + j` of `offsets`, contains rows i, i + row_blocks, ... and columns
    j, j + column_blocks, ... For a symmetric matrix only the shards with i <= j are stored; those with i = j are
    complete.
    """

    @property
    def blocks(self) -> tuple[int, int]:
        """Number of row blocks and of column blocks."""

    @property
    def symmetric(self) -> bool:
        """Whether the shards below the diagonal are left out."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """First cell of each shard, and the number of cells."""

    @property
    def positions(self) -> NDArray[np.uint32]:
        """Local row << 16 | local column."""

    def counts_of(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the counts of the cells from `first` up to, not including, `last`."""


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """Parameters of the rows, or of the columns, of a matrix or block, and their part of every target (`offsets`)."""

    vectors: Any  # (size, dim); a host array or the backend's array type
    accumulators: Any  # (size, dim); sums of squared gradients (Adagrad)
    offsets: Any  # (size,)

    def part(self, start: int, stop: int) -> ParameterBlock:
        """Return rows `start` to `stop`; the arrays are views."""
        return ParameterBlock(self.vectors[start:stop], self.accumulators[start:stop], self.offsets[start:stop])


@dataclass(frozen=True, slots=True)
class Gradients:
    """Loss of a step and the gradients of both sides, including weight decay, as host arrays."""

    loss: Loss
    rows: NDArray[np.float32]
    columns: NDArray[np.float32]


Starts = tuple[Sequence[int] | NDArray[np.int64], Sequence[int] | NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Step:
    """One block to train."""

    block: tuple[int, int]
    load: Callable[[], ObservedCells]
    learning_rate: float
    seed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The sizes of a run that determine how much device memory it needs."""

    starts: Starts
    dim: int
    zeros: ZeroSampling
    cells: int  # upper bound of the observed cells in the device layout
    is_halved: bool = False  # whether blocks below the diagonal are read from those above it


class PendingSteps(Protocol):
    """Steps that were started and may still be running."""

    @property
    def steps(self) -> int:
        """Number of steps that were started; available without waiting."""

    def losses(self) -> list[Loss]:
        """Wait for the steps and return the loss of each."""


@dataclass(frozen=True, slots=True)
class FinishedSteps:
    """Steps that have ended."""

    step_losses: list[Loss]

    @property
    def steps(self) -> int:
        """Number of steps that were run."""
        return len(self.step_losses)

    def losses(self) -> list[Loss]:
        """Return the loss of each step."""
        return self.step_losses


class HeldParameters:
    """Base class of backends that keep the parameters of every block in separate arrays."""

    builds_layout = False
    _blocks: tuple[list[ParameterBlock], list[ParameterBlock]]

    def take(self, cells: StoredCells) -> None:
        """Do nothing: every step loads its own cells."""

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Do nothing: all parameters are in memory."""

    def put(self, array: NDArray[Any]) -> Any:
        """Return a copy of a host array as the backend's array type."""
        raise NotImplementedError

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of the backend's type as a host array, in the backend's precision."""
        raise NotImplementedError

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Copy the parameters, which are in block order; `starts` has the first row of each block, and the end."""
        self._blocks = self._split(rows, starts[0]), self._split(columns, starts[1])

    def _split(self, side: ParameterBlock, starts: Sequence[int] | NDArray[np.int64]) -> list[ParameterBlock]:
        return [self._put_side(side.part(int(start), int(stop))) for start, stop in pairwise(starts)]

    def _put_side(self, side: ParameterBlock) -> ParameterBlock:
        return ParameterBlock(self.put(side.vectors), self.put(side.accumulators), self.put(side.offsets))

    def fetch(self) -> tuple[ParameterBlock, ParameterBlock]:
        """Return the parameters as host arrays."""
        rows, columns = self._blocks
        return self._join(rows), self._join(columns)

    def _join(self, blocks: list[ParameterBlock]) -> ParameterBlock:
        return ParameterBlock(
            np.concatenate([self.get(block.vectors) for block in blocks]),
            np.concatenate([self.get(block.accumulators) for block in blocks]),
            np.concatenate([self.get(block.offsets) for block in blocks]),
        )

    def is_finite(self) -> bool:
        """Return whether every vector and accumulator is finite."""
        blocks = [*self._blocks[0], *self._blocks[1]]
        return all(_is_finite(block.vectors) and _is_finite(block.accumulators) for block in blocks)

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the arrays, not copies, of a block of rows (side 0) or columns (side 1)."""
        return self._blocks[side][block]

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Replace the parameters of a block by copies of `values`."""
        self._blocks[side][block] = self._put_side(values)

    def open_step(self, step: Step) -> tuple[ObservedCells, ParameterBlock, ParameterBlock]:
        """Return the cells of a step and the two sides in the order of the cells' positions.

        A mirrored block is trained with the two sides swapped. The loss is symmetric in rows and columns, so the step
        is the same.
        """
        rows = self.get_block(0, step.block[0])
        columns = self.get_block(1, step.block[1])
        cells = step.load()
        return (cells, columns, rows) if cells.mirrored else (cells, rows, columns)


def _is_finite(array: Any) -> bool:
    """Return whether all values of a NumPy array or torch tensor are finite, computed on the array's device."""
    flags = np.isfinite(array) if isinstance(array, np.ndarray) else array.isfinite()
    return bool(flags.all())


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Settings that all steps of a run share."""

    objective: Objective
    zeros: ZeroSampling
    weight_decay: float


class Backend(Protocol):
    """Runs training steps on one device."""

    name: str
    builds_layout: bool  # True: `take` lays out all stored cells; False: every step loads its own cells

    def describe(self) -> str:
        """Return a short description for messages and reports: backend, device, dtype."""

    def take(self, cells: StoredCells) -> None:
        """Lay out the cells of the whole matrix. Call it after `hold`, if `builds_layout` is true."""

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Copy the parameters, which are in block order; `starts` has the first row of each block, and the end."""

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Pass the next blocks in their order, so that the backend can prefetch them; the order may still change."""

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> PendingSteps:
        """Start steps that share no parameters, and return a handle to their losses.

        If `should_stop` returns true, the backend finishes the steps it has started and skips the others; the
        finished steps are always the first ones. Steps take effect in the order of the calls, so the losses can be
        requested later.
        """

    def fetch(self) -> tuple[ParameterBlock, ParameterBlock]:
        """Return the parameters after all steps so far as host arrays, in the backend's precision."""

    def is_finite(self) -> bool:
        """Return whether all parameters are finite after all steps so far; computed on the device."""

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the backend's arrays of a block of rows (side 0) or columns (side 1) after all steps so far."""

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Replace the parameters of a block; `values` may be host arrays or torch tensors."""

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the loss and the gradients of a step at the given vectors; the arrays are valid until the next call.

        The accumulators of `rows` and `columns` are not used. The backend's parameters of the step's blocks are
        undefined afterwards.
        """

    def close(self) -> None:
        """Release threads and memory."""


def run_in_turn(run: Callable[[Step], Loss], steps: Sequence[Step], should_stop: Callable[[], bool]) -> FinishedSteps:
    """Run steps one after the other until `should_stop` returns true."""
    losses: list[Loss] = []
    for step in steps:
        if should_stop():
            break
        losses.append(run(step))

    return FinishedSteps(losses)
