"""How long a pass takes on a cluster: a model, checked against real runs here, then asked about 2^25 rows and columns.

    python benchmarks/scale.py            the model against runs with 1 to 4 workers and ranks on this machine (minutes)
    python benchmarks/scale.py --project  the projection alone (a second)

The constants are measured: of this machine in the same run, of an H200 by `benchmarks/gpu.py`. Of a network there is
none here to measure: bandwidth and latency are what the tables vary.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

from common import RESULTS

FLOAT = 4  # bytes
TURN = 1 << 25  # rows and columns of the paper's example
GBIT = 1e9 / 8
H200_LATENCY = 20e-6  # seconds between two hosts, InfiniBand or RoCE with the library's own overhead
RAY_LATENCY = 1e-3  # seconds of an actor's call and answer between two hosts


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


def strip_length(size: Size, workers: int) -> int:
    """Return how many blocks are leased together, as `cluster.leases` chooses on average."""
    return max(1, min(8, size.steps // (workers * 8)))


def bytes_per_step(size: Size, workers: int) -> float:
    """Return what a worker fetches and pushes a step: vectors down, gradients up; a strip's shared block once."""
    m = strip_length(size, workers)
    return size.block_bytes * (4 if m == 1 else 2 + 4 / m)


def served_pass(size: Size, machine: Machine, workers: int) -> float:
    """Return the seconds of a pass around parameter servers, one beside every worker.

    Fetches and pushes run beside the step before, so a step takes the longer of computing and moving; half of what is
    moved goes each way. Every worker's link carries its own traffic and that of the server beside it. A pass ends when
    the last strip does.
    """
    moved = bytes_per_step(size, workers)
    link = 0.0 if workers == 1 else (1 - 1 / workers) * moved / machine.bytes_per_second + 2 * machine.latency
    step = step_seconds(size, machine)
    own = max(step, link)
    if machine.cores is not None:  # Everything shares them: what is copied is computed by somebody.
        busy = step + moved * machine.copy_seconds
        own = max(own, busy * workers / machine.cores, busy if workers == 1 and machine.cores == 1 else 0.0)
    return (math.ceil(size.steps / workers) + strip_length(size, workers) / 2) * own


def rotated_pass(size: Size, machine: Machine, ranks: int) -> float:
    """Return the seconds of a pass in which column blocks go round: 2 chunks a rank, one travels, one computes."""
    row_blocks, column_blocks = math.ceil(size.rows / size.block), math.ceil(size.columns / size.block)
    height, chunk = math.ceil(row_blocks / ranks), math.ceil(column_blocks / (2 * ranks))
    moved = chunk * size.block_bytes * 2  # vectors and accumulators
    compute = height * chunk * step_seconds(size, machine)
    if machine.cores is not None:
        compute = max(compute, (compute + 2 * moved * machine.copy_seconds * (ranks > 1)) * ranks / machine.cores)
    travel = 0.0 if ranks == 1 else moved / machine.bytes_per_second + chunk * machine.latency
    return 2 * ranks * max(compute, travel)


def gpu(gbit: float, block: int) -> Machine:
    """Return an H200 as `benchmarks/gpu.py` measured it, with a link of so many Gbit/s."""
    measured = json.loads((RESULTS / "gpu.json").read_text())
    rate = measured["wide"]["cells_a_second"]  # large blocks
    small = 1024**2 / (measured["step"]["microseconds_all"] * 1e-6 / 4)
    return Machine(min(rate, small) if block < 2048 else rate, 5e-6, gbit * GBIT, H200_LATENCY)


def project() -> list[dict[str, float | int | str]]:
    rows = []
    for block in (1024, 2048, 4096, 8192, 16384):
        size = Size(TURN, TURN, block, 300)
        for gbit in (10, 25, 100, 200, 400):
            machine = gpu(gbit, block)
            served = replace(machine, latency=RAY_LATENCY)
            for gpus in (8, 16, 32, 64, 128, 256, 512):
                ideal = size.steps * step_seconds(size, machine) / gpus
                rows.append(
                    {
                        "block": block, "gbit": gbit, "gpus": gpus, "ideal_seconds": round(ideal, 1),
                        "served_seconds": round(served_pass(size, served, gpus), 1),
                        "rotated_seconds": round(rotated_pass(size, machine, gpus), 1),
                    }
                )  # fmt: skip
    return rows
