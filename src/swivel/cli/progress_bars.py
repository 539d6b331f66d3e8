"""Progress bars on standard error; one line per minute if it is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from swivel.cli.options import translate
from swivel.cli.terminal import escape_controls, print_message
from swivel.runtime.progress import Task

SECONDS_PER_LINE = 60


@dataclass(frozen=True, slots=True)
class _Bar:
    display: Any
    number: Any

    def advance(self, amount: float = 1, note: str = "") -> None:
        fields = {"note": escape_controls(note)} if note else {}
        self.display.update(self.number, advance=amount, **fields)


class LogLines:
    """A task without a terminal: prints one line per minute, for logs."""

    number = None

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
            print_message(self._line((self._done - self._done_before) / seconds))
            self._done_before = self._done
            self._printed_at = now

    def _line(self, speed: float) -> str:
        parts = [format_rate(speed, self.unit)]
        if self.total:
            parts.insert(0, f"{100 * self._done / self.total:.0f} %")
            left = (self.total - self._done) / speed if speed else 0.0
            parts.append(f"{timedelta(seconds=round(left))} left")

        note = f"; {self._note}" if self._note else ""
        return f"{self.job}: {', '.join(filter(None, parts))}{note}"


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
        number = self._display.add_task(escape_controls(job), total=total, unit=unit, note="")
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
        text = translate(text)
        if self._display is not None:
            self._display.console.print(escape_controls(text), markup=False, highlight=False)
        else:
            print_message(text)

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

    return BarsWithNotes(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24, table_column=Column(no_wrap=True)),
        TextColumn("{task.percentage:>3.0f}%"),
        Rate(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=20,
    )
