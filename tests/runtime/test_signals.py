"""Ctrl-C and SIGTERM as a request."""

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
def python_s_own_handlers() -> Iterator[None]:
    """Handlers as Python sets them: other tests of this process leave some of libraries', such as Ray's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


HANDLED = (signal.SIGINT, signal.SIGTERM)


def test_nothing_is_asked_at_first() -> None:
    request = StopRequest()
    request.raise_if_set()
    assert not request()


def test_interrupt_is_a_request_and_leaves_as_keyboard_interrupt() -> None:
    with stop_on_signals() as should_stop:
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            should_stop.raise_if_set()


def test_termination_is_a_request_and_leaves_with_its_status() -> None:
    with stop_on_signals() as should_stop:
        signal.raise_signal(signal.SIGTERM)
        assert should_stop()
        with pytest.raises(SystemExit) as caught:
            should_stop.raise_if_set()
    assert caught.value.code == 143


def test_second_interrupt_acts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    with stop_on_signals():
        assert [signal.getsignal(number) for number in HANDLED] != before
    assert [signal.getsignal(number) for number in HANDLED] == before


def test_handlers_are_put_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    with pytest.raises(ValueError, match="oops"), stop_on_signals():
        raise ValueError("oops")
    assert [signal.getsignal(number) for number in HANDLED] == before


def test_another_thread_changes_no_handler() -> None:
    before = [signal.getsignal(number) for number in HANDLED]
    seen: list[object] = []

    def work() -> None:
        with stop_on_signals() as should_stop:
            seen.extend([[signal.getsignal(number) for number in HANDLED], should_stop()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]


def test_request_can_be_made_by_hand() -> None:
    request = StopRequest()
    request.set()
    assert request()
    with pytest.raises(KeyboardInterrupt):
        request.raise_if_set()


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_request_that_nobody_saw_leaves_as_the_signal_would_have(number: int, error: type[BaseException]) -> None:
    ended = False
    with pytest.raises(error), stop_on_signals():
        signal.raise_signal(number)
        ended = True
    assert ended


def test_request_that_nobody_saw_goes_to_the_block_outside() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as outer:
        with stop_on_signals() as inner:
            signal.raise_signal(signal.SIGINT)
            assert not outer()
        assert (inner(), outer()) == (True, True)


def test_request_that_was_heeded_is_not_made_again_outside() -> None:
    with stop_on_signals() as outer:
        with pytest.raises(KeyboardInterrupt), stop_on_signals() as inner:
            signal.raise_signal(signal.SIGINT)
            inner.raise_if_set()
        assert not outer()


def test_second_interrupt_acts_at_once_in_a_block_inside_a_block() -> None:
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


def test_interrupt_acts_at_once_where_there_is_nothing_to_save() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as should_stop, should_stop.acting_at_once():
        signal.raise_signal(signal.SIGINT)
        reached.append("went on")
    assert not reached


def test_earlier_interrupt_is_heeded_before_work_that_saves_nothing() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as should_stop:
        signal.raise_signal(signal.SIGINT)
        with should_stop.acting_at_once():
            reached.append("began")
    assert not reached


DEAF = """
import hashlib, sys
from swivel.runtime.signals import leave_in_time, stop_on_signals

def work(rounds):
    print("working", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)  # one call of a library: no handler runs meanwhile

with leave_in_time(lambda number: print("farewell", number, flush=True), seconds=0.2):
    if sys.argv[1] == "saving":
        with stop_on_signals() as should_stop:
            work(2_500_000)
            print("saved", should_stop(), flush=True)
    else:
        work(2_000_000_000)
"""


def ask_deaf(kind: str, number: int) -> tuple[int, str, float]:
    """Start work that hears nothing, send it a signal, and return how it left and after how long."""
    command = [sys.executable, "-c", DEAF, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        time.sleep(0.05)
        asked = time.monotonic()
        os.kill(process.pid, number)
        try:
            said, _ = process.communicate(timeout=20)
        finally:
            process.kill()
        return process.returncode, said, time.monotonic() - asked


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_work_that_hears_nothing_is_left_in_time(number: int, status: int) -> None:
    code, said, seconds = ask_deaf("deaf", number)
    assert (code, said) == (status, f"farewell {int(number)}\n")
    assert 0.2 <= seconds < 5


def test_work_that_saves_is_not_hurried() -> None:
    code, said, _ = ask_deaf("saving", signal.SIGTERM)
    assert (code, said) == (143, "saved True\n")


def test_a_signal_waits_until_a_library_is_loaded() -> None:
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
    time.sleep(0.3)  # the handler runs in here, and what it raises is lost

with leave_in_time(lambda number: None):
    thing = Thing()
    seen = weakref.ref(thing, act)
    del thing
    with stop_on_signals() as should_stop:
        print("asked", should_stop(), flush=True)
"""


def test_a_request_that_was_lost_in_a_callback_is_seen_by_the_next_job() -> None:
    ended = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "asked True\n"
    assert ended.returncode == 143
