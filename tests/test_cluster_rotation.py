"""Rotation: real ranks, started by torchrun and linked by gloo, against one process that keeps the same order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import swivel
from swivel.cluster import rotation
from swivel.cluster.choosing import choose_workers
from swivel.config import TrainConfig
from swivel.errors import ClusterError, ConfigError
from swivel.matrix import Matrix
from swivel.means import Means
from swivel.progress import SilentProgress
from swivel.resources import find_rank
from swivel.training import Trained, train_matrix

pytestmark = pytest.mark.xdist_group("ranks")

SCRIPT = Path(__file__).parent / "rotation_ranks.py"
CONFIG = TrainConfig(dim=4, passes=3, block_size=13, zeros="all", backend="cpu", dtype="float32")
JOBS = {
    "all zeros": CONFIG,
    "sampled zeros": replace(CONFIG, zeros="sampled", common=0.2, middle=0.5, share=0.1),
    "more row blocks than columns": replace(CONFIG, block_size=9),
    "one block": replace(CONFIG, block_size=100),
    "until converged": replace(CONFIG, end="converged", passes=20, tolerance=0.05),
    "reference": replace(CONFIG, backend="reference", dtype="auto"),
    "torch": replace(CONFIG, backend="torch"),
    "made for four": replace(CONFIG, ranks=4),
    "glove": replace(CONFIG, objective="glove", confidence_most=1.0),
    "stopped": CONFIG,
    "diverging": replace(CONFIG, rate=1e30, end="converged"),
}


def train_alone(matrix: Matrix, config: TrainConfig, folder: Path) -> Trained:
    folder.mkdir(parents=True, exist_ok=True)
    trained = train_matrix(matrix, config, folder=folder, threads=1)
    assert trained is not None
    return trained


def bits(trained: Trained) -> bytes:
    return trained.rows.tobytes() + trained.columns.tobytes()


def run_ranks(count: int, jobs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run jobs on ranks; return what the leading one says of each."""
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


@pytest.fixture(scope="module")
def two_ranks(planted: Matrix, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {name: job_of(planted, config) for name, config in JOBS.items()}
    jobs["stopped"]["stop"] = [4, 1]
    return folder, run_ranks(2, jobs, folder)


@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("stopped", "diverging")])
def test_two_ranks_train_what_one_process_trains_in_the_same_order(
    planted: Matrix, tmp_path: Path, two_ranks: tuple[Path, dict[str, Any]], name: str
) -> None:
    folder, results = two_ranks
    config = JOBS[name]
    alone = train_alone(planted, replace(config, ranks=config.ranks or 2), tmp_path)
    assert (folder / name / "bits").read_bytes() == bits(alone)
    assert results[name]["losses"] == [loss.mean for loss in alone.history]


def test_each_column_block_is_sent_once_a_pass_and_no_more(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    """Two ranks: every column block changes hands once a pass, vectors and accumulators, half of them each way."""
    columns, passes, dim = 62, CONFIG.passes, CONFIG.dim
    _, results = two_ranks
    everything = passes * columns * dim * 2 * 4
    assert 0 < results["all zeros"]["sent"] <= everything * 3 / 5  # of one rank: half, but for blocks that are uneven


def test_order_for_ranks_is_another_one_and_trains_as_well(planted: Matrix, tmp_path: Path) -> None:
    one = train_alone(planted, CONFIG, tmp_path / "one")
    two = train_alone(planted, replace(CONFIG, ranks=2), tmp_path / "two")
    assert bits(one) != bits(two)
    assert two.history[-1].mean == pytest.approx(one.history[-1].mean, rel=0.05)


def test_one_rank_that_is_asked_to_stop_stops_all_and_one_process_goes_on(
    planted: Matrix, tmp_path: Path, two_ranks: tuple[Path, dict[str, Any]]
) -> None:
    folder, results = two_ranks
    assert results["stopped"] == {"ended": "KeyboardInterrupt"}
    heard = Hearing()
    trained = train_matrix(planted, CONFIG, folder=folder / "stopped", threads=1, progress=heard)
    assert any(line.startswith("going on after") for line in heard.lines)
    assert trained is not None
    assert bits(trained) == bits(train_alone(planted, replace(CONFIG, ranks=2), tmp_path))


def test_divergence_ends_every_rank(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    assert two_ranks[1]["diverging"] == {"ended": "Diverged"}


class Hearing(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


class StopAlone(SilentProgress):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def begin(self, job: str, total: float | None, unit: str) -> StopAlone:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.rounds -= bool(note)
        if self.rounds == 0:
            os.kill(os.getpid(), signal.SIGINT)


def test_run_begun_alone_goes_on_over_three_ranks_and_ends_alone(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, passes=4)
    home = tmp_path / "run"
    home.mkdir()
    with pytest.raises(KeyboardInterrupt):
        train_matrix(planted, config, folder=home, threads=1, progress=StopAlone(3))
    results = run_ranks(3, {"run": job_of(planted, config, stop=[6, 2])}, tmp_path)
    assert results["run"] == {"ended": "KeyboardInterrupt"}
    trained = train_matrix(planted, config, folder=home, threads=1)
    assert trained is not None
    whole = train_alone(planted, config, tmp_path / "whole")
    assert len(trained.history) == 4
    assert trained.history[-1].mean == pytest.approx(whole.history[-1].mean, rel=0.05)
    cells = [loss.observed_cells + loss.unobserved_cells for loss in trained.history]
    assert np.allclose(cells, 62 * 62), "every block once a pass"


def test_command_line_trains_on_ranks_and_speaks_once(planted: Matrix, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "swivel"]
    flags = ["--dim", "4", "--passes", "2", "--block-size", "13", "--seed", "3", "--backend", "cpu"]
    arguments = ["train", str(planted.path), "-o", str(tmp_path / "two"), *flags, "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 1
    alone = swivel.train(planted, tmp_path / "one", dim=4, passes=2, block_size=13, seed=3, backend="cpu", ranks=2)
    assert swivel.load(tmp_path / "two").vectors.tobytes() == alone.vectors.tobytes()


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "somewhere", "MASTER_PORT": "1"}


def test_only_a_launcher_makes_ranks() -> None:
    assert find_rank(RANK) == (1, 2, 1)
    assert find_rank({name: value for name, value in RANK.items() if name != "RANK"}) is None


def test_ranks_are_for_training_into_a_folder_that_all_see(planted: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="torchrun starts ranks for training alone"):
        swivel.count(["a b a b"], min_count=1)
    with pytest.raises(ConfigError, match="need a folder that they all see"):
        swivel.train(planted, dim=2)
    with pytest.raises(ConfigError, match="use one of them"):
        choose_workers(Means(ray="local"))


def test_ranks_that_do_not_find_each_other_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**RANK, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match="the ranks did not find each other"):
        rotation.Rotating(timedelta(seconds=1))


def test_rank_without_a_gpu_of_its_own_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ClusterError, match="rank 1 of this machine has no GPU of its own: there are 1"):
        rotation._take_device()
