"""Operating-system locks on open files, and a test whether a process is alive.

The operating system releases a lock when its process ends. `storage.lock` builds folder locks on these functions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

# On Windows no other process can read a locked byte, so the lock is on a byte after the content of the file.
_LOCKED_BYTE = 1 << 30
_LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}

if sys.platform == "win32":
    import msvcrt

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
        if error.errno not in _LOCKS_UNSUPPORTED:
            raise

    return True


def unlock_file(handle: int) -> None:
    """Release the lock on an open file, if there is one."""
    with contextlib.suppress(OSError):
        _set_lock(handle, False)


def process_is_alive(pid: int) -> bool:
    """Return whether a process of this machine exists; True if that is unknown.

    The operating system reuses process ids, so True may refer to an unrelated process. A scratch folder is then kept
    too long, but never removed too early.
    """
    if os.name == "nt":
        return True  # On Windows, os.kill(pid, 0) sends a Ctrl-C.

    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True

    return True
