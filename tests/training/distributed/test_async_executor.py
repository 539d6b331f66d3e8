"""Asynchronous training on a real cluster of two nodes, compared with training in one process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from click.testing import CliRunner

from ray_cluster import TwoNodes
from ray_runs import Audited, Watching
from stored import folder_of
from swivel import RunOptions
from swivel.cli import cli
from swivel.config import TrainConfig
from swivel.counts import Matrix, open_matrix
from swivel.errors import ClusterError, ConfigError, StorageError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import connect
from swivel.training.distributed import async_executor
from swivel.training.distributed.async_executor import AsyncExecutor
from swivel.training.distributed.parameter_server import MAX_RESTORES, ServerPool
from swivel.training.executor import LocalExecutor, make_executor
from swivel.training.loop import train_matrix

pytestmark = pytest.mark.xdist_group("ray")
CONFIG = TrainConfig(dim=12, block_size=21, epochs=30, backend="cpu", checkpoint_minutes=0)


@pytest.fixture(scope="module")
def address(two_nodes: TwoNodes) -> Iterator[str]:
    """Address of the cluster. The connection stays open, so that Ray keeps its processes."""
    two_nodes.replace_node()
    with connect(two_nodes.address):
        yield two_nodes.address


def test_one_worker_without_prefetching_gives_the_bits_of_one_process(
    planted: Matrix, address: str, tmp_path: Path
) -> None:
    flags = [
        "--dim",
        "12",
        "--block-size",
        "21",
        "--epochs",
        "4",
        "--backend",
        "cpu",
        "--weight-decay",
        "1e-4",
        "--threads",
        "1",
    ]
    for name, options in (
        ("alone", []),
        ("ray", ["--ray", address, "--asynchronous", "--workers", "1", "--ahead", "1"]),
    ):
        out = ["-o", str(tmp_path / name), "--json", "--quiet"]
        ended = CliRunner().invoke(cli, ["train", str(planted.path), *out, *flags, *options])
        assert ended.exit_code == 0, ended.output
        assert json.loads(ended.stdout)["tokens"] == 62
    alone, ray = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("alone", "ray"))

    assert ray["parts"] == alone["parts"]  # to the last bit
    assert ray["facts"]["losses"] == alone["facts"]["losses"]
    assert ray["config"] == alone["config"]


def test_a_run_moves_from_the_cluster_to_one_process_and_back_and_finds_the_groups(
    planted: Matrix, address: str, share_of_own_group: Callable[[np.ndarray], float], tmp_path: Path
) -> None:
    config = replace(CONFIG, block_size=16)

    def stop(done: int) -> None:
        if done == 20:
            os.kill(os.getpid(), signal.SIGINT)

    first = Audited(address, ClusterConfig(workers=1, ahead=1))
    last = Audited(address, ClusterConfig(workers=2, servers=2))
    for executor in (first, None):
        with pytest.raises(KeyboardInterrupt):
            train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=Watching(stop))
    progress = Watching()
    trained = train_matrix(planted, config, folder=tmp_path, threads=1, executor=last, progress=progress)
    alone = train_matrix(planted, config, folder=tmp_path / "alone", threads=1)
    assert alone is not None and trained is not None
    assert any("resuming after" in line for line in progress.messages)
    assert "2 asynchronous workers around 2 servers" in progress.messages[-1]
    for word in ("epoch", "shards/s", "moved", "of 2 workers"):
        assert word in progress.notes[-1]
    assert len(trained.history) == config.epochs
    assert all(loss.observed_cells == trained.history[0].observed_cells for loss in trained.history)
    assert len(first.reported) >= 20
    assert len(set(first.reported + last.reported)) == len(first.reported) + len(last.reported) < config.epochs * 16
    current = last.reported[0][0]
    later = [(n, (i, j)) for n in range(current + 1, config.epochs) for i in range(4) for j in range(4)]
    assert sorted(entry for entry in last.reported if entry[0] > current) == later
    assert last.moved > 0
    assert trained.history[-1].mean < 1.5 * alone.history[-1].mean  # loose: with 62 words the order matters
    assert share_of_own_group(trained.rows + trained.columns) > 0.9


def test_matrix_that_workers_cannot_open_ends_the_run_with_the_reason(
    planted: Matrix, address: str, tmp_path: Path
) -> None:
    shutil.copytree(folder_of(planted), tmp_path / "matrix")
    matrix = open_matrix(tmp_path / "matrix")

    assert matrix.row_sums.sum() == matrix.column_sums.sum() == matrix.total  # Read what the command needs,
    assert len(matrix.cells(0, 0).counts)  # and verify the rest.

    shutil.move(tmp_path / "matrix", tmp_path / "moved")
    with pytest.raises(StorageError, match="no such folder"):
        train_matrix(
            matrix, CONFIG, folder=tmp_path, threads=1, executor=AsyncExecutor(address, ClusterConfig(workers=2))
        )


def test_workers_without_free_cores_end_the_run(planted: Matrix, address: str, tmp_path: Path) -> None:
    config = ClusterConfig(workers=1, worker_threads=64, patience_seconds=1.0)
    with pytest.raises(ClusterError, match=r"no progress for . s: 0 of 1 workers have joined.*64 free cores"):
        train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=AsyncExecutor(address, config))


def test_processes_without_work_are_not_started(planted: Matrix, address: str, tmp_path: Path) -> None:
    executor = AsyncExecutor(address, ClusterConfig(servers=100_000, workers=100_000))
    progress = Watching()
    config = replace(CONFIG, block_size=100, epochs=1, backend="reference")
    train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=progress)
    assert "1 asynchronous workers around 2 servers" in progress.messages[-1]


def test_workers_that_join_and_die_end_the_run_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block is finished: a new worker that joins has no result and does not count as progress."""
    clock = iter(range(1, 100_000))
    monkeypatch.setattr("swivel.training.distributed.async_executor.now", lambda: float(next(clock)))
    executor = AsyncExecutor.__new__(AsyncExecutor)
    executor.config = ClusterConfig(workers=1, patience_seconds=50.0)
    executor._threads = 1
    executor._ray = MagicMock()
    executor._last_progress = 0.0
    pool = MagicMock(wait=lambda seconds: [], ready=0, failure="ActorDiedError: out of memory")
    pool.__len__.return_value = 1
    executor._workers = pool

    with pytest.raises(ClusterError, match="the last failure was: ActorDiedError: out of memory"):
        for _ in range(10_000):
            executor._wait_for_results()


def test_servers_that_are_always_lost_when_they_are_read_end_the_run(
    planted: Matrix, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    save, losses, seconds = ServerPool.save, iter(range(MAX_RESTORES + 2)), 0.0

    def lose(self: ServerPool) -> None:
        nonlocal seconds
        seconds += 1000  # All blocks are trained again before each loss.
        assert next(losses, None) is not None, "the run never ends"
        for handle in self.handles:
            ray.kill(handle)
        save(self)

    monkeypatch.setattr(ServerPool, "save", lose)
    monkeypatch.setattr(async_executor, "now", lambda: time.monotonic() + seconds)
    executor = AsyncExecutor(address, ClusterConfig(workers=1))
    with pytest.raises(ClusterError, match=r"servers were lost 6 times, without a new block .*actor died.*; run"):
        train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor)


def test_executor_is_chosen_by_the_run_options(address: str) -> None:
    assert type(make_executor(RunOptions(), CONFIG)) is LocalExecutor

    chosen = make_executor(RunOptions(ray=address, cluster=ClusterConfig(workers=3, asynchronous=True)), CONFIG)

    assert isinstance(chosen, AsyncExecutor)
    assert chosen.config.workers == 3
    assert chosen.broadcast("text") == "text"
    assert chosen.any_rank(True)
    assert not chosen.any_rank(False)

    chosen.close()


@pytest.mark.parametrize(("name", "value"), [("workers", 0), ("servers", 0), ("lease_seconds", -1.0), ("ahead", 0)])
def test_cluster_settings_are_validated(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be"):
        ClusterConfig(**{name: value})  # type: ignore[arg-type]
