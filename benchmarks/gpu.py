"""Training and counting on a GPU, against the machine's own bf16 matrix rate.

Goals, on one H200: a step of k = 4,096, d = 300, 1 % observed, at 50 % of the matrix rate (60 % is hoped for); a
million steps of 397,312 words and 1e9 observed cells in 76 s (65 s; 35 s with sampled zeros) and 24 GB; the same matrix
trained to convergence in 5 s (2.5 s); 70e9 cells/s at d = 1,024; 3.3e9 tokens counted in 30 s; a corpus of 65 M words,
tokenised, to vectors in 10 s. All of it runs through the training loop that users run.

`--parts` chooses; the corpus is measured where `--corpus` and `--eval` are there.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import SHARED, keep
from swivel.config import TrainConfig
from swivel.matrix.matrix import Cells
from swivel.training import Trained, train_matrix

K, DIM = 4096, 300
UNITS = 64  # of a count
# How likely a cell of local row r and column c is observed: 1 - exp(-A / ((r + 20) (c + 20))^1.4). Fitted to blocks of
# 98,304 words of Wikipedia, where 47 % of the cells are in the commonest 5 % of the rows (here 48 %), 20 % in neither
# these nor the commonest columns (19 %), and tiles of 64 x 128 have 6 cells at the median, 154 at 90 %, 2,280 at 99 %
# (7, 141 and 2,202).
RANK, FALL = 20, 1.4
PARTS = ("step", "paper", "wide", "counting", "larger", "corpus")


@dataclass(frozen=True)
class SkewedCells:
    """Stored cells of a synthetic symmetric matrix, as a backend takes them."""

    blocks: tuple[int, int]
    offsets: NDArray[np.int64]
    positions: NDArray[np.uint32]
    counts: NDArray[np.float32]
    symmetric: bool = True

    def counts_of(self, first: int, last: int) -> NDArray[np.float32]:
        return self.counts[first:last]


class SkewedMatrix:
    """A symmetric matrix in host memory whose cells are as unevenly spread as those of text."""

    def __init__(self, words: int, cells_a_block: int, device: str, seed: int = 1) -> None:
        self.shape = words, words
        self.row_blocks = self.column_blocks = words // K
        self.fingerprint = f"skewed {words} {cells_a_block} {seed}"
        self._generator = torch.Generator(device).manual_seed(seed)
        self.stored = self._draw(cells_a_block, device)

    def _draw(self, cells_a_block: int, device: str) -> SkewedCells:
        n, chance = self.row_blocks, likely_cells(cells_a_block, device)
        shards = [(i, j) for i in range(n) for j in range(i, n)]
        lengths, positions, counts = np.zeros((n, n), np.int64), [], []
        for first in range(0, len(shards), 8):
            some = shards[first : first + 8]
            drawn = torch.rand(len(some), K, K, device=device, generator=self._generator) < chance
            number, row, column = drawn.nonzero(as_tuple=True)
            for shard, length in zip(some, torch.bincount(number, minlength=len(some)).tolist(), strict=True):
                lengths[shard] = length
            mean = 2e3 / (row + 10.0) ** 0.7 / (column + 10.0) ** 0.7
            noise = torch.randn(len(row), device=device, generator=self._generator)
            counts.append((mean.float() * noise.exp()).clamp_(min=1 / UNITS).cpu().numpy())
            positions.append((row << 16 | column).to(torch.int32).cpu().numpy().view(np.uint32))
        offsets = np.concatenate([[0], np.cumsum(lengths.ravel())])
        return SkewedCells((n, n), offsets, np.concatenate(positions), np.concatenate(counts))

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        sums = np.zeros(self.shape[0])
        n, stored = self.row_blocks, self.stored
        for i in range(n):
            for j in range(i, n):
                first, last = stored.offsets[i * n + j : i * n + j + 2]
                rows, columns = stored.positions[first:last] >> 16, stored.positions[first:last] & 0xFFFF
                sums[i::n] += np.bincount(rows, stored.counts[first:last], K)
                if i != j:
                    sums[j::n] += np.bincount(columns, stored.counts[first:last], K)
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
        return 2 * len(self.stored.counts)

    def cells(self, i: int, j: int) -> Cells:
        shard = min(i, j) * self.row_blocks + max(i, j)
        first, last = self.stored.offsets[shard : shard + 2]
        return Cells(self.stored.positions[first:last], self.stored.counts[first:last], i > j)

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int) -> SkewedMatrix:
        assert (row_blocks, column_blocks) == self.stored.blocks
        return self


def likely_cells(cells: int, device: str) -> torch.Tensor:
    """Return how likely each cell of a block is observed, so many of them on average."""
    rank = torch.arange(K, device=device, dtype=torch.float64) + RANK
    base = (rank[:, None] * rank) ** -FALL
    low, high = 1e-6, 1e12
    for _ in range(60):
        middle = math.sqrt(low * high)
        is_too_much = float((-torch.expm1(-middle * base)).sum()) > cells
        low, high = (low, middle) if is_too_much else (middle, high)
    return (-torch.expm1(-low * base)).float()


def measure_matrix_rate(size: int = 8192) -> float:
    """Return operations a second of a large bf16 product of random numbers."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: a @ b, 10)


def median_seconds(work: Callable[[], Any], times: int) -> float:
    for _ in range(3):
        work()
    seconds = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            work()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3 / times)
    return statistics.median(seconds)


def train(matrix: SkewedMatrix, zeros: str, passes: int | None, dim: int = DIM) -> Trained:
    config = TrainConfig(dim=dim, zeros=zeros, passes=passes, block_size=K, decay=1e-4, checkpoint_minutes=0)
    with tempfile.TemporaryDirectory() as folder:
        return train_matrix(matrix, config, folder=Path(folder), threads=1)


def seconds_a_step(matrix: SkewedMatrix, trained: Trained) -> float:
    return trained.seconds / (trained.plan.passes * matrix.row_blocks**2)


def measure_step(rate: float) -> dict[str, Any]:
    """A step as a share of the matrix rate, and where its time goes."""
    matrix = SkewedMatrix(24 * K, round(0.01 * K * K), "cuda")
    result: dict[str, Any] = {"observed_share": matrix.observed / matrix.shape[0] ** 2}
    for zeros in ("all", "sampled"):
        train(matrix, zeros, 1)  # compiles
        steps = [seconds_a_step(matrix, train(matrix, zeros, 10)) for _ in range(3)]
        result[f"microseconds_{zeros}"] = 1e6 * statistics.median(steps)
        result[f"kernels_{zeros}"] = profile(matrix, zeros)
    result["share_of_matrix_rate"] = 6 * K * K * DIM / rate / (result["microseconds_all"] / 1e6)
    result["sampled_over_all"] = result["microseconds_sampled"] / result["microseconds_all"]
    return result


def profile(matrix: SkewedMatrix, zeros: str) -> dict[str, float]:
    """Return microseconds a step in each kernel of two passes, the dearest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        train(matrix, zeros, 2)
    steps = 2 * matrix.row_blocks**2
    times = {event.key[:60]: event.self_device_time_total / steps for event in recorded.key_averages()}
    return {name: round(time, 2) for name, time in sorted(times.items(), key=lambda pair: -pair[1])[:10]}


def measure_paper(rate: float, cells: float = 1e9) -> dict[str, Any]:
    """The paper's matrix, trained to convergence, and a million steps of it."""
    started = time.perf_counter()
    matrix = SkewedMatrix(97 * K, round(cells / 97**2), "cuda")
    _ = matrix.row_sums
    result: dict[str, Any] = {"observed_cells": matrix.observed, "make_seconds": time.perf_counter() - started}
    torch.cuda.empty_cache()
    for zeros in ("all", "sampled"):
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        trained = train(matrix, zeros, None)
        result[zeros] = {
            "steps": trained.plan.passes * 97**2,
            "seconds": trained.seconds,
            "seconds_with_loading": time.perf_counter() - started,
            "a_million_steps": 1e6 * seconds_a_step(matrix, trained),
            "share_of_matrix_rate": 6 * K * K * DIM / rate / seconds_a_step(matrix, trained),
            "gpu_bytes": torch.cuda.max_memory_reserved(),
            "losses": [loss.mean for loss in trained.history],
        }
    # Whether five passes are enough: the last loss of fewer and of more.
    result["last_loss_after_passes"] = {
        str(passes): train(matrix, "sampled", passes).history[-1].mean for passes in (3, 8)
    }
    return result


def measure_wide(rate: float, dim: int = 1024) -> dict[str, Any]:
    """Cells a second of long vectors."""
    matrix = SkewedMatrix(16 * K, round(0.01 * K * K), "cuda")
    train(matrix, "all", 1, dim)
    seconds = statistics.median(seconds_a_step(matrix, train(matrix, "all", 6, dim)) for _ in range(3))
    return {"cells_a_second": K * K / seconds, "share_of_matrix_rate": 6 * K * K * dim / rate / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--corpus", type=Path, nargs="+", default=[SHARED / "corpus"], help="tokenised text")
    parser.add_argument("--eval", type=Path, default=SHARED / "eval")
    parser.add_argument("--name", default="gpu", help="keep the result under this name")
    arguments = parser.parse_args()
    rate = measure_matrix_rate()
    properties = torch.cuda.get_device_properties(0)
    result: dict[str, Any] = {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "matrix_rate": rate,
        "ideal_step_microseconds": 6 * K * K * DIM / rate * 1e6,
    }
    for part in arguments.parts:
        print(part, flush=True)
        started = time.perf_counter()
        result[part] = measure_part(part, rate, arguments)
        print(f"  {time.perf_counter() - started:.1f} s: {shorten(result[part])}", flush=True)
        torch.cuda.empty_cache()
        keep(arguments.name, result)  # after every part: a part that fails takes no other with it


def measure_part(part: str, rate: float, arguments: argparse.Namespace) -> Any:
    if part == "step":
        return measure_step(rate)
    if part == "paper":
        return measure_paper(rate)
    if part == "wide":
        return measure_wide(rate)
    if part == "counting":
        from gpu_counting import measure

        return measure(int(3.3e9), "cuda")
    if part == "larger":
        from larger import measure as measure_larger

        return measure_larger("cuda")
    from gpu_corpus import measure_corpus

    missing = [str(path) for path in (*arguments.corpus, arguments.eval) if not path.exists()]
    return {"missing": missing} if missing else measure_corpus(arguments.corpus, arguments.eval)


def shorten(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shorten(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shorten(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


if __name__ == "__main__":
    main()
