"""Estimates of disk and memory, checked before a job starts so that it fails early if there is not enough."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from swivel.errors import MemoryBudgetError, StorageError
from swivel.runtime.progress import Progress
from swivel.runtime.resources import (
    address_limit,
    count_cores,
    format_bytes,
    free_address_space,
    free_disk,
    free_memory,
    free_threads,
)

MIN_FREE_DISK = 0.7  # Estimates of disk are rough: a job is refused only if less than this fraction of one is free.

# What a process takes to load libraries and to compile their kernels, on the smallest input: memory
# (benchmarks/limits.py), and address space, with the CPU build of torch on Linux. SciPy, scikit-learn, matplotlib and
# pyarrow take less than numba.
NUMBA_MEMORY, NUMBA_SPACE = 150 << 20, 800 << 20
TORCH_MEMORY, TORCH_SPACE = 276 << 20, 1_400 << 20  # with numba
MIN_THREADS, MIN_TORCH_THREADS = 2, 8  # beside those that libraries start for each core
ADVISED = ("dim", "max_size", "min_count")  # arguments that `ResourceEstimate.advice` may name


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
        return f"about {format_bytes(self.memory_bytes)} of memory and {format_bytes(self.disk_bytes)} of disk"

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
