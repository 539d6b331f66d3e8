"""Calls in another process: results, errors, progress, and processes that end early."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swivel.corpus import sources
from swivel.errors import CorpusError, SwivelError, SwivelWarning
from swivel.runtime.child_process import PROGRESS, ChildCall, ChildProcess, can_start_processes
from swivel.runtime.progress import SILENT, Progress, Task

pytestmark = pytest.mark.skipif(not can_start_processes(), reason="needs POSIX")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the other process import this module; it does not look in the current folder."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


@contextlib.contextmanager
def call_in_process(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Iterator[ChildCall[Any]]:
    """Start a call that reports its progress in a new process, which ends with the block."""
    with ChildProcess() as process:
        yield process.call(function, *arguments, progress=PROGRESS, **keywords)


class Recorded(Progress, Task):
    """Progress that records all events."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self.events.append(("begin", job, total, unit))
        return self

    def end(self, task: Task) -> None:
        self.events.append(("end", task is self))

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.events.append(("advance", amount, note))

    def message(self, text: str) -> None:
        self.events.append(("message", text))


def work(number: int, *, progress: Progress, scale: int = 1) -> tuple[int, int]:
    """Report some progress; return a number and the id of the process."""
    task = progress.begin("working", 3, "things")
    task.advance(2, "half")
    progress.message("almost")
    progress.end(task)
    return number * scale, os.getpid()


def fail(*, progress: Progress) -> None:
    raise CorpusError("the text is bad")


def die(*, progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def begin_and_fail(*, progress: Progress) -> None:
    progress.begin("working", 3, "things")
    raise FileNotFoundError(2, "no such file", "text.txt")


class OddError(Exception):
    """An error that cannot be made from its message."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fail_oddly(*, progress: Progress) -> None:
    raise OddError(1, 2)


def warn(*, progress: Progress) -> None:
    warnings.warn("mind the step", SwivelWarning, stacklevel=1)


def sleep(file: Path, *, progress: Progress) -> None:
    file.write_text(str(os.getpid()))
    time.sleep(600)


def test_a_call_returns_its_result_from_another_process_and_reports_its_progress() -> None:
    progress = Recorded()
    checks: list[None] = []
    with call_in_process(work, 6, scale=7) as call:
        result, process = call.wait(progress, lambda: checks.append(None))

    assert result == 42
    assert process != os.getpid()
    events = [("begin", "working", 3, "things"), ("advance", 2, "half"), ("message", "almost"), ("end", True)]
    assert progress.events == events
    assert len(checks) == len(events)


def test_a_process_runs_several_calls_one_after_the_other() -> None:
    with ChildProcess() as process:
        first = process.call(work, 1, progress=PROGRESS)
        second = process.call(work, 2, progress=PROGRESS)  # waits there until the first one is done
        failed = process.call(fail, progress=PROGRESS)
        last = process.call(work, 4, progress=PROGRESS)
        results = [first.wait(SILENT), second.wait(SILENT)]
        with pytest.raises(CorpusError, match="the text is bad"):
            failed.wait(SILENT)
        results.append(last.wait(SILENT))

    assert [number for number, _ in results] == [1, 2, 4]
    assert len({identity for _, identity in results}) == 1


def make_function(*, progress: Progress) -> Callable[[], None]:
    return lambda: None


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(Exception, match=r"[Pp]ickle"), call_in_process(make_function) as call:
        call.wait(SILENT)


def test_an_error_is_raised_here() -> None:
    with pytest.raises(CorpusError, match="the text is bad"), call_in_process(fail) as call:
        call.wait(SILENT)


def test_a_process_that_was_killed_is_one_clear_error() -> None:
    with (
        pytest.raises(SwivelError, match=r"was killed by signal 9, .*; run the command again"),
        call_in_process(die) as call,
    ):
        call.wait(SILENT)


class Unreadable:
    """An object that cannot be unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)


def test_a_call_that_cannot_be_unpickled_is_an_error_and_the_next_one_runs() -> None:
    with ChildProcess() as process:
        bad = process.call(repr, Unreadable())
        good = process.call(repr, 42)
        with pytest.raises(ValueError, match="invalid literal for int"):
            bad.wait(SILENT)
        assert good.wait(SILENT) == "42"


def test_tasks_end_when_the_call_fails() -> None:
    progress = Recorded()
    with pytest.raises(FileNotFoundError, match="no such file"), call_in_process(begin_and_fail) as call:
        call.wait(progress)
    assert progress.events == [("begin", "working", 3, "things"), ("end", True)]


def test_an_error_that_cannot_be_sent_keeps_its_message() -> None:
    with pytest.raises(SwivelError, match="OddError: 1 and 2"), call_in_process(fail_oddly) as call:
        call.wait(SILENT)


def test_warnings_are_messages() -> None:
    progress = Recorded()
    with call_in_process(warn) as call:
        call.wait(progress)
    assert progress.events == [("message", "warning: mind the step")]


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "socket.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    with call_in_process(work, 1) as call:
        assert call.wait(SILENT)[0] == 1


def wait_for(file: Path) -> int:
    """Return the id of the process that `sleep` wrote."""
    for _ in range(3000):
        if file.exists() and file.read_text():
            return int(file.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{file}: nothing was written within a minute")


def has_ended(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_process_ends_with_the_block(tmp_path: Path) -> None:
    with call_in_process(sleep, tmp_path / "id"):
        process = wait_for(tmp_path / "id")
        assert not has_ended(process)
    assert has_ended(process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_process_ends_if_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, test_child_process as t; from pathlib import Path\n"
        "with t.call_in_process(t.sleep, Path(sys.argv[1])) as call: call.wait(t.SILENT)"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "id")], env={**os.environ, "PYTHONPATH": paths}
    )
    process = wait_for(tmp_path / "id")
    parent.kill()
    parent.wait()

    deadline = time.monotonic() + 60
    while not has_ended(process):
        assert time.monotonic() < deadline, "the process is still running after a minute"
        time.sleep(0.02)


def test_standard_input_by_its_path_is_read_here(tmp_path: Path) -> None:
    assert not sources.is_on_disk(Path("/dev/stdin"))
    assert not sources.is_on_disk(tmp_path / "nothing")
    (tmp_path / "text").write_text("to be")
    assert sources.is_on_disk(tmp_path / "text")
