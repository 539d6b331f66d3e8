"""Runs on real ranks for tests: torchrun starts the ranks, and each of them runs `rotation_ranks.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.training.loop import TrainingResult, train_matrix

SCRIPT = Path(__file__).parent / "rotation_ranks.py"
CONFIG = TrainConfig(dim=4, epochs=3, block_size=13, zeros="all", backend="cpu", dtype="float32")


def train_alone(matrix: Matrix, config: TrainConfig, folder: Path) -> TrainingResult:
    folder.mkdir(parents=True, exist_ok=True)
    trained = train_matrix(matrix, config, folder=folder, threads=1)
    assert trained is not None
    return trained


def bits(trained: TrainingResult) -> bytes:
    return trained.rows.tobytes() + trained.columns.tobytes()


def run_ranks(count: int, jobs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run jobs on ranks; return the leader's result of each."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(folder / "jobs.json"), str(folder)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


def job_of(matrix: Matrix, config: TrainConfig, **more: Any) -> dict[str, Any]:
    return {"matrix": str(matrix.path), "config": asdict(config), **more}
