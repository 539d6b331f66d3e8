"""What the machine has: cores, memory, address space and disk that this process may use."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from swivel.errors import ConfigError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _MOST_KEPT = -1, -3, 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_MEMORY_FILES = {  # of each controller: folder, limit and use; of a container of today, and of one of yesterday
    "": ("", "memory.max", "memory.current"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}
_MOST_BYTES = float(1 << 62)
_PAGE_CACHE = {"inactive_file", "active_file"}  # the system takes it back when asked


def count_cores() -> int:
    """Return the number of cores that this process may run on, a container's share of time included, rounded up."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity to ask for.
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _read_share(_CGROUP))))


def _read_share(cgroup: Path) -> float:
    """Return how many cores' time a container may use; infinite where nothing is said."""
    try:
        quota, period = (int(word) for word in (cgroup / "cpu.max").read_text().split())
        return quota / period
    except (OSError, ValueError, ZeroDivisionError):  # No such file, or "max".
        return math.inf


def free_memory() -> int:
    """Return bytes of memory that can be taken without pushing anyone out, limits of containers and of the process too.

    A limit on a process's address space counts in full: what is mapped from files comes out of the same purse.
    """
    limits = [_free_of_machine()]
    for folder, limit_file, used_file in _memory_groups():
        limit, used = _read_number(folder / limit_file), _read_number(folder / used_file)
        if limit is not None and used is not None:
            held = max(used - _read_cache(folder / "memory.stat"), 0)
            limits.append(max(limit - held, 0))
    space = free_address_space()
    return min(limits if space is None else [*limits, space])


def _memory_groups() -> list[tuple[Path, str, str]]:
    """Return the folders that may say how much memory this process gets: its own group's and those above it."""
    paths = {"": "", "memory": ""}  # of each controller: the group, as far as this process can see
    with contextlib.suppress(OSError):
        for line in _OWN_CGROUPS.read_text().splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            for name in controllers.split(","):
                if name in paths:
                    paths[name] = path.strip("/")
    found = []
    for name, path in paths.items():
        top, limit, used = _MEMORY_FILES[name]
        own = Path(path)
        found += [(_CGROUP / top / group, limit, used) for group in (own, *own.parents)]
    return found


def address_limit(kind: str = "RLIMIT_AS") -> int | None:
    """Return how many bytes of address space (ulimit -v), or of another kind, this process may have; None: no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(getattr(resource, kind))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def free_address_space() -> int | None:
    """Return what is left of the limits on this process's address space and data; None: no limit, or nobody to ask."""
    left = []
    for kind, field in (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)):  # fields of statm: all pages, those of data
        limit = address_limit(kind)
        with contextlib.suppress(OSError):
            if limit is not None:
                used = int(Path("/proc/self/statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")
                left.append(max(limit - used, 0))
    return min(left, default=None)


def free_disk(path: Path) -> int:
    """Return bytes that are free on the disk where a folder is, or will be."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def _read_cache(stat_file: Path) -> int:
    """Return the bytes of files that a container's use counts, which go when memory is short."""
    try:
        fields = dict(line.split() for line in stat_file.read_text().splitlines())
        prefix = "total_" if "total_cache" in fields else ""  # the older kind: with the containers below
        return sum(int(fields.get(prefix + name, 0)) for name in _PAGE_CACHE)
    except (OSError, ValueError):
        return 0


def _free_of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # No such file, or "max".
        return None


def parse_bytes(text: str) -> int:
    """Return a number of bytes written as 1GiB, 500MB or 123456.

    >>> parse_bytes("1GiB"), parse_bytes("1.5 GB"), parse_bytes("4096")
    (1073741824, 1500000000, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text, re.IGNORECASE)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"memory must be a number of bytes such as 1GiB or 500MB, got {text!r}")
    exact = float(match[1]) * _UNITS[match[2].lower()]
    if exact > _MOST_BYTES:
        raise ConfigError(f"memory must be less than {format_bytes(_MOST_BYTES)}, got {text[:40]!r}")
    size = int(exact)
    if size <= 0:
        raise ConfigError(f"memory must be more than 0 bytes, got {text!r}")
    return size


def format_bytes(size: float) -> str:
    """Return a number of bytes for people.

    >>> format_bytes(1073741824), format_bytes(12)
    ('1.0 GiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def keep_freed_memory() -> None:
    """Have this process keep the memory of large arrays that it frees, for the next ones.

    glibc gives every large array back to the system, and fresh pages cost: 10 ms for a block of 4,096 x 300 on some
    virtual machines, several times a step. Where there is no glibc nothing is changed.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MOST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT)


def find_rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int] | None:
    """Return this process's rank, how many there are, and how many on this machine; None: no launcher started ranks.

    torchrun says so in the environment, and other launchers as it does.

    >>> find_rank({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    (1, 4, 2)
    """
    if not all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    return rank, ranks, int(environment.get("LOCAL_WORLD_SIZE", "1"))
