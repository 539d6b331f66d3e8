"""Leases: which strips of an epoch are waiting, leased to a worker, or done.

This module is pure: it has no clock, no arrays and no Ray. The caller passes the time and reports what happened to
workers and servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from swivel.training.backends import Step
from swivel.training.schedule import Block

# With m blocks per strip, 2 + 4/m blocks are moved per step: longer strips save little, and make the end of an epoch
# longer.
MAX_BLOCKS_PER_STRIP = 8
STRIPS_PER_WORKER = 2  # Strips get shorter so that each worker still has this many of the same length to come.
MAX_CANDIDATES = 64  # waiting strips that are searched for one without conflict

Part = tuple[int, int]  # a block of parameters: rows (0) or columns (1), and the number of the block


@dataclass(frozen=True, slots=True)
class Strip:
    """Blocks that one worker trains together: they share a row block or a column block, which is moved once."""

    number: int  # among the strips of one call of `AsyncExecutor.run`
    steps: tuple[Step, ...]
    shared: int | None = None  # the side that the blocks share; None for a single block

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that are trained."""
        return tuple(step.block for step in self.steps)

    def parts(self) -> Iterator[tuple[Part, int]]:
        """Yield each part that a block changes, with the number of the block on the other side."""
        for row, column in self.blocks:
            yield (0, row), column
            yield (1, column), row


def compose_strips(rounds: Sequence[Sequence[Step]], workers: int) -> list[Strip]:
    """Return the rounds of an epoch as strips, long ones first, so that the wait for the last strip is short.

    Rounds are diagonals: of the blocks in m rounds, m share a row block, or a column block if there are fewer of them.

    >>> rounds = [[Step((row, turn), 0.1, ()) for row in (0, 1)] for turn in range(4)]
    >>> [strip.blocks for strip in compose_strips(rounds, workers=1) if strip.shared is None][:2]
    [((0, 2),), ((1, 2),)]
    """
    strips: list[Strip] = []
    blocks_left = sum(map(len, rounds))
    first = 0

    while first < len(rounds):
        length = blocks_left // (workers * STRIPS_PER_WORKER + len(rounds[first]))
        group = rounds[first : first + min(MAX_BLOCKS_PER_STRIP, max(1, length))]
        steps = [step for round_ in group for step in round_]

        # The strips of this group go along the side with fewer blocks.
        side = min((0, 1), key=lambda side: len({step.block[side] for step in steps}))
        members: dict[object, list[Step]] = {}
        for step in steps:
            members.setdefault(step.block if len(group) == 1 else step.block[side], []).append(step)
        for each in members.values():
            strips.append(Strip(len(strips), tuple(each), side if len(each) > 1 else None))

        blocks_left -= len(steps)
        first += len(group)
    return strips


@dataclass(slots=True)
class _State:
    """What happened to a strip so far."""

    strip: Strip
    others: dict[Part, set[int]]  # for each part of the strip, the blocks of the other side it is trained with
    is_started: bool = False
    is_done: bool = False
    is_reported: bool = False  # `finish` has returned its blocks
    deadlines: dict[int, float] = field(default_factory=dict)  # of each worker that has a lease


class Leases:
    """The strips of an epoch and the workers that train them."""

    def __init__(self, strips: Sequence[Strip]) -> None:
        self._states: dict[int, _State] = {}
        self._users: dict[Part, list[_State]] = {}  # strips that use a part
        for strip in strips:
            others: dict[Part, set[int]] = {}
            for part, other in strip.parts():
                others.setdefault(part, set()).add(other)
            state = _State(strip, others)
            self._states[strip.number] = state
            for part in others:
                self._users.setdefault(part, []).append(state)

        self._waiting = dict.fromkeys(self._states)  # an ordered set of numbers
        self._leased: set[int] = set()
        self._left = len(self._states)  # strips that are not done
        self._open = 0  # strips that were started and are not done: they are finished even before a pause
        self._busy: Counter[Part] = Counter()  # number of leases that use a part
        self.is_pausing = False

    @property
    def is_over(self) -> bool:
        """Whether all strips are done or, before a pause, all that were started."""
        return self._open == 0 if self.is_pausing else self._left == 0

    def take(self, worker: int, deadline: float) -> Strip | None:
        """Lease a strip to a worker and return it, or None if no strip is waiting.

        A strip whose parameters no other worker uses comes first. Before a pause, only strips that were started are
        leased again.
        """
        number = self._choose()
        if number is None:
            return None

        state = self._states[number]
        del self._waiting[number]
        # A strip that was expired or undone is open already, and counts once.
        self._open += not state.is_started
        state.is_started = True
        state.deadlines[worker] = deadline
        self._leased.add(number)
        self._busy.update(state.others.keys())
        return state.strip

    def _choose(self) -> int | None:
        """Return the waiting strip with the least conflict, among the first candidates."""
        best = None
        least_conflict = 3
        for position, number in enumerate(self._waiting):
            if position >= MAX_CANDIDATES and best is not None:
                break
            state = self._states[number]
            if self.is_pausing and not state.is_started:
                continue

            conflict = self._conflict(state)
            if conflict < least_conflict:
                best = number
                least_conflict = conflict
            if least_conflict == 0:
                break
        return best

    def _conflict(self, state: _State) -> int:
        """Return 0 if no worker uses a part of the strip, 1 if none uses the shared part, else 2."""
        busy_sides = {part[0] for part in state.others if self._busy[part]}
        if not busy_sides:
            return 0
        shared = state.strip.shared
        return 2 if shared is None or shared in busy_sides else 1

    def finish(self, worker: int, number: int) -> tuple[Block, ...]:
        """Mark a strip as done. Return its blocks the first time, and nothing if the strip is repeated."""
        state = self._states[number]
        self._release(worker, state)
        # The lease may have expired, and the strip waits to be repeated: this result makes that unnecessary.
        self._waiting.pop(number, None)
        if not state.is_done:
            state.is_done = True
            self._left -= 1
            self._open -= 1

        # A second worker may have finished the strip, too. The servers refused its changes, and its loss counts once.
        if state.is_reported:
            return ()
        state.is_reported = True
        return state.strip.blocks

    def fail(self, worker: int, number: int) -> None:
        """Return a strip that a worker did not finish."""
        state = self._states[number]
        self._release(worker, state)
        self._wait_again(state)

    def _release(self, worker: int, state: _State) -> None:
        # Without a deadline the worker has no lease anymore, and `_busy` was lowered when it ended.
        if state.deadlines.pop(worker, None) is not None:
            self._busy.subtract(state.others.keys())
        if not state.deadlines:
            self._leased.discard(state.strip.number)

    def _wait_again(self, state: _State) -> None:
        """Put a strip in front of the waiting ones, unless it is done or another worker has it."""
        number = state.strip.number
        if not state.is_done and not state.deadlines and number not in self._waiting:
            self._waiting = {number: None, **self._waiting}

    def lose(self, worker: int) -> None:
        """Return the strips of a lost worker to the waiting ones."""
        for number in sorted(self._leased):
            if worker in self._states[number].deadlines:
                self.fail(worker, number)

    def expire(self, now: float) -> list[int]:
        """End the leases that are past their deadline and return their workers. Their results still count."""
        late = []
        for number in sorted(self._leased):
            state = self._states[number]
            for worker in [worker for worker, deadline in state.deadlines.items() if deadline < now]:
                late.append(worker)
                self.fail(worker, number)
        return late

    def undo(self, part: Part, applied: Collection[int]) -> int:
        """Repeat the strips whose changes a part does not have; return how many these are.

        `applied` are the blocks of the other side whose changes the server of the part has applied.
        """
        repeated = 0
        for state in self._users.get(part, ()):
            # A part of a strip's changes is enough to repeat it: the servers refuse those that they have.
            if state.is_done and not state.others[part].issubset(applied):
                state.is_done = False
                self._left += 1
                self._open += 1
                self._wait_again(state)
                repeated += 1
        return repeated
