"""Rotation on a real Ray cluster of two nodes: the bits of one process, also if ranks and nodes are lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ray_cluster import TwoNodes
from ray_runs import Watching, pids
from rotation_runs import CONFIG, bits, train_alone
from stored import folder_of
from swivel import RunOptions
from swivel.cli import cli
from swivel.counts import Matrix, open_matrix
from swivel.errors import ClusterError, ConfigError, StorageError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import connect
from swivel.training.distributed import ray_ring
from swivel.training.distributed.ray_ring import RayRingExecutor
from swivel.training.executor import make_executor
from swivel.training.loop import train_matrix

pytestmark = pytest.mark.xdist_group("ray")
LONG = replace(CONFIG, epochs=40)


@pytest.fixture(scope="module")
def address(two_nodes: TwoNodes) -> Iterator[str]:
    two_nodes.replace_node()
    with connect(two_nodes.address):
        yield two_nodes.address


def test_two_ranks_on_ray_give_the_bits_of_one_process(planted: Matrix, address: str, tmp_path: Path) -> None:
    flags = ["--dim", "4", "--epochs", "3", "--block-size", "13", "--backend", "cpu", "--threads", "1"]
    for name, options in (("alone", ["--ranks", "2"]), ("ray", ["--ray", address])):
        out = ["-o", str(tmp_path / name), "--json", "--quiet"]
        ended = CliRunner().invoke(cli, ["train", str(planted.path), *out, *flags, *options])
        assert ended.exit_code == 0, ended.output
    alone, ray = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("alone", "ray"))

    assert ray["parts"] == alone["parts"]  # to the last bit
    assert ray["facts"]["losses"] == alone["facts"]["losses"]
    assert ray["facts"]["plan"] == alone["facts"]["plan"]


@pytest.mark.parametrize("lost", ["rank 0", "rank 1", "node"])
def test_a_lost_rank_or_node_changes_no_bit(
    planted: Matrix, address: str, two_nodes: TwoNodes, tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_ring, "COPY_SECONDS", 0.2)
    config = replace(LONG, ranks=2)
    executor = RayRingExecutor(address, ClusterConfig(), config)

    def lose(done: int) -> None:
        if done != 100:
            return
        if lost == "node":
            two_nodes.lose_node()
        else:
            os.kill(pids(executor._actors)[int(lost[-1])], signal.SIGKILL)

    progress = Watching(lose)
    try:
        trained = train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=progress)
    finally:
        two_nodes.replace_node()

    assert trained is not None
    assert any("a rank was lost" in line for line in progress.messages)
    assert bits(trained) == bits(train_alone(planted, config, tmp_path / "alone"))
    cells = [loss.observed_cells for loss in trained.history]
    assert cells == cells[:1] * 40, "every block once per epoch"


def test_a_node_that_joins_is_used_from_the_next_epoch_on(
    planted: Matrix, address: str, two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_ring, "LOOK_SECONDS", 0.0)
    two_nodes.lose_node()
    with connect(address) as ray:
        while sum(node["Alive"] for node in ray.nodes()) > 1:
            time.sleep(0.1)
    executor = RayRingExecutor(address, ClusterConfig(), LONG)
    assert executor.ranks == 1

    progress = Watching(lambda done: two_nodes.replace_node() if done == 10 else None)
    trained = train_matrix(planted, LONG, folder=tmp_path, threads=1, executor=executor, progress=progress)

    assert "going on with 2 ranks from now on" in progress.messages
    assert trained is not None
    assert trained.plan.ranks == 2
    cells = [loss.observed_cells for loss in trained.history]
    assert cells == cells[:1] * 40, "every block once per epoch"


def test_ctrl_c_saves_a_checkpoint_and_one_process_resumes(planted: Matrix, address: str, tmp_path: Path) -> None:
    progress = Watching(lambda done: os.kill(os.getpid(), signal.SIGINT) if done == 20 else None)
    executor = RayRingExecutor(address, ClusterConfig(), LONG)
    with pytest.raises(KeyboardInterrupt):
        train_matrix(planted, LONG, folder=tmp_path, threads=1, executor=executor, progress=progress)
    messages = Watching()
    trained = train_matrix(planted, LONG, folder=tmp_path, threads=1, progress=messages)

    assert any("resuming after" in line for line in messages.messages)
    assert trained is not None
    assert bits(trained) == bits(train_alone(planted, replace(LONG, ranks=2), tmp_path / "alone"))


def test_ranks_without_room_end_the_run(planted: Matrix, address: str, tmp_path: Path) -> None:
    executor = RayRingExecutor(address, ClusterConfig(worker_threads=64, patience_seconds=1.0), CONFIG)
    with pytest.raises(ConfigError, match="no node of the cluster has had 64 free cores for 1 s"):
        train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor)


def test_ranks_that_are_lost_again_and_again_end_the_run(
    planted: Matrix, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RayRingExecutor) -> None:
        raise ClusterError("a task was lost: ActorDiedError: out of memory")

    monkeypatch.setattr(RayRingExecutor, "_start_ranks", fail)
    executor = RayRingExecutor(address, ClusterConfig(), CONFIG)
    with pytest.raises(ClusterError, match=r"ranks were lost 6 times in a row .*out of memory"):
        train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor)


def test_matrix_that_ranks_cannot_open_ends_the_run_with_the_reason(
    planted: Matrix, address: str, tmp_path: Path
) -> None:
    shutil.copytree(folder_of(planted), tmp_path / "matrix")
    matrix = open_matrix(tmp_path / "matrix")
    assert matrix.row_sums.sum() == matrix.column_sums.sum() == matrix.total  # Read what the command needs,
    assert len(matrix.cells(0, 0).counts)  # and verify the rest.
    executor = RayRingExecutor(address, ClusterConfig(), CONFIG)
    shutil.move(tmp_path / "matrix", tmp_path / "moved")
    with pytest.raises(StorageError, match="no such folder"):
        train_matrix(matrix, CONFIG, folder=tmp_path, threads=1, executor=executor)


def test_ray_means_rotation_and_asynchronous_needs_ray(address: str) -> None:
    chosen = make_executor(RunOptions(ray=address, cluster=ClusterConfig(workers=1)), CONFIG)
    assert isinstance(chosen, RayRingExecutor)
    assert chosen.ranks == 1
    assert chosen.is_leader and chosen.is_alone
    chosen.close()

    with pytest.raises(ConfigError, match="asynchronous training needs a Ray cluster: pass ray"):
        make_executor(RunOptions(cluster=ClusterConfig(asynchronous=True)), CONFIG)
