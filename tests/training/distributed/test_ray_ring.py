"""Rotation on a real Ray cluster of two nodes: the bits of one process, also if ranks and nodes are lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ray_cluster import NODE, TwoNodes
from ray_runs import Watching, pids
from rotation_runs import CONFIG, bits, train_alone
from stored import folder_of
from swivel import RunOptions
from swivel.cli import cli
from swivel.counts import Matrix, open_matrix
from swivel.errors import ClusterError, ConfigError, StorageError, TrainingError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import Places, connect
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
    monkeypatch.setattr(ray_ring, "OVERHEAD_SHARE", 1.0)
    two_nodes.lose_node()
    with connect(address) as ray:
        while sum(node["Alive"] for node in ray.nodes()) > 1:
            time.sleep(0.1)
    executor = RayRingExecutor(address, ClusterConfig(), LONG)
    assert executor.ranks == 1

    progress = Watching(lambda done: two_nodes.replace_node() if done == 10 else None)
    trained = train_matrix(planted, LONG, folder=tmp_path, threads=1, executor=executor, progress=progress)

    assert "continuing with 2 ranks" in progress.messages
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
    executor = RayRingExecutor(address, ClusterConfig(patience_seconds=1.0), CONFIG)
    with pytest.raises(ClusterError, match=r"ranks were lost \d+ times in a row, .*out of memory"):
        train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor)


def test_nodes_that_are_lost_faster_than_ranks_start_do_not_end_the_run(
    planted: Matrix, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_ring, "POLL_SECONDS", 0.01)
    start, failures = RayRingExecutor._start_ranks, iter(range(2 * ray_ring.MAX_LOSSES))

    def fail(self: RayRingExecutor) -> None:
        if next(failures, None) is not None:
            raise ClusterError("a task was lost: ActorDiedError: its node has died")
        start(self)

    monkeypatch.setattr(RayRingExecutor, "_start_ranks", fail)
    executor = RayRingExecutor(address, ClusterConfig(), CONFIG)
    trained = train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor)
    assert trained is not None
    assert len(trained.history) == CONFIG.epochs


def freeze(executor: RayRingExecutor, rank: int) -> None:
    """Stop a rank at once and kill it a second later, so that it is lost within the next call."""
    pid = pids(executor._actors)[rank]
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.0, lambda: os.kill(pid, signal.SIGKILL)).start()


@pytest.mark.parametrize("moment", ["meeting", "repeating", "is_finite", "fetch"])
def test_a_rank_that_is_lost_in_a_call_changes_no_bit(
    planted: Matrix, address: str, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, ranks=2)
    executor = RayRingExecutor(address, ClusterConfig(), config)
    lost: list[int] = []

    def lose(self: RayRingExecutor, now: str, rank: int) -> None:
        # A second loss follows where the ranks have just been started again.
        if now == moment and len(lost) < (2 if moment == "meeting" else 1):
            lost.append(rank)
            freeze(self, rank)

    wait, call, run = RayRingExecutor._wait, RayRingExecutor._call, RayRingExecutor._run_ranks

    def lose_in_wait(self: RayRingExecutor, references: Any) -> Any:
        results = wait(self, references)
        if isinstance(results[0], tuple):  # addresses of the stores: now the ranks meet at one of them
            lose(self, "meeting", len(lost))
        return results

    def lose_in_call(self: RayRingExecutor, method: str) -> Any:
        lose(self, method, 1)
        if moment == "repeating" and not lost and self._rounds:
            self._start(ClusterError("test"))
        return call(self, method)

    def lose_in_run(self: RayRingExecutor, rounds: Any, *, may_pause: bool) -> Any:
        if not may_pause and rounds:
            lose(self, "repeating", 0)
        return run(self, rounds, may_pause=may_pause)

    monkeypatch.setattr(RayRingExecutor, "_wait", lose_in_wait)
    monkeypatch.setattr(RayRingExecutor, "_call", lose_in_call)
    monkeypatch.setattr(RayRingExecutor, "_run_ranks", lose_in_run)
    progress = Watching()
    trained = train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=progress)

    assert lost
    assert sum("ActorDiedError" in line for line in progress.messages) == len(lost)
    assert trained is not None
    assert bits(trained) == bits(train_alone(planted, config, tmp_path / "alone"))


def test_a_node_that_is_lost_before_its_rank_is_created_is_noticed(
    planted: Matrix, address: str, two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_nodes.replace_node()
    reserve = Places.reserve
    reserved: list[int] = []

    def lose(self: Places, *given: Any, **named: Any) -> int:
        ranks = reserve(self, *given, **named)
        if not reserved:
            two_nodes.lose_node()
        reserved.append(ranks)
        return ranks

    monkeypatch.setattr(Places, "reserve", lose)
    config = replace(CONFIG, ranks=2)
    executor = RayRingExecutor(address, ClusterConfig(patience_seconds=100), config)
    progress = Watching()
    try:
        trained = train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=progress)
    finally:
        two_nodes.replace_node()

    assert reserved[0] == 2
    assert reserved[-1] == 1
    assert not any("no progress" in line for line in progress.messages), "it waited for a place"
    assert trained is not None
    assert bits(trained) == bits(train_alone(planted, config, tmp_path / "alone"))


class Clock:
    """The time, which a test can put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(ray_ring, "now", lambda: time.monotonic() + self.ahead)


def test_the_time_of_a_restart_does_not_delay_copies(
    planted: Matrix, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    start, call, fetch = RayRingExecutor._start_ranks, RayRingExecutor._call, RayRingExecutor.fetch
    seconds: list[float] = []

    def record(self: RayRingExecutor) -> Any:
        sides = fetch(self)
        seconds.append(self._seconds_of_copy)
        return sides

    def wait_for_nodes(self: RayRingExecutor) -> None:
        clock.ahead += 10_000
        start(self)

    def lose(self: RayRingExecutor, method: str) -> Any:
        freeze(self, 0)
        monkeypatch.setattr(RayRingExecutor, "_call", call)
        return call(self, method)

    executor = RayRingExecutor(address, ClusterConfig(workers=1), CONFIG)
    monkeypatch.setattr(RayRingExecutor, "_start_ranks", wait_for_nodes)
    monkeypatch.setattr(RayRingExecutor, "is_finite", lambda self: True)
    monkeypatch.setattr(RayRingExecutor, "_call", lose)
    monkeypatch.setattr(RayRingExecutor, "fetch", record)
    trained = train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor)
    assert trained is not None
    assert clock.ahead == 20_000
    assert 0 < max(seconds) < 10_000


def test_the_time_of_the_command_is_not_lack_of_progress(
    planted: Matrix, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def sleep(done: int) -> None:
        clock.ahead += 10_000 if done == 1 else 0  # The ranks are still running.

    progress = Watching(sleep)
    config = replace(CONFIG, block_size=1, epochs=1)
    executor = RayRingExecutor(address, ClusterConfig(), config)
    trained = train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=progress)
    assert trained is not None
    assert not any("lost" in line for line in progress.messages)


@contextmanager
def occupied(cluster: Any, cores: float, *, nodes: Sequence[str]) -> Iterator[None]:
    """Let other work use so many cores of each of these nodes."""
    import ray

    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    kind = ray.remote(type("Other", (), {"ping": lambda self: None}))
    others = [kind.options(num_cpus=cores, scheduling_strategy=place(node, soft=False)).remote() for node in nodes]
    ray.get([other.ping.remote() for other in others])
    try:
        yield
    finally:
        for other in others:
            ray.kill(other)


def test_free_cores_that_no_rank_fits_on_do_not_restart_the_ranks(
    planted: Matrix, address: str, two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_ring, "LOOK_SECONDS", 0.0)
    two_nodes.replace_node()
    third = two_nodes.cluster.add_node(**NODE)
    progress = Watching()
    try:
        ids = [two_nodes.cluster.head_node.node_id, two_nodes.second.node_id]
        with occupied(two_nodes.cluster, 0.5, nodes=ids):  # Two halves of a core are not a place.
            executor = RayRingExecutor(address, ClusterConfig(), CONFIG)
            trained = train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor, progress=progress)
    finally:
        two_nodes.cluster.remove_node(third)

    assert trained is not None
    assert "Ray, 1 rank (" in progress.messages[-1]
    assert not any("continuing" in line for line in progress.messages)


def test_ranks_beside_other_work_are_as_many_as_there_are_places(
    planted: Matrix, address: str, two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, block_size=3)  # 21 row blocks
    two_nodes.lose_node()
    third = two_nodes.cluster.add_node(**{**NODE, "num_cpus": 20})
    progress = Watching()
    tried: list[int] = []
    reserve = Places._try_to_reserve

    def try_to_reserve(self: Places, places: int) -> bool:
        tried.append(places)
        return reserve(self, places)

    monkeypatch.setattr(Places, "_try_to_reserve", try_to_reserve)
    try:
        with occupied(two_nodes.cluster, 19.0, nodes=[third.node_id]):
            executor = RayRingExecutor(address, ClusterConfig(worker_threads=1), config)
            assert executor.ranks == 21
            trained = train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=progress)
    finally:
        two_nodes.cluster.remove_node(third)
        two_nodes.replace_node()

    assert trained is not None
    assert tried[0] == 21
    assert tried[-1] == 2
    assert len(tried) < 10, "one rank less at a time takes minutes on a large cluster"


def test_there_are_not_more_ranks_than_the_order_is_made_for(planted: Matrix, address: str, tmp_path: Path) -> None:
    config = replace(CONFIG, ranks=1)
    executor, progress = RayRingExecutor(address, ClusterConfig(), config), Watching()
    trained = train_matrix(planted, config, folder=tmp_path, threads=1, executor=executor, progress=progress)
    assert trained is not None
    assert "Ray, 1 rank (" in progress.messages[-1]


def test_fewer_ranks_than_were_asked_for_are_reported(planted: Matrix, address: str, tmp_path: Path) -> None:
    executor, progress = RayRingExecutor(address, ClusterConfig(workers=7), CONFIG), Watching()
    trained = train_matrix(planted, CONFIG, folder=tmp_path, threads=1, executor=executor, progress=progress)
    assert trained is not None
    assert progress.messages[-1].endswith("; there is no place for 7")


def test_ctrl_c_ends_a_run_that_waits_for_a_place(
    planted: Matrix, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = RayRingExecutor(address, ClusterConfig(workers=1), LONG)

    def lose(done: int) -> None:
        if done == 20:
            monkeypatch.setattr(Places, "count", lambda self: 0)
            os.kill(pids(executor._actors)[0], signal.SIGKILL)

    def stop(line: str) -> None:
        if "a rank was lost" in line:
            os.kill(os.getpid(), signal.SIGINT)

    progress = Watching(lose)
    monkeypatch.setattr(progress, "message", stop)
    with pytest.raises(TrainingError, match="stopped while no node of the cluster had 1 free core; the same command"):
        train_matrix(planted, LONG, folder=tmp_path, threads=1, executor=executor, progress=progress)


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
