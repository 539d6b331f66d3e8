"""Progress events of long jobs.

Stages never print: they report to a `Progress` object. `SILENT` ignores all events, `swivel.runtime.progress_bars`
draws bars on a terminal and in a notebook, and loggers can inherit from it.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from swivel.errors import SwivelWarning


class Task:
    """A job whose progress is reported, with a known or unknown amount of work."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Report that `amount` more units are done; `note` replaces the text beside the progress bar."""


class Progress:
    """Receiver of progress events, which ignores them; subclasses override the methods that they need."""

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Start a task of `total` units; None if the total is unknown."""
        return Task()

    def end(self, task: Task) -> None:
        """End a task, whether it succeeded or not."""

    def message(self, text: str) -> None:
        """Report one line for the user, such as an estimate, an automatic choice or a warning."""

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Report values by name, measured at a training step; these are the points of curves."""


SILENT = Progress()


class ForwardingProgress(Progress):
    """Progress that forwards all events to another one; base class of those that also process them."""

    def __init__(self, progress: Progress = SILENT) -> None:
        self.progress = progress

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Forward the event and return the task of the receiver."""
        return self.progress.begin(job, total, unit)

    def end(self, task: Task) -> None:
        """Forward the event."""
        self.progress.end(task)

    def message(self, text: str) -> None:
        """Forward the event."""
        self.progress.message(text)

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Forward the event."""
        self.progress.measure(step, values)


class Stopwatch(ForwardingProgress):
    """Progress that forwards all events and records the duration of each job in `seconds`, by name.

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
        """Seconds since the stopwatch was created."""
        return self._clock() - self._started

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Forward the event and start timing the job."""
        task = super().begin(job, total, unit)
        self._running.append((task, job, self._clock()))
        return task

    def end(self, task: Task) -> None:
        """Forward the event and record the duration; the durations of tasks with the same name are added."""
        # Tasks are compared by identity: several may have the same name.
        for index, (running, job, started) in enumerate(self._running):
            if running is task:
                self.seconds[job] = self.seconds.get(job, 0.0) + self._clock() - started
                del self._running[index]
                break

        super().end(task)


@contextmanager
def warnings_as_messages(progress: Progress) -> Iterator[None]:
    """Report Swivel's warnings as messages while the block runs.

    Warnings of other libraries are for developers: they are shown only if Python was asked to (`-W`, PYTHONWARNINGS).
    """
    # `catch_warnings` would also forget which warnings were shown before.
    usual = warnings.showwarning

    def show(message: Warning | str, *details: Any, **more: Any) -> None:
        if isinstance(message, SwivelWarning):
            progress.message(f"warning: {message}")
        elif sys.warnoptions:
            usual(message, *details, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


@contextmanager
def track(progress: Progress, job: str, total: float | None, unit: str) -> Iterator[Task]:
    """Yield a task that ends with the `with` block."""
    task = progress.begin(job, total, unit)
    try:
        yield task
    finally:
        progress.end(task)
