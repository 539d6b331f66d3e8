"""Threads: maps with results in order, a pool for torch, and how long a thread may keep others waiting."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

SHORT_SECONDS = 5e-4  # of a turn

_settings_lock = threading.Lock()  # protects _open_blocks, and the settings while they change
_open_blocks: dict[Any, tuple[Any, int]] = {}  # function that sets a setting: its value before, and the open blocks


@contextlib.contextmanager
def restoring(get: Callable[[], Any], set: Callable[[Any], Any]) -> Iterator[None]:
    """Restore a setting of the whole process when the last of the blocks that change it ends, in whichever thread."""
    with _settings_lock:
        before, blocks = _open_blocks.get(set) or (get(), 0)
        _open_blocks[set] = before, blocks + 1

    try:
        yield
    finally:
        with _settings_lock:
            before, blocks = _open_blocks.pop(set)
            if blocks == 1:
                set(before)
            else:
                _open_blocks[set] = before, blocks - 1


@contextlib.contextmanager
def open_torch_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads in each of which torch uses one core, for products that are too small to be divided."""
    import torch

    # `torch.set_num_threads` in one thread is also the default of all threads that use torch later.
    with (
        restoring(torch.get_num_threads, torch.set_num_threads),
        ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        yield pool


def take_short_turns() -> None:
    """Let the threads of this process take turns of .5 ms in Python code, instead of 5 ms.

    A thread that starts another one, or that has computed something outside of Python, waits for a turn. Beside a
    thread that runs Python code, such as a large import, starting a pool of 16 threads took 22 ms instead of 4 ms.
    """
    sys.setswitchinterval(min(SHORT_SECONDS, sys.getswitchinterval()))


def run_in_chunks(function: Callable[[slice], object], length: int, *, rows: int, threads: int) -> None:
    """Call a function for consecutive slices of `rows` rows that cover an array of `length` rows, on several threads.

    >>> found = []
    >>> run_in_chunks(found.append, 5, rows=2, threads=1)
    >>> found
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    pieces = [slice(first, min(first + rows, length)) for first in range(0, length, rows)]
    if threads == 1 or len(pieces) < 2:
        for piece in pieces:
            function(piece)
        return

    with ThreadPoolExecutor(min(threads, len(pieces))) as pool:
        list(pool.map(function, pieces))


def take_in_order(futures: Iterable[Future[Result]], *, ahead: int) -> Iterator[Result]:
    """Yield the results of futures, which a generator submits lazily, in order, with at most `ahead` of them pending.

    Futures that are still pending when the caller stops early, or when one of them raises, are canceled.
    """
    pending: deque[Future[Result]] = deque()

    try:
        for future in futures:
            pending.append(future)
            if len(pending) >= ahead:
                yield pending.popleft().result()

        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """Yield function(item) for each item in order, computed by `threads` threads.

    Items are consumed lazily: at most `ahead` results (default: threads + 1) exist at the same time.

    >>> list(map_in_order(abs, [-1, 2, -3], threads=2))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(threads) as pool:
        futures = (pool.submit(function, item) for item in items)
        yield from take_in_order(futures, ahead=threads + 1 if ahead is None else ahead)
