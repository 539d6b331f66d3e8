"""Tests of the turns of threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from swivel.runtime.parallel import take_short_turns


@pytest.fixture(autouse=True)
def usual_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_turns_are_short() -> None:
    take_short_turns()
    assert sys.getswitchinterval() == pytest.approx(0.0005)


def test_shorter_turns_are_kept() -> None:
    sys.setswitchinterval(1e-5)
    take_short_turns()
    assert sys.getswitchinterval() == pytest.approx(1e-5)
