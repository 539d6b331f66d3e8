"""The training of a job: provenance, the output folder, the warm start, the training loop and the result."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from swivel import vectors
from swivel.config import TrainConfig, VectorsConfig, result_settings
from swivel.counts import Matrix
from swivel.errors import StorageError
from swivel.pipeline.tune import Tuning
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.runtime.resources import check_memory, release_freed_memory
from swivel.runtime.signals import stop_on_signals
from swivel.storage.arrays import create_array
from swivel.storage.files import FolderWriter, create_folder
from swivel.storage.lock import remove_file, scratch_folder
from swivel.training.checkpoint import remove_checkpoints
from swivel.training.executor import Executor, open_executor
from swivel.training.initialization import WarmStart, add_new_words
from swivel.training.loop import TrainingResult, train_matrix
from swivel.vectors import Vectors
from swivel.vectors.combine import has_cuda
from swivel.vectors.folder import write_vectors
from swivel.vectors.search import Floats
from swivel.vectors.subwords import NgramIndex, add_subwords, estimate_memory, index_ngrams, needs_ngrams

LABEL_BYTES = 170  # of memory for each label while they are read; measured: 163 with 8 to 11 characters


def describe_provenance(
    matrix: Matrix,
    config: TrainConfig,
    vectors_config: VectorsConfig,
    start: WarmStart | None,
    popularity: float | None = None,
) -> dict[str, Any]:
    """Return settings and inputs as they are recorded in the manifest; `popularity` is its part in rankings."""
    configs = {"train": result_settings(config), "vectors": result_settings(vectors_config)}
    if popularity is not None:
        configs["ranking"] = {"popularity": popularity}
    inputs = {"matrix": matrix.fingerprint}
    return {"config": configs, "inputs": inputs | ({"init": start.fingerprint} if start else {})}


def run_training(
    counts: Matrix,
    config: TrainConfig,
    vectors_config: VectorsConfig,
    path: Path | None,
    options: RunOptions,
    *,
    start: WarmStart | None,
    provenance: Mapping[str, Any],
    tuning: Tuning | None,
    when_trained: Callable[[Vectors], None],
) -> Vectors:
    """Train and return the vectors, written to the folder `path` and opened, or in memory without one.

    `counts` is the matrix before the transform of the settings. `when_trained` gets the vectors before they are
    written.
    """
    matrix = counts.transformed(config.transform)
    # Words whose n-grams are fitted; none for a table, whose rows may be anything.
    words = matrix.rows.tokens if matrix.columns_per_row else []
    words = words if needs_ngrams(vectors_config, len(words)) else []

    with open_executor(options, config) as executor, open_output(matrix, path, executor, options) as output:
        if executor.is_leader:
            load_labels(matrix)
        extended = extend_start(matrix, config, start, executor, options)

        # A signal after the last step ends the process once the result is written.
        with stop_on_signals(), index_words(words, executor) as index, contextlib.ExitStack() as stack:
            trained = train_matrix(
                matrix,
                config,
                folder=None if output is None else output.path,
                threads=options.thread_count,
                progress=options.progress if executor.is_leader else SILENT,  # The leader reports for all ranks.
                start=extended,
                executor=executor,
                other_memory=estimate_memory(words, config.dim) if words else (0, 0),
            )
            if trained is not None:  # Only the leading process has the result.
                scratch = None
                if output is not None and not has_cuda(trained.plan.device):
                    scratch = stack.enter_context(scratch_folder(output.path))
                    trained = replace(
                        trained,
                        rows=keep_on_disk(trained.rows, scratch / "rows.npy"),
                        columns=keep_on_disk(trained.columns, scratch / "columns.npy"),
                    )
                release_freed_memory()
                facts = collect_facts(matrix, trained, tuning)
                sides = label_sides(matrix, trained, config.shift, provenance, facts)
                result = combine_sides(sides, vectors_config, start, trained.plan.device, index, scratch)
                release_freed_memory()
                if output is None:
                    return result

                when_trained(result)
                write_vectors(output, result, **provenance)
                remove_checkpoints(output.path)

    assert path is not None  # Other ranks wait in `open_executor` until the leading one has written the folder.
    loaded = Vectors.load(path)
    loaded.trust()
    return loaded


@contextlib.contextmanager
def open_output(
    matrix: Matrix, path: Path | None, executor: Executor, options: RunOptions
) -> Iterator[FolderWriter | None]:
    """Yield the folder that training writes to; None if the result stays in memory.

    The leading process verifies the matrix and writes to `path`; other ranks have a temporary folder.
    """
    with contextlib.ExitStack() as stack:
        folder = None
        if not executor.is_leader:
            temporary = stack.enter_context(scratch_folder(Path(tempfile.gettempdir())))
            folder = stack.enter_context(create_folder(temporary / "vectors", "vectors"))
            matrix.trust()
        else:
            if path is not None:
                folder = stack.enter_context(create_folder(path, "vectors", overwrite=options.overwrite))
            matrix.verify()
        yield folder


def extend_start(
    matrix: Matrix, config: TrainConfig, start: WarmStart | None, executor: Executor, options: RunOptions
) -> WarmStart | None:
    """Return the warm start of the leading process, with vectors for the words that `init` does not have."""
    if start is None or not executor.is_leader:
        return None

    known, rows = len(start.ids[0]), len(matrix.rows)
    options.progress.message(f"init has {known:,} of the {rows:,} rows; {rows - known:,} are new")
    return add_new_words(matrix, start, config, threads=options.thread_count)


def keep_on_disk(values: Floats, file: Path) -> Floats:
    """Return values memory-mapped in a new file: the memory is for what is made from them.

    They stay in memory where disk cannot be reserved, as a full disk would then end the process.
    """
    if not hasattr(os, "posix_fallocate"):
        return values
    try:
        mapped = create_array(file, np.float32, values.shape)
    except (OSError, StorageError):  # A result that is trained must not be lost for it.
        remove_file(file)
        return values
    mapped[:] = values
    return mapped


def load_labels(matrix: Matrix) -> None:
    """Read all labels, before the memory of training is compared with what is free."""
    if matrix.path is not None:
        check_memory("reading the labels", LABEL_BYTES * sum(matrix.shape))
        for vocabulary in (matrix.rows, matrix.columns):
            len(vocabulary.tokens)  # An opened matrix reads its labels when they are first used.


@contextlib.contextmanager
def index_words(words: Sequence[str], executor: Executor) -> Iterator[Future[NgramIndex] | None]:
    """Index the n-grams of the words while vectors are trained; yield None if no n-grams are fitted to them."""
    if not executor.is_leader or not words:
        yield None
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(index_ngrams, words)


def collect_facts(matrix: Matrix, trained: TrainingResult, tuning: Tuning | None) -> dict[str, Any]:
    """Return what the manifest says about the training."""
    losses = [
        {"observed": loss.mean_observed, "unobserved": loss.mean_unobserved, "mean": loss.mean}
        for loss in trained.history
    ]
    facts: dict[str, Any] = {
        "matrix": matrix.fingerprint,
        "plan": asdict(trained.plan),
        "losses": losses,
        "training_seconds": round(trained.seconds, 3),
    }
    if matrix.has_own_sums and not matrix.is_log:
        facts["total"] = matrix.total
    if tuning is not None:
        facts["tuning"] = tuning.to_dict()
    return facts


def label_sides(
    matrix: Matrix, trained: TrainingResult, shift: float, provenance: Mapping[str, Any], facts: Mapping[str, Any]
) -> Vectors:
    """Return the trained rows and columns with their labels, not combined yet."""
    return Vectors(
        vectors.VectorTable(matrix.rows, trained.rows, matrix.row_sums),
        vectors.VectorTable(matrix.columns, trained.columns, matrix.column_sums),
        shift=shift,
        columns_per_row=matrix.columns_per_row,
        settings={**matrix.config, **provenance["config"]},
        facts=facts,
    )


def combine_sides(
    sides: Vectors,
    config: VectorsConfig,
    start: WarmStart | None,
    device: str,
    index: Future[NgramIndex] | None,
    scratch: Path | None = None,
) -> Vectors:
    """Return rows and columns with the vectors that are made from them, large ones in the folder `scratch`."""
    assert sides.columns is not None
    # Where vectors are the rows, they are the same array as those of `sides`, so that they are written once.
    combined = vectors.combine_vectors(sides.rows, sides.columns, sides.columns_per_row, config, device=device)
    if scratch is not None and combined is not sides.rows:
        combined = keep_on_disk(combined, scratch / "vectors.npy")
    result = sides.replace(vectors=combined)
    if config.combine == "parts" and start is not None:
        result = _turn(result, start.source)
    return result if index is None else add_subwords(result, config, device=device, index=index.result())


def _turn(result: Vectors, init: Vectors) -> Vectors:
    """Return vectors rotated toward the old ones.

    The axes of an SVD change sign and order with the slightest change of its input. A rotation moves old words close to
    their old vectors and changes no cosine between two words.
    """
    if init.dim != result.dim:
        return result
    is_fixed = len(vectors.shared_words(result.vocabulary, init.vocabulary)) >= result.dim
    return result.align(init) if is_fixed else result
