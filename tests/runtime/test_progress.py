"""Progress events of long jobs."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swivel.runtime import progress as progress_module
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, BarProgress, Progress, Task, choose_progress, create_display, track


class Recorder(Progress):
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self.events.append(("begin", job, total, unit))
        return super().begin(job, total, unit)

    def end(self, task: Task) -> None:
        self.events.append(("end",))


def test_task_lasts_as_long_as_the_block() -> None:
    recorder = Recorder()
    with track(recorder, "counting", 10, "tokens") as task:
        task.advance(3, "a note")
        assert recorder.events == [("begin", "counting", 10, "tokens")]
    assert recorder.events[-1] == ("end",)


def test_task_ends_when_the_block_fails() -> None:
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt), track(recorder, "counting", None, "tokens"):
        raise KeyboardInterrupt
    assert recorder.events[-1] == ("end",)


def test_silent_progress_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    SILENT.message("a line")
    with track(SILENT, "counting", 10, "tokens") as task:
        task.advance(5, "a note")
    assert capfd.readouterr() == ("", "")


# Bars


def run_on_terminal(code: str) -> str:
    """Run Python code with a terminal as standard error and return what it shows."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    try:
        subprocess.run([sys.executable, "-c", code], check=True, stderr=slave, timeout=60, env=environment)
        os.set_blocking(master, False)
        shown = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                shown += os.read(master, 65536)
    finally:
        os.close(slave)
        os.close(master)
    return shown.decode()


JOB = """
import time
from swivel.runtime import progress as progress_module
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
with track(RunOptions({arguments}).progress, "counting", 10, "tokens") as task:
    task.advance(4, "a note")
    time.sleep({seconds})
"""


def test_python_shows_a_bar_for_long_work_on_a_terminal() -> None:
    shown = run_on_terminal(JOB.format(arguments="", seconds=1.3))
    assert "counting" in shown
    assert "40%" in shown
    assert "a note" in shown


@pytest.mark.parametrize(("arguments", "seconds"), [("", 0.0), ("progress=False", 1.3)])
def test_python_shows_nothing_for_short_work_or_without_progress(arguments: str, seconds: float) -> None:
    assert run_on_terminal(JOB.format(arguments=arguments, seconds=seconds)) == ""


def test_python_shows_nothing_if_standard_error_is_not_a_terminal() -> None:
    code = JOB.format(arguments="", seconds=1.3)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_true_and_false_are_accepted_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda number: True)
    assert isinstance(RunOptions(progress=cast(Progress, True)).progress, BarProgress)
    assert RunOptions(progress=cast(Progress, False)).progress is SILENT


def test_of_several_ranks_only_the_first_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda number: True)
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    for rank, kind in (("0", BarProgress), ("1", Progress)):
        monkeypatch.setenv("RANK", rank)
        assert type(choose_progress()) is kind


class Cell(threading.Event):
    """Records what a notebook would show, in place of the module IPython.display and of its handle."""

    def __init__(self) -> None:
        super().__init__()
        self.drawings: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        self.set()
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        self.drawings.append(data["text/plain"])


def test_a_notebook_shows_bars_and_removes_them_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell()
    monkeypatch.setitem(sys.modules, "IPython", cast(Any, SimpleNamespace(display=cell)))
    monkeypatch.setitem(sys.modules, "IPython.display", cast(Any, cell))
    monkeypatch.setattr(progress_module, "_SECONDS_PER_DRAWING", 0.0)
    progress = BarProgress(lambda: create_display(in_notebook=True), delay_seconds=0.01)
    with track(progress, "read <ing>", 10, "tokens") as outer:
        assert cell.wait(30)
        outer.advance(5, "half & more")
        with track(progress, "inner", None, "lines"):
            outer.advance(0)

    half, _, both, nothing = cell.drawings  # The second one shows that a bar was added.
    assert "read <ing> ━" in half
    assert " 50%" in half
    assert "half & more" in half
    assert "inner" in both
    assert nothing.strip() == ""
