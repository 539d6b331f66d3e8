"""Pure: what of an epoch is to do, who has it, until when, and what is done.

Receives the rounds of an epoch, hands out strips of them to workers and takes them back when a worker is lost, late or
has failed. It knows no Ray, no clock and no array: who calls it says what time it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from swivel.training.executor import Round
from swivel.training.schedule import Block

MOST_BLOCKS = 8  # of a strip: m make 2 + 4/m blocks travel a step, so more save little, and the last strips take longer
STRIPS_EACH = 2  # of its length that every worker should still have before it when a strip begins
LOOKED_AT = 64  # strips among which one without conflict is sought

Part = tuple[int, int]  # of the parameters: rows (0) or columns (1), and which block of them


@dataclass(frozen=True, slots=True)
class Strip:
    """Blocks of an epoch that one worker takes together: they share a row block or a column block, which travels once."""

    number: int  # among the strips of a call
    turn: int  # the epoch
    blocks: tuple[Block, ...]
    rates: tuple[float, ...]
    shared: int | None = None  # the side that they share; None: there is but one block

    def parts(self) -> Iterator[tuple[Part, int]]:
        """Yield what is changed: a part of the parameters and the block of the other side it was trained with."""
        for row, column in self.blocks:
            yield (0, row), column
            yield (1, column), row


def compose_strips(rounds: Sequence[Round], workers: int) -> list[Strip]:
    """Return the rounds of an epoch as strips, long ones first, so that nobody waits long for the last.

    Rounds are diagonals: of the blocks of m rounds, m share a row block (or a column block, where there are fewer).

    >>> strips = compose_strips([Round(0, [(0, turn), (1, turn)], 0.1) for turn in range(4)], workers=1)
    >>> [strip.blocks for strip in strips if strip.shared is None][:2]
    [((0, 0),), ((1, 0),)]
    """
    strips: list[Strip] = []
    left, first = sum(len(round_.blocks) for round_ in rounds), 0
    while first < len(rounds):
        length = left // (workers * STRIPS_EACH + len(rounds[first].blocks))
        together = rounds[first : first + min(MOST_BLOCKS, max(1, length))]
        strips += _compose_group(together, len(strips))
        left -= sum(len(round_.blocks) for round_ in together)
        first += len(together)
    return strips


def _compose_group(rounds: Sequence[Round], first: int) -> list[Strip]:
    entries = [(block, round_.learning_rate) for round_ in rounds for block in round_.blocks]
    side = min((0, 1), key=lambda side: len({block[side] for block, _ in entries}))
    found: dict[object, list[tuple[Block, float]]] = {}
    for block, learning_rate in entries:
        found.setdefault(block if len(rounds) == 1 else block[side], []).append((block, learning_rate))
    return [
        Strip(
            first + number,
            rounds[0].number,
            tuple(block for block, _ in members),
            tuple(learning_rate for _, learning_rate in members),
            side if len(members) > 1 else None,
        )
        for number, members in enumerate(found.values())
    ]


@dataclass(slots=True)
class _State:
    strip: Strip
    attempts: int = 0  # leases of which something may have been applied
    is_done: bool = False
    was_told: bool = False
    deadlines: dict[int, float] = field(default_factory=dict)  # of each worker that has it


class Leases:
    """Who has which strip of an epoch."""

    def __init__(self, strips: Sequence[Strip]) -> None:
        self._states = {strip.number: _State(strip) for strip in strips}
        self._waiting = dict.fromkeys(self._states)  # an ordered set of numbers
        self._leased: set[int] = set()
        self._left = len(self._states)
        self._open = 0  # begun and not done: finished also where a pause is wished for
        self._busy: dict[Part, int] = {}  # parts that somebody has, and how often
        self._users: dict[Part, list[int]] = {}
        for strip in strips:
            for part in _parts_of(strip):
                self._users.setdefault(part, []).append(strip.number)
        self.is_pausing = False

    @property
    def is_over(self) -> bool:
        """Whether all is done; where a pause is wished for, whether all that was begun is."""
        return self._open == 0 if self.is_pausing else self._left == 0

    @property
    def in_flight(self) -> int:
        """How many leases run."""
        return sum(len(self._states[number].deadlines) for number in self._leased)

    def take(self, worker: int, deadline: float) -> Strip | None:
        """Lease a strip to a worker: one whose parameters nobody else has, where there is one; None: there is none.

        Where a pause is wished for, only what was begun is leased (again).
        """
        number = self._choose()
        if number is None:
            return None
        state = self._states[number]
        del self._waiting[number]
        self._open += state.attempts == 0
        state.attempts += 1
        state.deadlines[worker] = deadline
        self._leased.add(number)
        self._mark(state.strip, 1)
        return state.strip

    def _choose(self) -> int | None:
        best, least = None, 3
        for looked, number in enumerate(self._waiting):
            state = self._states[number]
            if looked >= LOOKED_AT and best is not None:
                break
            if self.is_pausing and state.attempts == 0:
                continue
            conflict = self._conflict(state.strip)
            if conflict < least:
                best, least = number, conflict
            if least == 0:
                break
        return best

    def _conflict(self, strip: Strip) -> int:
        """Return 0 where nobody has anything of a strip, 1 where not what it shares, else 2."""
        busy = [side for side, block in _parts_of(strip) if self._busy.get((side, block))]
        return 0 if not busy else 2 if strip.shared is None or strip.shared in busy else 1

    def _mark(self, strip: Strip, change: int) -> None:
        for part in _parts_of(strip):
            self._busy[part] = self._busy.get(part, 0) + change

    def finish(self, worker: int, number: int) -> tuple[Block, ...]:
        """Hear that a strip is done; return the blocks that are news, each once however often a strip is repeated."""
        state = self._states[number]
        self._release(worker, state)
        self._waiting.pop(number, None)
        if not state.is_done:
            state.is_done = True
            self._left -= 1
            self._open -= 1
        is_news, state.was_told = not state.was_told, True
        return state.strip.blocks if is_news else ()

    def fail(self, worker: int, number: int, *, untouched: bool = False) -> None:
        """Hear that a worker did not finish a strip; `untouched`: nor did it change anything."""
        state = self._states[number]
        self._release(worker, state)
        if state.is_done:
            return
        if untouched:
            state.attempts -= 1
            self._open -= state.attempts == 0
        self._wait_again(number, state)

    def _release(self, worker: int, state: _State) -> None:
        if state.deadlines.pop(worker, None) is not None:
            self._mark(state.strip, -1)
        if not state.deadlines:
            self._leased.discard(state.strip.number)

    def _wait_again(self, number: int, state: _State) -> None:
        if not state.deadlines and number not in self._waiting:
            self._waiting = {number: None, **self._waiting}

    def lose(self, worker: int) -> int:
        """Hear that a worker is gone; return how many strips it had."""
        held = [number for number in sorted(self._leased) if worker in self._states[number].deadlines]
        for number in held:
            self.fail(worker, number)
        return len(held)

    def expire(self, now: float) -> list[int]:
        """Lease what is overdue to others; return the workers that are late. Their answers still count."""
        late = []
        for number in sorted(self._leased):
            state = self._states[number]
            for worker in [worker for worker, deadline in state.deadlines.items() if deadline < now]:
                late.append(worker)
                self._release(worker, state)
                if not state.is_done:
                    self._wait_again(number, state)
        return late

    def undo(self, part: Part, applied: Collection[int]) -> int:
        """Hear which blocks' changes a part of the parameters really has; return how many strips are to do again."""
        again = 0
        for number in self._users.get(part, ()):
            state = self._states[number]
            if state.is_done and any(mine == part and other not in applied for mine, other in state.strip.parts()):
                state.is_done = False
                self._left += 1
                self._open += 1
                self._wait_again(number, state)
                again += 1
        return again

    def expected(self, part: Part) -> set[int]:
        """Return the blocks of the other side whose changes a part must have by now."""
        done = (self._states[number] for number in self._users.get(part, ()))
        return {other for state in done if state.is_done for mine, other in state.strip.parts() if mine == part}


def _parts_of(strip: Strip) -> set[Part]:
    return {part for part, _ in strip.parts()}
