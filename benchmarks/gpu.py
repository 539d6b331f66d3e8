"""Training and counting on a GPU, against the machine's own bf16 matrix rate.

Goals, on one H200: a step of k = 4,096, d = 300, 1 % observed, at 50 % of the matrix rate (60 % is hoped for); a
million steps of 397,312 words and 1e9 observed cells in 76 s (65 s) and 24 GB; the same matrix trained to convergence
in 5 s (2.5 s); 70e9 cells/s at d = 1,024; 3.3e9 tokens counted in 30 s. All of it runs through the training loop that
users run; the same steps by the kernels alone are measured beside it.

`--parts` chooses. `benchmarks/end_to_end.py` measures raw text to vectors, `benchmarks/larger.py` matrices that do not
fit on the GPU. A smoke run has tiny sizes: the loop with the CPU's backend, the kernels alone in Triton's interpreter.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from common import keep, make_parser, parse_arguments
from swivel.config import TrainConfig
from swivel.counts.block_layout import Layout
from swivel.counts.matrix import Matrix
from swivel.counts.matrix_cells import BlockCells, MatrixCells
from swivel.counts.shards import CellArrays
from swivel.training.backends import BackendSettings, Step, ZeroSampling
from swivel.training.loop import TrainingResult, train_matrix
from swivel.training.schedule import block_starts, rounds_without_conflict

MEASURES = (
    "swivel.training.backends.base",
    "swivel.training.backends.triton",
    "swivel.training.objective_triton",
    "swivel.counts.cooccurrence.gpu",
    "swivel.training.schedule",
    "swivel.training.loop",
    "swivel.training.executor",
)
UNITS = 64  # of a count
MAX_UNITS = (1 << 32) - 2  # of a cell
# How likely a cell of local row r and column c is observed: 1 - exp(-A / ((r + 20) (c + 20))^1.4). Fitted to blocks of
# 98,304 words of Wikipedia, where 47 % of the cells are in the commonest 5 % of the rows (here 48 %), 20 % in neither
# these nor the commonest columns (19 %), and tiles of 64 x 128 have 6 cells at the median, 154 at 90 %, 2,280 at 99 %
# (7, 141 and 2,202).
RANK, FALL = 20, 1.4
PARTS = ("step", "paper", "wide", "served", "counting")


@dataclass(frozen=True)
class Sizes:
    """What is measured: block size k, dimensions, blocks per side, epochs, and so on."""

    device: str = "cuda"
    dtype: str = "bfloat16"
    backend: str = "auto"
    block: int = 4096
    dim: int = 300
    step_blocks: int = 24
    step_epochs: int = 10
    density: float = 0.01
    paper_blocks: int = 97
    paper_cells: float = 1e9
    paper_epochs: int | None = None  # None: as many as the package chooses
    wide_blocks: int = 16
    wide_dim: int = 1024
    wide_epochs: int = 6
    served_blocks: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    tokens: int = int(3.3e9)
    matrix_side: int = 8192

    def step_flops(self, dim: int) -> float:
        """Operations of the three products of a step."""
        return 6.0 * self.block**2 * dim


SMOKE = Sizes(
    device="cpu",
    dtype="float32",
    backend="cpu",
    block=8,
    dim=4,
    step_blocks=2,
    step_epochs=1,
    density=0.6,
    paper_blocks=2,
    paper_cells=150,
    paper_epochs=1,
    wide_blocks=2,
    wide_dim=8,
    wide_epochs=1,
    served_blocks=(4,),
    tokens=5000,
    matrix_side=64,
)


def to_units(counts: torch.Tensor) -> NDArray[np.uint32]:
    """Return counts in units, on the host."""
    units = (UNITS * counts.double()).round_().clamp_(1, MAX_UNITS)
    return units.to(torch.int64).cpu().numpy().astype(np.uint32)


def store_cells(
    words: int, blocks: int, offsets: NDArray[np.int64], positions: NDArray[np.uint32], units: NDArray[np.uint32]
) -> MatrixCells:
    """Return the stored cells of a symmetric matrix."""
    no_large = np.zeros(0, np.int64)
    arrays = CellArrays(offsets[None], positions, units, no_large, no_large)
    return MatrixCells(Layout(words, words, blocks, blocks, symmetric=True), arrays, UNITS)


class SkewedMatrix(MatrixCells):
    """A symmetric matrix in host memory whose cells are as unevenly spread as those of text."""

    def __init__(self, blocks: int, block_size: int, block_cells: int, device: str, seed: int = 1) -> None:
        self.shape = blocks * block_size, blocks * block_size
        self.block_size = block_size
        self.row_blocks = self.column_blocks = blocks
        self.fingerprint = f"skewed {blocks} {block_size} {block_cells} {seed}"
        self._generator = torch.Generator(device).manual_seed(seed)
        stored = self._draw(block_cells, device)
        super().__init__(stored.layout, stored.arrays, stored.unit)
        self.is_symmetric = True
        self.stored_cell_count = len(stored.arrays.positions)

    def _draw(self, block_cells: int, device: str) -> MatrixCells:
        n, k, chance = self.row_blocks, self.block_size, likely_cells(self.block_size, block_cells, device)
        shards = [(i, j) for i in range(n) for j in range(i, n)]
        lengths, positions, units = np.zeros((n, n), np.int64), [], []
        for first in range(0, len(shards), 8):
            some = shards[first : first + 8]
            drawn = torch.rand(len(some), k, k, device=device, generator=self._generator) < chance
            number, row, column = drawn.nonzero(as_tuple=True)
            for shard, length in zip(some, torch.bincount(number, minlength=len(some)).tolist(), strict=True):
                lengths[shard] = length
            mean = 2e3 / (row + 10.0) ** 0.7 / (column + 10.0) ** 0.7
            noise = torch.randn(len(row), device=device, generator=self._generator)
            units.append(to_units(mean * noise.exp()))
            positions.append((row << 16 | column).to(torch.int32).cpu().numpy().view(np.uint32))
        offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
        return store_cells(self.shape[0], n, offsets, np.concatenate(positions), np.concatenate(units))

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        sums = np.zeros(self.shape[0])
        n, k, arrays = self.row_blocks, self.block_size, self.arrays
        for i in range(n):
            for j in range(i, n):
                first, last = arrays.offsets[0][i * n + j : i * n + j + 2]
                rows, columns = arrays.positions[first:last] >> 16, arrays.positions[first:last] & 0xFFFF
                counts = self.counts_of(first, last)
                sums[i::n] += np.bincount(rows, counts, k)
                if i != j:
                    sums[j::n] += np.bincount(columns, counts, k)
        return sums

    @property
    def column_sums(self) -> NDArray[np.float64]:
        return self.row_sums

    @property
    def total(self) -> float:
        return float(self.row_sums.sum())

    @property
    def observed(self) -> int:
        """Observed cells, both mirrors."""
        return 2 * len(self.arrays.positions)

    def cells(self, i: int, j: int) -> BlockCells:
        shard = min(i, j) * self.row_blocks + max(i, j)
        first, last = self.arrays.offsets[0][shard : shard + 2]
        return BlockCells(self.arrays.positions[first:last], self.counts_of(first, last), i > j)

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int) -> SkewedMatrix:
        assert (row_blocks, column_blocks) == (self.layout.row_blocks, self.layout.column_blocks)
        return self


def likely_cells(block_size: int, cells: int, device: str) -> torch.Tensor:
    """Return how likely each cell of a block is observed, so many of them on average."""
    rank = torch.arange(block_size, device=device, dtype=torch.float64) + RANK
    base = (rank[:, None] * rank) ** -FALL
    low, high = 1e-6, 1e12
    for _ in range(60):
        middle = math.sqrt(low * high)
        is_too_much = float((-torch.expm1(-middle * base)).sum()) > cells
        low, high = (low, middle) if is_too_much else (middle, high)
    return (-torch.expm1(-low * base)).float()


def measure_matrix_rate(sizes: Sizes) -> float:
    """Return operations per second of a large product of random numbers."""
    side, dtype = sizes.matrix_side, getattr(torch, sizes.dtype)
    a, b = (torch.randn(side, side, device=sizes.device).to(dtype) for _ in range(2))
    return 2 * side**3 / median_seconds(lambda: a @ b, 10, sizes.device)


def median_seconds(work: Callable[[], Any], times: int, device: str) -> float:
    """Return the median seconds of a job on the device, each measurement over several repetitions."""
    for _ in range(3):
        work()

    seconds = []
    for _ in range(5):
        synchronize(device)
        started = time.perf_counter()
        for _ in range(times):
            work()
        synchronize(device)
        seconds.append((time.perf_counter() - started) / times)
    return statistics.median(seconds)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def forget_memory(device: str) -> None:
    """Return cached memory to the device, and start measuring the peak anew."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> int | None:
    return torch.cuda.max_memory_reserved() if device == "cuda" else None


def train(matrix: SkewedMatrix, sizes: Sizes, epochs: int | None, dim: int | None = None) -> TrainingResult:
    """Train a matrix through the loop that users run."""
    config = TrainConfig(
        dim=dim or sizes.dim,
        epochs=epochs,
        block_size=sizes.block,
        weight_decay=1e-4,
        checkpoint_minutes=0,
        backend=sizes.backend,
    )
    with tempfile.TemporaryDirectory() as folder:
        trained = train_matrix(cast(Matrix, matrix), config, folder=Path(folder), threads=1)
    assert trained is not None
    return trained


def seconds_per_step(matrix: SkewedMatrix, trained: TrainingResult) -> float:
    return trained.seconds / (trained.plan.epochs * matrix.row_blocks**2)


def make_backend(sizes: Sizes, matrix: Any, side: int, blocks: int, dim: int) -> Any:
    """Return a backend that holds random parameters and the cells of a matrix."""
    from larger import make_side
    from swivel.training.backends.triton.backend import TritonBackend

    settings = BackendSettings(
        TrainConfig(weight_decay=1e-4), ZeroSampling(), cells=len(matrix.arrays.positions), is_halved=True
    )
    backend = TritonBackend(replace(settings, device=sizes.device, dtype=sizes.dtype))
    starts = block_starts(side, blocks)
    backend.hold(make_side(side, dim, 1), make_side(side, dim, 2), (starts, starts))
    backend.take(matrix)
    return backend


def kernel_seconds(matrix: SkewedMatrix, sizes: Sizes, dim: int, epochs: int) -> float:
    """Return the seconds of a step by the backend alone: the same rounds, without the training loop."""
    from larger import run_epochs

    blocks = matrix.row_blocks
    backend = make_backend(sizes, matrix, matrix.shape[0], blocks, dim)
    orders = [rounds_without_conflict(blocks, blocks, (1, 1, number)) for number in range(epochs + 2)]
    run_epochs(backend, orders[:2])  # compiles
    seconds = statistics.median(run_epochs(backend, orders[1:])[0] for _ in range(3))
    backend.close()
    return seconds / (epochs * blocks**2)


def compare_loop(matrix: SkewedMatrix, sizes: Sizes, rate: float, epochs: int, dim: int) -> dict[str, float]:
    """Return the time of a step by the kernels alone and through the loop, and the share of the matrix rate."""
    kernels = kernel_seconds(matrix, sizes, dim, epochs)
    train(matrix, sizes, 1, dim)  # compiles what only the loop uses
    runs = [seconds_per_step(matrix, train(matrix, sizes, epochs, dim)) for _ in range(3)]
    loop = statistics.median(runs)
    return {
        "kernel_microseconds": 1e6 * kernels,
        "loop_microseconds": 1e6 * loop,
        "loop_over_kernels": loop / kernels,
        "share_of_matrix_rate": sizes.step_flops(dim) / rate / loop,
        "cells_per_second": sizes.block**2 / loop,
    }


def measure_step(sizes: Sizes, rate: float) -> dict[str, Any]:
    """A step as a share of the matrix rate, by the kernels alone and through the loop, and where its time goes."""
    matrix = SkewedMatrix(sizes.step_blocks, sizes.block, round(sizes.density * sizes.block**2), sizes.device)
    result: dict[str, Any] = {"observed_share": matrix.observed / matrix.shape[0] ** 2}
    result |= compare_loop(matrix, sizes, rate, sizes.step_epochs, sizes.dim)
    result["kernels_all"] = profile(matrix, sizes)
    return result


def profile(matrix: SkewedMatrix, sizes: Sizes) -> dict[str, float]:
    """Return microseconds per step in each kernel of two epochs, the most expensive first."""
    if sizes.device != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        train(matrix, sizes, 2)
    steps = 2 * matrix.row_blocks**2
    times = {event.key[:60]: event.self_device_time_total / steps for event in recorded.key_averages()}
    return {name: round(seconds, 2) for name, seconds in sorted(times.items(), key=lambda pair: -pair[1])[:10]}


def measure_paper(sizes: Sizes, rate: float) -> dict[str, Any]:
    """The paper's matrix, trained to convergence, and a million steps of it."""
    started = time.perf_counter()
    blocks = sizes.paper_blocks
    matrix = SkewedMatrix(blocks, sizes.block, round(sizes.paper_cells / blocks**2), sizes.device)
    _ = matrix.row_sums
    result: dict[str, Any] = {"observed_cells": matrix.observed, "make_seconds": time.perf_counter() - started}
    forget_memory(sizes.device)
    result["loop"] = compare_loop(matrix, sizes, rate, 2, sizes.dim)

    forget_memory(sizes.device)
    started = time.perf_counter()
    trained = train(matrix, sizes, sizes.paper_epochs)
    result["all"] = {
        "steps": trained.plan.epochs * blocks**2,
        "seconds": trained.seconds,
        "seconds_with_loading": time.perf_counter() - started,
        "a_million_steps": 1e6 * seconds_per_step(matrix, trained),
        "share_of_matrix_rate": sizes.step_flops(sizes.dim) / rate / seconds_per_step(matrix, trained),
        "gpu_bytes": peak_memory(sizes.device),
        "losses": [loss.mean for loss in trained.history],
    }
    return result


def measure_wide(sizes: Sizes, rate: float) -> dict[str, Any]:
    """Cells per second of long vectors."""
    matrix = SkewedMatrix(sizes.wide_blocks, sizes.block, round(sizes.density * sizes.block**2), sizes.device)
    return compare_loop(matrix, sizes, rate, sizes.wide_epochs, sizes.wide_dim)


def measure_served(sizes: Sizes) -> dict[str, float]:
    """Return the seconds of one block's gradients for a worker of parameter servers, by block size.

    Vectors come from host memory and gradients go back there; the cells are on the device.
    """
    from larger import Size, make_cells, make_side

    found = {}
    for block in sizes.served_blocks:
        cells = make_cells(Size(words=2 * block, block=block, density=sizes.density), sizes.device)
        backend = make_backend(sizes, cells, 2 * block, 2, sizes.dim)
        rows, columns = make_side(block, sizes.dim, 3), make_side(block, sizes.dim, 4)

        seconds = []
        for number in range(10):
            started = time.perf_counter()
            backend.gradients(Step((0, 1), 1.0, (1, number)), rows, columns)
            seconds.append(time.perf_counter() - started)
        backend.close()
        found[str(block)] = statistics.median(seconds[3:])  # The first ones compile.
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parse_arguments(parser, parts=("step", "paper", "wide", "served"))
    sizes = SMOKE if arguments.smoke else Sizes()
    if sizes.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

    rate = measure_matrix_rate(sizes)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if sizes.device == "cuda" else "cpu",
        "matrix_rate": rate,
        "ideal_step_microseconds": sizes.step_flops(sizes.dim) / rate * 1e6,
    }
    for part in arguments.parts:
        print(part, flush=True)
        started = time.perf_counter()
        result[part] = measure_part(part, sizes, rate)
        print(f"  {time.perf_counter() - started:.1f} s: {shorten(result[part])}", flush=True)
        forget_memory(sizes.device)
        keep(arguments, result, name="gpu/step")  # after every part: a part that fails takes no other with it


def measure_part(part: str, sizes: Sizes, rate: float) -> Any:
    """Return the figures of one part."""
    if part == "step":
        return measure_step(sizes, rate)
    if part == "paper":
        return measure_paper(sizes, rate)
    if part == "wide":
        return measure_wide(sizes, rate)
    if part == "served":
        return measure_served(sizes)
    from gpu_counting import measure as measure_counting

    return measure_counting(sizes.tokens, sizes.device)


def shorten(value: Any) -> Any:
    """Return a result with four digits per number, for people."""
    if isinstance(value, dict):
        return {name: shorten(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shorten(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


if __name__ == "__main__":
    main()
