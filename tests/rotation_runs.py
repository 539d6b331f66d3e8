"""Runs on real ranks for tests: torchrun starts the ranks, and each of them runs `rotation_ranks.py`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.training.loop import TrainingResult, train_matrix

SCRIPT = Path(__file__).parent / "rotation_ranks.py"
CONFIG = TrainConfig(dim=4, epochs=3, block_size=13, zeros="all", backend="cpu", dtype="float32")


@contextlib.contextmanager
def plain_triton(config: TrainConfig) -> Iterator[None]:
    """Let the triton backend run on a CPU, with steps that use no kernels, if a configuration asks for it."""
    if config.backend != "triton":
        yield
        return

    from streaming_runs import PlainLauncher
    from swivel.training import training_plan as plan
    from swivel.training.backends.triton import backend

    with (
        mock.patch.object(plan, "choose_backend", lambda config: ("triton", "cpu")),
        mock.patch.object(plan, "choose_dtype", lambda *_, **__: "float32"),
        mock.patch.object(backend, "StepLauncher", PlainLauncher),
    ):
        yield


def train_alone(matrix: Matrix, config: TrainConfig, folder: Path) -> TrainingResult:
    folder.mkdir(parents=True, exist_ok=True)
    with plain_triton(config):
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
