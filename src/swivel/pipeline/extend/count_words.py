"""Choose the new words of a text and count them with the trained words.

The whole text is counted over old and new words together, in a scratch folder. Only the cells of a new word with a
trained word are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from swivel.corpus import encode_corpus
from swivel.corpus.vocabulary import Vocabulary, choose_tokens, from_list
from swivel.counts.cooccurrence import CountJob, choose_device, count_tokens
from swivel.errors import VocabularyError
from swivel.pipeline.extend.model import TextCounting, TrainedModel
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress

if TYPE_CHECKING:
    from swivel.corpus import Texts
    from swivel.counts import Matrix


@dataclass(frozen=True, slots=True)
class WordCounts:
    """New words and their counts with the trained words.

    Attributes
    ----------
    words : Vocabulary
        The new words, by decreasing count.
    rows : csr_array of shape (n_words, n_trained_columns)
        Counts of the rows of the new words.
    columns : csr_array of shape (n_words * columns_per_row, n_trained_rows)
        Counts of the columns of the new words, transposed.
    """

    words: Vocabulary
    rows: scipy.sparse.csr_array
    columns: scipy.sparse.csr_array


@dataclass(frozen=True, slots=True)
class NewText:
    """The new text, how to count it, and the list of words to add (None: choose them by their counts)."""

    texts: Texts
    counting: TextCounting
    listed: tuple[str, ...] | None


def count_words(trained: TrainedModel, reading: NewText, scratch: Path, options: RunOptions) -> WordCounts:
    """Count the text over old and new words together, and return the cells of new words with trained words."""
    counting = reading.counting
    known = trained.vectors.vocabulary
    threads = options.thread_count

    encoded = encode_corpus(reading.texts, counting.corpus, scratch=scratch, threads=threads, progress=options.progress)
    seen = encoded.counts()
    words = _choose_words(seen, known, reading, options.progress)
    options.progress.message(f"{encoded.token_count:,} tokens, {len(words):,} new words")

    # The known words keep their places in the windows, so that the new words are counted as in training.
    joint = from_list([*known.tokens, *words.tokens], seen)
    keep_gaps = counting.count.oov == "gap"
    ids = encoded.write_ids(joint, keep_gaps=keep_gaps, path=scratch / "ids.npy", threads=threads)

    device = choose_device(counting.count.device, len(ids))
    job = CountJob(path=scratch / "matrix", memory_bytes=options.memory_bytes, threads=threads, device=device)
    matrix = count_tokens(ids, joint, counting.count, job, progress=options.progress)
    return _select_cells(matrix, known.tokens[: trained.words], words)


def _choose_words(seen: Mapping[str, int], known: Vocabulary, reading: NewText, progress: Progress) -> Vocabulary:
    """Return the new words with their counts, by decreasing count."""
    new = {word: count for word, count in seen.items() if word not in known}
    if reading.listed is not None:
        return _choose_listed(reading.listed, new, known, progress)
    if not new:
        raise VocabularyError(f"the text has no new word: all {len(seen):,} words are in the vocabulary")

    min_count = reading.counting.vocabulary.min_count
    most_common = max(new, key=lambda word: (new[word], word))
    if new[most_common] < min_count:
        raise VocabularyError(
            f"no new word occurs {min_count:,} times or more (the most common one is {most_common!r} with "
            f"{new[most_common]:,}); pass a smaller min_count"
        )
    return choose_tokens(new, reading.counting.vocabulary)


def _choose_listed(
    listed: tuple[str, ...], new: Mapping[str, int], known: Vocabulary, progress: Progress
) -> Vocabulary:
    chosen = [word for word in listed if word in new]
    absent = [word for word in listed if word not in new and word not in known]
    if not chosen:
        raise VocabularyError(f"none of the {len(listed):,} listed words is both new and in the text")
    if absent:
        progress.message(f"{len(absent):,} listed words are not in the text ({absent[0]!r}); they get no vector")
    return from_list(chosen, new)


# Rows, columns and counts of cells, block by block.
Pieces = list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]


def _select_cells(matrix: Matrix, trained: Sequence[str], words: Vocabulary) -> WordCounts:
    """Return the cells of new words with trained words, read block by block to limit the memory."""
    parts = matrix.columns_per_row
    old = _find_positions(matrix.rows, trained)
    new = _find_positions(matrix.rows, words.tokens)

    as_rows: Pieces = []
    as_columns: Pieces = []
    for i in range(matrix.row_blocks):
        for j in range(matrix.column_blocks):
            row, column, counts = _find_cells(matrix, i, j)
            word, part = np.divmod(column, parts)  # column = word * parts + part

            at = np.flatnonzero((new[row] >= 0) & (old[word] >= 0))
            as_rows.append((new[row[at]], old[word[at]] * parts + part[at], counts[at]))
            at = np.flatnonzero((new[word] >= 0) & (old[row] >= 0))
            as_columns.append((new[word[at]] * parts + part[at], old[row[at]], counts[at]))

    return WordCounts(
        words,
        _to_sparse(as_rows, (len(words), len(trained) * parts)),
        _to_sparse(as_columns, (len(words) * parts, len(trained))),
    )


def _find_positions(joint: Vocabulary, tokens: Sequence[str]) -> NDArray[np.int64]:
    """Return the position in `tokens` of each word of the joint vocabulary, -1 for a word that is not in `tokens`."""
    positions = np.full(len(joint), -1, np.int64)
    positions[[joint.ids[token] for token in tokens]] = np.arange(len(tokens))
    return positions


def _find_cells(matrix: Matrix, i: int, j: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return rows, columns and counts of the observed cells of a block."""
    cells = matrix.cells(i, j)
    # A position packs (first << 16 | second); in a mirrored block, `first` is the column.
    row = (cells.positions >> 16).astype(np.int64)
    column = (cells.positions & 0xFFFF).astype(np.int64)
    if cells.mirrored:
        row, column = column, row
    return row * matrix.row_blocks + i, column * matrix.column_blocks + j, cells.counts


def _to_sparse(pieces: Pieces, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    rows, columns, counts = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return scipy.sparse.csr_array((counts.astype(np.float64), (rows, columns)), shape=shape)
