"""The parameter servers as the command sees them: started, asked after, restored, read.

Receives the parameters of a run, hands on the servers' handles and the parameters again. What it read last it keeps,
block by block with what was applied to each: a server that is lost begins from there. It does not know what workers do.
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
AT_ONCE = 8  # blocks on their way to or from the servers
PING_SECONDS = 1.0
MOST_RESTORES = 5  # of a server, one after the other, before the run gives up


@dataclass(slots=True)
class _Seat:
    """A server's place: who sits there now."""

    handle: Any
    ping: Any = None  # the question that is out
    asked: float = 0.0
    restores: int = 0  # since it last answered


class ServerPool:
    """The servers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, starts: Starts) -> None:
        self._ray, self._config, self._starts = ray, config, starts
        self._seats = [_Seat(self._create()) for _ in range(config.servers)]
        self._applied: dict[Part, frozenset[int]] = {
            (side, block): frozenset() for side, edges in enumerate(starts) for block in range(len(edges) - 1)
        }
        self._run_id = 0
        self.restored = 0  # servers so far

    def _create(self) -> Any:
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(Server).options(**options).remote()

    @property
    def handles(self) -> list[Any]:
        """The servers, by number."""
        return [seat.handle for seat in self._seats]

    def hold(self, sides: Sides) -> None:
        """Give the servers the parameters."""
        self._sides = tuple(
            ParameterBlock(
                np.array(side.vectors, np.float32), np.array(side.accumulators, np.float32), np.array(side.offsets)
            )
            for side in sides
        )
        self._applied = dict.fromkeys(self._applied, frozenset())
        self._retry(lambda number: self._send(number))

    def begin(self, run_id: int) -> None:
        """Have the servers take the changes of an run_id, and no others'."""
        self._run_id = run_id
        self._applied = dict.fromkeys(self._applied, frozenset())
        self._retry(lambda number: self._get(self._seats[number].handle.begin.remote(run_id)))

    def _retry(self, job: Callable[[int], Any]) -> None:
        """Do something with every server; with a new one, which then has all it needs, where one is lost."""
        for number in range(len(self._seats)):
            try:
                job(number)
            except self._ray.exceptions.RayError as error:
                self._restore(number, error)

    def _get(self, reference: Any, seconds: float | None = None) -> Any:
        return self._ray.get(reference, timeout=seconds or self._config.lease_seconds)

    def _parts(self, number: int) -> list[Part]:
        return [part for part in self._applied if server_of(part, len(self._seats)) == number]

    def _span(self, part: Part) -> slice:
        edges = self._starts[part[0]]
        return slice(int(edges[part[1]]), int(edges[part[1] + 1]))

    def _send(self, number: int) -> None:
        """Give a server its blocks, as they were kept."""
        handle = self._seats[number].handle
        self._get(handle.ping.remote(), self._config.patience_seconds)  # It may have to be started first.

        def send(part: Part) -> Any:
            side, span = self._sides[part[0]], self._span(part)
            values = side.vectors[span], side.accumulators[span]
            return handle.hold.remote(part, *values, self._applied[part], run_id=self._run_id)

        self._in_turn(self._parts(number), send, lambda part, answer: None)

    def _in_turn(self, parts: Iterable[Part], ask: Callable[[Part], Any], take: Callable[[Part, Any], None]) -> None:
        """Ask about parts, a few at a time, and take each answer."""
        asked: deque[tuple[Part, Any]] = deque()
        for part in parts:
            asked.append((part, ask(part)))
            if len(asked) >= AT_ONCE:
                first, reference = asked.popleft()
                take(first, self._get(reference))
        for first, reference in asked:
            take(first, self._get(reference))

    def _restore(self, number: int, error: BaseException) -> None:
        """Put a new server in the place of one that is lost, with what was kept."""
        seat = self._seats[number]
        while True:
            seat.restores += 1
            if seat.restores > MOST_RESTORES:
                raise ClusterError(
                    f"server {number} was lost {seat.restores} times in a row ({first_line(error)}); "
                    "the same command goes on from the last checkpoint"
                ) from error
            self.restored += 1
            with contextlib.suppress(Exception):  # It may be gone, or out of reach.
                self._ray.kill(seat.handle)
            seat.handle, seat.ping = self._create(), None
            try:
                self._send(number)
                return
            except self._ray.exceptions.RayError as again:
                error = again

    def tend(self, now: float) -> dict[Part, frozenset[int]]:
        """Ask the servers how they are; restore those that are lost. Return what the restored ones have."""
        found: dict[Part, frozenset[int]] = {}
        for number, seat in enumerate(self._seats):
            error = self._ask_after(seat, now)
            if error is not None:
                self._restore(number, error)
                found |= {part: self._applied[part] for part in self._parts(number)}
        return found

    def _ask_after(self, seat: _Seat, now: float) -> BaseException | None:
        """Return why a server counts as lost, or None."""
        if seat.ping is None:
            if now - seat.asked >= PING_SECONDS:
                seat.ping, seat.asked = seat.handle.ping.remote(), now
            return None
        if self._ray.wait([seat.ping], timeout=0)[0]:
            try:
                self._ray.get(seat.ping, timeout=self._config.lease_seconds)
            except self._ray.exceptions.RayError as error:
                return error  # type: ignore[no-any-return]
            seat.ping, seat.restores = None, 0
        elif now - seat.asked > self._config.lease_seconds:
            return ClusterError(f"it has not answered for {now - seat.asked:.0f} s")
        return None

    def hurry(self) -> None:
        """Ask after all servers at the next occasion: somebody says that one does not answer."""
        for seat in self._seats:
            seat.asked = seat.asked if seat.ping else -math.inf

    def silent(self, now: float) -> list[int]:
        """Return the servers that have not answered for a while."""
        return [number for number, seat in enumerate(self._seats) if seat.ping and now - seat.asked > 3 * PING_SECONDS]

    def save(self) -> dict[Part, frozenset[int]]:
        """Read and keep all parameters; return the blocks whose changes each part has."""
        self._retry(self._read)
        return self.applied

    def _read(self, number: int) -> None:
        handle = self._seats[number].handle

        def keep(part: Part, kept: ServedState) -> None:
            side, span = self._sides[part[0]], self._span(part)
            side.vectors[span], side.accumulators[span] = kept.vectors, kept.accumulators
            self._applied[part] = kept.applied

        self._in_turn(self._parts(number), lambda part: handle.read.remote(part), keep)

    @property
    def applied(self) -> dict[Part, frozenset[int]]:
        """The blocks whose changes each part had when it was read last."""
        return dict(self._applied)

    @property
    def sides(self) -> Sides:
        """The parameters as they were read last; they change with the next reading."""
        rows, columns = self._sides
        return rows, columns

    def close(self) -> None:
        """Give the servers' memory back."""
        for seat in self._seats:
            with contextlib.suppress(Exception):
                self._ray.kill(seat.handle)


def now() -> float:
    """Return the time on the clock that leases are kept by."""
    return time.monotonic()
