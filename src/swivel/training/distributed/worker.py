"""A worker: trains strips of blocks, with parameters that it fetches from servers and changes that it pushes to them.

Gradients come from the backends that local training uses. A worker handles two strips at a time: while one is computed,
the next is fetched, or the pushes of the previous one are sent. `Links` hides Ray, so that workers can be tested
without a cluster.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from swivel._version import __version__
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import ClusterError
from swivel.runtime.progress import SILENT
from swivel.runtime.resources import keep_freed_memory
from swivel.storage import scratch_folder
from swivel.training.backends import ParameterBlock
from swivel.training.backends.base import Gradients
from swivel.training.backends.cpu_kernels import adagrad
from swivel.training.distributed.leases import Part, Strip
from swivel.training.distributed.parameter_server import REFUSED, Fetched, Push, server_of
from swivel.training.executor import LocalResources, Round, TrainingJob
from swivel.training.objective import Loss, Objective, column_offsets, row_offsets
from swivel.training.plan import TrainingPlan
from swivel.training.schedule import Block

Array = NDArray[np.float32]


class Unanswered(Exception):
    """A server is lost, or has not responded in time."""


class Links(Protocol):
    """Connections of a worker to the servers."""

    count: int

    def fetch(self, server: int, part: Part, with_accumulators: bool) -> Any:
        """Request a block from a server; return a reference for `take`."""

    def push(self, server: int, push: Push) -> Any:
        """Send a change to a server; return a reference for `take`."""

    def take(self, asked: Any) -> Any:
        """Wait for the result of a request and return it, or raise Unanswered."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker needs to know about a run before its first strip."""

    path: Path  # of the matrix, on storage that all nodes share
    fingerprint: str
    config: TrainConfig
    plan: TrainingPlan
    threads: int
    wait_seconds: float
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
    is_untouched: bool = False  # whether a failed strip changed no parameter


class Stepper:
    """Computes the gradients of single blocks with the backend of a run."""

    def __init__(self, job: TrainingJob, threads: int) -> None:
        self._job = job
        self._backend = job.create_backend(threads)

        matrix = job.matrix
        objective = Objective.from_config(job.config)
        self._offsets = (
            row_offsets(matrix.row_sums, matrix.total, objective).astype(np.float32),
            column_offsets(matrix.column_sums, objective).astype(np.float32),
        )
        self._dim = job.config.dim + objective.extra_dims
        self._allocate()

    def _allocate(self) -> None:
        """Give the backend empty blocks, which `gradients` fills; one that builds its own layout gets all blocks."""
        if self._backend.builds_layout:
            rows, columns = (self._zeros(len(offsets)) for offsets in self._offsets)
            self._backend.hold(rows, columns, self._job.starts)
            self._backend.take(self._job.matrix.stored)
        else:
            row_blocks, column_blocks = self._job.blocks
            starts = [0] * (row_blocks + 1), [0] * (column_blocks + 1)
            self._backend.hold(self._zeros(0), self._zeros(0), starts)

    def _zeros(self, size: int) -> ParameterBlock:
        zeros = np.zeros((size, self._dim), np.float32)
        return ParameterBlock(zeros, zeros, np.zeros(size, np.float32))

    def describe(self) -> str:
        """Return the description of the backend."""
        return self._backend.describe()

    def gradients(self, block: Block, vectors: tuple[Array, Array], turn: int) -> Gradients:
        """Return the gradients of a block at these vectors, in epoch `turn`. They are valid until the next call."""
        sides = []
        for side, values in enumerate(vectors):
            # Arrays that Ray delivers are read-only: torch warns about them, and numba would compile all kernels again.
            writable = values if values.flags.writeable else np.array(values)
            offsets = self._offsets[side][block[side] :: self._job.blocks[side]]
            sides.append(ParameterBlock(writable, writable, offsets))

        rows, columns = sides
        (step,) = self._job.steps(Round(turn, [block], 1.0))
        return self._backend.gradients(step, rows, columns)

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()


@contextmanager
def open_stepper(setup: WorkerSetup) -> Iterator[Stepper]:
    """Open the matrix of a run, re-block it if necessary, and yield a Stepper for it."""
    if setup.version != __version__:
        raise ClusterError(
            f"a worker has Swivel {__version__}, the command has {setup.version}; install the same version on all nodes"
        )
    matrix = open_matrix(setup.path)
    if matrix.fingerprint != setup.fingerprint:
        raise ClusterError(
            f"{setup.path}: a worker finds another matrix there than the command; put it on storage that nodes share"
        )
    matrix.trust()  # The command has verified the checksums; a worker reads only what it needs.

    with scratch_folder(Path(tempfile.gettempdir())) as scratch:
        job = TrainingJob(matrix, setup.config, setup.plan)
        if setup.plan.backend != "triton":  # Triton builds its layout on the device.
            job = job.laid_out(LocalResources(scratch, setup.threads, SILENT))
        stepper = Stepper(job, setup.threads)
        try:
            yield stepper
        finally:
            stepper.close()


class Worker:
    """Trains strips. Several threads may call `train` at the same time; one of them computes at a time."""

    def __init__(self, wait_seconds: float) -> None:
        self._seconds = wait_seconds
        # A strip holds `_fetching` from its first request until its last block starts, and `_computing` while its
        # blocks are computed. So the next strip fetches its first blocks while this one computes its last block.
        self._fetching = threading.Lock()
        self._computing = threading.Lock()
        self._paused_run = 0  # strips of this run_id, or of earlier ones, are skipped
        self._resources = ExitStack()
        self._stepper: Stepper | None = None

    def begin(self, setup: WorkerSetup) -> str:
        """Open the matrix and create the backend; return its description."""
        keep_freed_memory()
        self._stepper = self._resources.enter_context(open_stepper(setup))
        return self._stepper.describe()

    def ping(self) -> int:
        """Return the process id, which shows that the worker responds."""
        return os.getpid()

    def pause(self, run_id: int) -> None:
        """Skip the strips of this run that have not started."""
        self._paused_run = run_id

    def close(self) -> None:
        """Close the backend."""
        self._resources.close()

    def train(self, strip: Strip, run_id: int, links: Links, is_last: bool = False) -> Result:
        """Train a strip and return its result; a server that does not respond makes a failure, not an exception.

        A paused worker skips the strip unless `is_last` is set.
        """
        assert self._stepper is not None
        run = _StripRun(strip, run_id, links, self._stepper)
        try:
            with ExitStack() as gate:
                # `gate` opens when the last block of this strip starts. Fetching the next strip earlier would give it
                # older parameters.
                gate.enter_context(self._lock(self._fetching))
                if self._paused_run >= run_id and not is_last:
                    return Result(strip.number, run_id, (), failure="paused", is_untouched=True)
                run.request_first()

                with self._lock(self._computing):
                    run.compute(gate.close)

            # The pushes of this strip are sent while the next one computes.
            return run.finish()
        except Unanswered as error:
            return Result(
                strip.number, run_id, (), run.moved, failure=str(error) or "no response", is_untouched=run.is_untouched
            )

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
    """The training of one strip."""

    def __init__(self, strip: Strip, run_id: int, links: Links, stepper: Stepper) -> None:
        self.strip = strip
        self._run_id = run_id
        self._links = links
        self._stepper = stepper

        self._requests: dict[tuple[int, int], Any] = {}  # pending fetches, by position in the strip and side
        self._pushed: list[Any] = []  # pending pushes
        self._losses: list[Loss] = []
        self._shared: _SharedBlock | None = None
        self.moved = 0  # bytes
        self._seconds = 0.0

    @property
    def is_untouched(self) -> bool:
        """Whether no change was pushed."""
        return not self._pushed

    def request_first(self) -> None:
        """Request the parameters of the first block."""
        self._request(0)

    def _request(self, position: int) -> None:
        for side, block in enumerate(self.strip.blocks[position]):
            # The shared block is fetched once, with its accumulators: the worker takes its Adagrad steps itself.
            is_shared = side == self.strip.shared
            if not is_shared or position == 0:
                server = server_of((side, block), self._links.count)
                self._requests[position, side] = self._links.fetch(server, (side, block), is_shared)

    def _take(self, position: int, side: int) -> Fetched:
        fetched: Fetched = self._links.take(self._requests.pop((position, side)))
        self.moved += payload_bytes(fetched)
        return fetched

    def compute(self, on_last: Callable[[], None]) -> None:
        """Compute all blocks and push their changes: gradients at once, the shared block at the end.

        `on_last` is called before the last block.
        """
        started = time.perf_counter()
        last = len(self.strip.blocks) - 1
        for position, block in enumerate(self.strip.blocks):
            if position < last:
                self._request(position + 1)
            else:
                on_last()
            self._step(position, block)

        if self._shared is not None and self.strip.shared is not None:
            side = self.strip.shared
            shared = self._shared
            others = tuple(block[1 - side] for block in self.strip.blocks)
            part = side, self.strip.blocks[0][side]
            self._push(Push(self._run_id, part, others, shared.version, *shared.changes()))
        self._seconds = time.perf_counter() - started

    def _step(self, position: int, block: Block) -> None:
        rows = self._open(position, 0)
        columns = self._open(position, 1)
        gradients = self._stepper.gradients(block, (rows.vectors, columns.vectors), self.strip.turn)
        self._losses.append(gradients.loss)

        learning_rate = self.strip.rates[position]
        for side, (parameters, gradient) in enumerate(((rows, gradients.rows), (columns, gradients.columns))):
            if isinstance(parameters, _SharedBlock):
                parameters.step(gradient, learning_rate)
            else:
                part = (side, block[side])
                others = (block[1 - side],)
                self._push(Push(self._run_id, part, others, parameters.version, gradient, None, learning_rate))

    def _open(self, position: int, side: int) -> Fetched | _SharedBlock:
        """Return the fetched block, or the local copy of the shared block."""
        if side != self.strip.shared:
            return self._take(position, side)
        if self._shared is None:
            self._shared = _SharedBlock(self._take(position, side))
        return self._shared

    def _push(self, push: Push) -> None:
        self.moved += payload_bytes(push)
        self._pushed.append(self._links.push(server_of(push.part, self._links.count), push))

    def finish(self) -> Result:
        """Wait until the servers have applied all changes, and return the result."""
        answers = [self._links.take(pushed) for pushed in self._pushed]
        staleness = tuple(answer for answer in answers if answer != REFUSED)
        losses = tuple(self._losses)
        return Result(self.strip.number, self._run_id, losses, self.moved, staleness, self._seconds)


class _SharedBlock:
    """A local copy of the block that all blocks of a strip share."""

    def __init__(self, fetched: Fetched) -> None:
        assert fetched.accumulators is not None
        self.version = fetched.version
        self.vectors = np.array(fetched.vectors)
        self._accumulators = np.array(fetched.accumulators)
        self._fetched_vectors = fetched.vectors
        self._fetched_accumulators = fetched.accumulators

    def step(self, gradient: Array, learning_rate: float) -> None:
        """Take an Adagrad step."""
        adagrad(self.vectors, self._accumulators, gradient, 1.0, 0.0, learning_rate)

    def changes(self) -> tuple[Array, Array]:
        """Return the changes of vectors and accumulators since the fetch."""
        return self.vectors - self._fetched_vectors, self._accumulators - self._fetched_accumulators


def payload_bytes(message: Any) -> int:
    """Return the number of bytes that a message takes when it is sent, its arrays included.

    >>> payload_bytes(np.zeros(1000)) - 8000 < 200
    True
    """
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return len(rest) + sum(buffer.raw().nbytes for buffer in buffers)
