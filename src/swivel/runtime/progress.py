"""Events of a long job, for whoever wants to draw them.

A stage receives a `Progress` and reports to it; it never prints. `SILENT` is the default; the command line
draws bars (`swivel.cli`), a notebook or a log may do as they like.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Task(Protocol):
    """One bar: a job with a known or unknown amount of work."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Report `amount` more units done; `note` replaces the text beside the bar."""


class Progress(Protocol):
    """Receiver of the events of a run."""

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Start a task of `total` units (None: unknown)."""

    def end(self, task: Task) -> None:
        """The task is over, done or not."""

    def message(self, text: str) -> None:
        """One line that a person should see: a forecast, a choice that was made, a warning."""

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers by name, measured at a step of the job: points of curves, for whoever draws them."""


class _SilentTask:
    def advance(self, amount: float = 1, note: str = "") -> None:
        pass


class SilentProgress:
    """Draws nothing."""

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Return a task that ignores its reports."""
        return _SilentTask()

    def end(self, task: Task) -> None:
        """Do nothing."""

    def message(self, text: str) -> None:
        """Do nothing."""

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Do nothing."""


SILENT: Progress = SilentProgress()


class ForwardingProgress:
    """Hands every event on to another receiver: the base of those that listen in."""

    def __init__(self, progress: Progress = SILENT) -> None:
        self.progress = progress

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Hand it on."""
        return self.progress.begin(job, total, unit)

    def end(self, task: Task) -> None:
        """Hand it on."""
        self.progress.end(task)

    def message(self, text: str) -> None:
        """Hand it on."""
        self.progress.message(text)

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Hand it on."""
        self.progress.measure(step, values)


class Stopwatch(ForwardingProgress):
    """Hands events on and keeps the seconds of each job, by its name.

    >>> watch = Stopwatch(SILENT)
    >>> with track(watch, "counting", 10, "tokens") as task:
    ...     task.advance(10)
    >>> list(watch.seconds)
    ['counting']
    """

    def __init__(self, progress: Progress = SILENT, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(progress)
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._started = clock()
        self._running: list[tuple[Task, str, float]] = []

    @property
    def total(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._started

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Start a job's watch."""
        task = super().begin(job, total, unit)
        self._running.append((task, job, self._clock()))
        return task

    def end(self, task: Task) -> None:
        """Stop it; a job that is done in several parts has the sum."""
        for place, (running, job, started) in enumerate(self._running):
            if running is task:
                self.seconds[job] = self.seconds.get(job, 0.0) + self._clock() - started
                del self._running[place]
                break
        super().end(task)


@contextmanager
def track(progress: Progress, job: str, total: float | None, unit: str) -> Iterator[Task]:
    """Open a task for the length of a `with` block."""
    task = progress.begin(job, total, unit)
    try:
        yield task
    finally:
        progress.end(task)
