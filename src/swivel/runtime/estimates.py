"""Estimates of disk and memory, checked before a job starts so that it fails early if there is not enough."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from swivel.errors import MemoryBudgetError, StorageError
from swivel.runtime.progress import Progress
from swivel.runtime.resources import (
    address_limit,
    format_bytes,
    free_address_space,
    free_disk,
    free_memory,
    used_memory,
)

MIN_FREE_DISK = 0.7  # Estimates of disk are rough: a job is refused only if less than this fraction of one is free.

# Peak address space of a process that has loaded the libraries of a job, measured on Linux with the CPU build of torch
# and the smallest input: 0.69 GB (counting, importing) and 1.33 GB (training). With less, loading ends the process.
LIBRARY_BYTES = {
    "counting": 800 << 20,
    "importing": 800 << 20,
    "training": 1_400 << 20,
    "extending": 1_400 << 20,  # counts first, then loads torch
}

# Peak memory of a process on the smallest input, if its kernels have to be compiled (benchmarks/limits.py). Kernels
# that were compiled before take 90 MiB less.
LIBRARY_MEMORY = {
    "adding": 170 << 20,
    "counting": 170 << 20,
    "importing": 170 << 20,
    "finding phrases": 170 << 20,
    "encoding": 170 << 20,
    "training": 296 << 20,
    "extending": 296 << 20,
    "plotting": 64 << 20,  # matplotlib
    "recommending": 64 << 20,  # SciPy
    "drawing a map": 150 << 20,  # scikit-learn
    "reading and writing Parquet": 72 << 20,  # pyarrow
}


# The modules with most of this memory, and what each of them adds to a process that has not loaded it.
_MODULE_MEMORY = {"numba": 150 << 20, "torch": 126 << 20, "matplotlib": 44 << 20, "pyarrow": 52 << 20}
_MODULES = {
    **dict.fromkeys(("adding", "counting", "importing", "finding phrases", "encoding"), ("numba",)),
    **dict.fromkeys(("training", "extending"), ("numba", "torch")),
    "plotting": ("matplotlib",),
    "reading and writing Parquet": ("pyarrow",),
}


def free_beside_libraries(what: str = "counting") -> int:
    """Return the bytes of free memory that are left when the libraries of a job are loaded; negative if too few."""
    # The memory of a process may be data of its user: a module that is not loaded needs its memory in any case.
    missing = sum(_MODULE_MEMORY[module] for module in _MODULES.get(what, ()) if module not in sys.modules)
    return free_memory() - max(LIBRARY_MEMORY.get(what, 0) - used_memory(), missing)


@dataclass(frozen=True, slots=True)
class ResourceEstimate:
    """Estimated disk and memory of a job."""

    what: str  # name of the job for messages, such as "counting" or "training"
    disk_bytes: int  # size of the files that the job writes
    memory_bytes: int  # peak memory
    mapped_bytes: int = 0  # size of the memory-mapped files, which take address space but no memory
    advice: str = "free some"  # what to do if there is not enough, for error messages

    def __str__(self) -> str:
        return f"about {format_bytes(self.memory_bytes)} of memory and {format_bytes(self.disk_bytes)} of disk"

    def announce(self, path: Path, progress: Progress) -> None:
        """Report the estimate to `progress`, then call `check`."""
        progress.message(f"{self} for {self.what}")
        self.check(path)

    def check(self, path: Path) -> None:
        """Raise StorageError or MemoryBudgetError if the disk of `path` is clearly too small, or the memory is."""
        free = free_disk(path)
        if self.disk_bytes * MIN_FREE_DISK > free:
            raise StorageError(
                f"{path}: {self.what} needs about {format_bytes(self.disk_bytes)} of disk, but {format_bytes(free)} "
                f"are free; choose another disk, or {self.advice}"
            )

        space = free_address_space()
        if space is not None and self.memory_bytes + self.mapped_bytes > space:
            raise MemoryBudgetError(
                f"{self.what} needs about {format_bytes(self.memory_bytes + self.mapped_bytes)} of address space, but "
                f"{format_bytes(space)} remain in the limit of this process (ulimit -v, -d); raise the limit, or "
                f"{self.advice}"
            )

        free = free_memory()
        if self.memory_bytes > free:
            raise MemoryBudgetError(
                f"{self.what} needs {self}, but {format_bytes(free)} of memory are free; {self.advice}"
            )


def check_memory(what: str, memory_bytes: int) -> None:
    """Raise MemoryBudgetError if less memory is free than a step needs that is not planned in advance."""
    free = free_memory()
    if memory_bytes > free:
        raise MemoryBudgetError(
            f"{what} needs about {format_bytes(memory_bytes)} of memory, but {format_bytes(free)} are free"
        )


def check_libraries(what: str) -> None:
    """Raise MemoryBudgetError if memory or the address-space limit are too small to load the libraries of a job.

    `what` is a key of LIBRARY_MEMORY. The libraries end the process without a message if they cannot allocate memory,
    so they must not be loaded.
    """
    limit = address_limit()
    needed = LIBRARY_BYTES.get(what, 0)

    if limit is not None and limit < needed:
        raise MemoryBudgetError(
            f"{what} needs at least {format_bytes(needed)} of address space, including libraries, but the limit of "
            f"this process is {format_bytes(limit)}; raise the limit (ulimit -v)"
        )

    if free_beside_libraries(what) < 0:
        raise MemoryBudgetError(
            f"{what} needs at least {format_bytes(LIBRARY_MEMORY[what])} of memory, including libraries, but this "
            f"process uses {format_bytes(used_memory())} and {format_bytes(free_memory())} are free"
        )
