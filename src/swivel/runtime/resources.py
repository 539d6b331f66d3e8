"""The cores, memory, address space and disk space that this process may use, and estimates of what a job needs.

Estimates are checked before a job starts, so that it fails early if there is not enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from swivel.errors import ConfigError, MemoryBudgetError, StorageError, first_line

if TYPE_CHECKING:
    from swivel.runtime.progress import Progress

MIN_FREE_DISK = 0.7  # Estimates of disk are rough: a job is refused only if less than this fraction of one is free.

# What a process takes to load libraries and to compile their kernels, on the smallest input: memory
# (benchmarks/limits.py), and address space, with the CPU build of torch on Linux. SciPy, scikit-learn, matplotlib and
# pyarrow take less than numba.
NUMBA_MEMORY, NUMBA_SPACE = 150 << 20, 800 << 20
TORCH_MEMORY, TORCH_SPACE = 276 << 20, 1_400 << 20  # with numba
MIN_THREADS, MIN_TORCH_THREADS = 2, 8  # beside those that libraries start for each core
ADVISED = ("dim", "max_size", "min_count")  # arguments that `ResourceEstimate.advice` may name

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MAX_BYTES = float(1 << 62)

_M_MMAP_THRESHOLD = -3  # parameter of glibc's mallopt
_MIN_RETURNED_BYTES = 1 << 23  # more than the arrays of a training step

_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
# Files of the limit and the usage of a resource, by cgroup controller: "" is cgroup v2, a name is cgroup v1.
_MEMORY_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}
_PID_FILES = {"": ("pids.max", "pids.current"), "pids": ("pids.max", "pids.current")}
_MANY_THREADS = 4096  # A larger limit on processes is not worth counting them.
_PAGE_CACHE = {"inactive_file", "active_file"}  # memory that the system reclaims when it is needed
_CUDA_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # one of them exists if CUDA does, on Linux and WSL


def explain_device(error: Exception) -> str:
    """Return in a few words why torch cannot use a device, without its lists of all devices and backends.

    >>> explain_device(RuntimeError("Expected one of cpu, cuda, ipu device type at start of device string: gpu"))
    'torch knows no device of this name'
    """
    line = first_line(error)
    if line.startswith("Expected one of"):
        return "torch knows no device of this name"
    if line.startswith("Could not run"):
        return "this build of torch does not support it"
    return line.partition(". ")[0]


def count_cores() -> int:
    """Return the number of cores that this process may use, by CPU affinity and the CPU quota of a container."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows do not report CPU affinity.
        cores = os.cpu_count() or 1

    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        quota, period = (int(word) for word in (_CGROUP / "cpu.max").read_text().split())
        cores = min(cores, math.ceil(quota / period))

    return max(cores, 1)


def _use_one_thread() -> None:
    """Make torch use one thread in a forked process, as torch does in the processes of a DataLoader.

    The threads of OpenMP are not forked, but OpenMP would wait for them in the next operation on several threads.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread)


def may_use_cuda(asked: str) -> bool:
    """Return whether a CUDA device may be used; what kind it is, torch has to say."""
    return asked in ("auto", "cuda") and any(Path(device).exists() for device in _CUDA_DEVICES)


def free_memory() -> int:
    """Return the bytes of memory that this process can still allocate without swapping.

    This is the minimum over the machine, the cgroups of a container, and the address-space limits of the process.
    """
    candidates = [_free_machine_memory()]

    for folder, limit, usage in _list_limits(_MEMORY_FILES):
        unreclaimable = max(usage - _read_cache(folder / "memory.stat"), 0)
        candidates.append(max(limit - unreclaimable, 0))

    space = free_address_space()
    if space is not None:
        candidates.append(space)

    return min(candidates)


def free_threads() -> int | None:
    """Return how many more threads this process may start; None if no limit is near."""
    remaining = [limit - usage for _, limit, usage in _list_limits(_PID_FILES)]

    # The limit is on all threads of the user, and root has none.
    limit = address_limit("RLIMIT_NPROC")
    if limit is not None and limit < _MANY_THREADS and os.getuid() != 0:
        threads = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError, KeyError, ValueError):  # The process has ended.
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                threads += int(fields["Threads"]) if int(fields["Uid"].split()[0]) == os.getuid() else 0
        remaining.append(limit - threads)
    return min(remaining, default=None)


def _list_limits(files: Mapping[str, tuple[str, str]]) -> Iterator[tuple[Path, int, int]]:
    """Yield the folder, limit and usage of this process's cgroups and their ancestors that have a limit."""
    group_paths = dict.fromkeys(files, "")  # controller -> path of the cgroup of this process

    # A line is "hierarchy-id:controllers:path", for example "0::/user.slice" (v2) or "5:memory:/docker/1f" (v1).
    with contextlib.suppress(OSError):
        for line in _OWN_CGROUPS.read_text().splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            for controller in controllers.split(","):
                if controller in group_paths:
                    group_paths[controller] = path.strip("/")

    # A limit of any ancestor applies, too.
    for controller, group_path in group_paths.items():
        limit_file, usage_file = files[controller]
        own = Path(group_path)
        for folder in (_CGROUP / controller / group for group in (own, *own.parents)):
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                yield folder, int((folder / limit_file).read_text()), int((folder / usage_file).read_text())


def address_limit(kind: str = "RLIMIT_AS") -> int | None:
    """Return a resource limit of this process in bytes, by default of the address space (ulimit -v); None: no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None

    limit = resource.getrlimit(getattr(resource, kind))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def free_address_space() -> int | None:
    """Return how many bytes are left of the limits on address space and data; None if unlimited or unknown."""
    remaining = []

    # Columns of /proc/self/statm, in pages: 0 is the whole address space, 5 is data and stack.
    for kind, column in (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)):
        limit = address_limit(kind)
        with contextlib.suppress(OSError):
            if limit is not None:
                pages = int(Path("/proc/self/statm").read_text().split()[column])
                remaining.append(max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0))

    return min(remaining, default=None)


def free_disk(path: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _read_cache(stat_file: Path) -> int:
    """Return the bytes of page cache that are part of a cgroup's usage."""
    try:
        fields = dict(line.split() for line in stat_file.read_text().splitlines())
        prefix = "total_" if "total_cache" in fields else ""  # cgroup v1: "total_" includes child groups
        return sum(int(fields.get(prefix + name, 0)) for name in _PAGE_CACHE)
    except (OSError, ValueError):
        return 0


def _free_machine_memory() -> int:
    """Return the available memory of the machine, or a guess if the system does not report it."""
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


def parse_bytes(text: str, name: str = "memory") -> int:
    """Return the number of bytes in a string such as "1GiB", "500MB" or "123456", the value of the argument `name`.

    >>> parse_bytes("1GiB"), parse_bytes("1.5 GB"), parse_bytes("4096")
    (1073741824, 1500000000, 4096)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"{name} must be a number of bytes such as 1GiB or 500MB, got {text!r}", argument=name)

    size = float(match[1]) * _UNITS[match[2].lower()]
    if not 1 <= size <= _MAX_BYTES:
        limit = format_bytes(_MAX_BYTES)
        raise ConfigError(f"{name} must be at least one byte and at most {limit}, got {text[:40]!r}", argument=name)
    return int(size)


def format_bytes(size: float) -> str:
    """Return a number of bytes as text with a binary unit.

    >>> format_bytes(1073741824), format_bytes(12)
    ('1.0 GiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_estimate(size: float) -> str:
    """Return an estimated number of bytes as text; the size of a small one does not matter.

    >>> format_estimate(1073741824), format_estimate(170)
    ('about 1.0 GiB', 'less than 1 MiB')
    """
    return "less than 1 MiB" if size < 1 << 20 else f"about {format_bytes(size)}"


def _call_glibc(function: str, *arguments: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library, or Windows
        getattr(ctypes.CDLL(None), function)(*arguments)


def return_large_arrays() -> None:
    """Make glibc, where it is, return every large array to the system when it is freed."""
    # By default glibc keeps up to 32 MiB of each, in every thread: counting within 100 MB took 30 MiB more.
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, _MIN_RETURNED_BYTES)


def release_freed_memory() -> None:
    """Make glibc, where it is, return freed memory to the system between two stages of a job."""
    # Otherwise memory that threads have freed in small pieces stays with the process, beside the next stage's.
    _call_glibc("malloc_trim", 0)


def find_rank(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int] | None:
    """Return the rank, the number of ranks and that on this machine, as torchrun sets them; None without a launcher.

    >>> find_rank({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    (1, 4, 2)
    """
    if not all(name in environment for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None

    rank = int(environment["RANK"])
    ranks = int(environment["WORLD_SIZE"])
    return rank, ranks, int(environment.get("LOCAL_WORLD_SIZE", "1"))


def is_leading() -> bool:
    """Return whether this process prints; of the ranks that torchrun starts, only the first one does."""
    rank = find_rank()
    return rank is None or rank[0] == 0


def free_beside_libraries() -> int:
    """Return the bytes of free memory that are left when numba is loaded; negative if there are too few."""
    return free_memory() - (0 if "numba" in sys.modules else NUMBA_MEMORY)


@dataclass(frozen=True, slots=True)
class ResourceEstimate:
    """Estimated disk and memory of a job."""

    what: str  # name of the job for messages
    disk_bytes: int  # size of the files that the job writes
    memory_bytes: int  # peak memory
    mapped_bytes: int = 0  # size of the memory-mapped files, which take address space but no memory
    advice: str = "free some"  # what to do if there is not enough, for error messages

    def __str__(self) -> str:
        return f"{format_estimate(self.memory_bytes)} of memory and {format_estimate(self.disk_bytes)} of disk"

    def announce(self, path: Path | None, progress: Progress) -> None:
        """Report the estimate, then check it."""
        progress.message(f"{self} for {self.what}")
        self.check(path)

    def check(self, path: Path | None) -> None:
        """Raise StorageError or MemoryBudgetError if the disk of `path` is clearly too small, or the memory is."""
        # Without a path, nothing is written, and what would be on disk is in memory, too.
        if path is None:
            replace(self, disk_bytes=0, memory_bytes=self.memory_bytes + self.disk_bytes).check(Path.cwd())
            return

        free = free_disk(path)
        if self.disk_bytes * MIN_FREE_DISK > free:
            raise StorageError(
                f"{path}: {self.what} needs about {format_bytes(self.disk_bytes)} of disk, but {format_bytes(free)} "
                f"are free; choose another disk, or {self.advice}",
                argument=ADVISED,
            )

        # Maps of files need address space even where they take no memory.
        space = free_address_space()
        if space is not None and self.memory_bytes + self.mapped_bytes > space:
            raise MemoryBudgetError(
                f"{self.what} needs about {format_bytes(self.memory_bytes + self.mapped_bytes)} of address space, but "
                f"{format_bytes(space)} remain in the limit of this process (ulimit -v, -d); raise the limit, or "
                f"{self.advice}",
                argument=ADVISED,
            )

        free = free_memory()
        if self.memory_bytes > free:
            raise MemoryBudgetError(
                f"{self.what} needs {self}, but {format_bytes(free)} of memory are free; {self.advice}",
                argument=ADVISED,
            )


def check_threads(what: str, count: int) -> None:
    """Raise MemoryBudgetError if the limits on processes do not allow so many more threads."""
    # Without a thread, OpenBLAS raises SIGINT when it is loaded, and OpenMP ends the process.
    free = free_threads()
    if free is not None and free < count:
        raise MemoryBudgetError(
            f"{what} needs about {count} threads, but the limit on processes allows {max(free, 0)} more; raise it "
            "(ulimit -u, pids.max)"
        )


def check_memory(what: str, memory_bytes: int) -> None:
    """Raise MemoryBudgetError if less memory is free than a step needs that is not planned in advance."""
    free = free_memory()
    if memory_bytes > free:
        raise MemoryBudgetError(
            f"{what} needs about {format_bytes(memory_bytes)} of memory, but {format_bytes(free)} are free"
        )


def check_libraries(what: str, *, needs_torch: bool = False) -> None:
    """Raise MemoryBudgetError if memory or the address-space limit are too small to load the libraries of a job."""
    # The libraries end the process without a message if they cannot allocate memory, so they must not be loaded.
    space = TORCH_SPACE if needs_torch else NUMBA_SPACE
    limit = address_limit()
    if limit is not None and limit < space:
        raise MemoryBudgetError(
            f"{what} needs at least {format_bytes(space)} of address space, including libraries, but the limit of "
            f"this process is {format_bytes(limit)}; raise the limit (ulimit -v)"
        )

    is_loaded = ("torch" if needs_torch else "numba") in sys.modules
    if not is_loaded:
        cores = count_cores()
        check_threads(what, MIN_TORCH_THREADS + 2 * cores if needs_torch else MIN_THREADS + cores)
        check_memory(f"loading the libraries for {what}", TORCH_MEMORY if needs_torch else NUMBA_MEMORY)
