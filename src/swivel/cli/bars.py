"""Progress events drawn in a terminal: bars on standard error, gone when the job is; plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from swivel.progress import Task


class _Bar:
    def __init__(self, display: Any, number: Any) -> None:
        self._display, self.number = display, number

    def advance(self, amount: float = 1, note: str = "") -> None:
        self._display.update(self.number, advance=amount)
        if note:
            self._display.update(self.number, note=note)


class _NoBar:
    number = None

    def advance(self, amount: float = 1, note: str = "") -> None:
        pass


class BarProgress:
    """Draws bars where standard error is a terminal, and prints remarks there or as plain lines."""

    def __init__(self) -> None:
        self._display: Any = None
        self._is_terminal = sys.stderr.isatty()

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Start a bar."""
        if not self._is_terminal:
            return _NoBar()
        if self._display is None:
            self._display = _create_display()
            self._display.start()
        number = self._display.add_task(job, total=total, unit=unit, note="")
        return _Bar(self._display, number)

    def end(self, task: Any) -> None:
        """Take the bar away; with the last one the display goes, too."""
        if self._display is None or task.number is None:
            return
        self._display.remove_task(task.number)
        if not self._display.tasks:
            self._display.stop()
            self._display = None

    def say(self, text: str) -> None:
        """Print a remark, above the bars where there are any."""
        if self._display is not None:
            self._display.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _create_display() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units a second, in thousands or millions."""

        def render(self, task: Any) -> Text:
            if not task.speed:
                return Text("")
            for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
                if task.speed >= size:
                    return Text(f"{task.speed / size:.1f} {letter} {task.fields['unit']}/s")
            return Text(f"{task.speed:.1f} {task.fields['unit']}/s")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=20,
    )
