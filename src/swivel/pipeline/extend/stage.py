"""Count the new text, fold in the rows and columns of the new words, and write the extended vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.pipeline.extend.model import TextCounting, TrainedModel, choose_counting, open_trained
from swivel.pipeline.result_folder import folder_or_temporary, is_done
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track
from swivel.storage import create_folder, fingerprint, scratch_folder
from swivel.vectors import Vectors, VectorTable, combine_vectors, load, recover_axes, write_vectors

if TYPE_CHECKING:
    import scipy.sparse
    from numpy.typing import NDArray

    from swivel.corpus import Texts
    from swivel.pipeline.extend.count_words import NewText, WordCounts

STAGE = "vectors"
ROWS_PER_STEP = 256  # folded in between two updates of the progress


def extend(
    vectors: Vectors | str | Path,
    texts: Texts,
    out: str | Path | None = None,
    *,
    vocabulary: Iterable[str] | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Add vectors for the new words of a text to trained vectors, without training.

    The known words come first with unchanged vectors; the new words follow by decreasing count.

    Parameters
    ----------
    vectors : Vectors, str or Path
        The folder written by `train` or `extend`, the folder of a run, or the vectors loaded from it.
    texts : str, Path or iterable of str
        The new text, as in `swivel.count`.
    out : str or Path, optional
        Folder for the result; by default it is kept in memory only.
    vocabulary : iterable of str, optional
        The words to add; by default all new words that `min_count` and `max_size` allow. Known words are ignored.
    options : RunOptions, optional
        Threads, memory, progress and overwriting.
    **settings
        Fields of VocabularyConfig, to choose the new words, and of CorpusConfig, to read the new text. Fields of
        CountConfig must be those of the training; pass them only if an older folder has no record of them.

    Returns
    -------
    Vectors
        The known and the new words.

    Raises
    ------
    ConfigError
        The columns of the vectors are not words, the vectors were trained with the GloVe objective, or a setting
        differs from that of the training.
    VocabularyError
        The text has no new word.

    Examples
    --------
    >>> import swivel
    >>> matrix = swivel.count(["red wine", "white wine", "red rose", "white rose"] * 5)
    >>> trained = swivel.train(matrix, dim=4)
    >>> extend(trained, ["pink wine", "pink rose"] * 5)
    <Vectors of 5 tokens, 4 dimensions, 20 columns>
    """
    from swivel.corpus import fingerprint_sources
    from swivel.pipeline.extend.count_words import NewText

    options = options or RunOptions()
    trained = open_trained(vectors)
    counting = choose_counting(trained, settings, options.progress)
    listed = _list_words(vocabulary)

    inputs = {"vectors": trained.fingerprint, **fingerprint_sources(texts, counting.corpus)}
    if listed is not None:
        inputs["vocabulary"] = fingerprint(list(listed))
    provenance = {"config": {**trained.manifest.config, **counting.to_dict()}, "inputs": inputs}

    with folder_or_temporary(out) as home:
        if home.path.resolve() == trained.path.resolve():
            raise ConfigError(f"{home.path}: out is the folder of the vectors; choose another folder for the result")

        # An iterable and standard input ("-") have no fingerprint, so an existing result may be of another text.
        is_repeatable = "iterable" not in inputs and "-" not in inputs
        if is_repeatable and is_done(home.path, STAGE, provenance, options):
            return load(home.path)

        return home.keep(_extend(trained, NewText(texts, counting, listed), home.path, provenance, options))


def _list_words(vocabulary: Iterable[str] | None) -> tuple[str, ...] | None:
    if isinstance(vocabulary, str):
        raise ConfigError(f"vocabulary must be a list of words, got the string {vocabulary!r}")
    return None if vocabulary is None else tuple(dict.fromkeys(vocabulary))


def _extend(
    trained: TrainedModel, reading: NewText, path: Path, provenance: Mapping[str, Any], options: RunOptions
) -> Vectors:
    from swivel.pipeline.extend.count_words import count_words

    with create_folder(path, STAGE, overwrite=options.overwrite) as folder:
        with scratch_folder(path) as scratch:
            counts = count_words(trained, reading, scratch, options)
        result = _add_words(trained, counts, reading.counting, options)

        facts = {
            **trained.manifest.facts,
            **write_vectors(folder, result),
            "trained_rows": trained.words,
            "counted_with": {name: reading.counting.to_dict()[name] for name in ("corpus", "count")},
        }
        folder.finish(config=provenance["config"], inputs=provenance["inputs"], facts=facts)
    return load(path)


def _add_words(trained: TrainedModel, counts: WordCounts, counting: TextCounting, options: RunOptions) -> Vectors:
    """Return the known words followed by the new words."""
    total = counts.rows.shape[0] + counts.columns.shape[0]
    with track(options.progress, "folding in", total, "rows") as task:
        new_rows, new_columns = _fold_words(trained, counts, counting.count.device, task)

    old = trained.vectors
    rows = VectorTable(
        _join(old.vocabulary, counts.words),
        np.concatenate([old.rows, new_rows]),
        np.concatenate([trained.row_sums, _sum_rows(counts.rows)]),
    )

    column_names = rows.vocabulary
    if old.columns_per_row > 1:
        column_names = _join(trained.columns.vocabulary, _label(counts, counting))
    columns = VectorTable(
        column_names,
        np.concatenate([trained.columns.values, new_columns]),
        np.concatenate([trained.column_sums, _sum_rows(counts.columns)]),
    )

    combined = None
    if trained.vectors_config.combine != "rows":
        combined = np.concatenate([old.vectors, _combine(trained, new_rows, new_columns)])
    return Vectors(rows, columns, vectors=combined, shift=old.shift, columns_per_row=old.columns_per_row)


def _fold_words(
    trained: TrainedModel, counts: WordCounts, device: str, task: Task
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the rows and the columns of the new words, each with the trained vectors of the other side held fixed."""
    words = trained.words
    n_columns = words * trained.vectors.columns_per_row
    fixed_columns = (trained.columns.values[:n_columns], trained.column_sums[:n_columns])
    fixed_rows = (trained.vectors.rows[:words], trained.row_sums[:words])

    # The loss is symmetric in rows and columns, so columns are folded in like rows.
    new_rows = _fold(counts.rows, fixed_columns, trained, device, task)
    new_columns = _fold(counts.columns, fixed_rows, trained, device, task)
    return new_rows, new_columns


def _fold(
    counts: scipy.sparse.csr_array,
    fixed: tuple[NDArray[np.float32], NDArray[np.float64]],
    trained: TrainedModel,
    device: str,
    task: Task,
) -> NDArray[np.float32]:
    """Return one vector per row of `counts`; `fixed` is the vectors and the sums of the other side."""
    from swivel.training.fold_in import fold_rows

    folded = []
    for start in range(0, counts.shape[0], ROWS_PER_STEP):
        piece = counts[start : start + ROWS_PER_STEP]
        folded.append(fold_rows(piece, *fixed, trained.total, trained.train_config, device=device))
        task.advance(piece.shape[0])
    return np.concatenate(folded)


def _combine(trained: TrainedModel, rows: NDArray[np.float32], columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vectors of new words, combined from rows and columns in the same way as those of the trained words."""
    old = trained.vectors
    words = trained.words
    parts = old.columns_per_row
    config = trained.vectors_config

    # The projection that combine="parts" applied is not saved; it is recovered from the trained words.
    axes = None
    if config.combine == "parts":
        axes = recover_axes(old.rows[:words], trained.columns.values[: words * parts], old.vectors[:words], config)
    return combine_vectors(rows, columns, parts, config, axes=axes)


def _join(old: Vocabulary, new: Vocabulary) -> Vocabulary:
    return Vocabulary([*old.tokens, *new.tokens], np.concatenate([old.counts, new.counts]))


def _label(counts: WordCounts, counting: TextCounting) -> Vocabulary:
    from swivel.counts.cooccurrence import column_vocabulary

    return column_vocabulary(counts.words, counting.count) or counts.words


def _sum_rows(counts: scipy.sparse.csr_array) -> NDArray[np.float64]:
    return np.asarray(counts.sum(axis=1), np.float64).ravel()
