"""Result folders: the only package that writes files.

A folder consists of parts and a manifest. Each part is written under a temporary name, flushed to disk and renamed. The
manifest is written last; it contains the size and checksum of each part, the settings and the fingerprints of the
inputs. A folder without a manifest is incomplete. `docs/file-formats.md` specifies the format.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import FolderExists, StorageError, clear_errors
from swivel.storage.checksums import digest_array as digest_array
from swivel.storage.checksums import digest_file as digest_file
from swivel.storage.lock import FolderLock as FolderLock
from swivel.storage.lock import hold_folder as hold_folder
from swivel.storage.lock import lock_folder, wait_for_folder
from swivel.storage.lock import sweep_folder as sweep_folder
from swivel.storage.manifest import MANIFEST as MANIFEST
from swivel.storage.manifest import REMEDY as REMEDY
from swivel.storage.manifest import Folder as Folder
from swivel.storage.manifest import Manifest as Manifest
from swivel.storage.manifest import Part, to_json
from swivel.storage.manifest import describe_damage as describe_damage
from swivel.storage.manifest import fingerprint as fingerprint
from swivel.storage.manifest import one_line as one_line
from swivel.storage.manifest import open_array as open_array
from swivel.storage.manifest import open_folder as open_folder
from swivel.storage.manifest import read_manifest as read_manifest
from swivel.storage.manifest import seal as seal
from swivel.storage.manifest import unseal as unseal
from swivel.storage.npy import ArrayAppender as ArrayAppender
from swivel.storage.npy import create_array as create_array
from swivel.storage.npy import write_array
from swivel.storage.safetensors import write_tensors
from swivel.storage.temporary import remove_file as remove_file
from swivel.storage.temporary import remove_leftovers, temporary_path, writing
from swivel.storage.temporary import remove_tree as remove_tree
from swivel.storage.temporary import scratch_folder as scratch_folder

_LINES_PER_WRITE = 1 << 16


def flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are stored on disk."""
    if path.is_dir():
        _flush_folder(path)
        return

    try:
        handle = os.open(path, os.O_RDWR)  # Windows only flushes files that are open for writing.
    except PermissionError:
        handle = os.open(path, os.O_RDONLY)

    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush_folder(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return  # Windows cannot open folders.

    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # not supported by the file system
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
    """Yield temporary files for two files of one folder that belong together, and rename both if the block succeeds.

    At no moment `path` exists next to a companion that belongs to another one.
    """
    with writing(path) as temporary, writing(companion) as other:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)

        with temporary.open("xb") as file, other.open("xb") as companion_file:
            yield file, companion_file
        flush(temporary)
        flush(other)

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
    """Yield a temporary folder to fill, and rename it to `path` if the block succeeds.

    This is for folders in other tools' formats, which have no manifest. An existing folder is replaced if it has the
    same files; otherwise FolderExists is raised. Of several writers, the last one to finish provides the folder.
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

    Several processes, also on several machines, may create the same folder at the same time. The first one to finish
    provides it; the folders of the others are removed.
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


@dataclass(slots=True)
class FolderWriter:
    """Writer of a result folder: write the parts, then call `finish` to write the manifest.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with create_folder(Path(parent) / "new", "example") as folder:
    ...         folder.write_array("numbers.npy", np.arange(3))
    ...         folder.finish(config={}, inputs={}, facts={"size": 3})
    ...     open_folder(Path(parent) / "new", "example").array("numbers.npy").tolist()
    [0, 1, 2]
    """

    path: Path
    stage: str
    _parts: dict[str, Part] = field(default_factory=dict)

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
        """Flush a complete file on the same disk and rename it to the part `name`.

        The file must not be memory-mapped, because Windows cannot rename mapped files.
        """
        with clear_errors(file), ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(flush, file)  # The disk works while the checksum is computed.
            part = Part(file.stat().st_size, digest_file(file))
            flushed.result()

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

            for name in (MANIFEST, *parts):
                (self.path / name).unlink(missing_ok=True)

    def finish(self, *, config: Any, inputs: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Write the manifest, which makes the folder complete.

        `config` are the settings of the stage (a dataclass or a JSON object), `inputs` the fingerprints of the inputs
        by name, and `facts` a JSON object with values that readers of the folder need.
        """
        parts = dict(sorted(self._parts.items()))
        manifest = Manifest(self.stage, to_json(config), dict(inputs), dict(facts), parts)

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
    is True: its parts are then removed when the first new part is complete. Raises FolderLocked if another process is
    writing to the folder. If the block raises before the folder is complete, the new parts are removed.
    """
    path = Path(path)

    with lock_folder(path):
        if not overwrite and (path / MANIFEST).exists():
            raise FolderExists(f"{path}: finished already; choose another folder or pass overwrite=True")

        writer = FolderWriter(path, stage)
        try:
            yield writer
        except BaseException:
            writer.remove_parts()
            raise
