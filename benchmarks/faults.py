"""A file system that fails on purpose: builds `faults.c`, and says which call of which process shall fail.

The library is preloaded (Linux, glibc, a C compiler) and counts every call that changes files below a folder, of all
processes that share a control file, also of code that writes below Python.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
KINDS = {"open": 1, "write": 2, "sync": 3, "rename": 4, "mkdir": 5, "truncate": 6, "reserve": 7, "map": 8, "remove": 9}
MODES = {
    "once": 1,
    "lasting": 2,
    "short": 3,
    "short, then lasting": 4,
    "kill before": 5,
    "kill halfway": 6,
    "kill after": 7,
}
_HEAD = struct.Struct("=iiiiqqq400s")
_ENTRY = struct.Struct("=i111sx")
_CALLS = 20_000
_NEEDS_ROOM = ("open", "write", "mkdir", "reserve")


@dataclass(frozen=True, slots=True)
class Fault:
    """What a call does instead of what it should."""

    mode: str
    error: int

    @property
    def only(self) -> int:
        """The kinds that fail from then on, as bits: a full disk still renames and removes; 0: all."""
        return sum(1 << KINDS[kind] for kind in _NEEDS_ROOM) if self.error == errno.ENOSPC else 0

    def __str__(self) -> str:
        return f"{errno.errorcode[self.error]} {self.mode}" if self.error else self.mode


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was counted."""

    kind: str
    path: str


def why_not() -> str | None:
    """Return why nothing can be made to fail here; None where it can."""
    if sys.platform != "linux":
        return "calls are caught by glibc's preloading, which is Linux's"
    return None if shutil.which("cc") else "no C compiler here to build faults.c with"


def build_library(folder: Path) -> Path:
    """Build the library and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "faults.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class Control:
    """The file that tells the library what to do."""

    def __init__(self, file: Path) -> None:
        self.file, size = file, _HEAD.size + _CALLS * _ENTRY.size
        if not file.exists() or file.stat().st_size != size:
            file.write_bytes(bytes(size))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), size)

    def environment(self, library: Path) -> dict[str, str]:
        """Return the environment of a process whose calls are counted."""
        return {**os.environ, "LD_PRELOAD": str(library), "FAULTS_CONTROL": str(self.file)}

    def arm(self, folder: Path, nth: int = 0, fault: Fault | None = None) -> None:
        """Count calls below a folder from now on; the n-th has the fault."""
        fault = fault or Fault("once", 0)
        what = (1, MODES[fault.mode], fault.error, fault.only, nth, 0, 0)
        self._map[: _HEAD.size] = _HEAD.pack(*what, str(folder).encode())

    def disarm(self) -> None:
        """Let everything go well from now on."""
        self._map[:4] = bytes(4)

    @property
    def calls(self) -> int:
        """How many calls were counted."""
        return int(_HEAD.unpack(self._map[: _HEAD.size])[5])

    @property
    def failed(self) -> int:
        """How many calls had the fault."""
        return int(_HEAD.unpack(self._map[: _HEAD.size])[6])

    def log(self) -> list[Call]:
        """Return the calls that were counted, in order."""
        names = {number: name for name, number in KINDS.items()}
        found = []
        for number in range(min(self.calls, _CALLS)):
            start = _HEAD.size + number * _ENTRY.size
            kind, path = _ENTRY.unpack(self._map[start : start + _ENTRY.size])
            found.append(Call(names[kind], path.split(b"\0")[0].decode(errors="replace")))
        return found


FAULTS = {
    "open": (Fault("lasting", errno.EROFS), Fault("once", errno.ENOSPC)),
    "write": (
        Fault("lasting", errno.ENOSPC),
        Fault("once", errno.EIO),
        Fault("short", errno.ENOSPC),
        Fault("short, then lasting", errno.ENOSPC),
    ),
    "sync": (Fault("once", errno.EIO),),
    "rename": (Fault("once", errno.EIO), Fault("once", errno.ENOSPC)),
    "mkdir": (Fault("once", errno.ENOSPC), Fault("lasting", errno.EROFS)),
    "truncate": (Fault("once", errno.EIO),),
    "reserve": (Fault("lasting", errno.ENOSPC), Fault("once", errno.EOPNOTSUPP)),
    "map": (Fault("once", errno.ENOMEM),),
    "remove": (Fault("once", errno.EIO), Fault("lasting", errno.EROFS)),
}
KILLS = (Fault("kill before", 0), Fault("kill halfway", 0), Fault("kill after", 0))
