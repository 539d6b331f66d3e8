"""How long an epoch takes on a cluster: a model, checked against real runs, then applied to 2^25 rows and columns.

    python benchmarks/scale.py            the model against runs with 1 to 4 workers and ranks on this machine (minutes)
    python benchmarks/scale.py --project  the projection alone (a second)

The constants are measured: of this machine in the same run, of an H200 by `benchmarks/gpu.py`. Of a network there is
none here to measure: bandwidth and latency are what the tables vary. A smoke run checks the model against one worker
and one rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common import RESULTS, keep, make_parser, median_seconds, parse_arguments
from swivel.training.schedule import block_starts

MEASURES = (
    "swivel.training.distributed.async_executor",
    "swivel.training.distributed.leases",
    "swivel.training.distributed.ring",
    "swivel.training.distributed.parameter_server",
    "swivel.training.loop",
)
FLOAT = 4  # bytes
CHECKED = ("constants", "size", "runs")  # what a run of the model against this machine leaves
LARGE = 1 << 25  # rows and columns of the paper's example
GBIT = 1e9 / 8
NCCL_LATENCY = 20e-6  # seconds of a message between two hosts; assumed
RAY_LATENCY = 1e-3  # seconds of an actor's call and its answer; about what it takes on one machine


@dataclass(frozen=True)
class Machine:
    """What a worker and its link are: constants that are measured, or varied."""

    cells_per_second: float  # of a step on one worker, alone
    step_seconds: float  # of a step besides its cells: launches, reading the shard
    bytes_per_second: float  # of a worker's link, each way
    latency: float  # seconds of a message
    copy_seconds: float = 0.0  # of a core for a byte that comes or goes: packing, unpacking, Adagrad on a server
    cores: int | None = None  # that all workers and servers share; None: each has its own


@dataclass(frozen=True)
class Size:
    """What is trained."""

    rows: int
    columns: int
    block: int
    dim: int

    @property
    def steps(self) -> int:
        return math.ceil(self.rows / self.block) * math.ceil(self.columns / self.block)

    @property
    def block_bytes(self) -> int:
        return self.block * self.dim * FLOAT


def step_seconds(size: Size, machine: Machine) -> float:
    return size.block**2 / machine.cells_per_second + machine.step_seconds


def served_pass(size: Size, machine: Machine, workers: int) -> float:
    """Return the seconds of an epoch around parameter servers, one beside every worker.

    Fetches and pushes run beside the step before, so a step takes the longer of computing and moving; half of what is
    moved goes each way, and half of the copying is the worker's own. Every worker's link carries its own traffic and
    that of the server beside it. The last worker is half a step late. Then the command reads all parameters, so that a
    server that is lost can be restored.
    """
    moved = 4 * size.block_bytes  # the vectors of both sides, and their gradients
    link = 0.0 if workers == 1 else (1 - 1 / workers) * moved / machine.bytes_per_second + 2 * machine.latency
    step = step_seconds(size, machine)
    own = max(step + moved * machine.copy_seconds / 2, link)
    if machine.cores is not None:  # Everything shares them: what is copied is computed by somebody.
        own = max(own, (step + moved * machine.copy_seconds) * workers / machine.cores)
    saved = (size.rows + size.columns) * (size.dim + 1) * FLOAT  # vectors, and an accumulator for each
    saving = saved * max(machine.copy_seconds, 1 / machine.bytes_per_second)
    return (size.steps / workers + 0.5) * own + saving


def rotated_pass(size: Size, machine: Machine, ranks: int) -> float:
    """Return the seconds of an epoch in which column blocks go round: 2 chunks a rank, one travels, one computes."""
    row_blocks, column_blocks = math.ceil(size.rows / size.block), math.ceil(size.columns / size.block)
    heights, chunks = np.diff(block_starts(row_blocks, ranks)), np.diff(block_starts(column_blocks, 2 * ranks))
    step, total = step_seconds(size, machine), 0.0
    for turn in range(2 * ranks):
        held = chunks[(2 * np.arange(ranks) + turn) % (2 * ranks)]
        compute = float((heights * held).max()) * step
        moved = held * size.block * (size.dim + 1) * FLOAT * (ranks > 1)  # vectors, and an accumulator for each
        if machine.cores is not None:
            copies = 2 * float(moved.sum()) * machine.copy_seconds
            compute = max(compute, (float((heights * held).sum()) * step + copies) / machine.cores)
        travel = float(moved.max()) / machine.bytes_per_second + float(held.max()) * machine.latency * (ranks > 1)
        total += max(compute, travel)
    return total


def gpu(gbit: float) -> Machine:
    """Return an H200 as `benchmarks/gpu.py` measured it, all blocks on the device, with a link of so many Gbit/s."""
    measured = json.loads((RESULTS / "gpu.json").read_text())["step"]["step"]
    return Machine(4096**2 / (measured["loop_microseconds"] * 1e-6), 0.0, gbit * GBIT, NCCL_LATENCY)


def served_gpu(gbit: float, block: int) -> Machine:
    """Return the same H200 as a worker of servers: vectors come from host memory, gradients go back there."""
    seconds = json.loads((RESULTS / "gpu.json").read_text())["step"]["served"][str(block)]
    return Machine(math.inf, seconds, gbit * GBIT, RAY_LATENCY)


def project() -> list[dict[str, float]]:
    """Return seconds of an epoch over 2^25 rows and columns, d = 300, in both modes."""
    found = []
    for block in (1024, 2048, 4096, 8192, 16384):
        size = Size(LARGE, LARGE, block, 300)
        for gbit in (10, 25, 100, 200, 400):
            for gpus in (8, 16, 32, 64, 128, 256, 512):
                served, rotated = served_pass(size, served_gpu(gbit, block), gpus), rotated_pass(size, gpu(gbit), gpus)
                found.append({"block": block, "gbit": gbit, "gpus": gpus, "served": served, "rotated": rotated})
    return [{name: round(value, 1) for name, value in line.items()} for line in found]


def measure_constants(block: int, dim: int, plain: dict[str, float]) -> Machine:
    """Return this machine: the rate of the plain loop on one thread, and what moving a byte through Ray takes."""
    import ray

    with ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False):
        block_of = np.zeros((block, dim), np.float32)

        class Holder:
            def fetch(self) -> np.ndarray:
                return block_of

            def push(self, values: np.ndarray) -> float:
                return float((block_of + values)[0, 0])

            def nothing(self) -> int:
                return os.getpid()

        holder = ray.remote(Holder).options(num_cpus=0).remote()
        ray.get(holder.nothing.remote(), timeout=60)
        latency = median_seconds(lambda: ray.get(holder.nothing.remote(), timeout=60), 200)
        for _ in range(3):
            ray.get(holder.push.remote(ray.get(holder.fetch.remote(), timeout=60)), timeout=60)
        before, started, times = cpu_seconds(), time.perf_counter(), 20
        for _ in range(times):
            ray.get(holder.push.remote(ray.get(holder.fetch.remote(), timeout=60)), timeout=60)
        seconds, busy = time.perf_counter() - started, cpu_seconds() - before
    moved = 2 * times * block_of.nbytes
    return Machine(plain["cells_per_second"], 0.0, moved / seconds, latency, busy / moved, os.cpu_count())


def cpu_seconds() -> float:
    """Return the processor's seconds that this process and all below it have had: Ray's store and scheduler, too."""
    fields: dict[int, list[str]] = {}
    found = {os.getpid()}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields[int(folder.name)] = (folder / "stat").read_text().rsplit(")", 1)[1].split()
    while more := {pid for pid, stat in fields.items() if int(stat[1]) in found} - found:
        found |= more
    ticks = sum(int(fields[pid][11]) + int(fields[pid][12]) for pid in found)
    return ticks / os.sysconf("SC_CLK_TCK")


def check(options: argparse.Namespace) -> dict[str, Any]:
    """Run 1 to 4 workers and ranks here; return measured and modelled seconds of an epoch."""
    import asynchronous
    import rotation

    matrix = asynchronous.make_matrix(options.blocks, options.block_size, options.cells)
    config = {
        "dim": options.dim,
        "block_size": options.block_size,
        "epochs": 2,
        "dtype": "float32",
        "checkpoint_minutes": 0,
    }
    order = {"matrix": str(matrix.path), "config": config | {"backend": "cpu"}, "servers": 1}
    plain = asynchronous.run({**order, "workers": 0})
    machine = measure_constants(options.block_size, options.dim, plain)
    size = Size(*matrix.shape, options.block_size, options.dim)
    cells = matrix.shape[0] * matrix.shape[1]
    found = []
    for count in options.workers:
        served = cells / asynchronous.run({**order, "workers": count})["cells_per_second"]
        rotated = cells / rotation.run({k: order[k] for k in ("matrix", "config")}, count)["cells_per_second"]
        for mode, seconds, model in (("served", served, served_pass), ("rotated", rotated, rotated_pass)):
            predicted = model(size, machine, count)
            line = {"mode": mode, "workers": count, "seconds": round(seconds, 2), "model": round(predicted, 2)}
            found.append(line | {"ratio": round(predicted / seconds, 3)})
            print(found[-1], flush=True)
    return {"constants": asdict(machine), "size": asdict(size), "runs": found}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--project", action="store_true", help="the projection alone")
    parser.add_argument("--blocks", type=int, default=8, help="a side, of the runs here")
    parser.add_argument("--block-size", type=int, default=2048)
    parser.add_argument("--cells", type=int, default=160_000, help="observed, a block")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4], help="and ranks, of the runs here")
    options = parse_arguments(parser, blocks=2, block_size=50, cells=200, dim=4, workers=[1])

    checked = {} if options.project else check(options)
    kept = RESULTS / "scale.json"
    if options.project and kept.exists():
        checked = {name: value for name, value in json.loads(kept.read_text()).items() if name in CHECKED}
    keep(options, {**checked, "projection": project()})


if __name__ == "__main__":
    main()
