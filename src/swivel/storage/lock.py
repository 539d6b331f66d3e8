"""What keeps writers apart: folder locks, and temporary names of files and folders that are being written.

A lock allows one writer at a time in a result folder. A temporary name contains the machine, the process and a random
part, so that no two writers share one, and the next writer can tell whether the process that left it behind is still
running.

The library filelock is not used: it does not say who holds a lock, leaves its file in the folder, and raises an error
on file systems without locks (ENOLCK, ENOTSUP).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from swivel.errors import FolderExists, FolderLocked, StorageError, clear_errors
from swivel.storage.manifest import MANIFEST, fingerprint, read_record

LOCK = "lock"
LOCK_MARK = b'{"pid": '  # the first bytes, by which the file differs from one of another tool
_OPEN_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MAX_LOCK_ATTEMPTS = 100  # Each failed attempt means that another process released the lock at that moment.
_LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}

# Folders that are locked by a caller of the running code: nested calls may write to them.
_HELD_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("held", default=())

if sys.platform == "win32":
    import msvcrt

    # On Windows no other process can read a locked byte, so the lock is on a byte after the content of the file.
    _LOCKED_BYTE = 1 << 30

    def _set_lock(handle: int, is_held: bool) -> None:
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK if is_held else msvcrt.LK_UNLCK, 1)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
else:
    import fcntl

    def _set_lock(handle: int, is_held: bool) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if is_held else fcntl.LOCK_UN)


_SCRATCH = "scratch-"  # prefix of scratch folders
_PART = ".part"  # suffix of what is being written
# The random part is that of `temporary_path`, or that of `tempfile.mkdtemp` after _SCRATCH.
_OWNED = re.compile(
    r"(?:scratch-|(?P<stem>.*)\.)(?P<machine>[0-9a-f]{8})-(?P<pid>[0-9]+)-(?(stem)[0-9a-f]{8}\.part|[a-z0-9_]{8})",
    re.DOTALL,
)
_ABANDONED_SECONDS = 24 * 60 * 60  # Whether a process of another machine is alive is unknown; it writes more often.
_MIN_STEM_BYTES = 32  # of the name of the result, at the start of a temporary name


def lock_file(handle: int) -> bool:
    """Lock an open file; return False if another process or another handle has locked it.

    Returns True without a lock on file systems that do not support locks.
    """
    try:
        _set_lock(handle, True)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED:
            raise

    return True


class FolderLock:
    """Lock of a folder against a second writer in this or another process; file systems without locks have none.

    The operating system releases the lock when the process ends for any reason, so a file that was left behind locks
    nothing. Its content is used in error messages, and to recognize the files of a killed process, which left them.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.is_kept = False  # whether the file stays when the lock is released
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise FolderLocked with the process id and host of the holder."""
        for _ in range(_MAX_LOCK_ATTEMPTS):
            handle = self._open(os.O_CREAT)
            try:
                if self._take(handle):
                    self._handle = handle
                    return
            finally:
                if self._handle != handle:
                    os.close(handle)

        raise FolderLocked(f"{self.path.parent}: other processes keep taking its lock; try again")

    def _open(self, flags: int = 0) -> int:
        """Open the file of the lock, never through a link: the folder may be received."""
        try:
            handle = os.open(self.path, _OPEN_FLAGS | flags, 0o666)
        except OSError:
            if self.path.is_symlink():
                raise StorageError(f"{self.path}: a link, through which nothing is written; remove it") from None
            raise
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise StorageError(f"{self.path}: not a regular file, so that the folder cannot be locked; remove it")
        return handle

    def _take(self, handle: int) -> bool:
        """Lock an open file and write this process's id to it; return False if it is no longer the lock."""
        if not lock_file(handle):
            raise self.describe_holder()

        # If the holder removed the file after it was opened here, another process may have locked a new one.
        if not self._is_at_path(handle):
            return False

        # A killed process may have written a part of it.
        content = os.read(handle, len(LOCK_MARK))
        if not LOCK_MARK.startswith(content):
            raise FolderExists(
                f"{self.path}: not written by Swivel, which locks folders by a file of this name; move it"
            )

        self.is_kept = bool(content)

        # At no moment is the file without its mark.
        os.lseek(handle, 0, os.SEEK_SET)
        os.ftruncate(handle, os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()))
        return True

    def _is_at_path(self, handle: int) -> bool:
        """Return whether the open file is still the one at the path of the lock."""
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def describe_holder(self) -> FolderLocked:
        """Return the error that names the process which has the lock."""
        try:
            holder = json.loads(read_record(self.path))
            name = f"process {int(holder['pid'])} on {holder['host']}"
        except (OSError, StorageError, ValueError, KeyError, TypeError):  # not written yet, or just removed
            name = "another process"
        return FolderLocked(f"{self.path.parent}: {name} is writing to it; wait until it finishes")

    def keeps_out(self) -> bool:
        """Return whether another handle cannot take the lock: one has it, and the file system supports locks."""
        handle = self._open()
        try:
            return not lock_file(handle)
        finally:
            os.close(handle)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._handle is None:
            return

        handle = self._handle
        self._handle = None

        # Remove the file before unlocking it: a process that has it open then sees that it is no longer the lock.
        if self._is_at_path(handle) and not self.is_kept:
            remove_file(self.path)

        with contextlib.suppress(OSError):
            _set_lock(handle, False)  # Closing alone keeps the lock if a forked child has the file open.
        os.close(handle)

        # Windows cannot remove an open file. This fails, as it should, if the next holder has opened it.
        if os.name == "nt" and not self.is_kept:
            remove_file(self.path)


@contextlib.contextmanager
def hold_folder(path: str | Path) -> Iterator[None]:
    """Lock a folder while the block runs, for what is called in it, too: a second writer fails before it reads."""
    with _locked(Path(path)):
        token = _HELD_FOLDERS.set((*_HELD_FOLDERS.get(), Path(path).resolve()))
        try:
            yield
        finally:
            _HELD_FOLDERS.reset(token)


def refuse_locked(path: Path) -> None:
    """Raise FolderLocked if another process is writing to a folder; what a killed one left of its lock stays there."""
    if path.resolve() in _HELD_FOLDERS.get():
        return
    lock = FolderLock(path)
    try:
        is_taken = lock.keeps_out()
    except (OSError, StorageError):  # There is none, or a finished folder is read-only.
        return
    if is_taken:
        raise lock.describe_holder()


def lock_folder(path: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that locks a folder, unless a caller holds it already."""
    if path.resolve() in _HELD_FOLDERS.get():
        return contextlib.nullcontext()
    return _locked(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a folder while the block runs; create it and those around it if needed, and remove new ones if empty."""
    with clear_errors(path):
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
        lock.acquire()

    try:
        with clear_errors(path):
            is_exclusive = lock.keeps_out()

        # On file systems without locks, another process may be writing to the folder.
        remove_leftovers(path, is_locked=is_exclusive)

        yield

        # If the block raises, the file of a killed process stays, as what else it left does: it says whose that is.
        lock.is_kept = False

    finally:
        lock.release()

        with contextlib.suppress(OSError):  # not empty: it contains a result or a checkpoint
            for folder in created:
                folder.rmdir()


def sweep_folder(path: Path, *names: str) -> None:
    """Remove what a killed process left in a complete folder: lock, temporary names, and the files of these names."""
    leftovers = [path / name for name in (LOCK, *names)]
    if any(file.exists() for file in leftovers) or find_leftovers(path, is_locked=True):
        # Locking and unlocking removes the rest. Nothing changes if the folder is locked or read-only.
        with contextlib.suppress(StorageError), lock_folder(path):
            for name in names:
                remove_tree(path / name)


@contextlib.contextmanager
def wait_for_folder(path: Path) -> Iterator[None]:
    """Lock a folder, without a lock file, against others that rename something in it; they wait where locks exist."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY)  # Windows cannot open folders.
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


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

    # Results in memory have scratch folders there, without its lock.
    is_locked = is_locked and folder.resolve() != Path(tempfile.gettempdir()).resolve()
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
            # First the manifest: what a process that is killed now leaves is no result, and is removed by the next one.
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
