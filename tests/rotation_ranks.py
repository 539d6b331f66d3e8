"""Script of the ranks in the tests of the ring: `torchrun rotation_ranks.py JOBS OUT`. The leader writes results."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rotation_runs import plain_triton
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import Diverged
from swivel.runtime.progress import Progress, Task
from swivel.training.distributed.ring import RingExecutor
from swivel.training.loop import train_matrix


class Stopping(Progress, Task):
    """Sends SIGINT to one rank after a number of rounds."""

    def __init__(self, rounds: int, rank: int) -> None:
        self.rounds = rounds
        self.rank = rank

    def begin(self, job: str, total: float | None, unit: str) -> Stopping:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.rounds -= bool(note)
        if note and self.rounds == 0 and os.environ["RANK"] == str(self.rank):
            os.kill(os.getpid(), 2)


def run_job(job: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    executor = RingExecutor()
    home = folder if executor.is_leader else folder / str(executor.rank)
    home.mkdir(parents=True, exist_ok=True)
    progress = Stopping(*job["stop"]) if "stop" in job else Progress()
    matrix = open_matrix(job["matrix"])
    config = TrainConfig(**job["config"])

    try:
        with plain_triton(config):
            trained = train_matrix(matrix, config, folder=home, threads=1, progress=progress, executor=executor)
    except (KeyboardInterrupt, Diverged) as error:
        return {"ended": type(error).__name__} if executor.is_leader else None
    if trained is None:
        return None

    bits = trained.rows.tobytes() + trained.columns.tobytes()
    (home / "bits").write_bytes(bits)
    return {
        "losses": [loss.mean for loss in trained.history],
        "sent": executor.moved,
        "description": executor.describe(),
        "slots": executor._backend._slots if config.backend == "triton" else None,  # type: ignore[attr-defined]
    }


if __name__ == "__main__":
    out = Path(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {name: run_job(job, out / name) for name, job in json.loads(Path(sys.argv[1]).read_text()).items()}
    if os.environ["RANK"] == "0":
        (out / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()
