"""Larger than the GPU: cells streamed, parameters taking turns, each under a cap, against everything on the device.

A synthetic matrix (98,304 words, k = 4,096, d = 300, 1 % observed, skewed) is trained for some epochs, three times.
Goal: at most 15 % more time than with everything on the device. `--device cpu`, as in a smoke run, is a tiny run in
Triton's interpreter.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from common import keep, make_parser, parse_arguments
from gpu import store_cells, to_units
from swivel.config import TrainConfig
from swivel.counts.matrix_cells import MatrixCells
from swivel.training.backends import BackendSettings, ParameterBlock, Step, ZeroSampling
from swivel.training.backends.base import PendingLosses
from swivel.training.objective import Loss
from swivel.training.schedule import Block, block_starts, rounds_in_groups, rounds_without_conflict

MEASURES = (
    "swivel.training.backends.base",
    "swivel.training.backends.triton",
    "swivel.training.objective_triton",
)
GOAL = 1.15
TURNS = 5  # runs of every way; GPUs slow down when they get warm, and hosts are noisy


@dataclass(frozen=True, slots=True)
class Size:
    words: int = 98_304
    block: int = 4_096
    dim: int = 300
    density: float = 0.01
    epochs: int = 10
    dtype: str = "bfloat16"

    @property
    def blocks(self) -> int:
        return -(-self.words // self.block)


DRY = Size(words=20, block=6, dim=4, density=0.3, epochs=1, dtype="float32")


def make_cells(size: Size, device: str) -> MatrixCells:
    """Return cells of which the common features of every block have most."""
    generator = torch.Generator(device).manual_seed(1)
    sizes = np.diff(block_starts(size.words, size.blocks)).tolist()
    offsets, positions, units = [0], [], []
    for i in range(size.blocks):
        for j in range(size.blocks):
            found = draw_block(sizes[i], sizes[j], size.density, generator) if i <= j else None
            if found is not None:
                positions.append(found.cpu().numpy().astype(np.uint32))
                drawn = torch.empty(len(found), device=device).log_normal_(0, 1.5, generator=generator)
                units.append(to_units(drawn))
            offsets.append(offsets[-1] + (0 if found is None else len(found)))
    return store_cells(size.words, size.blocks, np.array(offsets), np.concatenate(positions), np.concatenate(units))


def draw_block(rows: int, columns: int, density: float, generator: torch.Generator) -> torch.Tensor:
    wanted = int(1.25 * density * rows * columns)  # about a fifth are drawn twice
    i, j = (
        (size * torch.rand(wanted, generator=generator, device=generator.device) ** 2).long().clamp_(max=size - 1)
        for size in (rows, columns)
    )
    found: torch.Tensor = torch.unique(i << 16 | j)
    return found


def make_side(words: int, dim: int, seed: int) -> ParameterBlock:
    rng = np.random.default_rng(seed)
    shape = words, dim
    vectors = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(dim))
    return ParameterBlock(vectors, np.full(words, 1e-6, np.float32), rng.normal(3, 1, words).astype(np.float32))


def caps(size: Size, cells: int, device: str) -> dict[str, int | None]:
    """Return the memory of each way: all there is; a third of the cells besides the parameters; half of those needs."""
    from swivel.training.backends.triton.memory_plan import DeviceMemoryEstimate, entry_bytes

    starts = block_starts(size.words, size.blocks)
    needs = DeviceMemoryEstimate(make_settings(size, cells, device), (starts, starts), size.dim)
    max_blocks = needs.max_blocks(None)
    least = needs.min_bytes(None, (1, 1))
    third = entry_bytes(needs.layout.slot_count) * cells // 3
    third += needs.parameters(2 * size.blocks) + needs.work(max_blocks)
    return {"resident": None, "cells streamed": max(least, third), "parameters swapped": least // 2}


def make_settings(size: Size, cells: int, device: str) -> BackendSettings:
    settings = BackendSettings(TrainConfig(), ZeroSampling(), cells=cells, is_halved=True)
    return replace(settings, device=device, dtype=size.dtype)


class Way:
    """A backend with a memory limit, and its measurements."""

    def __init__(self, size: Size, stored: MatrixCells, device: str, memory: int | None) -> None:
        from swivel.training.backends.triton.backend import TritonBackend
        from swivel.training.backends.triton.memory_plan import choose_groups

        starts = block_starts(size.words, size.blocks)
        settings = replace(make_settings(size, int(stored.arrays.offsets[0][-1]), device), memory=memory)
        groups = choose_groups(settings, (starts, starts), size.dim)
        sides = make_side(size.words, size.dim, 1), make_side(size.words, size.dim, 2)
        self.backend = TritonBackend(replace(settings, groups=groups))

        before = reset_peak(device)
        started = time.perf_counter()
        self.backend.hold(*sides, (starts, starts))
        self.backend.take(stored)  # type: ignore[arg-type]
        setup, setup_peak = time.perf_counter() - started, peak_bytes(device, before)
        self.memory = reset_peak(device) - before  # that the backend keeps

        self.orders = [make_order(size.blocks, groups, number) for number in range(size.epochs + 2)]
        run_epochs(self.backend, self.orders[:2])  # compiles
        self.found: dict[str, Any] = {"what": self.backend.describe(), "memory": memory, "groups": groups}
        self.found |= {"setup_seconds": setup, "setup_peak_bytes": setup_peak, "seconds": []}

    def run(self, device: str) -> None:
        """Run all epochs."""
        others = reset_peak(device) - self.memory
        seconds, self.found["loss"] = run_epochs(self.backend, self.orders[1:])
        self.found["seconds"].append(seconds)
        self.found["peak_bytes"] = peak_bytes(device, others)


def reset_peak(device: str) -> int:
    """Start measuring the peak of allocated memory anew; return what is allocated now."""
    if device == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak_bytes(device: str, before: int) -> int | None:
    return None if device == "cpu" else torch.cuda.max_memory_allocated() - before


def make_order(blocks: int, groups: tuple[int, int] | None, number: int) -> list[list[Block]]:
    seed = (1, 1, number)
    if groups is None:
        return rounds_without_conflict(blocks, blocks, seed)
    return rounds_in_groups(blocks, blocks, *groups, seed)


def run_epochs(backend: Any, orders: Sequence[list[list[Block]]]) -> tuple[float, float]:
    """Run all epochs but the last, which is only announced, as the training loop does; return seconds and the loss."""

    pending: deque[PendingLosses] = deque()
    losses: list[Loss] = []
    started = time.perf_counter()
    for number, order in enumerate(orders[:-1]):
        backend.announce([*order, *orders[number + 1]])
        for blocks in order:
            steps = [Step(block, 0.05, (1, number, *block)) for block in blocks]
            pending.append(backend.run(steps, lambda: False))
            if len(pending) > backend.rounds_ahead:
                pending.popleft()()
    for last in pending:
        losses = last()
    return time.perf_counter() - started, sum(loss.observed for loss in losses)


def measure(device: str = "cuda", size: Size | None = None) -> dict[str, Any]:
    """Return what each way took, and its time against that of everything on the device; the ways take turns."""
    size = size or (Size() if device != "cpu" else DRY)
    stored = make_cells(size, device)
    found: dict[str, Any] = {"cells": len(stored.arrays.positions), "words": size.words, "goal": GOAL}
    ways = {
        name: Way(size, stored, device, memory)
        for name, memory in caps(size, len(stored.arrays.positions), device).items()
    }
    gc.collect()
    gc.freeze()  # A collection of all objects of torch takes as long as an epoch.
    for _ in range(TURNS):
        for way in ways.values():
            way.run(device)

    resident = ways["resident"].found["seconds"]
    for name, way in ways.items():
        seconds = way.found["seconds"]
        ratios = [mine / theirs for mine, theirs in zip(seconds, resident, strict=True)]
        way.found["us_per_step"] = 1e6 * statistics.median(seconds) / (size.epochs * size.blocks**2)
        way.found |= {"ratios": ratios, "ratio": statistics.median(ratios)}
        print(f"{name}: {way.found['us_per_step']:.1f} us a step, ratio {way.found['ratio']:.3f}", flush=True)
        found[name] = way.found
        way.backend.close()
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--words", type=int)
    parser.add_argument("--density", type=float)
    parser.add_argument("--epochs", type=int)
    arguments = parse_arguments(parser, device="cpu", words=18)

    if arguments.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    given = {name: getattr(arguments, name) for name in ("words", "density", "epochs")}
    size = replace(DRY if arguments.device == "cpu" else Size(), **{k: v for k, v in given.items() if v is not None})
    keep(arguments, measure(arguments.device, size), name="gpu/larger")


if __name__ == "__main__":
    main()
