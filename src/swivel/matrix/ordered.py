"""Work in threads, results in order: the look-ahead is bounded, so that memory is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """Yield function(item) for each item in order; at most `ahead` results (threads + 1) exist at a time.

    >>> list(map_in_order(abs, [-1, 2, -3], threads=2))
    [1, 2, 3]
    """
    most = threads + 1 if ahead is None else ahead
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                if len(pending) >= most:
                    yield pending.popleft().result()
                pending.append(pool.submit(function, item))
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
