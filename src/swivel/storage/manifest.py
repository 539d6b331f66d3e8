"""Reading result folders: manifests, checksums and parts.

The checksum of up to `PIECE_BYTES` bytes is their SHA-256 digest, in hexadecimal. That of more bytes is `PREFIX` and
the SHA-256 digest of the digests of their pieces, which are computed on several cores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel._version import __version__
from swivel.errors import DamagedFolder, StorageError, UnfinishedFolder, clear_errors
from swivel.runtime.display import escape_controls
from swivel.runtime.parallel import map_in_order
from swivel.runtime.resources import count_cores
from swivel.storage.arrays import map_array

FORMAT_VERSION = 2
MAX_RECORD_BYTES = 1 << 28  # of a manifest or another JSON file; a million input files take half of it
MANIFEST = "manifest.json"
REMEDY = "create the folder again with overwrite=True, or restore the file"
# What a stage writes before the manifest.
_TRACES = ("row_sums.npy", "positions.npy", "tuning.json", "lock", "checkpoint-*", "scratch-*", "*.part")
_CHECKSUM_FIELD = ',\n "checksum": "'
PIECE_BYTES = 1 << 24
PREFIX = "16MiB:"
_READ_BYTES = 1 << 21  # After each read, a thread waits for Python's lock if other threads use it.
_MAX_THREADS = 8  # Memory and disk are not faster for more of them.
_limit = _MAX_THREADS  # of the last call that has run options


@dataclass(frozen=True, slots=True)
class Part:
    """Size and checksum of one file of a folder."""

    bytes: int
    sha256: str  # see `digest_file`


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a complete folder: its stage, settings, inputs and files."""

    stage: str  # kind of folder, such as "matrix" or "vectors"
    config: Mapping[str, Any]  # settings of the stage
    inputs: Mapping[str, str]  # fingerprints of the inputs, by name
    facts: Mapping[str, Any]  # numbers and names that readers need, such as the shape of a matrix
    parts: Mapping[str, Part]  # size and checksum of each file
    format: int = FORMAT_VERSION
    library: str = __version__  # version of Swivel that wrote the folder

    @property
    def fingerprint(self) -> str:
        """Digest of the checksums of all files, by name."""
        return fingerprint({name: part.sha256 for name, part in self.parts.items()})


def fingerprint(value: Any) -> str:
    """Return a digest of 16 characters of a dataclass or a JSON value."""
    return hashlib.sha256(json.dumps(to_json(value), sort_keys=True).encode()).hexdigest()[:16]


def to_json(value: Any) -> Any:
    """Return a dataclass as a dictionary of its fields, and any other value unchanged."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object whose last field is the checksum of all bytes before it."""
    # The checksum covers the text itself, so that every changed byte is found, even a space.
    body = json.dumps(fields, indent=1).removesuffix("\n}")
    return f'{body}{_CHECKSUM_FIELD}{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'.encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object written by `seal`, or raise ValueError if it was changed."""
    fields = json.loads(data.decode("utf-8"))
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")

    expected = fields.pop("checksum", None)
    body = data.rpartition(_CHECKSUM_FIELD.encode())[0]
    if expected != hashlib.sha256(body).hexdigest():
        raise ValueError("its content does not match its checksum")

    return fields


def read_record(file: Path) -> bytes:
    """Return the content of a JSON file of a folder, which may be received: it must be a file, and not too large."""
    # Opening a pipe must not wait for a writer, and a device has no end.
    with open(file, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{file}: not a regular file")
        if status.st_size > MAX_RECORD_BYTES:
            raise StorageError(f"{file}: {status.st_size:,} bytes, which no file of this name has; it is damaged")
        return opened.read(status.st_size)


def open_array(path: Path) -> NDArray[Any]:
    """Return the array in a `.npy` file as a read-only memory map."""
    try:
        with clear_errors(path):
            return map_array(path)
    except ValueError as error:
        raise DamagedFolder(f"{path}: not a .npy file ({error}); {REMEDY}") from error


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a complete folder.

    Raises UnfinishedFolder if it was not written yet, DamagedFolder if it is malformed, and otherwise StorageError.
    """
    file = path / MANIFEST
    with clear_errors(file):
        try:
            data = read_record(file)
        except (FileNotFoundError, NotADirectoryError):
            raise _explain_missing_manifest(path) from None

    try:
        # The version comes first, because later formats may have other fields.
        _check_format(file, json.loads(data.decode("utf-8")))

        fields = unseal(data)
        if not isinstance(fields["stage"], str):
            raise ValueError(f"the stage is {fields['stage']!r}")
        for name in ("config", "inputs", "facts"):
            if not isinstance(fields[name], dict):
                raise ValueError(f"{name!r} is not a JSON object")

        # A manifest of somebody else must not name files outside its folder.
        fields["parts"] = {name: _read_part(name, part) for name, part in fields["parts"].items()}
        return Manifest(**fields)

    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedFolder(f"{file}: not a manifest ({escape_controls(str(error))}); {REMEDY}") from error


def _explain_missing_manifest(path: Path) -> StorageError:
    if not path.exists():
        return StorageError(f"{path}: no such folder")
    if path.is_file():
        return StorageError(f"{path}: a file, not a folder that Swivel wrote")

    stages = [str(path / stage) for stage in ("matrix", "vectors") if (path / stage / MANIFEST).exists()]
    if stages:
        return StorageError(f"{path}: this is the folder of a run; pass {' or '.join(stages)}")

    if any(file for pattern in _TRACES for file in path.glob(pattern)):
        return UnfinishedFolder(
            f"{path}: no {MANIFEST}, because the stage that writes it was interrupted; run the same command again"
        )
    return StorageError(f"{path}: no {MANIFEST}, so this is not a folder that Swivel wrote")


def _check_format(file: Path, fields: Mapping[str, Any]) -> None:
    if fields["format"] != FORMAT_VERSION:
        writer = escape_controls(str(fields.get("library", "another version")))
        raise StorageError(
            f"{file}: format {escape_controls(str(fields['format']))} is not supported, this version of Swivel reads "
            f"format {FORMAT_VERSION}; use the Swivel version that wrote it ({writer}), or {REMEDY}"
        )


def _read_part(name: str, part: Mapping[str, Any]) -> Part:
    """Return a part from its JSON fields; raise ValueError if its file would be outside the folder."""
    if Path(name).name != name or name in ("", "..") or "\0" in name:
        raise ValueError(f"{name!r} is not a file name")
    if int(part["bytes"]) < 0:
        raise ValueError(f"{name!r} has {int(part['bytes']):,} bytes")

    return Part(int(part["bytes"]), str(part["sha256"]))


@dataclass(frozen=True, slots=True)
class Folder:
    """A complete folder, open for reading. The checksum of each part is verified once, before its first use."""

    path: Path
    manifest: Manifest
    _checked: set[str] = field(default_factory=set, compare=False, repr=False)

    def array(self, name: str) -> NDArray[Any]:
        """Return an array part as a read-only memory map, after verifying its checksum."""
        self.check(name)
        return self.mapped(name)

    def mapped(self, name: str) -> NDArray[Any]:
        """Return an array part as a read-only memory map; call `check` before using the values."""
        with self.reading(name) as file:
            return open_array(file)

    def text(self, name: str) -> str:
        """Return the content of a text part."""
        self.check(name)
        try:
            with self.reading(name) as file:
                return file.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedFolder(f"{self.path / name}: not valid UTF-8; {REMEDY}") from error

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text part, without line ends."""
        return self.text(name).split("\n")[:-1]

    def check(self, *names: str) -> None:
        """Verify the checksums of parts that were not verified before; raise DamagedFolder for the first mismatch."""
        for name in names:
            if name in self._checked:
                continue

            with self.reading(name) as file:
                digest = digest_file(file)
            if digest != self.manifest.parts[name].sha256:
                problem = f"{self.path / name}: checksum differs from the manifest"
                raise describe_damage(self.path, self.manifest, problem)
            self._checked.add(name)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        """Yield the path of a part to read; if the file is gone, the error tells whether it was replaced."""
        if name not in self.manifest.parts:
            raise DamagedFolder(f"{self.path / MANIFEST}: lists no part {name}; {REMEDY}")

        file = self.path / name
        try:
            with clear_errors(file):
                yield file
        except StorageError:
            if file.exists():
                raise
            raise describe_damage(self.path, self.manifest, f"{file}: missing") from None

    def verify(self) -> None:
        """Verify the checksums of all parts; raise DamagedFolder for the first mismatch."""
        self.check(*self.manifest.parts)

    def trust(self) -> None:
        """Mark all parts as verified, because this process wrote them or another process has verified them."""
        self._checked.update(self.manifest.parts)


def open_folder(path: str | Path, stage: str) -> Folder:
    """Open a complete folder of a stage; raise DamagedFolder if a part is missing or has the wrong size."""
    path = Path(path)
    manifest = read_manifest(path)
    if manifest.stage != stage:
        actual, expected = (
            each if each.endswith("s") else f"a {each}" for each in (escape_controls(manifest.stage), stage)
        )
        raise StorageError(f"{path}: a folder with {actual}, not with {expected}")

    folder = Folder(path, manifest)
    # Sizes are compared now, which is cheap, checksums before the first use of a part.
    for name, part in manifest.parts.items():
        with folder.reading(name) as file:
            status = file.stat()
        # A device has no end, whatever its size; a pipe would be waited for.
        if not stat.S_ISREG(status.st_mode):
            raise DamagedFolder(f"{file}: not a regular file; {REMEDY}")
        size = status.st_size
        if size != part.bytes:
            problem = f"{file}: {size:,} bytes, but the manifest says {part.bytes:,}"
            raise describe_damage(path, manifest, problem)

    return folder


def describe_damage(path: Path, manifest: Manifest, problem: str) -> StorageError:
    """Return the error for a part that differs from the manifest that was read."""
    # If there is another manifest by now, or none, the folder is not damaged: another process replaces it.
    is_same = False
    with contextlib.suppress(StorageError):
        is_same = read_manifest(path) == manifest

    if is_same:
        return DamagedFolder(f"{problem}; {REMEDY}")
    return StorageError(f"{path}: another process replaces this folder; try again when it has finished")


def limit_threads(threads: int) -> None:
    """Compute checksums on at most so many threads from now on."""
    global _limit
    _limit = min(threads, _MAX_THREADS)


def digest_file(path: Path) -> str:
    """Return the checksum of a file."""
    return _digest(lambda start: digest_range(path, start, PIECE_BYTES), path.stat().st_size)


def digest_range(path: Path, start: int, size: int) -> bytes:
    """Return the SHA-256 digest of up to `size` bytes of a file."""
    digest = hashlib.sha256()
    stop = start + size
    # One buffer per range, so that memory does not depend on the size of the file.
    buffer = np.empty(_READ_BYTES, np.uint8).data
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while start < stop and (read := file.readinto(buffer[: stop - start])):
            digest.update(buffer[:read])
            start += read
    return digest.digest()


def digest_array(values: NDArray[Any]) -> str:
    """Return the checksum of the bytes of an array.

    >>> digest_array(np.zeros(1 << 24, np.uint8))[:16], digest_array(np.zeros(1 << 25, np.uint8))[:16]
    ('080acf35a507ac98', '16MiB:5dbb5561c9')
    """
    return digest_bytes(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def digest_bytes(*buffers: bytes | memoryview) -> str:
    """Return the checksum of the bytes of some buffers, one after the other."""
    ends = np.cumsum([len(buffer) for buffer in buffers]).tolist()

    def digest_piece(start: int) -> bytes:
        digest = hashlib.sha256()
        for buffer, end in zip(buffers, ends, strict=True):
            first = end - len(buffer)
            digest.update(buffer[max(start - first, 0) : max(start + PIECE_BYTES - first, 0)])
        return digest.digest()

    return _digest(digest_piece, ends[-1])


def _digest(digest_piece: Callable[[int], bytes], size: int) -> str:
    """Return the checksum of `size` bytes; `digest_piece` returns the digest of the piece that begins at a byte."""
    if size <= PIECE_BYTES:
        return digest_piece(0).hex()

    # SHA-256 of one core is slower than a disk: pieces are computed side by side.
    whole = hashlib.sha256()
    for digest in map_in_order(digest_piece, range(0, size, PIECE_BYTES), threads=min(count_cores(), _limit)):
        whole.update(digest)
    return PREFIX + whole.hexdigest()
