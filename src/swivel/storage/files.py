"""Removal of files and folders that are no longer needed. Failures are ignored."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path


def remove_file(path: Path) -> None:
    """Remove a file if it exists; ignore errors."""
    with contextlib.suppress(OSError):
        path.unlink()


def remove_tree(path: Path) -> None:
    """Remove a folder with its content, or a file, if it exists; ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        remove_file(path)
