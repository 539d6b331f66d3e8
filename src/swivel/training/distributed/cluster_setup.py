"""What an actor on Ray needs to train a part of a job."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swivel._version import __version__
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import ConfigError, TrainingError
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
