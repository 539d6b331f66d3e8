"""Parallel map with threads, with results in order and a bounded number of pending items; a pool for torch."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class _TorchThreads:
    """Torch's number of threads before the first of the open pools, and how many pools are open."""

    lock = threading.Lock()
    before = 1
    pools = 0


@contextlib.contextmanager
def open_torch_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads in each of which torch uses one core, for products that are too small to be divided.

    `torch.set_num_threads` in one thread is also the default of all threads that use torch later, so the number is
    restored when the last of these pools is closed.
    """
    import torch

    with _TorchThreads.lock:
        if _TorchThreads.pools == 0:
            _TorchThreads.before = torch.get_num_threads()
        _TorchThreads.pools += 1

    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        with _TorchThreads.lock:
            _TorchThreads.pools -= 1
            if _TorchThreads.pools == 0:
                torch.set_num_threads(_TorchThreads.before)


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
    """Yield the results of futures in order, with at most `ahead` of them pending.

    Pass a generator that submits its futures lazily, so that memory stays bounded. Futures that are still pending
    when the caller stops early, or when one of them raises, are canceled.
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

    Items are consumed lazily: at most `ahead` results (default: threads + 1) exist at the same time. The function
    should release the GIL to benefit from threads.

    >>> list(map_in_order(abs, [-1, 2, -3], threads=2))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(threads) as pool:
        futures = (pool.submit(function, item) for item in items)
        yield from take_in_order(futures, ahead=threads + 1 if ahead is None else ahead)
