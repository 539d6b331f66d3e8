"""What a job may use and how it reports: threads, memory, progress. None of it changes a result."""

from __future__ import annotations

from dataclasses import dataclass

from swivel.config import POSITIVE_INT
from swivel.errors import ConfigError
from swivel.progress import SILENT, Progress
from swivel.resources import count_cores, free_memory, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a job may use and how it reports; none of it changes the result."""

    threads: int | None = None  # None: every core
    memory: int | str | None = None  # bytes, or a text such as 1GiB; None: half of what is free
    overwrite: bool = False
    progress: Progress = SILENT

    def __post_init__(self) -> None:
        if self.threads is not None and not POSITIVE_INT.holds(self.threads):
            raise ConfigError(f"threads must be {POSITIVE_INT.words}, got {self.threads!r}")
        if isinstance(self.memory, str):
            parse_bytes(self.memory)  # A slip is told now, not after the text has been read.
        elif self.memory is not None and not POSITIVE_INT.holds(self.memory):
            raise ConfigError(f"memory must be {POSITIVE_INT.words} or a text such as 1GiB, got {self.memory!r}")

    @property
    def thread_count(self) -> int:
        """Number of threads to use."""
        return self.threads or count_cores()

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory to stay inside."""
        if self.memory is None:
            return max(free_memory() // 2, 256 * 2**20)
        return parse_bytes(self.memory) if isinstance(self.memory, str) else self.memory
