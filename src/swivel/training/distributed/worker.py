"""A worker: trains strips of blocks, with parameters that it fetches from servers and changes that it pushes to them.

Gradients come from the backends that local training uses. A worker handles two strips at a time: while one is computed,
the next is fetched, or the pushes of the previous one are sent. Only `Links` uses Ray, so that workers can be tested
without a cluster.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel._version import __version__
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import ClusterError, first_line
from swivel.runtime.resources import keep_freed_memory
from swivel.storage.temporary import scratch_folder
from swivel.training.backends import ParameterBlock, Step
from swivel.training.backends.base import Gradients
from swivel.training.distributed.leases import Part, Strip
from swivel.training.distributed.parameter_server import REFUSED, Push, ServedBlock, server_of
from swivel.training.executor import TrainingJob
from swivel.training.objective import Loss, choose_optimizer, subtract_states
from swivel.training.objective_numba import update_parameters
from swivel.training.training_plan import TrainingPlan

Array = NDArray[np.float32]


class Unanswered(Exception):
    """A server is lost, or has not responded in time."""


class Links:
    """Connections of a worker to the servers on Ray."""

    def __init__(self, servers: Sequence[Any], seconds: float) -> None:
        self._servers = list(servers)
        self._seconds = seconds

    def fetch(self, part: Part, with_state: bool) -> Any:
        """Request a block from its server; return a reference for `take`."""
        return self._server(part).fetch.remote(part, with_state)

    def push(self, push: Push) -> Any:
        """Send a change to its server; return a reference for `take`."""
        return self._server(push.part).push.remote(push)

    def _server(self, part: Part) -> Any:
        return self._servers[server_of(part, len(self._servers))]

    def take(self, request: Any) -> Any:
        """Wait for the result of a request and return it, or raise Unanswered."""
        import ray

        try:
            return ray.get(request, timeout=self._seconds)
        except ray.exceptions.RayError as error:
            raise Unanswered(f"a server does not respond: {type(error).__name__}: {first_line(error)}") from None


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker needs to know about a run before its first strip."""

    path: Path  # of the matrix, on storage that all nodes share
    fingerprint: str
    config: TrainConfig
    plan: TrainingPlan
    threads: int
    version: str = __version__


class Result(NamedTuple):
    """Result of a strip: the losses, or the reason of a failure."""

    number: int
    run_id: int
    losses: tuple[Loss, ...]
    moved: int = 0  # bytes, also if the strip failed
    staleness: tuple[int, ...] = ()  # of each push that was applied: changes by others since the fetch
    seconds: float = 0.0
    failure: str = ""  # why the strip was not finished


class Worker:
    """Trains strips. Several threads may call `train` at the same time; one of them computes at a time."""

    def __init__(self, wait_seconds: float) -> None:
        self._seconds = wait_seconds
        # Two locks, always taken in this order. A strip holds `_fetching` from its first request until its last block
        # starts, and `_computing` while its blocks are computed. So the next strip fetches its first blocks while this
        # one computes its last block.
        self._fetching = threading.Lock()
        self._computing = threading.Lock()

    def begin(self, setup: WorkerSetup) -> str:
        """Open the matrix, re-block it if necessary, and create the backend; return its description."""
        keep_freed_memory()
        if setup.version != __version__:
            raise ClusterError(
                f"a worker has Swivel {__version__}, the command has {setup.version}; "
                "install the same version on all nodes"
            )
        matrix = open_matrix(setup.path).transformed(setup.config.transform)
        if matrix.fingerprint != setup.fingerprint:
            raise ClusterError(
                f"{setup.path}: a worker finds another matrix there than the command; "
                "put it on storage that nodes share"
            )
        matrix.trust()  # The command has verified the checksums; a worker reads only what it needs.

        # The re-blocked cells stay mapped although their files are removed: Ray ends a worker by killing it, and then
        # the operating system frees them.
        with scratch_folder(Path(tempfile.gettempdir())) as scratch:
            job = TrainingJob(matrix, setup.config, setup.plan, setup.threads, scratch)
            self.backend, self.job = job.open_backend()
            self.job.hold(self.backend, None)  # `gradients` gets the vectors of each block.

        self.optimizer = choose_optimizer(job.config)
        self._offsets = job.offsets()
        return self.backend.describe()

    def gradients(self, step: Step, vectors: tuple[Array, Array]) -> Gradients:
        """Return the gradients of a step at these vectors. They are valid until the next call."""
        sides = []
        for side, values in enumerate(vectors):
            # Arrays that Ray delivers are read-only: torch warns about them, and numba would compile all kernels again.
            writable = values if values.flags.writeable else np.array(values)
            offsets = self._offsets[side][self.job.span(side, step.block[side])]
            sides.append(ParameterBlock(writable, writable, offsets))

        rows, columns = sides
        return self.backend.gradients(step, rows, columns)

    def ping(self) -> int:
        """Return the process id, which shows that the worker responds."""
        return os.getpid()

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()

    def train(self, strip: Strip, run_id: int, links: Links) -> Result:
        """Train a strip and return its result; a server that does not respond makes a failure, not an exception."""
        run = _StripRun(strip, run_id, links, self)
        try:
            with ExitStack() as gate:
                # `gate` opens when the last block of this strip starts. Fetching the next strip earlier would give it
                # older parameters.
                gate.enter_context(self._lock(self._fetching))
                run.request(0)

                with self._lock(self._computing):
                    run.compute(gate.close)

            # The pushes of this strip are sent while the next one computes.
            return run.finish()
        except Unanswered as error:
            return Result(strip.number, run_id, (), run.moved, failure=str(error))

    @contextmanager
    def _lock(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock, or raise Unanswered if it is not free in time."""
        if not lock.acquire(timeout=self._seconds):
            raise Unanswered("the previous strip has not finished in time")
        try:
            yield
        finally:
            lock.release()


class _StripRun:
    """The training of one strip, in one thread."""

    def __init__(self, strip: Strip, run_id: int, links: Links, worker: Worker) -> None:
        self.strip = strip
        self._run_id = run_id
        self._links = links
        self._worker = worker

        self._requests: dict[tuple[int, int], Any] = {}  # pending fetches, by position in the strip and side
        self._pushes: list[Any] = []  # references to all pushes; the result of a push is taken at the end
        self._losses: list[Loss] = []
        self._original: ServedBlock  # the block that all blocks of the strip share, if they do,
        self._shared: ServedBlock  # and the copy of it that this strip changes
        self.moved = 0  # bytes of arrays
        self._seconds = 0.0

    def request(self, position: int) -> None:
        """Request the parameters of a block of the strip."""
        for side, block in enumerate(self.strip.steps[position].block):
            # The shared block is fetched once, with its state: the worker takes its steps itself. Of the other block
            # the server takes the step, so that the state, as large as the vectors, is not moved.
            is_shared = side == self.strip.shared
            if not is_shared or position == 0:
                self._requests[position, side] = self._links.fetch((side, block), is_shared)

    def compute(self, on_last: Callable[[], None]) -> None:
        """Compute all blocks and push their changes: gradients at once, the shared block at the end.

        `on_last` is called before the last block.
        """
        started = time.perf_counter()
        last = len(self.strip.steps) - 1
        for position, step in enumerate(self.strip.steps):
            if position < last:
                self.request(position + 1)
            else:
                on_last()
            self._step(position, step)

        side = self.strip.shared
        if side is not None:
            part = side, self.strip.steps[0].block[side]
            others = tuple(block[1 - side] for block in self.strip.blocks)
            # Other workers may change the block in the meantime: send what these steps changed, not the result.
            vectors = self._shared.vectors - self._original.vectors
            optimizer = self._worker.optimizer
            state = subtract_states(self._shared.state, self._original.state, len(others), optimizer)
            self._push(Push(self._run_id, part, others, self._original.version, vectors, state, optimizer=optimizer))
        self._seconds = time.perf_counter() - started

    def _step(self, position: int, step: Step) -> None:
        """Compute the gradients of a block; push them, but apply that of the shared side to the copy."""
        rows = self._open(position, 0)
        columns = self._open(position, 1)
        loss, *gradients = self._worker.gradients(step, (rows.vectors, columns.vectors))
        self._losses.append(loss)

        rate = step.learning_rate
        optimizer = self._worker.optimizer
        for side, (parameters, gradient) in enumerate(zip((rows, columns), gradients, strict=True)):
            if side == self.strip.shared:
                update_parameters(parameters.vectors, parameters.state, gradient, 1.0, 0.0, rate, optimizer)
            else:
                part = (side, step.block[side])
                others = (step.block[1 - side],)
                change = parameters.version, gradient, None, rate, optimizer
                self._push(Push(self._run_id, part, others, *change))

    def _open(self, position: int, side: int) -> ServedBlock:
        """Return the fetched block, or the copy of the shared block, which is fetched with the first block."""
        if side == self.strip.shared and position > 0:
            return self._shared

        parameters: ServedBlock = self._links.take(self._requests.pop((position, side)))
        self._count_bytes(parameters.vectors, parameters.state)
        if side != self.strip.shared:
            return parameters
        self._original = parameters
        copies = np.array(parameters.vectors), np.array(parameters.state)
        self._shared = replace(parameters, vectors=copies[0], state=copies[1])
        return self._shared

    def _push(self, push: Push) -> None:
        self._count_bytes(push.values, push.state)
        self._pushes.append(self._links.push(push))

    def _count_bytes(self, *arrays: Array | None) -> None:
        self.moved += sum(array.nbytes for array in arrays if array is not None)

    def finish(self) -> Result:
        """Wait until the servers have applied all changes, and return the result."""
        # Neither lock is held here: the next strip computes while the servers apply these changes.
        answers = [self._links.take(push) for push in self._pushes]
        staleness = tuple(answer for answer in answers if answer != REFUSED)
        losses = tuple(self._losses)
        return Result(self.strip.number, self._run_id, losses, self.moved, staleness, self._seconds)
