"""`swivel extend`: vectors for the words of new text, added to trained vectors without training.

The result has the trained words with unchanged vectors, followed by the new words. The new text is counted with the
settings of the training, over all words together; only the cells of a new word with a trained word are kept. Then
`training.fold_in` computes the row of each new word with the trained columns held fixed, and its columns with the
trained rows held fixed. Rows and columns are combined in the same way as those of the trained words.

Marginals: the total count D and the sums of the trained rows and columns are those of the training. The sums of a new
word are its counts with trained words in the new text. Words that an earlier `extend` added occupy their positions in
the context windows but do not take part in the fold-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from swivel.config import (
    CorpusConfig,
    CountConfig,
    TrainConfig,
    VectorsConfig,
    VocabularyConfig,
    recorded_config,
    settings_of,
)
from swivel.corpus.normalization import normalize_tokens
from swivel.corpus.segmentation import is_function_name, refuse_unspaced, sample_texts
from swivel.corpus.sources import Texts, can_compare, find_texts, local_files, record_sources
from swivel.corpus.vocabulary import Vocabulary, choose_tokens, from_list
from swivel.counts import Matrix
from swivel.counts.cooccurrence import column_vocabulary, count_tokens
from swivel.errors import ConfigError, VocabularyError
from swivel.pipeline.count import IDS, encode_texts, file_of, list_tokens, read_beside_device
from swivel.pipeline.settings import TextCounting
from swivel.runtime.numbers import plural
from swivel.runtime.options import RunOptions, check_names, make_options
from swivel.runtime.progress import Progress, track
from swivel.runtime.resources import check_libraries
from swivel.storage.files import create_folder
from swivel.storage.lock import scratch_folder
from swivel.storage.manifest import fingerprint, open_array
from swivel.storage.output_folder import check_output, has_result, open_work_folder
from swivel.vectors import Vectors, VectorTable, combine_vectors, recover_axes
from swivel.vectors.folder import write_vectors
from swivel.vectors.formats import as_vectors
from swivel.vectors.subwords import add_spelling, remove_spelling

if TYPE_CHECKING:
    from swivel.corpus.encoded_corpus import TypeCounts

FILE_SETTINGS = ("encoding", "errors")
VECTORS_PER_STEP = 256  # folded in between two updates of the progress


# New words by decreasing count; the counts of their rows with trained columns, (n_words, n_trained_columns); those of
# their columns with trained rows, transposed: (n_words * columns_per_row, n_trained_rows).
WordCounts = tuple[Vocabulary, scipy.sparse.csr_array, scipy.sparse.csr_array]


def extend(
    vectors: Vectors | str | Path,
    texts: Texts,
    out: str | Path | None = None,
    *,
    vocabulary: Iterable[str] | Path | None = None,
    options: RunOptions | None = None,
    **settings: Any,
) -> Vectors:
    """Add vectors for the new words of a text to trained vectors, without training.

    The known words come first with unchanged vectors; the new words follow by decreasing count. With more than 8,192
    columns, the vectors of new words are approximate (`swivel.training.fold_in`).

    Parameters
    ----------
    vectors
        The folder written by `train` or `extend`, the folder of a run, or the vectors loaded from it.
    texts, out, options
        As in `swivel.count`.
    vocabulary
        The words to add, or the Path of a file with one per line; by default all new words that `min_count` and
        `max_size` allow. Known words are ignored.
    settings
        Fields of VocabularyConfig, to choose the new words, `encoding` and `errors` of the new text, and the device.
        Other fields of CorpusConfig and CountConfig must be those of the training, and can be omitted.

    Examples
    --------
    >>> import swivel
    >>> matrix = swivel.count(["red wine", "white wine", "red rose", "white rose"] * 5)
    >>> trained = swivel.train(matrix, dim=4)
    >>> extend(trained, ["pink wine", "pink rose"] * 5)
    <Vectors of 5 tokens, 4 dimensions, 20 columns>
    """
    check_libraries("extending", needs_torch=True)
    options = make_options(options, settings)
    trained = _open_trained(vectors)
    counting = _choose_counting(trained, settings)

    texts = find_texts(texts, out)
    tokenizer = counting.corpus.tokenizer
    if (tokenizer == "words" or is_function_name(tokenizer)) and "tokenizer" not in settings:
        texts, sample = sample_texts(texts, counting.corpus)
        if tokenizer == "words":
            refuse_unspaced(sample, "pass lists of tokens, or tokenizer='words' if clauses are words")
        # A folder may come from anyone: its manifest must not choose what is imported.
        elif sample:
            raise ConfigError(
                f"the text of the training was split by {tokenizer!r}: pass it as tokenizer, or pass lists of tokens",
                argument="tokenizer",
            )
    word_list = list_tokens(vocabulary)
    if word_list is not None:
        word_list = tuple(dict.fromkeys(normalize_tokens(word_list, counting.corpus.normalization)))

    config = {**trained.settings, **counting.to_dict()}
    path = check_output(out, [trained.path, file_of(vocabulary), *local_files(texts)], options)
    inputs = {}
    if path is not None:
        sources, facts = record_sources(texts, counting.corpus.without_path(), path, options)
        inputs = {"vectors": trained.fingerprint, **sources}
        if word_list is not None:
            inputs["vocabulary"] = fingerprint(list(word_list))
        provenance = {"config": config, "inputs": inputs}
        if has_result(path, "vectors", provenance, options, is_comparable=can_compare(inputs)):
            return Vectors.load(path)

    with open_work_folder(path) as folder:
        with scratch_folder(folder) as scratch:
            counts = _count_words(trained, texts, counting, word_list, scratch, options)
        result = _add_words(trained, counts, counting, options)
        if path is None:
            return result
        with create_folder(path, "vectors", overwrite=options.overwrite) as writer:
            write_vectors(writer, result, config=config, inputs=inputs, facts=facts)
    return Vectors.load(path)


def _open_trained(vectors: Vectors | str | Path) -> Vectors:
    """Return the vectors with the settings of their training, or raise ConfigError if they cannot be extended."""
    loaded = as_vectors(vectors)
    name = _name(loaded)
    settings = loaded.settings
    if loaded.source is not None and loaded.path is None:
        raise ConfigError(f"{name}: vectors of another tool have no columns; pass a folder written by swivel train")
    if not {"train", "vectors"} <= settings.keys():
        raise ConfigError(
            f"{name}: no record of how rows and columns were trained and combined; pass the result of a training"
        )

    columns = loaded.column_table
    if columns is None or columns.sums is None or loaded.row_sums is None:
        raise ConfigError(f"{name}: has no columns or no sums of rows and columns; pass the result of a training")
    if loaded.columns_per_row == 0:
        raise ConfigError(
            f"{name}: its columns are not words, so that text cannot be counted with them; "
            "swivel.training.fold_in.fold_in accepts counts of new rows"
        )
    return loaded


def count_trained(vectors: Vectors) -> int:
    """Return the number of trained words, which come first; the words after them were added by `extend`."""
    return int(vectors.facts.get("trained_rows", len(vectors)))


def _name(vectors: Vectors) -> str:
    return str(vectors.source or "vectors")


def _choose_counting(trained: Vectors, settings: Mapping[str, Any]) -> TextCounting:
    """Return the recorded settings of the training with those of the new text; refuse any that change the counts."""
    recorded = trained.settings
    if not {"corpus", "count"} <= recorded.keys():
        name = _name(trained)
        raise ConfigError(f"{name}: no record of how its text was counted; pass what swivel run or train wrote")

    stages = CorpusConfig, VocabularyConfig, CountConfig
    check_names(settings, *stages)
    new_settings = settings_of(settings, *stages)
    fixed = {**recorded["corpus"], **recorded["count"]}
    for name, value in new_settings.items():
        # Another kind of file has the same words; a device is not recorded.
        if callable(value) and CorpusConfig(tokenizer=value).without_path().tokenizer == fixed[name]:
            continue
        if name in fixed and name not in FILE_SETTINGS and value != fixed[name]:
            raise ConfigError(
                f"{name} must be {fixed[name]!r} as in the training of {_name(trained)}, got {value!r}; omit {name}",
                argument=name,
            )

    return TextCounting(
        recorded_config(CorpusConfig, {**recorded["corpus"], **new_settings}),
        recorded_config(VocabularyConfig, new_settings),
        recorded_config(CountConfig, {**recorded["count"], **new_settings}),
    )


def _count_words(
    trained: Vectors,
    texts: Texts,
    counting: TextCounting,
    word_list: tuple[str, ...] | None,
    scratch: Path,
    options: RunOptions,
) -> WordCounts:
    """Count the text over old and new words together, and return the cells of new words with trained words."""
    known = trained.vocabulary
    options = options.fix_memory()
    words, joint = read_beside_device(_number_words, texts, counting, known, word_list, scratch, options=options)
    matrix = count_tokens(open_array(scratch / IDS), joint, counting.count, scratch / "matrix", options)
    return words, *_select_cells(matrix, known.tokens[: count_trained(trained)], words)


def _number_words(
    texts: Texts,
    counting: TextCounting,
    known: Vocabulary,
    word_list: tuple[str, ...] | None,
    scratch: Path,
    *,
    progress: Progress,
    **reading: Any,
) -> tuple[Vocabulary, Vocabulary]:
    """Read texts, write them as ids of known and new words, and return the new words, and all words."""
    # The new text may be too short to find phrases again, so those that the training found are joined.
    phrases = [token for token in known.tokens if "_" in token]
    encoded = encode_texts(texts, counting.corpus, phrases, scratch, progress=progress, **reading)
    if word_list is None:
        words = _choose_frequent(encoded.types, known, counting.vocabulary)
    else:
        new = encoded.types.of_tokens(word for word in word_list if word not in known)
        words = _choose_listed(word_list, new, known, progress)
    progress.message(f"{plural(encoded.token_count, 'token')}, {plural(len(words), 'new word')}")

    # The known words keep their places in the windows, so that the new words are counted as in training.
    tokens = [*known.tokens, *words.tokens]
    joint = from_list(tokens, encoded.types.of_tokens(tokens))
    keep_gaps = counting.count.oov == "gap"
    encoded.write_ids(joint, keep_gaps=keep_gaps, path=scratch / IDS, threads=reading["threads"])
    return words, joint


def _choose_frequent(types: TypeCounts, known: Vocabulary, config: VocabularyConfig) -> Vocabulary:
    """Return the new words that `config` selects."""
    # Not all words of the text are listed, which may be many: beside known words, as many as are wanted.
    limit = len(known) + config.listed_types if config.listed_types else 0
    frequent = types.most_frequent(config.min_count, limit)
    new = {word: count for word, count in frequent.items() if word not in known}

    if not new:
        seen = types.most_frequent(limit=len(known) + 1)
        new = {word: count for word, count in seen.items() if word not in known}
        if not new:
            raise VocabularyError(f"the text has no new word: all {len(seen):,} words are in the vocabulary")
        raise VocabularyError(
            f"no new word occurs {config.min_count:,} times or more; pass a smaller min_count", argument="min_count"
        )
    return choose_tokens(new, config)


def _choose_listed(
    word_list: tuple[str, ...], new: Mapping[str, int], known: Vocabulary, progress: Progress
) -> Vocabulary:
    words = [word for word in word_list if word in new]
    absent = [word for word in word_list if word not in new and word not in known]
    if not words:
        raise VocabularyError(f"none of the {len(word_list):,} listed words is both new and in the text")
    if absent:
        progress.message(f"{len(absent):,} listed words are not in the text ({absent[0]!r}); they get no vector")
    return from_list(words, new)


def _select_cells(
    matrix: Matrix, trained: Sequence[str], words: Vocabulary
) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
    """Return the cells of the rows, and of the columns, of new words with trained words."""
    old, new = (np.array([matrix.rows.ids[token] for token in tokens]) for tokens in (trained, words.tokens))
    old_columns, new_columns = (_find_columns(ids, matrix.columns_per_row) for ids in (old, new))
    return matrix.select(new, old_columns), matrix.select(old, new_columns).T.tocsr()


def _find_columns(words: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Return the ids of the columns of words: word * parts + part."""
    return np.asarray(words[:, None] * parts + np.arange(parts)).ravel()


def _add_words(old: Vectors, counts: WordCounts, counting: TextCounting, options: RunOptions) -> Vectors:
    """Return the known words followed by the new words, whose rows and columns are folded in."""
    assert old.column_table is not None and old.column_sums is not None and old.row_sums is not None
    new_words, row_counts, column_counts = counts
    words = count_trained(old)
    columns_of_words = words * old.columns_per_row
    fixed_columns = (old.column_table.values[:columns_of_words], old.column_sums[:columns_of_words])
    fixed_rows = (old.rows[:words], old.row_sums[:words])

    # The loss is symmetric in rows and columns, so columns are folded in like rows.
    config = recorded_config(TrainConfig, old.settings["train"])
    new_rows, new_columns = _fold(
        [(row_counts, fixed_columns), (column_counts, fixed_rows)],
        float(old.row_sums[:words].sum()),
        config,
        counting.count.device,
        options.progress,
    )

    rows = VectorTable(
        _join(old.vocabulary, new_words),
        np.concatenate([old.rows, new_rows]),
        np.concatenate([old.row_sums, row_counts.sum(axis=1)]),
    )

    column_names = rows.vocabulary
    if old.columns_per_row > 1:
        new_names = column_vocabulary(new_words, counting.count) or new_words
        column_names = _join(old.column_table.vocabulary, new_names)
    columns = VectorTable(
        column_names,
        np.concatenate([old.column_table.values, new_columns]),
        np.concatenate([old.column_sums, column_counts.sum(axis=1)]),
    )

    combined = None
    if old.vectors is not old.rows:
        combined = np.concatenate([old.vectors, _combine(old, new_words, new_rows, new_columns)])
    return Vectors(
        rows,
        columns,
        vectors=combined,
        shift=old.shift,
        columns_per_row=old.columns_per_row,
        subwords=old.subwords,
        settings={**old.settings, **counting.to_dict()},
        facts={**old.facts, "trained_rows": words},
    )


def _fold(
    sides: Sequence[tuple[scipy.sparse.csr_array, tuple[NDArray[np.float32], NDArray[np.float64]]]],
    total: float,
    config: TrainConfig,
    device: str,
    progress: Progress,
) -> list[NDArray[np.float32]]:
    """Return one vector per row of the counts of each side, with the trained vectors and sums of the other side.

    `total` is D, the sum of all counts of the training.
    """
    from swivel.training.fold_in import FixedColumns

    results = []
    with track(progress, "folding in", sum(counts.shape[0] for counts, _ in sides), "rows") as task:
        for counts, other in sides:
            fixed = FixedColumns(*other, total, config, device=device)
            result = np.zeros((counts.shape[0], config.dim), np.float32)
            for start in range(0, len(result), VECTORS_PER_STEP):
                piece = slice(start, start + VECTORS_PER_STEP)
                result[piece] = fixed.fold_in(counts[piece])
                task.advance(len(result[piece]))
            results.append(result)
    return results


def _combine(
    old: Vectors, new: Vocabulary, rows: NDArray[np.float32], columns: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return vectors that are combined from rows and columns in the same way as those of the trained words."""
    words = count_trained(old)
    parts = old.columns_per_row
    config = VectorsConfig(**old.settings["vectors"])
    subwords = old.subwords if config.spelling else None

    # The projection that combine="parts" applied is not saved; it is recovered from the trained words.
    axes = None
    if config.combine == "parts":
        vectors = old.vectors[:words]
        if subwords is not None:
            differences = subwords.guess_differences(old.vocabulary.tokens[:words])
            vectors = remove_spelling(vectors, differences, old.vocabulary.counts[:words], config.spelling)
        assert old.columns is not None
        axes = recover_axes(old.rows[:words], old.columns[: words * parts], vectors, config)

    combined = combine_vectors(rows, columns, parts, config, axes=axes)
    if subwords is None:
        return combined
    return add_spelling(combined, subwords.guess_differences(new.tokens), new.counts, config.spelling)


def _join(old: Vocabulary, new: Vocabulary) -> Vocabulary:
    return Vocabulary([*old.tokens, *new.tokens], np.concatenate([old.counts, new.counts]))
