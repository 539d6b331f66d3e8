"""Connections to Ray clusters, and waiting for their tasks with time limits.

Every problem of the cluster (unreachable, not responding, no free cores) raises an error with a one-line message.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from swivel.errors import ClusterError, ConfigError, SwivelError, TrainingError, first_line, needs_extra
from swivel.runtime.numbers import is_integer, plural

CONNECT_SECONDS = 10.0
POLL_SECONDS = 1.0
IDLE_SECONDS = 600.0  # If no task ends for this long, the cluster is considered dead.
NO_CORES_SECONDS = 30.0  # A cluster may have no cores for this long, because a lost node may be replaced.
CANCEL_SECONDS = 10.0
PLACE_SECONDS = 5  # If places are not free within this time, fewer are reserved.
NOTICE_SECONDS = 1.0  # Ray may need this time to notice that a process has died.
PROBE_SECONDS = 2.0  # for counting free places: what has just been released is free within a second
_RESERVED = "CREATED"  # Ray's state of a placement group that has all its resources
# Ray ends a process that cannot reach the cluster's control service, after a minute. The service of a local
# cluster does not come back once it was killed, so a short wait is enough.
_LOCAL_CLUSTER = {"gcs_rpc_server_reconnect_timeout_s": 10}
_NODE_ENDED = (
    "Ray's node on this machine has ended: it was killed, or there was not enough memory; run the same command again"
)

# Ray prints these messages of a cluster to stdout, with the end of its log. Every one of them is followed by an error
# of ours, or by the replacement of what was lost.
_UNPRINTED = "Raylet is terminated|The node with node id|A worker died or was killed"

# An HTTP/2 server, such as Ray's, answers this client preface with a SETTINGS frame (frame type 4).
_CLIENT_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS_FRAME = 4
_FRAME_HEADER_BYTES = 9


class Node(NamedTuple):
    """A machine of the cluster: its address, its cores, the memory that Ray grants to tasks, and its GPUs."""

    address: str
    cores: float
    memory_bytes: int
    gpus: float = 0.0


@contextlib.contextmanager
def connect(address: str, *, cores: int | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster, and disconnect when the block ends.

    `address` is "local" to start a cluster of `cores` cores on this machine (None: all), "auto" to use the cluster that
    runs on this machine, or HOST:PORT of a cluster's head node. A connection that this process has is used and kept.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return

    _join(ray, address, cores)
    try:
        yield ray
    finally:
        ray.shutdown()


def load_ray() -> Any:
    """Return the module `ray`; raise MissingExtra if it is not installed."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _UNPRINTED)  # Ray reads it when it is imported.
    with needs_extra("clusters", "ray", "ray"):
        import ray
    return ray


def _join(ray: Any, address: str, cores: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"include_dashboard": False, "num_cpus": cores, "_system_config": _LOCAL_CLUSTER}
    else:
        _check_address(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)

    try:
        ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError) as error:  # OSError includes ConnectionError and TimeoutError.
        hint = "; if its nodes ask for a token, set RAY_AUTH_MODE=token" if "Failed to connect" in str(error) else ""
        raise ClusterError(f"Ray at {address}: {first_line(error)}{hint}") from error


def _check_address(address: str) -> None:
    """Raise an error if no HTTP/2 server responds at an address; Ray itself would retry for minutes."""
    if address == "auto":
        return

    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not is_integer(port):
        raise ConfigError(f"ray must be local, auto or HOST:PORT, got {address!r}", argument="ray")

    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            connection.sendall(_CLIENT_PREFACE)
            answer = connection.recv(_FRAME_HEADER_BYTES)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(f"Ray at {address}: {reason}; start it on that machine with: ray start --head") from error

    if len(answer) < _FRAME_HEADER_BYTES or answer[3] != _SETTINGS_FRAME:
        raise ClusterError(f"Ray at {address}: the server at this address is not Ray; its default port is 6379")


def check_node(ray: Any) -> list[dict[str, Any]]:
    """Return what Ray says of each node; raise ClusterError if the node of this process is lost."""
    # A process reaches the cluster through the node on its own machine alone: without it, calls get no answer.
    nodes: list[dict[str, Any]] = ray.nodes()
    own = ray.get_runtime_context().get_node_id()

    if any(node["NodeID"] == own and not node["Alive"] for node in nodes):
        raise ClusterError(_NODE_ENDED)
    return nodes


def list_nodes(ray: Any) -> list[Node]:
    """Return the machines that have at least one core; raise ClusterError if the node of this process is lost."""
    nodes = []
    for node in check_node(ray):
        resources = node["Resources"]
        if node["Alive"] and resources.get("CPU", 0) >= 1:
            memory = int(resources.get("memory", 0))
            nodes.append(Node(node["NodeManagerAddress"], resources["CPU"], memory, resources.get("GPU", 0.0)))
    return nodes


def await_nodes(ray: Any, *, seconds: float = NO_CORES_SECONDS) -> list[Node]:
    """Return the machines that have at least one core; raise ClusterError if there is none after `seconds`."""
    deadline = time.monotonic() + seconds

    while True:
        nodes = list_nodes(ray)
        if nodes:
            return nodes
        if time.monotonic() > deadline:
            raise ClusterError(f"no node of the cluster has had a core for {seconds:.0f} s; see: ray status")
        time.sleep(min(POLL_SECONDS, seconds))


def count_places(nodes: Sequence[Node], threads: int, gpus: float = 0.0) -> int:
    """Return how many actors with so many threads and GPUs fit on the nodes.

    >>> nodes = [Node("a", 8.0, 0, 2.0), Node("b", 5.0, 0, 0.0)]
    >>> count_places(nodes, 2), count_places(nodes, 4, gpus=1.0), count_places(nodes, 8, gpus=0.5)
    (6, 2, 1)
    """
    places = 0
    for node in nodes:
        by_cores = int(node.cores) // threads
        places += min(by_cores, int(node.gpus / gpus)) if gpus else by_cores
    return places


def choose_threads(nodes: Sequence[Node], actors: int | None, gpus: float) -> int:
    """Return how many threads an actor has: its share of the smallest node, or what fits with this number of actors.

    >>> nodes = [Node("a", 8.0, 0, 2.0), Node("b", 6.0, 0, 1.0)]
    >>> choose_threads(nodes, None, gpus=1.0), choose_threads(nodes, None, gpus=0.0), choose_threads(nodes, 3, gpus=0.0)
    (4, 6, 4)
    """
    shares = [int(node.cores / node.gpus if gpus else node.cores) for node in nodes if node.gpus >= gpus]
    if not shares:
        raise ClusterError("the cluster has no GPU; set device to cpu, or see: ray status")
    if gpus or actors is None:
        return max(1, min(shares))
    return max(
        threads for threads in range(1, max(shares) + 1) if threads == 1 or count_places(nodes, threads) >= actors
    )


class Places:
    """Places for actors on the nodes: the cores and GPUs of one each, which a placement group reserves for them."""

    def __init__(self, ray: Any, threads: int, gpus: float) -> None:
        self._ray = ray
        self._threads = threads
        self._gpus = gpus
        self._bundle = {"CPU": float(threads)} | ({"GPU": gpus} if gpus else {})
        self._needed = plural(threads, "free core") + (" and a GPU" if gpus else "")
        self.group: Any = None  # of the places that are reserved

    def count(self) -> int:
        """Return the number of places on the nodes, if nothing else runs there; it may be 0."""
        return count_places(list_nodes(self._ray), self._threads, self._gpus)

    def reserve(self, count: Callable[[], int], *, seconds: float, should_stop: Callable[[], bool]) -> int:
        """Reserve as many places as are free, at most `count()`, and return how many these are.

        Lost nodes may be replaced: only if there is no place for so many seconds, that is an error.
        """
        deadline = time.monotonic() + seconds
        places = count()

        while True:
            # In one group, so that neighbors are on one node where it is possible.
            if places and self._try_to_reserve(places):
                return places

            check_node(self._ray)
            if should_stop():
                raise TrainingError(
                    f"stopped while no node of the cluster had {self._needed}; "
                    "the same command resumes from the last checkpoint"
                )
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"no node of the cluster has had {self._needed} for {seconds:.0f} s; "
                    "set worker_threads, or see: ray status; the same command resumes from the last checkpoint",
                    argument="worker_threads",
                )

            # Other work uses a part of the cluster, or a node has just been lost.
            places = self.count_free(count())
            if not places:
                time.sleep(POLL_SECONDS)

    def _try_to_reserve(self, places: int) -> bool:
        """Reserve this number of places, and return True, if they are free within a few seconds."""
        self.group = self._ray.util.placement_group([self._bundle] * places, strategy="PACK")
        is_free = bool(self.group.wait(PLACE_SECONDS))
        if not is_free:
            self.release()
        return is_free

    def release(self) -> None:
        """Release the places that are reserved, if there are any and the cluster is reachable."""
        self._remove([] if self.group is None else [self.group])
        self.group = None

    def _remove(self, groups: Iterable[Any]) -> None:
        for group in groups:
            with contextlib.suppress(Exception):
                self._ray.util.remove_placement_group(group)

    def are_reserved(self) -> bool:
        """Return whether the places are still reserved: none of their nodes is lost."""
        return bool(self._ray.util.placement_group_table(self.group)["state"] == _RESERVED)

    def count_free(self, most: int) -> int:
        """Return the number of places that are free now, at most `most`."""
        # Ray knows the free cores of the whole cluster alone, but a place must be on one node: try to reserve each.
        groups = [self._ray.util.placement_group([self._bundle]) for _ in range(most)]
        deadline = time.monotonic() + PROBE_SECONDS
        try:
            while True:
                table = self._ray.util.placement_group_table()
                free = sum(bool(table[group.id.hex()]["state"] == _RESERVED) for group in groups)
                if free >= most or time.monotonic() > deadline:
                    return free
                time.sleep(PROBE_SECONDS / 20)
        finally:
            self._remove(groups)


def poll_calls(ray: Any, references: Sequence[Any], *, seconds: float) -> bool:
    """Wait for calls of actors, and return whether some are running; raise the error of one that has failed."""
    done, running = ray.wait(references, num_returns=len(references), timeout=seconds)
    failures = _find_failures(ray, done)

    # An actor that is lost makes the calls of others fail, too, perhaps earlier: its own error says more.
    if failures and running:
        done, running = ray.wait(references, num_returns=len(references), timeout=NOTICE_SECONDS)
        failures = _find_failures(ray, done)
    if failures:
        raise min(failures, key=lambda error: "was lost" not in str(error))

    check_node(ray)
    return bool(running)


def _find_failures(ray: Any, done: Iterable[Any]) -> list[ClusterError]:
    failures = []
    for reference in done:
        try:
            fetch(ray, reference)
        except ClusterError as error:
            failures.append(error)
    return failures


def take_results(ray: Any, references: Sequence[Any], *, idle_seconds: float = IDLE_SECONDS) -> Generator[int]:
    """Yield the indices of tasks in the order in which they end; cancel the others when the generator is closed."""
    pending = {reference: index for index, reference in enumerate(references)}

    try:
        last_end = time.monotonic()
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=POLL_SECONDS, fetch_local=False)
            if done:
                last_end = time.monotonic()
                yield pending.pop(done[0])
                continue

            if time.monotonic() - last_end > min(idle_seconds, NO_CORES_SECONDS):
                await_nodes(ray)

            idle = time.monotonic() - last_end
            if idle > idle_seconds:
                raise ClusterError(
                    f"no task has ended for {idle:.0f} s: the cluster is busy with other work, or has stopped; "
                    "see: ray status"
                )
    finally:
        cancel(ray, pending)


def kill_actor(ray: Any, handle: Any) -> None:
    """End the process of an actor, if it is alive and reachable; `handle` may be None."""
    with contextlib.suppress(Exception):
        ray.kill(handle)


def await_reply(ray: Any, reference: Any, *, seconds: float) -> Any:
    """Return the result of a call as `ray.get` does, but raise ClusterError if the node of this process is lost."""
    deadline = time.monotonic() + seconds

    while True:
        seconds_left = max(0.0, deadline - time.monotonic())
        try:
            return ray.get(reference, timeout=min(POLL_SECONDS, seconds_left))
        except ray.exceptions.GetTimeoutError:
            if seconds_left <= POLL_SECONDS:
                raise
        check_node(ray)


def cancel(ray: Any, references: Iterable[Any]) -> None:
    """Cancel tasks; those that do not end within `CANCEL_SECONDS` are killed."""
    running = list(references)
    for force in (False, True):
        for reference in running:
            with contextlib.suppress(Exception):  # The task has just ended, or its node is lost.
                ray.cancel(reference, force=force)

        if running:
            _, running = ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS, fetch_local=False)


def fetch(ray: Any, reference: Any, *, seconds: float = IDLE_SECONDS) -> Any:
    """Return the result of a task, or raise its error: a SwivelError unchanged, any other as a ClusterError."""
    try:
        return ray.get(reference, timeout=seconds)

    except ray.exceptions.GetTimeoutError as error:
        raise ClusterError(f"no result after {seconds:.0f} s; see: ray status") from error

    except ray.exceptions.RayError as error:
        # A task that depends on a failed task raises an error that wraps the original one.
        cause: BaseException = error
        while isinstance(cause, ray.exceptions.RayTaskError) and isinstance(cause.cause, BaseException):
            cause = cause.cause

        if isinstance(cause, SwivelError):
            raise cause from None
        if isinstance(cause, ray.exceptions.LocalRayletDiedError):
            raise ClusterError(_NODE_ENDED) from error

        outcome = "was lost" if isinstance(cause, ray.exceptions.RayError) else "failed"
        raise ClusterError(f"a task {outcome}: {type(cause).__name__}: {first_line(cause)}") from error
