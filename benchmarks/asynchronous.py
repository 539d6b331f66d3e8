"""Asynchronous training on Ray against one process: efficiency, bytes, start; with --quality, the loss.

    python benchmarks/asynchronous.py                       2 workers of one thread against 2 x the plain loop, k = 4096
    python benchmarks/asynchronous.py --quality TEXT...     4 workers reach the loss of one process
    python benchmarks/asynchronous.py --device cuda         the same with workers that share a GPU

Every run is a process of its own. The first epoch warms up and waits for workers to join; the others are measured. The
machine must be quiet: servers and the command share its cores with the workers. A smoke run does both kinds of runs,
with one worker.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import keep, make_parser, parse_arguments, work_folder, write_text
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, open_matrix
from swivel.runtime.options import ClusterConfig, RunOptions
from swivel.runtime.progress import Progress, Task
from swivel.training.loop import train_matrix

MEASURES = (
    "swivel.training.distributed.async_executor",
    "swivel.runtime.ray",
    "swivel.training.distributed.leases",
    "swivel.training.distributed.parameter_server",
    "swivel.training.loop",
)


class Clock(Progress, Task):
    """When how many cells were done, on the clock that the parent shares."""

    def __init__(self) -> None:
        self.cells = 0.0
        self.marks: list[tuple[float, float, str]] = []

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.cells += amount
        if note:
            self.marks.append((time.time(), self.cells, note))


def drive(order: dict[str, Any]) -> None:
    """Train once; print the figures as one line. workers = 0: the plain loop on one thread."""
    matrix, clock, workers = open_matrix(order["matrix"]), Clock(), None
    if order["workers"]:
        from swivel.training.distributed.async_executor import AsyncExecutor

        # Workers on one machine share its GPU.
        cluster = ClusterConfig(
            workers=order["workers"], servers=order["servers"], worker_gpus=round(1 / order["workers"], 3)
        )
        workers = AsyncExecutor("local", cluster)

    folder = work_folder() / "asynchronous-run"
    shutil.rmtree(folder, ignore_errors=True)
    config = TrainConfig(**order["config"])
    trained = train_matrix(matrix, config, folder=folder, threads=1, progress=clock, executor=workers)
    shutil.rmtree(folder, ignore_errors=True)
    assert trained is not None
    cells_per_epoch = matrix.shape[0] * matrix.shape[1]
    began, before = next((when, cells) for when, cells, _ in clock.marks if cells >= 0.999 * cells_per_epoch)
    rate = (clock.cells - before) / max(1e-9, clock.marks[-1][0] - began) if config.epochs != 1 else None
    tally = {name: getattr(workers, name) for name in ("blocks", "moved")} if workers else {}
    facts = {"first_step": clock.marks[0][0], "cells_per_second": rate, "loss": trained.history[-1].mean}
    note = clock.marks[-1][2]
    print(json.dumps({**facts, "losses": [loss.mean for loss in trained.history], "tally": tally, "note": note}))


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Train in a process of its own; return its figures."""
    started = time.time()
    done = subprocess.run(
        [sys.executable, __file__, "--drive", json.dumps(order)], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["seconds_to_first_step"] = round(found.pop("first_step") - started, 2)
    print({name: value for name, value in found.items() if name != "losses"}, flush=True)
    return found


def make_matrix(blocks: int, size: int, cells: int) -> Matrix:
    """Return a matrix of so many blocks a side, with so many cells observed in each."""
    path = work_folder() / f"asynchronous-{blocks}-{size}-{cells}"
    if (path / "manifest.json").exists():
        return open_matrix(path)
    shutil.rmtree(path, ignore_errors=True)

    rng, words = np.random.default_rng(1), blocks * size
    spec = MatrixSpec(rows=Vocabulary([f"w{n}" for n in range(words)]), symmetric=False)
    with MatrixBuilder(path, spec, memory_bytes=1 << 30) as builder:
        for _ in range(blocks):
            rows, columns = ((rng.random(blocks * cells) ** 3 * words).astype(np.int64) for _ in range(2))
            builder.add(rows, columns, 1 + rng.poisson(3, len(rows)))
        return builder.finish()


def measure_efficiency(options: argparse.Namespace) -> dict[str, Any]:
    matrix = make_matrix(options.blocks, options.block_size, options.cells)
    config = {"dim": options.dim, "block_size": options.block_size, "epochs": options.epochs, "dtype": options.dtype}
    config |= {"checkpoint_minutes": 0} | choose_device(options)
    order = {"matrix": str(matrix.path), "config": config, "servers": options.servers}
    runs = {str(workers): run({**order, "workers": workers}) for workers in sorted({0, 1, options.workers})}
    plain, one, many = (runs[name]["cells_per_second"] for name in ("0", "1", str(options.workers)))
    tally = runs[str(options.workers)]["tally"]
    return {
        "workers": options.workers,
        "blocks": options.blocks**2,
        "block_size": options.block_size,
        "dim": options.dim,
        "million_cells_per_second": {name: round(found["cells_per_second"] / 1e6, 2) for name, found in runs.items()},
        "efficiency_against_plain": round(many / (options.workers * plain), 3),
        "efficiency_against_one_worker": round(many / (options.workers * one), 3),
        "megabytes_per_step": round(tally["moved"] / tally["blocks"] / 1e6, 2),
        "seconds_to_first_step": runs[str(options.workers)]["seconds_to_first_step"],
    }


def choose_device(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the backend."""
    return {"backend": "cpu"} if options.device == "cpu" else {"device": options.device}


def measure_quality(options: argparse.Namespace) -> dict[str, Any]:
    path = work_folder() / f"asynchronous-quality-{options.max_size}"
    settings = {"max_size": options.max_size, "min_count": 1}
    texts = [Path(text) for text in options.quality]
    matrix = swivel.count(texts, path, recipe="fast", options=RunOptions(overwrite=True), **settings)
    config = {
        "dim": options.dim,
        "epochs": options.epochs,
        "checkpoint_minutes": 0,
        "weight_decay": 1e-4,
    } | choose_device(options)
    config |= {"dtype": options.dtype} | ({"block_size": options.block_size} if options.block_size else {})
    order = {"matrix": str(matrix.path), "config": config, "servers": options.servers}
    alone, together = (run({**order, "workers": workers}) for workers in (0, options.workers))
    return {
        "workers": options.workers,
        "words": matrix.shape[0],
        "epochs": len(alone["losses"]),
        "losses_alone": [round(loss, 6) for loss in alone["losses"]],
        "losses_asynchronous": [round(loss, 6) for loss in together["losses"]],
        "relative_difference": round(together["loss"] / alone["loss"] - 1, 5),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--quality", nargs="+", metavar="TEXT", help="compare losses on this text")
    parser.add_argument("--max-size", type=int, default=20_000, help="words, with --quality")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=8, help="a side")
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--cells", type=int, default=160_000, help="observed, a block")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu", help="cuda: workers share the GPU of this machine")
    tiny = {"max_size": 100, "workers": 1, "blocks": 2, "block_size": 50, "cells": 200, "dim": 4, "epochs": 2}
    options = parse_arguments(parser, quality=lambda folder: [write_text(folder)], **tiny)
    if options.drive:
        drive(json.loads(options.drive))
        return

    if options.smoke:
        keep(options, {**measure_efficiency(options), "quality": measure_quality(options)})
    elif options.quality:
        options.workers = options.workers or 4
        keep(options, measure_quality(options), name="asynchronous_quality")
    else:
        options.workers, options.epochs = options.workers or 2, options.epochs or 2
        options.block_size = options.block_size or 4096
        keep(options, measure_efficiency(options))


if __name__ == "__main__":
    main()
