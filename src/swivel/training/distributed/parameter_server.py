"""A parameter server: blocks of rows and columns with their Adagrad state, changed as workers push.

Receives vectors and gradients, hands out vectors; every change is applied once, whoever sends it how often. It does
not know where it runs: Ray makes an actor of it, which does one thing at a time, so that nothing here is locked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ClusterError
from swivel.training.backends.cpu_kernels import adagrad
from swivel.training.distributed.leases import Part

Array = NDArray[np.float32]


class Fetched(NamedTuple):
    """A block of parameters as it was at a version."""

    version: int
    vectors: Array
    accumulators: Array | None


class Push(NamedTuple):
    """A change of a block of parameters.

    `others` are the blocks of the other side that it was trained with; `run_id` is the call it belongs to; `version` is
    that of the vectors it was computed from. A gradient has a rate, and the server makes the step; a difference has
    none, and is added, that of the accumulators too.
    """

    run_id: int
    part: Part
    others: tuple[int, ...]
    version: int
    values: Array
    accumulators: Array | None = None
    learning_rate: float | None = None


class ServedState(NamedTuple):
    """A block with all that a server knows of it."""

    vectors: Array
    accumulators: Array
    applied: frozenset[int]


@dataclass(slots=True)
class _ServedBlock:
    vectors: Array
    accumulators: Array
    applied: set[int] = field(default_factory=set)  # blocks of the other side, in this run_id
    version: int = 0


REFUSED = -1  # the answer to a push that was applied before, or is of another run_id


def server_of(part: Part, servers: int) -> int:
    """Return which server has a part of the parameters.

    >>> [server_of((side, block), 2) for side in (0, 1) for block in (0, 1)]
    [0, 1, 1, 0]
    """
    return (part[0] + part[1]) % servers


class Server:
    """Some blocks of the parameters.

    >>> server = Server()
    >>> server.hold((0, 3), np.ones((2, 4), np.float32), np.ones((2, 4), np.float32), (), run_id=1)
    >>> push = Push(1, (0, 3), (5,), 0, np.ones((2, 4), np.float32), learning_rate=0.5)
    >>> server.push(push), server.push(push)
    (0, -1)
    """

    def __init__(self) -> None:
        self._blocks: dict[Part, _ServedBlock] = {}
        self._run_id = 0
        self._warm()

    def _warm(self) -> None:
        """Load the kernel now, for gradients that may not be written to: those that come through Ray."""
        values = np.ones((1, 1), np.float32)
        gradient = np.ones((1, 1), np.float32)
        gradient.flags.writeable = False
        adagrad(values, values.copy(), gradient, 1.0, 0.0, 0.1)

    def hold(self, part: Part, vectors: Array, accumulators: Array, applied: Iterable[int], *, run_id: int) -> None:
        """Take a block on, with what was applied to it in the run_id."""
        self._run_id = run_id
        self._blocks[part] = _ServedBlock(
            np.array(vectors, np.float32), np.array(accumulators, np.float32), set(applied)
        )

    def begin(self, run_id: int) -> None:
        """Take changes of this run_id from now on, and of no other."""
        self._run_id = run_id
        for block in self._blocks.values():
            block.applied.clear()

    def ping(self) -> int:
        """Answer, with the number of the process."""
        return os.getpid()

    def fetch(self, part: Part, with_accumulators: bool) -> Fetched:
        """Return a block's vectors, and its accumulators where they are asked for."""
        block = self._find(part)
        return Fetched(block.version, block.vectors, block.accumulators if with_accumulators else None)

    def push(self, push: Push) -> int:
        """Apply a change; return how many others came since it was fetched, or REFUSED."""
        block = self._find(push.part)
        if push.run_id != self._run_id or not block.applied.isdisjoint(push.others):
            return REFUSED
        if push.learning_rate is not None:
            adagrad(block.vectors, block.accumulators, push.values, 1.0, 0.0, push.learning_rate)
        else:
            block.vectors += push.values
            block.accumulators += 0 if push.accumulators is None else push.accumulators
        staleness = block.version - push.version
        block.version += len(push.others)
        block.applied.update(push.others)
        return staleness

    def read(self, part: Part) -> ServedState:
        """Return a block and what was applied to it in this run_id."""
        block = self._find(part)
        return ServedState(block.vectors, block.accumulators, frozenset(block.applied))

    def _find(self, part: Part) -> _ServedBlock:
        if part not in self._blocks:
            side = ("row", "column")[part[0]]
            raise ClusterError(f"this server does not have {side} block {part[1]}")
        return self._blocks[part]
