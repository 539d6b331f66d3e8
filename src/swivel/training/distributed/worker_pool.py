"""The workers of a run: started, given strips and replaced by the process that runs the loop.

A worker for which the cluster has no free cores yet joins later. A worker that dies or stops responding is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swivel.errors import ClusterError, SwivelError, first_line
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import kill_actor
from swivel.training.distributed.leases import Strip
from swivel.training.distributed.worker import Links, Result, Worker, WorkerSetup

# A worker that died is created again after 0, 1, 3, 7, ... seconds, up to this many.
MAX_DELAY_SECONDS = 30.0
MAX_FAILED_STARTS = 3  # in a row, before the run fails


@dataclass(slots=True)
class _PoolWorker:
    """A place for a worker, whose process may be replaced."""

    handle: Any = None
    joining: Any = None  # reference to the result of `begin`, while it is pending
    leases: dict[Any, None] = field(default_factory=dict)  # an ordered set of references to pending results
    late_since: float | None = None
    deaths: int = 0  # since the last finished strip
    create_at: float = 0.0  # time of the next start

    @property
    def has_joined(self) -> bool:
        """Whether the worker has opened the matrix."""
        return self.handle is not None and self.joining is None

    @property
    def responds(self) -> bool:
        """Whether the worker has joined and is not late."""
        return self.has_joined and self.late_since is None


class WorkerPool:
    """The workers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, setup: WorkerSetup, count: int) -> None:
        self._ray = ray
        self._config = config
        self._setup = setup
        self._members = [_PoolWorker() for _ in range(count)]
        self._failed_starts = 0  # since the last successful one
        self.replaced = 0  # number of workers that were lost
        self._lost: list[int] = []  # workers that were lost since the last call of `maintain`
        self.failure = ""  # the last one of a worker or of a strip, for error messages
        self.description = ""  # of the backend of a worker

    def __len__(self) -> int:
        return len(self._members)

    @property
    def ready(self) -> int:
        """Number of workers that have joined."""
        return sum(member.has_joined for member in self._members)

    @property
    def unresponsive(self) -> int:
        """Number of workers that have not joined or are late."""
        return sum(not member.responds for member in self._members)

    def maintain(self, now: float) -> list[int]:
        """Start missing workers, and drop those that have been late for too long.

        Return the workers that were lost since the last call, which have dropped all their strips.
        """
        lost, self._lost = self._lost, []
        for number, member in enumerate(self._members):
            if member.late_since is not None and now - member.late_since > self._config.lease_seconds:
                self._drop(member, now)
                lost.append(number)
            if member.handle is None and now >= member.create_at:
                self._create(member)
        return lost

    def _create(self, member: _PoolWorker) -> None:
        gpus = self._config.worker_gpus if self._setup.plan.device.startswith("cuda") else 0
        member.handle = (
            self._ray.remote(Worker)
            .options(
                num_cpus=self._config.worker_threads,
                num_gpus=gpus,
                max_restarts=0,
                max_concurrency=self._config.ahead + 1,  # strips, and one more for `ping`
                scheduling_strategy="SPREAD",
            )
            .remote(self._config.lease_seconds)
        )
        member.joining = member.handle.begin.remote(self._setup)

    def _drop(self, member: _PoolWorker, now: float) -> None:
        """Kill a worker, and schedule its replacement."""
        kill_actor(self._ray, member.handle)
        member.handle = None
        member.joining = None
        member.late_since = None
        member.leases.clear()
        member.create_at = now + min(MAX_DELAY_SECONDS, 2**member.deaths - 1)
        member.deaths += 1
        self.replaced += 1

    def wait(self, seconds: float) -> list[tuple[int, Result]]:
        """Wait until a worker responds, but not longer than `seconds`; return the available results with their workers.

        Workers that have joined or are lost respond, too, but have no result.
        """
        owners: dict[Any, int] = {}  # of the references to pending results
        for number, member in enumerate(self._members):
            if member.joining is not None:
                owners[member.joining] = number
            owners |= dict.fromkeys(member.leases, number)
        if not owners:
            time.sleep(seconds)
            return []

        references = list(owners)
        self._ray.wait(references, num_returns=1, timeout=seconds)
        available, _ = self._ray.wait(references, num_returns=len(references), timeout=0)

        results = []
        for reference in available:
            number = owners[reference]
            member = self._members[number]
            # A worker may have been dropped in this loop; its other results are void.
            if reference == member.joining or reference in member.leases:
                result = self._collect(number, member, reference)
                if result is not None:
                    results.append((number, result))
        return results

    def _collect(self, number: int, member: _PoolWorker, reference: Any) -> Result | None:
        """Return the result of a strip; None if the worker has joined, or is lost."""
        try:
            answer = self._ray.get(reference, timeout=self._config.lease_seconds)
        except self._ray.exceptions.RayError as error:
            if reference == member.joining:
                self._check_start(error)
            self._drop(member, time.monotonic())
            self._lost.append(number)
            self.failure = f"{type(error).__name__}: {first_line(error)}"
            return None

        if reference == member.joining:
            member.joining = None
            self.description = str(answer)
            self._failed_starts = 0
            return None

        del member.leases[reference]
        member.late_since = None
        member.deaths = 0
        result: Result = answer
        return result

    def _check_start(self, error: BaseException) -> None:
        """Count a worker whose `begin` raised an exception, and raise it if no worker can start."""
        cause = getattr(error, "cause", None)
        if not isinstance(cause, BaseException):
            return  # The process died; the next one may succeed.

        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS and self.ready == 0:
            if isinstance(cause, SwivelError):
                raise cause from None
            raise ClusterError(f"no worker can start: {type(cause).__name__}: {first_line(cause)}") from error

    def free(self) -> int | None:
        """Return the responsive worker with the fewest strips, or None if all have enough."""
        candidates = []
        for number, member in enumerate(self._members):
            if member.responds and len(member.leases) < self._config.ahead:
                candidates.append((len(member.leases), number))
        return min(candidates)[1] if candidates else None

    def assign(self, number: int, strip: Strip, run_id: int, handles: Sequence[Any]) -> None:
        """Send a strip to a worker."""
        member = self._members[number]
        links = Links(handles, self._config.lease_seconds)
        member.leases[member.handle.train.remote(strip, run_id, links)] = None

    def mark_late(self, numbers: Sequence[int], now: float) -> None:
        """Send no more strips to late workers until they respond."""
        for number in numbers:
            member = self._members[number]
            if member.leases and member.late_since is None:
                member.late_since = now

    def close(self) -> None:
        """Stop the workers."""
        for member in self._members:
            kill_actor(self._ray, member.handle)
