"""Connecting to Ray and waiting for it: one clear line, in time, for whatever goes wrong."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import swivel
from ray_cluster import TwoNodes
from swivel.errors import ClusterError, ConfigError, MissingExtra
from swivel.runtime import ray as connecting

pytestmark = pytest.mark.xdist_group("ray")


# As lambdas these go to the nodes whole: the files of tests are no modules there.
sleep = lambda seconds: time.sleep(seconds)  # noqa: E731
die = lambda status: os._exit(status)  # noqa: E731


@pytest.fixture(scope="module")
def ray(two_nodes: TwoNodes) -> Iterator[Any]:
    with connecting.connect(two_nodes.address) as module:
        yield module


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, as if nobody were connected."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return ray


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Yield the address of a server that says one thing to everybody, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer) if answer is not None else connection.recv(100)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=10)


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("a b")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"^clusters need ray: pip install 'swivel-embeddings\[ray\]'$"):
        swivel.count(tmp_path / "a.txt", options=swivel.RunOptions(ray="local"))


@pytest.mark.parametrize("address", ["somewhere", "ray://host:10001", ":6379", "host:", "host:port", ""])
def test_an_address_that_is_none_is_refused(address: str, unconnected: Any) -> None:
    with pytest.raises(ConfigError, match="ray must be local, auto or HOST:PORT, got"), connecting.connect(address):
        pass


def test_where_nobody_listens_is_told_at_once(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    with (
        pytest.raises(ClusterError, match=r"Ray at 127.0.0.1:1: .*; start it there with"),
        connecting.connect("127.0.0.1:1"),
    ):
        pass
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"Ray at 127.0.0.1:1: "), connecting.connect("auto"):
        pass
    with pytest.raises(ClusterError, match=r"Ray at 127.0.0.1:99999: "), connecting.connect("127.0.0.1:99999"):
        pass
    assert time.monotonic() - begun < connecting.CONNECT_SECONDS


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_what_is_not_ray_is_told_apart(answer: bytes, unconnected: Any) -> None:
    refused = pytest.raises(ClusterError, match="what answers there is not Ray")
    with answering(answer) as address, refused, connecting.connect(address):
        pass


def test_one_who_listens_and_says_nothing_is_left(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.2)
    with answering(None) as address, pytest.raises(ClusterError, match="timed out"), connecting.connect(address):
        pass


def test_what_ray_complains_of_is_one_line(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**keywords: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nAnd so on, for pages.")

    monkeypatch.setattr(unconnected, "init", fail)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError) as caught, connecting.connect("auto"):
        pass
    assert str(caught.value) == "Ray at auto: Could not find any running Ray instance."


def test_a_local_cluster_has_the_cores_that_were_asked_for(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(unconnected, "init", lambda **keywords: given.update(keywords))
    with connecting.connect("local", cores=3) as module:
        assert module is unconnected
    assert (given["address"], given["num_cpus"], given["include_dashboard"]) == ("local", 3, False)


def test_who_is_connected_stays_so(ray: Any) -> None:
    with connecting.connect("127.0.0.1:1") as module:
        assert module is ray
    assert ray.is_initialized()


def test_nodes_have_cores_and_memory(ray: Any) -> None:
    nodes = connecting.await_nodes(ray)
    assert len(nodes) >= 2  # one that another test has just killed may still be among them
    assert all(node.cores == 1 for node in nodes)
    assert all(node.memory_bytes > 1 << 20 for node in nodes)


def test_a_cluster_without_cores_is_told() -> None:
    dead = {"Alive": False, "Resources": {"CPU": 4.0}, "NodeManagerAddress": "10.0.0.1"}
    empty = {"Alive": True, "Resources": {"GPU": 1.0}, "NodeManagerAddress": "10.0.0.2"}
    nobody = SimpleNamespace(nodes=lambda: [dead, empty])
    with pytest.raises(ClusterError, match="no node of the cluster has had a core for 0 s; see: ray status"):
        connecting.await_nodes(nobody, seconds=0.05)


def test_a_task_that_never_ends_is_given_up_and_cancelled(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "CANCEL_SECONDS", 1.0)
    sleeping = ray.remote(sleep).remote(600)
    with pytest.raises(ClusterError, match="no task has ended for"):
        list(connecting.take_results(ray, [sleeping], idle_seconds=0.1))
    with pytest.raises(ClusterError, match=r"a task was lost: (TaskCancelledError|WorkerCrashedError)"):
        connecting.fetch(ray, sleeping, seconds=20)


def test_results_come_as_tasks_end(ray: Any) -> None:
    second = ray.remote(lambda: 0.2).remote()
    first = ray.remote(sleep).remote(second)
    assert list(connecting.take_results(ray, [first, second])) == [1, 0]


def test_what_a_task_raises_is_raised_here(ray: Any) -> None:
    def refuse() -> None:
        raise ConfigError("window must be a positive integer, got 0")

    def fail(reference: Any) -> None:
        raise ZeroDivisionError("nought\nand more")

    with pytest.raises(ConfigError, match=r"^window must be a positive integer, got 0$"):
        connecting.fetch(ray, ray.remote(refuse).remote())
    with pytest.raises(ClusterError, match=r"^a task failed: ZeroDivisionError: nought$"):
        connecting.fetch(ray, ray.remote(fail).remote(1))
    with pytest.raises(ConfigError, match=r"^window"):  # handed on by a task that waited for it
        connecting.fetch(ray, ray.remote(fail).remote(ray.remote(refuse).remote()))
    with pytest.raises(ClusterError, match=r"^a task was lost: WorkerCrashedError: "):
        connecting.fetch(ray, ray.remote(max_retries=0)(die).remote(1))
    sleeping = ray.remote(sleep).remote(600)
    with pytest.raises(ClusterError, match="a result has not come for 0 s"):
        connecting.fetch(ray, sleeping, seconds=0.1)
    connecting.cancel(ray, [sleeping])
