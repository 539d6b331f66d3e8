"""The training of a job: provenance, the output folder, the warm start, the training loop and the result."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swivel import vectors
from swivel.config import TrainConfig, VectorsConfig, result_settings
from swivel.counts import Matrix
from swivel.pipeline.report_job import ReportJob
from swivel.pipeline.tune import Tuning
from swivel.runtime.child_process import can_start_processes
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.runtime.resources import may_use_cuda
from swivel.runtime.signals import stop_on_signals
from swivel.storage import FolderWriter, create_folder, scratch_folder
from swivel.training.checkpoint import remove_checkpoints
from swivel.training.distributed import open_executor
from swivel.training.executor import Executor
from swivel.training.initialization import WarmStart, find_start
from swivel.training.loop import TrainingResult, train_matrix
from swivel.training.warm_start import add_new_words
from swivel.vectors import Vectors
from swivel.vectors.folder import write_vectors
from swivel.vectors.subwords import NgramIndex, add_subwords, estimate_memory, index_ngrams, needs_ngrams


@dataclass(frozen=True, slots=True)
class TrainJob:
    """What vectors are trained from; `start` holds the vectors of `init` for the rows and columns of the matrix.

    `popularity` is the part of a column's popularity in rankings, if the recipe chooses it.
    """

    matrix: Matrix
    config: TrainConfig
    vectors_config: VectorsConfig
    init: Vectors | None = None
    start: WarmStart | None = None
    tuning: Tuning | None = None
    popularity: float | None = None

    def provenance(self) -> dict[str, Any]:
        """Return settings and inputs, as they are recorded in the manifest."""
        configs = {"train": result_settings(self.config), "vectors": result_settings(self.vectors_config)}
        if self.popularity is not None:
            configs["ranking"] = {"popularity": self.popularity}
        inputs = {"matrix": self.matrix.fingerprint}
        return {"config": configs, "inputs": inputs | ({"init": self.start.fingerprint} if self.start else {})}

    def words_with_ngrams(self) -> Sequence[str]:
        """Return the words whose n-grams are fitted; none for a table, whose rows may be anything."""
        words = self.matrix.rows.tokens if self.matrix.columns_per_row else []
        return words if needs_ngrams(self.vectors_config, len(words)) else []

    def estimate_ngrams(self) -> tuple[int, int]:
        """Return the bytes that the n-grams of the words need while vectors are trained, and after that."""
        words = self.words_with_ngrams()
        return estimate_memory(words, self.config.dim) if words else (0, 0)


def make_job(matrix: Matrix, config: TrainConfig, vectors_config: VectorsConfig, init: Vectors | None) -> TrainJob:
    """Return the job; raise ConfigError if `init` does not fit the matrix or the settings."""
    start = None if init is None else find_start(matrix, init, config)
    return TrainJob(matrix, config, vectors_config, init, start)


def run_training(job: TrainJob, path: Path | None, report: ReportJob) -> Vectors:
    """Train and return the vectors, written to the folder `path` and opened, or in memory without one."""
    options = report.options
    with open_executor(options) as executor, open_output(job, path, executor, options) as output:
        report.prepare(in_process=may_use_cuda(job.config.device) and can_start_processes())
        start = extend_start(job, executor, options)

        # A signal after the last step ends the process once the result is written.
        with stop_on_signals(), index_words(job, executor) as index:
            trained = train_matrix(
                job.matrix,
                job.config,
                folder=None if output is None else output.path,
                threads=options.thread_count,
                progress=options.progress if executor.is_leader else SILENT,  # The leader reports for all ranks.
                start=start,
                executor=executor,
                other_memory=job.estimate_ngrams(),
            )
            if trained is not None:  # Only the leading process has the result.
                result = finish_vectors(job, trained, output, index, report)
                if output is None:
                    return result

    assert path is not None  # Other ranks wait in `open_executor` until the leading one has written the folder.
    loaded = vectors.load(path)
    loaded.trust()
    return loaded


@contextlib.contextmanager
def open_output(
    job: TrainJob, path: Path | None, executor: Executor, options: RunOptions
) -> Iterator[FolderWriter | None]:
    """Yield the folder that training writes to; None if the result stays in memory.

    The leading process verifies the matrix and writes to `path`; other ranks have a temporary folder.
    """
    with contextlib.ExitStack() as stack:
        folder = None
        if not executor.is_leader:
            temporary = stack.enter_context(scratch_folder(Path(tempfile.gettempdir())))
            folder = stack.enter_context(create_folder(temporary / "vectors", "vectors"))
            job.matrix.trust()
        else:
            if path is not None:
                folder = stack.enter_context(create_folder(path, "vectors", overwrite=options.overwrite))
            job.matrix.verify()
        yield folder


def extend_start(job: TrainJob, executor: Executor, options: RunOptions) -> WarmStart | None:
    """Return the warm start of the leading process, with vectors for the words that `init` does not have."""
    if job.start is None or not executor.is_leader:
        return None

    known, rows = len(job.start.ids[0]), len(job.matrix.rows)
    options.progress.message(f"init has {known:,} of the {rows:,} rows; {rows - known:,} are new")
    return add_new_words(job.matrix, job.start, job.config, threads=options.thread_count)


@contextlib.contextmanager
def index_words(job: TrainJob, executor: Executor) -> Iterator[Future[NgramIndex] | None]:
    """Index the n-grams of the words while vectors are trained; yield None if no n-grams are fitted to them."""
    words = job.words_with_ngrams()
    if not executor.is_leader or not words:
        yield None
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(index_ngrams, words)


def finish_vectors(
    job: TrainJob,
    trained: TrainingResult,
    folder: FolderWriter | None,
    index: Future[NgramIndex] | None,
    report: ReportJob,
) -> Vectors:
    """Combine rows and columns and return the vectors; with a folder, write them there and remove the checkpoints.

    The report is computed in the background.
    """
    losses = [
        {"observed": loss.mean_observed, "unobserved": loss.mean_unobserved, "mean": loss.mean}
        for loss in trained.history
    ]
    facts: dict[str, Any] = {
        "matrix": job.matrix.fingerprint,
        "plan": asdict(trained.plan),
        "losses": losses,
        "training_seconds": round(trained.seconds, 3),
    }
    if job.tuning is not None:
        facts["tuning"] = job.tuning.to_dict()
    provenance = job.provenance()
    settings = {**job.matrix.config, **provenance["config"]}

    sides = _label_sides(job, trained, settings, facts)
    report.begin_training(sides, job.matrix)
    result = _combine(job, trained, sides, index)
    if folder is not None:
        report.begin(result, job.matrix, folder.path)
        write_vectors(folder, result, **provenance)
        remove_checkpoints(folder.path)
    return result


def _label_sides(
    job: TrainJob, trained: TrainingResult, settings: Mapping[str, Any], facts: Mapping[str, Any]
) -> Vectors:
    """Return the trained rows and columns with their labels, not combined yet."""
    matrix = job.matrix
    return Vectors(
        vectors.VectorTable(matrix.rows, trained.rows, matrix.row_sums),
        vectors.VectorTable(matrix.columns, trained.columns, matrix.column_sums),
        shift=job.config.shift,
        columns_per_row=matrix.columns_per_row,
        settings=settings,
        facts=facts,
    )


def _combine(job: TrainJob, trained: TrainingResult, sides: Vectors, index: Future[NgramIndex] | None) -> Vectors:
    """Return rows and columns with the vectors that are made from them."""
    parts = job.matrix.columns_per_row
    device = trained.plan.device
    # Where vectors are the rows, they are the same array as those of `sides`, so that they are written once.
    combined = vectors.combine_vectors(sides.rows, trained.columns, parts, job.vectors_config, device=device)
    result = sides.replace(vectors=combined)
    if job.vectors_config.combine == "parts":
        result = _turn(result, job.init)
    if index is None:
        return result
    return add_subwords(result, job.vectors_config, device=device, index=index.result())


def _turn(result: Vectors, init: Vectors | None) -> Vectors:
    """Return vectors rotated toward the old ones.

    The axes of an SVD change sign and order with the slightest change of its input. A rotation moves old words close to
    their old vectors and changes no cosine between two words.
    """
    if init is None or init.dim != result.dim:
        return result
    is_fixed = len(vectors.shared_words(result.vocabulary, init.vocabulary)) >= result.dim
    return result.align(init) if is_fixed else result
