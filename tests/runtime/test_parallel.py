"""Parallel map: results in order, with a bounded number of pending items."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swivel.runtime.parallel import map_in_order, open_torch_pool, take_in_order


@settings(max_examples=50)
@given(items=st.lists(st.integers(), max_size=30), threads=st.integers(1, 4), ahead=st.integers(1, 6))
def test_results_are_in_order_for_any_number_of_threads(items: list[int], threads: int, ahead: int) -> None:
    assert list(map_in_order(str, items, threads=threads, ahead=ahead)) == [str(item) for item in items]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_at_most_ahead_results_exist_at_a_time(ahead: int) -> None:
    made = taken = 0

    def futures() -> Iterator[Future[int]]:
        nonlocal made
        for number in range(20):
            made += 1
            assert made - taken <= ahead
            future: Future[int] = Future()
            future.set_result(number)
            yield future

    for _ in take_in_order(futures(), ahead=ahead):
        taken += 1
    assert made == taken == 20


def test_an_error_is_raised_in_order_and_cancels_pending_futures() -> None:
    gate = threading.Event()
    seen: list[int] = []

    def work(number: int) -> int:
        if number == 1:
            raise ValueError("one")
        if number == 2:
            gate.wait()
        return number

    with ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(work, number) for number in range(6)]
        with pytest.raises(ValueError, match="one"):
            seen.extend(take_in_order(futures[:4], ahead=9))
        gate.set()
    assert futures[3].cancelled() and not futures[5].cancelled()
    assert seen == [0]


def test_a_pool_for_torch_restores_the_number_of_threads_of_all_threads() -> None:
    before = torch.get_num_threads()
    with open_torch_pool(2) as pool, open_torch_pool(1):
        assert set(pool.map(lambda _: torch.get_num_threads(), range(4))) == {1}

    assert torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == before
