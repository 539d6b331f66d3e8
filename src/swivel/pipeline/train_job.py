"""Train a matrix, combine rows and columns, and write the folder of vectors."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swivel import vectors
from swivel.config import TrainConfig, VectorsConfig, result_settings
from swivel.counts import Matrix
from swivel.runtime.options import RunOptions
from swivel.runtime.signals import stop_on_signals
from swivel.storage import create_folder
from swivel.training.checkpoint import remove_checkpoints
from swivel.training.distributed.select import choose_workers
from swivel.training.executor import Executor
from swivel.training.initialization import WarmStart, find_start
from swivel.training.loop import TrainingResult, train_matrix
from swivel.training.warm_start import join_words
from swivel.vectors import Vectors


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What vectors are trained from; `start` holds the vectors of `init` for the rows and columns of the matrix."""

    matrix: Matrix
    config: TrainConfig
    vectors_config: VectorsConfig
    init: Vectors | None = None
    start: WarmStart | None = None

    def provenance(self) -> dict[str, Any]:
        """Return settings and inputs, as they are recorded in the manifest."""
        configs = {"train": result_settings(self.config), "vectors": result_settings(self.vectors_config)}
        inputs = {"matrix": self.matrix.fingerprint}
        return {"config": configs, "inputs": inputs | ({"init": self.start.fingerprint} if self.start else {})}


def make_job(matrix: Matrix, config: TrainConfig, vectors_config: VectorsConfig, init: Vectors | None) -> TrainJob:
    """Return the job; raise ConfigError if `init` does not fit the matrix or the settings."""
    return TrainJob(matrix, config, vectors_config, init, None if init is None else find_start(matrix, init, config))


def make_vectors(job: TrainJob, path: Path, options: RunOptions) -> Vectors:
    """Train, or resume from the last checkpoint, and write the folder."""
    with contextlib.closing(choose_workers(options)) as workers:
        if workers.is_leader:
            _lead(job, path, options, workers)
        else:
            _follow(job, options, workers)
        workers.any_rank(True)  # Other ranks wait here until everything is written.
    return vectors.load(path)


def _follow(job: TrainJob, options: RunOptions, workers: Executor) -> None:
    """Train together with the leading process, which verifies the matrix and writes the result."""
    job.matrix.trust()
    with tempfile.TemporaryDirectory(prefix="swivel-") as folder, stop_on_signals():
        train_matrix(job.matrix, job.config, folder=Path(folder), threads=options.thread_count, executor=workers)


def _lead(job: TrainJob, path: Path, options: RunOptions, workers: Executor) -> None:
    with create_folder(path, "vectors", overwrite=options.overwrite) as folder:
        job.matrix.verify()
        how: dict[str, Any] = {
            "threads": options.thread_count,
            "progress": options.progress,
            "start": _join(job, options),
        }

        with stop_on_signals():  # A signal after the last step ends the process once the result is written.
            trained = train_matrix(job.matrix, job.config, folder=path, executor=workers, **how)
            assert trained is not None

            result = _combine(job, trained)
            facts = {**vectors.write_vectors(folder, result), **_training_facts(job.matrix, trained)}
            folder.finish(**job.provenance(), facts=facts)
            remove_checkpoints(path)


def _join(job: TrainJob, options: RunOptions) -> WarmStart | None:
    if job.start is None:
        return None
    known, rows = len(job.start.rows.places), len(job.matrix.rows)
    options.progress.message(f"init has {known:,} of the {rows:,} rows; {rows - known:,} are new")
    return join_words(job.matrix, job.start, job.config, threads=options.thread_count)


def _combine(job: TrainJob, trained: TrainingResult) -> Vectors:
    matrix, parts = job.matrix, job.matrix.columns_per_row
    columns = vectors.VectorTable(matrix.columns, trained.columns, matrix.column_sums)

    has_scores = job.config.objective == "swivel"  # GloVe's w . c is not PMI, so its columns are used for the sum only.
    result = Vectors(
        vectors.VectorTable(matrix.rows, trained.rows, matrix.row_sums),
        columns if has_scores else None,
        vectors=vectors.combine_vectors(trained.rows, trained.columns, parts, job.vectors_config),
        shift=job.config.shift,
        columns_per_row=parts if has_scores else 0,
    )
    return _turn(result, job.init) if job.vectors_config.combine == "parts" else result


def _turn(result: Vectors, init: Vectors | None) -> Vectors:
    """Return vectors rotated toward the old ones.

    The axes of an SVD change sign and order with the slightest change of its input. A rotation moves old words close to
    their old vectors and changes no cosine between two words.
    """
    if init is None or init.dim != result.dim:
        return result
    is_fixed = len(vectors.shared_words(result.vocabulary, init.vocabulary)) >= result.dim
    return result.align(init) if is_fixed else result


def _training_facts(matrix: Matrix, trained: TrainingResult) -> dict[str, Any]:
    return {
        "counted_with": matrix.config,
        "plan": asdict(trained.plan),
        "losses": [
            {"observed": loss.mean_observed, "unobserved": loss.mean_unobserved, "mean": loss.mean}
            for loss in trained.history
        ],
        "training_seconds": round(trained.seconds, 3),
    }
