"""Folders that one process writes at a time: the lock, and holding it for a whole stage.

Receives a folder; refuses it, with the name of the process that has it, or keeps others out for the length of a block.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from swivel.errors import FolderLocked, StorageError, clear_errors
from swivel.storage.files import remove_file, remove_tree
from swivel.storage.processes import lock_file, unlock_file

LOCK = "lock"
SCRATCH = "scratch-"  # how folders begin that last as long as a block of who holds the lock
_LOCK_TRIES = 100  # each ends with another process giving the lock back
_HELD: ContextVar[tuple[Path, ...]] = ContextVar("held", default=())  # by who called the code that runs here


@contextlib.contextmanager
def hold_folder(path: str | Path) -> Iterator[None]:
    """Keep other writers out of a folder while the block runs; what is called inside may create it.

    For stages that read for long before they write: a second one is refused at once, not when it has read all.
    """
    place = Path(path).resolve()
    with _locked(Path(path)):
        before = _HELD.set((*_HELD.get(), place))
        try:
            yield
        finally:
            _HELD.reset(before)


def sweep_folder(path: Path) -> None:
    """Remove what a process that was killed has left in a folder that it had finished."""
    if (path / LOCK).exists() or any(path.glob(f"{SCRATCH}*")):
        # Somebody has it, or it may not be written: then it stays as it is.
        with contextlib.suppress(StorageError), lock_folder(path):
            pass


def lock_folder(path: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a folder for the length of a block, unless the caller holds it."""
    return contextlib.nullcontext() if path.resolve() in _HELD.get() else _locked(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a folder while the block runs; one that was made for that and is empty in the end is gone."""
    with clear_errors(path):
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
        lock.acquire()
    try:
        with clear_errors(path):
            is_alone = lock.keeps_out()
        if is_alone:  # Whoever made these is dead, whatever process or host has its number or name by now.
            for left in path.glob(f"{SCRATCH}*"):
                remove_tree(left)
        yield
    finally:
        lock.release()
        if is_new:
            with contextlib.suppress(OSError):  # It holds something: a result, or what a later call goes on from.
                path.rmdir()


class FolderLock:
    """Keeps a second writer, of this process or another, out of a folder.

    The system holds the lock, on the open file, and takes it back when the process ends, however it does: a file that
    was left behind locks nobody out. What stands in it is for the message only. On a file system that has no locks
    (some of the network's) the folder is written without one, rather than not at all.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise FolderLocked with the holder's process id and host."""
        for _ in range(_LOCK_TRIES):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if self._take(handle):
                    self._handle = handle
                    return
            finally:
                if self._handle != handle:
                    os.close(handle)
        raise FolderLocked(f"{self.path.parent}: other processes keep taking its lock; try again")

    def _take(self, handle: int) -> bool:
        """Lock an open file and sign it; False where its holder removed it between our opening and locking it."""
        if not lock_file(handle):
            raise FolderLocked(f"{self.path.parent}: {self._name_holder()} is writing it; wait for it")
        if not self._is_at_path(handle):
            return False
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        return True

    def _is_at_path(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def _name_holder(self) -> str:
        try:
            holder = json.loads(self.path.read_text())
            return f"process {int(holder['pid'])} on {holder['host']}"
        except (OSError, ValueError, KeyError, TypeError):  # It has not signed yet, or is just going.
            return "another process"

    def keeps_out(self) -> bool:
        """Return whether the file system has locks: whether a second handle is refused."""
        handle = os.open(self.path, os.O_RDWR)
        try:
            return not lock_file(handle)
        finally:
            os.close(handle)

    def release(self) -> None:
        """Give the lock back. A second call does nothing."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        if self._is_at_path(handle):
            remove_file(self.path)  # before unlocking: who has the file open then sees that it is not the lock any more
        unlock_file(handle)  # Closing is not enough where a forked child has the file open, too.
        os.close(handle)
        if os.name == "nt":
            remove_file(self.path)  # Windows removes no file that is open, nor one that the next holder has opened.
