"""The only room that writes: folders of parts with a manifest that comes last.

A part is written under a temporary name, flushed to disk and renamed; the manifest, which holds every part's size
and checksum, the configuration and the fingerprints of the inputs, is written when all parts are there. A folder
without a manifest is unfinished. `docs/file-formats.md` is the specification.
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
    """Wait until a file is on the disk; for a folder's entries, where the system can be asked."""
    if path.is_dir():
        _sync_folder(path)
        return
    try:
        _sync(path, os.O_RDWR)  # Windows flushes only what could be written.
    except PermissionError:
        _sync(path, os.O_RDONLY)


def _sync_folder(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return  # Windows opens no folders.
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # file systems that cannot
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
    """Yield a file to write; it is flushed and takes its name when the block ends well, else it is gone."""
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
    """Write a whole file under a temporary name, flush it and rename it into place."""
    with create_file(path) as file:
        file.write(data)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as one `.npz` file."""
    with create_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


@contextlib.contextmanager
def build_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; it takes the name `path` when the block ends well, and is gone when it does not.

    For folders of other tools, which know no manifest; a path that is taken is refused.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    with clear_errors(path):
        if path.exists():
            raise FolderExists(f"{path}: there already; choose another folder, or remove it")
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
    """Yield a folder to fill, of a name that nobody else has; it takes the name `path` when the block ends well.

    Several may make the same folder at a time, on several machines: the first that ends gives it, the others' are gone.
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
                if not path.is_dir():
                    raise
        finally:
            remove_tree(temporary)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a folder inside `parent` that is gone when the block ends; those of killed processes go first."""
    mine = f"{SCRATCH}{fingerprint(socket.gethostname())[:8]}-"
    with clear_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for other in parent.glob(f"{mine}*"):
            pid = other.name.removeprefix(mine).partition("-")[0]
            if pid.isdecimal() and not process_is_alive(int(pid)):
                remove_tree(other)
        path = Path(tempfile.mkdtemp(prefix=f"{mine}{os.getpid()}-", dir=parent))
    try:
        yield path
    finally:
        remove_tree(path)


@dataclass(slots=True)
class FolderWriter:
    """A folder that is being written: parts first, the manifest last.

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
        """Write one part."""
        self._clear_finished()
        write_file(self.path / name, data)
        self._parts[name] = Part(len(data), hashlib.sha256(data).hexdigest())

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write one part of text lines."""
        self.write_bytes(name, "".join(line + "\n" for line in lines).encode())

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write one array part."""
        file = self._temporary(name)
        with clear_errors(file), file.open("wb") as opened:  # not mapped: a full disk is an error, not a signal
            write_header(opened, array.dtype, array.shape)
            opened.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self.adopt(name, file)

    def write_tensors(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays as one safetensors part."""
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
        """Make a complete file on the same disk a part of the folder; it must not be mapped, for Windows' sake."""
        with clear_errors(file):
            flush(file)
            part = Part(file.stat().st_size, checksum(file))
            self._clear_finished()
            self._parts[name] = part
            file.replace(self.path / name)

    def _clear_finished(self) -> None:
        """Remove what was there when the first new part is ready, and not before; the manifest goes first."""
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
        """Remove what was begun and never became a part."""
        for file in self._temporaries:
            remove_file(file)

    def finish(self, *, config: Any, inputs: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Write the manifest: from now on the folder counts as finished."""
        plain = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
        manifest = Manifest(self.stage, plain, dict(inputs), dict(facts), dict(sorted(self._parts.items())))
        self._clear_finished()
        with clear_errors(self.path):
            flush(self.path)
            write_file(self.path / MANIFEST, seal(asdict(manifest)))
            try:
                flush(self.path)
            except OSError:
                remove_file(self.path / MANIFEST)  # It may not last: the folder is not finished, as is said.
                raise


@contextlib.contextmanager
def create_folder(path: str | Path, stage: str, *, overwrite: bool = False) -> Iterator[FolderWriter]:
    """Open a folder for writing, locked against other processes.

    A finished folder is refused unless `overwrite`; then what was there goes when the first new part is ready. Files
    that are not parts of it are left alone. What was begun and not ended is gone when the block ends, however it does.
    """
    path = Path(path)
    writer = FolderWriter(path, stage)
    with lock_folder(path):
        try:
            if not overwrite and (path / MANIFEST).exists():
                raise FolderExists(f"{path}: already finished; choose another folder or pass --overwrite")
            yield writer
        finally:
            writer.discard_temporaries()
