"""Files behind URLs: s3://, gs://, hdfs://, zip://...::file://..., whatever fsspec knows.

Receives URLs, hands on `RemoteFile`s that can be listed, opened and told apart on any machine. It reads no text.
"""

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

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")  # two letters or more: C:\ is a disk
_SAID = (str, bytes, int, float, tuple, datetime)  # of a file by its system; other things have no fixed text
_PLACES = ("name", "filename", "orig_filename", "Key")
_LOCAL = re.compile(r"(file|local)://")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of one of fsspec's file systems; what it holds travels with it to other machines."""

    system: Any
    path: str

    def __str__(self) -> str:
        return str(self.system.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """What stands behind the name's last dot, and the dot."""
        return PurePosixPath(self.path).suffix

    def size(self) -> int | None:
        """Return its bytes, where the file system can say."""
        with clear_remote_errors(str(self)):
            size = self.system.size(self.path)
        return None if size is None else int(size)

    def version(self) -> str:
        """Return what changes when the file does: all that its file system says of it but where it lies."""
        with clear_remote_errors(str(self)):
            facts = self.system.info(self.path)
        return fingerprint(
            sorted((key, str(value)) for key, value in facts.items() if isinstance(value, _SAID) and key not in _PLACES)
        )

    def open(self) -> IO[bytes]:
        """Open the file for reading."""
        with clear_remote_errors(str(self)):
            return self.system.open(self.path, "rb")  # type: ignore[no-any-return]


def is_url(text: str) -> bool:
    r"""Return whether a text is a URL rather than a path.

    >>> is_url("s3://bucket/a.txt"), is_url("zip://a.txt::/tmp/a.zip"), is_url("C:\\a.txt"), is_url("a.txt")
    (True, True, False, False)
    """
    return _URL.match(text) is not None


def list_url(url: str) -> list[Path] | list[RemoteFile]:
    """Return the files of a URL, of a folder behind one (hidden ones left out) or of a pattern, sorted.

    What is on this machine's disk (file://) comes back as paths that need no fsspec.
    """
    if _LOCAL.match(url) and "::" not in url:
        return [Path(_LOCAL.sub("", url))]
    with clear_remote_errors(url):
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        if glob.has_magic(path):
            found = [match for match in system.glob(path) if not system.isdir(match)]
        else:
            found = system.find(path) if system.isdir(path) else [path] if system.exists(path) else []
    files = [RemoteFile(system, file) for file in sorted(found) if not _is_hidden(file, path)]
    if not files:
        raise CorpusError(f"{url}: no such file, or a folder without files")
    return files


def _is_hidden(file: str, folder: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(file.removeprefix(folder)).parts)


@contextmanager
def clear_remote_errors(name: str) -> Iterator[None]:
    """Turn what file systems raise, each in its own way, into one clear line."""
    try:
        yield
    except CorpusError:
        raise
    except Exception as error:  # Each file system has errors of its own library, which we cannot know.
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__
        if isinstance(error, FileNotFoundError):  # Some say no more than the name.
            reason = "No such file or directory"
        raise CorpusError(f"{name}: {reason}") from error
