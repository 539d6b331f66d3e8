"""Temporary names: of files and folders that are being written, and of scratch folders.

A temporary name contains the machine, the process and a random part, so that no two writers share one, and the next
writer can tell whether the process that left it behind is still running.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from swivel.errors import StorageError, clear_errors
from swivel.storage.manifest import fingerprint

_SCRATCH = "scratch-"  # prefix of scratch folders
_PART = ".part"  # suffix of what is being written
# The random part is that of `temporary_path`, or that of `tempfile.mkdtemp` after _SCRATCH.
_OWNED = re.compile(
    r"(?:scratch-|(?P<stem>.*)\.)(?P<machine>[0-9a-f]{8})-(?P<pid>[0-9]+)-(?(stem)[0-9a-f]{8}\.part|[a-z0-9_]{8})",
    re.DOTALL,
)
_ABANDONED_SECONDS = 24 * 60 * 60  # Whether a process of another machine is alive is unknown; it writes more often.
_MIN_STEM_BYTES = 32  # of the name of the result, at the start of a temporary name


def temporary_path(path: Path) -> Path:
    """Return a temporary name next to `path` that no other writer uses."""
    # File systems limit names to 255 bytes or fewer, so that a long name is cut: the temporary one is not longer.
    suffix = f".{_name_process()}-{secrets.token_hex(4)}{_PART}"
    limit = max(len(os.fsencode(path.name)) - len(suffix), _MIN_STEM_BYTES)
    stem = os.fsencode(path.name)[:limit].decode("utf-8", "ignore")  # not half a character
    return path.with_name(stem + suffix)


def refuse_special(path: Path) -> None:
    """Raise StorageError if a path is a device, a pipe or a socket, which a file would replace."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise StorageError(f"{path}: not a regular file, so that no file is written in its place")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary name for `path`. If the block fails, it is removed, and the error names `path` instead."""
    temporary = temporary_path(path)
    try:
        with clear_errors(path):
            refuse_special(path)
            yield temporary
    except BaseException as error:
        remove_tree(temporary)
        if isinstance(error, StorageError):
            error.args = (str(error).replace(str(temporary), str(path)),)
        raise


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder inside `parent`, free of what dead processes left there; it is removed when the block ends."""
    with clear_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(parent)
        path = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{_name_process()}-", dir=parent))

    try:
        yield path
    finally:
        remove_tree(path)


def remove_leftovers(folder: Path, *, is_locked: bool = False) -> None:
    """Remove the temporary files and folders that dead processes left in a folder."""
    for leftover in find_leftovers(folder, is_locked=is_locked):
        remove_tree(leftover)


def find_leftovers(folder: Path, *, is_locked: bool = False) -> list[Path]:
    """Return the temporary files and folders in a folder whose processes are dead."""
    try:
        names = [file.name for file in folder.iterdir()]
    except OSError:  # missing, or not readable
        return []

    leftovers = []
    for name in names:
        owner = _OWNED.fullmatch(name)
        if owner is None:
            continue

        # With the lock of the folder, scratch folders are leftovers even if their process id is in use again, and so is
        # what another machine has not changed for a day. A report of a live process is not: it is written without.
        if owner["machine"] == _name_machine():
            is_leftover = not _is_alive(int(owner["pid"]))
        else:
            is_leftover = is_locked and _is_abandoned(folder / name)
        if is_leftover or (is_locked and is_scratch(name)):
            leftovers.append(folder / name)

    return leftovers


def is_temporary(name: str) -> bool:
    """Return whether a file or folder has a temporary name."""
    return _OWNED.fullmatch(name) is not None


def is_scratch(name: str) -> bool:
    """Return whether a folder has the name of a scratch folder."""
    return name.startswith(_SCRATCH) and is_temporary(name)


def _name_process() -> str:
    return f"{_name_machine()}-{os.getpid()}"


@cache
def _name_machine() -> str:
    """Return eight characters for this machine; containers on one machine, which number processes anew, differ."""
    numbering = ""
    with contextlib.suppress(OSError):  # not Linux
        numbering = str(Path("/proc/self/ns/pid").readlink())
    return fingerprint([socket.gethostname(), numbering])[:8]


def _is_abandoned(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except OSError:  # just removed
        return False


def _is_alive(pid: int) -> bool:
    """Return whether a process of this machine exists; True if that is unknown."""
    # Ids are reused: a leftover of an id that another process has now is kept too long, never removed too early.
    if os.name == "nt":
        return True  # On Windows, os.kill(pid, 0) sends a Ctrl-C.

    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # The process belongs to another user.

    return True


def remove_file(path: Path) -> None:
    """Remove a file if it exists; ignore errors."""
    with contextlib.suppress(OSError):
        path.unlink()


def remove_tree(path: Path) -> None:
    """Remove a folder with its content, or a file, if it exists; ignore errors."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
