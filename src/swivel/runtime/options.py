"""What a job may use and how it reports: threads, memory, progress. None of it changes a result."""

from __future__ import annotations

from dataclasses import dataclass

from swivel.config import POSITIVE, POSITIVE_INT, check_fields, config_field
from swivel.errors import ConfigError
from swivel.runtime.progress import SILENT, Progress
from swivel.runtime.resources import count_cores, find_rank, free_memory, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Who trains on a cluster, and how long is waited for whom; none of it changes what is asked for."""

    workers: int | None = config_field(
        None,
        "with --ray: workers that train, asynchronously; default: as many as the cluster has cores for",
        POSITIVE_INT,
        optional=True,
        changes_result=False,
    )
    servers: int = config_field(1, "with --ray: servers that hold the parameters", POSITIVE_INT, changes_result=False)
    worker_threads: int = config_field(1, "with --ray: cores of a worker", POSITIVE_INT, changes_result=False)
    worker_gpus: float = config_field(
        1.0,
        "with --ray and --device cuda: GPUs of a worker; 0.5 lets two workers share one",
        POSITIVE,
        changes_result=False,
    )
    lease_seconds: float = config_field(
        60.0,
        "with --ray: how long a worker or a server may be silent before another does its work",
        POSITIVE,
        changes_result=False,
    )
    patience_seconds: float = config_field(
        600.0, "with --ray: how long nothing at all may advance before the run ends", POSITIVE, changes_result=False
    )
    ahead: int = config_field(
        2,
        "with --ray: strips that a worker has at a time; 1: none is fetched ahead",
        POSITIVE_INT,
        changes_result=False,
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a job may use and how it reports; none of it changes the result."""

    threads: int | None = None  # None: every core
    memory: int | str | None = None  # bytes, or a text such as 1GiB; None: half of what is free
    overwrite: bool = False
    progress: Progress = SILENT
    ray: str | None = None  # address of a cluster that does the work: local, auto or HOST:PORT; None: this process
    cluster: ClusterConfig = ClusterConfig()  # who trains there
    report: bool = False  # leave a report.html beside what was trained

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
        rank = find_rank()
        return self.threads or max(1, count_cores() // (rank[2] if rank else 1))

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory to stay inside."""
        if self.memory is None:
            free = free_memory()
            return max(free // 2, min(free * 3 // 4, 256 * 2**20), 1)
        return parse_bytes(self.memory) if isinstance(self.memory, str) else self.memory
