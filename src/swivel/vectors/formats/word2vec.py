"""The formats of word2vec.

Text is also the format of fastText `.vec` files, with a first line `words dimensions`, and of GloVe, without it.
Reading is strict: a line that is not valid raises an error with its number and is never skipped.

A binary file has the same first line, then for each word its text, a space and float32 values. Words have different
lengths, so the position of a record is known only after the record before it.
"""

from __future__ import annotations

import mmap
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import StorageError, VocabularyError, clear_errors
from swivel.runtime.numbers import is_integer, is_number
from swivel.runtime.parallel import run_in_chunks
from swivel.runtime.resources import check_memory, count_cores
from swivel.storage.files import create_file
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats import validate
from swivel.vectors.search import LABEL_BYTES, Floats

_WHITE = " \t\n\r\v\f"  # characters that some reader of these formats treats as the end of a word
_MAX_DIGITS = 15  # of a size in the first line; int() refuses thousands of digits
_MAX_HEADER_BYTES = 64
_BATCH_ROWS = 8_192  # records written at a time
_CHUNK_ROWS = 512  # records copied at a time; 512 x 300 float32 values fit in the L2 cache of a core


def read_sizes(line: str) -> tuple[int, int] | None:
    """Return the number of words and dimensions in a first line, or None if the line is something else.

    >>> read_sizes("71290 300"), read_sizes("the 0.1 0.2")
    ((71290, 300), None)
    """
    fields = line.split()
    if len(fields) != 2 or not all(is_integer(field) and len(field) <= _MAX_DIGITS for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def write_text(vectors: Vectors, path: Path) -> None:
    """Write vectors with a first line `words dimensions`; values have the fewest digits that identify them."""
    validate.refuse_labels(vectors.vocabulary, _WHITE, "word2vec text")
    _write_lines(vectors, path, f"{len(vectors)} {vectors.dim}\n")


def write_glove(vectors: Vectors, path: Path) -> None:
    """Write vectors without a first line; values have the fewest digits that identify them."""
    validate.refuse_labels(vectors.vocabulary, _WHITE, "glove")
    if vectors.vocabulary[0].startswith("\ufeff"):
        raise VocabularyError("glove cannot store a first label that starts with U+FEFF: use word2vec-text")
    _write_lines(vectors, path, "")


def _write_lines(vectors: Vectors, path: Path, header: str) -> None:
    # `str` of a float32 has the fewest digits that identify it.
    rows = zip(vectors.vocabulary, vectors.vectors, strict=True)
    with create_file(path) as file:
        file.write(header.encode())
        file.writelines(f"{word} {' '.join(map(str, row))}\n".encode() for word, row in rows)


def read_text(path: str | Path) -> Vectors:
    """Read vectors in the text format of word2vec or GloVe; StorageError has the number of the first wrong line."""
    path = Path(path)
    lines = (line.replace("\t", " ").rstrip(" ") for line in validate.read_lines(path))
    first = next(lines, None)
    if first is None:
        raise StorageError(f"{path}: the file has no vectors")

    first = first.removeprefix("\ufeff")
    sizes = read_sizes(first)
    count, dim = sizes or (None, len(first.split(" ")) - 1)
    if sizes is not None and dim == 0:
        raise StorageError(f"{path}, line 1: the number of dimensions is 0")
    if dim < 1:
        raise StorageError(f"{path}, line 1: expected a word and its numbers, got {validate.shown(first)}")

    words: dict[str, None] = {}  # an ordered set
    values: list[Floats] = []
    line = 1
    for line, text in enumerate(lines if sizes else chain([first], lines), 2 if sizes else 1):
        try:
            word, vector = _parse_line(text, dim)
            if word in words:
                raise ValueError(f"duplicate word {word!r}")
            if len(words) == count:
                raise ValueError(f"the first line says {count:,} words, but the file has more")
        except ValueError as error:
            raise StorageError(f"{path}, line {line:,}: {error}") from None
        words[word] = None
        values.append(vector)

    if not words:
        raise StorageError(f"{path}: the file has no vectors")
    if count is not None and len(words) != count:
        raise StorageError(
            f"{path}, line {line:,}: the first line says {count:,} words, but the file has {len(words):,}"
        )
    return Vectors(VectorTable(Vocabulary(words), np.stack(values)))


def _parse_line(text: str, dim: int) -> tuple[str, Floats]:
    """Return word and vector of a line; the word is all before the last `dim` numbers, because it may have spaces."""
    word, *numbers = text.rsplit(" ", dim)
    word = word.strip(" ")
    if len(numbers) != dim:
        raise ValueError(f"expected a word and {dim} numbers, got {len(numbers)}: {validate.shown(text)}")
    if not word:
        raise ValueError("the word is empty")
    if " " in word and is_number(word.rsplit(" ", 1)[1]):
        raise ValueError(f"expected a word and {dim} numbers, got more: {validate.shown(text)}")

    try:
        values = validate.parse_row(numbers)
    except ValueError:
        wrong = next(number for number in numbers if not is_number(number))
        raise ValueError(f"{wrong!r} is not a number, or the vector has more than {dim} of them") from None
    is_finite = np.isfinite(values)
    if not is_finite.all():
        raise ValueError(f"{numbers[int(is_finite.argmin())]} is not a finite float32")
    return word, values


def write_binary(vectors: Vectors, path: Path) -> None:
    """Write vectors in the binary format that the word2vec program and gensim read."""
    validate.refuse_labels(vectors.vocabulary, _WHITE, "word2vec")
    values = np.asarray(vectors.vectors, "<f4")

    with create_file(path) as file:
        file.write(b"%d %d\n" % values.shape)
        for start in range(0, len(values), _BATCH_ROWS):
            words = vectors.vocabulary.tokens[start : start + _BATCH_ROWS]
            rows = values[start : start + _BATCH_ROWS]
            file.write(b"".join(b"%b %b\n" % (word.encode(), row.data) for word, row in zip(words, rows, strict=True)))


def read_binary(path: Path) -> Vectors:
    """Read vectors in the binary format of word2vec, with or without a line end after each vector."""
    try:
        with clear_errors(path), path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise StorageError(f"{path}: the file is empty") from None

    count, dim, start = _read_header(path, data)
    check_memory(f"reading {path}", 4 * count * dim + LABEL_BYTES * count)
    words, starts = _scan_words(path, data, start, count, dim)
    vocabulary = Vocabulary(_decode_words(path, b" ".join(words)))
    validate.check_words(path, vocabulary)

    # All vectors as items of bytes, from any position: a view with stride 1 byte, whose item n is the bytes from byte n
    # on. One indexing operation copies whole vectors that are not aligned, in pieces that fit in the cache.
    values = np.empty((count, dim), "<f4")
    items = np.ndarray((len(data) - 4 * dim + 1,), f"V{4 * dim}", buffer=data, strides=(1,))
    rows = values.reshape(-1).view(f"V{4 * dim}")
    not_finite: list[int] = []

    def copy(piece: slice) -> None:
        rows[piece] = items[starts[piece]]
        row = validate.first_not_finite(values[piece])
        if row is not None:
            not_finite.append(piece.start + row)

    run_in_chunks(copy, count, rows=_CHUNK_ROWS, threads=count_cores())
    if not_finite:
        validate.raise_not_finite(path, min(not_finite), vocabulary.tokens)
    return Vectors(VectorTable(vocabulary, values))


def _read_header(path: Path, data: mmap.mmap) -> tuple[int, int, int]:
    """Return the number of words, the number of dimensions and the position of the first record."""
    end = data.find(b"\n", 0, _MAX_HEADER_BYTES)
    sizes = read_sizes(data[: max(end, 0)].decode("ascii", "replace"))
    if sizes is None:
        raise StorageError(f"{path}, line 1: expected the number of words and the number of dimensions")

    count, dim = sizes
    if not count or not dim:
        raise StorageError(f"{path}, line 1: {count:,} words of {dim:,} dimensions; both must be positive")

    available = len(data) - end - 1
    needed_bytes = count * (4 * dim + 2)  # at least one letter, the space and the values per word
    if needed_bytes > available:
        raise StorageError(
            f"{path}, line 1: {count:,} words of {dim:,} dimensions need {needed_bytes:,} bytes, "
            f"but only {available:,} follow; the file is cut or not in the binary format of word2vec"
        )

    return count, dim, end + 1


def _scan_words(
    path: Path, data: mmap.mmap, position: int, count: int, dim: int
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return all words, and the positions where their values start."""
    words = []
    starts = np.empty(count, np.int64)
    find = data.find  # An attribute lookup would take a good part of the loop, which runs once per word.
    for number in range(count):
        space = find(b" ", position)
        if space >= 0:
            words.append(data[position:space])
            position = space + 1 + 4 * dim
        if space < 0 or position > len(data):
            last = validate.shown(words[-1].strip(b"\n").decode("utf-8", "replace")) if words else "the first line"
            raise StorageError(
                f"{path}, word {len(words):,}: the file ends in or after {last}, but should have {count:,} words"
            )
        starts[number] = space + 1

    rest = len(data) - position
    if rest and data[position : position + 2] != b"\n":
        raise StorageError(f"{path}: {rest:,} extra bytes after the last of {count:,} words")
    return words, starts


def _decode_words(path: Path, joined: bytes) -> list[str]:
    """Return the words; a line end before a word belongs to the record before it."""
    try:
        words = joined.decode().replace(" \n", " ").removeprefix("\n").split(" ")
    except UnicodeDecodeError as error:
        number = joined.count(b" ", 0, error.start) + 1
        raise StorageError(f"{path}, word {number:,}: not valid UTF-8 (byte 0x{joined[error.start]:02x})") from error
    if "" in words:
        raise StorageError(f"{path}, word {words.index('') + 1:,}: the word is empty")
    return words
