"""What a job needs of disk and memory: said first, and held against what there is.

Receives estimates of the stages, hands on one line for people, or one error before anything is begun. It measures
nothing itself: that is `resources`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swivel.errors import MemoryBudgetError, StorageError
from swivel.runtime.progress import Progress
from swivel.runtime.resources import address_limit, format_bytes, free_address_space, free_disk, free_memory

ENOUGH = 0.7  # of an estimate: with less there is clearly no room
# Address space of a process that has loaded the libraries of a job: 0.69 and 1.33 GB at the peak on Linux, the CPU
# build of torch, the smallest input; with less they end the process.
LIBRARIES = {"counting": 800 << 20, "importing": 800 << 20, "training": 1_400 << 20}


@dataclass(frozen=True, slots=True)
class ResourceEstimate:
    """What a job will take, about; `mapped_bytes` are of files that are mapped: no memory, but address space."""

    what: str  # counting, training, ...
    disk_bytes: int
    memory_bytes: int
    mapped_bytes: int = 0
    advice: str = "free some"

    def __str__(self) -> str:
        return f"about {format_bytes(self.memory_bytes)} of memory and {format_bytes(self.disk_bytes)} of disk"

    def announce(self, path: Path, progress: Progress) -> None:
        """Say what is needed; raise StorageError or MemoryBudgetError where there is clearly no room for it."""
        progress.message(f"{self} for {self.what}")
        self.check(path)

    def check(self, path: Path) -> None:
        """Raise StorageError or MemoryBudgetError where there is clearly no room."""
        free = free_disk(path)
        if self.disk_bytes * ENOUGH > free:
            raise StorageError(
                f"{path}: {self.what} needs about {format_bytes(self.disk_bytes)} of disk, {format_bytes(free)} are "
                f"free; choose another disk, or {self.advice}"
            )
        space = free_address_space()
        if space is not None and self.memory_bytes + self.mapped_bytes > space:
            raise MemoryBudgetError(
                f"{self.what} needs about {format_bytes(self.memory_bytes + self.mapped_bytes)} of address space, "
                f"{format_bytes(space)} are left of this process's limit (ulimit -v, -d); raise it, or {self.advice}"
            )
        free = free_memory()
        if self.memory_bytes * ENOUGH > free:
            raise MemoryBudgetError(f"{self.what} needs {self}, {format_bytes(free)} of memory are free; {self.advice}")


def check_libraries(what: str) -> None:
    """Raise MemoryBudgetError where this process may not have the address space that the libraries of a job take.

    They end the process without a word where memory is refused to them; so they are not loaded.
    """
    limit, needed = address_limit(), LIBRARIES[what]
    if limit is not None and limit < needed:
        raise MemoryBudgetError(
            f"{what} needs {format_bytes(needed)} of address space or more, libraries included, and this process may "
            f"have {format_bytes(limit)}; raise the limit (ulimit -v)"
        )
