"""Remote files, by URL (s3://, gs://, hdfs://, zip://...::file://...), read with fsspec."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from swivel.errors import CorpusError
from swivel.storage import fingerprint

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")  # two letters or more, because C:\ is a disk
_INFO_TYPES = (str, bytes, int, float, tuple, datetime)  # types of file information that have a stable string
_LOCATION_KEYS = ("name", "filename", "orig_filename", "Key")
_LOCAL = re.compile(r"(file|local)://")


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
    if _LOCAL.match(url) and "::" not in url:
        return [Path(_LOCAL.sub("", url))]

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
