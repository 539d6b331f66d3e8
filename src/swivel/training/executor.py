"""Executors run training steps, in this process or across several.

The training loop gives an executor rounds of blocks and gets their losses back; the executor owns the parameters
during a round. `LocalExecutor` uses one process and one backend. `swivel.training.distributed` has the others: ranks
that pass column blocks around a ring, under torchrun or on Ray, and asynchronous workers with parameter servers.
`open_executor` chooses; Ray and torch.distributed are imported only when they are used.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, Progress
from swivel.runtime.resources import find_rank
from swivel.training.backends import Backend, Step
from swivel.training.backends.base import PendingLosses, Starts
from swivel.training.backends.base import Sides as Sides
from swivel.training.objective import Loss, column_offsets, row_offsets
from swivel.training.schedule import Block, block_order, block_starts
from swivel.training.training_plan import TrainingPlan, backend_settings, create_backend

T = TypeVar("T")
CompletedSteps = tuple[Sequence[Block], Sequence[Loss]]  # blocks that were trained, and the loss of each


@dataclass(frozen=True)
class TrainingJob:
    """What all steps of a run share: matrix, settings, plan, what it may use of this machine, and when to pause."""

    matrix: Matrix
    config: TrainConfig
    plan: TrainingPlan
    threads: int
    scratch: Path | None = None  # folder that is removed when the run ends; None: only memory
    progress: Progress = SILENT

    # Executors call both often: whether to finish the steps that have started and skip the rest, and whether to return
    # at the next point where all parameters are consistent.
    should_stop: Callable[[], bool] = lambda: False
    should_save: Callable[[], bool] = lambda: False

    def should_pause(self) -> bool:
        """Return whether `Executor.run` should return early."""
        return self.should_stop() or self.should_save()

    @property
    def blocks(self) -> tuple[int, int]:
        """Number of row blocks and of column blocks."""
        return self.plan.row_blocks, self.plan.column_blocks

    @cached_property
    def starts(self) -> Starts:
        """Start of each row block and of each column block in block order, followed by the end."""
        rows, columns = map(block_starts, self.matrix.shape, self.blocks)
        return rows, columns

    def span(self, side: int, block: int) -> slice:
        """Return the positions of a block of rows (side 0) or columns (side 1) in block order."""
        starts = self.starts[side]
        return slice(int(starts[block]), int(starts[block + 1]))

    @property
    def orders(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row numbers and column numbers in block order."""
        rows, columns = map(block_order, self.matrix.shape, self.blocks)
        return rows, columns

    def offsets(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the part of the targets that depends on the row, and on the column, in block order."""
        matrix = self.matrix
        row_order, column_order = self.orders
        rows = row_offsets(matrix.row_sums, matrix.total, self.config)[row_order]
        columns = column_offsets(matrix.column_sums)[column_order]
        return rows.astype(np.float32), columns.astype(np.float32)

    def open_backend(self) -> tuple[Backend, TrainingJob]:
        """Return the backend that the plan names, and the job with its matrix as the backend needs it.

        The matrix is stored in the blocks of the plan, unless the backend builds its own layout.
        """
        plan = self.plan
        backend = create_backend(plan.backend, backend_settings(self.matrix, self.config, plan, self.threads))
        if backend.builds_layout:
            return backend, self

        matrix = self.matrix
        if self.blocks != (matrix.row_blocks, matrix.column_blocks):
            self.progress.message(
                f"re-blocking the matrix from {matrix.row_blocks} x {matrix.column_blocks} "
                f"to {plan.row_blocks} x {plan.column_blocks} blocks"
            )
        blocked = matrix.reblocked(*self.blocks, scratch=self.scratch, threads=self.threads)
        return backend, replace(self, matrix=blocked)

    def hold(self, backend: Backend, sides: Sides | None, capacity: tuple[int, int] = (1, 1)) -> None:
        """Give a backend the parameters and the matrix.

        Without parameters, prepare it for `capacity` row blocks and column blocks, which are set one by one.
        """
        if sides is None:
            backend.hold_some(self.starts, self.config.dim, capacity)
        else:
            backend.hold(*sides, self.starts)
        backend.take(self.matrix)


class Executor(Protocol):
    """Runs the steps of a training run and owns its parameters; by default one process runs the training loop."""

    is_leader: bool = True  # whether this process writes the result; exactly one of the ranks does
    ranks: int = 1  # number of processes that the order of blocks is made for, unless the settings say it
    is_alone: bool = True  # whether no other process runs the training loop
    in_place: bool = False  # whether a backend can train in the arrays of `hold`, and `fetch` returns them
    min_block_size: int = 1  # lower bound on the default block size: small blocks are expensive to move

    def broadcast(self, value: T) -> T:
        """Return the leader's value on every rank. All ranks must call it."""
        return value

    def any_rank(self, is_so: bool) -> bool:
        """Return whether `is_so` is true on any rank. All ranks must call it."""
        return is_so

    note: str = ""  # what the executor adds to the progress line

    def begin(self, job: TrainingJob) -> None:
        """Create backends, processes and connections."""

    def hold(self, sides: Sides | None) -> None:
        """Store the initial parameters, in block order. Ranks other than the leader pass None."""

    def adapt(self, plan: TrainingPlan) -> TrainingPlan:
        """Return the plan for the next epoch, after processes were lost or have joined."""
        return plan

    def describe(self) -> str:
        """Return a short description of the hardware and the backend for the progress output."""

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        """Run rounds of one epoch and yield blocks that were trained, each block once, with their losses.

        The steps of a round share no parameters.

        No step is running when the iterator ends. Only some of the rounds run if `TrainingJob.should_pause` returns
        true. `ahead` are the blocks of the rounds that follow these.
        """

    def is_finite(self) -> bool:
        """Return whether all parameters are finite after the steps so far; all ranks get the same answer."""

    def fetch(self) -> Sides | None:
        """Return all parameters as host arrays on the leader, None on other ranks."""

    def close(self) -> None:
        """Release threads, memory and processes. `any_rank` still works afterwards."""


class LocalExecutor(Executor):
    """Run all steps in this process, with one backend."""

    in_place = True

    def begin(self, job: TrainingJob) -> None:
        self._backend, self._job = job.open_backend()

    def hold(self, sides: Sides | None) -> None:
        assert sides is not None
        self._job.hold(self._backend, sides)

    def describe(self) -> str:
        return self._backend.describe()

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        """Run rounds in order, starting each one before waiting for the losses of the previous ones."""
        self._backend.announce([*([step.block for step in steps] for steps in rounds), *ahead])
        unread_rounds: deque[tuple[Sequence[Step], PendingLosses]] = deque()  # started, and their losses are not read

        for steps in rounds:
            # The device computes this round while the host collects the losses of an earlier one.
            unread_rounds.append((steps, self._backend.run(steps, self._job.should_stop)))
            if len(unread_rounds) > self._backend.rounds_ahead:
                yield _wait_for(*unread_rounds.popleft())
            if self._job.should_pause():
                break

        for oldest in unread_rounds:
            yield _wait_for(*oldest)

    def is_finite(self) -> bool:
        return self._backend.is_finite()

    def fetch(self) -> Sides | None:
        return self._backend.fetch()

    def close(self) -> None:
        """Close the backend, if `begin` created one."""
        if "_backend" in self.__dict__:
            self._backend.close()


def _wait_for(steps: Sequence[Step], pending: PendingLosses) -> CompletedSteps:
    losses = pending()
    return [step.block for step in steps[: len(losses)]], losses  # A stopped backend has skipped the last steps.


@contextlib.contextmanager
def open_executor(options: RunOptions, config: TrainConfig) -> Iterator[Executor]:
    """Yield the executor for a job and close it at the end, when all ranks have arrived there."""
    with contextlib.closing(make_executor(options, config)) as executor:
        yield executor
        executor.any_rank(True)  # Other ranks wait here until the leading one has written everything.


def make_executor(options: RunOptions, config: TrainConfig) -> Executor:
    """Return the executor for a job, connected to its ranks or cluster."""
    if options.cluster.asynchronous and options.ray is None:
        raise ConfigError("asynchronous training needs a Ray cluster: pass ray", argument=("asynchronous", "ray"))
    if find_rank() is not None:
        if options.ray is not None:
            raise ConfigError(
                "torchrun and ray cannot be combined: start ranks with torchrun, or pass ray", argument="ray"
            )
        from swivel.training.distributed.ring import RingExecutor

        return RingExecutor()

    if options.ray is None:
        return LocalExecutor()
    if options.cluster.asynchronous:
        from swivel.training.distributed.async_executor import AsyncExecutor

        return AsyncExecutor(options.ray, options.cluster)
    from swivel.training.distributed.ray_ring import RayRingExecutor

    return RayRingExecutor(options.ray, options.cluster, config)
