"""Folder locks, which allow one writer at a time in a result folder; removal of what killed processes left there.

The library filelock is not used: it does not say who holds a lock, leaves its file in the folder, and raises an error
on file systems without locks (ENOLCK, ENOTSUP).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from swivel.errors import FolderExists, FolderLocked, StorageError, clear_errors
from swivel.storage.manifest import read_record
from swivel.storage.temporary import find_leftovers, remove_file, remove_leftovers, remove_tree

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

    The operating system releases the lock when the process ends for any reason, so a file that was left behind has no
    effect. Its content is only used in error messages.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
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

        os.lseek(handle, 0, os.SEEK_SET)
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
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
        if self._is_at_path(handle):
            remove_file(self.path)

        with contextlib.suppress(OSError):
            _set_lock(handle, False)  # Closing alone keeps the lock if a forked child has the file open.
        os.close(handle)

        # Windows cannot remove an open file. This fails, as it should, if the next holder has opened it.
        if os.name == "nt":
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
