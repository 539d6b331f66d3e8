"""The training loop: runs the schedule on an executor, saves checkpoints and detects divergence.

It takes a matrix of blocks and a configuration and returns trained rows and columns in vocabulary order.
`swivel.vectors` combines these into the vectors that users get.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig, result_settings
from swivel.counts import Matrix
from swivel.errors import Diverged, TrainingError
from swivel.runtime.numbers import plural
from swivel.runtime.parallel import run_in_chunks
from swivel.runtime.progress import SILENT, Progress, Task, track
from swivel.runtime.signals import StopRequest, stop_on_signals
from swivel.storage.lock import scratch_folder
from swivel.training.backends import ParameterBlock, Step
from swivel.training.backends.cpu_kernels import permute_rows
from swivel.training.checkpoint import Checkpoint, CheckpointStore, TrainingState
from swivel.training.executor import CompletedSteps, Executor, LocalExecutor, Sides, TrainingJob
from swivel.training.initialization import SIDES, WarmStart, make_arrays
from swivel.training.objective import Loss
from swivel.training.schedule import Block, falling_rate, rounds_for_ranks, rounds_in_groups, rounds_without_conflict
from swivel.training.training_plan import TrainingPlan, choose_zeros, estimate_needs, make_plan, resume_plan

Array = NDArray[np.float32]
# Version of the order of blocks, of the random numbers and of the optimizer's state. It is part of the identity of a
# run: one that started with another version is not resumed.
ORDER = 3
MAX_GROWTH = 100  # of the mean observed loss, relative to the initial vectors: more counts as divergence
MAX_ADVISED_DECAY = 1e-2  # above this, the advice is to lower the weight decay instead of raising it
POINTS_PER_EPOCH = 20  # of the training curves; more would slow down the host of a GPU, whose rounds take milliseconds


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Trained rows and columns in vocabulary order, with the plan, the loss of each epoch and the training time."""

    rows: Array
    columns: Array
    plan: TrainingPlan
    history: tuple[Loss, ...]
    seconds: float


def train_matrix(
    matrix: Matrix,
    config: TrainConfig,
    *,
    folder: Path | None,
    threads: int,
    progress: Progress = SILENT,
    start: WarmStart | None = None,
    executor: Executor | None = None,
    other_memory: tuple[int, int] = (0, 0),
) -> TrainingResult | None:
    """Train row and column vectors for a matrix, from small random vectors or from a warm start.

    `folder` gets the checkpoints. An interrupted run resumes from the last checkpoint when the function is
    called again with the same matrix and configuration, with the same executor or another one. Ctrl-C and SIGTERM save
    a checkpoint first. Without a folder nothing is written, and an interrupted run is lost. The executor, by default
    this process, is closed at the end. If several processes run this loop together, the result is None on ranks that
    are not the leader. `other_memory` is bytes that the job needs besides: during the training, and after it.

    Raises
    ------
    ConfigError
        The setting `ranks` is larger than the number of row blocks.
    TrainingError
        The matrix has no counts, or this machine cannot continue the saved run.
    Diverged
        A loss or a parameter is not finite, or the loss grew far above its initial value.
    """
    if max(matrix.shape) == 0 or matrix.total <= 0:
        raise TrainingError("the matrix has no counts: there is nothing to train on")

    provenance = run_provenance(matrix, config, start)
    checkpoints = CheckpointStore(folder, provenance, config.checkpoint_minutes, progress)

    with (
        contextlib.nullcontext() if folder is None else scratch_folder(folder) as scratch,
        stop_on_signals() as should_stop,
        contextlib.closing(executor or LocalExecutor()) as executor,
    ):
        # Before the first step there is nothing to save, so a signal stops a single process at once. A rank must not
        # leave alone: the others would wait for it.
        with should_stop.acting_at_once() if executor.is_alone else contextlib.nullcontext():
            plan = checkpoint = None
            if executor.is_leader:
                checkpoint = checkpoints.load()
                if checkpoint is None:
                    plan = make_plan(matrix, config, executor.min_block_size, executor.ranks, start is not None)
                else:
                    plan = resume_plan(checkpoint[-1], config, executor.ranks, folder)
                needs = estimate_needs(matrix, config, plan, threads, folder, other_memory, in_place=executor.in_place)
                needs.announce(folder, progress)
            plan = executor.broadcast(plan)
            assert plan is not None

            job = TrainingJob(matrix, config, plan, threads, scratch, progress, should_stop, checkpoints.is_due)
            run = _TrainingRun(job, executor, checkpoints, should_stop)
            run.prepare(checkpoint, start)

        run.run_epochs()
        return run.finish()


def run_provenance(matrix: Matrix, config: TrainConfig, start: WarmStart | None) -> dict[str, Any]:
    """Return what the steps of a run depend on; a run is resumed only if all of it is the same."""
    provenance = {"matrix": matrix.fingerprint, "config": result_settings(config), "order": ORDER}
    if start is not None:
        provenance["init"] = start.fingerprint
    return provenance


class _TrainingRun:
    """One training run, from the first step or from a checkpoint to the end."""

    def __init__(
        self, job: TrainingJob, executor: Executor, checkpoints: CheckpointStore, should_stop: StopRequest
    ) -> None:
        self.job = job
        self.matrix = job.matrix
        self.config = job.config
        self.plan = job.plan

        self.executor = executor
        self.checkpoints = checkpoints
        self.should_stop = should_stop

        self.state = TrainingState()
        self.done = np.zeros(job.blocks, np.bool_)  # blocks trained in the current epoch
        # Only this epoch and the next are needed: an order has as many entries as the matrix has blocks.
        self.order_of_epoch = lru_cache(maxsize=2)(partial(_make_order, job.plan, job.config.seed))

    def prepare(self, checkpoint: Checkpoint | None, start: WarmStart | None) -> None:
        """Give the executor the initial or saved parameters, and report what will run."""
        self.executor.begin(self.job)
        sides = self.first_parameters(checkpoint, start) if self.executor.is_leader else None

        self.state, self.done = self.executor.broadcast((self.state, self.done))
        report = self.job.progress.message
        if self.steps_done:
            report(f"resuming after {self.steps_done:,} of {self.total_steps:,} steps")
        self.executor.hold(sides)
        self.order_of_epoch(self.state.epochs)  # Made here, where a signal acts at once.

        plan = self.plan
        rows, columns = self.matrix.shape
        is_sampled = choose_zeros(self.matrix, self.config, plan.device, self.job.blocks).share < 1
        if self.config.zeros == "sampled" and not is_sampled:
            report("computing all zeros: sampling needs rows and columns sorted by falling frequency")
        reason = ""  # why the CPU was chosen, if the settings leave the device open
        if plan.device == "cpu" and self.config.device == self.config.backend == "auto":
            reason = "; no CUDA device"
        report(
            f"training {rows:,} x {columns:,}, {plural(plan.epochs, 'epoch')} over "
            f"{plan.row_blocks} x {plan.column_blocks} blocks: {self.executor.describe()}{reason}"
        )

    def first_parameters(self, checkpoint: Checkpoint | None, start: WarmStart | None) -> Sides:
        """Return the parameters of the last checkpoint, and continue from its position, or initial ones."""
        if checkpoint is None:
            sums = self.matrix.row_sums, self.matrix.column_sums
            arrays = make_arrays(sums, self.job.orders, self.config, start=start, threads=self.job.threads)
        else:
            state, self.done, arrays, _ = checkpoint
            self.state = replace(state, saved=state.saved + 1)

        rows, columns = (
            ParameterBlock(arrays[side], arrays[f"{side}_accumulators"], offsets)
            for side, offsets in zip(SIDES, self.job.offsets(), strict=True)
        )
        return rows, columns

    @property
    def total_steps(self) -> int:
        """Number of steps in all epochs."""
        return self.plan.epochs * self.done.size

    @property
    def steps_done(self) -> int:
        """Number of steps taken so far."""
        return self.state.epochs * self.done.size + int(np.count_nonzero(self.done))

    @property
    def cells_per_step(self) -> float:
        """Mean number of cells in a block, observed or not."""
        return self.matrix.shape[0] * self.matrix.shape[1] / self.done.size

    def run_epochs(self) -> None:
        """Train all epochs that are left."""
        self.checkpoints.last = time.monotonic()
        with track(self.job.progress, "training", self.total_steps * self.cells_per_step, "cells") as task:
            task.advance(self.steps_done * self.cells_per_step)
            self._clock = time.perf_counter()

            # Since the last point of the training curves.
            self._recent_loss = Loss()
            self._point_step = self.steps_done
            self._point_time = self._clock

            while not self.is_complete():
                self.run_epoch(task)

    def is_complete(self) -> bool:
        """Return whether all epochs are done, or the last one lowered the mean loss by less than the tolerance."""
        history = self.state.history
        if self.config.stop == "converged" and len(history) >= 2:
            before = history[-2].mean
            if before - history[-1].mean < self.config.tolerance * before:
                return True
        return self.state.epochs >= self.plan.epochs

    def run_epoch(self, task: Task) -> None:
        """Train the remaining blocks of this epoch, saving a checkpoint whenever one is due."""
        number = self.state.epochs
        if not self.done.any():
            self.follow_ranks()
        while not self.done.all():
            for steps in self.executor.run(self.remaining_rounds(), self.order_of_epoch(number + 1)):
                self.record(steps, task)

            # The executor returns early when a checkpoint is due or a signal arrived. All ranks must agree, because
            # saving gathers the parameters of every rank.
            if self.executor.any_rank(self.job.should_pause()):
                self.save_checkpoint()
                if self.executor.any_rank(self.should_stop()):
                    if not self.should_stop():
                        self.should_stop.set()  # The signal arrived on another rank.
                    self.should_stop.raise_if_set()

        self.check_divergence()
        self.state = replace(self.state, epochs=number + 1, loss=Loss(), history=(*self.state.history, self.state.loss))
        self.done[:] = False

    def follow_ranks(self) -> None:
        """Make the order of the next epochs for the processes that there are now."""
        plan = self.executor.adapt(self.plan)
        if plan != self.plan:
            self.plan = plan
            self.order_of_epoch = lru_cache(maxsize=2)(partial(_make_order, plan, self.config.seed))

    def remaining_rounds(self) -> list[list[Step]]:
        """Return the rounds of this epoch that have blocks left."""
        epoch = self.state.epochs
        steps_before = epoch * self.done.size
        rounds = []

        for blocks in self.order_of_epoch(epoch):
            # All steps of a round have the learning rate of its first one, also after a pause within it. Random numbers
            # depend on the block and the epoch alone, so that any executor draws the same ones.
            learning_rate = self.learning_rate_after(steps_before)
            seed = self.config.seed, 2, epoch
            steps = [Step(block, learning_rate, (*seed, *block)) for block in blocks if not self.done[block]]
            if steps:
                rounds.append(steps)
            steps_before += len(blocks)
        return rounds

    def learning_rate_after(self, steps: int) -> float:
        """Return the learning rate after a number of steps; it is constant when training until convergence."""
        if self.config.stop == "epochs":
            return falling_rate(self.config.learning_rate, steps, self.total_steps)
        return self.config.learning_rate

    def record(self, steps: CompletedSteps, task: Task) -> None:
        """Mark blocks as done, add their losses and report progress."""
        blocks, losses = steps
        for block in blocks:
            self.done[block] = True

        # One after the other: however an executor groups the blocks, rounding is the same.
        epoch_loss = sum(losses, self.state.loss)
        new_loss = sum(losses, Loss())
        if not math.isfinite(epoch_loss.mean):
            raise self.diverged("the loss is not finite")

        now = time.perf_counter()
        # The first round of a run is computed with the initial vectors, and its blocks are like all others.
        initial = self.state.initial or new_loss.mean_observed
        seconds = self.state.seconds + now - self._clock
        self.state = replace(self.state, loss=epoch_loss, initial=initial, seconds=seconds)
        self._clock = now

        count = len(blocks)
        note = (
            f"epoch {self.state.epochs + 1}/{self.plan.epochs}, loss {epoch_loss.mean:.4f} "
            f"(observed {epoch_loss.mean_observed:.3f}, unobserved {epoch_loss.mean_unobserved:.5f})"
        )
        task.advance(count * self.cells_per_step, note + self.executor.note)
        learning_rate = self.learning_rate_after(self.steps_done - count)  # the one that these steps used
        self.measure(self._recent_loss + new_loss, learning_rate)

    def measure(self, loss: Loss, learning_rate: float) -> None:
        """Report a point of the training curves, if a twentieth of an epoch has passed since the last one.

        `loss` is that of the steps since then. Short and long runs get the same number of points per epoch.
        """
        self._recent_loss = loss
        steps = self.steps_done - self._point_step
        if steps < self.done.size // POINTS_PER_EPOCH:
            return

        values = {
            "loss/all": loss.mean,
            "loss/observed": loss.mean_observed,
            "loss/unobserved": loss.mean_unobserved,
            "learning rate": learning_rate,
            "cells per second": steps * self.cells_per_step / max(self._clock - self._point_time, 1e-9),
        }
        self.job.progress.measure(self.steps_done, values)

        self._recent_loss = Loss()
        self._point_step = self.steps_done
        self._point_time = self._clock

    def save_checkpoint(self) -> None:
        """Write a checkpoint, unless the run has diverged: the last good one must stay."""
        if self.checkpoints.folder is None:
            return
        self.check_divergence()
        sides = self.executor.fetch()
        if sides is not None:
            arrays: dict[str, Array] = {}
            for name, side in zip(SIDES, sides, strict=True):
                arrays |= {name: side.vectors, f"{name}_accumulators": side.state}
            self.state = self.checkpoints.save(self.state, self.done, arrays, asdict(self.plan))
        self.checkpoints.last = time.monotonic()  # also on ranks that write nothing

    def check_divergence(self) -> None:
        """Raise Diverged if the loss of this epoch is far above its initial value or a parameter is not finite."""
        # With small random vectors a cell loses about f(x) / 2 or more, and f(x) is at least b0. With the vectors of a
        # warm start it may lose far less.
        loss = self.state.loss.mean_observed
        initial = max(self.state.initial, self.config.confidence_base / 2)
        if loss > MAX_GROWTH * initial:
            raise self.diverged(f"the observed loss is {loss:.3g}, far above its initial value")

        # The loss does not show overflow: it was computed before the last update, and an accumulator that overflows
        # stops its vector from changing. Parameters are checked on the device.
        if not self.executor.is_finite():
            raise self.diverged("a vector is not finite")

    def diverged(self, problem: str) -> Diverged:
        """Return an error that says where training diverged and which settings to change."""
        config = self.config
        advice = "raise weight_decay"
        if config.weight_decay > MAX_ADVISED_DECAY:
            advice = f"lower weight_decay (now {config.weight_decay:g})"
        return Diverged(
            f"{problem} by step {self.steps_done:,} of {self.total_steps:,} (epoch {self.state.epochs + 1}): "
            f"the vectors grew without bound; lower learning_rate (now {config.learning_rate:g}) or {advice}. "
            "The last checkpoint, if any, is unchanged",
            argument=("learning_rate", "weight_decay"),
        )

    def finish(self) -> TrainingResult | None:
        """Return the vectors in vocabulary order; None on ranks that are not the leader."""
        self.check_divergence()
        sides = self.executor.fetch()
        if sides is None:
            return None

        vectors = []
        sums = self.matrix.row_sums, self.matrix.column_sums
        for side, order, side_sums in zip(sides, self.job.orders, sums, strict=True):
            values = np.asarray(side.vectors, np.float32)
            sort_rows(values, np.argsort(order), self.job.threads)
            # Without counts, a vector has no gradient except rounding errors. Make it exactly zero.
            values[side_sums <= 0] = 0
            vectors.append(values)

        rows, columns = vectors
        return TrainingResult(rows, columns, self.plan, self.state.history, self.state.seconds)


def sort_rows(values: Array, order: NDArray[np.int64], threads: int) -> None:
    """Bring rows into another order in place: `values` becomes `values[order]`, without a second copy."""
    dim = values.shape[1]
    run_in_chunks(lambda piece: permute_rows(values[:, piece], order), dim, rows=-(-dim // threads), threads=threads)


def _make_order(plan: TrainingPlan, seed: int, epoch: int) -> list[list[Block]]:
    """Return the rounds of an epoch, in an order that depends on the plan, the seed and the epoch alone."""
    blocks = plan.row_blocks, plan.column_blocks
    epoch_seed = seed, 1, epoch
    if plan.ranks > 1:
        return rounds_for_ranks(*blocks, plan.ranks, epoch_seed)
    if plan.groups is None:
        return rounds_without_conflict(*blocks, epoch_seed)
    return rounds_in_groups(*blocks, *plan.groups, epoch_seed)
