"""The last line that an interrupted command prints: what was saved, and what running it again does."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import click

from swivel.cli.options import Command

RESUMES = "run the same command again to resume"
STARTS_OVER = "nothing was saved; the same command starts over"

# Folders of the finished stages of each command, relative to its output folder; not used with --overwrite.
FINISHED = {
    **dict.fromkeys(("count", "import", "add", "extend", "train"), ("",)),
    **dict.fromkeys(("run", "demo"), ("matrix", "vectors")),
    "reproduce": ("corpus", "matrices/*", "vectors/*", "evaluation/*"),
}
CHECKPOINTS = {
    "train": "checkpoint-*",
    "run": "vectors/checkpoint-*",
    "demo": "vectors/checkpoint-*",
    "reproduce": "vectors/*/checkpoint-*",
}


def say_goodbye(number: int) -> None:
    """Print why the command ends and what was saved; further signals are ignored."""
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)

    why = "terminated" if number == signal.SIGTERM else "interrupted"
    kept = "" if Command.running is None else describe_kept(Command.running)
    with contextlib.suppress(OSError):
        click.echo(f"{why}; {kept}" if kept else why, err=True)


def end_process(status: int) -> NoReturn:
    """End the process without waiting for threads and for libraries to unload."""
    atexit._run_exitfuncs()  # temporary folders
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def describe_kept(context: click.Context) -> str:
    """Return what running a command again will do; empty for commands that save nothing."""
    from swivel.storage.manifest import MANIFEST

    verb = str(context.info_name)
    output = context.params.get("output")
    if verb not in FINISHED or output is None:
        return ""

    patterns = [] if context.params["overwrite"] else list(FINISHED[verb])
    if verb in CHECKPOINTS:
        patterns.append(CHECKPOINTS[verb])
    is_kept = any(any(Path(output).glob(f"{pattern}/{MANIFEST}".lstrip("/"))) for pattern in patterns)
    return RESUMES if is_kept else STARTS_OVER
