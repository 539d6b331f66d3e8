"""Checks and error messages that all readers and writers of vector formats share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, StorageError, VocabularyError, clear_errors, first_line
from swivel.runtime.numbers import is_integer, is_plain, parse_float
from swivel.runtime.resources import check_memory
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.search import LABEL_BYTES, Floats
from swivel.vectors.vector_table import check_text, find_surrogate

FREE = "use npz, safetensors, parquet or arrow, which can store any label"
_MAX_COUNT = (1 << 63) - 1
_CHUNK_ROWS = 8_192


@contextmanager
def reading(path: Path, kind: str, errors: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Convert an OSError or one of `errors` in the block into a StorageError, which says that `path` is not `kind`."""
    try:
        with clear_errors(path):
            yield
    except errors as error:
        raise StorageError(f"{path}: not {kind} ({first_line(error)}); it is damaged or has another format") from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without line ends; raise StorageError with the number of a malformed line."""
    with clear_errors(path), path.open("rb") as file:
        for number, data in enumerate(file, 1):  # splits at \n only: words may contain U+0085 and similar
            try:
                line = data.decode()
            except UnicodeDecodeError as error:
                byte = data[error.start]
                raise StorageError(f"{path}, line {number:,}: not valid UTF-8 (byte 0x{byte:02x})") from error

            yield line.rstrip("\r\n")


def check_names(path: Path, kind: str, needed: Iterable[str], present: Collection[str]) -> None:
    """Raise StorageError if an array, column or tensor is missing; the message lists those that are present."""
    for name in needed:
        if name not in present:
            names = ", ".join(map(repr, present)) or "none"
            raise StorageError(f"{path}: no {kind} called {name!r}; there are {names}")


def check_vectors(vectors: Vectors) -> None:
    """Raise an error for vectors that no format can store."""
    if not len(vectors):
        raise VocabularyError("there are no vectors to write")
    _ = vectors.vocabulary.ids  # raises VocabularyError for duplicate words

    check_text(vectors.vocabulary)
    row = first_not_finite(vectors.vectors)
    if row is not None:
        raise ConfigError(
            f"the vector of {vectors.vocabulary[row]!r} is not finite: train again with a lower learning rate"
        )


def refuse_labels(labels: Iterable[str], characters: str, format: str) -> None:
    """Raise VocabularyError for the first label that is empty or contains one of the characters."""
    forbidden = set(characters)
    for number, label in enumerate(labels, 1):
        if not label:
            raise VocabularyError(f"{format} cannot store an empty label (number {number}): {FREE}")
        if not forbidden.isdisjoint(label):
            wrong = next(char for char in label if char in forbidden)
            raise VocabularyError(
                f"{format} cannot store the label {label!r} (number {number}), which contains {wrong!r}: {FREE}"
            )


def make_vectors(path: Path, words: Sequence[str], values: NDArray[Any], counts: NDArray[Any] | None = None) -> Vectors:
    """Return `Vectors` from the content of a file; StorageError names the first word or value that is not valid."""
    if values.ndim != 2 or values.dtype.kind != "f":
        raise StorageError(f"{path}: expected a matrix of floats, got {values.dtype} of shape {values.shape}")
    if len(words) != len(values):
        raise StorageError(f"{path}: {len(words):,} words, but {len(values):,} vectors")
    if not values.size:
        raise StorageError(f"{path}: the file has no vectors")
    if counts is not None:
        are_integers = counts.shape == (len(words),) and counts.dtype.kind in "iu"
        if not are_integers or counts.min() < 0 or counts.max() > _MAX_COUNT:
            raise StorageError(f"{path}: expected the counts to be one integer per word, 0 or more")

    number = find_surrogate(words)
    if number is not None:
        raise StorageError(
            f"{path}, word {number + 1:,}: {words[number]!r} contains half a surrogate pair and is not valid text"
        )

    narrowed_bytes = 0 if values.dtype == np.float32 else 4 * values.size
    check_memory(f"reading {path}", narrowed_bytes + LABEL_BYTES * len(words))
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
        words_before: set[str] = set()
        for number, word in enumerate(vocabulary, 1):
            if word in words_before:
                raise StorageError(f"{path}, word {number:,}: duplicate word {shown(word)}") from None
            words_before.add(word)


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


def parse_row(numbers: Sequence[str]) -> Floats:
    """Return numbers as float32, those that are too large as infinite; raise ValueError for other texts."""
    # One check for the whole row: `parse_float` would take twice as long.
    parse = float if is_plain("".join(numbers)) else parse_float
    with np.errstate(over="ignore"):
        return np.array(list(map(parse, numbers))).astype(np.float32)


def is_count(text: str) -> bool:
    """Return whether a text is a number of occurrences that fits in an int64."""
    return is_integer(text) and len(text) <= 18


def shown(text: str) -> str:
    """Return a text for an error message: quoted, and shortened if it is long."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
