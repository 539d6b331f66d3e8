"""Parameter servers: they store blocks of rows and columns with the state of the optimizer, and apply gradients.

`Server` is a Ray actor. It applies a gradient once, even if several workers push it. Ray lets an actor handle one call
at a time, so that no lock is needed.

`ServerPool` starts, reads and replaces the servers of a run, in the process that runs the loop. It keeps a copy of all
parameters as of the last read, and which gradients are in the copy of each block. A server that replaces a lost one
starts from this copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ClusterError, first_line
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import await_reply, kill_actor
from swivel.training.distributed.leases import Part
from swivel.training.executor import Sides, TrainingJob
from swivel.training.objective import ADAGRAD, Optimizer, choose_optimizer
from swivel.training.objective_numba import update_parameters

Array = NDArray[np.float32]
MAX_TRANSFERS = 8  # blocks that are sent to or read from the servers at a time
MAX_RESTORES = 5  # of one server in a row, before the run fails


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
    >>> server.hold((0, 3), np.ones((2, 4), np.float32), np.ones((2, 4), np.float32), (), run_id=1)
    >>> gradient = np.ones((2, 4), np.float32)
    >>> [server.push((0, 3), 5, 1, gradient, learning_rate=0.5) for _ in range(2)]
    [True, False]
    """

    def __init__(self, optimizer: Optimizer = ADAGRAD) -> None:
        self._blocks: dict[Part, ServedBlock] = {}
        self._optimizer = optimizer

        # Compile the kernel before the first push, for read-only gradients: arrays that Ray delivers are read-only.
        values = np.ones((1, 1), np.float32)
        gradient = np.ones((1, 1), np.float32)
        gradient.flags.writeable = False
        update_parameters(values, values.copy(), gradient, 1.0, 0.0, 0.1, optimizer)

    def hold(self, part: Part, vectors: Array, state: Array, applied: Iterable[int], run_id: int) -> None:
        """Store a copy of a block, with the gradients that it already has in this run."""
        copies = np.array(vectors, np.float32), np.array(state, np.float32)
        self._blocks[part] = ServedBlock(*copies, set(applied), run_id)

    def ping(self) -> int:
        """Return the process id, which shows that the server responds."""
        return os.getpid()

    def fetch(self, part: Part) -> Array:
        """Return the vectors of a block."""
        return self.read(part).vectors

    def push(self, part: Part, other: int, run_id: int, gradient: Array, learning_rate: float) -> bool:
        """Take a step of the optimizer, with the gradient of the block that has `other` on the other side.

        Return False if the gradient was applied before, or belongs to an earlier call of `run`.
        """
        block = self.read(part)
        if run_id > block.run_id:
            block.run_id = run_id
            block.applied.clear()
        # A push of an earlier call of `run` is too late: what was lacking then was repeated.
        if run_id < block.run_id or other in block.applied:
            return False

        update_parameters(block.vectors, block.state, gradient, 1.0, 0.0, learning_rate, self._optimizer)
        block.applied.add(other)
        return True

    def read(self, part: Part) -> ServedBlock:
        """Return a block, not a copy; Ray copies what it sends to another process."""
        if part not in self._blocks:
            side = ("row", "column")[part[0]]
            raise ClusterError(f"this server does not have {side} block {part[1]}")
        return self._blocks[part]


class ServerPool:
    """The servers of a run."""

    def __init__(self, ray: Any, config: ClusterConfig, job: TrainingJob) -> None:
        self._ray = ray
        self._config = config
        self._job = job
        self.handles = [self._create() for _ in range(min(config.servers, sum(job.blocks)))]  # of Ray, by number
        self.restored = 0  # number of servers that were replaced

        # The copy of the parameters, which `save` overwrites, and the gradients in the copy of each part.
        self.sides: Sides
        self.applied: dict[Part, frozenset[int]] = {}
        self.run_id = 0  # call of `run`; servers refuse gradients of earlier ones

    def _create(self) -> Any:
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(Server).options(**options).remote(choose_optimizer(self._job.config))

    def hold(self, sides: Sides) -> None:
        """Copy the parameters and send them to the servers."""
        rows, columns = (side.map(lambda array: np.array(array, np.float32)) for side in sides)
        self.sides = rows, columns
        self.begin_run()
        self._for_each_server(self._send)

    def begin_run(self) -> None:
        """Count the gradients of the next call of `run` from none."""
        self.run_id += 1
        for side, blocks in enumerate(self._job.blocks):
            self.applied |= {(side, block): frozenset() for block in range(blocks)}

    def _for_each_server(self, call: Callable[[int], Any]) -> list[int]:
        """Call a function for every server; replace the servers that are lost and return their numbers."""
        lost = []
        for number in range(len(self.handles)):
            try:
                call(number)
            except self._ray.exceptions.RayError as error:
                self._restore(number, error)
                lost.append(number)
        return lost

    def _get(self, reference: Any, seconds: float | None = None) -> Any:
        return await_reply(self._ray, reference, seconds=seconds or self._config.lease_seconds)

    def _parts(self, number: int) -> list[Part]:
        return [part for part in self.applied if server_of(part, len(self.handles)) == number]

    def _send(self, number: int) -> None:
        """Send a server the copies of its blocks."""
        handle = self.handles[number]
        self._get(handle.ping.remote(), self._config.patience_seconds)  # Ray may have to start the server first.

        def send(part: Part) -> Any:
            side = self.sides[part[0]]
            span = self._job.span(*part)
            return handle.hold.remote(part, side.vectors[span], side.state[span], self.applied[part], self.run_id)

        for _ in self._transfer(number, send):
            pass

    def _read(self, number: int) -> None:
        """Read the blocks of a server into the copy."""
        for part, block in self._transfer(number, self.handles[number].read.remote):
            side = self.sides[part[0]]
            span = self._job.span(*part)
            side.vectors[span] = block.vectors
            side.state[span] = block.state
            self.applied[part] = frozenset(block.applied if block.run_id == self.run_id else ())

    def _transfer(self, number: int, start: Callable[[Part], Any]) -> Iterator[tuple[Part, Any]]:
        """Start a remote call for each part of a server, a few at a time, and yield each part with its result."""
        parts = self._parts(number)
        for first in range(0, len(parts), MAX_TRANSFERS):
            batch = parts[first : first + MAX_TRANSFERS]
            references = [start(part) for part in batch]
            yield from zip(batch, map(self._get, references), strict=True)

    def _restore(self, number: int, error: BaseException) -> None:
        """Replace a lost server by a new one with the copies of its blocks."""
        for _ in range(MAX_RESTORES):
            self.restored += 1
            kill_actor(self._ray, self.handles[number])
            self.handles[number] = self._create()
            try:
                self._send(number)
                return
            except self._ray.exceptions.RayError as again:
                error = again

        raise ClusterError(
            f"server {number} was lost {MAX_RESTORES + 1} times in a row ({first_line(error)}); "
            "run the same command again to resume from the last checkpoint"
        ) from error

    def restore_lost(self) -> dict[Part, frozenset[int]]:
        """Replace the servers that do not respond; return the gradients that the parts of the new servers have."""
        lost = self._for_each_server(lambda number: self._get(self.handles[number].ping.remote()))
        return {part: self.applied[part] for number in lost for part in self._parts(number)}

    def save(self) -> None:
        """Read all parameters into the copy. A server that is lost is replaced, and the copy of its blocks stays."""
        self._for_each_server(self._read)

    def close(self) -> None:
        """Stop the servers."""
        for handle in self.handles:
            kill_actor(self._ray, handle)
