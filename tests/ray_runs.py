"""Runs on Ray for tests: audited, or as a separate process (`python ray_runs.py ...`) that can be killed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.runtime.options import ClusterConfig
from swivel.runtime.progress import Progress, Task
from swivel.training.backends import Step
from swivel.training.distributed.async_executor import AsyncExecutor
from swivel.training.distributed.ray_ring import RayRingExecutor
from swivel.training.executor import CompletedSteps
from swivel.training.loop import train_matrix
from swivel.training.schedule import Block


class Audited(AsyncExecutor):
    """Compares the blocks that each call of `run` reported with the changes that the servers applied."""

    def __init__(self, address: str, config: ClusterConfig) -> None:
        super().__init__(address, config)
        self.run_ids = 0
        self.reported: list[tuple[int, Block]] = []  # epoch and block

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        blocks: list[Block] = []
        for steps in super().run(rounds, ahead):
            blocks += steps[0]
            yield steps

        assert len(set(blocks)) == len(blocks), "a block was reported twice"
        applied = {(side, block, other) for (side, block), others in self._servers.applied.items() for other in others}
        expected = {(0, row, column) for row, column in blocks} | {(1, column, row) for row, column in blocks}
        assert applied == expected, "the servers applied other changes than reported"

        self.run_ids += 1
        epoch = rounds[0][0].seed[2]
        self.reported += [(epoch, block) for block in blocks]


class Watching(Progress, Task):
    """Calls a function with the number of finished blocks, and records notes and messages."""

    def __init__(self, call: Callable[[int], None] = lambda done: None) -> None:
        self.call = call
        self.done = 0
        self.notes: list[str] = []
        self.messages: list[str] = []

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        if note:
            self.done += 1
            self.notes.append(note)
            self.call(self.done)

    def message(self, text: str) -> None:
        self.messages.append(text)


def pids(handles: Sequence[Any]) -> list[int]:
    """Return the process ids of actors."""
    import ray

    numbers: list[int] = ray.get([handle.__ray_call__.remote(lambda _: os.getpid()) for handle in handles], timeout=60)
    return numbers


def report(**facts: Any) -> None:
    """Print facts as one line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train with the matrix, folder, address and settings (as JSON) of the command line."""
    matrix, folder, address, settings, cluster = sys.argv[1:]
    config, training = ClusterConfig(**json.loads(cluster)), TrainConfig(**json.loads(settings))
    executor = Audited(address, config) if config.asynchronous else RayRingExecutor(address, config, training)
    progress = Watching(lambda done: report(done=done))
    trained = train_matrix(
        open_matrix(matrix),
        training,
        folder=Path(folder),
        threads=1,
        progress=progress,
        executor=executor,
    )

    assert trained is not None

    bits = hashlib.sha256(trained.rows.tobytes() + trained.columns.tobytes()).hexdigest()
    report(bits=bits, epochs=len(trained.history), run_ids=getattr(executor, "run_ids", None))


if __name__ == "__main__":
    main()
