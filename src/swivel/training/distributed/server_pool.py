"""The parameter servers of a run: started, checked, restored and read by the process that runs the loop.

The pool keeps a copy of all parameters as of the last read, with the changes applied to each block. A server that
replaces a lost one starts from this copy.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ClusterError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import first_line
from swivel.training.backends import ParameterBlock
from swivel.training.backends.base import Starts
from swivel.training.distributed.leases import Part
from swivel.training.distributed.parameter_server import ServedState, Server, server_of
from swivel.training.executor import Sides

Array = NDArray[np.float32]
MAX_TRANSFERS = 8  # blocks that are sent to or read from the servers at a time
PING_SECONDS = 1.0
MAX_RESTORES = 5  # of one server in a row, before the run fails


@dataclass(slots=True)
class _PoolServer:
    handle: Any
    ping: Any = None  # reference to the result of a ping that is pending
    asked: float = 0.0  # time of the last ping
    restores: int = 0  # since the last answer


class ServerPool:
    """The servers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, starts: Starts) -> None:
        self._ray = ray
        self._config = config
        self._starts = starts
        self._members = [_PoolServer(self._create()) for _ in range(config.servers)]
        self._run_id = 0
        self.restored = 0  # number of servers that were replaced

        self._applied: dict[Part, frozenset[int]] = {}  # changes in the copy of each part
        for side, edges in enumerate(starts):
            for block in range(len(edges) - 1):
                self._applied[side, block] = frozenset()

    def _create(self) -> Any:
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(Server).options(**options).remote()

    @property
    def handles(self) -> list[Any]:
        """Ray handles of the servers, by number."""
        return [member.handle for member in self._members]

    def hold(self, sides: Sides) -> None:
        """Copy the parameters and send them to the servers."""
        self._sides = tuple(
            ParameterBlock(
                np.array(side.vectors, np.float32), np.array(side.accumulators, np.float32), np.array(side.offsets)
            )
            for side in sides
        )
        self._applied = dict.fromkeys(self._applied, frozenset())
        self._for_each_server(self._send)

    def begin(self, run_id: int) -> None:
        """Make the servers accept only changes with this run_id."""
        self._run_id = run_id
        self._applied = dict.fromkeys(self._applied, frozenset())
        self._for_each_server(lambda number: self._get(self._members[number].handle.begin.remote(run_id)))

    def _for_each_server(self, call: Callable[[int], Any]) -> None:
        """Call a function for every server, and replace the servers that are lost. These need no further call."""
        for number in range(len(self._members)):
            try:
                call(number)
            except self._ray.exceptions.RayError as error:
                self._restore(number, error)

    def _get(self, reference: Any, seconds: float | None = None) -> Any:
        return self._ray.get(reference, timeout=seconds or self._config.lease_seconds)

    def _parts(self, number: int) -> list[Part]:
        return [part for part in self._applied if server_of(part, len(self._members)) == number]

    def _span(self, part: Part) -> slice:
        edges = self._starts[part[0]]
        return slice(int(edges[part[1]]), int(edges[part[1] + 1]))

    def _send(self, number: int) -> None:
        """Send a server the copies of its blocks."""
        handle = self._members[number].handle
        self._get(handle.ping.remote(), self._config.patience_seconds)  # Ray may have to start the server first.

        def send(part: Part) -> Any:
            side = self._sides[part[0]]
            span = self._span(part)
            return handle.hold.remote(
                part, side.vectors[span], side.accumulators[span], self._applied[part], run_id=self._run_id
            )

        self._transfer(self._parts(number), send, lambda part, answer: None)

    def _transfer(
        self, parts: Iterable[Part], start: Callable[[Part], Any], finish: Callable[[Part, Any], None]
    ) -> None:
        """Start a remote call for each part, a few at a time, and pass each result to `finish`."""
        pending: deque[tuple[Part, Any]] = deque()
        for part in parts:
            pending.append((part, start(part)))
            if len(pending) >= MAX_TRANSFERS:
                first, reference = pending.popleft()
                finish(first, self._get(reference))

        for first, reference in pending:
            finish(first, self._get(reference))

    def _restore(self, number: int, error: BaseException) -> None:
        """Replace a lost server by a new one with the copies of its blocks."""
        member = self._members[number]
        while True:
            member.restores += 1
            if member.restores > MAX_RESTORES:
                raise ClusterError(
                    f"server {number} was lost {member.restores} times in a row ({first_line(error)}); "
                    "run the same command again to resume from the last checkpoint"
                ) from error

            self.restored += 1
            with contextlib.suppress(Exception):  # The old server may be dead or unreachable.
                self._ray.kill(member.handle)
            member.handle = self._create()
            member.ping = None
            try:
                self._send(number)
                return
            except self._ray.exceptions.RayError as again:
                error = again

    def maintain(self, now: float) -> dict[Part, frozenset[int]]:
        """Ping the servers and replace those that are lost. Return the changes that the parts of new servers have."""
        restored: dict[Part, frozenset[int]] = {}
        for number, member in enumerate(self._members):
            error = self._check(member, now)
            if error is not None:
                self._restore(number, error)
                restored |= {part: self._applied[part] for part in self._parts(number)}
        return restored

    def _check(self, member: _PoolServer, now: float) -> BaseException | None:
        """Return why a server counts as lost, or None."""
        if member.ping is None:
            if now - member.asked >= PING_SECONDS:
                member.ping = member.handle.ping.remote()
                member.asked = now
            return None

        if self._ray.wait([member.ping], timeout=0)[0]:
            try:
                self._ray.get(member.ping, timeout=self._config.lease_seconds)
            except self._ray.exceptions.RayError as error:
                return error  # type: ignore[no-any-return]
            member.ping = None
            member.restores = 0
        elif now - member.asked > self._config.lease_seconds:
            return ClusterError(f"the server has not responded for {now - member.asked:.0f} s")
        return None

    def check_soon(self) -> None:
        """Ping all servers in the next call of `maintain`: a worker reports that one does not respond."""
        for member in self._members:
            if member.ping is None:
                member.asked = -math.inf

    def unresponsive(self, now: float) -> list[int]:
        """Return the numbers of the servers that have not responded for a while."""
        numbers = []
        for number, member in enumerate(self._members):
            if member.ping is not None and now - member.asked > 3 * PING_SECONDS:
                numbers.append(number)
        return numbers

    def save(self) -> dict[Part, frozenset[int]]:
        """Read all parameters into the copy; return the blocks whose changes each part has."""
        self._for_each_server(self._read)
        return self.applied

    def _read(self, number: int) -> None:
        handle = self._members[number].handle

        def keep(part: Part, state: ServedState) -> None:
            side = self._sides[part[0]]
            span = self._span(part)
            side.vectors[span] = state.vectors
            side.accumulators[span] = state.accumulators
            self._applied[part] = state.applied

        self._transfer(self._parts(number), lambda part: handle.read.remote(part), keep)

    @property
    def applied(self) -> dict[Part, frozenset[int]]:
        """For each part, the blocks of the other side whose changes the copy has."""
        return dict(self._applied)

    @property
    def sides(self) -> Sides:
        """The copy of the parameters; the next read overwrites it."""
        rows, columns = self._sides
        return rows, columns

    def close(self) -> None:
        """Stop the servers."""
        for member in self._members:
            with contextlib.suppress(Exception):
                self._ray.kill(member.handle)


def now() -> float:
    """Return the time in seconds on the clock of the leases."""
    return time.monotonic()
