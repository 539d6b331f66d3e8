"""The workers as the command sees them: started, handed strips, heard, replaced.

Receives what a worker must know, hands on what became of strips and who is lost. A worker that the cluster has no room
for yet joins when it has; one that dies or no longer answers is replaced. It does not know which strip is whose turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from swivel.errors import ClusterError, SwivelError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import first_line
from swivel.training.distributed.leases import Part, Strip
from swivel.training.distributed.parameter_server import Push
from swivel.training.distributed.worker import Result, Unanswered, Worker, WorkerSetup

LONGEST_PAUSE = 30.0  # seconds before a worker that died is created again; the first time one, then twice that, ...
MOST_DOUBLINGS = 10
MOST_REFUSALS = 3  # of workers that could not begin, one after the other, before the run gives up


class RayLinks:
    """How a worker on Ray reaches the servers."""

    def __init__(self, handles: Sequence[Any], seconds: float) -> None:
        self._handles, self._seconds = list(handles), seconds
        self.count = len(self._handles)

    def fetch(self, server: int, part: Part, with_accumulators: bool) -> Any:
        """Ask a server for a block."""
        return self._handles[server].fetch.remote(part, with_accumulators)

    def push(self, server: int, push: Push) -> Any:
        """Send a server a change."""
        return self._handles[server].push.remote(push)

    def take(self, asked: Any) -> Any:
        """Return the answer."""
        import ray

        try:
            return ray.get(asked, timeout=self._seconds)
        except ray.exceptions.RayError as error:
            raise Unanswered(f"a server does not answer: {type(error).__name__}: {first_line(error)}") from None


class WorkerMessage(NamedTuple):
    """News of a worker: a strip's result; or, without one, that it has joined or that it is lost."""

    worker: int
    result: Result | None = None
    is_lost: bool = False
    reason: str = ""  # why it is lost


@dataclass(slots=True)
class _PoolWorker:
    handle: Any = None
    joining: Any = None  # the answer to `begin`, while it is waited for
    leases: dict[Any, None] = field(default_factory=dict)  # an ordered set of the answers that are waited for
    late_since: float | None = None
    deaths: int = 0  # since it last finished a strip
    create_at: float = 0.0
    created: int = 0


class WorkerPool:
    """The workers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, order: WorkerSetup, count: int) -> None:
        self._ray, self._config, self._order = ray, config, order
        self._members = [_PoolWorker() for _ in range(count)]
        self._refusals: list[BaseException] = []
        self.description = ""

    def __len__(self) -> int:
        return len(self._members)

    @property
    def ready(self) -> int:
        """How many can work."""
        return sum(member.handle is not None and member.joining is None for member in self._members)

    @property
    def replaced(self) -> int:
        """How often a worker was created again."""
        return sum(max(0, member.created - 1) for member in self._members)

    def tend(self, now: float) -> list[int]:
        """Create workers that are not there; give up those that have been late for long. Return who was given up."""
        lost = []
        for number, member in enumerate(self._members):
            if member.late_since is not None and now - member.late_since > self._config.lease_seconds:
                self._drop(member, now)
                lost.append(number)
            if member.handle is None and now >= member.create_at:
                self._create(member)
        return lost

    def _create(self, member: _PoolWorker) -> None:
        order = self._order
        gpus = self._config.worker_gpus if order.plan.device.startswith("cuda") else 0
        member.handle = (
            self._ray.remote(Worker)
            .options(
                num_cpus=order.threads,
                num_gpus=gpus,
                max_restarts=0,
                max_concurrency=self._config.ahead + 1,  # its strips, and a word between them
                scheduling_strategy="SPREAD",
            )
            .remote(order.wait_seconds)
        )
        member.created += 1
        member.joining = member.handle.begin.remote(order)

    def _drop(self, member: _PoolWorker, now: float) -> None:
        with contextlib.suppress(Exception):  # It may be gone, or out of reach.
            self._ray.kill(member.handle)
        member.handle = member.joining = member.late_since = None
        member.leases.clear()
        member.create_at = now + min(LONGEST_PAUSE, 2.0 ** min(member.deaths, MOST_DOUBLINGS) - 1)
        member.deaths += 1

    def references(self) -> list[Any]:
        """Return all answers that are waited for."""
        found: list[Any] = []
        for member in self._members:
            found += [member.joining] if member.joining is not None else []
            found += member.leases
        return found

    def hear(self, references: Sequence[Any], now: float) -> Iterator[WorkerMessage]:
        """Take answers that have come; yield what they say."""
        owners = {reference: number for number, member in enumerate(self._members) for reference in member.leases}
        owners |= {member.joining: n for n, member in enumerate(self._members) if member.joining is not None}
        for reference in references:
            number = owners[reference]
            member = self._members[number]
            if reference == member.joining or reference in member.leases:  # not of one that was just lost
                yield self._hear(number, member, reference, now)

    def _hear(self, number: int, member: _PoolWorker, reference: Any, now: float) -> WorkerMessage:
        try:
            answer = self._ray.get(reference, timeout=self._config.lease_seconds)
        except self._ray.exceptions.RayError as error:
            if reference == member.joining:
                self._note_refusal(error)
            self._drop(member, now)
            return WorkerMessage(number, is_lost=True, reason=f"{type(error).__name__}: {first_line(error)}")
        if reference == member.joining:
            member.joining, self.description = None, str(answer)
            self._refusals.clear()
            return WorkerMessage(number)
        del member.leases[reference]
        member.late_since, member.deaths = None, 0
        return WorkerMessage(number, answer)

    def _note_refusal(self, error: BaseException) -> None:
        """Keep why a worker could not begin; raise where none can."""
        cause = getattr(error, "cause", None)
        if not isinstance(cause, BaseException):
            return  # It died, which may pass.
        self._refusals.append(cause)
        if len(self._refusals) >= MOST_REFUSALS and self.ready == 0:
            if isinstance(cause, SwivelError):
                raise cause from None
            raise ClusterError(f"no worker can begin: {type(cause).__name__}: {first_line(cause)}") from error

    def free(self) -> int | None:
        """Return the worker that should have the next strip, or None where all have enough."""
        able = [
            (len(member.leases), number)
            for number, member in enumerate(self._members)
            if member.handle is not None
            and member.joining is None
            and member.late_since is None
            and len(member.leases) < self._config.ahead
        ]
        return min(able)[1] if able else None

    def lend(self, number: int, strip: Strip, run_id: int, handles: Sequence[Any], *, is_last: bool) -> None:
        """Hand a strip to a worker; `is_last`: also to one that rests."""
        links = RayLinks(handles, self._order.wait_seconds)
        member = self._members[number]
        reference = member.handle.train.remote(strip, run_id, links, is_last)
        member.leases[reference] = None

    def mark_late(self, numbers: Sequence[int], now: float) -> None:
        """Hand nothing to workers that are late until they answer."""
        for number in numbers:
            member = self._members[number]
            if member.leases and member.late_since is None:
                member.late_since = now

    def rest(self, run_id: int) -> None:
        """Have workers leave the strips of an run_id that they have not begun."""
        for member in self._members:
            if member.handle is not None:
                member.handle.rest.remote(run_id)

    def silent(self) -> list[int]:
        """Return the workers that are late, or not there."""
        return [
            number
            for number, member in enumerate(self._members)
            if member.handle is None or member.joining is not None or member.late_since is not None
        ]

    def close(self) -> None:
        """End the workers."""
        for member in self._members:
            with contextlib.suppress(Exception):
                self._ray.kill(member.handle)
