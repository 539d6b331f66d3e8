"""`swivel run`: text to vectors in one call; finished stages are not repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swivel.config import STAGES
from swivel.corpus.sources import Texts, find_texts, local_files
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import StorageError
from swivel.pipeline.count import count_texts, file_of, list_tokens
from swivel.pipeline.report_job import REPORT, timed_options
from swivel.pipeline.settings import resolve_counting, resolve_training
from swivel.pipeline.train import adapt_to_text, train_vectors
from swivel.runtime.options import RunOptions, check_names, make_options
from swivel.runtime.resources import check_libraries
from swivel.storage.lock import hold_folder
from swivel.storage.output_folder import refuse_links, refuse_overlap
from swivel.vectors import Vectors
from swivel.vectors.formats import as_vectors, source_of

OUTPUTS = ("matrix", "vectors", REPORT)  # what a run writes in its folder


def run(
    texts: Texts,
    out: str | Path | None = None,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | Path | None = None,
    init: Vectors | str | Path | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Count and train: text to vectors, in memory or in `out/vectors`, beside the matrix `out/matrix`.

    With a folder, finished stages are not repeated, and an interrupted one is resumed; with `report=True` the report
    `out/report.html` is written, too.

    Parameters
    ----------
    texts, vocabulary, options
        As in `swivel.count`.
    init
        As in `swivel.train`.
    recipe
        Named settings: default, fast or paper.
    settings
        Settings of any stage, such as `window`, `min_count`, `dim`, `epochs`, `seed` and `device`.
    """
    path = None if out is None else Path(out)
    if path is not None and path.exists() and not path.is_dir():
        raise StorageError(f"{path}: not a folder")

    options = make_options(options, settings)
    check_names(settings, *STAGES.values())
    counting = resolve_counting(recipe, settings)

    check_libraries("training", needs_torch=True)
    start = None if init is None else as_vectors(init)
    config, vectors_config = resolve_training(recipe, settings, start)

    # All that can be wrong with settings and files is reported before the text is read.
    texts = find_texts(texts, path)
    files_read = [*local_files(texts), file_of(vocabulary), counting.corpus.phrase_file, source_of(init)]
    outputs = [] if path is None else [path / name for name in OUTPUTS]
    refuse_overlap(outputs, files_read)
    word_list = list_tokens(vocabulary)

    # One lock for both stages, so that no other command takes the folder between them.
    refuse_links(outputs)
    options = timed_options(path, options)
    with contextlib.nullcontext() if path is None else hold_folder(path):
        matrix = count_texts(texts, path and path / "matrix", counting, word_list, options, vocabulary_file=None)
        config = adapt_to_text(matrix, recipe, config, settings, start)
        result = path and path / "vectors"
        return train_vectors(matrix, result, config, vectors_config, options, folder=path, init=start)
