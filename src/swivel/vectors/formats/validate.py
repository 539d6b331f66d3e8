"""Checks that all readers and writers of vector formats share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, StorageError, VocabularyError
from swivel.vectors import Vectors, VectorTable

FREE = "use npz, safetensors, parquet or arrow, which can store any label"
_CHUNK_ROWS = 8_192


def check_vectors(vectors: Vectors) -> None:
    """Raise an error for vectors that no format can store.

    These are an empty vocabulary, duplicate labels, labels that are not valid text, and values that are not finite.
    """
    if not len(vectors):
        raise VocabularyError("there are no vectors to write")
    _ = vectors.vocabulary.ids  # raises VocabularyError for duplicate words

    for label in vectors.vocabulary:
        if not is_text(label):
            raise VocabularyError(f"the label {label!r} contains half a surrogate pair, which UTF-8 cannot store")

    row = first_not_finite(vectors.vectors)
    if row is not None:
        raise ConfigError(
            f"the vector of {vectors.vocabulary[row]!r} is not finite: train again with a lower learning rate"
        )


def is_text(label: str) -> bool:
    """Return whether a label can be encoded as UTF-8."""
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_labels(labels: Iterable[str], characters: str, format: str) -> None:
    """Raise VocabularyError for the first label that is empty or contains one of the characters.

    >>> refuse_labels(["olive oil"], " ", "glove")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    swivel.errors.VocabularyError: glove cannot store the label 'olive oil' (number 1), which contains ' ': use npz, ...
    """
    forbidden = set(characters)
    for number, label in enumerate(labels, 1):
        if not label:
            raise VocabularyError(f"{format} cannot store an empty label (number {number}): {FREE}")
        if not forbidden.isdisjoint(label):
            wrong = next(char for char in label if char in forbidden)
            raise VocabularyError(
                f"{format} cannot store the label {label!r} (number {number}), which contains {wrong!r}: {FREE}"
            )


def make_vectors(
    path: Path, words: Sequence[str], values: NDArray[Any], counts: NDArray[np.int64] | None = None
) -> Vectors:
    """Return `Vectors` from the words, values and counts of a file.

    Raises
    ------
    StorageError
        If there are no vectors, or for the first duplicate word or value that is not finite; the message has its
        number.
    """
    if len(words) != len(values):
        raise StorageError(f"{path}: {len(words):,} words, but {len(values):,} vectors")
    if not len(words) or not values.shape[1]:
        raise StorageError(f"{path}: the file has no vectors")

    vocabulary = Vocabulary(words, counts)
    check_words(path, vocabulary)

    with np.errstate(over="ignore"):  # Values too large for float32 become inf, which is reported as an error.
        values = np.asarray(values, np.float32)
    row = first_not_finite(values)
    if row is not None:
        raise_not_finite(path, row, words)

    return Vectors(VectorTable(vocabulary, values))


def check_words(path: Path, vocabulary: Vocabulary) -> None:
    """Raise StorageError for the first word that occurs a second time."""
    try:
        _ = vocabulary.ids
    except VocabularyError:
        seen: set[str] = set()
        for number, word in enumerate(vocabulary, 1):
            if word in seen:
                raise StorageError(f"{path}, word {number:,}: duplicate word {shown(word)}") from None
            seen.add(word)


def raise_not_finite(path: Path, row: int, words: Sequence[str]) -> NoReturn:
    """Raise StorageError for the vector in a row."""
    raise StorageError(
        f"{path}, word {row + 1:,} ({shown(words[row])}): the vector has a value that is not a finite float32"
    )


def first_not_finite(values: NDArray[Any]) -> int | None:
    """Return the first row that has a value that is not finite, or None."""
    for start in range(0, len(values), _CHUNK_ROWS):
        is_fine = np.isfinite(values[start : start + _CHUNK_ROWS])
        if not is_fine.all():
            return start + int(np.argmin(is_fine.all(axis=1)))
    return None


def shown(text: str) -> str:
    """Return a text for an error message: quoted, and shortened if it is long."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
