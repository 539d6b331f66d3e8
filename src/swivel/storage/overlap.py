"""Keep inputs and outputs apart: recognize what Swivel wrote, and refuse an output that would replace an input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from swivel.errors import ConfigError, StorageError
from swivel.storage.lock import LOCK
from swivel.storage.manifest import MANIFEST, read_manifest
from swivel.storage.temporary import is_temporary

# Files that Swivel writes, with bytes near their start by which they differ from files of other tools.
_FOLDER_MARKS = {MANIFEST: b'{\n "stage": ', "plan.json": b'{\n "identity": ', "measures.json": b'{\n "stages": '}
_FILE_MARKS = {LOCK: b'{"pid": ', "report.html": b"<title>Swivel: "}
_PROBE_BYTES = 512


def is_own_folder(folder: Path) -> bool:
    """Return whether a folder holds the result of a Swivel command, finished or not."""
    try:
        names = [file.name for file in folder.iterdir()]
    except OSError:
        return False

    has_mark = any(name in names and _starts_with(folder / name, mark) for name, mark in _FOLDER_MARKS.items())
    has_scratch = any(name.startswith("scratch-") and is_temporary(name) for name in names)
    return has_mark or has_scratch or is_temporary(folder.name)


def is_own_file(file: Path) -> bool:
    """Return whether Swivel wrote a file beside its result folders: a lock, a report, or a part of a file."""
    is_marked = file.name in _FILE_MARKS and _starts_with(file, _FILE_MARKS[file.name])
    return is_marked or is_temporary(file.name)


def _starts_with(file: Path, mark: bytes) -> bool:
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            return mark in opened.read(_PROBE_BYTES)
    except OSError:
        return False


def refuse_overlap(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Raise ConfigError if an output is an input, one of its files, or a folder that contains one.

    Files and folders are compared by device and inode, because they may have several names. An input that is None was
    not read from a file.
    """
    written = [output for output in outputs if output.exists()]
    if not written:
        return

    places: dict[Path, Path] = {}  # input of each file that is read, and of each folder above one
    for path in (each for each in inputs if each is not None):
        for file in _list_parts(path):
            for place in (file, *file.parents):
                if place in places:
                    break
                places[place] = path

    identities = {identify(place): path for place, path in places.items()}
    for output in written:
        found = identities.get(identify(output))
        if found is not None:
            raise ConfigError(f"{output}: the output would replace the input {found}; choose another output")


def identify(path: Path) -> tuple[int, int] | None:
    """Return what all names of a file or folder have in common, its device and inode; None if it does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _list_parts(path: Path) -> Iterator[Path]:
    """Yield a file, or a folder and its files: the parts of a result, or all of them."""
    path = path.resolve()
    yield path

    if path.is_dir():
        try:
            names = [MANIFEST, *read_manifest(path).parts]
        except StorageError:
            names = [file.name for file in path.iterdir()]
        yield from (path / name for name in names)
