"""Random kills: ranks or workers and servers, nodes and the command itself, over whole runs on a real cluster.

    python benchmarks/kills.py                   rotation: ranks, nodes and commands are killed
    python benchmarks/kills.py --asynchronous    parameter servers: workers, servers and commands are killed

Every run must end, with every shard visited once an epoch: the observed cells of every epoch, summed over all lives of
the command, are those of the matrix. With rotation the vectors must be those of a run that nobody disturbed, bit for
bit; with parameter servers the loss must be within 2 % of its, and at the end of every call the servers say what they
applied, which must be what was told and nothing else (a run that finds otherwise fails). A smoke run kills once in one
short run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common import keep, make_parser, parse_arguments, work_folder
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, open_matrix
from swivel.errors import ClusterError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.progress import Progress, Task
from swivel.training.backends import Step
from swivel.training.distributed import ray_ring
from swivel.training.distributed.async_executor import AsyncExecutor
from swivel.training.distributed.ray_ring import RayRingExecutor
from swivel.training.executor import CompletedSteps
from swivel.training.loop import train_matrix
from swivel.training.schedule import Block, rounds_for_ranks

MEASURES = (
    "swivel.training.distributed.ray_ring",
    "swivel.training.distributed.ring",
    "swivel.training.distributed.async_executor",
    "swivel.runtime.ray",
    "swivel.training.distributed.leases",
    "swivel.training.distributed.parameter_server",
    "swivel.training.checkpoint",
    "swivel.training.loop",
)
MARK = "SWIVEL_KILLS"  # in the environment of the processes that may be killed
BLOCK_SIZE, DIM = 256, 64
SERVED_KINDS = ("worker", "worker", "worker", "server", "server", "driver")
ROTATED_KINDS = ("rank", "rank", "rank", "node", "driver")
COPY_SECONDS = 2.0  # between two copies of the parameters with rotation
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


class Audited(AsyncExecutor):
    """Compares, after every call, what was told with what the servers say that they applied."""

    audits = 0

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        told: list[Block] = []
        for done in super().run(rounds, ahead):
            told += done[0]
            yield done
        applied = Counter(
            (side, block, other) for (side, block), others in self._servers.applied.items() for other in others
        )
        expected = Counter([(0, row, column) for row, column in told] + [(1, column, row) for row, column in told])
        if applied != expected:
            raise AssertionError(f"applied {applied - expected} too much, {expected - applied} not at all")
        self.audits += 1


class Counting(RayRingExecutor):
    """Says how old the copy of the parameters was, and how many rounds were repeated, whenever ranks were lost."""

    def _report_loss(self, error: ClusterError) -> None:
        say(copy_seconds=time.monotonic() - self._copied, lost_rounds=len(self._rounds))
        super()._report_loss(error)


class Beats(Progress, Task):
    """Says that the first step is done."""

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        if note:
            say(beat=True)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def drive(matrix: str, folder: str, address: str, servers: str, epochs: str) -> None:
    """Train once, as one life of a run; by rotation without servers."""
    config = ClusterConfig(workers=2, servers=max(1, int(servers)), lease_seconds=20, patience_seconds=180)
    settings = TrainConfig(
        dim=DIM, block_size=BLOCK_SIZE, epochs=int(epochs), backend="cpu", dtype="float32", checkpoint_minutes=0.02
    )
    workers: Any
    if int(servers):
        workers = Audited(address, config)
    else:
        settings = replace(settings, ranks=2, checkpoint_minutes=0.2)
        ray_ring.COPY_SECONDS = COPY_SECONDS
        workers = Counting(address, replace(config, worker_threads=1), settings)
    opened = open_matrix(matrix)
    trained = train_matrix(opened, settings, folder=Path(folder), threads=1, progress=Beats(), executor=workers)
    assert trained is not None
    whole = all(loss.observed_cells == opened.cell_count for loss in trained.history)
    bits = hashlib.sha256(trained.rows.tobytes() + trained.columns.tobytes()).hexdigest()
    say(
        loss=trained.history[-1].mean,
        epochs=len(trained.history),
        whole=whole,
        bits=bits,
        audits=getattr(workers, "audits", 0),
    )


def make_matrix(words: int) -> Matrix:
    path = work_folder() / "kills"
    shutil.rmtree(path, ignore_errors=True)

    rng = np.random.default_rng(5)
    spec = MatrixSpec(rows=Vocabulary([f"w{n}" for n in range(words)]), symmetric=False)
    topics = rng.integers(0, 16, words)
    with MatrixBuilder(path, spec, memory_bytes=1 << 28) as builder:
        for _ in range(8):
            rows, columns = ((rng.random(200_000) ** 2.5 * words).astype(np.int64) for _ in range(2))
            same = (topics[rows] == topics[columns]) | (rng.random(len(rows)) < 0.2)
            builder.add(rows[same], columns[same], 1 + rng.poisson(2, int(same.sum())))
        return builder.finish()


def find_processes(kind: str) -> list[int]:
    """Return the actors of a kind that were started under our mark."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                folder.name.isdecimal()
                and (folder / "cmdline").read_bytes().startswith(f"ray::{kind.capitalize()}".encode())
                and f"{MARK}={os.environ[MARK]}".encode() in (folder / "environ").read_bytes()
            ):
                found.append(int(folder.name))
    return found


class Life:
    """The command, once."""

    def __init__(
        self, matrix: Matrix, folder: Path, address: str, servers: int, epochs: int, losses: list[dict[str, Any]]
    ) -> None:
        drive_arguments = str(matrix.path), str(folder), address, str(servers), str(epochs)
        arguments = [sys.executable, __file__, "--drive", *drive_arguments]
        with (folder.parent / "kills-errors.txt").open("ab") as errors:
            self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.has_stepped, self.last = threading.Event(), dict[str, Any]()
        self.losses = losses  # of all lives
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # Ray prints, too.
                self.last = json.loads(line)
                if "copy_seconds" in self.last:
                    self.losses.append(self.last)
                else:
                    self.has_stepped.set()

    def end(self) -> bool:
        """Return whether it ended well; one that runs is killed."""
        is_hung = self.process.poll() is None
        self.process.kill()
        code = self.process.wait()
        self._thread.join(10)
        return not is_hung and code == 0 and "loss" in self.last


class Nodes:
    """A cluster: a node for the command, and two others that train."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
        self.others = [self._add() for _ in range(2)]

    def _add(self) -> Any:
        """Start a node: Ray gives up after 30 s, which is not enough on a busy machine."""
        for _ in range(9):
            with contextlib.suppress(Exception):
                return self.cluster.add_node(**NODE)
        raise OSError("no node has started")

    def lose(self, number: int) -> None:
        """Kill a node and all its processes; another one joins."""
        self.cluster.remove_node(self.others.pop(number), allow_graceful=False)
        self.others.append(self._add())


def run_once(
    nodes: Nodes, matrix: Matrix, rng: random.Random, kills: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Train once, with so many kills on the way; return what came out."""
    folder, servers = work_folder() / "kills-run", rng.choice([1, 2, 3]) if options.asynchronous else 0
    kinds, address, epochs = SERVED_KINDS if servers else ROTATED_KINDS, nodes.cluster.address, options.epochs
    shutil.rmtree(folder, ignore_errors=True)
    done: Counter[str] = Counter()
    losses: list[dict[str, Any]] = []
    started, life, lives = time.monotonic(), Life(matrix, folder, address, servers, epochs, losses), 1
    next_kill = time.monotonic()
    while life.process.poll() is None and time.monotonic() - started < options.limit:
        time.sleep(0.02)
        if sum(done.values()) < kills and life.has_stepped.is_set() and time.monotonic() >= next_kill:
            kind = rng.choice(kinds)
            targets = [life.process.pid] if kind == "driver" else find_processes(kind)
            if kind == "node":
                nodes.lose(rng.randrange(len(nodes.others)))
                done[kind] += 1
            elif targets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(targets), signal.SIGKILL)
                    done[kind] += 1
            next_kill = time.monotonic() + rng.uniform(0.05, 2.0 if servers else 12.0)
            if kind == "driver":
                life.end()
                life, lives = Life(matrix, folder, address, servers, epochs, losses), lives + 1
    ended = life.end()
    seconds = round(time.monotonic() - started, 1)
    worst = {name: max((loss[name] for loss in losses), default=0) for name in ("copy_seconds", "lost_rounds")}
    facts = {"ended": ended, "kills": dict(done), "lives": lives, "servers": servers, "seconds": seconds}
    return {**facts, **life.last, **worst, "restores": len(losses)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--drive", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--minutes", type=float, default=60, help="begin no more runs after this time")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--each", type=int, default=8, help="kills in a run")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a run: more is a hang")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", type=int, default=2, help="runs that nobody disturbs")
    parser.add_argument("--words", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=40)
    options = parse_arguments(parser, kills=1, each=1, calm=1, words=512, epochs=40)
    if options.drive:
        drive(*options.drive)
        return

    os.environ[MARK], os.environ["RAY_USAGE_STATS_ENABLED"] = str(os.getpid()), "0"
    rng, matrix, nodes = random.Random(options.seed), make_matrix(options.words), Nodes()
    runs: list[dict[str, Any]] = []
    started = time.monotonic()
    try:
        calm = [run_once(nodes, matrix, rng, 0, options) for _ in range(options.calm)]
        print(calm, flush=True)
        while (
            sum(sum(found["kills"].values()) for found in runs) < options.kills
            and time.monotonic() - started < options.minutes * 60
        ):
            runs.append(run_once(nodes, matrix, rng, options.each, options))
            print(len(runs), runs[-1], flush=True)
    finally:
        nodes.cluster.shutdown()

    loss = sum(found["loss"] for found in calm) / len(calm)
    differences = [abs(found["loss"] / loss - 1) if found["ended"] else None for found in runs]
    kinds = sum((Counter(found["kills"]) for found in runs), Counter[str]())
    blocks = -(-options.words // BLOCK_SIZE)
    result = {
        "kills": sum(kinds.values()),
        "kinds": dict(kinds),
        "runs": len(runs),
        "lives": sum(found["lives"] for found in runs),
        "runs_ended": sum(found["ended"] for found in runs),
        "runs_whole": sum(bool(found.get("whole")) for found in runs),
        "runs_bit_for_bit": sum(found.get("bits") == calm[0]["bits"] for found in runs),
        "audits_in_last_lives": sum(found.get("audits", 0) for found in runs),
        "restores": sum(found["restores"] for found in runs),
        "oldest_copy_seconds": round(max(found["copy_seconds"] for found in runs), 1),
        "largest_loss_of_work_rounds": max(found["lost_rounds"] for found in runs),
        "rounds": options.epochs * len(rounds_for_ranks(blocks, blocks, 2, (0, 0))),
        "undisturbed_loss": loss,
        "largest_difference": max((each for each in differences if each is not None), default=None),
        "longest_seconds": max(found["seconds"] for found in runs),
    }
    keep(options, result, name=f"faults/{'kills' if options.asynchronous else 'kills_rotation'}")


if __name__ == "__main__":
    main()
