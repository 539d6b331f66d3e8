"""Workers: they fetch parameters of a block from servers, compute its gradients, and push them to the servers.

`Worker` is a Ray actor. Its gradients come from the backends that local training uses. It handles several blocks at a
time: while one is computed, the next is fetched, and the gradients of the previous one are sent.

`WorkerPool` starts the workers of a run, sends them blocks and replaces them, in the process that runs the loop. A
worker for which the cluster has no free cores yet joins later.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel._version import __version__
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import ClusterError, TrainingError, first_line
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import fetch, kill_actor
from swivel.runtime.resources import keep_freed_memory
from swivel.storage.lock import scratch_folder
from swivel.training.backends import ParameterBlock, Step
from swivel.training.backends.base import Gradients
from swivel.training.distributed.leases import find_parts
from swivel.training.distributed.parameter_server import server_of
from swivel.training.executor import TrainingJob
from swivel.training.objective import Loss
from swivel.training.schedule import Block
from swivel.training.training_plan import TrainingPlan

Array = NDArray[np.float32]


class Unanswered(Exception):
    """A server is lost, or has not responded in time."""


class Result(NamedTuple):
    """Result of a block: its loss, or the reason of a failure."""

    block: Block
    loss: Loss
    moved: int = 0  # bytes
    failure: str = ""  # why the block was not trained


class Worker:
    """Trains blocks. Several threads may call `train` at the same time; one of them computes at a time."""

    def __init__(self, wait_seconds: float) -> None:
        self._seconds = wait_seconds
        self._computing = threading.Lock()

    def begin(
        self, path: Path, fingerprint: str, config: TrainConfig, plan: TrainingPlan, threads: int, version: str
    ) -> str:
        """Open the matrix, re-block it if necessary, and create the backend; return its description."""
        keep_freed_memory()
        if version != __version__:
            raise TrainingError(
                f"a worker has Swivel {__version__}, the command has {version}; install the same version on all nodes"
            )
        matrix = open_matrix(path).transformed(config.transform)
        if matrix.fingerprint != fingerprint:
            raise TrainingError(
                f"{path}: a worker finds another matrix there than the command; put it on storage that nodes share"
            )
        matrix.trust()  # The command has verified the checksums; a worker reads only what it needs.

        # The re-blocked cells stay mapped although their files are removed: Ray ends a worker by killing it, and then
        # the operating system frees them.
        with scratch_folder(Path(tempfile.gettempdir())) as scratch:
            job = TrainingJob(matrix, config, plan, threads, scratch)
            self.backend, self.job = job.open_backend()
            self.job.hold(self.backend, None)  # `gradients` gets the vectors of each block.

        self._offsets = job.offsets()
        return self.backend.describe()

    def gradients(self, step: Step, vectors: Sequence[Array]) -> Gradients:
        """Return the gradients of a step at these vectors. They are valid until the next call."""
        sides = []
        for side, values in enumerate(vectors):
            # Arrays that Ray delivers are read-only: torch warns about them, and numba would compile all kernels again.
            writable = values if values.flags.writeable else np.array(values)
            offsets = self._offsets[side][self.job.span(side, step.block[side])]
            sides.append(ParameterBlock(writable, writable, offsets))

        rows, columns = sides
        return self.backend.gradients(step, rows, columns)

    def take(self, request: Any) -> Any:
        """Wait for the result of a call of a server and return it, or raise Unanswered."""
        import ray

        try:
            return ray.get(request, timeout=self._seconds)
        except ray.exceptions.RayError as error:
            raise Unanswered(f"a server does not respond: {type(error).__name__}: {first_line(error)}") from None

    def train(self, step: Step, run_id: int, servers: Sequence[Any]) -> Result:
        """Train a block and return its result; a server that does not respond makes a failure, not an exception."""
        parts = find_parts(step.block)
        owners = [servers[server_of(part, len(servers))] for part in parts]
        try:
            # Fetched while another block is computed.
            requests = [server.fetch.remote(part) for server, part in zip(owners, parts, strict=True)]
            vectors = [self.take(request) for request in requests]

            if not self._computing.acquire(timeout=self._seconds):
                raise Unanswered("the previous block has not finished in time")
            try:
                loss, *gradients = self.gradients(step, vectors)
                pushes = []
                others = reversed(step.block)
                for server, part, other, gradient in zip(owners, parts, others, gradients, strict=True):
                    pushes.append(server.push.remote(part, other, run_id, gradient, step.learning_rate))
            finally:
                self._computing.release()

            # The next block is computed while the servers apply these gradients.
            for push in pushes:
                self.take(push)
        except Unanswered as error:
            return Result(step.block, Loss(), failure=str(error))
        return Result(step.block, loss, sum(array.nbytes for array in (*vectors, *gradients)))


@dataclass(slots=True)
class _PoolWorker:
    """A place for a worker, whose process may be replaced."""

    handle: Any
    joining: Any  # reference to the result of `begin`; None once the worker has joined
    leases: set[Any] = field(default_factory=set)  # references to pending results


class WorkerPool:
    """The workers of a run; `setup` are the arguments of `Worker.begin`."""

    def __init__(self, ray: Any, config: ClusterConfig, gpus: float, setup: tuple[Any, ...], count: int) -> None:
        self._ray = ray
        self._config = config
        self._gpus = gpus
        self._setup = setup
        self._members = [self._create() for _ in range(count)]
        self.replaced = 0  # number of workers that were lost
        self.failure = ""  # the last one of a worker or of a block, for error messages
        self.description = ""  # of the backend of a worker

    def __len__(self) -> int:
        return len(self._members)

    @property
    def ready(self) -> int:
        """Number of workers that have joined: they have opened the matrix."""
        return sum(member.joining is None for member in self._members)

    def _create(self) -> _PoolWorker:
        options = {
            "num_cpus": self._config.worker_threads,
            "num_gpus": self._gpus,
            "max_restarts": 0,
            "max_concurrency": self._config.ahead,
            "scheduling_strategy": "SPREAD",
        }
        handle = self._ray.remote(Worker).options(**options).remote(self._config.lease_seconds)
        return _PoolWorker(handle, handle.begin.remote(*self._setup))

    def replace(self, number: int) -> None:
        """Kill a worker, which drops its blocks, and start another one in its place."""
        kill_actor(self._ray, self._members[number].handle)
        self._members[number] = self._create()
        self.replaced += 1

    def wait(self, seconds: float) -> list[tuple[int, Result | None]]:
        """Wait until a worker responds, but not longer than `seconds`; return the available results with their workers.

        The result is None if a worker was lost and has been replaced.
        """
        owners: dict[Any, int] = {}  # of the references to pending results
        for number, member in enumerate(self._members):
            owners |= dict.fromkeys(member.leases, number)
            if member.joining is not None:
                owners[member.joining] = number

        references = list(owners)
        self._ray.wait(references, num_returns=1, timeout=seconds)
        available, _ = self._ray.wait(references, num_returns=len(references), timeout=0)

        results: list[tuple[int, Result | None]] = []
        for reference in available:
            number = owners[reference]
            member = self._members[number]
            # A worker may have been replaced in this loop; its other results are void.
            if reference != member.joining and reference not in member.leases:
                continue

            try:
                answer = fetch(self._ray, reference, seconds=self._config.lease_seconds)
            except ClusterError as error:
                self.failure = str(error)
                self.replace(number)
                results.append((number, None))
                continue

            if reference == member.joining:
                member.joining = None
                self.description = answer
            else:
                member.leases.remove(reference)
                results.append((number, answer))
        return results

    def free(self) -> int | None:
        """Return the worker with the fewest blocks among those that have joined, or None if all have enough."""
        candidates = []
        for number, member in enumerate(self._members):
            if member.joining is None and len(member.leases) < self._config.ahead:
                candidates.append((len(member.leases), number))
        return min(candidates)[1] if candidates else None

    def assign(self, number: int, step: Step, run_id: int, servers: Sequence[Any]) -> None:
        """Send a block to a worker."""
        member = self._members[number]
        member.leases.add(member.handle.train.remote(step, run_id, servers))

    def close(self) -> None:
        """Stop the workers."""
        for member in self._members:
            kill_actor(self._ray, member.handle)
