"""Ring of ranks, started by torchrun and connected by gloo, compared with one process that uses the same order."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import swivel
from message_recorder import MessageRecorder
from rotation_runs import CONFIG, bits, job_of, run_ranks, train_alone
from swivel.counts import Matrix
from swivel.errors import ClusterError, ConfigError
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import find_rank
from swivel.training.distributed import ring
from swivel.training.executor import make_executor
from swivel.training.loop import train_matrix
from tolerances import assert_equal_but_for_rounding

pytestmark = pytest.mark.xdist_group("ranks")

JOBS = {
    "all zeros": CONFIG,
    "sampled zeros": replace(CONFIG, zeros="sampled", zeros_common=0.2, zeros_middle=0.5, zeros_share=0.1),
    "more row blocks than columns": replace(CONFIG, block_size=9),
    "one block": replace(CONFIG, block_size=100),
    "until converged": replace(CONFIG, stop="converged", epochs=20, tolerance=0.05),
    "reference": replace(CONFIG, backend="reference", dtype="auto"),
    "torch": replace(CONFIG, backend="torch"),
    "triton": replace(CONFIG, backend="triton", device="cpu"),
    "made for four": replace(CONFIG, ranks=4),
    "stopped": CONFIG,
    "diverging": replace(CONFIG, learning_rate=1e30, stop="converged"),
}


@pytest.fixture(scope="module")
def two_ranks(planted: Matrix, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {name: job_of(planted, config) for name, config in JOBS.items()}
    jobs["stopped"]["stop"] = [4, 1]
    return folder, run_ranks(2, jobs, folder)


@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("stopped", "diverging")])
def test_two_ranks_give_the_result_of_one_process_with_the_same_order(
    planted: Matrix, tmp_path: Path, two_ranks: tuple[Path, dict[str, Any]], name: str
) -> None:
    folder, results = two_ranks
    config = JOBS[name]
    ranks = None if name == "one block" else config.ranks or 2  # A single block has one order.
    alone = train_alone(planted, replace(config, ranks=ranks), tmp_path)
    found, losses = (folder / name / "bits").read_bytes(), [loss.mean for loss in alone.history]
    if config.backend == "cpu":
        assert found == bits(alone)
        assert results[name]["losses"] == losses
        return
    # Matrix products of torch and numpy use another number of threads in ranks: torchrun sets OMP_NUM_THREADS.
    expected = np.concatenate([alone.rows, alone.columns])

    assert config.epochs is not None

    terms = 13 * 5 * config.epochs  # columns of a block, blocks of a row, epochs

    assert_equal_but_for_rounding(np.frombuffer(found, expected.dtype).reshape(expected.shape), expected, terms=terms)
    np.testing.assert_allclose(results[name]["losses"], losses, rtol=terms * float(np.finfo(np.float32).eps))


def test_a_device_has_places_for_the_blocks_of_its_rank_only(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    """Of five row blocks the leader has three, and of five column blocks at most two chunks of two."""
    assert two_ranks[1]["triton"]["slots"] == 3 + 4


def test_each_column_block_is_sent_once_per_epoch(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    """With two ranks, every column block moves once per epoch (vectors and accumulators), half of them each way."""
    assert CONFIG.epochs is not None
    _, results = two_ranks
    everything = CONFIG.epochs * 62 * (CONFIG.dim + 1) * 4  # columns
    assert (
        0 < results["all zeros"]["sent"] <= everything * 3 / 5
    )  # one rank sends half, a little more with uneven blocks


def test_order_for_ranks_gives_another_result_of_the_same_quality(planted: Matrix, tmp_path: Path) -> None:
    one = train_alone(planted, CONFIG, tmp_path / "one")
    two = train_alone(planted, replace(CONFIG, ranks=2), tmp_path / "two")
    assert bits(one) != bits(two)
    assert two.history[-1].mean == pytest.approx(one.history[-1].mean, rel=0.05)


def test_signal_to_one_rank_stops_all_and_one_process_resumes(
    planted: Matrix, tmp_path: Path, two_ranks: tuple[Path, dict[str, Any]]
) -> None:
    folder, results = two_ranks
    assert results["stopped"] == {"ended": "KeyboardInterrupt"}
    messages = MessageRecorder()
    trained = train_matrix(planted, CONFIG, folder=folder / "stopped", threads=1, progress=messages)
    assert any(line.startswith("resuming after") for line in messages.lines)
    assert trained is not None
    assert bits(trained) == bits(train_alone(planted, replace(CONFIG, ranks=2), tmp_path))


def test_divergence_ends_every_rank(two_ranks: tuple[Path, dict[str, Any]]) -> None:
    assert two_ranks[1]["diverging"] == {"ended": "Diverged"}


RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "somewhere", "MASTER_PORT": "1"}


def test_ranks_need_the_environment_of_a_launcher() -> None:
    assert find_rank(RANK) == (1, 2, 1)
    assert find_rank({name: value for name, value in RANK.items() if name != "RANK"}) is None


def test_ranks_are_for_training_into_a_folder_that_all_see(planted: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="torchrun starts ranks for training only"):
        swivel.count(["a b a b"], min_count=1)
    with pytest.raises(ConfigError, match="need a folder that all of them see"):
        swivel.train(planted, dim=2)

    with pytest.raises(ConfigError, match="torchrun and ray cannot be combined"):
        make_executor(RunOptions(ray="local"), CONFIG)


def test_ranks_that_cannot_connect_raise_cluster_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**RANK, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match="the ranks could not connect"):
        ring.RingExecutor(timedelta(seconds=1))


def test_rank_without_a_gpu_raises_cluster_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ClusterError, match="local rank 1 has no GPU: this machine has 1"):
        ring._take_device()
