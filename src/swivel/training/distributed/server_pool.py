"""The parameter servers of a run: started, checked, restored and read by the process that runs the loop.

The pool keeps a copy of all parameters as of the last read, with the changes applied to each block. A server that
replaces a lost one starts from this copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from swivel.errors import ClusterError, first_line
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import await_reply, kill_actor
from swivel.training.distributed.leases import Part
from swivel.training.distributed.parameter_server import Server, server_of
from swivel.training.executor import Sides, TrainingJob

MAX_TRANSFERS = 8  # blocks that are sent to or read from the servers at a time
PING_SECONDS = 1.0
MAX_RESTORES = 5  # of one server in a row, before the run fails


@dataclass(slots=True)
class _PoolServer:
    handle: Any
    ping: Any = None  # reference to the result of a ping that is pending
    ping_time: float = 0.0  # time of the last ping
    restores: int = 0  # since the last answer


class ServerPool:
    """The servers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, job: TrainingJob) -> None:
        self._ray = ray
        self._config = config
        self._job = job
        self._members = [_PoolServer(self._create()) for _ in range(config.servers)]
        self._run_id = 0
        self.restored = 0  # number of servers that were replaced

        # The copy of the parameters, which `save` overwrites, and the changes in the copy of each part.
        self.sides: Sides
        self.applied: dict[Part, frozenset[int]] = {}
        for side, blocks in enumerate(job.blocks):
            self.applied |= {(side, block): frozenset() for block in range(blocks)}

    def _create(self) -> Any:
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(Server).options(**options).remote()

    @property
    def handles(self) -> list[Any]:
        """Ray handles of the servers, by number."""
        return [member.handle for member in self._members]

    def hold(self, sides: Sides) -> None:
        """Copy the parameters and send them to the servers."""
        rows, columns = (side.map(lambda array: np.array(array, np.float32)) for side in sides)
        self.sides = rows, columns
        self.applied = dict.fromkeys(self.applied, frozenset())
        self._for_each_server(self._send)

    def begin(self, run_id: int) -> None:
        """Make the servers accept only changes with this run_id."""
        self._run_id = run_id
        self.applied = dict.fromkeys(self.applied, frozenset())
        self._for_each_server(lambda number: self._get(self._members[number].handle.begin.remote(run_id)))

    def _for_each_server(self, call: Callable[[int], Any]) -> None:
        """Call a function for every server, and replace the servers that are lost. These need no further call."""
        for number in range(len(self._members)):
            try:
                call(number)
            except self._ray.exceptions.RayError as error:
                self._restore(number, error)

    def _get(self, reference: Any, seconds: float | None = None) -> Any:
        return await_reply(self._ray, reference, seconds=seconds or self._config.lease_seconds)

    def _parts(self, number: int) -> list[Part]:
        return [part for part in self.applied if server_of(part, len(self._members)) == number]

    def _send(self, number: int) -> None:
        """Send a server the copies of its blocks."""
        handle = self._members[number].handle
        self._get(handle.ping.remote(), self._config.patience_seconds)  # Ray may have to start the server first.

        def send(part: Part) -> Any:
            side = self.sides[part[0]]
            span = self._job.span(*part)
            return handle.hold.remote(
                part, side.vectors[span], side.state[span], self.applied[part], run_id=self._run_id
            )

        for _ in self._transfer(number, send):
            pass

    def _read(self, number: int) -> None:
        """Read the blocks of a server into the copy."""
        for part, block in self._transfer(number, self._members[number].handle.read.remote):
            side = self.sides[part[0]]
            span = self._job.span(*part)
            side.vectors[span] = block.vectors
            side.state[span] = block.state
            self.applied[part] = frozenset(block.applied)

    def _transfer(self, number: int, start: Callable[[Part], Any]) -> Iterator[tuple[Part, Any]]:
        """Start a remote call for each part of a server, a few at a time, and yield each part with its result."""
        transfers: deque[tuple[Part, Any]] = deque()
        for part in self._parts(number):
            transfers.append((part, start(part)))
            if len(transfers) >= MAX_TRANSFERS:
                first, reference = transfers.popleft()
                yield first, self._get(reference)

        for first, reference in transfers:
            yield first, self._get(reference)

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
            kill_actor(self._ray, member.handle)
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
                restored |= {part: self.applied[part] for part in self._parts(number)}
        return restored

    def _check(self, member: _PoolServer, now: float) -> BaseException | None:
        """Return why a server counts as lost, or None."""
        if member.ping is None:
            if now - member.ping_time >= PING_SECONDS:
                member.ping = member.handle.ping.remote()
                member.ping_time = now
            return None

        if self._ray.wait([member.ping], timeout=0)[0]:
            try:
                self._ray.get(member.ping, timeout=self._config.lease_seconds)
            except self._ray.exceptions.RayError as error:
                return error  # type: ignore[no-any-return]
            member.ping = None
            member.restores = 0
        elif now - member.ping_time > self._config.lease_seconds:
            return ClusterError(f"the server has not responded for {now - member.ping_time:.0f} s")
        return None

    def unresponsive(self, now: float) -> list[int]:
        """Return the numbers of the servers that have not responded for a while."""
        limit = 3 * PING_SECONDS
        members = enumerate(self._members)
        return [number for number, member in members if member.ping is not None and now - member.ping_time > limit]

    def save(self) -> None:
        """Read all parameters into the copy. A server that is lost is replaced, and the copy of its blocks stays."""
        self._for_each_server(self._read)

    def close(self) -> None:
        """Stop the servers."""
        for member in self._members:
            kill_actor(self._ray, member.handle)
