"""Leases: which blocks of an epoch are waiting, leased to a worker, or done.

This module is pure: it has no clock, no arrays and no Ray. The caller passes the time and reports what happened to
workers and servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice

from swivel.training.backends import Step
from swivel.training.schedule import Block

MAX_CANDIDATES = 64  # waiting blocks that are searched for one without conflict

Part = tuple[int, int]  # a block of parameters: rows (0) or columns (1), and the number of the block


def find_parts(block: Block) -> tuple[Part, Part]:
    """Return the parts of the parameters that a block changes."""
    row, column = block
    return (0, row), (1, column)


class Leases:
    """The blocks of some rounds, and the workers that train them."""

    def __init__(self, rounds: Sequence[Sequence[Step]]) -> None:
        self._steps = {step.block: step for steps in rounds for step in steps}
        self._waiting = dict.fromkeys(self._steps)  # an ordered set of blocks that were never leased
        self._again: dict[Block, None] = {}  # an ordered set of blocks that are leased once more, before all others
        self._leased: dict[Block, tuple[int, float]] = {}  # worker and deadline
        self._busy: Counter[Part] = Counter()  # number of leases that use a part
        self._open: set[Block] = set()  # started and not done: they are finished even before a pause
        self._done: set[Block] = set()
        self._reported: set[Block] = set()  # `finish` has returned True
        self.is_pausing = False

    @property
    def is_over(self) -> bool:
        """Whether all blocks are done or, before a pause, all that were started."""
        return not self._open and (self.is_pausing or len(self._done) == len(self._steps))

    def take(self, worker: int, deadline: float) -> Step | None:
        """Lease a block to a worker and return its step, or None if no block is waiting.

        Before a pause, only blocks that were started are leased again.
        """
        block = self._choose()
        if block is None:
            return None

        self._waiting.pop(block, None)
        self._again.pop(block, None)
        self._open.add(block)
        self._leased[block] = worker, deadline
        self._busy.update(find_parts(block))
        return self._steps[block]

    def _choose(self) -> Block | None:
        """Return the first waiting block whose parameters no worker uses, or else the first one."""
        first = None
        candidates = chain(self._again, () if self.is_pausing else self._waiting)
        for block in islice(candidates, MAX_CANDIDATES):
            if not any(self._busy[part] for part in find_parts(block)):
                return block
            first = first or block
        return first

    def finish(self, block: Block) -> bool:
        """Mark a leased block as done; return whether that is the first time."""
        self._release(block)
        self._open.discard(block)
        self._done.add(block)

        # A block that was repeated for lost servers counts once.
        is_first = block not in self._reported
        self._reported.add(block)
        return is_first

    def fail(self, block: Block) -> None:
        """Return a block that a worker did not finish."""
        self._release(block)
        self._again[block] = None

    def _release(self, block: Block) -> None:
        del self._leased[block]
        self._busy.subtract(find_parts(block))

    def lose(self, worker: int) -> None:
        """Return the blocks of a lost worker to the waiting ones."""
        for block in [block for block, (owner, _) in self._leased.items() if owner == worker]:
            self.fail(block)

    def find_late(self, now: float) -> set[int]:
        """Return the workers with a lease that is past its deadline."""
        return {worker for worker, deadline in self._leased.values() if deadline < now}

    def repeat(self) -> None:
        """Return all blocks that were leased: the servers have lost their gradients."""
        self._open |= self._done
        self._again = {block: None for block in self._steps if block in self._open}
        self._done.clear()
        self._leased.clear()
        self._busy.clear()
