"""THE loop: schedule x backend. It knows no device and no file but the checkpoints' folder.

Receives a matrix of blocks and a configuration, hands on trained rows and columns in the vocabulary's order. How
they become the vectors that users get is `vectors`' affair.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.backends import (
    Backend,
    BackendMeans,
    Side,
    Step,
    StepSettings,
    Zeros,
    create_backend,
)
from swivel.backends.base import ObservedCells, Running
from swivel.checkpoint import Place, load_checkpoint, load_plan, save_checkpoint, save_plan
from swivel.config import TrainConfig, result_settings
from swivel.errors import Diverged, TrainingError
from swivel.initial import Start, fewer_passes, make_arrays
from swivel.interrupts import StopRequest, stop_on_signals
from swivel.objective import Loss, Objective, column_offsets, observed_targets, row_offsets
from swivel.planning import (
    BlockedMatrix,
    Plan,
    check_plan,
    describe_load,
    make_plan,
    read_plan,
    wants_sample,
)
from swivel.progress import SILENT, Progress, Task, track
from swivel.resources import parse_bytes
from swivel.schedule import (
    Block,
    block_order,
    block_starts,
    falling_rate,
    rounds_in_groups,
    rounds_without_conflict,
)
from swivel.storage import fingerprint, scratch_folder

Array = NDArray[np.float32]
ORDER = 2  # of blocks and of what is drawn: a run that another order began does not go on in this one
MOST_GROWTH = 100  # of the observed loss, over that of small random vectors: more is divergence
START_BLOCKS, START_CELLS = 32, 1_000_000  # blocks that it is taken from, or cells, whichever is reached first


@dataclass(frozen=True, slots=True)
class Trained:
    """Rows and columns in the vocabulary's order, and how they came about."""

    rows: Array
    columns: Array
    plan: Plan
    history: tuple[Loss, ...]
    seconds: float


def train_matrix(
    matrix: BlockedMatrix,
    config: TrainConfig,
    *,
    folder: Path,
    threads: int,
    progress: Progress = SILENT,
    start: Start | None = None,
) -> Trained:
    """Train row and column vectors for a matrix, from small random ones or from a warm `start`.

    `folder` is where checkpoints live while the run lasts; a run that was killed goes on from the last one when it
    is called again with the same matrix and configuration. Ctrl-C and SIGTERM save one first.
    """
    if max(matrix.shape) == 0 or matrix.total <= 0:
        raise TrainingError("the matrix has no counts: there is nothing to train on")
    if config.device_memory is not None:
        parse_bytes(config.device_memory)  # A slip is told whatever the device.
    made_from = {"matrix": matrix.fingerprint, "config": result_settings(config), "order": ORDER}
    identity = fingerprint(made_from | ({"init": start.fingerprint} if start else {}))
    saved = load_plan(folder, identity)
    plan = read_plan(saved, folder) if saved else _make_plan(matrix, config, start)
    if saved is None:
        save_plan(folder, identity, asdict(plan))
    else:
        check_plan(plan, config, folder)
    run = _Run(matrix, config, plan, _Saver(folder, identity, config.checkpoint_minutes), start)
    with (
        scratch_folder(folder) as scratch,
        stop_on_signals() as should_stop,
        contextlib.closing(run.create_backend(threads, progress)) as backend,
    ):
        if not backend.lays_out:
            run.matrix = _reblock(matrix, plan, scratch, threads, progress)
        return run.train(backend, progress, should_stop)


def _make_plan(matrix: BlockedMatrix, config: TrainConfig, start: Start | None) -> Plan:
    plan = make_plan(matrix, config)
    is_open = config.passes is None and config.end == "passes"
    return replace(plan, passes=fewer_passes(plan.passes)) if start and is_open else plan


def _reblock(matrix: BlockedMatrix, plan: Plan, scratch: Path, threads: int, progress: Progress) -> BlockedMatrix:
    if (plan.row_blocks, plan.column_blocks) != (matrix.row_blocks, matrix.column_blocks):
        progress.say(
            f"re-blocking the matrix from {matrix.row_blocks} x {matrix.column_blocks} "
            f"to {plan.row_blocks} x {plan.column_blocks} blocks"
        )
    return matrix.reblocked(plan.row_blocks, plan.column_blocks, scratch=scratch, threads=threads)


@dataclass(slots=True)
class _Saver:
    """Saves the state of a run at intervals."""

    folder: Path
    identity: str
    minutes: float
    last: float = 0.0

    def is_due(self) -> bool:
        return self.minutes > 0 and time.monotonic() - self.last >= 60 * self.minutes

    def save(self, place: Place, arrays: dict[str, Array]) -> Place:
        save_checkpoint(self.folder, self.identity, place, arrays)
        self.last = time.monotonic()
        return replace(place, saved=place.saved + 1)


class _Run:
    """One training run, from the first step or from a checkpoint to the end."""

    def __init__(
        self, matrix: BlockedMatrix, config: TrainConfig, plan: Plan, saver: _Saver, start: Start | None
    ) -> None:
        self.matrix, self.config, self.plan, self.saver, self.start = matrix, config, plan, saver, start
        self.objective = Objective.from_config(config)
        self.place = Place()
        self.threads = 1
        self._clock = 0.0
        self._orders: dict[int, list[list[Block]]] = {}
        self.row_starts = block_starts(matrix.shape[0], plan.row_blocks)
        self.column_starts = block_starts(matrix.shape[1], plan.column_blocks)
        self.row_order = block_order(matrix.shape[0], plan.row_blocks)
        self.column_order = block_order(matrix.shape[1], plan.column_blocks)

    def create_backend(self, threads: int, progress: Progress) -> Backend:
        plan = self.plan
        load = describe_load(self.matrix, self.config, (plan.row_blocks, plan.column_blocks), plan.device)
        self.threads = threads
        memory = self.config.device_memory
        means = BackendMeans(plan.device, plan.dtype, threads, memory, plan.groups, load.cells, load.is_halved)
        return create_backend(plan.backend, self._settings(load.zeros, progress), means)

    def train(self, backend: Backend, progress: Progress, should_stop: StopRequest) -> Trained:
        plan, (rows, columns) = self.plan, self.matrix.shape
        self._hand_over(backend, self._restore(progress) or self._initial_arrays())
        progress.say(
            f"training {rows:,} x {columns:,}, {plan.passes} passes over {plan.row_blocks} x {plan.column_blocks} "
            f"blocks: {backend.describe()}{self._why_not_cuda()}"
        )
        self.saver.last = time.monotonic()
        self._run_passes(backend, progress, should_stop)
        return self._finish(backend)

    def _why_not_cuda(self) -> str:
        is_open = self.config.device == "auto" and self.config.backend == "auto"
        return "; no CUDA device here" if is_open and self.plan.device == "cpu" else ""

    def _settings(self, zeros: Zeros, progress: Progress) -> StepSettings:
        config = self.config
        plan = self.plan.device, (self.plan.row_blocks, self.plan.column_blocks)
        if wants_sample(config, *plan) and zeros == Zeros():
            progress.say("all zeros are computed: sampling needs rows and columns sorted by falling frequency")
        return StepSettings(self.objective, zeros, config.decay)

    def _initial_arrays(self) -> dict[str, Array]:
        sums, orders = (self.matrix.row_sums, self.matrix.column_sums), (self.row_order, self.column_order)
        return make_arrays(sums, orders, self.config, start=self.start, threads=self.threads)

    def _restore(self, progress: Progress) -> dict[str, Array] | None:
        saved = load_checkpoint(self.saver.folder, self.saver.identity)
        if saved is None:
            return None
        self.place = replace(saved.place, saved=saved.place.saved + 1)
        progress.say(f"going on after {self._done_steps():,} of {self._all_steps():,} steps")
        return dict(saved.arrays)

    def _hand_over(self, backend: Backend, arrays: dict[str, Array]) -> None:
        """Give the backend the parameters, and all cells where it lays blocks out itself."""
        matrix, objective = self.matrix, self.objective
        row_offset = row_offsets(matrix.row_sums, matrix.total, objective)[self.row_order].astype(np.float32)
        column_offset = column_offsets(matrix.column_sums, objective)[self.column_order].astype(np.float32)
        rows = Side(arrays["rows"], arrays["rows_accumulators"], row_offset)
        columns = Side(arrays["columns"], arrays["columns_accumulators"], column_offset)
        backend.hold(rows, columns, (self.row_starts, self.column_starts))
        if backend.lays_out:
            backend.take(matrix.stored)

    def _all_steps(self) -> int:
        return self.plan.passes * self.plan.row_blocks * self.plan.column_blocks

    def _done_steps(self) -> int:
        plan, place = self.plan, self.place
        before = sum(len(blocks) for blocks in self._rounds(place.passes)[: place.rounds])
        return place.passes * plan.row_blocks * plan.column_blocks + before + place.steps

    def _rounds(self, number: int) -> list[list[Block]]:
        """Return the order of a pass."""
        plan, seed = self.plan, (self.config.seed, 1, number)
        if number not in self._orders:
            if plan.groups is None:
                order = rounds_without_conflict(plan.row_blocks, plan.column_blocks, seed)
            else:
                order = rounds_in_groups(plan.row_blocks, plan.column_blocks, *plan.groups, seed)
            self._orders = {kept: self._orders[kept] for kept in self._orders if kept >= self.place.passes}
            self._orders[number] = order
        return self._orders[number]

    def _run_passes(self, backend: Backend, progress: Progress, should_stop: StopRequest) -> None:
        cells_per_step = self.matrix.shape[0] * self.matrix.shape[1] / (self.plan.row_blocks * self.plan.column_blocks)
        with track(progress, "training", self._all_steps() * cells_per_step, "cells") as task:
            task.advance(self._done_steps() * cells_per_step)
            self._clock = time.perf_counter()
            while self.place.passes < self.plan.passes and not self._has_converged():
                self._run_pass(backend, task, cells_per_step, should_stop)

    def _has_converged(self) -> bool:
        history = self.place.history
        if self.config.end != "converged" or len(history) < 2:
            return False
        before, now = history[-2].mean, history[-1].mean
        return before - now < self.config.tolerance * before

    def _run_pass(self, backend: Backend, task: Task, cells_per_step: float, should_stop: StopRequest) -> None:
        number = self.place.passes
        rounds = self._rounds(number)
        backend.expect([*rounds[self.place.rounds :], *self._rounds(number + 1)])
        running: Running | None = None
        while self.place.rounds < len(rounds):
            steps = self._steps(rounds[self.place.rounds])[self.place.steps :]
            begun = backend.run(steps, should_stop)
            # One round runs while the next is being made ready: what it lost is asked for a round later.
            self._collect(running, task, cells_per_step)
            running = begun
            self._advance(begun.steps, len(steps))
            if should_stop() or self.saver.is_due():
                self._collect(running, task, cells_per_step)
                running = None
                self._save(backend)
                should_stop.raise_if_set()
        self._collect(running, task, cells_per_step)
        if self.place.loss.mean_observed > MOST_GROWTH * self._starting_loss:
            raise self._diverged(f"the observed loss is {self.place.loss.mean_observed:.3g}, far above its start")
        history = (*self.place.history, self.place.loss)
        self.place = replace(self.place, passes=number + 1, rounds=0, steps=0, loss=Loss(), history=history)
        if should_stop():  # while the last round was being waited for
            self._save(backend)
            should_stop.raise_if_set()

    @cached_property
    def _starting_loss(self) -> float:
        return starting_loss(self.matrix, self.objective)

    def _steps(self, blocks: Sequence[tuple[int, int]]) -> list[Step]:
        rate = self.config.rate
        if self.config.end == "passes":
            rate = falling_rate(rate, self._done_steps() - self.place.steps, self._all_steps())
        return [self._step(i, j, rate) for i, j in blocks]

    def _step(self, i: int, j: int, rate: float) -> Step:
        def load() -> ObservedCells:
            return self.matrix.cells(i, j)

        return Step((i, j), load, rate, (self.config.seed, 2, self.place.passes, i, j))

    def _advance(self, begun: int, asked: int) -> None:
        rounds = self.place.rounds + (begun == asked)
        self.place = replace(self.place, rounds=rounds, steps=0 if begun == asked else self.place.steps + begun)

    def _collect(self, running: Running | None, task: Task, cells_per_step: float) -> None:
        """Wait for steps and add what they lost."""
        if running is None:
            return
        loss = sum(running.losses(), self.place.loss)
        if not self.objective.pushes:
            loss = replace(loss, unobserved_cells=0)  # They say nothing: the mean is that of the observed.
        if not math.isfinite(loss.mean):
            raise self._diverged("the loss is not finite")
        now = time.perf_counter()
        self.place = replace(self.place, loss=loss, seconds=self.place.seconds + now - self._clock)
        self._clock = now
        task.advance(running.steps * cells_per_step, self._note())

    def _diverged(self, what: str) -> Diverged:
        return Diverged(
            f"{what} by step {self._done_steps():,} of {self._all_steps():,} (pass {self.place.passes + 1}): "
            f"the vectors grew without bound; lower --rate (now {self.config.rate:g}) or raise --decay. "
            "The last checkpoint, if any, is untouched"
        )

    def _note(self) -> str:
        loss = self.place.loss
        return (
            f"pass {self.place.passes + 1}/{self.plan.passes}, loss {loss.mean:.4f} "
            f"(observed {loss.mean_observed:.3f}, unobserved {loss.mean_unobserved:.5f})"
        )

    def _fetch(self, backend: Backend) -> dict[str, Array]:
        """Return all parameters, or raise Diverged where one is not finite: the loss is of the step before."""
        rows, columns = backend.fetch()
        arrays = {
            "rows": rows.vectors,
            "rows_accumulators": rows.accumulators,
            "columns": columns.vectors,
            "columns_accumulators": columns.accumulators,
        }
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise self._diverged("a vector is not finite")
        return arrays

    def _save(self, backend: Backend) -> None:
        self.place = self.saver.save(self.place, self._fetch(backend))

    def _finish(self, backend: Backend) -> Trained:
        arrays = self._fetch(backend)
        dim = self.config.dim  # without biases
        rows = _in_vocabulary_order(arrays["rows"][:, :dim], self.row_order)
        columns = _in_vocabulary_order(arrays["columns"][:, :dim], self.column_order)
        # A feature without counts has no gradient but rounding's; its vector is zero, exactly.
        rows[self.matrix.row_sums <= 0] = 0
        columns[self.matrix.column_sums <= 0] = 0
        return Trained(rows, columns, self.plan, self.place.history, self.place.seconds)


def starting_loss(matrix: BlockedMatrix, objective: Objective) -> float:
    """Return the mean loss of an observed cell under small random vectors, from a sample of blocks.

    Their products are within 1 of zero: at most about (pmi^2 + 1) f / 2.
    """
    rows = row_offsets(matrix.row_sums, matrix.total, objective)
    columns = column_offsets(matrix.column_sums, objective)
    height, width = matrix.row_blocks, matrix.column_blocks
    total, cells = 0.0, 0
    for n in range(min(START_BLOCKS, height * width)):
        i, j = n % height, (n + n // height) % width
        found = matrix.cells(i, j)
        a, b = found.positions >> 16, found.positions & 0xFFFF
        offsets = rows[i::height][b if found.mirrored else a] + columns[j::width][a if found.mirrored else b]
        counts = found.counts.astype(np.float64)
        squares = observed_targets(counts, offsets) ** 2 + 1
        total += float((0.5 * objective.confidence(counts) * squares).sum())
        cells += len(counts)
        if cells > START_CELLS:
            break
    return total / cells if total else math.inf


def _in_vocabulary_order(blocked: Array, order: NDArray[np.int64]) -> Array:
    vectors = np.empty(blocked.shape, np.float32)
    vectors[order] = blocked
    return vectors
