"""THE loop: schedule x backend. It knows no device and no file but the checkpoints' folder.

Receives a matrix of blocks and a configuration, hands on trained rows and columns in the vocabulary's order. How
they become the vectors that users get is `vectors`' affair.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig, result_settings
from swivel.errors import Diverged, TrainingError
from swivel.runtime.progress import SILENT, Progress, Task, track
from swivel.runtime.resources import parse_bytes
from swivel.runtime.signals import StopRequest, stop_on_signals
from swivel.storage import fingerprint, scratch_folder
from swivel.training.backends import ParameterBlock
from swivel.training.checkpoint import Checkpoint, CheckpointStore, TrainingState, place_from, saved_bytes
from swivel.training.executor import (
    CompletedSteps,
    Executor,
    LocalExecutor,
    LocalResources,
    PauseRequests,
    Round,
    Sides,
    TrainingJob,
)
from swivel.training.initialization import WarmStart, fewer_epochs, make_arrays
from swivel.training.metrics import TrainingMetrics
from swivel.training.objective import Loss, Objective, column_offsets, observed_targets, row_offsets
from swivel.training.plan import BlockedMatrix, TrainingPlan, check_plan, estimate_needs, make_plan, read_plan
from swivel.training.schedule import (
    Block,
    block_order,
    falling_rate,
    rounds_for_ranks,
    rounds_in_groups,
    rounds_without_conflict,
)

Array = NDArray[np.float32]
ORDER = 2  # of blocks and of what is drawn: a run that another order began does not go on in this one
MOST_GROWTH = 100  # of the observed loss, over that of small random vectors: more is divergence
MOST_DECAY = 1e-2  # more shrinks vectors so hard that raising it is no advice
START_BLOCKS, START_CELLS = 32, 1_000_000  # blocks that it is taken from, or cells, whichever is reached first


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Rows and columns in the vocabulary's order, and how they came about."""

    rows: Array
    columns: Array
    plan: TrainingPlan
    history: tuple[Loss, ...]
    seconds: float


def train_matrix(
    matrix: BlockedMatrix,
    config: TrainConfig,
    *,
    folder: Path,
    threads: int,
    progress: Progress = SILENT,
    start: WarmStart | None = None,
    workers: Executor | None = None,
) -> TrainingResult | None:
    """Train row and column vectors for a matrix, from small random ones or from a warm `start`.

    `folder` is where checkpoints live while the run lasts; a run that was killed goes on from the last one when it
    is called again with the same matrix and configuration, by these `workers` or by others. Ctrl-C and SIGTERM save
    one first. `workers` are closed at the end. Where several processes run this loop together, those that do not lead
    return None.
    """
    if max(matrix.shape) == 0 or matrix.total <= 0:
        raise TrainingError("the matrix has no counts: there is nothing to train on")
    if config.device_memory is not None:
        parse_bytes(config.device_memory)  # A slip is told whatever the device.
    provenance = {"matrix": matrix.fingerprint, "config": result_settings(config), "order": ORDER}
    identity = fingerprint(provenance | ({"init": start.fingerprint} if start else {}))
    saver = CheckpointStore(folder, identity, config.checkpoint_minutes, progress)
    with (
        scratch_folder(folder) as scratch,
        stop_on_signals() as should_stop,
        contextlib.closing(workers or LocalExecutor()) as team,
    ):
        # Nothing is trained yet; of several processes none leaves alone, while others wait for it.
        with should_stop.acting_at_once() if team.ranks == 1 else contextlib.nullcontext():
            plan = _lead_plan(matrix, config, saver, team, start) if team.is_leader else None
            if plan is not None:
                estimate_needs(matrix, config, plan, threads, saved_bytes(folder)).announce(folder, progress)
                saver.keep_plan(asdict(plan))
            plan = read_plan(json.loads(team.broadcast(json.dumps(asdict(plan) if plan else {}))), folder)
            run = _TrainingRun(TrainingJob(matrix, config, plan), team, saver, should_stop)
            run.prepare(LocalResources(scratch, threads, progress), start)
        return run.train(progress)


def _lead_plan(
    matrix: BlockedMatrix, config: TrainConfig, saver: CheckpointStore, team: Executor, start: WarmStart | None
) -> TrainingPlan:
    """Return the plan that was written down, or make one."""
    saved = saver.find_plan()
    if saved is None:
        plan = _make_plan(matrix, config, start, team.min_block_size)
        plan = replace(plan, ranks=config.ranks or team.ranks)
    else:
        plan = read_plan(saved, saver.folder)
        check_plan(plan, config, saver.folder)
        if config.ranks is None and team.ranks > 1:  # One process can keep any order; ranks want their own.
            plan = replace(plan, ranks=team.ranks)
    return plan


def _make_plan(
    matrix: BlockedMatrix, config: TrainConfig, start: WarmStart | None, min_block_size: int
) -> TrainingPlan:
    plan = make_plan(matrix, config, min_block_size)
    is_open = config.epochs is None and config.end == "epochs"
    return replace(plan, epochs=fewer_epochs(plan.epochs)) if start and is_open else plan


class _TrainingRun:
    """One training run, from the first step or from a checkpoint to the end."""

    def __init__(self, job: TrainingJob, workers: Executor, saver: CheckpointStore, should_stop: StopRequest) -> None:
        self.job, self.workers, self.saver, self.should_stop = job, workers, saver, should_stop
        self.matrix, self.config, self.plan = job.matrix, job.config, job.plan
        self.objective = Objective.from_config(job.config)
        self.place = TrainingState()
        self.done = np.zeros(job.blocks, np.bool_)  # blocks of the epoch that is under way
        self._clock = 0.0
        self._orders: dict[int, list[list[Block]]] = {}
        self.row_order = block_order(self.matrix.shape[0], self.plan.row_blocks)
        self.column_order = block_order(self.matrix.shape[1], self.plan.column_blocks)

    def prepare(self, here: LocalResources, start: WarmStart | None) -> None:
        """Make ready for the first step, or for the one after the last that was saved."""
        plan, (rows, columns) = self.plan, self.matrix.shape
        self.workers.begin(self.job, here)
        self.workers.hold(self._agree_on_start(here, start))
        if self.job.wants_sample() and not self.job.is_sampled():
            here.progress.message("all zeros are computed: sampling needs rows and columns sorted by falling frequency")
        here.progress.message(
            f"training {rows:,} x {columns:,}, {plan.epochs} epochs over {plan.row_blocks} x {plan.column_blocks} "
            f"blocks: {self.workers.describe()}{self._why_not_cuda()}"
        )

    def train(self, progress: Progress) -> TrainingResult | None:
        """Run all epochs that are left."""
        self.saver.last = time.monotonic()
        self._meter = TrainingMetrics(progress, self.done.size)
        self._run_epochs(progress)
        return self._finish()

    def _why_not_cuda(self) -> str:
        is_open = self.config.device == "auto" and self.config.backend == "auto"
        return "; no CUDA device here" if is_open and self.plan.device == "cpu" else ""

    def _agree_on_start(self, here: LocalResources, start: WarmStart | None) -> Sides | None:
        """Return the parameters to begin with, and have all processes of this loop begin at the same place."""
        arrays = (self._restore() or self._initial_arrays(start, here.threads)) if self.workers.is_leader else None
        told = json.dumps([asdict(self.place), np.flatnonzero(self.done).tolist()])
        place, done = json.loads(self.workers.broadcast(told))
        self.place = place_from(place)
        self.done.flat[done] = True
        if self._done_steps():
            here.progress.message(f"going on after {self._done_steps():,} of {self._all_steps():,} steps")
        return None if arrays is None else self._sides(arrays)

    def _initial_arrays(self, start: WarmStart | None, threads: int) -> dict[str, Array]:
        sums, orders = (self.matrix.row_sums, self.matrix.column_sums), (self.row_order, self.column_order)
        return make_arrays(sums, orders, self.config, start=start, threads=threads)

    def _restore(self) -> dict[str, Array] | None:
        saved = self.saver.load(self.done.shape)
        if saved is None:
            return None
        self.place = replace(saved.place, saved=saved.place.saved + 1)
        self.done = saved.done
        return dict(saved.arrays)

    def _sides(self, arrays: dict[str, Array]) -> Sides:
        matrix, objective = self.matrix, self.objective
        row_offset = row_offsets(matrix.row_sums, matrix.total, objective)[self.row_order].astype(np.float32)
        column_offset = column_offsets(matrix.column_sums, objective)[self.column_order].astype(np.float32)
        rows = ParameterBlock(arrays["rows"], arrays["rows_accumulators"], row_offset)
        return rows, ParameterBlock(arrays["columns"], arrays["columns_accumulators"], column_offset)

    def _all_steps(self) -> int:
        return self.plan.epochs * self.done.size

    def _done_steps(self) -> int:
        return self.place.epochs * self.done.size + int(np.count_nonzero(self.done))

    def _order(self, number: int) -> list[list[Block]]:
        """Return the order of an epoch."""
        plan, seed = self.plan, (self.config.seed, 1, number)
        if number not in self._orders:
            if plan.ranks > 1:
                order = rounds_for_ranks(plan.row_blocks, plan.column_blocks, plan.ranks, seed)
            elif plan.groups is None:
                order = rounds_without_conflict(plan.row_blocks, plan.column_blocks, seed)
            else:
                order = rounds_in_groups(plan.row_blocks, plan.column_blocks, *plan.groups, seed)
            self._orders = {kept: self._orders[kept] for kept in self._orders if kept >= self.place.epochs}
            self._orders[number] = order
        return self._orders[number]

    def _rounds_left(self) -> list[Round]:
        """Return what is left of the epoch that is under way, each round with the rate that falls to it."""
        number, rounds = self.place.epochs, []
        before = number * self.done.size
        for blocks in self._order(number):
            left = [block for block in blocks if not self.done[block]]
            if left:
                rounds.append(Round(number, left, self._rate(before)))
            before += len(blocks)
        return rounds

    def _rate(self, before: int) -> float:
        learning_rate = self.config.learning_rate
        return falling_rate(learning_rate, before, self._all_steps()) if self.config.end == "epochs" else learning_rate

    def _run_epochs(self, progress: Progress) -> None:
        with track(progress, "training", self._all_steps() * self._cells_per_step, "cells") as task:
            task.advance(self._done_steps() * self._cells_per_step)
            self._clock = time.perf_counter()
            while self.place.epochs < self.plan.epochs and not self._has_converged():
                self._run_epoch(task)

    @property
    def _cells_per_step(self) -> float:
        return self.matrix.shape[0] * self.matrix.shape[1] / self.done.size

    def _has_converged(self) -> bool:
        history = self.place.history
        if self.config.end != "converged" or len(history) < 2:
            return False
        before, now = history[-2].mean, history[-1].mean
        return before - now < self.config.tolerance * before

    def _run_epoch(self, task: Task) -> None:
        number = self.place.epochs
        wishes = PauseRequests(self.should_stop, self.saver.is_due)
        while not self.done.all():
            for done in self.workers.run(self._rounds_left(), self._order(number + 1), wishes):
                self._collect(done, task)
            if self.workers.any_rank(wishes.pause()):
                self._save()
                self._leave_if_asked()
        self._check_growth()
        self._check_overflow()
        history = (*self.place.history, self.place.loss)
        self.place = replace(self.place, epochs=number + 1, loss=Loss(), history=history)
        self.done[:] = False

    def _leave_if_asked(self) -> None:
        if self.workers.any_rank(self.should_stop()):
            if not self.should_stop():
                self.should_stop.set()  # Another process was asked.
            self.should_stop.raise_if_set()

    def _check_growth(self) -> None:
        """Raise Diverged where the observed cells of this epoch lose far more than under small random vectors."""
        loss = self.place.loss
        # A cell loses f(x) / 2 at least under such vectors, and f(x) is b0 at least. Mostly that settles it, and the
        # loss at the start, which takes longer than an epoch on a GPU, need not be computed.
        if loss.mean_observed <= MOST_GROWTH * self.objective.confidence_base / 2:
            return
        if loss.mean_observed <= MOST_GROWTH * self._sampled_start.mean_observed:
            return
        if loss.observed > MOST_GROWTH * self._whole_start.observed:  # A few huge counts may lie outside the sample.
            raise self._diverged(f"the observed loss is {loss.mean_observed:.3g}, far above its start")

    def _check_overflow(self) -> None:
        """Raise Diverged where a parameter is not finite, computed where the parameters are.

        The loss does not show it: it is that of the step before, and an accumulator that overflows holds its vector
        still.
        """
        if not self.workers.is_finite():
            raise self._diverged("a vector is not finite")

    @cached_property
    def _sampled_start(self) -> Loss:
        return starting_loss(self.matrix, self.objective, START_BLOCKS, START_CELLS)

    @cached_property
    def _whole_start(self) -> Loss:
        return starting_loss(self.matrix, self.objective)

    def _collect(self, done: CompletedSteps, task: Task) -> None:
        """Add what steps lost."""
        for block in done.blocks:
            self.done[block] = True
        loss, lost = sum(done.losses, self.place.loss), sum(done.losses, Loss())
        if not self.objective.pushes:  # Zeros say nothing: the mean is that of the observed.
            loss, lost = replace(loss, unobserved_cells=0), replace(lost, unobserved_cells=0)
        if not math.isfinite(loss.mean):
            raise self._diverged("the loss is not finite")
        now = time.perf_counter()
        self.place = replace(self.place, loss=loss, seconds=self.place.seconds + now - self._clock)
        self._clock = now
        task.advance(len(done.blocks) * self._cells_per_step, self._note() + done.note)
        step = self._done_steps()
        learning_rate = self._rate(step - len(done.blocks))  # that they were taken at
        self._meter.add(lost, len(done.blocks), self._cells_per_step, learning_rate, step)

    def _diverged(self, what: str) -> Diverged:
        config = self.config
        advice = (
            "raise --weight-decay"
            if config.weight_decay <= MOST_DECAY
            else f"lower --weight-decay (now {config.weight_decay:g})"
        )
        return Diverged(
            f"{what} by step {self._done_steps():,} of {self._all_steps():,} (epoch {self.place.epochs + 1}): "
            f"the vectors grew without bound; lower --learning-rate (now {config.learning_rate:g}) or {advice}. "
            "The last checkpoint, if any, is untouched"
        )

    def _note(self) -> str:
        loss = self.place.loss
        return (
            f"epoch {self.place.epochs + 1}/{self.plan.epochs}, loss {loss.mean:.4f} "
            f"(observed {loss.mean_observed:.3f}, unobserved {loss.mean_unobserved:.5f})"
        )

    def _fetch(self) -> dict[str, Array] | None:
        """Return all parameters as host arrays, or None where this process does not lead."""
        self._check_overflow()
        sides = self.workers.fetch()
        if sides is None:
            return None
        rows, columns = sides
        return {
            "rows": rows.vectors,
            "rows_accumulators": rows.accumulators,
            "columns": columns.vectors,
            "columns_accumulators": columns.accumulators,
        }

    def _save(self) -> None:
        self._check_growth()  # before it takes the place of a better one
        arrays = self._fetch()
        if arrays is not None:
            self.place = self.saver.save(Checkpoint(self.place, self.done, arrays, asdict(self.plan)))
        self.saver.last = time.monotonic()

    def _finish(self) -> TrainingResult | None:
        arrays = self._fetch()
        if arrays is None:
            return None
        dim = self.config.dim  # without biases
        rows = _in_vocabulary_order(arrays["rows"][:, :dim], self.row_order)
        columns = _in_vocabulary_order(arrays["columns"][:, :dim], self.column_order)
        # A feature without counts has no gradient but rounding's; its vector is zero, exactly.
        rows[self.matrix.row_sums <= 0] = 0
        columns[self.matrix.column_sums <= 0] = 0
        return TrainingResult(rows, columns, self.plan, self.place.history, self.place.seconds)


def starting_loss(
    matrix: BlockedMatrix, objective: Objective, most_blocks: float = math.inf, most_cells: float = math.inf
) -> Loss:
    """Return the loss of the observed cells under small random vectors, of all of them or of a sample of blocks.

    Their products are within 1 of zero: at most about (pmi^2 + 1) f / 2 each. Without a cell it is infinite.
    """
    rows = row_offsets(matrix.row_sums, matrix.total, objective)
    columns = column_offsets(matrix.column_sums, objective)
    height, width = matrix.row_blocks, matrix.column_blocks
    found = Loss()
    for n in range(int(min(most_blocks, height * width))):
        i, j = n % height, (n % height + n // height) % width
        cells = matrix.cells(i, j)
        a, b = cells.positions >> 16, cells.positions & 0xFFFF
        offsets = rows[i::height][b if cells.mirrored else a] + columns[j::width][a if cells.mirrored else b]
        counts = cells.counts.astype(np.float64)
        squares = observed_targets(counts, offsets) ** 2 + 1
        found += Loss(float((0.5 * objective.confidence(counts) * squares).sum()), len(counts))
        if found.observed_cells > most_cells:
            break
    return found if found.observed else Loss(math.inf, 1)


def _in_vocabulary_order(blocked: Array, order: NDArray[np.int64]) -> Array:
    vectors = np.empty(blocked.shape, np.float32)
    vectors[order] = blocked
    return vectors
