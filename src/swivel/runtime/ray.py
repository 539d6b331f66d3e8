"""Connecting to Ray, and waiting for it, never without a limit.

Receives an address, hands on the module `ray`, connected; the results of tasks as they end; and one clear line where
the cluster cannot be reached, has stopped answering or has nobody who could work. It does not know what tasks do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from swivel.errors import ClusterError, ConfigError, SwivelError, missing_extra

CONNECT_SECONDS = 10.0
POLL_SECONDS = 1.0
IDLE_SECONDS = 600.0  # in which some task ends, or the cluster has stopped
NOBODY_SECONDS = 30.0  # that a cluster may be without a core: a node that was lost may be replaced
CANCEL_SECONDS = 10.0
# A server of HTTP/2, as Ray's are, answers this greeting with its settings: a frame of kind 4.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS, _FRAME_BYTES = 4, 9


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster: its address, its cores and the memory that tasks may share."""

    address: str
    cores: float
    memory_bytes: int


@contextmanager
def connect(address: str, *, cores: int | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster; left as it was found when the block ends.

    Parameters
    ----------
    address
        "local" starts a cluster of this machine alone, "auto" joins the one that runs here, HOST:PORT the one whose
        head is there. A program that is connected already stays where it is.
    cores
        How many a local cluster may use; None: all.

    Raises MissingExtra without Ray, ConfigError for an address that is none, ClusterError where nobody answers.
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
    """Return the module `ray`, or raise the error that says how to install it."""
    try:
        import ray
    except ImportError:
        raise missing_extra("clusters", "ray", "ray") from None
    return ray


def _join(ray: Any, address: str, cores: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet |= {"include_dashboard": False, "num_cpus": cores}
    else:
        _check_address(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    try:
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError and TimeoutError among them
        raise ClusterError(f"Ray at {address}: {first_line(error)}") from error


def _check_address(address: str) -> None:
    """Raise where no server of Ray's kind answers: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal():
        raise ConfigError(f"ray must be local, auto or HOST:PORT, got {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            connection.sendall(_GREETING)
            answer = connection.recv(_FRAME_BYTES)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(f"Ray at {address}: {reason}; start it there with: ray start --head") from error
    if len(answer) < _FRAME_BYTES or answer[3] != _SETTINGS:
        raise ClusterError(f"Ray at {address}: what answers there is not Ray; the usual port of its head is 6379")


def list_nodes(ray: Any) -> list[Node]:
    """Return the machines that are there now and can work."""
    found = []
    for node in ray.nodes():
        resources = node["Resources"]
        if node["Alive"] and resources.get("CPU", 0) >= 1:
            found.append(Node(node["NodeManagerAddress"], resources["CPU"], int(resources.get("memory", 0))))
    return found


def await_nodes(ray: Any, *, seconds: float = NOBODY_SECONDS) -> list[Node]:
    """Return the machines that can work; raise ClusterError where none has come in time."""
    deadline = time.monotonic() + seconds
    while not (nodes := list_nodes(ray)):
        if time.monotonic() > deadline:
            raise ClusterError(f"no node of the cluster has had a core for {seconds:.0f} s; see: ray status")
        time.sleep(min(POLL_SECONDS, seconds))
    return nodes


def take_results(ray: Any, references: Sequence[Any], *, idle_seconds: float = IDLE_SECONDS) -> Generator[int]:
    """Yield the numbers of tasks as they end; those that have not when it is closed are cancelled.

    `references` has one result of each task. Raises what a task raised, and ClusterError where none ends for
    `idle_seconds` or nobody is there to work.
    """
    waiting = {reference: number for number, reference in enumerate(references)}
    try:
        last = time.monotonic()
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS, fetch_local=False)
            if done:
                last = time.monotonic()
                yield waiting.pop(done[0])
            elif time.monotonic() - last > min(idle_seconds, NOBODY_SECONDS):
                await_nodes(ray)
                _check_idle(time.monotonic() - last, idle_seconds)
    finally:
        cancel(ray, waiting)


def _check_idle(waited: float, allowed: float) -> None:
    if waited > allowed:
        raise ClusterError(
            f"no task has ended for {waited:.0f} s: the cluster is busy with other work, or has stopped; "
            "see: ray status"
        )


def cancel(ray: Any, references: Iterable[Any]) -> None:
    """End tasks that nobody waits for any more: asked first, then forced."""
    left = list(references)
    for force in (False, True):
        for reference in left:
            with contextlib.suppress(Exception):  # one that has just ended, or whose node is gone
                ray.cancel(reference, force=force)
        if left:
            _, left = ray.wait(left, num_returns=len(left), timeout=CANCEL_SECONDS, fetch_local=False)


def fetch(ray: Any, reference: Any, *, seconds: float = IDLE_SECONDS) -> Any:
    """Return the result of a task, or raise what it raised: our own errors as they were, others as one line."""
    try:
        return ray.get(reference, timeout=seconds)
    except ray.exceptions.GetTimeoutError as error:
        raise ClusterError(f"a result has not come for {seconds:.0f} s; see: ray status") from error
    except ray.exceptions.RayError as error:
        cause = _find_cause(ray, error)
        if isinstance(cause, SwivelError):
            raise cause from None
        what = "was lost" if isinstance(cause, ray.exceptions.RayError) else "failed"
        raise ClusterError(f"a task {what}: {type(cause).__name__}: {first_line(cause)}") from error


def _find_cause(ray: Any, error: Any) -> BaseException:
    """Return what was raised in the first place: a task that waited for another hands its error on."""
    while isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error  # type: ignore[no-any-return]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text: Ray's go on for pages."""
    return str(error).strip().split("\n")[0] or type(error).__name__
