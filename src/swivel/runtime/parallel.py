"""Work in threads, results in order: the look-ahead is bounded, so that memory is.

Receives functions and items, or work that is under way; hands on the results, one by one. It knows nothing of either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def take_in_order(futures: Iterable[Future[Result]], *, ahead: int) -> Iterator[Result]:
    """Yield results in order; at most `ahead` futures exist at a time, if the iterable makes them when asked.

    Those that wait when it ends early are cancelled.

    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(take_in_order((pool.submit(abs, number) for number in [-1, 2, -3]), ahead=2))
    [1, 2, 3]
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for future in futures:
            waiting.append(future)
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """Yield function(item) for each item in order; at most `ahead` results (threads + 1) exist at a time.

    >>> list(map_in_order(abs, [-1, 2, -3], threads=2))
    [1, 2, 3]
    """
    with ThreadPoolExecutor(threads) as pool:
        futures = (pool.submit(function, item) for item in items)
        yield from take_in_order(futures, ahead=threads + 1 if ahead is None else ahead)
