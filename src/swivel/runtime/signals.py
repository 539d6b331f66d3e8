"""SIGINT (Ctrl-C) and SIGTERM as requests to stop, so that a long job can save a checkpoint before it ends.

Work that has nothing to save ends at once. Work that does not return to Python, for example a long library call, is
ended after a few seconds (`leave_in_time`); its files are then in the state that a kill would leave.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAVE_SECONDS = 3.5  # from the signal to the end of a process that does not respond to it
_POLL_SECONDS = 0.05

# Signals that `leave_in_time` has received. They are recorded because Python discards an exception that a signal
# handler raises inside some callbacks (weakref callbacks, __del__); the next job must still see the signal.
_received: list[int] = []

# Requests of the `stop_on_signals` blocks that are running, innermost last. Their work ends after it has saved.
_active_requests: list[StopRequest] = []


class StopRequest:
    """A request to stop that a job polls: call it to get whether to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.acts_at_once = False
        self.was_heeded = False  # whether an exception was raised because of the request
        self.original_handlers: dict[int, Any] = {}  # from before the outermost `stop_on_signals` block

    def __call__(self) -> bool:
        """Return whether the job should stop."""
        return self.signal is not None

    def set(self, number: int = signal.SIGINT, *, may_raise: bool = True) -> None:
        """Request a stop; raise at once inside an `acting_at_once` block, unless `may_raise` is False."""
        self.signal = number

        if self.acts_at_once and may_raise:
            self.raise_if_set()

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Request a stop because of a signal."""
        # The original handlers get the next signal, which therefore acts at once.
        for handled, handler in self.original_handlers.items():
            signal.signal(handled, handler)

        # Python prints and discards exceptions in callbacks of the import system; the end of the block raises instead.
        is_importing = frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")
        self.set(number, may_raise=not is_importing)

    def raise_if_set(self) -> None:
        """Raise the exception that the signal would have raised, if a stop was requested."""
        if not self():
            return

        self.was_heeded = True
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt

    @contextmanager
    def acting_at_once(self) -> Iterator[None]:
        """Raise as soon as a stop is requested, or was before the block, because there is nothing to save yet."""
        self.acts_at_once = True
        try:
            self.raise_if_set()
            yield
            self.raise_if_set()
        finally:
            self.acts_at_once = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Convert SIGINT and SIGTERM into a StopRequest while the block runs; a second signal acts at once."""
    request = StopRequest()
    # Signals reach only the main thread: in other threads the request is never set.
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    request.original_handlers = _active_requests[-1].original_handlers if _active_requests else previous

    with _replace_handlers(request.handle_signal):
        _active_requests.append(request)
        try:
            if _received:  # The exception of an earlier signal was lost.
                request.set(_received[0])
            yield request
        finally:
            _active_requests.remove(request)

    # The block ended without reacting: the handlers outside of it get the signal, another such block or Python's.
    if request.signal is not None and not request.was_heeded:
        handler = previous.get(request.signal)
        if callable(handler):
            handler(request.signal, None)
        else:
            request.raise_if_set()


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block ends, because an exception can crash a library while it loads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    deferred: list[int] = []
    with _replace_handlers(lambda number, frame: deferred.append(number)):
        yield

    if deferred:
        signal.raise_signal(deferred[0])


@contextmanager
def _replace_handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM by `handler` while the block runs."""
    previous = {number: signal.signal(number, handler) for number in HANDLED_SIGNALS}
    try:
        yield
    finally:
        for number, replaced in previous.items():
            signal.signal(number, replaced)


@contextmanager
def leave_in_time(farewell: Callable[[int], None], seconds: float = LEAVE_SECONDS) -> Iterator[None]:
    """End the process `seconds` after a SIGINT or SIGTERM that did not end the block; SIGTERM raises SystemExit in it.

    `farewell` is called with the number of the signal before. The time in which a job saves does not count.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # Python runs signal handlers only between bytecodes, so a library call can delay them for minutes. But it writes
    # the number of each signal to `wakeup_end` at once, and the watcher thread reads it from `watcher_end`.
    watcher_end, wakeup_end = socket.socketpair()
    wakeup_end.setblocking(False)
    watcher = threading.Thread(target=_leave_after_signal, args=(watcher_end, farewell, seconds), daemon=True)
    watcher.start()

    _received.clear()
    previous_wakeup = signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
    previous_handler = signal.signal(signal.SIGTERM, _raise_system_exit)
    previous_hook = sys.unraisablehook

    def report_discarded(discarded: Any) -> None:
        # A discarded exception of a signal still ends the process, so that it is not printed.
        if not issubclass(discarded.exc_type, (KeyboardInterrupt, SystemExit)):
            previous_hook(discarded)

    sys.unraisablehook = report_discarded
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        _received.clear()
        signal.set_wakeup_fd(previous_wakeup)
        signal.signal(signal.SIGTERM, previous_handler)

        # This ends a watcher that has seen no signal. Another one still waits, as other threads may keep the process
        # alive.
        wakeup_end.close()


def _raise_system_exit(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise SystemExit(128 + number)


def _leave_after_signal(watcher_end: socket.socket, farewell: Callable[[int], None], seconds: float) -> None:
    """Wait for a handled signal, then end the process; return if the block ends before."""
    number = 0
    while number not in HANDLED_SIGNALS:
        data = watcher_end.recv(1)
        if not data:  # The other end is closed.
            watcher_end.close()
            return
        number = data[0]

    # From here on the socket stays open: Python prints a warning if it cannot write the next signal to it.
    _received.append(number)

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)

        # The innermost job ends by itself after it has saved. The main thread may remove it at any time: hence a slice.
        innermost = _active_requests[-1:]
        if innermost and not innermost[0].acts_at_once:
            deadline = time.monotonic() + seconds

    try:
        farewell(number)
    finally:
        os._exit(128 + number)
