"""What every writer checks before it writes, and every reader before it hands vectors on.

Receives labels and values, hands on `Vectors`, or the error that names the file and the place. It reads no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, StorageError, VocabularyError
from swivel.vectors import Vectors, VectorTable

FREE = "take npz, safetensors, parquet or arrow, which hold any label"
_CHUNK_ROWS = 8_192


def check_vectors(vectors: Vectors) -> None:
    """Raise for what no format can hold: no words at all, a word twice, a label that is no text, a value not finite."""
    if not len(vectors):
        raise VocabularyError("there are no vectors to write")
    _ = vectors.vocabulary.ids  # raises for a word that is there twice
    for label in vectors.vocabulary:
        if not is_text(label):
            raise VocabularyError(f"the label {label!r} holds half a surrogate pair: it is no text, and has no UTF-8")
    row = first_not_finite(vectors.vectors)
    if row is not None:
        raise ConfigError(f"the vector of {vectors.vocabulary[row]!r} is not finite: train again with a lower rate")


def is_text(label: str) -> bool:
    """Return whether a label can be written as UTF-8."""
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_labels(labels: Iterable[str], characters: str, format: str) -> None:
    """Raise VocabularyError for the first label that is empty or holds one of the characters.

    >>> refuse_labels(["olive oil"], " ", "glove")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    swivel.errors.VocabularyError: glove cannot hold the label 'olive oil' (number 1), for its ' ': take npz, ...
    """
    forbidden = set(characters)
    for number, label in enumerate(labels, 1):
        if not label:
            raise VocabularyError(f"{format} cannot hold an empty label (number {number}): {FREE}")
        if not forbidden.isdisjoint(label):
            wrong = next(char for char in label if char in forbidden)
            raise VocabularyError(
                f"{format} cannot hold the label {label!r} (number {number}), for its {wrong!r}: {FREE}"
            )


def make_vectors(
    path: Path, words: Sequence[str], values: NDArray[Any], counts: NDArray[np.int64] | None = None
) -> Vectors:
    """Return what a reader found, as vectors.

    Raises StorageError, with the word's number, for a word that is there twice and a value that is not finite.
    """
    if len(words) != len(values):
        raise StorageError(f"{path}: {len(words):,} words, but {len(values):,} vectors")
    if not len(words) or not values.shape[1]:
        raise StorageError(f"{path}: the file has no vectors")
    vocabulary = Vocabulary(words, counts)
    check_words(path, vocabulary)
    with np.errstate(over="ignore"):  # What is too large for 32 bits becomes infinite, and is told.
        values = np.asarray(values, np.float32)
    row = first_not_finite(values)
    if row is not None:
        tell_not_finite(path, row, words)
    return Vectors(VectorTable(vocabulary, values))


def check_words(path: Path, vocabulary: Vocabulary) -> None:
    """Raise StorageError for a word that is there a second time."""
    try:
        _ = vocabulary.ids
    except VocabularyError:
        seen: set[str] = set()
        for number, word in enumerate(vocabulary, 1):
            if word in seen:
                raise StorageError(f"{path}, word {number:,}: {shown(word)} a second time") from None
            seen.add(word)


def tell_not_finite(path: Path, row: int, words: Sequence[str]) -> NoReturn:
    """Raise StorageError for the vector of a word."""
    raise StorageError(f"{path}, word {row + 1:,} ({shown(words[row])}): a value that is no finite number of 32 bits")


def first_not_finite(values: NDArray[Any]) -> int | None:
    """Return the first row with a value that is not finite, or None."""
    for start in range(0, len(values), _CHUNK_ROWS):
        is_fine = np.isfinite(values[start : start + _CHUNK_ROWS])
        if not is_fine.all():
            return start + int(np.argmin(is_fine.all(axis=1)))
    return None


def shown(text: str) -> str:
    """Return a text as it stands in a message: quoted, and cut where it is long."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
