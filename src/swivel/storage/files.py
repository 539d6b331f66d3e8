"""Writing of files and of folders in formats of other tools: under a temporary name, flushed to disk, and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import FolderExists
from swivel.storage.lock import wait_for_folder
from swivel.storage.temporary import remove_leftovers, remove_tree, temporary_path, writing


def flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are stored on disk."""
    is_folder = path.is_dir()
    try:
        # Windows only flushes files that are open for writing, and cannot open folders.
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    except OSError as error:
        if is_folder:
            return
        if not isinstance(error, PermissionError):
            raise
        handle = os.open(path, os.O_RDONLY)

    try:
        os.fsync(handle)
    except OSError as error:
        # File systems may not support it for folders.
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def create_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file to write, and rename it to `path` if the block succeeds; otherwise `path` is unchanged.

    Of several writers of one file, the last one to finish provides it.
    """
    with writing(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)

        with temporary.open("xb") as file:
            yield file
        flush(temporary)
        temporary.replace(path)


@contextlib.contextmanager
def create_pair(path: Path, companion: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield temporary files for two files of one folder that belong together, and rename both if the block succeeds."""
    with writing(path) as temporary, writing(companion) as other:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)

        with temporary.open("xb") as file, other.open("xb") as companion_file:
            yield file, companion_file
        flush(temporary)
        flush(other)

        # At no moment `path` exists next to a companion that belongs to another one.
        with wait_for_folder(path.parent):
            path.unlink(missing_ok=True)
            other.replace(companion)
            temporary.replace(path)


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file under a temporary name, flush it and rename it."""
    with create_file(path) as file:
        file.write(data)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to one uncompressed `.npz` file."""
    with create_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


@contextlib.contextmanager
def build_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, for another tool, and rename it to `path` if the block succeeds.

    An existing folder is replaced if it has the same files; otherwise FolderExists is raised. Of several writers, the
    last one to finish provides the folder.
    """
    with writing(path) as temporary:
        temporary.mkdir(parents=True)
        remove_leftovers(path.parent)
        yield temporary

        flush(temporary)
        with wait_for_folder(path.parent):
            _replace_folder(temporary, path)


def _replace_folder(temporary: Path, path: Path) -> None:
    """Rename a folder to `path`, in place of one that has no other files."""
    if not path.is_dir():
        temporary.replace(path)
        return

    names = {file.name for file in temporary.iterdir()}
    if not {file.name for file in path.iterdir()} <= names:
        raise FolderExists(f"{path}: exists already, with other files; choose another folder, or remove it")

    # A folder cannot be renamed onto another one, so the old one is moved away first, and back on an error.
    previous = temporary_path(path)
    path.replace(previous)
    try:
        temporary.replace(path)
    except OSError:
        previous.replace(path)
        raise
    remove_tree(previous)


@contextlib.contextmanager
def place_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, and rename it to `path` if the block succeeds.

    Of several processes that create the same folder, also on several machines, the first one to finish provides it.
    """
    with writing(path) as temporary:
        temporary.mkdir()
        yield temporary

        for file in temporary.iterdir():
            flush(file)
        try:
            temporary.replace(path)
        except OSError:
            if not path.is_dir():  # If it is a folder, another process was faster.
                raise
            remove_tree(temporary)
