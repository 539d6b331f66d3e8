"""What the executors on Ray share: the job that every actor opens, and how many actors a cluster has room for."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swivel._version import __version__
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import ClusterError, ConfigError, TrainingError
from swivel.runtime.ray import Node
from swivel.storage.lock import scratch_folder
from swivel.training.executor import TrainingJob
from swivel.training.training_plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class ActorSetup:
    """What an actor needs to open the matrix and to train a part of it."""

    path: Path
    fingerprint: str
    config: TrainConfig
    plan: TrainingPlan
    threads: int
    version: str = __version__

    @contextlib.contextmanager
    def open_job(self) -> Iterator[TrainingJob]:
        """Yield the job, with a scratch folder for re-blocked cells that is removed at the end of the block.

        The cells stay mapped although their files are removed: Ray ends an actor by killing it, and then the operating
        system frees them.
        """
        if self.version != __version__:
            raise TrainingError(
                f"an actor has Swivel {__version__}, the command has {self.version}; "
                "install the same version on all nodes"
            )
        matrix = open_matrix(self.path).transformed(self.config.transform)
        if matrix.fingerprint != self.fingerprint:
            raise TrainingError(
                f"{self.path}: an actor finds another matrix there than the command; put it on storage that nodes share"
            )
        matrix.trust()  # The command has verified the checksums; an actor reads only what it needs.
        with scratch_folder(Path(tempfile.gettempdir())) as scratch:
            yield TrainingJob(matrix, self.config, self.plan, self.threads, scratch)


def make_setup(job: TrainingJob, threads: int) -> ActorSetup:
    """Return what the actors of a job need, which have so many threads each."""
    path = job.matrix.path
    if path is None:
        raise ConfigError(
            "training on Ray needs a matrix in a folder that all nodes see: save it, or pass out", argument="out"
        )
    return ActorSetup(path.resolve(), job.matrix.fingerprint, job.config, job.plan, threads)


def count_places(nodes: Sequence[Node], threads: int, gpus: float = 0.0) -> int:
    """Return the number of actors with so many threads and GPUs that the nodes have room for.

    >>> nodes = [Node("a", 8.0, 0, 2.0), Node("b", 5.0, 0, 0.0)]
    >>> count_places(nodes, 2), count_places(nodes, 4, gpus=1.0), count_places(nodes, 8, gpus=0.5)
    (6, 2, 1)
    """
    places = 0
    for node in nodes:
        by_cores = int(node.cores) // threads
        places += min(by_cores, int(node.gpus / gpus)) if gpus else by_cores
    return places


def choose_threads(nodes: Sequence[Node], actors: int | None, gpus: float) -> int:
    """Return how many threads an actor has: its share of the smallest node, or what fits with this number of actors.

    >>> nodes = [Node("a", 8.0, 0, 2.0), Node("b", 6.0, 0, 1.0)]
    >>> choose_threads(nodes, None, gpus=1.0), choose_threads(nodes, None, gpus=0.0), choose_threads(nodes, 3, gpus=0.0)
    (4, 6, 4)
    """
    shares = [int(node.cores / node.gpus if gpus else node.cores) for node in nodes if node.gpus >= gpus]
    if not shares:
        raise ClusterError("the cluster has no GPU; set device to cpu, or see: ray status")
    if gpus or actors is None:
        return max(1, min(shares))
    return max(
        threads for threads in range(1, max(shares) + 1) if threads == 1 or count_places(nodes, threads) >= actors
    )
