"""Millions of rows on one GPU: cells on disk to vectors on disk, and parts of runs that are larger than the machine.

The matrices are synthetic, symmetric and skewed like text; d = 300, k = 4,096.

- `whole`: 2^21 rows and columns, 1e9 observed cells, one epoch (512 updates of every vector) by the command
  `swivel train`.
- `large`: 2^23 rows and columns, 1e9 observed cells, everything on the device: loading, and as many rounds as fit in
  `--seconds`, from which the time of an epoch follows.
- `slice`: a part of 2^25 rows and columns, whose parameters (161 GB) fit neither on the device nor in the memory of its
  host: three groups of 2^21 rows and three of 2^21 columns, swapped between device and host memory as in the whole run,
  which has larger groups. Each pair of groups trains a sixteenth of its blocks, so that copies have less time to hide
  behind the steps than in a whole run; beside it, the same rounds with all groups on the device.

A smoke run has tiny sizes in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import ROOT, PrivateMemory, keep, make_parser, parse_arguments, work_folder
from gpu import FALL, RANK, UNITS, forget_memory, peak_memory, store_cells, to_units
from larger import make_order
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import MatrixBuilder, MatrixSpec
from swivel.counts.block_layout import Layout
from swivel.counts.matrix_cells import MatrixCells
from swivel.counts.shards import CellArrays, make_piece
from swivel.storage.lock import remove_tree
from swivel.storage.manifest import read_manifest
from swivel.training.backends import BackendSettings, ParameterBlock, Step, ZeroSampling
from swivel.training.initialization import make_arrays
from swivel.training.schedule import block_starts

MEASURES = (
    "swivel.training.backends.base",
    "swivel.training.backends.triton",
    "swivel.training.objective_triton",
    "swivel.training.initialization",
    "swivel.training.schedule",
    "swivel.training.loop",
    "swivel.pipeline.train",
    "swivel.pipeline.train_job",
)
PARTS = ("whole", "large", "slice")


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    device: str = "cuda"
    dtype: str = "bfloat16"
    block: int = 4096
    dim: int = 300
    cells: float = 1e9  # observed ones of a whole matrix, both mirrors
    whole_rows: int = 1 << 21
    large_rows: int = 1 << 23
    paper_rows: int = 1 << 25
    slice_rows: int = 3 << 21
    slice_group: int = 1 << 9  # blocks
    slice_share: int = 16  # of the rounds of a pair of groups, one of so many is run


SMOKE = Sizes("cpu", "float32", 8, 4, 300, 24, 32, 64, 48, 2, 1)


class Skew:
    """Draws cells of blocks, at local positions r with a probability that falls like (r + RANK)^-FALL."""

    def __init__(self, block: int, device: str, seed: int = 1) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device = device
        falling = (torch.arange(block, device=device, dtype=torch.float64) + RANK) ** -FALL
        self.ends = torch.cumsum(falling / falling.sum(), 0)

    def draw(self, shards: int, cells: int) -> tuple[np.ndarray[Any, Any], ...]:
        """Return lengths, positions and units of some shards with about `cells` distinct cells each."""
        wanted = round(1.3 * cells) + 1  # about a quarter are drawn twice
        positions = [self._draw_local(shards * wanted) for _ in range(2)]
        number = torch.arange(shards, device=self.device).repeat_interleave(wanted)
        keys = torch.unique(number << 32 | positions[0] << 16 | positions[1])

        lengths = torch.bincount(keys >> 32, minlength=shards).cpu().numpy()
        counts = torch.empty(len(keys), device=self.device).log_normal_(0, 1.5, generator=self.generator)
        return lengths, (keys & 0xFFFFFFFF).cpu().numpy().astype(np.uint32), to_units(counts)

    def _draw_local(self, count: int) -> torch.Tensor:
        drawn = torch.rand(count, device=self.device, dtype=torch.float64, generator=self.generator)
        return torch.searchsorted(self.ends, drawn).clamp_(max=len(self.ends) - 1)


def draw_pieces(layout: Layout, cells: float, device: str) -> Iterator[CellArrays]:
    """Yield all shards of a symmetric matrix in order, with `cells` cells, both mirrors."""
    skew = Skew(layout.largest_rows, device)
    blocks = layout.row_blocks
    per_shard = max(1, round(cells / blocks**2))
    at_once = max(1, (1 << 25) // (2 * per_shard))
    for row in range(blocks):
        lengths = np.zeros(row, np.int64)
        yield make_piece(lengths, np.empty(0, np.uint32), np.empty(0, np.int64))
        for first in range(row, blocks, at_once):
            lengths, positions, units = skew.draw(min(at_once, blocks - first), per_shard)
            yield make_piece(lengths, positions, units.astype(np.int64))


def write_matrix(path: Path, rows: int, cells: float, device: str) -> float:
    """Write a matrix; return the seconds that it took."""
    started = time.perf_counter()
    spec = MatrixSpec(rows=Vocabulary([f"w{n}" for n in range(rows)]), unit=UNITS, symmetric=True)
    with MatrixBuilder(path, spec, memory_bytes=1 << 30, threads=os.cpu_count() or 1) as builder:
        with builder.runs.run() as run:
            for piece in draw_pieces(spec.layout(), cells, device):
                run.append(piece)
        builder.finish()
    return time.perf_counter() - started


class DeviceMemory:
    """Records the largest amount of device memory that all processes use together."""

    def __init__(self, device: str) -> None:
        self.peak = 0
        self._is_cuda = device == "cuda"
        self._ended = threading.Event()

    def __enter__(self) -> DeviceMemory:
        if self._is_cuda:
            free, total = torch.cuda.mem_get_info()
            self._before = total - free
            self._thread = threading.Thread(target=self._watch)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._is_cuda:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            free, total = torch.cuda.mem_get_info()
            self.peak = max(self.peak, total - free - self._before)


def measure_whole(sizes: Sizes) -> dict[str, Any]:
    """Train 2^21 rows and columns by the command, from cells on disk to vectors on disk."""
    matrix = work_folder() / "millions"
    remove_tree(matrix)
    found: dict[str, Any] = {"rows": sizes.whole_rows}
    found["writing_the_matrix"] = write_matrix(matrix, sizes.whole_rows, sizes.cells, sizes.device)
    forget_memory(sizes.device)

    found["all"] = time_training(matrix, sizes)
    print(found["all"], flush=True)
    remove_tree(matrix)
    return found


def time_training(matrix: Path, sizes: Sizes) -> dict[str, Any]:
    """Run the command; return its seconds, those of training, and its memory."""
    out = work_folder() / "millions-vectors"
    remove_tree(out)
    command = [
        sys.executable,
        "-m",
        "swivel",
        "train",
        str(matrix),
        "-o",
        str(out),
        "--recipe",
        "fast",
        "--epochs",
        "1",
    ]
    command += ["--block-size", str(sizes.block), "--dim", str(sizes.dim), "--device", sizes.device]
    command += ["--subwords", "none"]  # The labels are numbers.

    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    with DeviceMemory(sizes.device) as device, PrivateMemory(process.pid) as memory:
        if process.wait():
            raise SystemExit(f"the command failed with status {process.returncode}")
    seconds = time.perf_counter() - started

    facts = read_manifest(out / "vectors" if (out / "vectors").exists() else out).facts
    remove_tree(out)
    return {
        "seconds": round(seconds, 2),
        "training_seconds": round(facts["training_seconds"], 2),
        "device_bytes": device.peak,
        "private_bytes": memory.peak,
        "loss": facts["losses"][-1]["mean"],
    }


def hold_cells(rows: int, cells: float, sizes: Sizes) -> MatrixCells:
    """Return the stored cells of a matrix in memory, in the blocks that are trained."""
    blocks = -(-rows // sizes.block)
    layout = Layout(rows, rows, blocks, blocks, symmetric=True)
    pieces = list(draw_pieces(layout, cells, sizes.device))
    lengths = np.concatenate([np.diff(piece.offsets[0]) for piece in pieces])
    positions = np.concatenate([piece.positions for piece in pieces])
    units = np.concatenate([piece.counts for piece in pieces])
    return store_cells(rows, blocks, np.concatenate([[0], np.cumsum(lengths)]), positions, units)


def make_sides(rows: int, sizes: Sizes) -> tuple[ParameterBlock, ParameterBlock]:
    """Return the initial parameters of a run."""
    order = np.arange(rows)
    config = TrainConfig(dim=sizes.dim)
    arrays = make_arrays([np.ones(rows)] * 2, [order, order], config, threads=os.cpu_count() or 1)
    offsets = np.random.default_rng(1).normal(3, 1, rows).astype(np.float32)
    return (
        ParameterBlock(arrays["rows"], arrays["rows_accumulators"], offsets),
        ParameterBlock(arrays["columns"], arrays["columns_accumulators"], offsets),
    )


def make_backend(
    rows: int,
    stored: MatrixCells,
    sizes: Sizes,
    groups: tuple[int, int] | None,
    memory: int | None,
) -> tuple[Any, dict[str, Any]]:
    """Return a backend with all parameters and cells, and what it took to get there."""
    from swivel.training.backends.triton.backend import TritonBackend

    forget_memory(sizes.device)
    started = time.perf_counter()
    sides = make_sides(rows, sizes)
    drawn = time.perf_counter()
    settings = make_settings(sizes, len(stored.arrays.positions))
    backend = TritonBackend(replace(settings, memory=memory, groups=groups))
    starts = block_starts(rows, -(-rows // sizes.block))
    backend.hold(*sides, (starts, starts))
    del sides
    held = time.perf_counter()
    backend.take(stored)  # type: ignore[arg-type]
    taken = time.perf_counter()
    seconds = {"drawing": drawn - started, "parameters": held - drawn, "cells": taken - held}
    return backend, {"seconds": seconds, "device_bytes": peak_memory(sizes.device)}


def make_settings(sizes: Sizes, cells: int) -> BackendSettings:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling(), device=sizes.device, dtype=sizes.dtype)
    return replace(settings, cells=cells, is_halved=True)


def run_rounds(backend: Any, order: list[list[tuple[int, int]]], seconds: float = 1e9) -> tuple[int, float]:
    """Run rounds until the time is up; return the number of steps and the seconds that they took."""

    backend.announce(order)
    last, steps, started = None, 0, time.perf_counter()
    for blocks in order:
        begun = backend.run([Step(block, 0.05, (1, *block)) for block in blocks], lambda: False)
        if last is not None:
            last()
        last = begun
        steps += len(blocks)
        if time.perf_counter() - started > seconds:
            break
    assert last is not None
    last()
    return steps, time.perf_counter() - started


def measure_large(sizes: Sizes, seconds: float) -> dict[str, Any]:
    """Load 2^23 rows and columns and run rounds for some seconds."""
    rows, blocks = sizes.large_rows, -(-sizes.large_rows // sizes.block)
    started = time.perf_counter()
    stored = hold_cells(rows, sizes.cells, sizes)
    found: dict[str, Any] = {"rows": rows, "stored_cells": len(stored.arrays.positions)}
    found["making_the_cells"] = time.perf_counter() - started

    started = time.perf_counter()
    order = make_order(blocks, None, 0)
    found["planning_seconds"] = time.perf_counter() - started
    backend, loading = make_backend(rows, stored, sizes, None, None)
    run_rounds(backend, order[:2])  # compiles
    steps, used = run_rounds(backend, order[2:], seconds)
    backend.close()
    found["all"] = {
        "loading": loading,
        "steps": steps,
        "microseconds_per_step": 1e6 * used / steps,
        "seconds_per_epoch": blocks**2 * used / steps,
    }
    return found


def measure_slice(sizes: Sizes) -> dict[str, Any]:
    """Swap the groups of a part of 2^25 rows and columns, and compare with all of them on the device."""
    from swivel.training.backends.triton.memory_plan import DeviceMemoryEstimate, choose_groups

    paper_blocks = sizes.paper_rows // sizes.block
    paper_starts = block_starts(sizes.paper_rows, paper_blocks)
    paper = make_settings(sizes, int(sizes.cells) // 2)
    started = time.perf_counter()
    chosen = choose_groups(paper, (paper_starts, paper_starts), sizes.dim)
    found: dict[str, Any] = {"rows": sizes.slice_rows, "groups_of_the_whole": chosen}
    found["planning_seconds"] = time.perf_counter() - started

    rows, blocks = sizes.slice_rows, sizes.slice_rows // sizes.block
    share = (sizes.slice_rows / sizes.paper_rows) ** 2
    stored = hold_cells(rows, max(sizes.cells * share, blocks**2), sizes)
    groups = sizes.slice_group, sizes.slice_group
    whole_order = make_order(blocks, groups, 0)
    order = shorten(whole_order, sizes)
    starts = block_starts(rows, blocks)

    needs = DeviceMemoryEstimate(make_settings(sizes, len(stored.arrays.positions)), (starts, starts), sizes.dim)
    # Two of the three groups of each side fit.
    memory = min(needs.min_bytes(groups, (2, 2)) + (1 << 32), needs.min_bytes(groups, (3, 3)) - 1)
    result: dict[str, Any] = {}
    for way, limit in {"resident": None, "swapped": memory}.items():
        backend, loading = make_backend(rows, stored, sizes, groups, limit)
        if (way == "swapped") != backend.is_swapping:
            raise SystemExit(f"{way}: {backend.describe()}")
        run_rounds(backend, order[:2])  # compiles
        steps, used = run_rounds(backend, order)
        result[way] = {"loading": loading, "microseconds_per_step": 1e6 * used / steps, "steps": steps}
        backend.close()
    result["swapped_over_resident"] = (
        result["swapped"]["microseconds_per_step"] / result["resident"]["microseconds_per_step"]
    )
    result["hours_per_epoch"] = paper_blocks**2 * result["swapped"]["microseconds_per_step"] / 3.6e9
    found["all"] = result
    return found


def shorten(order: list[list[tuple[int, int]]], sizes: Sizes) -> list[list[tuple[int, int]]]:
    """Return the first rounds of every pair of groups."""
    kept = max(1, sizes.slice_group // sizes.slice_share)
    return [blocks for number, blocks in enumerate(order) if number % sizes.slice_group < kept]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parse_arguments(parser, seconds=0.01, parts=("large", "slice"))
    sizes = SMOKE if arguments.smoke else Sizes()
    if sizes.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    result = {part: measure_part(part, sizes, arguments) for part in arguments.parts}
    keep(arguments, result, name="gpu/millions")


def measure_part(part: str, sizes: Sizes, arguments: argparse.Namespace) -> dict[str, Any]:
    print(part, flush=True)
    if part == "whole":
        return measure_whole(sizes)
    return measure_large(sizes, arguments.seconds) if part == "large" else measure_slice(sizes)


if __name__ == "__main__":
    main()
