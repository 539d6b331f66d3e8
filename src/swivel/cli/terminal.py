"""What a command prints: results on standard output, messages and progress on standard error, and faults of both.

The last line that an interrupted command prints says what was saved, and what running it again does. Nothing that
imports NumPy is imported here: if the signal came while NumPy was imported, a second import fails.
"""

from __future__ import annotations

import atexit
import errno
import io
import json
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from swivel.cli.flags import Command, translate
from swivel.runtime.display import CONTROL, escape_controls
from swivel.runtime.progress import BarProgress, Task, create_display, describe_work

if TYPE_CHECKING:
    from swivel.vectors import Guess, Neighbor

SECONDS_PER_LINE = 60  # of a log
BAR_WIDTH = 20  # of the demonstration

# What running an interrupted command again does.
RESUMES = "run the same command again to resume"
STARTS_OVER = "nothing was saved; the same command starts over"
COMPLETE = "the result is complete"
MANIFEST = "manifest.json"  # as in `swivel.storage`
TUNING = "tuning.json"  # as in `swivel.pipeline.train`

# Folders of finished stages and of checkpoints, relative to the output folder of each command.
KEPT = {
    **dict.fromkeys(("count", "import", "add", "extend"), ("",)),
    "train": ("", "checkpoint-*"),
    **dict.fromkeys(("run", "demo"), ("matrix", "vectors", "vectors/checkpoint-*")),
}


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


def show(data: Any, draw: Callable[[], None]) -> None:
    """Print the result of the running command as JSON if it has the flag --json, else as text."""
    parameters = click.get_current_context().params
    try:
        if parameters["json"]:
            print_json(data)
        else:
            draw()
    except OSError as error:
        # If standard output has no reader, a result that is in a folder or file is not lost.
        is_kept = parameters.get("output") or parameters.get("file")
        if not (is_kept and error.errno in (errno.EPIPE, errno.EBADF)):
            raise


def align_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column to the left, the others, which are numbers, to the right."""
    # Widths are those of the escaped cells: a control character would shift the columns.
    rows = [list(map(shown, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for first, *numbers in (header, *rows):
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def draw_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    print_result(*align_table(header, rows))


def draw_neighbors(answers: Mapping[str, Sequence[Neighbor]], guesses: Mapping[str, Guess] | None = None) -> None:
    """Print answers under their questions; a question whose vector was guessed is marked."""
    for question, neighbors in answers.items():
        guess = (guesses or {}).get(question)
        mark = f"  (a guess from the spelling; expected cosine {guess.expected_cosine:.2f})" if guess else ""
        print_result(f"{question}{mark}")
        if not neighbors:
            print_result("  (no neighbors)")
        for neighbor in neighbors:
            print_result(f"  {neighbor.similarity:6.3f}  {neighbor.token}")


def draw_facts(data: Mapping[str, Any], indent: str = "") -> None:
    """Print nested facts, one per line."""
    for name, value in data.items():
        if isinstance(value, dict):
            print_result(f"{indent}{name}:")
            draw_facts(value, indent + "  ")
        else:
            print_result(f"{indent}{name}: {_fact(value)}")


def _fact(value: Any) -> str:
    """Return one fact as text; of a long list of records (the losses), only the first and the last."""
    match value:
        case None:
            return "-"
        case dict():
            return ", ".join(f"{name} {_fact(inner)}" for name, inner in value.items())
        case [dict(), *_]:
            return f"{_fact(value[0])} at first; {_fact(value[-1])} after {len(value)}"
        case list():
            return ", ".join(map(_fact, value))
        case float():
            return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def draw_demo(result: Mapping[str, Any]) -> None:
    """Print the results of the demonstration."""
    size = f"{result['words']:,} words, {result['cells']:,} observed cells"
    print_result("", f"{size}: vectors in {result['seconds']:.0f} seconds", "", "Which words are near?", "")
    for word, neighbors in result["neighbors"].items():
        print_result(f"{word:>9}  {', '.join(neighbor.token for neighbor in neighbors)}")

    print_result("", "And what is missing?", "")
    for question, answer in result["analogies"].items():
        print_result(f"{question:>34} is to {answer}")

    print_result("", "The same with many words, and how often the answer is right:", "")
    _, right, total = zip(*result["sections"], strict=True)
    for name, correct, questions in [*result["sections"], ("all", sum(right), sum(total))]:
        share = correct / questions
        bar = "#" * round(BAR_WIDTH * share)
        print_result(f"  {name:>14}  {bar:.<{BAR_WIDTH}}  {share:4.0%} of {questions:,}")
    print_result("")


def next_command(verb: str, path: Path, *words: str) -> str:
    """Return a command that can be pasted into a shell.

    >>> next_command("nearest", Path("my work/vectors"), "tuxedo")
    "next: swivel nearest 'my work/vectors' tuxedo"
    """
    return "next: " + " ".join(map(quote, [name_program(), verb, str(path), *words]))


def name_program() -> str:
    """Return the name of this program, or its path if the shell would find another program of that name."""
    # In a virtual environment that is not activated, only the path of the program works.
    typed = Path(sys.argv[0])
    usual = shutil.which("swivel")
    if typed.name != "swivel" or not typed.is_file() or (usual and typed.samefile(usual)):
        return "swivel"
    return str(typed)


def say_goodbye(number: int) -> None:
    """Print why the command ends and what was saved; further signals are ignored."""
    # The watcher thread of `leave_in_time` calls this as well, and only the main thread may set handlers.
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)

    why = "terminated" if number == signal.SIGTERM else "interrupted"
    outcome = "" if Command.running is None else describe_kept(Command.running)
    print_message(f"{why}; {outcome}" if outcome else why)


def end_process(status: int) -> NoReturn:
    """End the process without waiting for threads and for libraries to unload."""
    atexit._run_exitfuncs()  # temporary folders
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or 1
    # A result is complete by now: nothing is gained by unloading large libraries and joining their threads.
    os._exit(status)


def describe_kept(context: click.Context) -> str:
    """Return what running a command again will do, or which other command; empty for commands that save nothing."""
    verb = str(context.info_name)
    output = context.params.get("output")
    if verb not in KEPT or output is None:
        return ""

    # With --overwrite, only a checkpoint is of this call.
    patterns = [pattern for pattern in KEPT[verb] if "checkpoint" in pattern or not context.params["overwrite"]]
    is_kept = any(any(Path(output).glob(f"{pattern}/{MANIFEST}".lstrip("/"))) for pattern in patterns)
    is_kept |= verb == "train" and (Path(output) / TUNING).exists()
    if not is_kept:
        return STARTS_OVER

    # What came through a pipe cannot be read again, and the same command would be refused.
    sources = context.params.get("texts") or context.params.get("sources") or ()
    if any(_is_pipe(source) for source in sources):
        if verb != "run":
            return COMPLETE
        folder = Path(output)
        command = [name_program(), "train", str(folder / "matrix"), "-o", str(folder / "vectors")]
        return f"resume with the same settings: {' '.join(map(quote, command))}"
    return RESUMES


def _is_pipe(source: str) -> bool:
    """Return whether a source can be read only once, as `swivel.corpus.sources.is_pipe`."""
    path = Path(source)
    return source == "-" or (path.exists() and not path.is_file() and not path.is_dir())
