"""What a command prints: results on standard output, messages and progress on standard error, and faults of both."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

from swivel.cli.flags import translate
from swivel.runtime.control_characters import CONTROL, escape_controls
from swivel.runtime.progress import BarProgress, Task, create_display, describe_work

SECONDS_PER_LINE = 60  # of a log


def quote(word: str) -> str:
    """Return a word of a command as it can be pasted into a shell, also one with control characters.

    >>> quote("my work"), quote("a\\nb")
    ("'my work'", "$'a\\\\nb'")
    """
    if CONTROL.search(word) is None:
        return shlex.quote(word)
    return "$'" + escape_controls(word.replace("\\", "\\\\").replace("'", "\\'")) + "'"


def shown(text: str) -> str:
    """Return a text as standard output shows it: escaped on a terminal, unchanged in a file or a pipe."""
    return escape_controls(text) if sys.stdout.isatty() else text


def print_result(*lines: str) -> None:
    """Print lines of the result."""
    # click would remove what looks like a color, also from data in a pipe.
    for line in lines:
        sys.stdout.write(shown(line) + "\n")
        sys.stdout.flush()


def print_json(data: Any) -> None:
    """Print the result as one line of JSON, in which control characters are JSON's own escapes."""
    text = json.dumps(data, ensure_ascii=False)
    print_result(CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def print_message(line: str) -> None:
    """Print one line for the user on standard error."""
    sys.stderr.write(escape_controls(line) + "\n")
    sys.stderr.flush()


class _StandardStream(io.RawIOBase):
    """Standard output or standard error. What cannot be written is an error if it is a result, and dropped if not."""

    def __init__(self, raw: Any, *, has_results: bool) -> None:
        self._raw = raw
        self._has_results = has_results
        self._is_broken = False

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self._raw.isatty())

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def write(self, data: Any) -> int:
        """Write bytes and return their number."""
        if self._is_broken:
            return len(data)

        try:
            written = self._raw.write(data)
            if written is None:  # The stream does not block, and its reader is slow.
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return int(written)
        except OSError as error:
            if not self._has_results:
                return len(data)
            self._is_broken = True  # Python writes what is left when it exits, and would fail again.
            raise OSError(error.errno, error.strerror, "standard output") from error


def protect_streams() -> None:
    """Make messages that cannot be written no reason to end a job, and a lost result a clear error.

    This holds for streams that are closed, full, or whose reader has ended.
    """
    for number in (0, 1, 2):
        _fill_closed(number)

    # A library may print, too: it must not get an exception for its message.
    sys.stdout = _wrap(sys.stdout, 1, has_results=True)
    sys.stderr = _wrap(sys.stderr, 2, has_results=False)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)


def _fill_closed(number: int) -> None:
    """Occupy the number of a closed standard stream; otherwise a result file could get it, and messages with it."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDONLY)  # The lowest free number is this one. Writing to it fails.
        os.set_inheritable(number, True)


def _wrap(stream: Any, number: int, *, has_results: bool) -> io.TextIOWrapper:
    if stream is None:  # It was closed when the process started.
        raw: Any = io.FileIO(number, "w", closefd=False)
    else:
        raw = getattr(stream.buffer, "raw", stream.buffer)  # Without a buffer (PYTHONUNBUFFERED), it is the raw stream.

    return io.TextIOWrapper(
        io.BufferedWriter(_StandardStream(raw, has_results=has_results)),
        encoding=getattr(stream, "encoding", None),
        errors="backslashreplace",  # words that the encoding does not have
        line_buffering=True,
    )


class LogLines(Task):
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
        # The speed is that since the last line: a job is slow at first, while kernels are compiled.
        seconds = now - self._printed_at
        if seconds >= SECONDS_PER_LINE:
            speed = (self._done - self._done_before) / seconds
            print_message(f"{self.job}: {describe_work(self._done, self.total, speed, self.unit, self._note)}")
            self._done_before = self._done
            self._printed_at = now


class CommandProgress(BarProgress):
    """Draws bars at once if standard error is a terminal, and prints messages there."""

    def __init__(self) -> None:
        super().__init__(create_display, delay_seconds=0)
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
        # A line that is printed beside a bar would be drawn over.
        if self._display is not None:
            self._display.console.print(escape_controls(text), markup=False, highlight=False)
        else:
            print_message(text)
