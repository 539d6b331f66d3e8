"""THE loop: schedule x backend. It knows no device and no file but the checkpoints' folder.

Receives a matrix of blocks and a configuration, hands on trained rows and columns in the vocabulary's order. How
they become the vectors that users get is `vectors`' affair.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swivel.backends import Backend, Side, Step, StepSettings, Zeros, choose_backend, choose_dtype, create_backend
from swivel.backends.base import ObservedCells
from swivel.checkpoint import Place, load_checkpoint, load_plan, save_checkpoint, save_plan
from swivel.config import TrainConfig, result_settings
from swivel.errors import DamagedFolder, Diverged, TrainingError
from swivel.interrupts import StopRequest, stop_on_signals
from swivel.objective import Loss, Objective, column_offsets, observed_targets, row_offsets
from swivel.progress import SILENT, Progress, Task, track
from swivel.schedule import (
    block_order,
    block_starts,
    choose_block_count,
    default_block_size,
    default_passes,
    falling_rate,
    is_sorted_enough,
    rounds_without_conflict,
)
from swivel.storage import fingerprint, scratch_folder

Array = NDArray[np.float32]
MOST_PASSES = 100  # with end="converged"
MOST_GROWTH = 100  # of the observed loss, over that of small random vectors: more is divergence
START_BLOCKS = 32  # blocks that it is taken from


class BlockedMatrix(Protocol):
    """What the loop needs of a matrix."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def row_blocks(self) -> int:
        """Number of row blocks."""

    @property
    def column_blocks(self) -> int:
        """Number of column blocks."""

    @property
    def row_sums(self) -> NDArray[np.float64]:
        """Sum of each row."""

    @property
    def column_sums(self) -> NDArray[np.float64]:
        """Sum of each column."""

    @property
    def total(self) -> float:
        """Sum of all counts."""

    @property
    def fingerprint(self) -> str:
        """Digest of the content."""

    def cells(self, i: int, j: int) -> ObservedCells:
        """Observed cells of a block."""

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int) -> BlockedMatrix:
        """The same matrix in other blocks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was chosen for a run, once."""

    row_blocks: int
    column_blocks: int
    passes: int
    backend: str
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Trained:
    """Rows and columns in the vocabulary's order, and how they came about."""

    rows: Array
    columns: Array
    plan: Plan
    history: tuple[Loss, ...]
    seconds: float


def make_plan(matrix: BlockedMatrix, config: TrainConfig) -> Plan:
    """Choose block size, passes, backend and dtype, where the configuration leaves them open."""
    rows, columns = matrix.shape
    backend, device = choose_backend(config)
    if config.block_size is None:
        size = default_block_size(rows, columns, device)
        row_blocks = choose_block_count(rows, size, matrix.row_blocks)
        column_blocks = choose_block_count(columns, size, matrix.column_blocks)
    else:
        row_blocks, column_blocks = math.ceil(rows / config.block_size), math.ceil(columns / config.block_size)
    most = MOST_PASSES if config.end == "converged" else default_passes(row_blocks, column_blocks)
    passes = config.passes or most
    dtype = choose_dtype(config, backend, device, cells=float(rows) * columns * passes)
    return Plan(row_blocks, column_blocks, passes, backend, device, dtype)


def train_matrix(
    matrix: BlockedMatrix, config: TrainConfig, *, folder: Path, threads: int, progress: Progress = SILENT
) -> Trained:
    """Train row and column vectors for a matrix.

    `folder` is where checkpoints live while the run lasts; a run that was killed goes on from the last one when it
    is called again with the same matrix and configuration. Ctrl-C and SIGTERM save one first.
    """
    if max(matrix.shape) == 0 or matrix.total <= 0:
        raise TrainingError("the matrix has no counts: there is nothing to train on")
    identity = fingerprint({"matrix": matrix.fingerprint, "config": result_settings(config)})
    saved = load_plan(folder, identity)
    plan = _read_plan(saved, folder) if saved else make_plan(matrix, config)
    if saved is None:
        save_plan(folder, identity, asdict(plan))
    with scratch_folder(folder) as scratch, stop_on_signals() as should_stop:
        if (plan.row_blocks, plan.column_blocks) != (matrix.row_blocks, matrix.column_blocks):
            progress.say(
                f"re-blocking the matrix from {matrix.row_blocks} x {matrix.column_blocks} "
                f"to {plan.row_blocks} x {plan.column_blocks} blocks"
            )
        blocked = matrix.reblocked(plan.row_blocks, plan.column_blocks, scratch=scratch, threads=threads)
        run = _Run(blocked, config, plan, _Saver(folder, identity, config.checkpoint_minutes))
        return run.train(threads, progress, should_stop)


def _read_plan(saved: dict[str, Any], folder: Path) -> Plan:
    try:
        return Plan(**saved)
    except TypeError as error:
        raise DamagedFolder(
            f"{folder}: a run that another version of Swivel began; remove it to start again"
        ) from error


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

    def __init__(self, matrix: BlockedMatrix, config: TrainConfig, plan: Plan, saver: _Saver) -> None:
        self.matrix, self.config, self.plan, self.saver = matrix, config, plan, saver
        self.place = Place()
        self.row_starts = block_starts(matrix.shape[0], plan.row_blocks)
        self.column_starts = block_starts(matrix.shape[1], plan.column_blocks)
        self.row_order = block_order(matrix.shape[0], plan.row_blocks)
        self.column_order = block_order(matrix.shape[1], plan.column_blocks)

    def train(self, threads: int, progress: Progress, should_stop: StopRequest) -> Trained:
        settings = self._settings(progress)
        plan = self.plan
        backend = create_backend(plan.backend, settings, device=plan.device, dtype=plan.dtype, threads=threads)
        try:
            arrays = self._restore(progress) or self._initial_arrays()
            self._put(backend, arrays)
            del arrays
            rows, columns = self.matrix.shape
            progress.say(
                f"training {rows:,} x {columns:,}, {plan.passes} passes over {plan.row_blocks} x {plan.column_blocks} "
                f"blocks: {backend.describe()}"
            )
            self.saver.last = time.monotonic()
            self._run_passes(backend, progress, should_stop)
            return self._finish(backend)
        finally:
            backend.close()

    def _settings(self, progress: Progress) -> StepSettings:
        config = self.config
        zeros = Zeros()
        if config.zeros == "sampled":
            sums = self.matrix.row_sums, self.matrix.column_sums
            if all(is_sorted_enough(side, config.common) for side in sums):
                zeros = Zeros(config.common, config.middle, config.share)
            else:
                progress.say("all zeros are computed: sampling needs rows and columns sorted by falling frequency")
        return StepSettings(Objective.from_config(config), zeros, config.decay)

    def _initial_arrays(self) -> dict[str, Array]:
        """Small random vectors, zero where a row or column has no counts; accumulators at their start."""
        rng = np.random.default_rng((self.config.seed, 0))
        rows = self._initial_vectors(self.matrix.row_sums, rng)[self.row_order]
        columns = self._initial_vectors(self.matrix.column_sums, rng)[self.column_order]
        start = np.float32(self.config.accumulator)
        return {
            "rows": rows,
            "rows_accumulators": np.full_like(rows, start),
            "columns": columns,
            "columns_accumulators": np.full_like(columns, start),
        }

    def _initial_vectors(self, sums: NDArray[np.float64], rng: np.random.Generator) -> Array:
        dim = self.config.dim
        vectors = rng.standard_normal((len(sums), dim), np.float32) / np.float32(math.sqrt(dim))
        vectors[sums <= 0] = 0
        return vectors

    def _restore(self, progress: Progress) -> dict[str, Array] | None:
        saved = load_checkpoint(self.saver.folder, self.saver.identity)
        if saved is None:
            return None
        self.place = replace(saved.place, saved=saved.place.saved + 1)
        progress.say(f"going on after {self._done_steps():,} of {self._all_steps():,} steps")
        return dict(saved.arrays)

    def _put(self, backend: Backend, arrays: dict[str, Array]) -> None:
        matrix = self.matrix
        objective = Objective.from_config(self.config)
        offsets = row_offsets(matrix.row_sums, matrix.total, objective), column_offsets(matrix.column_sums)
        put = backend.put
        self.rows = Side(
            put(arrays["rows"]),
            put(arrays["rows_accumulators"]),
            put(offsets[0][self.row_order].astype(np.float32)),
        )
        self.columns = Side(
            put(arrays["columns"]),
            put(arrays["columns_accumulators"]),
            put(offsets[1][self.column_order].astype(np.float32)),
        )

    def _all_steps(self) -> int:
        return self.plan.passes * self.plan.row_blocks * self.plan.column_blocks

    def _done_steps(self) -> int:
        plan, place = self.plan, self.place
        a_round = min(plan.row_blocks, plan.column_blocks)
        return place.passes * plan.row_blocks * plan.column_blocks + place.rounds * a_round + place.steps

    def _run_passes(self, backend: Backend, progress: Progress, should_stop: StopRequest) -> None:
        cells_per_step = self.matrix.shape[0] * self.matrix.shape[1] / (self.plan.row_blocks * self.plan.column_blocks)
        with track(progress, "training", self._all_steps() * cells_per_step, "cells") as task:
            task.advance(self._done_steps() * cells_per_step)
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
        rounds = rounds_without_conflict(self.plan.row_blocks, self.plan.column_blocks, (self.config.seed, 1, number))
        while self.place.rounds < len(rounds):
            started = time.perf_counter()
            steps = self._steps(rounds[self.place.rounds])[self.place.steps :]
            losses = backend.run(steps, should_stop)
            self._advance(losses, len(steps), time.perf_counter() - started)
            task.advance(len(losses) * cells_per_step, self._note())
            if should_stop() or self.saver.is_due():
                self._save(backend)
                should_stop.raise_if_set()
        if self.place.loss.mean_observed > MOST_GROWTH * starting_loss(self.matrix, Objective.from_config(self.config)):
            raise self._diverged(f"the observed loss is {self.place.loss.mean_observed:.3g}, far above its start", 0)
        history = (*self.place.history, self.place.loss)
        self.place = replace(self.place, passes=number + 1, rounds=0, steps=0, loss=Loss(), history=history)

    def _steps(self, blocks: Sequence[tuple[int, int]]) -> list[Step]:
        rate = self.config.rate
        if self.config.end == "passes":
            rate = falling_rate(rate, self._done_steps() - self.place.steps, self._all_steps())
        return [self._step(i, j, rate) for i, j in blocks]

    def _step(self, i: int, j: int, rate: float) -> Step:
        def load() -> ObservedCells:
            return self.matrix.cells(i, j)

        rows = self.rows.part(self.row_starts[i], self.row_starts[i + 1])
        columns = self.columns.part(self.column_starts[j], self.column_starts[j + 1])
        return Step(rows, columns, load, rate, (self.config.seed, 2, self.place.passes, i, j))

    def _advance(self, losses: Sequence[Loss], asked: int, seconds: float) -> None:
        loss = sum(losses, self.place.loss)
        if not math.isfinite(loss.mean):
            raise self._diverged("the loss is not finite", len(losses))
        is_whole = len(losses) == asked
        self.place = replace(
            self.place,
            rounds=self.place.rounds + is_whole,
            steps=0 if is_whole else self.place.steps + len(losses),
            loss=loss,
            seconds=self.place.seconds + seconds,
        )

    def _diverged(self, what: str, steps: int) -> Diverged:
        return Diverged(
            f"{what} at step {self._done_steps() + steps:,} of {self._all_steps():,} (pass {self.place.passes + 1}): "
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
        arrays = {
            "rows": backend.fetch(self.rows.vectors),
            "rows_accumulators": backend.fetch(self.rows.accumulators),
            "columns": backend.fetch(self.columns.vectors),
            "columns_accumulators": backend.fetch(self.columns.accumulators),
        }
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise self._diverged("a vector is not finite", 0)
        return arrays

    def _save(self, backend: Backend) -> None:
        self.place = self.saver.save(self.place, self._fetch(backend))

    def _finish(self, backend: Backend) -> Trained:
        arrays = self._fetch(backend)
        rows = _in_vocabulary_order(arrays["rows"], self.row_order)
        columns = _in_vocabulary_order(arrays["columns"], self.column_order)
        # A feature without counts has no gradient but rounding's; its vector is zero, exactly.
        rows[self.matrix.row_sums <= 0] = 0
        columns[self.matrix.column_sums <= 0] = 0
        return Trained(rows, columns, self.plan, self.place.history, self.place.seconds)


def starting_loss(matrix: BlockedMatrix, objective: Objective) -> float:
    """Return the mean loss of an observed cell under small random vectors, from a sample of blocks.

    Their products are within 1 of zero: at most about (pmi^2 + 1) f / 2.
    """
    rows, columns = row_offsets(matrix.row_sums, matrix.total, objective), column_offsets(matrix.column_sums)
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
    return total / cells if total else math.inf


def _in_vocabulary_order(blocked: Array, order: NDArray[np.int64]) -> Array:
    vectors = np.empty(blocked.shape, np.float32)
    vectors[order] = blocked
    return vectors
