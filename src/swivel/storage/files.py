"""What may go: files and folders that nobody needs any more. Receives a path; what cannot go stays, and is no error."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path


def remove_file(path: Path) -> None:
    """Remove a file; one that is not there, or cannot go, is no error."""
    with contextlib.suppress(OSError):
        path.unlink()


def remove_tree(path: Path) -> None:
    """Remove a folder and all that is in it, or a file; what is not there, or cannot go, is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        remove_file(path)
