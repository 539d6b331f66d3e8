"""Connections to Ray: one-line errors, within the time limits, for everything that can fail."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import swivel
from ray_cluster import TwoNodes
from swivel.errors import ClusterError, ConfigError, MissingExtra
from swivel.runtime import ray as ray_runtime

pytestmark = pytest.mark.xdist_group("ray")


# Ray pickles lambdas by value. Functions would be pickled by reference, and the nodes cannot import this module.
sleep = lambda seconds: time.sleep(seconds)  # noqa: E731
die = lambda status: os._exit(status)  # noqa: E731


@pytest.fixture(scope="module")
def ray(two_nodes: TwoNodes) -> Iterator[Any]:
    with ray_runtime.connect(two_nodes.address) as module:
        yield module


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `ray`, patched so that it looks unconnected."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return ray


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Yield the address of a server that sends one answer, or none."""
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


def test_missing_ray_is_a_one_line_error_with_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("a b")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"^clusters need ray: pip install 'swivel-embeddings\[ray\]'$"):
        swivel.count(tmp_path / "a.txt", options=swivel.RunOptions(ray="local"))


@pytest.mark.parametrize("address", ["somewhere", "ray://host:10001", ":6379", "host:", "host:port", ""])
def test_a_malformed_address_is_refused(address: str, unconnected: Any) -> None:
    with pytest.raises(ConfigError, match="ray must be local, auto or HOST:PORT, got"), ray_runtime.connect(address):
        pass


def test_an_address_without_a_server_fails_at_once(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconnected, "init", lambda **_: pytest.fail("Ray would retry for minutes"))
    with (
        pytest.raises(ClusterError, match=r"Ray at 127.0.0.1:1: .*; start it on that machine with"),
        ray_runtime.connect("127.0.0.1:1"),
    ):
        pass

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"Ray at 127.0.0.1:1: "), ray_runtime.connect("auto"):
        pass
    with pytest.raises(ClusterError, match=r"Ray at 127.0.0.1:99999: "), ray_runtime.connect("127.0.0.1:99999"):
        pass


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_that_is_not_ray_is_refused(answer: bytes, unconnected: Any) -> None:
    refused = pytest.raises(ClusterError, match="the server at this address is not Ray")
    with answering(answer) as address, refused, ray_runtime.connect(address):
        pass


def test_a_server_that_does_not_answer_times_out(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_runtime, "CONNECT_SECONDS", 0.2)
    with answering(None) as address, pytest.raises(ClusterError, match="timed out"), ray_runtime.connect(address):
        pass


def test_errors_of_ray_become_one_line(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**keywords: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nAnd many more lines.")

    monkeypatch.setattr(unconnected, "init", fail)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    with pytest.raises(ClusterError) as caught, ray_runtime.connect("auto"):
        pass
    assert str(caught.value) == "Ray at auto: Could not find any running Ray instance."


def test_a_local_cluster_has_the_requested_cores(unconnected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keywords_of_init: dict[str, Any] = {}
    monkeypatch.setattr(unconnected, "init", lambda **keywords: keywords_of_init.update(keywords))
    with ray_runtime.connect("local", cores=3) as module:
        assert module is unconnected

    assert keywords_of_init["address"] == "local"
    assert keywords_of_init["num_cpus"] == 3
    assert keywords_of_init["include_dashboard"] is False


def test_an_existing_connection_is_kept(ray: Any) -> None:
    with ray_runtime.connect("127.0.0.1:1") as module:
        assert module is ray
    assert ray.is_initialized()


def test_nodes_have_cores_and_memory(ray: Any) -> None:
    nodes = ray_runtime.await_nodes(ray)
    assert len(nodes) >= 2  # A node that another test has just killed may still be listed.
    assert all(node.cores == 1 for node in nodes)
    assert all(node.memory_bytes > 1 << 20 for node in nodes)


def test_a_cluster_without_cores_is_an_error() -> None:
    dead = {"NodeID": "a", "Alive": False, "Resources": {"CPU": 4.0}, "NodeManagerAddress": "10.0.0.1"}
    empty = {"NodeID": "b", "Alive": True, "Resources": {"GPU": 1.0}, "NodeManagerAddress": "10.0.0.2"}
    with pytest.raises(ClusterError, match="no node of the cluster has had a core for 0 s; see: ray status"):
        ray_runtime.await_nodes(make_cluster("b", [dead, empty]), seconds=0.05)


def make_cluster(own: str, nodes: list[dict[str, Any]]) -> Any:
    """Return a cluster that does not reply; `own` is the node of this process."""
    import ray

    def get(reference: Any, timeout: float) -> None:
        raise ray.exceptions.GetTimeoutError("Get timed out")

    context = SimpleNamespace(get_node_id=lambda: own)
    return SimpleNamespace(nodes=lambda: nodes, get=get, get_runtime_context=lambda: context, exceptions=ray.exceptions)


@pytest.mark.parametrize(
    "wait",
    [
        ray_runtime.check_node,
        ray_runtime.await_nodes,
        lambda cluster: ray_runtime.await_reply(cluster, "reference", seconds=600),
    ],
)
def test_a_lost_node_of_this_process_ends_every_wait_at_once(wait: Callable[[Any], Any]) -> None:
    own = {"NodeID": "a", "Alive": False, "Resources": {"CPU": 4.0}, "NodeManagerAddress": "10.0.0.1"}
    other = {"NodeID": "b", "Alive": True, "Resources": {"CPU": 4.0}, "NodeManagerAddress": "10.0.0.2"}
    with pytest.raises(ClusterError, match=r"^Ray's node on this machine has ended: .*; run the same command again$"):
        wait(make_cluster("a", [own, other]))
    assert ray_runtime.check_node(make_cluster("b", [own, other])) == [own, other]


def test_a_reply_is_awaited_for_the_given_time(ray: Any) -> None:
    assert ray_runtime.await_reply(ray, ray.put(7), seconds=20) == 7
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray_runtime.await_reply(make_cluster("a", []), "reference", seconds=0.05)


def test_a_task_that_never_ends_is_cancelled(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_runtime, "CANCEL_SECONDS", 1.0)
    sleeping = ray.remote(sleep).remote(600)
    with pytest.raises(ClusterError, match="no task has ended for"):
        list(ray_runtime.take_results(ray, [sleeping], idle_seconds=0.1))
    with pytest.raises(ClusterError, match=r"a task was lost: (TaskCancelledError|WorkerCrashedError)"):
        ray_runtime.fetch(ray, sleeping, seconds=20)


def test_results_are_yielded_in_the_order_in_which_tasks_end(ray: Any) -> None:
    second = ray.remote(lambda: 0.2).remote()
    first = ray.remote(sleep).remote(second)
    assert list(ray_runtime.take_results(ray, [first, second])) == [1, 0]


def test_errors_of_tasks_are_raised_by_fetch(ray: Any) -> None:
    def refuse() -> None:
        raise ConfigError("window must be a positive integer, got 0")

    def fail(reference: Any) -> None:
        raise ZeroDivisionError("zero\nand more")

    with pytest.raises(ConfigError, match=r"^window must be a positive integer, got 0$"):
        ray_runtime.fetch(ray, ray.remote(refuse).remote())
    with pytest.raises(ClusterError, match=r"^a task failed: ZeroDivisionError: zero$"):
        ray_runtime.fetch(ray, ray.remote(fail).remote(1))
    with pytest.raises(ConfigError, match=r"^window"):  # The task that raised it is an input of the fetched task.
        ray_runtime.fetch(ray, ray.remote(fail).remote(ray.remote(refuse).remote()))
    with pytest.raises(ClusterError, match=r"^a task was lost: WorkerCrashedError: "):
        ray_runtime.fetch(ray, ray.remote(max_retries=0)(die).remote(1))

    def lose_node() -> None:
        raise ray.exceptions.LocalRayletDiedError

    with pytest.raises(ClusterError, match=r"^Ray's node on this machine has ended"):
        ray_runtime.fetch(ray, ray.remote(lose_node).remote())

    sleeping = ray.remote(sleep).remote(600)
    with pytest.raises(ClusterError, match="no result after 0 s"):
        ray_runtime.fetch(ray, sleeping, seconds=0.1)

    ray_runtime.cancel(ray, [sleeping])


def test_places_are_counted_without_waiting_while_no_node_has_a_core(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_runtime.Places(ray, 1, 0.0).count() == 2
    monkeypatch.setattr(ray_runtime, "check_node", lambda ray: [{"Alive": True, "Resources": {"CPU": 0.0}}])
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("nodes may come back after minutes"))
    assert ray_runtime.Places(ray, 1, 0.0).count() == 0


def test_places_that_are_reserved_are_free_again_after_their_release(ray: Any) -> None:
    places = ray_runtime.Places(ray, 1, 0.0)
    assert places.count_free(5) == 2
    assert places.count_free(0) == 0
    assert places.reserve(lambda: 2, seconds=30, should_stop=lambda: False) == 2
    assert places.are_reserved()
    assert places.count_free(1) == 0
    places.release()
    assert places.count_free(1) == 1
