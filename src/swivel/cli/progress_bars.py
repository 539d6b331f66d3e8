"""Progress bars on standard error; one line per minute if it is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from swivel.runtime.progress import Task

SECONDS_PER_LINE = 60


class _Bar:
    def __init__(self, display: Any, number: Any) -> None:
        self._display, self.number = display, number

    def advance(self, amount: float = 1, note: str = "") -> None:
        self._display.update(self.number, advance=amount)
        if note:
            self._display.update(self.number, note=note)


class LogLines:
    """A task without a terminal: prints one line per minute, for logs."""

    number = None

    def __init__(self, job: str, total: float | None, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.job, self.total, self.unit, self._clock = job, total, unit, clock
        self._done, self._told, self._at, self._note = 0.0, 0.0, clock(), ""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Add to the work done, and print a line if the last one is a minute old."""
        self._done += amount
        self._note = note or self._note
        now = self._clock()
        if now - self._at >= SECONDS_PER_LINE:
            sys.stderr.write(self._line((self._done - self._told) / (now - self._at)) + "\n")
            sys.stderr.flush()
            self._told, self._at = self._done, now

    def _line(self, speed: float) -> str:
        parts = [format_rate(speed, self.unit)]
        if self.total:
            parts.insert(0, f"{100 * self._done / self.total:.0f} %")
            left = (self.total - self._done) / speed if speed else 0.0
            parts.append(f"{timedelta(seconds=round(left))} left")
        return f"{self.job}: {', '.join(part for part in parts if part)}{f'; {self._note}' if self._note else ''}"


class BarProgress:
    """Draws bars if standard error is a terminal, and prints messages there."""

    def __init__(self) -> None:
        self._display: Any = None
        self._is_terminal = sys.stderr.isatty()

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Start a bar."""
        if not self._is_terminal:
            return LogLines(job, total, unit)
        if self._display is None:
            self._display = _create_display()
            self._display.start()
        number = self._display.add_task(job, total=total, unit=unit, note="")
        return _Bar(self._display, number)

    def end(self, task: Any) -> None:
        """Remove the bar, and the display with the last bar."""
        if self._display is None or task.number is None:
            return
        self._display.remove_task(task.number)
        if not self._display.tasks:
            self._display.stop()
            self._display = None

    def message(self, text: str) -> None:
        """Print a message, above the bars."""
        if self._display is not None:
            self._display.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Do nothing; the note of the bar shows the values."""


def format_rate(speed: float | None, unit: str) -> str:
    """Return a rate in units per second, scaled to thousands, millions or billions.

    >>> format_rate(2_500_000, "cells")
    '2.5 M cells/s'
    """
    if not speed:
        return ""
    for size, letter in ((1e9, "G "), (1e6, "M "), (1e3, "k ")):
        if speed >= size:
            return f"{speed / size:.1f} {letter}{unit}/s"
    return f"{speed:.1f} {unit}/s"


def _create_display() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(format_rate(task.speed, task.fields["unit"]))

    class BarsWithNotes(Progress):
        """Notes are on a separate line, because beside the bar they would be cut off at 80 columns."""

        def get_renderables(self) -> Iterator[Any]:
            for task in self.tasks:
                yield self.make_tasks_table([task])
                if task.fields["note"]:
                    yield Text("  " + task.fields["note"], no_wrap=True, overflow="ellipsis")

    def whole() -> Column:
        return Column(no_wrap=True)

    return BarsWithNotes(
        TextColumn("{task.description}", table_column=whole()),
        BarColumn(bar_width=24, table_column=whole()),
        TextColumn("{task.percentage:>3.0f}%", table_column=whole()),
        Rate(table_column=whole()),
        TimeRemainingColumn(table_column=whole()),
        TextColumn("left", table_column=whole()),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=20,
    )
