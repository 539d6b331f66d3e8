"""Parameter servers and workers: Ray actors, and the pools that start, call and replace them for the training loop.

`Server` stores blocks of rows and columns with the state of the optimizer, and applies gradients: each once, even if
several workers push it. Ray lets an actor handle one call at a time, so that no lock is needed. `ServerPool` keeps a
copy of all parameters as of the last read. If a server is lost, new ones start from this copy.

`Worker` fetches parameters of a block from servers, computes its gradients with the backends that local training uses,
and pushes them to the servers. It handles several blocks at a time: while one is computed, the next is fetched, and the
gradients of the previous one are sent. `WorkerPool` sends blocks to the workers of a run. A worker for which the
cluster has no free cores yet joins later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ClusterError, first_line
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import await_reply, fetch, kill_actor
from swivel.training.backends import ParameterBlock, Step
from swivel.training.backends.base import Gradients
from swivel.training.distributed.cluster_setup import ActorSetup
from swivel.training.distributed.leases import Part, find_parts
from swivel.training.executor import Sides, TrainingJob
from swivel.training.objective import Loss
from swivel.training.objective_numba import update_parameters
from swivel.training.schedule import Block

Array = NDArray[np.float32]
MAX_TRANSFERS = 8  # blocks that are sent to or read from the servers at a time
MAX_RESTORES = 5  # of the servers in a row, before the run fails
RESUME_HINT = "run the same command again to resume from the last checkpoint"


@dataclass(slots=True)
class ServedBlock:
    """A block of parameters, and the gradients that it got in one call of `AsyncExecutor.run`."""

    vectors: Array
    state: Array  # of the optimizer
    applied: set[int]  # blocks of the other side
    run_id: int  # the call of `run`


def server_of(part: Part, servers: int) -> int:
    """Return the number of the server that stores a part of the parameters.

    >>> [server_of((side, block), 2) for side in (0, 1) for block in (0, 1)]
    [0, 1, 1, 0]
    """
    return (part[0] + part[1]) % servers


class Server:
    """Stores some blocks of the parameters.

    >>> server = Server()
    >>> server.hold((0, 3), np.ones((2, 4), np.float32), np.ones(2, np.float32), run_id=1)
    >>> gradient = np.ones((2, 4), np.float32)
    >>> [server.push((0, 3), 5, 1, gradient, learning_rate=0.5) for _ in range(2)]
    [True, False]
    """

    def __init__(self, accumulator_decay: float = 1.0) -> None:
        self._blocks: dict[Part, ServedBlock] = {}
        self._accumulator_decay = accumulator_decay

        # Compile the kernel before the first push, for read-only gradients: arrays that Ray delivers are read-only.
        values = np.ones((1, 1), np.float32)
        gradient = np.ones((1, 1), np.float32)
        gradient.flags.writeable = False
        update_parameters(values, np.ones(1, np.float32), gradient, 1.0, 0.0, 0.1, accumulator_decay)

    def hold(self, part: Part, vectors: Array, state: Array, run_id: int) -> None:
        """Store a copy of a block, which has no gradients of this run yet."""
        self._blocks[part] = ServedBlock(np.array(vectors, np.float32), np.array(state, np.float32), set(), run_id)

    def ping(self) -> int:
        """Return the process id, which shows that the server responds."""
        return os.getpid()

    def fetch(self, part: Part) -> Array:
        """Return the vectors of a block."""
        return self._blocks[part].vectors

    def push(self, part: Part, other: int, run_id: int, gradient: Array, learning_rate: float) -> bool:
        """Take a step of the optimizer, with the gradient of the block that has `other` on the other side.

        Return False if the gradient was applied before, or belongs to an earlier call of `run`.
        """
        block = self._blocks[part]
        if run_id > block.run_id:
            block.run_id = run_id
            block.applied.clear()
        # A push of an earlier call of `run` is too late: what was lacking then was repeated.
        if run_id < block.run_id or other in block.applied:
            return False

        update_parameters(block.vectors, block.state, gradient, 1.0, 0.0, learning_rate, self._accumulator_decay)
        block.applied.add(other)
        return True

    def read(self, part: Part) -> ServedBlock:
        """Return a block, not a copy; Ray copies what it sends to another process."""
        return self._blocks[part]


class ServerPool:
    """The servers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, job: TrainingJob) -> None:
        self._ray = ray
        self._config = config
        self._job = job
        self.handles: list[Any] = []  # of Ray, by number
        self.restored = 0  # how often the servers were replaced
        self.run_id = 0  # call of `run`; servers refuse gradients of earlier ones
        self.sides: Sides  # the copy of the parameters
        self.applied: dict[Part, frozenset[int]] = {}  # gradients of this run that each part of the copy has

    def hold(self, sides: Sides) -> None:
        """Copy the parameters and send them to the servers."""
        rows, columns = (side.map(lambda array: np.array(array, np.float32)) for side in sides)
        self.sides = rows, columns
        self.restart()

    def restart(self) -> None:
        """Replace all servers by new ones, which start from the copy."""
        create = self._ray.remote(Server).options(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD").remote
        failure: BaseException | None = None
        for _ in range(MAX_RESTORES):
            self.close()
            count = min(self._config.servers, sum(self._job.blocks))
            self.handles = [create(self._job.config.accumulator_decay) for _ in range(count)]
            try:
                for number in range(count):
                    self._send(number)
                return
            except self._ray.exceptions.RayError as error:
                failure = error

        losses = f"servers were lost {MAX_RESTORES} times in a row ({first_line(failure)})"
        raise ClusterError(f"{losses}; {RESUME_HINT}") from failure

    def _get(self, reference: Any, seconds: float | None = None) -> Any:
        return await_reply(self._ray, reference, seconds=seconds or self._config.lease_seconds)

    def _send(self, number: int) -> None:
        """Send a server the copies of its blocks."""
        handle = self.handles[number]
        self._get(handle.ping.remote(), self._config.patience_seconds)  # Ray may have to start the server first.

        def send(part: Part) -> Any:
            side, span = self.sides[part[0]], self._job.span(*part)
            return handle.hold.remote(part, side.vectors[span], side.state[span], self.run_id)

        for _ in self._transfer(number, send):
            pass

    def check(self) -> None:
        """Raise RayError if a server does not respond."""
        for handle in self.handles:
            self._get(handle.ping.remote())

    def save(self) -> None:
        """Read all parameters into a new copy; raise RayError if a server is lost."""
        # The old copy stays until all have been read.
        rows, columns = (
            replace(side, vectors=np.empty_like(side.vectors), state=np.empty_like(side.state)) for side in self.sides
        )
        applied = {}
        for number, handle in enumerate(self.handles):
            for part, block in self._transfer(number, handle.read.remote):
                span = self._job.span(*part)
                side = (rows, columns)[part[0]]
                side.vectors[span] = block.vectors
                side.state[span] = block.state
                applied[part] = frozenset(block.applied if block.run_id == self.run_id else ())
        self.sides, self.applied = (rows, columns), applied

    def _transfer(self, number: int, start: Callable[[Part], Any]) -> Iterator[tuple[Part, Any]]:
        """Start a remote call for each part of a server, a few at a time, and yield each part with its result."""
        every = [(side, block) for side, blocks in enumerate(self._job.blocks) for block in range(blocks)]
        parts = [part for part in every if server_of(part, len(self.handles)) == number]
        for first in range(0, len(parts), MAX_TRANSFERS):
            batch = parts[first : first + MAX_TRANSFERS]
            references = [start(part) for part in batch]
            yield from zip(batch, map(self._get, references), strict=True)

    def close(self) -> None:
        """Stop the servers."""
        for handle in self.handles:
            kill_actor(self._ray, handle)


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

    def begin(self, setup: ActorSetup) -> str:
        """Open the matrix, re-block it if necessary, and create the backend; return its description."""
        with setup.open_job() as job:
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
    """The workers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, gpus: float, setup: ActorSetup, count: int) -> None:
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
        resources = {"num_cpus": self._setup.threads, "num_gpus": self._gpus, "max_concurrency": self._config.ahead}
        kind = self._ray.remote(Worker).options(**resources, max_restarts=0, scheduling_strategy="SPREAD")
        handle = kind.remote(self._config.lease_seconds)
        return _PoolWorker(handle, handle.begin.remote(self._setup))

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
        loads = [(len(member.leases), n) for n, member in enumerate(self._members) if member.joining is None]
        return min(loads)[1] if loads and min(loads)[0] < self._config.ahead else None

    def assign(self, number: int, step: Step, run_id: int, servers: Sequence[Any]) -> None:
        """Send a block to a worker."""
        member = self._members[number]
        member.leases.add(member.handle.train.remote(step, run_id, servers))

    def forget(self) -> None:
        """Ignore the results of the blocks that workers have: the servers have lost their gradients."""
        for member in self._members:
            member.leases.clear()

    def close(self) -> None:
        """Stop the workers."""
        for member in self._members:
            kill_actor(self._ray, member.handle)
