"""A parameter server: stores blocks of rows and columns with the state of the optimizer, and applies what workers push.

A change is applied once, even if several workers send it. Ray runs a server as an actor, which handles one call at a
time, so that no lock is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ClusterError
from swivel.training.distributed.leases import Part
from swivel.training.objective import ADAGRAD, Optimizer, add_to_state
from swivel.training.objective_numba import update_parameters

Array = NDArray[np.float32]


class Push(NamedTuple):
    """A change of a block of parameters.

    With a learning rate, `values` is a gradient and the server takes the step. Without, `values` is a
    difference that the server adds, and `state` what the steps of the worker added to the state.
    """

    run_id: int  # call of `AsyncExecutor.run` that the change belongs to
    part: Part
    others: tuple[int, ...]  # blocks of the other side that it was trained with
    version: int  # of the vectors that it was computed from
    values: Array
    state: Array | None = None
    learning_rate: float | None = None
    optimizer: Optimizer = ADAGRAD


@dataclass(slots=True)
class ServedBlock:
    """A block of parameters, and the changes that it got in this call of `run`."""

    vectors: Array
    state: Any  # array, or None in a copy for a worker that requested only the vectors
    applied: set[int]  # blocks of the other side
    version: int = 0


REFUSED = -1  # result of a push that was applied before, or that has another run_id


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
    >>> push = Push(1, (0, 3), (5,), 0, np.ones((2, 4), np.float32), learning_rate=0.5)
    >>> server.push(push), server.push(push)
    (0, -1)
    """

    def __init__(self) -> None:
        self._blocks: dict[Part, ServedBlock] = {}
        self._run_id = 0

        # Compile the kernel before the first push, for read-only gradients: arrays that Ray delivers are read-only.
        values = np.ones((1, 1), np.float32)
        gradient = np.ones((1, 1), np.float32)
        gradient.flags.writeable = False
        update_parameters(values, values.copy(), gradient, 1.0, 0.0, 0.1, ADAGRAD)

    def hold(self, part: Part, vectors: Array, state: Array, applied: Iterable[int], *, run_id: int) -> None:
        """Store a copy of a block, with the changes that it already has in this run."""
        self._run_id = run_id
        copies = np.array(vectors, np.float32), np.array(state, np.float32)
        self._blocks[part] = ServedBlock(*copies, set(applied))

    def begin(self, run_id: int) -> None:
        """Accept only changes with this run_id from now on."""
        self._run_id = run_id
        for block in self._blocks.values():
            block.applied.clear()

    def ping(self) -> int:
        """Return the process id, which shows that the server responds."""
        return os.getpid()

    def fetch(self, part: Part, with_state: bool) -> ServedBlock:
        """Return the vectors of a block, and the state of its optimizer on request, but not its changes."""
        block = self.read(part)
        return replace(block, state=block.state if with_state else None, applied=set())

    def push(self, push: Push) -> int:
        """Apply a change and return its staleness, or REFUSED.

        The staleness is the number of other changes since the fetch.
        """
        block = self.read(push.part)
        # A push of an earlier call of `run` is too late: what was lacking then was repeated. A change of several blocks
        # is applied as a whole, so that one of them which is known shows that all of them are.
        if push.run_id != self._run_id or not block.applied.isdisjoint(push.others):
            return REFUSED

        if push.learning_rate is not None:
            arrays = block.vectors, block.state, push.values
            update_parameters(*arrays, 1.0, 0.0, push.learning_rate, push.optimizer)
        else:
            block.vectors += push.values
            difference = 0 if push.state is None else push.state
            add_to_state(block.state, difference, len(push.others), push.optimizer)

        # `version` counts steps, so that a push of several steps makes others that were fetched before it staler.
        staleness = block.version - push.version
        block.version += len(push.others)
        block.applied.update(push.others)
        return staleness

    def read(self, part: Part) -> ServedBlock:
        """Return a block, not a copy; Ray copies what it sends to another process."""
        if part not in self._blocks:
            side = ("row", "column")[part[0]]
            raise ClusterError(f"this server does not have {side} block {part[1]}")
        return self._blocks[part]
