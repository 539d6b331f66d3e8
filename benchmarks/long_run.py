"""Eight hours in minutes: 100,000 checkpointed steps on a small matrix; memory, handles, threads and files are watched.

    python benchmarks/long_run.py                    100,000 steps alone, as many traced, as many by two ranks
    python benchmarks/long_run.py --steps 50000      shorter ones

The real training loop runs, a checkpoint after every round of 20 steps. Two hundred times it is asked, after a
collection of garbage, what the process holds: resident memory, Python's memory blocks, memory that Python traces (in a
run of its own, for tracing takes memory, too), open file handles, threads, files in the run's folder. After a warm-up
each is fitted by a straight line. Slopes must be zero within noise: three standard errors, widened for samples that
are like the ones before, or a thousandth of what is held in 100,000 steps. Linux only (/proc). A smoke run has too few
steps to tell a slope from noise, so that its exit status says nothing about slopes; it is one process, untraced.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import keep, make_parser, parse_arguments, work_folder
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, open_matrix
from swivel.runtime.progress import Progress
from swivel.training.executor import Executor, LocalExecutor
from swivel.training.loop import train_matrix

MEASURES = (
    "swivel.training.checkpoint",
    "swivel.training.distributed.ring",
    "swivel.storage",
    "swivel.training.loop",
    "swivel.training.executor",
)
COLUMN_BLOCKS, BLOCK_SIZE, DIM = 20, 8, 16
ALWAYS = 1e-9  # minutes between two checkpoints
SAMPLES, WARM_UP = 200, 0.25
WATCHED = ("resident_bytes", "python_blocks", "traced_bytes", "handles", "threads", "files")
MOST_ERRORS, MOST_GROWTH = 3, 1e-3
RANKS = 2
KINDS = ("alone", "traced", "ranks")


class Watch(Progress):
    """Writes down, every so many steps, what this process holds."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.every, self.taken = folder, max(steps // SAMPLES, 1), 0
        self.table = np.zeros((SAMPLES, 1 + len(WATCHED)))  # all of it now: what is written later is no growth

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        if step < (self.taken + 1) * self.every or self.taken == SAMPLES:
            return
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        blocks, traced = sys.getallocatedblocks(), tracemalloc.get_traced_memory()[0]
        held = [len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task")]
        files = sum(len(names) for _, _, names in os.walk(self.folder))
        self.table[self.taken] = step, resident, blocks, traced, *held, files
        self.taken += 1


def drive(order: dict[str, Any]) -> None:
    """Train once, alone or as a rank; the leading process leaves its samples in a file."""
    workers: Executor = LocalExecutor()
    if order["kind"] == "ranks":
        import torch.distributed as dist

        from swivel.training.distributed.ring import RingExecutor

        dist.init_process_group("gloo")
        workers = RingExecutor()
    folder = Path(order["folder"]) / (str(os.environ.get("RANK", 0)))
    watch = Watch(folder, order["steps"])
    if order["kind"] == "traced":
        tracemalloc.start()
    config = TrainConfig(
        dim=DIM,
        block_size=BLOCK_SIZE,
        epochs=order["epochs"],
        backend="cpu",
        dtype="float32",
        checkpoint_minutes=ALWAYS,
    )
    trained = train_matrix(
        open_matrix(order["matrix"]), config, folder=folder, threads=2, progress=watch, executor=workers
    )
    if trained is not None:
        saved = json.loads((max(folder.glob("checkpoint-*"), key=os.path.getmtime) / "manifest.json").read_text())
        found = {
            "samples": watch.table[: watch.taken].tolist(),
            "checkpoints": saved["facts"]["saved"],
            "loss": trained.history[-1].mean,
        }
        Path(order["out"]).write_text(json.dumps(found))


def make_matrix(path: Path, row_blocks: int) -> Matrix:
    rng = np.random.default_rng(3)
    rows, columns = row_blocks * BLOCK_SIZE, COLUMN_BLOCKS * BLOCK_SIZE
    spec = MatrixSpec(
        rows=Vocabulary([f"r{n}" for n in range(rows)]), columns=Vocabulary([f"c{n}" for n in range(columns)])
    )
    with MatrixBuilder(path, spec, memory_bytes=1 << 26) as builder:
        row_ids, column_ids = ((rng.random(100_000) ** 2 * size).astype(np.int64) for size in (rows, columns))
        builder.add(row_ids, column_ids, rng.integers(1, 9, 100_000))
        return builder.finish()


def run_watched(kind: str, most_steps: int, row_blocks: int, work: Path) -> dict[str, Any]:
    """Run the loop in a process of its own, or in ranks; return samples and how long it took."""
    out, folder, steps_per_epoch = work / f"{kind}.json", work / kind, row_blocks * COLUMN_BLOCKS
    matrix = make_matrix(work / f"{kind}-matrix", row_blocks)
    epochs = max(most_steps // steps_per_epoch, 1)
    steps = epochs * steps_per_epoch
    order = {"kind": kind, "steps": steps, "epochs": epochs}
    order |= {"folder": str(folder), "matrix": str(matrix.path), "out": str(out)}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"] if kind == "ranks" else []
    started = time.perf_counter()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # torchrun says what it would set
    command = [sys.executable, *launcher, __file__, "--drive", json.dumps(order)]
    subprocess.run(command, check=True, env=environment if launcher else None)
    return {"steps": steps, "seconds": round(time.perf_counter() - started, 1), **json.loads(out.read_text())}


def fit_slope(steps: NDArray[np.float64], values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the least-squares slope a 1,000 steps with its standard error, and whether it is zero within noise."""
    x = (steps - steps.mean()) / 1000
    slope = float(x @ values / (x @ x))
    left = values - values.mean() - slope * x
    spread = float(left @ left)
    error = math.sqrt(spread / max(len(x) - 2, 1) / float(x @ x))
    if spread > 0:  # What is held now is much like what was held before: samples say less than their number.
        likeness = min(max(float(left[1:] @ left[:-1]) / spread, 0.0), 0.99)
        error *= math.sqrt((1 + likeness) / (1 - likeness))
    return {
        "start": float(values[0]),
        "end": float(values[-1]),
        "slope_per_1000_steps": slope,
        "standard_error": error,
        "is_flat": abs(slope) <= max(MOST_ERRORS * error, MOST_GROWTH * float(values.mean()) / 100),
    }


def fit_all(samples: list[list[float]]) -> dict[str, dict[str, Any]]:
    """Return the slope of everything that was watched, the warm-up left out."""
    table = np.array(samples[int(len(samples) * WARM_UP) :])
    return {name: fit_slope(table[:, 0], table[:, column]) for column, name in enumerate(WATCHED, 1)}


def print_table(kind: str, run: dict[str, Any]) -> None:
    print(f"{kind}: {run['steps']:,} steps, {run['checkpoints']:,} checkpoints, {run['seconds']:.0f} s")
    print(f"{'':16}{'start':>14}{'end':>14}{'slope/1000':>14}{'error':>12}")
    for name, fit in run["slopes"].items():
        figures = f"{fit['start']:14,.0f}{fit['end']:14,.0f}{fit['slope_per_1000_steps']:14.2f}"
        print(f"{name:16}{figures}{fit['standard_error']:12.2f}  {'flat' if fit['is_flat'] else 'NOT FLAT'}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--drive", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=100_000, help="a multiple of 10,000, which is an epoch")
    parser.add_argument("--row-blocks", type=int, default=500, help="of the matrix, which has 20 column blocks")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    options = parse_arguments(parser, steps=100, row_blocks=5, kinds=["alone"])
    if options.drive:
        drive(options.drive)
        return

    work, runs = work_folder() / "long_run", dict[str, Any]()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)

    for kind in options.kinds:
        run = run_watched(kind, options.steps, options.row_blocks, work)
        run["slopes"] = fit_all(run["samples"])
        run["samples"] = [[int(value) for value in sample] for sample in run["samples"][:: SAMPLES // 20]]
        print_table(kind, run)
        runs[kind] = run
    shutil.rmtree(work, ignore_errors=True)

    is_flat = all(fit["is_flat"] for run in runs.values() for fit in run["slopes"].values())
    keep(options, {"is_flat": is_flat, "runs": runs})
    sys.exit(not is_flat and not options.smoke)


if __name__ == "__main__":
    main()
