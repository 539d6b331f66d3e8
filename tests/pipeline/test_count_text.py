"""Tests of how text is read for counting: in this process, or in one of its own while this one prepares a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import swivel
from message_recorder import MessageRecorder
from swivel.counts import Matrix
from swivel.errors import VocabularyError
from swivel.runtime.child_process import ChildProcess, can_start_processes
from swivel.runtime.options import RunOptions

LINES = ["new york is a city", "the city of new york", "york is not new york"] * 40

pytestmark = pytest.mark.skipif(not can_start_processes(), reason="needs POSIX")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a file of text."""
    file = tmp_path / "text.txt"
    file.write_text("\n".join(LINES) + "\n")
    return file


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Pretend that there is a CUDA device, and return the names of the functions that other processes call.

    The text is too small for the device, so that the CPU counts it.
    """
    names: list[str] = []

    call = ChildProcess.call

    def record(process: ChildProcess, function: Any, *arguments: Any, **keywords: Any) -> Any:
        names.append(function.__name__)
        return call(process, function, *arguments, **keywords)

    monkeypatch.setattr(ChildProcess, "call", record)
    monkeypatch.setattr("swivel.runtime.resources._CUDA_DEVICES", (str(tmp_path),))
    return names


def assert_same(one: Matrix, other: Matrix) -> None:
    assert one.rows == other.rows
    assert one.columns == other.columns
    assert (one.to_scipy() != other.to_scipy()).nnz == 0


@pytest.mark.parametrize("settings", [{}, {"phrases": "npmi"}, {"vocabulary": ["york", "city", "paris"]}])
def test_a_text_that_another_process_numbers_has_the_same_matrix(
    settings: dict[str, Any], text: Path, calls: list[str]
) -> None:
    read_here, read_there = MessageRecorder(), MessageRecorder()
    here = swivel.count(text, min_count=2, device="cpu", options=RunOptions(progress=read_here), **settings)
    assert calls == []
    there = swivel.count(text, min_count=2, options=RunOptions(progress=read_there), **settings)
    assert calls == ["number_text"]

    assert_same(here, there)
    assert read_here.lines == read_there.lines


def test_texts_in_memory_are_read_here(calls: list[str]) -> None:
    assert swivel.count(LINES, min_count=2).rows.tokens[0] == "york"
    assert calls == []


def test_errors_of_the_process_that_numbers_a_text_are_raised_here(text: Path, calls: list[str]) -> None:
    with pytest.raises(VocabularyError, match="none of the 1 listed tokens is in the text"):
        swivel.count(text, vocabulary=["paris"])
    assert calls == ["number_text"]


def test_new_words_that_another_process_finds_are_the_same(text: Path, tmp_path: Path, calls: list[str]) -> None:
    settings: dict[str, Any] = {"dim": 4, "epochs": 2, "backend": "cpu", "dtype": "float32", "min_count": 1}
    swivel.run(text, tmp_path / "trained", device="cpu", **settings)
    more = tmp_path / "more.txt"
    more.write_text("york has a river\nthe river of the city\n" * 20)

    extended = {}
    for device in ("cpu", "auto"):
        extended[device] = swivel.extend(tmp_path / "trained/vectors", more, tmp_path / device, device=device)
    assert calls == ["_number_words"]
    assert extended["cpu"].vocabulary == extended["auto"].vocabulary
    assert np.array_equal(extended["cpu"].vectors, extended["auto"].vectors)
