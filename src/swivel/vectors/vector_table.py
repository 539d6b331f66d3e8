"""The rows or the columns of a model, the rules for those that belong together, and what two models share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, VocabularyError
from swivel.vectors.search import Floats
from swivel.vectors.subwords import Subwords

_CHUNK_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class VectorTable:
    """The rows or the columns of a model: labels, one vector per label, and the marginal counts if known."""

    vocabulary: Vocabulary
    values: Floats
    sums: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        count = len(self.vocabulary)
        if np.ndim(self.values) != 2 or len(self.values) != count:
            raise ConfigError(
                f"a vocabulary of {count:,} tokens needs vectors of shape ({count}, dim), got {np.shape(self.values)}"
            )

        if self.sums is not None and np.shape(self.sums) != (count,):
            raise ConfigError(f"a vocabulary of {count:,} tokens needs {count:,} sums, got {np.shape(self.sums)}")

    def freeze(self) -> VectorTable:
        """Return the table with read-only float32 values."""
        sums = None if self.sums is None else np.asarray(self.sums, np.float64)
        return VectorTable(self.vocabulary, freeze_array(self.values), sums)


def freeze_array(array: NDArray[Any]) -> Floats:
    """Return a read-only float32 array; copies only if the dtype or the memory layout requires it."""
    # A view, so that the caller's own array stays writable.
    frozen = np.ascontiguousarray(array, np.float32).view()
    frozen.flags.writeable = False
    return frozen


def check_tables(
    rows: VectorTable, columns: VectorTable | None, vectors: Floats, columns_per_row: int, subwords: Subwords | None
) -> None:
    """Raise ConfigError if the parts of a model have different numbers of rows or dimensions."""
    count = len(rows.values)
    if subwords is not None and subwords.table.shape[1:] != np.shape(vectors)[1:]:
        raise ConfigError(f"n-grams of shape {subwords.table.shape} need vectors of as many dimensions")
    if np.ndim(vectors) != 2 or len(vectors) != count:
        raise ConfigError(f"{count:,} rows need as many vectors, got {np.shape(vectors)}")
    if columns is None:
        return

    if columns.values.shape[1] != rows.values.shape[1]:
        raise ConfigError(
            f"rows have {rows.values.shape[1]} dimensions and columns {columns.values.shape[1]}: "
            "use rows and columns of the same model"
        )
    if columns_per_row and len(columns.values) != count * columns_per_row:
        raise ConfigError(
            f"{count:,} rows with {columns_per_row} columns each need {count * columns_per_row:,} columns, "
            f"got {len(columns.values):,}"
        )


def find_surrogate(labels: Sequence[str]) -> int | None:
    """Return the number of the first label with half a surrogate pair, which UTF-8 cannot store, or None."""
    try:
        "".join(labels).encode()
    except UnicodeEncodeError as error:
        ends = np.cumsum(np.fromiter(map(len, labels), np.int64, len(labels)))
        return int(np.searchsorted(ends, error.start, side="right"))
    return None


def check_text(vocabulary: Vocabulary) -> None:
    """Raise VocabularyError for a label that is not valid text."""
    number = find_surrogate(vocabulary.tokens)
    if number is not None:
        label = vocabulary[number]
        raise VocabularyError(f"the label {label!r} contains half a surrogate pair, which UTF-8 cannot store")


def fingerprint_vectors(rows: VectorTable, columns: VectorTable | None) -> str:
    """Return a digest of labels, rows and columns, equal for vectors in memory and those loaded from their folder."""
    digest = hashlib.sha256()
    for side in (rows, columns):
        if side is not None:
            # surrogatepass: labels of files may have half a surrogate pair.
            digest.update("\n".join(side.vocabulary.to_lines()).encode("utf-8", "surrogatepass"))
            digest.update(np.ascontiguousarray(side.values).data)
    return digest.hexdigest()[:16]


def find_rotation(source: Floats, target: Floats) -> NDArray[np.float64]:
    """Return the orthogonal matrix R that minimizes the distance of `source @ R` from `target`, both (n, d).

    >>> quarter = np.array([[0, 1], [-1, 0]], np.float32)
    >>> words = np.array([[1, 0], [0, 2], [3, 4]], np.float32)
    >>> find_rotation(words, words @ quarter).round(6).tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    dim = source.shape[1]
    if dim != target.shape[1]:
        raise ConfigError(
            f"cannot align vectors of {dim} and {target.shape[1]} dimensions: train both with the same dim"
        )
    if len(source) < dim:
        raise ConfigError(f"{len(source):,} words do not determine a rotation in {dim} dimensions: use more words")

    product = np.zeros((dim, dim))
    for start in range(0, len(source), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        product += source[piece].astype(np.float64).T @ target[piece].astype(np.float64)

    u, _, v_transposed = np.linalg.svd(product)
    # Orthogonal Procrustes: R = U V' of the SVD U S V'. Longer rows weigh more. + 0.0 turns -0.0 into 0.0.
    return np.asarray(u @ v_transposed) + 0.0


def shared_words(a: Vocabulary, b: Vocabulary) -> list[str]:
    """Return the words of both vocabularies, ordered by the larger of their two ranks (most frequent first).

    >>> shared_words(Vocabulary(["the", "of", "king"]), Vocabulary(["of", "a", "king", "the"]))
    ['of', 'king', 'the']
    """
    both = [(max(number, b.ids[word]), number, word) for number, word in enumerate(a.tokens) if word in b]
    return [word for _, _, word in sorted(both)]


def choose_anchors(a: Vocabulary, b: Vocabulary, words: Sequence[str] | int | None) -> Sequence[str]:
    """Return the words that fix a rotation: those given, the N most frequent shared ones, or all shared."""
    if isinstance(words, (str, bool)) or (isinstance(words, int) and words < 1):
        raise ConfigError(f"words must be a list of words or a positive number of most frequent words, got {words!r}")
    return shared_words(a, b)[:words] if words is None or isinstance(words, int) else words
