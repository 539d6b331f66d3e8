"""The only room that writes: folders of parts with a manifest that comes last.

A part is written under a temporary name, flushed to disk and renamed; the manifest, which holds every part's size
and checksum, the configuration and the fingerprints of the inputs, is written when all parts are there. A folder
without a manifest is unfinished. `docs/file-formats.md` is the specification.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from swivel._version import __version__
from swivel.errors import DamagedFolder, FolderExists, FolderLocked, StorageError, UnfinishedFolder

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LOCK = "lock"
_TEMPORARY = ".part"


@dataclass(frozen=True, slots=True)
class Part:
    """Size and checksum of one file of a folder."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a finished folder says of itself."""

    stage: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    facts: Mapping[str, Any]
    parts: Mapping[str, Part]
    format: int = FORMAT_VERSION
    library: str = __version__


def checksum(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """Return a short digest of a configuration or of any JSON value.

    >>> fingerprint({"window": 10}) == fingerprint({"window": 10})
    True
    """
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _told_apart(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into one clear line."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error


def flush(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        return  # Windows opens no folders.
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file under a temporary name, flush it and rename it into place."""
    with _told_apart(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + _TEMPORARY)
        temporary.write_bytes(data)
        flush(temporary)
        temporary.replace(path)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a folder inside `parent` that is gone when the block ends."""
    with _told_apart(parent):
        parent.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="scratch-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def create_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a new memory-mapped array that fills the `.npy` file at `path`."""
    with _told_apart(path):
        if 0 in shape:  # An empty file cannot be mapped.
            np.save(path, np.empty(shape, dtype))
            return np.empty(shape, dtype)
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)


def open_array(path: Path) -> NDArray[Any]:
    """Return the array in a `.npy` file, mapped read-only."""
    with _told_apart(path):
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except ValueError:
            try:  # An empty array cannot be mapped.
                return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
            except (ValueError, EOFError) as error:
                raise DamagedFolder(f"{path}: not an array file ({error})") from error


def _process_is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OSError):
        return True
    return True


class FolderLock:
    """Keeps a second process out of a folder; the lock of a process that is gone does not count."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK

    def acquire(self) -> None:
        """Take the lock, or raise FolderLocked with the holder's process id and host."""
        holder = {"pid": os.getpid(), "host": socket.gethostname()}
        for _ in range(2):
            try:
                handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                self._refuse_or_clear()
                continue
            with os.fdopen(handle, "w") as file:
                json.dump(holder, file)
            return
        raise FolderLocked(f"{self.path.parent}: another process keeps taking its lock; try again")

    def _refuse_or_clear(self) -> None:
        try:
            holder = json.loads(self.path.read_text())
            pid, host = int(holder["pid"]), str(holder["host"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            pid, host = -1, socket.gethostname()
        is_ours = host == socket.gethostname()
        if (is_ours and pid == os.getpid()) or not is_ours or (pid > 0 and _process_is_alive(pid)):
            raise FolderLocked(
                f"{self.path.parent}: process {pid} on {host} is writing it; wait for it, or remove {self.path} "
                "if that process is gone"
            )
        self.path.unlink(missing_ok=True)

    def release(self) -> None:
        """Give the lock back."""
        self.path.unlink(missing_ok=True)


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
    flush_seconds: float = 0.0
    _parts: dict[str, Part] = field(default_factory=dict)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one part."""
        write_file(self.path / name, data)
        self._parts[name] = Part(len(data), hashlib.sha256(data).hexdigest())

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write one part of text lines."""
        self.write_bytes(name, "".join(line + "\n" for line in lines).encode())

    def write_array(self, name: str, array: NDArray[Any]) -> None:
        """Write one array part."""
        target = self.create_array(name, array.dtype, array.shape)
        if array.size:
            target[...] = array
        self.close_array(name, target)

    def create_array(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a mapped array to fill; `close_array` makes it a part."""
        return create_array(self.path / (name + _TEMPORARY), dtype, shape)

    def close_array(self, name: str, array: NDArray[Any]) -> None:
        """Flush a filled array and give it its name."""
        if isinstance(array, np.memmap):
            array.flush()
        self.adopt(name, self.path / (name + _TEMPORARY))

    def adopt(self, name: str, file: Path) -> None:
        """Make a complete file on the same disk a part of the folder."""
        with _told_apart(file):
            started = time.perf_counter()
            flush(file)
            self.flush_seconds += time.perf_counter() - started
            self._parts[name] = Part(file.stat().st_size, checksum(file))
            file.replace(self.path / name)

    def finish(self, *, config: Any, inputs: Mapping[str, str], facts: Mapping[str, Any]) -> None:
        """Write the manifest: from now on the folder counts as finished."""
        plain = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
        manifest = Manifest(self.stage, plain, dict(inputs), dict(facts), dict(sorted(self._parts.items())))
        flush(self.path)
        write_file(self.path / MANIFEST, json.dumps(asdict(manifest), indent=1).encode() + b"\n")
        flush(self.path)


@contextlib.contextmanager
def create_folder(path: str | Path, stage: str, *, overwrite: bool = False) -> Iterator[FolderWriter]:
    """Open a folder for writing, locked against other processes.

    A finished folder is refused unless `overwrite`; then its manifest goes first. Files that are not parts of
    what was there are left alone.
    """
    path = Path(path)
    with _told_apart(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path)
        lock.acquire()
    try:
        _clear_finished(path, overwrite)
        yield FolderWriter(path, stage)
    finally:
        lock.release()


def _clear_finished(path: Path, overwrite: bool) -> None:
    if not (path / MANIFEST).exists():
        return
    if not overwrite:
        raise FolderExists(f"{path}: already finished; choose another folder or pass --overwrite")
    with _told_apart(path):
        try:
            parts = list(read_manifest(path).parts)
        except StorageError:
            parts = []
        (path / MANIFEST).unlink()
        for name in parts:
            (path / name).unlink(missing_ok=True)


def read_manifest(path: Path) -> Manifest:
    """Return a folder's manifest, or raise the error that says why there is none."""
    file = path / MANIFEST
    if not file.exists():
        if not path.exists():
            raise StorageError(f"{path}: no such folder")
        raise UnfinishedFolder(f"{path}: no {MANIFEST}; the stage that writes it did not end: run it again")
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        parts = {name: Part(int(part["bytes"]), str(part["sha256"])) for name, part in fields.pop("parts").items()}
        manifest = Manifest(parts=parts, **fields)
    except OSError as error:
        raise StorageError(f"{file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFolder(f"{file}: not a manifest ({error}); run the stage that writes it again") from error
    if manifest.format != FORMAT_VERSION:
        raise StorageError(
            f"{file}: format {manifest.format}, this version of Swivel reads {FORMAT_VERSION}; "
            f"it was written by {manifest.library}"
        )
    return manifest


@dataclass(frozen=True, slots=True)
class Folder:
    """A finished folder, open for reading."""

    path: Path
    manifest: Manifest

    def array(self, name: str) -> NDArray[Any]:
        """Return an array part, mapped read-only."""
        return open_array(self._part(name))

    def lines(self, name: str) -> list[str]:
        """Return a text part's lines."""
        try:
            text = self._part(name).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedFolder(f"{self.path / name}: not valid UTF-8; restore the file") from error
        return text.split("\n")[:-1]

    def verify(self) -> None:
        """Raise DamagedFolder for the first part whose checksum is not the manifest's."""
        for name, part in self.manifest.parts.items():
            if checksum(self._part(name)) != part.sha256:
                raise DamagedFolder(
                    f"{self.path / name}: checksum differs from the manifest's; make the folder again, "
                    "or restore the file"
                )

    def _part(self, name: str) -> Path:
        if name not in self.manifest.parts:
            raise DamagedFolder(f"{self.path / MANIFEST}: names no part {name}; make the folder again")
        return self.path / name


def open_folder(path: str | Path, stage: str) -> Folder:
    """Open a finished folder of a stage; every part is there and has the size that the manifest says."""
    path = Path(path)
    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise StorageError(f"{path}: a folder of {manifest.stage}, not of {stage}")
    for name, part in manifest.parts.items():
        file = path / name
        if not file.exists():
            raise DamagedFolder(f"{file}: missing; make the folder again, or restore the file")
        if file.stat().st_size != part.bytes:
            raise DamagedFolder(
                f"{file}: {file.stat().st_size:,} bytes, the manifest says {part.bytes:,}; "
                "make the folder again, or restore the file"
            )
    return Folder(path, manifest)
