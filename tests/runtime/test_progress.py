"""Progress events of long jobs."""

from __future__ import annotations

import pytest

from swivel.runtime.progress import SILENT, SilentProgress, Task, track


class Recorder(SilentProgress):
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
