"""Tests of jobs in separate processes: measures, progress, errors and signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from reproduce_jobs import FailingJob, InterruptedJob, OrphaningJob, ReportingJob, WaitingJob
from swivel.errors import ConfigError, TrainingError
from swivel.pipeline.reproduce import run_here, run_in_process
from swivel.pipeline.reproduce.subprocess import peak_memory
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SilentProgress, Task


class RecordedProgress(SilentProgress):
    """Record every event, and send SIGINT to this process after the message `waiting`."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self.events.append(("begin", job, total, unit))
        return _RecordedTask(self.events)

    def end(self, task: Task) -> None:
        self.events.append(("end",))

    def message(self, text: str) -> None:
        self.events.append(("message", text))
        if text == "waiting":
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()


class _RecordedTask:
    def __init__(self, events: list[tuple[object, ...]]) -> None:
        self.events = events

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.events.append(("advance", amount, note))


EVENTS = [
    ("message", "1 threads, 1GiB of memory, overwrite True"),
    ("begin", "counting", 3, "sheep"),
    ("advance", 2, "two"),
    ("advance", 1, ""),
    ("end",),
]


def test_progress_of_a_job_is_forwarded_and_its_memory_is_measured() -> None:
    progress = RecordedProgress()
    options = RunOptions(threads=1, memory="1GiB", overwrite=True, progress=progress)
    measure = run_in_process(ReportingJob(megabytes=150), options)
    assert progress.events == EVENTS
    assert measure.seconds is not None
    assert measure.seconds > 0
    assert measure.peak_bytes is None or 150 << 20 < measure.peak_bytes < 600 << 20


def test_a_job_can_run_in_this_process() -> None:
    progress = RecordedProgress()
    measure = run_here(ReportingJob(), RunOptions(threads=1, memory="1GiB", overwrite=True, progress=progress))
    assert progress.events == EVENTS
    assert measure.peak_bytes is None


def test_an_error_of_a_job_is_raised_here_and_its_tasks_end() -> None:
    progress = RecordedProgress()
    with pytest.raises(ConfigError) as caught:
        run_in_process(FailingJob("config"), RunOptions(progress=progress))
    assert str(caught.value) == "no sheep"
    assert progress.events == [("begin", "never ended", None, "sheep"), ("end",)]
    assert "reproduce_jobs.py" in caught.value.__notes__[0]


def test_an_error_that_cannot_be_pickled_is_raised_with_its_name() -> None:
    with pytest.raises(RuntimeError, match=r"^UnpicklableError: one and two$"):
        run_in_process(FailingJob("odd"), RunOptions())


@pytest.mark.parametrize(
    ("how", "message"),
    [("killed", r"status -9; memory probably ran out"), ("left", r"ended with status 3$")],
)
def test_a_killed_process_is_an_error(how: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        run_in_process(FailingJob(how), RunOptions())


def test_an_interrupted_job_saves_before_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "saved.txt"
    with pytest.raises(KeyboardInterrupt):
        run_in_process(WaitingJob(file), RunOptions(progress=RecordedProgress()))
    assert file.read_text() == "saved"


def test_ctrl_c_in_the_terminal_does_not_interrupt_the_job() -> None:
    progress = RecordedProgress()
    run_in_process(InterruptedJob(), RunOptions(progress=progress))
    assert progress.events == [("message", "not interrupted")]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_job_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid.txt"
    with pytest.raises(TrainingError, match="status -9"):
        run_in_process(OrphaningJob(file), RunOptions())
    until = time.monotonic() + 10
    while is_alive(int(file.read_text())):
        assert time.monotonic() < until
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_peak_memory_is_that_of_this_process() -> None:
    peak = peak_memory()
    assert peak is None or peak > 10 << 20
