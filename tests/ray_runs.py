"""Asynchronous runs for tests: audited, and as a process of its own (`python ray_runs.py ...`) that can be killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.runtime.options import ClusterConfig
from swivel.runtime.progress import SilentProgress, Task
from swivel.training.distributed.async_executor import AsyncExecutor
from swivel.training.executor import CompletedSteps, PauseRequests, Round
from swivel.training.loop import train_matrix
from swivel.training.schedule import Block


class Audited(AsyncExecutor):
    """Compares, after every call, what was told with what the servers say that they applied."""

    def __init__(self, address: str, config: ClusterConfig) -> None:
        super().__init__(address, config)
        self.run_ids = 0
        self.told: list[tuple[int, Block]] = []

    def run(
        self, rounds: Sequence[Round], ahead: Sequence[Sequence[Block]], wishes: PauseRequests
    ) -> Iterator[CompletedSteps]:
        told: list[Block] = []
        for done in super().run(rounds, ahead, wishes):
            told += done.blocks
            yield done
        assert len(set(told)) == len(told), "a block was told twice"
        applied = {(side, block, other) for (side, block), others in self.applied.items() for other in others}
        expected = {(0, row, column) for row, column in told} | {(1, column, row) for row, column in told}
        assert applied == expected, "the servers applied something else than was told"
        self.run_ids += 1
        self.told += [(rounds[0].number, block) for block in told]


class Watching(SilentProgress):
    """Calls back with the number of strips that are done."""

    def __init__(self, call: Callable[[int], None] = lambda done: None) -> None:
        self.call, self.done = call, 0
        self.notes: list[str] = []
        self.said: list[str] = []

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        if note:
            self.done += 1
            self.notes.append(note)
            self.call(self.done)

    def message(self, text: str) -> None:
        self.said.append(text)


def pids(handles: Sequence[Any]) -> list[int]:
    """Return the processes of actors."""
    import ray

    found: list[int] = ray.get([handle.ping.remote() for handle in handles], timeout=60)
    return found


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train as the arguments say: the matrix, the folder, the address and the settings as JSON."""
    matrix, folder, address, settings, cluster = sys.argv[1:]
    workers = Audited(address, ClusterConfig(**json.loads(cluster)))
    progress = Watching(lambda done: say(done=done))
    trained = train_matrix(
        open_matrix(matrix),
        TrainConfig(**json.loads(settings)),
        folder=Path(folder),
        threads=1,
        progress=progress,
        workers=workers,
    )
    assert trained is not None
    say(loss=trained.history[-1].mean, epochs=len(trained.history), run_ids=workers.run_ids, said=progress.said)


if __name__ == "__main__":
    main()
