"""Progress of long jobs: events, their times, training curves for TensorBoard, and bars.

Stages never print: they report to a `Progress` object. `SILENT` ignores all events, `BarProgress` draws bars on a
terminal and in a notebook for jobs that take longer than a second, and loggers can inherit from `Progress`.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from swivel.errors import ConfigError, SwivelWarning, clear_errors, needs_extra
from swivel.runtime.display import escape_controls
from swivel.runtime.resources import is_leading

DELAY_SECONDS = 1.0  # after which bars appear
_SECONDS_PER_DRAWING = 0.1


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
        # By identity, because several tasks may have the same name; keeping the tasks keeps their ids unique.
        self._running: dict[int, tuple[Task, str, float]] = {}

    @property
    def total(self) -> float:
        """Seconds since the stopwatch was created."""
        return self._clock() - self._started

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Forward the event and start timing the job."""
        task = super().begin(job, total, unit)
        self._running[id(task)] = task, job, self._clock()
        return task

    def end(self, task: Task) -> None:
        """Forward the event and record the duration; the durations of tasks with the same name are added."""
        _, job, started = self._running.pop(id(task))
        self.seconds[job] = self.seconds.get(job, 0.0) + self._clock() - started
        super().end(task)


class TensorboardProgress(ForwardingProgress):
    """Progress that writes measured values to `folder` for `tensorboard --logdir`; needs the extra `tensorboard`.

    These files are the only ones that `swivel.storage` does not write.
    """

    def __init__(self, folder: str | Path, progress: Progress = SILENT) -> None:
        # Fail now if the library is missing, not after the text was counted.
        with needs_extra("curves for TensorBoard", "tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

        super().__init__(progress)
        self.folder = Path(folder)
        self._make_writer = SummaryWriter
        self._writer: Any = None  # Making one creates the folder, so it waits for the first value.

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Write values measured at a step."""
        with clear_errors(self.folder):
            self._writer = self._writer or self._make_writer(log_dir=str(self.folder))
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()  # Twenty points per epoch: nothing is lost if the run is killed.

        super().measure(step, values)


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


def choose_progress(progress: Progress | bool | None = None) -> Progress:
    """Return a receiver of progress events.

    False gives one that ignores all events. True and None give bars on a terminal and in a notebook, and no output
    anywhere else. Of the ranks that torchrun starts, only the first one draws.
    """
    if isinstance(progress, Progress):
        return progress
    if progress is not None and not isinstance(progress, bool):
        raise ConfigError(f"progress must be a Progress, True or False, got {progress!r}", argument="progress")

    if progress is False or not is_leading():
        return SILENT
    if _is_notebook():
        return BarProgress(lambda: create_display(in_notebook=True))
    return BarProgress(create_display) if os.isatty(2) else SILENT


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class _Bar(Task):
    def __init__(self, display: Any, number: int) -> None:
        self.display = display
        self.number = number

    def advance(self, amount: float = 1, note: str = "") -> None:
        fields = {"note": escape_controls(note)} if note else {}
        self.display.update(self.number, advance=amount, **fields)


class BarProgress(Progress):
    """Draws a bar for each job; the bars appear if the first of them takes longer than a delay.

    Parameters
    ----------
    create_display
        Returns an object with the methods of `rich.progress.Progress` that are used here.
    delay_seconds
        Seconds after which the bars appear.
    """

    def __init__(self, create_display: Callable[[], Any], delay_seconds: float = DELAY_SECONDS) -> None:
        self._create_display = create_display
        self._delay_seconds = delay_seconds
        self._display: Any = None
        self._timer: Any = None
        self._lock = threading.Lock()

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Start a bar."""
        with self._lock:
            if self._display is None:
                self._display = self._create_display()
                self._timer = threading.Timer(self._delay_seconds, self._show, [self._display])
                self._timer.daemon = True
                self._timer.start()
            number = self._display.add_task(escape_controls(job), total=total, unit=unit, note="")
            return _Bar(self._display, number)

    def _show(self, display: Any) -> None:
        with self._lock:
            if display is self._display:  # Otherwise the job has just ended.
                display.start()

    def end(self, task: Any) -> None:
        """Remove the bar, and the display with the last bar."""
        with self._lock:
            self._display.remove_task(task.number)
            if not self._display.tasks:
                self._timer.cancel()
                self._display.stop()
                self._display = None


def describe_work(done: float, total: float | None, speed: float, unit: str, note: str = "") -> str:
    """Return the part that is done, the rate, the time left and a note.

    >>> describe_work(250, 1000, 50, "cells", "epoch 1")
    '25 %, 50.0 cells/s, 0:00:15 left; epoch 1'
    """
    parts = [format_rate(speed, unit)]
    if total:
        parts.insert(0, f"{100 * done / total:.0f} %")
        seconds_left = (total - done) / speed if speed else 0.0
        parts.append(f"{timedelta(seconds=round(seconds_left))} left")
    return ", ".join(filter(None, parts)) + (f"; {note}" if note else "")


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


def _open_console(in_notebook: bool) -> Any:
    from rich.console import Console

    if not in_notebook:
        return Console(stderr=True)
    # Kernels ask for colors, which not every front end shows.
    return Console(file=io.StringIO(), width=100, force_jupyter=False, force_terminal=False)


def create_display(*, in_notebook: bool = False) -> Any:
    """Return bars of rich, on standard error or in the output of a notebook cell; they disappear at the end."""
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(format_rate(task.speed, task.fields["unit"]))

    class BarsWithNotes(RichProgress):
        """Notes are on a separate line, because beside the bar they would be cut off at 80 columns."""

        def get_renderables(self) -> Iterator[Any]:
            for task in self.tasks:
                yield self.make_tasks_table([task])
                if task.fields["note"]:
                    yield Text("  " + task.fields["note"], no_wrap=True, overflow="ellipsis")

    class CellBars(BarsWithNotes):
        """Bars as text, which every front end of notebooks shows; rich itself needs widgets there."""

        _cell: Any = None
        _drawn_at = 0.0

        def start(self) -> None:
            import IPython.display

            show: Any = IPython.display.display  # It has no types.
            self._cell = show(self._draw(), raw=True, display_id=True)

        def update(self, *arguments: Any, **fields: Any) -> None:
            super().update(*arguments, **fields)
            if time.monotonic() - self._drawn_at >= _SECONDS_PER_DRAWING:
                self.refresh()

        def refresh(self) -> None:
            if self._cell is not None:
                self._cell.update(self._draw(), raw=True)

        stop = refresh  # without the bars, which were removed

        def _draw(self) -> dict[str, str]:
            self._drawn_at = time.monotonic()
            with self.console.capture() as text:
                self.console.print(*self.get_renderables(), sep="\n")
            return {"text/plain": text.get().rstrip("\n")}

    return (CellBars if in_notebook else BarsWithNotes)(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24, table_column=Column(no_wrap=True)),
        TextColumn("{task.percentage:>3.0f}%"),
        Rate(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("left"),
        console=_open_console(in_notebook),
        transient=True,
        speed_estimate_period=20,
    )
