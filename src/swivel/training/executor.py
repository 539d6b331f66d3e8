"""Who runs the steps of a run: this process alone, or many processes.

The training loop hands rounds over and hears what they lost; where the parameters are meanwhile is the workers' affair.
`LocalExecutor` is one process with one backend. `swivel.training.distributed` has the others: ranks between which blocks rotate, and
asynchronous workers around parameter servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from swivel.config import TrainConfig
from swivel.runtime.progress import Progress
from swivel.training.backends import Backend, BackendConfig, ParameterBlock, Step, StepSettings, create_backend
from swivel.training.backends.base import ObservedCells, PendingSteps, Starts
from swivel.training.objective import Loss, Objective
from swivel.training.plan import BlockedMatrix, TrainingPlan, describe_load, wants_sample
from swivel.training.schedule import Block, block_starts

Sides = tuple[ParameterBlock, ParameterBlock]  # rows and columns


@dataclass(frozen=True, slots=True)
class Round:
    """Blocks of an epoch that share no parameters."""

    number: int  # of the epoch
    blocks: Sequence[Block]
    learning_rate: float


@dataclass(frozen=True, slots=True)
class CompletedSteps:
    """Steps that are over, and what each lost."""

    blocks: Sequence[Block]
    losses: Sequence[Loss]
    note: str = ""  # for people: what the loop does not know


@dataclass(frozen=True, slots=True)
class PauseRequests:
    """What the loop may want of its workers while they run."""

    should_stop: Callable[[], bool]  # end what was begun, leave the rest
    should_save: Callable[[], bool]  # pause at the next good place

    def pause(self) -> bool:
        """Return whether to pause."""
        return self.should_stop() or self.should_save()


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What all steps of a run share, wherever they are run."""

    matrix: BlockedMatrix
    config: TrainConfig
    plan: TrainingPlan

    @property
    def blocks(self) -> tuple[int, int]:
        """Row blocks and column blocks."""
        return self.plan.row_blocks, self.plan.column_blocks

    @property
    def starts(self) -> Starts:
        """Where each block of a side begins, and the end."""
        rows, columns = self.matrix.shape
        return block_starts(rows, self.plan.row_blocks), block_starts(columns, self.plan.column_blocks)

    def steps(self, round_: Round) -> list[Step]:
        """Return the steps of a round."""
        return [self._step(round_, block) for block in round_.blocks]

    def _step(self, round_: Round, block: Block) -> Step:
        def load() -> ObservedCells:
            return self.matrix.cells(*block)

        return Step(block, load, round_.learning_rate, (self.config.seed, 2, round_.number, *block))

    def create_backend(self, threads: int) -> Backend:
        """Return the backend of the plan."""
        plan, config = self.plan, self.config
        load = describe_load(self.matrix, config, self.blocks, plan.device)
        settings = StepSettings(Objective.from_config(config), load.zeros, config.weight_decay)
        memory = config.device_memory
        backend_config = BackendConfig(
            plan.device, plan.dtype, threads, memory, plan.groups, load.cells, load.is_halved
        )
        return create_backend(plan.backend, settings, backend_config)

    def is_sampled(self) -> bool:
        """Return whether zeros are sampled, where that is wished for."""
        return describe_load(self.matrix, self.config, self.blocks, self.plan.device).zeros.share < 1

    def wants_sample(self) -> bool:
        """Return whether zeros are to be sampled."""
        return wants_sample(self.config, self.plan.device, self.blocks)

    def laid_out(self, here: LocalResources) -> TrainingJob:
        """Return the job with its matrix in the plan's blocks."""
        matrix = self.matrix
        if self.blocks != (matrix.row_blocks, matrix.column_blocks):
            here.progress.message(
                f"re-blocking the matrix from {matrix.row_blocks} x {matrix.column_blocks} "
                f"to {self.plan.row_blocks} x {self.plan.column_blocks} blocks"
            )
        blocked = matrix.reblocked(*self.blocks, scratch=here.scratch, threads=here.threads)
        return replace(self, matrix=blocked)


@dataclass(frozen=True, slots=True)
class LocalResources:
    """What a run may use of this machine."""

    scratch: Path  # a folder for as long as the run lasts
    threads: int
    progress: Progress


class Executor(Protocol):
    """Who runs the steps of a run."""

    is_leader: bool  # whether this process writes what is trained; of several that run the same loop one does
    ranks: int  # how many run the same loop
    min_block_size: int  # that it should be given, where the size is open: smaller ones cost more to hand around

    def broadcast(self, text: str) -> str:
        """Return the leading process's text, to all that run the same loop."""

    def begin(self, job: TrainingJob, here: LocalResources) -> None:
        """Make ready."""

    def hold(self, sides: Sides | None) -> None:
        """Take parameters on, in the order of blocks; only the leading process has them."""

    def describe(self) -> str:
        """Say in a few words what runs, for people."""

    def run(
        self, rounds: Sequence[Round], ahead: Sequence[Sequence[Block]], wishes: PauseRequests
    ) -> Iterator[CompletedSteps]:
        """Run rounds of one epoch and tell what is over, each block once.

        All of them, or, where the loop wishes a pause, some; when the iterator ends nothing is under way. `ahead` are
        the blocks of the rounds that will come after these.
        """

    def any_rank(self, is_so: bool) -> bool:
        """Return whether it is so for any process that runs the same loop."""

    def is_finite(self) -> bool:
        """Return whether all parameters are finite after all steps so far, wherever they are; the same on all ranks."""

    def fetch(self) -> Sides | None:
        """Return the parameters after all steps so far as host arrays; None where this process does not lead."""

    def close(self) -> None:
        """Give threads, memory and other processes back; what `agree` says still holds."""


class LocalExecutor:
    """One process, one backend."""

    is_leader, ranks, min_block_size = True, 1, 1

    def broadcast(self, text: str) -> str:
        """Return the text itself."""
        return text

    def any_rank(self, is_so: bool) -> bool:
        """Return what was said."""
        return is_so

    def begin(self, job: TrainingJob, here: LocalResources) -> None:
        """Create the backend, and lay the blocks out where it does not."""
        self._backend = job.create_backend(here.threads)
        self._job = job if self._backend.builds_layout else job.laid_out(here)

    def hold(self, sides: Sides | None) -> None:
        """Give the backend the parameters, and all cells where it lays blocks out itself."""
        assert sides is not None
        self._backend.hold(*sides, self._job.starts)
        if self._backend.builds_layout:
            self._backend.take(self._job.matrix.stored)

    def describe(self) -> str:
        """Say what runs."""
        return self._backend.describe()

    def run(
        self, rounds: Sequence[Round], ahead: Sequence[Sequence[Block]], wishes: PauseRequests
    ) -> Iterator[CompletedSteps]:
        """Run rounds one after the other; one runs while the next is being made ready."""
        self._backend.announce([*(round_.blocks for round_ in rounds), *ahead])
        before: tuple[Round, PendingSteps] | None = None
        for round_ in rounds:
            begun = self._backend.run(self._job.steps(round_), wishes.should_stop)
            if before is not None:
                yield _wait_for(*before)
            before = round_, begun
            if begun.steps < len(round_.blocks) or wishes.pause():
                break
        if before is not None:
            yield _wait_for(*before)

    def is_finite(self) -> bool:
        """Ask the backend."""
        return self._backend.is_finite()

    def fetch(self) -> Sides | None:
        """Return the parameters."""
        return self._backend.fetch()

    def close(self) -> None:
        """Close the backend."""
        if "_backend" in self.__dict__:
            self._backend.close()


def _wait_for(round_: Round, running: PendingSteps) -> CompletedSteps:
    losses = running.losses()
    return CompletedSteps(round_.blocks[: len(losses)], losses)
