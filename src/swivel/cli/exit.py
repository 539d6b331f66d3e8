"""The last line that an interrupted command prints: what was saved, and what running it again does.

Nothing that imports NumPy is imported here: if the signal came while NumPy was imported, a second import fails.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import click

from swivel.cli.flags import Command
from swivel.cli.terminal import print_message, quote

RESUMES = "run the same command again to resume"
STARTS_OVER = "nothing was saved; the same command starts over"
COMPLETE = "the result is complete"

MANIFEST = "manifest.json"  # as in `swivel.storage`
TUNING = "tuning.json"  # as in `swivel.pipeline.train`

# Folders of the finished stages of each command, relative to its output folder; not used with --overwrite.
FINISHED = {
    **dict.fromkeys(("count", "import", "add", "extend", "train"), ("",)),
    **dict.fromkeys(("run", "demo"), ("matrix", "vectors")),
}
CHECKPOINTS = {"train": "checkpoint-*", **dict.fromkeys(("run", "demo"), "vectors/checkpoint-*")}


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
    if verb not in FINISHED or output is None:
        return ""

    patterns = [] if context.params["overwrite"] else list(FINISHED[verb])
    if verb in CHECKPOINTS:
        patterns.append(CHECKPOINTS[verb])
    is_kept = any(any(Path(output).glob(f"{pattern}/{MANIFEST}".lstrip("/"))) for pattern in patterns)
    is_kept |= verb == "train" and (Path(output) / TUNING).exists()
    if not is_kept:
        return STARTS_OVER

    # What came through a pipe cannot be read again, and the same command would be refused.
    sources = context.params.get("texts") or context.params.get("sources") or ()
    if any(_is_pipe(source) for source in sources):
        if verb != "run":
            return COMPLETE
        from swivel.cli.render import name_program

        folder = Path(output)
        command = [name_program(), "train", str(folder / "matrix"), "-o", str(folder / "vectors")]
        return f"resume with the same settings: {' '.join(map(quote, command))}"
    return RESUMES


def _is_pipe(source: str) -> bool:
    """Return whether a source can be read only once, as `swivel.corpus.sources.is_pipe`."""
    path = Path(source)
    return source == "-" or (path.exists() and not path.is_file() and not path.is_dir())
