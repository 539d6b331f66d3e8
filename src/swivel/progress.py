"""Events of a long job, for whoever wants to draw them.

A stage receives a `Progress` and reports to it; it never prints. `SILENT` is the default; the command line
draws bars (`swivel.cli`), a notebook or a log may do as they like.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    def say(self, text: str) -> None:
        """One line that a person should see: a forecast, a choice that was made, a warning."""


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

    def say(self, text: str) -> None:
        """Do nothing."""


SILENT: Progress = SilentProgress()


@contextmanager
def track(progress: Progress, job: str, total: float | None, unit: str) -> Iterator[Task]:
    """Open a task for the length of a `with` block."""
    task = progress.begin(job, total, unit)
    try:
        yield task
    finally:
        progress.end(task)
