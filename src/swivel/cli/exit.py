"""The last line that an interrupted command prints: what was saved, and what running it again does."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

RESUMES = "run the same command again to resume"
STARTS_OVER = "nothing was saved; the same command starts over"

# Folders of the finished stages of each command, relative to its output folder; not used with --overwrite.
FINISHED = {
    "count": ("",),
    "import": ("",),
    "add": ("",),
    "extend": ("",),
    "train": ("",),
    "run": ("matrix", "vectors"),
    "demo": ("matrix", "vectors"),
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
    kept = describe_kept(sys.argv[1:])
    with contextlib.suppress(OSError):
        click.echo(f"{why}; {kept}" if kept else why, err=True)


@contextlib.contextmanager
def leave_at_once() -> Iterator[None]:
    """End the process at once if a signal ends the block, without waiting for threads and for libraries to unload."""
    try:
        yield
    except SystemExit as leave:
        if leave.code not in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            raise
        atexit._run_exitfuncs()  # temporary folders
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(leave.code))


def describe_kept(arguments: Sequence[str]) -> str:
    """Return what running a command again will do; empty for commands that save nothing.

    >>> describe_kept(["count", "text.txt", "-o", "nowhere"])
    'nothing was saved; the same command starts over'
    """
    from swivel.storage.manifest import MANIFEST

    verb = next((argument for argument in arguments if not argument.startswith("-")), "")
    output = find_output(arguments)
    if verb not in FINISHED or output is None:
        return ""
    patterns = [] if "--overwrite" in arguments else list(FINISHED[verb])
    patterns += [CHECKPOINTS[verb]] if verb in CHECKPOINTS else []
    is_kept = any(any(output.glob(f"{pattern}/{MANIFEST}".lstrip("/"))) for pattern in patterns)
    return RESUMES if is_kept else STARTS_OVER


def find_output(arguments: Sequence[str]) -> Path | None:
    """Return the folder of --output.

    >>> find_output(["count", "-owork"]), find_output(["train", "m", "--output", "work"]), find_output(["info"])
    (PosixPath('work'), PosixPath('work'), None)
    """
    for place, argument in enumerate(arguments):
        if argument in ("-o", "--output"):
            return Path(arguments[place + 1]) if place + 1 < len(arguments) else None
        if argument.startswith("--output="):
            return Path(argument.partition("=")[2])
        if argument.startswith("-o"):
            return Path(argument[2:])
    return None
