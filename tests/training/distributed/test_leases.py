"""Leases: every block is trained once per epoch, whatever happens to workers and servers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from swivel.training.backends import Step
from swivel.training.distributed.leases import Leases, Part, find_parts
from swivel.training.schedule import Block, rounds_without_conflict


def make_rounds(rows: int, columns: int) -> list[list[Step]]:
    order = rounds_without_conflict(rows, columns, (1,))
    return [[Step(block, 0.1 / (1 + number), (3, *block)) for block in blocks] for number, blocks in enumerate(order)]


def make_leases(*blocks: Block) -> Leases:
    return Leases([[Step(block, 0.1, ()) for block in blocks]])


def take(leases: Leases, worker: int = 0, deadline: float = 1.0) -> Block | None:
    step = leases.take(worker, deadline)
    return None if step is None else step.block


def test_one_worker_gets_every_step_once_in_the_order_of_the_rounds() -> None:
    rounds = make_rounds(3, 4)
    leases = Leases(rounds)
    for step in [step for steps in rounds for step in steps]:
        assert leases.take(0, 1.0) == step
        assert leases.finish(step.block)
    assert leases.take(0, 1.0) is None
    assert leases.is_over


def test_blocks_without_conflict_come_first() -> None:
    leases = make_leases((0, 0), (0, 1), (1, 0), (1, 1))
    assert [take(leases, worker) for worker in (0, 1)] == [(0, 0), (1, 1)]
    assert take(leases, 2) == (0, 1)  # A conflict is better than an idle worker.


def test_blocks_of_late_and_of_lost_workers_are_leased_again() -> None:
    leases = make_leases((0, 0), (1, 1))
    assert take(leases, 0, deadline=10.0) == (0, 0)
    assert take(leases, 1, deadline=20.0) == (1, 1)
    assert leases.find_late(9.0) == set()
    assert leases.find_late(11.0) == {0}

    leases.lose(0)
    assert take(leases, 2, deadline=30.0) == (0, 0)
    assert [(leases.finish(block), leases.is_over) for block in ((0, 0), (1, 1))] == [(True, False), (True, True)]
    assert leases.find_late(100.0) == set()


def test_blocks_that_are_repeated_for_lost_servers_are_reported_once() -> None:
    leases = make_leases((0, 0), (0, 1), (1, 0))
    assert take(leases) == (0, 0)
    assert leases.finish((0, 0))
    assert take(leases, 1) is not None

    leases.repeat()
    assert not leases.is_over
    assert take(leases) == (0, 0)
    assert not leases.finish((0, 0))
    others = {take(leases), take(leases)}
    assert others == {(0, 1), (1, 0)}
    assert all(leases.finish(block) for block in others if block is not None)
    assert leases.is_over


def test_a_pause_finishes_the_blocks_that_were_started_and_no_others() -> None:
    leases = Leases(make_rounds(3, 3))
    first, second = take(leases, 0), take(leases, 1)
    assert first is not None and second is not None

    leases.is_pausing = True
    assert not leases.is_over
    assert take(leases, 2) is None

    leases.fail(first)
    assert take(leases, 2) == first
    assert take(leases, 2) is None

    leases.finish(first)
    assert not leases.is_over
    leases.finish(second)
    assert leases.is_over


def test_no_rounds_have_no_blocks() -> None:
    assert Leases([]).is_over
    assert take(Leases([])) is None


class Cluster:
    """Simulated servers and workers that die at random, and follow the rules of the real ones."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.applied: dict[Part, set[int]] = {}
        self.visits: Counter[tuple[Part, int]] = Counter()
        self.held: dict[int, Block] = {}
        self.reported: list[Block] = []
        self.now = 0.0

    def push(self, block: Block, upto: int) -> None:
        for part, other in list(zip(find_parts(block), reversed(block), strict=True))[:upto]:
            if other not in self.applied.setdefault(part, set()):
                self.applied[part].add(other)
                self.visits[part, other] += 1

    def act(self, action: str, worker: int, amount: int) -> None:
        block = self.held.get(worker)

        if block is None and action != "server":
            block = take(self.leases, worker, self.now + 5)
            if block is not None:
                self.held[worker] = block
        elif action == "finish" and block is not None:
            self.push(block, 2)
            if self.leases.finish(self.held.pop(worker)):
                self.reported.append(block)
        elif action == "die" and block is not None:
            self.push(block, amount)
            self.leases.lose(worker)
            del self.held[worker]
        elif action == "late":
            self.now += 10
            for late in self.leases.find_late(self.now):
                self.leases.lose(late)
                self.push(self.held.pop(late), amount)  # It may have been killed after its gradients were sent.
        elif action == "server":
            self.leases.repeat()  # The gradients are lost with the servers, and results that are due are void.
            self.applied.clear()
            self.visits.clear()
            self.held.clear()


@settings(max_examples=200)
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(
        st.tuples(st.sampled_from(["finish", "finish", "die", "late", "server"]), st.integers(0, 2), st.integers(0, 9)),
        max_size=60,
    ),
    st.booleans(),
)
def test_every_block_is_applied_once_to_both_sides_whatever_fails(
    rows: int, columns: int, actions: list[tuple[str, int, int]], pauses: bool
) -> None:
    leases = Leases(make_rounds(rows, columns))
    cluster = Cluster(leases)
    for number, action in enumerate(actions):
        leases.is_pausing = leases.is_pausing or (pauses and number == 20)
        cluster.act(*action)
    for _ in range(3 * rows * columns + 9):
        if leases.is_over and not cluster.held:
            break
        cluster.act("finish", 0, 0)
        for worker in (1, 2):
            if worker in cluster.held:
                cluster.act("finish", worker, 0)
    assert leases.is_over
    assert len(set(cluster.reported)) == len(cluster.reported)

    done = {(row, column) for row, column in cluster.reported}
    for row, column in done:
        assert cluster.visits[(0, row), column] == cluster.visits[(1, column), row] == 1
    assert sum(cluster.visits.values()) == 2 * len(done)

    if not leases.is_pausing:
        assert len(done) == rows * columns
