"""Ctrl-C and SIGTERM as a request: a long job ends what it has begun, saves, and only then leaves.

Hands on requests to whoever runs a job. Work that has nothing to save leaves at once; work that hears nothing, deep in
a library, is left to itself after a few seconds (`leave_in_time`): what it has written by then is as a kill leaves it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HEARD = (signal.SIGINT, signal.SIGTERM)
LEAVE_SECONDS = 3.5  # from the signal to leaving without having been heard
_POLL_SECONDS = 0.05

_heard: list[int] = []  # what `leave_in_time` has seen: an exception of a handler is lost in some callbacks of Python's
_saving: list[StopRequest] = []  # requests of blocks that run: their work ends by itself, when it has saved


class StopRequest:
    """Whether somebody asked the job to stop, and how."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.acts_at_once = False
        self.signal: int | None = None
        self.was_heeded = False  # Somebody has left because of it.

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self._event.is_set()

    def set(self, number: int = signal.SIGINT, *, may_raise: bool = True) -> None:
        """Ask to stop."""
        self.signal = number
        self._event.set()
        if self.acts_at_once and may_raise:
            self.raise_if_set()

    def raise_if_set(self) -> None:
        """Leave as the signal would have, once everything is saved."""
        if not self():
            return
        self.was_heeded = True
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt

    @contextmanager
    def acting_at_once(self) -> Iterator[None]:
        """Leave at once when asked while the block runs, or before it: there is nothing to save yet."""
        self.acts_at_once = True
        try:
            self.raise_if_set()
            yield
            self.raise_if_set()
        finally:
            self.acts_at_once = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest while the block runs; a second one acts at once.

    A request that the block did not see before it ended goes to whoever hears signals outside of it: to another such
    block, or out of this one as the signal would have gone. Signals reach the main thread only: in another thread
    nothing changes and nothing is ever asked.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    asking = _Asking(request)
    if _heard:  # And still we are here.
        request.set(_heard[0])
    try:
        yield request
    finally:
        asking.end()
    if request.signal is not None and not request.was_heeded:
        asking.hand_on(request.signal)


class _Asking:
    """The handlers of one block, and those that were there before."""

    def __init__(self, request: StopRequest) -> None:
        self.request = request
        _saving.append(request)
        self.before: dict[int, Any] = {number: signal.getsignal(number) for number in HEARD}
        for number in HEARD:
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for each, handler in self.outermost().items():
            signal.signal(each, handler)
        # What is raised in a callback of the import system is printed and lost; the end of the block sees to it.
        is_importing = frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")
        self.request.set(number, may_raise=not is_importing)

    def outermost(self) -> dict[int, Any]:
        """Return the handlers that were there before any such block: a second signal is for them."""
        return {
            number: handler.outermost()[number] if isinstance(handler, _Asking) else handler
            for number, handler in self.before.items()
        }

    def end(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        _saving.remove(self.request)

    def hand_on(self, number: int) -> None:
        handler = self.before.get(number)
        if callable(handler):
            handler(number, None)
        else:
            self.request.raise_if_set()


@contextmanager
def defer_signals() -> Iterator[None]:
    """Have SIGINT and SIGTERM wait until the block ends: a library may die of an exception while it loads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in HEARD}
    for number in HEARD:
        signal.signal(number, lambda heard, frame: waiting.append(heard))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if waiting:
        signal.raise_signal(waiting[0])


@contextmanager
def leave_in_time(farewell: Callable[[int], None], seconds: float = LEAVE_SECONDS) -> Iterator[None]:
    """End the process `seconds` after a SIGINT or SIGTERM that it did not hear, `farewell` said; SIGTERM is an exit.

    Python's own handlers wait for the library call that runs just now, which may take minutes; a thread does not.
    The time in which a job saves (`stop_on_signals`) does not count.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    watch = threading.Thread(target=_leave_after_signal, args=(ours, farewell, seconds), daemon=True)
    watch.start()
    _heard.clear()
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False), signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        _heard.clear()
        signal.set_wakeup_fd(before[0])
        signal.signal(signal.SIGTERM, before[1])
        theirs.close()  # A watch that has seen a signal goes on: threads may still keep the process.


def _leave(number: int, frame: FrameType | None) -> None:
    _heard.append(number)
    raise SystemExit(128 + number)


def _leave_after_signal(wakes: socket.socket, farewell: Callable[[int], None], seconds: float) -> None:
    number = next((heard[0] for heard in iter(lambda: wakes.recv(1), b"") if heard[0] in HEARD), None)
    if number is None:
        wakes.close()
        return  # After a signal it stays open: Python complains where it cannot tell us of the next one.
    _heard.append(number)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        if _is_saving():
            until = time.monotonic() + seconds
    try:
        farewell(number)
    finally:
        os._exit(128 + number)


def _is_saving() -> bool:
    return bool(_saving) and not _saving[-1].acts_at_once
