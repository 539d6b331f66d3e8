"""What every rank runs in the tests of rotation: `torchrun rotation_ranks.py JOBS OUT`. The leading one writes."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import Diverged
from swivel.runtime.progress import SilentProgress
from swivel.training.distributed.ring import RingExecutor
from swivel.training.loop import train_matrix


class Stopping(SilentProgress):
    """Asks one rank to stop after so many rounds, as Ctrl-C would."""

    def __init__(self, rounds: int, rank: int) -> None:
        self.rounds, self.rank = rounds, rank

    def begin(self, job: str, total: float | None, unit: str) -> Stopping:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.rounds -= bool(note)
        if self.rounds == 0 and os.environ["RANK"] == str(self.rank):
            os.kill(os.getpid(), 2)


def run_job(job: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    workers = RingExecutor()
    home = folder if workers.is_leader else folder / str(workers.rank)
    home.mkdir(parents=True, exist_ok=True)
    progress = Stopping(*job["stop"]) if "stop" in job else SilentProgress()
    matrix, config = open_matrix(job["matrix"]), TrainConfig(**job["config"])
    try:
        trained = train_matrix(matrix, config, folder=home, threads=1, progress=progress, workers=workers)
    except (KeyboardInterrupt, Diverged) as error:
        return {"ended": type(error).__name__} if workers.is_leader else None
    if trained is None:
        return None
    bits = trained.rows.tobytes() + trained.columns.tobytes()
    (home / "bits").write_bytes(bits)
    return {"losses": [loss.mean for loss in trained.history], "sent": workers.moved, "says": workers.describe()}


if __name__ == "__main__":
    out = Path(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = {name: run_job(job, out / name) for name, job in json.loads(Path(sys.argv[1]).read_text()).items()}
    if os.environ["RANK"] == "0":
        (out / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()
