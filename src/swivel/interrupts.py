"""Ctrl-C and SIGTERM as a request: a long job ends what it has begun, saves, and only then leaves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Whether somebody asked the job to stop, and how."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self._event.is_set()

    def set(self, number: int = signal.SIGINT) -> None:
        """Ask to stop."""
        self.signal = number
        self._event.set()

    def raise_if_set(self) -> None:
        """Leave as the signal would have, once everything is saved."""
        if not self():
            return
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest while the block runs; a second one acts at once.

    Signals reach the main thread only: in another thread nothing changes and nothing is ever asked.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        request.set(number)
        _restore(before)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, ask)
    try:
        yield request
    finally:
        _restore(before)


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
