"""`swivel run`: text to vectors in one call; finished stages are not repeated."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swivel.config import STAGES, CorpusConfig, CountConfig, TrainConfig, VectorsConfig, VocabularyConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import StorageError
from swivel.pipeline.count import count_texts, file_of, list_tokens
from swivel.pipeline.report_job import ReportJob
from swivel.pipeline.settings import (
    check_names,
    given,
    make_options,
    resolve_counting,
    resolve_training,
    settings_of,
)
from swivel.pipeline.train import train_vectors
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress
from swivel.storage import hold_folder
from swivel.storage.overlap import refuse_overlap

if TYPE_CHECKING:
    from swivel.corpus import Texts
    from swivel.vectors import Vectors

OUTPUTS = ("matrix", "vectors", "report.html")  # what a run writes in its folder


def run(
    texts: Texts,
    out: str | Path,
    *,
    recipe: str = "default",
    vocabulary: Vocabulary | Iterable[str] | Path | None = None,
    init: Vectors | str | Path | None = None,
    window: int | None = None,
    min_count: int | None = None,
    dim: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Progress | bool | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Count and train: text to the matrix `out/matrix` and the vectors `out/vectors`.

    Finished stages are not repeated, and an interrupted one is resumed. With `RunOptions(report=True)` the report
    `out/report.html` is written, too.

    Parameters
    ----------
    texts, vocabulary, window, min_count
        As in `swivel.count`.
    init, dim, epochs, seed, device
        As in `swivel.train`.
    recipe
        Named settings: default, fast or paper.
    threads, memory, progress
        Number of threads, bytes of memory (or a text such as "1GiB"), and a receiver of progress events;
        by default a progress bar for work that takes longer than a second, False for none.
    options
        Further run options: `RunOptions`.
    settings
        Other fields of the configuration of any stage.
    """
    from swivel.corpus import find_texts, local_files
    from swivel.vectors.formats import open_vectors, source_of

    path = Path(out)
    if path.exists() and not path.is_dir():
        raise StorageError(f"{path}: not a folder")

    named = given(window=window, min_count=min_count, dim=dim, epochs=epochs, seed=seed, device=device)
    chosen: dict[str, Any] = {**settings, **named}
    check_names(chosen, *STAGES.values())
    counting = resolve_counting(recipe, settings_of(chosen, CorpusConfig, VocabularyConfig, CountConfig))

    check_libraries("training")
    start = open_vectors(init) if isinstance(init, (str, Path)) else init
    training = resolve_training(recipe, settings_of(chosen, TrainConfig, VectorsConfig), start)

    texts = find_texts(texts, path)
    read = [*local_files(texts), file_of(vocabulary), counting.corpus.phrase_file, source_of(init)]
    refuse_overlap([path / name for name in OUTPUTS], read)
    listed = list_tokens(vocabulary)
    options = make_options(options, threads=threads, memory=memory, progress=progress)

    with hold_folder(path), ReportJob(path, options) as report:
        matrix = count_texts(texts, path / "matrix", counting, listed, report.options, vocabulary_file=None)
        return train_vectors(matrix, path / "vectors", *training, init=start, report=report)
