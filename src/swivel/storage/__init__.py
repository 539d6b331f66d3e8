"""Result folders: the only package that writes files.

A folder consists of parts and a manifest. Each part is written under a temporary name, flushed to disk and renamed. The
manifest is written last; it contains the size and checksum of each part, the settings and the fingerprints of the
inputs. A folder without a manifest is incomplete. `docs/file-formats.md` specifies the format.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import FolderExists, StorageError, clear_errors
from swivel.storage.array_files import ArrayAppender, create_array, write_header
from swivel.storage.files import remove_file, remove_tree
from swivel.storage.lock import LOCK, SCRATCH, FolderLock, hold_folder, lock_folder, sweep_folder
from swivel.storage.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    REMEDY,
    Folder,
    Manifest,
    Part,
    checksum,
    fingerprint,
    one_line,
    open_array,
    open_folder,
    read_manifest,
    seal,
    unseal,
)
from swivel.storage.processes import process_is_alive

__all__ = [
    "FORMAT_VERSION",
    "LOCK",
    "MANIFEST",
    "REMEDY",
    "ArrayAppender",
    "Folder",
    "FolderLock",
    "FolderWriter",
    "Manifest",
    "Part",
    "build_folder",
    "checksum",
    "create_array",
    "create_file",
    "create_folder",
    "fingerprint",
    "flush",
    "hold_folder",
    "one_line",
    "open_array",
    "open_folder",
    "place_folder",
    "read_manifest",
    "remove_file",
    "remove_tree",
    "scratch_folder",
    "seal",
    "sweep_folder",
    "unseal",
    "write_arrays",
    "write_file",
    "write_header",
]

_TEMPORARY = ".part"


def flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are stored on disk."""
    if path.is_dir():
        _sync_folder(path)
        return

    try:
        _sync(path, os.O_RDWR)  # Windows only flushes files that are open for writing.
    except PermissionError:
        _sync(path, os.O_RDONLY)


def _sync_folder(path: Path) -> None:
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


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def create_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file to write, and rename it to `path` if the block succeeds.

    The file is flushed to disk before it is renamed. If the block raises, the temporary file is removed and `path` is
    unchanged.
    """
    temporary = path.with_name(path.name + _TEMPORARY)

    with clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file

            flush(temporary)
            temporary.replace(path)
        except BaseException:
            remove_file(temporary)
            raise


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

    This is for folders in other tools' formats, which have no manifest. If the block raises, the temporary folder is
    removed. Raises FolderExists if `path` exists.
    """
    temporary = path.with_name(path.name + _TEMPORARY)

    with clear_errors(path):
        if path.exists():
            raise FolderExists(f"{path}: exists already; choose another folder, or remove it")

        remove_tree(temporary)
        temporary.mkdir(parents=True)
        try:
            yield temporary

            flush(temporary)
            temporary.replace(path)
        except BaseException:
            remove_tree(temporary)
            raise


@contextlib.contextmanager
def place_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder with a unique name to fill, and rename it to `path` if the block succeeds.

    Several processes, also on several machines, may create the same folder at the same time. The first one to finish
    provides it; the folders of the others are removed.
    """
    with clear_errors(path):
        temporary = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=_TEMPORARY, dir=path.parent))
        try:
            yield temporary

            for file in temporary.iterdir():
                flush(file)
            try:
                temporary.replace(path)
            except OSError:
                if not path.is_dir():  # If it is a folder, another process was faster.
                    raise
        finally:
            remove_tree(temporary)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder inside `parent` that is removed when the block ends.

    Scratch folders that dead processes of this machine left in `parent` are removed first.
    """
    prefix = f"{SCRATCH}{fingerprint(socket.gethostname())[:8]}-"

    with clear_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)

        for leftover in parent.glob(f"{prefix}*"):
            pid = leftover.name.removeprefix(prefix).partition("-")[0]
            if pid.isdecimal() and not process_is_alive(int(pid)):
                remove_tree(leftover)

        path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))

    try:
        yield path
    finally:
        remove_tree(path)


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
    _temporaries: set[Path] = field(default_factory=set)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write bytes as the part `name`."""
        self._remove_previous_result()
        write_file(self.path / name, data)
        self._parts[name] = Part(len(data), hashlib.sha256(data).hexdigest())

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write lines of text as the part `name`, in UTF-8."""
        self.write_bytes(name, "".join(line + "\n" for line in lines).encode())

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write an array as the part `name`, in `.npy` format."""
        file = self._temporary(name)

        # The file is not memory-mapped: a full disk then raises an OSError and does not kill the process.
        with clear_errors(file), file.open("wb") as opened:
            write_header(opened, array.dtype, array.shape)
            opened.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

        self.adopt(name, file)

    def write_tensors(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays as the part `name`, in safetensors format."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        file = self._temporary(name)
        with clear_errors(file):
            try:
                save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, file)
            except SafetensorError as error:
                raise StorageError(f"{file}: {error}") from error

        self.adopt(name, file)

    def adopt(self, name: str, file: Path) -> None:
        """Flush a complete file on the same disk and rename it to the part `name`.

        The file must not be memory-mapped, because Windows cannot rename mapped files.
        """
        with clear_errors(file):
            flush(file)
            part = Part(file.stat().st_size, checksum(file))

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

    def _temporary(self, name: str) -> Path:
        file = self.path / (name + _TEMPORARY)
        self._temporaries.add(file)
        return file

    def discard_temporaries(self) -> None:
        """Remove temporary files that did not become parts."""
        for file in self._temporaries:
            remove_file(file)

    def finish(self, *, config: Any, inputs: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Write the manifest, which makes the folder complete.

        Parameters
        ----------
        config
            Settings of the stage: a dataclass or a JSON object.
        inputs
            Fingerprints of the inputs, by name.
        facts
            JSON object with values that readers of the folder need.
        """
        plain = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
        manifest = Manifest(self.stage, plain, dict(inputs), dict(facts), dict(sorted(self._parts.items())))

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


@contextlib.contextmanager
def create_folder(path: str | Path, stage: str, *, overwrite: bool = False) -> Iterator[FolderWriter]:
    """Open a folder for writing, locked against other processes.

    Temporary files are removed when the block ends, whether it succeeds or not.

    Parameters
    ----------
    path
        Folder to write. Files in it that are not parts are kept.
    stage
        Kind of folder, stored in the manifest.
    overwrite
        Whether to replace a complete folder. Its parts are removed when the first new part is complete.

    Raises
    ------
    FolderExists
        The folder is complete and `overwrite` is False.
    FolderLocked
        Another process is writing to the folder.
    """
    path = Path(path)
    writer = FolderWriter(path, stage)

    with lock_folder(path):
        try:
            if not overwrite and (path / MANIFEST).exists():
                raise FolderExists(
                    f"{path}: already complete; choose another folder or pass overwrite=True (--overwrite)"
                )
            yield writer
        finally:
            writer.discard_temporaries()
