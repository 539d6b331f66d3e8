"""SIGINT and SIGTERM as requests to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from swivel.runtime.signals import StopRequest, defer_signals, stop_on_signals


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Set Python's default handlers, because other tests leave handlers of libraries such as Ray."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


HANDLED = (signal.SIGINT, signal.SIGTERM)


def test_a_new_request_is_not_set() -> None:
    request = StopRequest()
    request.raise_if_set()
    assert not request()


def test_sigint_is_a_request_and_raises_keyboard_interrupt() -> None:
    with stop_on_signals() as should_stop:
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            should_stop.raise_if_set()


def test_sigterm_is_a_request_and_raises_system_exit() -> None:
    with stop_on_signals() as should_stop:
        signal.raise_signal(signal.SIGTERM)
        assert should_stop()
        with pytest.raises(SystemExit) as caught:
            should_stop.raise_if_set()
    assert caught.value.code == 143


def test_second_interrupt_acts_at_once() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals():
        signal.raise_signal(signal.SIGINT)
        reached.append("first")
        signal.raise_signal(signal.SIGINT)
        reached.append("second")
    assert reached == ["first"]


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    with stop_on_signals():
        assert [signal.getsignal(number) for number in HANDLED] != before
    assert [signal.getsignal(number) for number in HANDLED] == before


def test_handlers_are_restored_after_an_error() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    with pytest.raises(ValueError, match="oops"), stop_on_signals():
        raise ValueError("oops")
    assert [signal.getsignal(number) for number in HANDLED] == before


def test_other_threads_change_no_handler() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    seen: list[object] = []

    def work() -> None:
        with stop_on_signals() as should_stop:
            seen.extend([[signal.getsignal(number) for number in HANDLED], should_stop()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [before, False]


def test_request_can_be_set_without_a_signal() -> None:
    request = StopRequest()
    request.set()
    assert request()
    with pytest.raises(KeyboardInterrupt):
        request.raise_if_set()


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_unseen_request_raises_the_exception_of_the_signal(number: int, error: type[BaseException]) -> None:
    ended = False
    with pytest.raises(error), stop_on_signals():
        signal.raise_signal(number)
        ended = True
    assert ended


def test_unseen_request_is_passed_to_the_outer_block() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as outer:
        with stop_on_signals() as inner:
            signal.raise_signal(signal.SIGINT)
            assert not outer()
        assert (inner(), outer()) == (True, True)


def test_request_that_raised_is_not_passed_to_the_outer_block() -> None:
    with stop_on_signals() as outer:
        with pytest.raises(KeyboardInterrupt), stop_on_signals() as inner:
            signal.raise_signal(signal.SIGINT)
            inner.raise_if_set()
        assert not outer()


def test_second_interrupt_acts_at_once_in_nested_blocks() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals(), stop_on_signals():
        signal.raise_signal(signal.SIGINT)
        reached.append("first")
        signal.raise_signal(signal.SIGINT)
        reached.append("second")
    assert reached == ["first"]


def test_interrupt_inside_the_import_system_waits_for_the_end_of_the_block() -> None:
    importing = compile(
        "os.kill(os.getpid(), signal.SIGINT)\nreached.append(1)", "<frozen importlib._bootstrap>", "exec"
    )
    reached: list[int] = []

    with pytest.raises(KeyboardInterrupt), stop_on_signals() as should_stop, should_stop.acting_at_once():
        exec(importing, {"os": os, "signal": signal, "reached": reached})
        reached.append(2)
    assert reached == [1, 2]


def test_interrupt_acts_at_once_if_there_is_nothing_to_save() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as should_stop, should_stop.acting_at_once():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the signal")
    assert not reached


def test_earlier_interrupt_is_raised_before_work_that_saves_nothing() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as should_stop:
        signal.raise_signal(signal.SIGINT)
        with should_stop.acting_at_once():
            reached.append("started")
    assert not reached


UNRESPONSIVE = """
import hashlib, sys, threading, time
from swivel.runtime.signals import leave_in_time, stop_on_signals

sys.setswitchinterval(1_000)  # seconds: the main thread gives way to another one only while it waits, or in the library

def call_library(rounds):
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)  # one library call, during which no handler runs

def announce():
    while sys._current_frames()[threading.main_thread().ident].f_code is not call_library.__code__:
        time.sleep(0.01)
    print("working", flush=True)

def work(rounds):
    threading.Thread(target=announce, daemon=True).start()
    call_library(rounds)

with leave_in_time(lambda number: print("farewell", number, flush=True), seconds=0.2):
    if sys.argv[1] == "saving":
        with stop_on_signals() as should_stop:
            work(2_500_000)
            print("saved", should_stop(), flush=True)
    else:
        work(2_000_000_000)
"""


def signal_unresponsive(kind: str, number: int) -> tuple[int, str, float]:
    """Signal a process that does not respond; return its exit status, its output and the seconds until it ended."""
    command = [sys.executable, "-c", UNRESPONSIVE, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        signaled = time.monotonic()
        os.kill(process.pid, number)
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        return process.returncode, output, time.monotonic() - signaled


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_unresponsive_process_ends_in_time(number: int, status: int) -> None:
    code, output, seconds = signal_unresponsive("unresponsive", number)
    assert (code, output) == (status, f"farewell {int(number)}\n")
    assert seconds >= 0.2


def test_process_that_saves_may_finish() -> None:
    code, output, _ = signal_unresponsive("saving", signal.SIGTERM)
    assert (code, output) == (143, "saved True\n")


def test_signals_are_deferred_until_a_library_is_loaded() -> None:
    loaded = []
    with pytest.raises(KeyboardInterrupt), defer_signals():
        os.kill(os.getpid(), signal.SIGINT)
        loaded.append("all of it")
    assert loaded == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


LOST = """
import os, signal, sys, time, weakref
from swivel.runtime.signals import leave_in_time, stop_on_signals

class Thing: pass

def act(_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)  # The handler runs here, and its exception is lost.

with leave_in_time(lambda number: None):
    thing = Thing()
    seen = weakref.ref(thing, act)
    del thing
    with stop_on_signals() as should_stop:
        print("asked", should_stop(), flush=True)
"""


def test_signal_that_was_lost_in_a_callback_stops_the_next_job() -> None:
    ended = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "asked True\n"
    assert ended.returncode == 143
    assert ended.stderr == ""  # no "Exception ignored in ..."
