"""Writing of files, result folders and folders of other tools: under temporary names, flushed to disk, and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import FolderExists, StorageError, clear_errors
from swivel.storage.arrays import write_array, write_tensors
from swivel.storage.lock import (
    lock_folder,
    remove_file,
    remove_leftovers,
    remove_tree,
    temporary_path,
    wait_for_folder,
    writing,
)
from swivel.storage.manifest import MANIFEST, Manifest, Part, digest_file, read_manifest, seal, to_json
from swivel.storage.output_folder import refuse_foreign

_LINES_PER_WRITE = 1 << 16


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


class FolderWriter:
    """Writer of a result folder: write the parts, then call `finish` to write the manifest.

    >>> import tempfile
    >>> import numpy as np
    >>> from swivel.storage.manifest import open_folder
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with create_folder(Path(parent) / "new", "example") as folder:
    ...         folder.write_array("numbers.npy", np.arange(3))
    ...         folder.finish(config={}, inputs={}, facts={"size": 3})
    ...     open_folder(Path(parent) / "new", "example").array("numbers.npy").tolist()
    [0, 1, 2]
    """

    def __init__(self, path: Path, stage: str) -> None:
        self.path = path
        self.stage = stage
        self._parts: dict[str, Part] = {}

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write lines of text as the part `name`, in UTF-8."""
        remaining = iter(lines)
        with self._create_part(name) as file:
            while batch := list(islice(remaining, _LINES_PER_WRITE)):
                file.write(("\n".join(batch) + "\n").encode())

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write an array as the part `name`, in `.npy` format."""
        # The file is not memory-mapped: a full disk then raises an OSError and does not kill the process.
        with self._create_part(name) as file:
            write_array(file, array)

    def write_tensors(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays as the part `name`, in safetensors format."""
        with self._create_part(name) as file:
            write_tensors(file, tensors)

    @contextlib.contextmanager
    def _create_part(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a temporary file to write, and adopt the file if the block succeeds."""
        with writing(self.path / name) as temporary:
            with temporary.open("xb") as file:
                yield file
            self.adopt(name, temporary)

    def adopt(self, name: str, file: Path) -> None:
        """Flush a complete file on the same disk and rename it; Windows cannot if it is memory-mapped."""
        with clear_errors(file), ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(flush, file)  # The disk works while the checksum is computed.
            part = Part(file.stat().st_size, digest_file(file))
            flushed.result()

            # The old result stays complete until the first new part is on the disk.
            self._remove_previous_result()
            self._parts[name] = part
            file.replace(self.path / name)

    def _remove_previous_result(self) -> None:
        """Remove the previous result when the first new part is complete; its manifest is removed first."""
        if self._parts or not (self.path / MANIFEST).exists():
            return

        with clear_errors(self.path):
            try:
                parts = list(read_manifest(self.path).parts)
            except StorageError:
                parts = []

            # The manifest first: a folder must never look complete with parts of two results.
            for name in (MANIFEST, *parts):
                (self.path / name).unlink(missing_ok=True)

    def finish(self, *, config: Any, inputs: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Write the manifest, which makes the folder complete: settings, fingerprints of the inputs, other facts."""
        parts = dict(sorted(self._parts.items()))
        manifest = Manifest(self.stage, to_json(config), dict(inputs), dict(facts), parts)

        # Also if the result has no parts at all.
        self._remove_previous_result()
        with clear_errors(self.path):
            flush(self.path)  # The parts must be on disk before the manifest is.
            write_file(self.path / MANIFEST, seal(asdict(manifest)))
            try:
                flush(self.path)
            except OSError:
                # The new directory entry may not survive a power failure, so the folder must not count as complete.
                remove_file(self.path / MANIFEST)
                raise

    def remove_parts(self) -> None:
        """Remove the parts that were written, unless the folder is complete."""
        if not (self.path / MANIFEST).exists():
            for name in self._parts:
                remove_file(self.path / name)


@contextlib.contextmanager
def create_folder(path: str | Path, stage: str, *, overwrite: bool = False) -> Iterator[FolderWriter]:
    """Yield the writer of a folder, which is locked against other processes while the block runs.

    Files in the folder that are not parts are kept. Raises FolderExists if the folder is complete, unless `overwrite`
    is True: its parts are then removed when the first new part is complete. If the block raises before the folder is
    complete, the new parts are removed.
    """
    path = Path(path)
    if not overwrite:
        refuse_foreign(path, stage)

    with lock_folder(path):
        if not overwrite and (path / MANIFEST).exists():
            raise FolderExists(f"{path}: finished already; choose another folder or pass overwrite=True")

        writer = FolderWriter(path, stage)
        try:
            yield writer
        except BaseException:
            writer.remove_parts()
            raise
