"""A worker: takes a strip of blocks, fetches their parameters, computes, pushes what changed.

Receives strips, hands on what they lost; between the two it talks to parameter servers. The backend is the one of every
other run. Two strips are under way at a time: one computes, the next is being fetched or the last one's pushes are on
their way. It does not know who leased a strip, nor what Ray is: `Links` is how it reaches the servers.
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
    """A server is gone, or has not answered in time."""


class Links(Protocol):
    """How a worker reaches the servers."""

    count: int

    def fetch(self, server: int, part: Part, with_accumulators: bool) -> Any:
        """Ask a server for a block; return what `take` waits for."""

    def push(self, server: int, push: Push) -> Any:
        """Send a server a change; return what `take` waits for."""

    def take(self, asked: Any) -> Any:
        """Return the answer, or raise Unanswered."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker must know of a run before its first strip."""

    path: Path  # of the matrix, on storage that every node sees
    fingerprint: str
    config: TrainConfig
    plan: TrainingPlan
    threads: int
    wait_seconds: float
    version: str = __version__


class Result(NamedTuple):
    """What became of a strip."""

    number: int
    run_id: int
    losses: tuple[Loss, ...]
    moved: int = 0  # bytes, also those of a strip that failed
    staleness: tuple[int, ...] = ()  # of each push that was taken: changes by others since the block was fetched
    seconds: float = 0.0
    failure: str = ""  # why nothing was lost
    is_untouched: bool = False  # nor anything changed


class Stepper:
    """Computes the gradients of single blocks with the backend of a run."""

    def __init__(self, job: TrainingJob, threads: int) -> None:
        self._job = job
        self._backend = job.create_backend(threads)
        matrix, objective = job.matrix, Objective.from_config(job.config)
        offsets = row_offsets(matrix.row_sums, matrix.total, objective), column_offsets(matrix.column_sums, objective)
        self._offsets = tuple(side.astype(np.float32) for side in offsets)
        self._dim = job.config.dim + objective.extra_dims
        self._make_room()

    def _make_room(self) -> None:
        """Hold blocks of no rows, one of which a step fills; a backend that lays blocks out has room for all."""
        sizes = [len(side) if self._backend.builds_layout else 0 for side in self._offsets]
        nothing = [np.zeros((size, self._dim), np.float32) for size in sizes]
        rows, columns = (ParameterBlock(room, room, np.zeros(len(room), np.float32)) for room in nothing)
        starts = self._job.starts if self._backend.builds_layout else [[0] * (count + 1) for count in self._job.blocks]
        self._backend.hold(rows, columns, (starts[0], starts[1]))
        if self._backend.builds_layout:
            self._backend.take(self._job.matrix.stored)

    def describe(self) -> str:
        """Say what computes."""
        return self._backend.describe()

    def gradients(self, block: Block, vectors: tuple[Array, Array], turn: int) -> Gradients:
        """Return the gradients of a block at these vectors, in pass `turn`; they are good until the next call."""
        # What came through Ray may not be written to: torch warns of that, and numba compiles everything again for it.
        own = [values if values.flags.writeable else np.array(values) for values in vectors]
        rows, columns = (
            ParameterBlock(values, values, self._offsets[side][block[side] :: self._job.blocks[side]])
            for side, values in enumerate(own)
        )
        (step,) = self._job.steps(Round(turn, [block], 1.0))
        return self._backend.gradients(step, rows, columns)

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()


@contextmanager
def open_stepper(order: WorkerSetup) -> Iterator[Stepper]:
    """Open the matrix of a run, lay its blocks out where they differ, and yield what computes its gradients."""
    if order.version != __version__:
        raise ClusterError(f"a worker has Swivel {__version__}, the command {order.version}; install the same")
    matrix = open_matrix(order.path)
    if matrix.fingerprint != order.fingerprint:
        raise ClusterError(f"{order.path}: a worker sees another matrix there than the command; share the folder")
    matrix.trust()  # The command has read it all; a worker reads what it needs.
    with scratch_folder(Path(tempfile.gettempdir())) as scratch:
        job = TrainingJob(matrix, order.config, order.plan)
        if order.plan.backend != "triton":  # which lays blocks out on the device
            job = job.laid_out(LocalResources(scratch, order.threads, SILENT))
        stepper = Stepper(job, order.threads)
        try:
            yield stepper
        finally:
            stepper.close()


class Worker:
    """Trains strips. Several threads may hand it strips at once; one computes at a time."""

    def __init__(self, wait_seconds: float) -> None:
        self._seconds = wait_seconds
        self._fetching, self._computing = threading.Lock(), threading.Lock()
        self._resting = 0  # the run_id whose strips are left where they are not begun
        self._resources = ExitStack()
        self._stepper: Stepper | None = None

    def begin(self, order: WorkerSetup) -> str:
        """Make ready; say what computes."""
        keep_freed_memory()
        self._stepper = self._resources.enter_context(open_stepper(order))
        return self._stepper.describe()

    def ping(self) -> int:
        """Answer, with the number of the process."""
        return os.getpid()

    def rest(self, run_id: int) -> None:
        """Leave the strips of an run_id that are not begun."""
        self._resting = run_id

    def close(self) -> None:
        """Close the backend."""
        self._resources.close()

    def train(self, strip: Strip, run_id: int, links: Links, is_last: bool = False) -> Result:
        """Train a strip, where `is_last` also while resting; a server's silence is told, not raised."""
        assert self._stepper is not None
        run = _StripRun(strip, run_id, links, self._stepper)
        try:
            with ExitStack() as gate:
                # The next strip's first blocks are fetched while this one's last block computes, not earlier: they age.
                gate.enter_context(self._lock(self._fetching))
                if self._resting >= run_id and not is_last:
                    return Result(strip.number, run_id, (), failure="resting", is_untouched=True)
                run.ask_first()
                with self._lock(self._computing):
                    run.compute(gate.close)
            return run.finish()
        except Unanswered as error:
            return Result(
                strip.number, run_id, (), run.moved, failure=str(error) or "no answer", is_untouched=run.is_untouched
            )

    @contextmanager
    def _lock(self, lock: threading.Lock) -> Iterator[None]:
        """Wait for a lock, not for ever."""
        if not lock.acquire(timeout=self._seconds):
            raise Unanswered("the strip before has not come to its end")
        try:
            yield
        finally:
            lock.release()


class _StripRun:
    """One strip on its way through a worker."""

    def __init__(self, strip: Strip, run_id: int, links: Links, stepper: Stepper) -> None:
        self.strip, self._run_id, self._links, self._stepper = strip, run_id, links, stepper
        self._asked: dict[tuple[int, int], Any] = {}  # by place in the strip and side
        self._pushed: list[Any] = []
        self._losses: list[Loss] = []
        self._shared: _Shared | None = None
        self.moved, self._seconds = 0, 0.0

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was pushed."""
        return not self._pushed

    def ask_first(self) -> None:
        """Ask for what the first block needs."""
        self._ask(0)

    def _ask(self, place: int) -> None:
        for side, block in enumerate(self.strip.blocks[place]):
            is_shared = side == self.strip.shared
            if not is_shared or place == 0:
                server = server_of((side, block), self._links.count)
                self._asked[place, side] = self._links.fetch(server, (side, block), is_shared)

    def _take(self, place: int, side: int) -> Fetched:
        fetched: Fetched = self._links.take(self._asked.pop((place, side)))
        self.moved += payload_bytes(fetched)
        return fetched

    def compute(self, on_last: Callable[[], None]) -> None:
        """Compute all blocks; each one's changes leave at once, those of the shared side at the end."""
        started = time.perf_counter()
        last = len(self.strip.blocks) - 1
        for place, block in enumerate(self.strip.blocks):
            if place < last:
                self._ask(place + 1)
            else:
                on_last()
            self._step(place, block)
        if self._shared is not None and self.strip.shared is not None:
            side, shared = self.strip.shared, self._shared
            others = tuple(block[1 - side] for block in self.strip.blocks)
            part = side, self.strip.blocks[0][side]
            self._push(Push(self._run_id, part, others, shared.version, *shared.changes()))
        self._seconds = time.perf_counter() - started

    def _step(self, place: int, block: Block) -> None:
        rows, columns = (self._open(place, side) for side in (0, 1))
        found = self._stepper.gradients(block, (rows.vectors, columns.vectors), self.strip.turn)
        self._losses.append(found.loss)
        learning_rate = self.strip.rates[place]
        for side, (held, gradient) in enumerate(((rows, found.rows), (columns, found.columns))):
            if isinstance(held, _Shared):
                held.step(gradient, learning_rate)
            else:
                part, others = (side, block[side]), (block[1 - side],)
                self._push(Push(self._run_id, part, others, held.version, gradient, None, learning_rate))

    def _open(self, place: int, side: int) -> Fetched | _Shared:
        """Return a block as it was fetched, or the worker's own copy of the one that is shared."""
        if side != self.strip.shared:
            return self._take(place, side)
        if self._shared is None:
            self._shared = _Shared(self._take(place, side))
        return self._shared

    def _push(self, push: Push) -> None:
        self.moved += payload_bytes(push)
        self._pushed.append(self._links.push(server_of(push.part, self._links.count), push))

    def finish(self) -> Result:
        """Wait until all changes have arrived."""
        answers = [self._links.take(pushed) for pushed in self._pushed]
        staleness = tuple(answer for answer in answers if answer != REFUSED)
        losses = tuple(self._losses)
        return Result(self.strip.number, self._run_id, losses, self.moved, staleness, self._seconds)


class _Shared:
    """A worker's own copy of the block that a strip shares."""

    def __init__(self, fetched: Fetched) -> None:
        assert fetched.accumulators is not None
        self._before, self.version = fetched, fetched.version
        self.vectors, self._accumulators = np.array(fetched.vectors), np.array(fetched.accumulators)

    def step(self, gradient: Array, learning_rate: float) -> None:
        """Make a step of Adagrad."""
        adagrad(self.vectors, self._accumulators, gradient, 1.0, 0.0, learning_rate)

    def changes(self) -> tuple[Array, Array]:
        """Return how vectors and accumulators changed since they were fetched."""
        assert self._before.accumulators is not None
        return self.vectors - self._before.vectors, self._accumulators - self._before.accumulators


def payload_bytes(message: Any) -> int:
    """Return what a message takes on its way: its arrays, and what is said about them.

    >>> payload_bytes(np.zeros(1000)) - 8000 < 200
    True
    """
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return len(rest) + sum(buffer.raw().nbytes for buffer in buffers)
