"""Progress of a command on standard error: bars on a terminal, otherwise one line per minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from swivel.cli.options import translate
from swivel.cli.terminal import print_message
from swivel.runtime.control_characters import escape_controls
from swivel.runtime.progress import Task
from swivel.runtime.progress_bars import BarProgress, create_terminal_display, describe_work

SECONDS_PER_LINE = 60


class LogLines:
    """A task without a terminal: prints one line per minute, for logs."""

    def __init__(self, job: str, total: float | None, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.job = job
        self.total = total
        self.unit = unit
        self._clock = clock
        self._note = ""
        self._done = 0.0
        self._done_before = 0.0  # when the last line was printed
        self._printed_at = clock()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Add to the work done, and print a line if the last one is a minute old."""
        self._done += amount
        self._note = note or self._note
        now = self._clock()
        seconds = now - self._printed_at
        if seconds >= SECONDS_PER_LINE:
            speed = (self._done - self._done_before) / seconds
            print_message(f"{self.job}: {describe_work(self._done, self.total, speed, self.unit, self._note)}")
            self._done_before = self._done
            self._printed_at = now


class CommandProgress(BarProgress):
    """Draws bars at once if standard error is a terminal, and prints messages there."""

    def __init__(self) -> None:
        super().__init__(create_terminal_display, delay_seconds=0)
        self._is_terminal = sys.stderr.isatty()

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Start a bar, or the lines of a log."""
        return super().begin(job, total, unit) if self._is_terminal else LogLines(job, total, unit)

    def end(self, task: Any) -> None:
        """Remove the bar."""
        if self._is_terminal:
            super().end(task)

    def message(self, text: str) -> None:
        """Print a message, above the bars."""
        text = translate(text)
        if self._display is not None:
            self._display.console.print(escape_controls(text), markup=False, highlight=False)
        else:
            print_message(text)
