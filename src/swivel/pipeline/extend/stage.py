"""The stage itself: count, fold both sides in, put them together, write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swivel.config import VectorsConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.pipeline.extend.model import TextCounting, TrainedModel, choose_counting, open_trained
from swivel.pipeline.stages import folder_or_temporary, is_done
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
ROWS_AT_A_TIME = 256  # folded between two reports of progress


def extend(
    vectors: Vectors | str | Path,
    texts: Texts,
    out: str | Path | None = None,
    *,
    vocabulary: Iterable[str] | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Give vectors to the words of new text that `vectors` lack, without training; kept in the folder `out`.

    Words that are known stay as they are, and first; the new ones come after them, by falling count.

    Parameters
    ----------
    vectors
        The folder that training wrote (or `extend` itself), that of a whole run, or what was loaded from it.
    texts
        As in `swivel.count`.
    vocabulary
        The words to add; by default all that `min_count` and `max_size` allow. Known ones are left as they are.
    settings
        Fields of VocabularyConfig, for the new words, and of CorpusConfig, for how the new text is read. How it is
        counted is the training's: fields of CountConfig are only for folders that do not have it.

    Raises
    ------
    ConfigError
        The vectors have no columns of their own words, or were trained with GloVe's objective, or a setting is not
        the training's.
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
            raise ConfigError(f"{home.path}: the folder that is extended; choose another one for the result")
        is_repeatable = "iterable" not in inputs and "-" not in inputs
        if is_repeatable and is_done(home.path, STAGE, provenance, options):
            return load(home.path)
        return home.keep(_extend(trained, NewText(texts, counting, listed), home.path, provenance, options))


def _list_words(vocabulary: Iterable[str] | None) -> tuple[str, ...] | None:
    if isinstance(vocabulary, str):
        raise ConfigError(f"vocabulary must be a list of words, got the text {vocabulary!r}")
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
    """Return the vectors with the new words after those that were there."""
    with track(options.progress, "folding in", sum(counts.rows.shape[:1] + counts.columns.shape[:1]), "rows") as task:
        new_rows, new_columns = _fold_words(trained, counts, counting.count.device, task)
    old, config = trained.vectors, trained.vectors_config
    rows = VectorTable(
        _join(old.vocabulary, counts.words),
        np.concatenate([old.rows, new_rows]),
        np.concatenate([trained.row_sums, _sum_rows(counts.rows)]),
    )
    columns = VectorTable(
        rows.vocabulary if old.columns_per_row == 1 else _join(trained.columns.vocabulary, _label(counts, counting)),
        np.concatenate([trained.columns.values, new_columns]),
        np.concatenate([trained.column_sums, _sum_rows(counts.columns)]),
    )
    new_vectors = _combine(trained, new_rows, new_columns, config)
    combined = None if config.combine == "rows" else np.concatenate([old.vectors, new_vectors])
    return Vectors(rows, columns, vectors=combined, shift=old.shift, columns_per_row=old.columns_per_row)


def _fold_words(
    trained: TrainedModel, counts: WordCounts, device: str, task: Task
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return rows and columns of the new words: each side with the trained ones of the other held fixed."""
    words, parts = trained.words, trained.vectors.columns_per_row
    columns, column_sums = trained.columns.values[: words * parts], trained.column_sums[: words * parts]
    rows, row_sums = trained.vectors.rows[:words], trained.row_sums[:words]
    return (
        _fold(counts.rows, (columns, column_sums), trained, device, task),
        _fold(counts.columns, (rows, row_sums), trained, device, task),
    )


def _fold(
    counts: scipy.sparse.csr_array,
    fixed: tuple[NDArray[np.float32], NDArray[np.float64]],
    trained: TrainedModel,
    device: str,
    task: Task,
) -> NDArray[np.float32]:
    # The loss does not know rows from columns: a new column meets fixed rows as a new row meets fixed columns.
    from swivel.training.fold_in import fold_rows

    folded = []
    for start in range(0, counts.shape[0], ROWS_AT_A_TIME):
        piece = counts[start : start + ROWS_AT_A_TIME]
        folded.append(fold_rows(piece, *fixed, trained.total, trained.train_config, device=device))
        task.advance(piece.shape[0])
    return np.concatenate(folded)


def _combine(
    trained: TrainedModel, rows: NDArray[np.float32], columns: NDArray[np.float32], config: VectorsConfig
) -> NDArray[np.float32]:
    """Return new words' vectors, put together from their rows and columns as the trained words' were."""
    old, words, parts = trained.vectors, trained.words, trained.vectors.columns_per_row
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
