"""Tests of the turns of threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from swivel.runtime.parallel import short_turns, take_short_turns


@pytest.fixture(autouse=True)
def usual_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_until_the_last_block_ends() -> None:
    first, second = short_turns(), short_turns()
    first.__enter__()
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_shorter_turns_are_kept() -> None:
    sys.setswitchinterval(1e-5)
    take_short_turns()
    assert sys.getswitchinterval() == pytest.approx(1e-5)
