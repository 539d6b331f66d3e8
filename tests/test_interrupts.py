"""Ctrl-C and SIGTERM as a request."""

from __future__ import annotations

import signal
import threading

import pytest

from swivel.interrupts import StopRequest, stop_on_signals

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
