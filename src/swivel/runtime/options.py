"""Options of a run that do not change its result: threads, memory, progress, cluster; and what is no setting."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swivel.config import FLAG, POSITIVE, POSITIVE_INT, STAGES, Rule, check_fields, config_field, plain_number
from swivel.errors import ConfigError
from swivel.runtime.progress import Progress, choose_progress
from swivel.runtime.resources import count_cores, find_rank, free_beside_libraries, parse_bytes, return_large_arrays

_LARGE_BUDGET_BYTES = 1 << 30  # With more memory, arrays that are freed are kept: new pages take time.

# More threads than any machine has cores for would only exhaust its memory.
_THREADS = Rule(lambda threads: POSITIVE_INT.holds(threads) and threads <= 4096, "a positive integer up to 4,096")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Processes and time limits of training on a Ray cluster."""

    workers: int | None = config_field(
        None, "with --ray: number of processes that train; default: one for every GPU, or else every node", POSITIVE_INT
    )
    worker_threads: int | None = config_field(
        None, "with --ray: cores per worker; default: its share of a node; with --asynchronous 1", POSITIVE_INT
    )
    asynchronous: bool = config_field(
        False, "with --ray: train with parameter servers, as the paper does, instead of rotation", FLAG
    )
    servers: int = config_field(1, "with --asynchronous: number of parameter servers", POSITIVE_INT)
    worker_gpus: float = config_field(
        1.0, "with --asynchronous and --device cuda: GPUs per worker; 0.5 lets two workers share one GPU", POSITIVE
    )
    lease_seconds: float = config_field(
        60.0,
        "with --asynchronous: seconds after which a server that does not respond is replaced; a worker after twice as "
        "long",
        POSITIVE,
    )
    patience_seconds: float = config_field(
        600.0,
        "with --ray: seconds without any progress after which the run fails; ranks are started again first",
        POSITIVE,
    )
    ahead: int = config_field(
        2, "with --asynchronous: blocks that a worker has at the same time; 1: no prefetching", POSITIVE_INT
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Resources and reporting of a run. These options do not change the result.

    Parameters
    ----------
    threads
        Number of threads; None for all cores.
    memory
        Memory limit: a number of bytes, or a string such as "1GiB"; None for half of the free memory.
    overwrite
        Whether to replace a complete output folder.
    progress
        Receiver of progress events. By default, bars on a terminal or in a notebook for jobs that take longer than a
        second; False for none.
    ray, cluster
        Ray cluster to run on ("local", "auto" or HOST:PORT; None: this process), and its workers and time limits.
    report
        Whether to write a report.html next to the trained vectors.
    """

    threads: int | None = None
    memory: int | str | None = None
    overwrite: bool = False
    progress: Progress = field(default_factory=choose_progress)
    ray: str | None = None
    cluster: ClusterConfig = ClusterConfig()
    report: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "progress", choose_progress(self.progress))  # True and False are accepted, too.
        object.__setattr__(self, "threads", plain_number(self.threads))
        object.__setattr__(self, "memory", plain_number(self.memory))

        if self.threads is not None and not _THREADS.holds(self.threads):
            raise ConfigError(f"threads must be {_THREADS.words}, got {self.threads!r}", argument="threads")

        if not isinstance(self.cluster, ClusterConfig):
            raise ConfigError(f"cluster must be a ClusterConfig, got {self.cluster!r}", argument="cluster")
        if isinstance(self.memory, str):
            parse_bytes(self.memory)  # Report a malformed value now, not after the text was read.
        elif self.memory is not None and not POSITIVE_INT.holds(self.memory):
            raise ConfigError(
                f"memory must be {POSITIVE_INT.words} or a string such as '1GiB', got {self.memory!r}",
                argument="memory",
            )

    @property
    def thread_count(self) -> int:
        """Number of threads to use; by default, the ranks on a machine share its cores."""
        if self.threads:
            return self.threads

        # Ranks on one machine share its cores.
        _, _, ranks_on_machine = find_rank() or (0, 1, 1)
        return max(1, count_cores() // ranks_on_machine)

    @property
    def memory_bytes(self) -> int:
        """Memory limit in bytes."""
        if isinstance(self.memory, str):
            return parse_bytes(self.memory)
        if self.memory is not None:
            return self.memory

        # Half of the free memory, but up to three quarters of it where half would be less than 256 MiB.
        free = free_beside_libraries()
        return max(free // 2, min(free * 3 // 4, 256 * 2**20), 1)

    def fix_memory(self) -> RunOptions:
        """Return options with the bytes of memory that all steps of a job may use: not more than there are."""
        memory_bytes = max(min(self.memory_bytes, free_beside_libraries()), 1)
        # In a small budget, what a step has freed must not stay with the process.
        if memory_bytes < _LARGE_BUDGET_BYTES:
            return_large_arrays()
        return replace(self, memory=memory_bytes)


_OPTION_NAMES = {field.name for field in dataclasses.fields(RunOptions)}


def make_options(options: RunOptions | None, settings: dict[str, Any]) -> RunOptions:
    """Return the run options, changed by those among `settings`, which are removed there.

    >>> settings = {"threads": 1, "overwrite": True, "window": 5}
    >>> options = make_options(RunOptions(threads=2), settings)
    >>> options.threads, options.overwrite, settings
    (1, True, {'window': 5})
    """
    changes = {name: settings.pop(name) for name in _OPTION_NAMES & settings.keys()}
    return replace(options or RunOptions(), **{name: value for name, value in changes.items() if value is not None})


# Arguments of gensim's Word2Vec and FastText, by the names that they have here.
_GENSIM_NAMES = {
    "vector_size": "dim",
    "size": "dim",
    "iter": "epochs",
    "alpha": "learning_rate",
    "workers": "threads",
    "max_vocab_size": "max_size",
    "max_final_vocab": "max_size",
}


def check_names(settings: Mapping[str, Any], *stages: type[Any]) -> None:
    """Raise ConfigError for a setting that none of the stages has."""
    names = {field.name for stage in stages for field in dataclasses.fields(stage)}
    for setting in settings:
        if setting not in names:
            raise ConfigError(_describe_unknown(setting, names or _OPTION_NAMES))


def _describe_unknown(setting: str, known: set[str]) -> str:
    if setting in _OPTION_NAMES:
        return f"{setting} is a run option, not a setting: pass options=RunOptions({setting}=...)"
    # The likeliest mistakes: a setting of another stage, of another library, or misspelled.
    meant = _GENSIM_NAMES.get(setting, setting)
    for name, stage in STAGES.items():
        if meant not in known and meant in {field.name for field in dataclasses.fields(stage)}:
            function = "train" if name in ("train", "vectors") else "count"
            return f"{setting!r} is not a setting here; pass {meant} to swivel.{function}"
    close = [meant] if meant != setting else difflib.get_close_matches(setting, sorted(known), n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
    return f"{setting!r} is not a setting here; {hint}"
