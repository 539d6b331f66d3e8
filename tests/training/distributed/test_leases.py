"""Leases: every block is trained once per epoch, whatever happens to workers and servers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strips import make_strip
from swivel.training.backends import Step
from swivel.training.distributed.leases import Leases, Part, Strip, compose_strips
from swivel.training.schedule import rounds_without_conflict


def make_rounds(rows: int, columns: int) -> list[list[Step]]:
    order = rounds_without_conflict(rows, columns, (1,))
    return [[Step(block, 0.1 / (1 + number), (3, *block)) for block in blocks] for number, blocks in enumerate(order)]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_strips_contain_every_block_once_with_the_learning_rate_of_its_round(
    rows: int, columns: int, workers: int
) -> None:
    rounds = make_rounds(rows, columns)
    strips = compose_strips(rounds, workers)
    expected = [step for steps in rounds for step in steps]

    assert sorted((step for strip in strips for step in strip.steps), key=str) == sorted(expected, key=str)
    assert [strip.number for strip in strips] == list(range(len(strips)))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_the_blocks_of_a_strip_share_one_side_and_differ_in_the_other(rows: int, columns: int, workers: int) -> None:
    for strip in compose_strips(make_rounds(rows, columns), workers):
        assert 1 <= len(strip.blocks) <= 8
        if strip.shared is None:
            assert len(strip.blocks) == 1
        else:
            assert len({block[strip.shared] for block in strip.blocks}) == 1
            assert len({block[1 - strip.shared] for block in strip.blocks}) == len(strip.blocks) > 1


def test_strips_get_shorter_towards_the_end_of_an_epoch() -> None:
    lengths = [len(strip.blocks) for strip in compose_strips(make_rounds(32, 32), workers=2)]
    assert lengths[0] == 8
    assert lengths[-1] == 1
    assert all(before >= after for before, after in pairwise(lengths))


def test_strips_without_conflict_come_first() -> None:
    leases = Leases(compose_strips(make_rounds(4, 4), workers=8))
    taken = [leases.take(worker, 1.0) for worker in range(4)]
    blocks = [strip.blocks[0] for strip in taken if strip]
    assert len({row for row, _ in blocks}) == len({column for _, column in blocks}) == 4
    conflicting = leases.take(4, 1.0)
    assert conflicting is not None  # a conflict is better than an idle worker


def test_a_strip_is_passed_over_if_a_later_one_has_less_conflict() -> None:
    single = [make_strip(number, 0, (block,), (0.1,)) for number, block in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)])]
    leases = Leases(single)
    assert [leases.take(worker, 1.0) for worker in (0, 1)] == [single[0], single[3]]

    # A conflict on the side of one block each costs less than one on the side that all blocks share.
    blocks = [((0, 0), (0, 1)), ((0, 2), (0, 3)), ((1, 0), (1, 1))]
    strips = [make_strip(number, 0, pair, (0.1, 0.1), shared=0) for number, pair in enumerate(blocks)]
    leases = Leases(strips)
    assert [leases.take(worker, 1.0) for worker in (0, 1, 2)] == [strips[0], strips[2], strips[1]]


def test_late_strip_goes_to_another_worker_and_either_result_counts_once() -> None:
    leases = Leases([make_strip(0, 0, ((0, 0),), (0.1,))])

    assert leases.take(0, deadline=10.0) is not None
    assert leases.take(1, deadline=10.0) is None
    assert leases.expire(9.0) == []
    assert leases.expire(11.0) == [0]

    again = leases.take(1, deadline=20.0)

    assert again is not None
    assert leases.finish(0, 0) == ((0, 0),)
    assert leases.is_over
    assert leases.finish(1, 0) == ()
    assert leases.expire(100.0) == []  # no lease is active


def test_strips_of_a_lost_worker_are_leased_again() -> None:
    leases = Leases(compose_strips(make_rounds(2, 2), workers=8))
    first = leases.take(0, 1.0)
    leases.lose(0)
    assert leases.take(1, 1.0) == first


def test_strips_that_a_restored_server_repeats_are_reported_once() -> None:
    leases = Leases([make_strip(0, 0, ((0, 0), (0, 1)), (0.1, 0.1), 0), make_strip(1, 0, ((1, 0),), (0.1,))])
    for number in (0, 1):
        assert leases.take(0, 1.0) is not None
        assert leases.finish(0, number)

    assert (leases.is_over, leases.undo((1, 0), {0, 1})) == (True, 0)
    assert leases.undo((1, 0), {1}) == 1
    assert not leases.is_over
    assert leases.undo((1, 0), {1}) == 0  # The strip that is done needs no other change.

    again = leases.take(0, 1.0)

    assert again is not None
    assert again.number == 0
    assert leases.finish(0, 0) == ()
    assert leases.is_over


def test_a_pause_finishes_the_strips_that_were_started_and_no_others() -> None:
    leases = Leases(compose_strips(make_rounds(3, 3), workers=8))
    first, second = leases.take(0, 1.0), leases.take(1, 1.0)
    assert first is not None and second is not None

    leases.is_pausing = True
    assert not leases.is_over
    assert leases.take(2, 1.0) is None

    leases.fail(0, first.number)
    assert leases.take(2, 1.0) == first
    assert leases.take(2, 1.0) is None

    leases.finish(2, first.number)
    assert not leases.is_over
    leases.finish(1, second.number)
    assert leases.is_over


class Cluster:
    """Simulated servers and workers that die at random, and follow the rules of the real ones."""

    def __init__(self, leases: Leases, strips: list[Strip]) -> None:
        self.leases, self.strips = leases, strips
        self.applied: dict[Part, set[int]] = {}
        self.visits: Counter[tuple[Part, int]] = Counter()
        self.kept: dict[Part, set[int]] = {}
        self.held: dict[int, Strip] = {}
        self.reported: list[tuple[int, int]] = []
        self.now = 0.0

    def push(self, strip: Strip, upto: int) -> None:
        for part, other in list(strip.parts())[:upto]:
            if other not in self.applied.setdefault(part, set()):
                self.applied[part].add(other)
                self.visits[part, other] += 1

    def act(self, action: str, worker: int, amount: int) -> None:
        strip = self.held.get(worker)

        if strip is None and action != "server":
            strip = self.leases.take(worker, self.now + 5)
            if strip is not None:
                self.held[worker] = strip
        elif action == "finish" and strip is not None:
            self.push(strip, 99)
            self.reported += self.leases.finish(worker, self.held.pop(worker).number)
        elif action == "die" and strip is not None:
            self.push(strip, amount)
            self.leases.lose(worker)
            del self.held[worker]
        elif action == "late":
            self.now += 10
            self.leases.expire(self.now)
        elif action == "server":
            side = amount % 2
            for part in [part for part in self.applied if part[0] == side]:
                for other in self.applied[part]:
                    self.visits[part, other] -= 1  # The changes are lost with the server.
                self.applied[part] = set()
                self.leases.undo(part, ())


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
    strips = compose_strips(make_rounds(rows, columns), workers=2)
    leases = Leases(strips)
    cluster = Cluster(leases, strips)
    for number, action in enumerate(actions):
        leases.is_pausing = leases.is_pausing or (pauses and number == 20)
        cluster.act(*action)
    for _ in range(3 * len(strips) + 9):
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


def test_strips_of_one_block_share_nothing() -> None:
    (strip,) = compose_strips([[Step((2, 5), 0.1, ())]], workers=1)
    assert strip == Strip(0, (Step((2, 5), 0.1, ()),))
    assert list(strip.parts()) == [((0, 2), 5), ((1, 5), 2)]


@pytest.mark.parametrize("workers", [1, 7])
def test_no_rounds_make_no_strips(workers: int) -> None:
    assert compose_strips([], workers) == []
    assert Leases([]).is_over
