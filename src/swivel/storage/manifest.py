"""Finished folders, open for reading: their manifests, checksums and parts.

Receives a path, hands on a `Folder` whose parts are all there and of the size that its manifest says. Nothing here
writes: that is `storage`, through which everyone uses this.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from swivel._version import __version__
from swivel.errors import DamagedFolder, StorageError, UnfinishedFolder, clear_errors
from swivel.storage.npy import map_array

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
REMEDY = "make the folder again with --overwrite, or restore the file"
_VERIFIERS = 4  # files that are read at a time: most of a matrix is in two
_SEAL = ',\n "checksum": "'


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


def one_line(value: object) -> str:
    r"""Return what a file says as it may stand in a message: without line ends and other characters that do not show.

    >>> one_line("matrix"), one_line("two\nlines")
    ('matrix', "'two\\nlines'")
    """
    text = str(value)
    return text if text.isprintable() else repr(text)


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object as text whose last field is the checksum of all bytes before it.

    >>> unseal(seal({"epochs": 3}))
    {'epochs': 3}
    """
    body = json.dumps(fields, indent=1).removesuffix("\n}")
    return f'{body}{_SEAL}{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'.encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the fields of a sealed object, or raise ValueError; one without a checksum is an older version's."""
    fields = json.loads(data.decode("utf-8"))
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    said, body = fields.pop("checksum", None), data.rpartition(_SEAL.encode())[0]
    if said is not None and said != hashlib.sha256(body).hexdigest():
        raise ValueError("its checksum differs from the one in it")
    return fields


def open_array(path: Path) -> NDArray[Any]:
    """Return the array in a `.npy` file, mapped read-only."""
    try:
        with clear_errors(path):
            return map_array(path)
    except ValueError as error:
        raise DamagedFolder(f"{path}: not an array file ({error}); {REMEDY}") from error


def read_manifest(path: Path) -> Manifest:
    """Return a folder's manifest, or raise the error that says why there is none."""
    file = path / MANIFEST
    if not file.exists():
        if not path.exists():
            raise StorageError(f"{path}: no such folder")
        inside = [str(path / stage) for stage in ("matrix", "vectors") if (path / stage / MANIFEST).exists()]
        if inside:
            raise StorageError(f"{path}: the folder of a run; name {' or '.join(inside)}")
        raise UnfinishedFolder(f"{path}: no {MANIFEST}; the stage that writes it did not end: run it again")
    with clear_errors(file):
        data = file.read_bytes()
    try:
        _check_format(file, json.loads(data.decode("utf-8")))  # first: a later format may have other fields
        fields = unseal(data)
        parts = {name: _read_part(name, part) for name, part in fields.pop("parts").items()}
        manifest = Manifest(parts=parts, **fields)
        _check_fields(manifest)
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedFolder(f"{file}: not a manifest ({one_line(error)}); {REMEDY}") from error


def _read_part(name: str, part: Mapping[str, Any]) -> Part:
    """Return what a manifest says of a part; one that would lie outside the folder is none."""
    if Path(name).name != name or name in ("", "..") or "\0" in name:
        raise ValueError(f"{name!r} is no name of a file in it")
    found = Part(int(part["bytes"]), str(part["sha256"]))
    if found.bytes < 0:
        raise ValueError(f"{name!r} of {found.bytes:,} bytes")
    return found


def _check_fields(manifest: Manifest) -> None:
    if not isinstance(manifest.stage, str):
        raise ValueError(f"the stage is {manifest.stage!r}")
    for name in ("config", "inputs", "facts"):
        if not isinstance(getattr(manifest, name), dict):
            raise ValueError(f"{name!r} is no object")


def _check_format(file: Path, fields: Mapping[str, Any]) -> None:
    if fields["format"] != FORMAT_VERSION:
        raise StorageError(
            f"{file}: format {one_line(fields['format'])}, this version of Swivel reads {FORMAT_VERSION}; "
            f"it was written by {one_line(fields.get('library', 'another version'))}: take that one, or {REMEDY}"
        )


@dataclass(frozen=True, slots=True)
class Folder:
    """A finished folder, open for reading. A part's checksum is compared once, before it is first read."""

    path: Path
    manifest: Manifest
    _checked: set[str] = field(default_factory=set, compare=False, repr=False)

    def array(self, name: str) -> NDArray[Any]:
        """Return an array part, mapped read-only."""
        self.check(name)
        return self.mapped(name)

    def mapped(self, name: str) -> NDArray[Any]:
        """Return an array part that is not read yet, mapped: whoever reads it calls `check` first."""
        return open_array(self._part(name))

    def text(self, name: str) -> str:
        """Return a text part as it is."""
        self.check(name)
        try:
            return self._part(name).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedFolder(f"{self.path / name}: not valid UTF-8; {REMEDY}") from error

    def lines(self, name: str) -> list[str]:
        """Return a text part's lines."""
        return self.text(name).split("\n")[:-1]

    def check(self, *names: str) -> None:
        """Raise DamagedFolder for the first of these parts whose checksum is not the manifest's; read each once."""
        files = {name: self._part(name) for name in names if name not in self._checked}
        if not files:
            return
        with clear_errors(self.path):
            if len(files) == 1:
                digests = [checksum(file) for file in files.values()]
            else:
                with ThreadPoolExecutor(_VERIFIERS) as pool:
                    digests = list(pool.map(checksum, files.values()))
        for name, digest in zip(files, digests, strict=True):
            if digest != self.manifest.parts[name].sha256:
                raise DamagedFolder(f"{self.path / name}: checksum differs from the manifest's; {REMEDY}")
            self._checked.add(name)

    def verify(self) -> None:
        """Raise DamagedFolder for the first part whose checksum is not the manifest's."""
        self.check(*self.manifest.parts)

    def trust(self) -> None:
        """Take all parts as checked: another process has done it."""
        self._checked.update(self.manifest.parts)

    def _part(self, name: str) -> Path:
        if name not in self.manifest.parts:
            raise DamagedFolder(f"{self.path / MANIFEST}: names no part {name}; make the folder again with --overwrite")
        return self.path / name


def open_folder(path: str | Path, stage: str) -> Folder:
    """Open a finished folder of a stage; every part is there and has the size that the manifest says."""
    path = Path(path)
    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise StorageError(f"{path}: a folder of {one_line(manifest.stage)}, not of {stage}")
    for name, part in manifest.parts.items():
        file = path / name
        if not file.exists():
            raise DamagedFolder(f"{file}: missing; {REMEDY}")
        if file.stat().st_size != part.bytes:
            raise DamagedFolder(f"{file}: {file.stat().st_size:,} bytes, the manifest says {part.bytes:,}; {REMEDY}")
    return Folder(path, manifest)
