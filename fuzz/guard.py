"""One input, and what came of it.

The promise: any bytes give a value that holds what the target says of it, or one of Swivel's own errors, in one line
that names the file. Nothing else is raised; no file is opened outside the folder that the input is in; nothing is
unpickled, no process started, no socket opened.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import swivel
from swivel.errors import SwivelError

SPLIT = b"\n\xff\xfe\xff\n"  # between the files of an input that is several
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = {"pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn"}
_FORBIDDEN |= {"socket.connect", "socket.bind", "socket.getaddrinfo", "webbrowser.open"}
_CHANGING = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_DATA = os.path.realpath(Path(swivel.__file__).parent / "data")  # of the package
_READABLE = ("/proc/", "/sys/", "/dev/null", sys.base_prefix, sys.prefix, _DATA)
_CODE = (".py", ".pyc", ".so", ".nbi", ".nbc")  # of modules that are first needed now, and numba's cache of them


@dataclass(frozen=True, slots=True)
class Target:
    """A reader under test.

    Attributes
    ----------
    name
        What it is called on the command line.
    read
        Reads an input inside a folder and asserts what holds of the value.
    seeds
        Makes good inputs, with the help of an empty folder.
    share
        Its part of all executions, in relation to the others': fast readers take most.
    names_file
        Whether every error names a file of the folder.
    words
        Tokens of the format, which the fuzzer puts in.
    needs
        Libraries without which it is left out.
    """

    name: str
    read: Callable[[bytes, Path], None]
    seeds: Callable[[Path], Iterable[bytes]]
    share: int
    names_file: bool = True
    words: tuple[bytes, ...] = ()
    needs: tuple[str, ...] = ()


class Forbidden(BaseException):
    """Something that no reader may do. Not an Exception: readers that catch too much must not hide it."""


class Watch:
    """Looks at what the interpreter does while an input is read; see `sys.audit`."""

    def __init__(self) -> None:
        self.folder: str | None = None
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or (event != "open" and event not in _FORBIDDEN and event not in _CHANGING):
            return
        folder, self.folder = self.folder, None  # what is done here is not the reader's
        try:
            if event in _FORBIDDEN:
                raise Forbidden(f"{event} {arguments!r}")
            self._look_at_path(folder, event, arguments)
        finally:
            self.folder = folder

    @staticmethod
    def _look_at_path(folder: str, event: str, arguments: tuple[Any, ...]) -> None:
        if not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return  # a handle that is open already
        path = os.path.realpath(Path(folder) / os.fsdecode(arguments[0]))  # or relative to some handle
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        is_writing = event in _CHANGING or bool(flags & _WRITING)
        is_inside = path == folder or path.startswith(folder + os.sep)
        if not is_inside and (is_writing or (not path.startswith(_READABLE) and not path.endswith(_CODE))):
            raise Forbidden(f"{event} {path}")


_watch: list[Watch] = []  # one for the process: a hook cannot be taken away again


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong: the kind of error and the place it came from, and the whole of it."""

    signature: str
    report: str


def execute(target: Target, data: bytes, folder: Path) -> Finding | None:
    """Run one input; return what is wrong with the reader, or None."""
    if not _watch:
        _watch.append(Watch())
    _watch[0].folder = os.path.realpath(folder)
    try:
        target.read(data, folder)
    except SwivelError as error:
        return _judge(target, error, folder)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _describe(target, error)
    finally:
        _watch[0].folder = None
    return None


def _judge(target: Target, error: SwivelError, folder: Path) -> Finding | None:
    """Hold one of our own errors against what is promised of it."""
    text = str(error)
    wrong = "no text" if not text.strip() else "several lines" if "\n" in text else None
    if wrong is None and target.names_file and str(folder) not in text:
        wrong = "no file named"
    return _describe(target, error, wrong) if wrong else None


def _describe(target: Target, error: BaseException, wrong: str = "") -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}swivel{os.sep}" in frame.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}"
    signature = f"{target.name}: {type(error).__name__} in {place}{': ' * bool(wrong)}{wrong}"
    return Finding(signature, "".join(traceback.format_exception(error))[-4000:])


def warm_up(target: Target, folder: Path) -> list[bytes]:
    """Return the good inputs, each read once, unwatched, so that what is imported when first needed is there."""
    (folder / "made").mkdir()
    (folder / "read").mkdir()
    seeds = list(target.seeds(folder / "made"))
    for seed in seeds:
        with contextlib.suppress(Exception):
            target.read(seed, folder / "read")
    return seeds


def minimize(target: Target, data: bytes, folder: Path, *, tries: int = 2000) -> bytes:
    """Return a shorter input with the same finding: pieces are left out, large ones first."""
    found = execute(target, data, folder)
    size = max(len(data) // 2, 1)
    while found is not None and tries > 0:
        start, is_shorter = 0, False
        while start < len(data) and tries > 0:
            tries -= 1
            shorter = data[:start] + data[start + size :]
            again = execute(target, shorter, folder)
            if again is not None and again.signature == found.signature:
                data, is_shorter = shorter, True
            else:
                start += size
        if size == 1 and not is_shorter:
            break
        size = max(size // 2, 1)
    return data


def put(folder: Path, name: str, data: bytes) -> Path:
    """Write a file of an input."""
    path = folder / name
    path.write_bytes(data)
    return path


def parts(data: bytes, count: int) -> list[bytes]:
    """Return the files of an input, empty ones where there are too few."""
    found = data.split(SPLIT, count - 1)
    return found + [b""] * (count - len(found))


def option(data: bytes, count: int) -> tuple[int, bytes]:
    """Return a choice among `count`, from the first byte, and the rest."""
    return (data[0] % count if data else 0), data[1:]
