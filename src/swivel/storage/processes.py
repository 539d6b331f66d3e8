"""Locks of the system on open files, which it takes back when a process ends; and whether a process still runs.

Receives the handle of an open file. It opens, names and removes none: that is `storage`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

_BYTE = 1 << 30  # behind all that is in the file: on Windows nobody may read what is locked
_NO_LOCKS_HERE = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}

if sys.platform == "win32":
    import msvcrt

    def _set_lock(handle: int, is_held: bool) -> None:
        os.lseek(handle, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK if is_held else msvcrt.LK_UNLCK, 1)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
else:
    import fcntl

    def _set_lock(handle: int, is_held: bool) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if is_held else fcntl.LOCK_UN)


def lock_file(handle: int) -> bool:
    """Lock an open file; False where it is locked already, by another process or through another handle.

    A file system that has no locks gives none, and True.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     lock_file(file.fileno())
    True
    """
    try:
        _set_lock(handle, True)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    return True


def unlock_file(handle: int) -> None:
    """Give a lock back, or none where there was none."""
    with contextlib.suppress(OSError):
        _set_lock(handle, False)


def process_is_alive(pid: int) -> bool:
    """Return whether a process of this machine exists; True where that cannot be known.

    The system gives the numbers of dead processes to new ones, so True may speak of a stranger: a scratch folder is
    then kept too long, never removed too soon.
    """
    if os.name == "nt":
        return True  # There, signal 0 is a Ctrl-C.
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
