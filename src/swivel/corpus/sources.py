"""Files of a corpus: paths, folders, globs and URLs (s3://, gs://, hdfs://, zip://...::file://...).

Remote files are read with fsspec.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias

from swivel.config import CorpusConfig
from swivel.errors import CorpusError, clear_errors
from swivel.storage import fingerprint

STDIN = Path("-")
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
COMPRESSION_RATIO = 4  # typical, for text
_RESERVED_NAMES = ("-", "iterable", "vocabulary")  # names of other inputs in a manifest
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")  # two letters or more, because C:\ is a disk
_LOCAL_URL = re.compile(r"(file|local)://")
_INFO_TYPES = (str, bytes, int, float, tuple, datetime)  # types of file information that have a stable string
_LOCATION_KEYS = ("name", "filename", "orig_filename", "Key")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of an fsspec file system. It can be pickled and opened on other machines."""

    system: Any
    path: str

    def __str__(self) -> str:
        return str(self.system.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """Last component of the path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """File extension with its dot, or an empty string."""
        return PurePosixPath(self.path).suffix

    def size(self) -> int | None:
        """Return the size in bytes; None if the file system does not report it."""
        with clear_remote_errors(str(self)):
            size = self.system.size(self.path)
        return None if size is None else int(size)

    def version(self) -> str:
        """Return a digest that changes with the file: of everything the file system reports except the location."""
        with clear_remote_errors(str(self)):
            info = self.system.info(self.path)

        stable = []
        for key, value in info.items():
            if isinstance(value, _INFO_TYPES) and key not in _LOCATION_KEYS:
                stable.append((key, str(value)))
        return fingerprint(sorted(stable))

    def open(self) -> IO[bytes]:
        """Open the file for reading bytes."""
        with clear_remote_errors(str(self)):
            return self.system.open(self.path, "rb")  # type: ignore[no-any-return]


FILE_TYPES = (Path, RemoteFile)
TextFile: TypeAlias = "Path | RemoteFile"
Texts: TypeAlias = "str | TextFile | Iterable[str] | Iterable[TextFile] | Iterable[Iterable[str]]"


def list_files(texts: str | TextFile | Iterable[TextFile]) -> list[TextFile]:
    """Return the files of paths, folders (sorted, without hidden files), globs and URLs; raise CorpusError if none."""
    if isinstance(texts, (str, *FILE_TYPES)):
        return _expand(texts)
    return [file for path in texts for file in _expand(path)]


def list_paths(texts: str | Path) -> list[Path]:
    """Return the files of a path, a folder or a glob, as `list_files` does, but raise CorpusError for a URL."""
    files = list_files(texts)
    paths = [file for file in files if isinstance(file, Path)]
    if len(paths) < len(files):
        raise CorpusError(f"{texts}: only local files are supported here; download the remote files first")
    return paths


def _expand(path: str | TextFile) -> list[TextFile]:
    """Return the files of one path, folder, glob or URL."""
    if isinstance(path, RemoteFile):
        return [path]
    if str(path) == "-":
        return [STDIN]
    if isinstance(path, str) and is_url(path):
        return [file for match in list_url(path) for file in _expand(match)]

    try:
        if Path(path).is_dir():
            return _list_folder(Path(path))
        if Path(path).exists():
            return [Path(path)]
        is_glob = glob.has_magic(str(path))
    except (OSError, ValueError):  # Too long, or contains NUL: a text and not a path.
        is_glob = False

    if is_glob:
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns too)
        if not matches:
            raise CorpusError(f"{path}: no file matches")
        return [file for match in matches for file in _expand(match)]

    shown = str(path) if len(str(path)) <= 100 else str(path)[:97] + "..."
    raise CorpusError(f"{shown!a}: no such file or folder (pass texts as a list of strings)")


def _list_folder(folder: Path) -> list[TextFile]:
    def raise_error(error: OSError) -> None:
        raise CorpusError(f"{error.filename}: {error.strerror}") from error

    files = []
    for root, folders, names in os.walk(folder, onerror=raise_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(root, name) for name in names if not name.startswith(".")]

    if not files:
        raise CorpusError(f"{folder}: the folder has no files")
    return [*sorted(files)]


def _name_files(files: Iterable[TextFile]) -> Iterator[str]:
    """Yield a unique name for each file, without its folder; the second file of the same name gets the suffix #2."""
    taken = set(_RESERVED_NAMES)
    seen = Counter[str]()

    for file in files:
        name = file.name
        while name in taken and file != STDIN:
            seen[file.name] += 1
            name = f"{file.name}#{seen[file.name] + 1}"
        taken.add(name)
        yield name


def fingerprint_sources(texts: Texts, config: CorpusConfig) -> dict[str, str]:
    """Return a digest of each source's size, modification time and configuration, by file name.

    The location of a file is not included, so that a project may be moved. Iterables and standard input have no digest;
    a fixed text replaces it.
    """
    if not isinstance(texts, (str, *FILE_TYPES)):
        is_list = isinstance(texts, Collection) and len(texts) > 0
        if not is_list or not all(isinstance(item, FILE_TYPES) for item in texts):
            return {"iterable": "iterable"}

    files = list_files(texts)  # type: ignore[arg-type]
    return {name: _fingerprint_file(file, config) for name, file in zip(_name_files(files), files, strict=True)}


def _fingerprint_file(file: TextFile, config: CorpusConfig) -> str:
    if isinstance(file, RemoteFile):
        return fingerprint([file.size(), file.version(), fingerprint(config)])
    if file == STDIN:
        return "standard input"
    with clear_errors(file, CorpusError):
        status = file.stat()
    return fingerprint([status.st_size, status.st_mtime_ns, fingerprint(config)])


def size_of(file: TextFile) -> int | None:
    """Return the size of a file in bytes; None for standard input and pipes."""
    if isinstance(file, RemoteFile):
        return file.size()
    if file == STDIN or not file.is_file():
        return None
    return file.stat().st_size


def text_size(file: TextFile) -> int:
    """Return the approximate number of bytes of text in a file; 0 if unknown."""
    size = size_of(file) or 0
    if file.suffix.lower() in PACKED_SUFFIXES:
        size *= COMPRESSION_RATIO
    return size


def open_file(file: TextFile) -> IO[bytes]:
    """Open a local or remote file for reading bytes."""
    if isinstance(file, RemoteFile):
        return file.open()
    with clear_errors(file, CorpusError):
        return file.open("rb", buffering=0)


def is_url(text: str) -> bool:
    r"""Return whether a string is a URL and not a path.

    >>> is_url("s3://bucket/a.txt"), is_url("zip://a.txt::/tmp/a.zip"), is_url("C:\\a.txt"), is_url("a.txt")
    (True, True, False, False)
    """
    return _URL.match(text) is not None


def list_url(url: str) -> list[Path] | list[RemoteFile]:
    """Return the files of a URL, sorted: one file, the files of a folder without hidden ones, or the matches of a glob.

    URLs of local files (file://) are returned as paths, which do not need fsspec. Raises CorpusError if there is no
    file.
    """
    if _LOCAL_URL.match(url) and "::" not in url:
        return [Path(_LOCAL_URL.sub("", url))]

    with clear_remote_errors(url):
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        if glob.has_magic(path):
            paths = [match for match in system.glob(path) if not system.isdir(match)]
        elif system.isdir(path):
            paths = system.find(path)
        elif system.exists(path):
            paths = [path]
        else:
            paths = []

    files = [RemoteFile(system, file) for file in sorted(paths) if not _is_hidden(file, path)]
    if not files:
        raise CorpusError(f"{url}: no such file, or a folder without files")
    return files


def _is_hidden(file: str, folder: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(file.removeprefix(folder)).parts)


@contextmanager
def clear_remote_errors(name: str) -> Iterator[None]:
    """Convert any error of a file system into a CorpusError with a one-line message."""
    try:
        yield
    except CorpusError:
        raise
    except Exception as error:  # Each file system raises the errors of its own library.
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__
        if isinstance(error, FileNotFoundError):  # Some file systems report only the name.
            reason = "No such file or directory"
        raise CorpusError(f"{name}: {reason}") from error
