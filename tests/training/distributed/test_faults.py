"""Training on Ray while workers, servers, nodes, the command or the network fail: it completes correctly."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ray_cluster import NOTICED, STORE_BYTES, TwoNodes
from ray_runs import Audited, Watching, pids
from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import connect
from swivel.storage.manifest import MANIFEST
from swivel.training.checkpoint import SLOTS
from swivel.training.loop import train_matrix

pytestmark = pytest.mark.xdist_group("ray")
EPOCHS, BLOCKS = 16, 6
# The reference backend does not import torch: a new worker starts two seconds faster.
SETTINGS = {"dim": 12, "block_size": 11, "epochs": EPOCHS, "backend": "reference", "checkpoint_minutes": 0}
CONFIG = TrainConfig(**SETTINGS)  # type: ignore[arg-type]
RUNS = Path(__file__).parents[2] / "ray_runs.py"


@pytest.fixture(scope="module")
def address(two_nodes: TwoNodes) -> Iterator[str]:
    two_nodes.replace_node()
    with connect(two_nodes.address):
        yield two_nodes.address


class Faults:
    """Injects faults: after a number of blocks, or that many blocks after all workers have joined."""

    def __init__(self, address: str, config: ClusterConfig) -> None:
        self.executor = Audited(address, config)
        self.plans: dict[int, Callable[[], None]] = {}
        self.later: dict[int, Callable[[], None]] = {}
        self.stopped: list[int] = []

    def at(self, done: int, call: Callable[[], None]) -> None:
        self.plans[done] = call

    def after(self, done: int, call: Callable[[], None]) -> None:
        self.later[done] = call

    def act(self, done: int) -> None:
        if self.later and self.executor._workers.ready == len(self.executor._workers):
            self.plans |= {done + more: call for more, call in self.later.items()}
            self.later = {}
        elif self.later:
            time.sleep(0.2)  # A node takes seconds to start, and the run must not end before.
        if done in self.plans:
            self.plans.pop(done)()

    def send(self, kind: str, index: int, number: int) -> None:
        """Send signal `number` to a worker or a server."""
        workers = [member.handle for member in self.executor._workers._members if member.handle and not member.joining]
        handles = workers if kind == "worker" else self.executor._servers.handles
        pid = pids([handles[index % len(handles)]])[0]
        os.kill(pid, number)
        self.stopped += [pid] if number == signal.SIGSTOP else []

    def train(self, matrix: Matrix, folder: Path) -> Watching:
        """Train, and check that every block was trained once per epoch."""
        progress = Watching(self.act)
        try:
            trained = train_matrix(matrix, CONFIG, folder=folder, threads=1, executor=self.executor, progress=progress)
        finally:
            for pid in self.stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert trained is not None
        assert not self.plans and not self.later

        every = [(n, (i, j)) for n in range(EPOCHS) for i in range(BLOCKS) for j in range(BLOCKS)]
        assert sorted(self.executor.reported) == every

        alone = train_matrix(matrix, CONFIG, folder=folder / "alone", threads=1)
        assert alone is not None
        assert trained.history[-1].mean < 1.5 * alone.history[-1].mean  # loose: with 62 words the order matters

        return progress


@pytest.mark.slow
def test_workers_and_servers_that_join_die_or_hang_cost_only_time(
    planted: Matrix, address: str, two_nodes: TwoNodes, tmp_path: Path
) -> None:
    two_nodes.lose_node()
    faults = Faults(address, ClusterConfig(workers=2, servers=2, lease_seconds=2))
    faults.at(5, two_nodes.replace_node)  # with cores for the second worker
    faults.after(0, lambda: faults.send("worker", 0, signal.SIGKILL))
    faults.after(40, lambda: faults.send("server", 1, signal.SIGKILL))
    faults.after(80, lambda: faults.send("worker", 1, signal.SIGSTOP))
    faults.after(120, lambda: faults.send("server", 0, signal.SIGSTOP))
    faults.after(160, two_nodes.lose_node)
    try:
        progress = faults.train(planted, tmp_path)
    finally:
        two_nodes.replace_node()

    assert "1 of 2 workers" in progress.notes[0]
    assert any("2 of 2 workers" in note for note in progress.notes)
    assert re.search(r"servers restored [2-9] times", progress.notes[-1]), "a server may be lost twice"
    assert "replaced" in progress.notes[-1]


class Command:
    """The training command in a separate process."""

    def __init__(
        self, matrix: Matrix, folder: Path, address: str, workers: int = 1, asynchronous: bool = True, **settings: Any
    ) -> None:
        cluster = asdict(ClusterConfig(workers=workers, servers=workers, lease_seconds=20, asynchronous=asynchronous))
        config = json.dumps({**SETTINGS, **settings}), json.dumps(cluster)
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}  # The cluster belongs to the test.
        arguments = [sys.executable, str(RUNS), str(matrix.path), str(folder), address, *config]
        self.errors = (folder.parent / "errors.txt").open("ab")
        keywords: dict[str, Any] = {"env": environment, "stdout": subprocess.PIPE, "stderr": self.errors, "text": True}
        self.process = subprocess.Popen(arguments, **keywords)

    def wait_for(self, done: int) -> None:
        """Return when this many blocks are done."""
        for line in self._lines():
            if line.get("done", 0) >= done:
                return
        self.close()
        raise AssertionError(f"the command ended early: {Path(self.errors.name).read_text()[-2000:]}")

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # Ray prints, too.
                yield json.loads(line)

    def result(self) -> dict[str, Any]:
        """Return the last line of output."""
        *_, last = self._lines()
        assert self.process.wait(60) == 0
        self.close()
        return last

    def close(self) -> None:
        """Kill the process if it is running."""
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()
        self.errors.close()


def test_a_killed_command_resumes_when_it_is_started_again(planted: Matrix, address: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings: dict[str, Any] = {**SETTINGS, "block_size": 21, "epochs": 2 * EPOCHS, "checkpoint_minutes": 0.01}
    first = Command(planted, folder, address, **settings)
    for done in range(20, 100_000):
        first.wait_for(done)
        if any((folder / slot / MANIFEST).exists() for slot in SLOTS):
            break
    first.close()
    config, progress = TrainConfig(**settings), Watching()
    executor = Audited(address, ClusterConfig(workers=1, servers=1))
    trained = train_matrix(planted, config, folder=folder, threads=1, executor=executor, progress=progress)
    alone = train_matrix(planted, config, folder=tmp_path / "alone", threads=1)

    assert trained is not None and alone is not None
    assert any("resuming after" in line for line in progress.messages)
    assert len(trained.history) == config.epochs
    assert trained.history[-1].mean < 1.5 * alone.history[-1].mean


def train_and_kill(name: str, matrix: Matrix, out: Path, *flags: str) -> tuple[int, str, str, list[Path]]:
    """Train on a local cluster and kill a process of it; return status, output, errors and the scratch files left."""
    temporary = Path("/tmp") / f"swivel-ray-{os.getpid()}"  # a short name: paths of sockets have a length limit
    temporary.mkdir()
    command = [sys.executable, "-m", "swivel", "train", str(matrix.path), "-o", str(out), "--dim", "8"]
    command += ["--block-size", "11", "--epochs", "1000000", "--ray", "local", "--workers", "1", *flags]
    environment = {**os.environ, **NOTICED, "TMPDIR": str(temporary)}
    environment.pop("RAY_ADDRESS", None)

    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **streams) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("training"):
                break
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == f"{name}\n":
                os.kill(int(child), signal.SIGKILL)
        output, errors = process.communicate(timeout=120)

    leftovers = list(temporary.glob("scratch-*"))
    shutil.rmtree(temporary, ignore_errors=True)
    return process.returncode, output, errors, leftovers


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="child processes are found in /proc")


@pytest.mark.slow
@needs_proc
def test_a_killed_node_of_a_local_cluster_ends_the_command_with_one_line(planted: Matrix, tmp_path: Path) -> None:
    status, output, errors, leftovers = train_and_kill("raylet", planted, tmp_path / "out")
    assert status == 1
    assert output == ""
    assert errors.splitlines()[-1].startswith("error: Ray's node on this machine has ended")
    assert "raylet" not in errors
    assert leftovers == []


@pytest.mark.slow
@needs_proc
def test_a_killed_control_service_of_a_local_cluster_ends_the_command(planted: Matrix, tmp_path: Path) -> None:
    status, output, errors, _ = train_and_kill("gcs_server", planted, tmp_path / "out", "--asynchronous")
    assert status == 1
    assert output == ""
    assert "Failed to connect to GCS within 10 seconds" in errors  # Ray itself ends the process.


# Two hosts on this machine: a network namespace for the second one, and a virtual cable between the two.
NAMESPACE, HERE, THERE = "swivel-test", "10.231.77.1", "10.231.77.2"


def shell(*command: str, **rest: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **rest)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr or done.stdout}")


@pytest.fixture
def cable() -> Iterator[str]:
    """Name of a virtual cable to a network namespace."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command ip")
    try:
        shell("ip", "netns", "add", NAMESPACE)
        shell("ip", "link", "add", "swivel0", "type", "veth", "peer", "name", "swivel1", "netns", NAMESPACE)
    except OSError as error:
        subprocess.run(["ip", "netns", "delete", NAMESPACE], capture_output=True, check=False)
        pytest.skip(f"network namespaces are not permitted here: {error}")
    inside = ["ip", "netns", "exec", NAMESPACE, "ip"]

    try:
        shell("ip", "address", "add", f"{HERE}/24", "dev", "swivel0")
        shell("ip", "link", "set", "swivel0", "up")
        shell(*inside, "address", "add", f"{THERE}/24", "dev", "swivel1")
        shell(*inside, "link", "set", "swivel1", "up")
        shell(*inside, "link", "set", "lo", "up")
        yield "swivel0"
    finally:
        subprocess.run(["ip", "link", "delete", "swivel0"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", NAMESPACE], capture_output=True, check=False)


@pytest.fixture
def two_hosts(cable: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address of a Ray cluster with one node here and one in the namespace, and the name of the cable."""
    environment = {**os.environ, **NOTICED, "RAY_health_check_timeout_ms": "1500"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus", "1", "--block"]
    ray += ["--object-store-memory", str(STORE_BYTES), "--disable-usage-stats"]
    head = [*ray, "--head", "--node-ip-address", HERE, "--port", "6397", "--include-dashboard", "false"]
    second = [*ray, "--address", f"{HERE}:6397", "--node-ip-address", THERE]
    temporary = Path("/tmp") / f"swivel-ray-{os.getpid()}"  # a short name: paths of sockets have a length limit
    nodes = []

    try:
        for number, command in enumerate(
            ([*head, "--temp-dir", str(temporary)], ["ip", "netns", "exec", NAMESPACE, *second])
        ):
            environment["GLOO_SOCKET_IFNAME"] = f"swivel{number}"  # Both hosts have the same name.
            nodes.append(_start(command, tmp_path / f"ray-{number}.txt", environment))
        yield f"{HERE}:6397", cable
    finally:
        for node in reversed(nodes):
            _end(node)
        shutil.rmtree(temporary, ignore_errors=True)


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a node, and wait until it is ready."""
    with log.open("wb") as out:
        node = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)

    for _ in range(600):
        if b"Ray runtime started" in log.read_bytes():
            return node
        time.sleep(0.1)
    _end(node)
    raise AssertionError(log.read_text())


def _end(node: subprocess.Popen[bytes]) -> None:
    """Stop a node and its processes, with SIGTERM and then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(10)


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_cut_network_does_not_hang_the_run(
    planted: Matrix, two_hosts: tuple[str, str], tmp_path: Path, asynchronous: bool
) -> None:
    address, cable = two_hosts
    settings: dict[str, Any] = {"epochs": 30} | ({} if asynchronous else {"ranks": 2})
    run = Command(planted, tmp_path / "run", address, workers=2, asynchronous=asynchronous, **settings)
    run.wait_for(40)
    shell("ip", "link", "set", cable, "down")
    time.sleep(6)
    shell("ip", "link", "set", cable, "up")
    result = run.result()

    assert result["epochs"] == 30
    if asynchronous:
        assert result["run_ids"] == 30
    else:
        config = TrainConfig(**{**SETTINGS, **settings})
        alone = train_matrix(planted, config, folder=tmp_path / "alone", threads=1)
        assert alone is not None
        assert result["bits"] == hashlib.sha256(alone.rows.tobytes() + alone.columns.tobytes()).hexdigest()
