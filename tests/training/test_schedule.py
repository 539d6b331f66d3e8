"""The schedule: order and number of blocks, number of epochs, learning rate."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swivel.training.schedule import (
    choose_block_count,
    default_block_size,
    default_epochs,
    falling_rate,
    rank_of_row,
    rounds_for_ranks,
    rounds_without_conflict,
)

blocks = st.integers(1, 24)
seeds = st.tuples(st.integers(0, 2**32), st.integers(0, 9))
sizes = st.integers(1, 10**7)


@given(blocks, blocks, seeds)
def test_every_block_comes_once_per_epoch(rows: int, columns: int, seed: tuple[int, int]) -> None:
    order = [block for round in rounds_without_conflict(rows, columns, seed) for block in round]
    assert sorted(order) == [(i, j) for i in range(rows) for j in range(columns)]


@given(blocks, blocks, seeds)
def test_no_row_block_and_no_column_block_comes_twice_in_a_round(
    rows: int, columns: int, seed: tuple[int, int]
) -> None:
    for round in rounds_without_conflict(rows, columns, seed):
        assert len({i for i, _ in round}) == len({j for _, j in round}) == len(round)


@given(blocks, blocks, seeds)
def test_number_of_rounds_is_minimal_and_their_lengths_are_equal(
    rows: int, columns: int, seed: tuple[int, int]
) -> None:
    rounds = rounds_without_conflict(rows, columns, seed)
    assert len(rounds) == max(rows, columns)
    assert {len(round) for round in rounds} == {min(rows, columns)}


def test_one_block_per_rank_needs_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many ranks as blocks, making a generator for every block would take a minute per million blocks."""
    monkeypatch.setattr("numpy.random.default_rng", lambda seed: pytest.fail("a generator was created"))
    order = rounds_for_ranks(20, 40, 20, (1, 0))
    assert sorted(block for round in order for block in round) == [(i, j) for i in range(20) for j in range(40)]


@given(blocks, blocks, seeds)
def test_the_same_seed_gives_the_same_order(rows: int, columns: int, seed: tuple[int, int]) -> None:
    assert rounds_without_conflict(rows, columns, seed) == rounds_without_conflict(rows, columns, seed)


ranks = st.integers(1, 6)


@given(blocks, blocks, ranks, seeds)
def test_ranks_train_every_block_once_and_never_share_parameters(
    rows: int, columns: int, ranks: int, seed: tuple[int, int]
) -> None:
    order = rounds_for_ranks(rows, columns, ranks, seed)
    trained = sorted(block for blocks in order for block in blocks)
    assert trained == [(i, j) for i in range(rows) for j in range(columns)]
    for blocks in order:
        assert len({i for i, _ in blocks}) == len({j for _, j in blocks}) == len(blocks)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5))
def test_column_blocks_move_as_rarely_as_possible(rows: int, columns: int, number: int) -> None:
    """n ranks need every column block in an epoch: n - 1 moves, if the next epoch starts where this one ends."""
    ranks, height, width = 3, 3 * rows, 6 * columns
    order = [
        *rounds_for_ranks(height, width, ranks, (1, number)),
        *rounds_for_ranks(height, width, ranks, (1, number + 1)),
    ]
    seen: dict[int, list[int]] = {}
    for blocks in order:
        for i, j in blocks:
            seen.setdefault(j, []).append(rank_of_row(height, ranks, i))

    assert {sum(a != b for a, b in pairwise(owners)) for owners in seen.values()} == {2 * (ranks - 1)}


def test_epochs_differ_in_their_order() -> None:
    orders = {str(rounds_without_conflict(8, 8, (1, 1, number))) for number in range(20)}
    assert len(orders) == 20


@given(blocks, blocks, seeds)
def test_a_round_is_a_diagonal_whose_blocks_are_neighbors(rows: int, columns: int, seed: tuple[int, int]) -> None:
    """The next block is one row block and one column block further, modulo the size: a GPU needs one launch."""
    for round in rounds_without_conflict(rows, columns, seed):
        for (i, j), (next_i, next_j) in pairwise(round):
            assert next_i == (i + 1) % rows
            assert next_j == (j + 1) % columns


def test_diagonals_come_in_random_order() -> None:
    orders = [rounds_without_conflict(6, 6, (seed,)) for seed in range(30)]
    assert {tuple(sorted(map(tuple, rounds))) for rounds in orders} == {tuple(sorted(map(tuple, orders[0])))}
    assert len({rounds[0][0] for rounds in orders}) == 6, "every diagonal comes first for some seed"


def test_blocks_are_plain_integers() -> None:
    block = rounds_without_conflict(2, 3, (1,))[0][0]
    assert [type(number) for number in block] == [int, int]


@given(sizes, sizes)
def test_default_block_size_stays_between_its_bounds_and_grows(rows: int, columns: int) -> None:
    size = default_block_size(rows, columns)
    assert 256 <= size <= 1024
    assert size <= default_block_size(rows, columns, 4096) <= 4096
    assert size == default_block_size(columns, rows)
    assert size <= default_block_size(2 * rows, 2 * columns)


@given(st.integers(1, 10**6), st.integers(1, 5000), st.data())
def test_blocks_are_the_stored_ones_or_have_the_given_size(size: int, block_size: int, data: st.DataObject) -> None:
    stored = data.draw(st.integers(1, size))
    count = choose_block_count(size, block_size, stored)
    wanted = -(-size // block_size)
    assert 1 <= count <= size
    assert count in (stored, wanted)
    assert wanted / 1.5 <= count <= 1.5 * wanted


def test_stored_blocks_are_kept_if_their_size_is_close_enough() -> None:
    assert choose_block_count(98_304, 1_024, 96) == 96
    assert choose_block_count(98_304, 1_100, 96) == 96
    assert choose_block_count(98_304, 4_096, 96) == 24


@given(st.integers(1, 10**4), st.integers(1, 10**4), st.integers(1, 10**4))
def test_default_epochs_give_every_vector_enough_updates(rows: int, columns: int, updates: int) -> None:
    epochs = default_epochs(rows, columns, updates)
    assert epochs >= 4
    shorter = min(rows, columns)
    if epochs > 4:
        assert abs(epochs * shorter - updates) <= shorter / 2
    assert epochs == default_epochs(columns, rows, updates)


@given(st.floats(1e-3, 10), st.integers(1, 1000))
def test_learning_rate_falls_linearly_to_zero(rate: float, total: int) -> None:
    rates = [falling_rate(rate, done, total) for done in range(total + 1)]
    assert rates[0] == rate
    assert rates[-1] == 0
    assert rates == sorted(rates, reverse=True)
    assert falling_rate(rate, total / 2, total) == pytest.approx(rate / 2)


def test_learning_rate_is_never_negative() -> None:
    assert falling_rate(0.1, 11, 10) == 0
