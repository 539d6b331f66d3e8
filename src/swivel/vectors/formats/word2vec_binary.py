"""The binary format of word2vec: a line `words dimensions`, then for each word its text, a space and float32 values.

Words have different lengths, so the position of a record is known only after the record before it. One thread scans the
words; others copy the values behind it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import StorageError, clear_errors
from swivel.runtime.resources import count_cores
from swivel.storage import create_file
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats.validate import check_words, first_not_finite, raise_not_finite, refuse_labels, shown
from swivel.vectors.formats.word2vec_text import WHITE, read_sizes
from swivel.vectors.search import Floats

_MAX_HEADER_BYTES = 64
_BATCH_ROWS = 8_192  # records scanned before their values are copied by another thread
_CHUNK_ROWS = 512  # records copied at a time; 512 x 300 float32 values fit in the L2 cache of a core


def write_binary(vectors: Vectors, path: Path) -> None:
    """Write vectors in the binary format that the word2vec program and gensim read."""
    refuse_labels(vectors.vocabulary, WHITE, "word2vec")
    values = np.asarray(vectors.vectors, "<f4")

    with create_file(path) as file:
        file.write(b"%d %d\n" % values.shape)
        for start in range(0, len(values), _BATCH_ROWS):
            words = vectors.vocabulary.tokens[start : start + _BATCH_ROWS]
            rows = values[start : start + _BATCH_ROWS]
            file.write(b"".join(b"%b %b\n" % (word.encode(), row.data) for word, row in zip(words, rows, strict=True)))


def read_binary(path: str | Path) -> Vectors:
    """Read vectors in the binary format of word2vec, with or without a line end after each vector.

    Memory is allocated only after the sizes in the first line have been compared with the size of the file.

    Raises
    ------
    StorageError
        If the file is cut or has another format; the message has the number of the word.
    """
    path = Path(path)
    data = _map_file(path)
    count, dim, start = _read_header(path, data)

    reader = _BinaryReader(path, data, count, dim, start)
    values = np.empty((count, dim), "<f4")

    with ThreadPoolExecutor(count_cores()) as pool:
        copies: list[Future[int | None]] = []
        try:
            for first, starts in reader.scan():
                copies.append(pool.submit(_copy_values, data, starts, values[first : first + _BATCH_ROWS]))

            vocabulary = Vocabulary(_decode_words(path, b" ".join(reader.words)))
            check_words(path, vocabulary)
        except BaseException:
            # Otherwise leaving the `with` block would first copy all values that were submitted.
            pool.shutdown(cancel_futures=True)
            raise

        for number, copy in enumerate(copies):
            row = copy.result()
            if row is not None:
                raise_not_finite(path, number * _BATCH_ROWS + row, vocabulary.tokens)

    return Vectors(VectorTable(vocabulary, values))


def _map_file(path: Path) -> mmap.mmap:
    try:
        with clear_errors(path), path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise StorageError(f"{path}: the file is empty") from None


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
    needed = count * (4 * dim + 2)  # at least one letter, the space and the values per word
    if needed > available:
        raise StorageError(
            f"{path}, line 1: {count:,} words of {dim:,} dimensions need {needed:,} bytes, "
            f"but only {available:,} follow; the file is cut or not in the binary format of word2vec"
        )

    return count, dim, end + 1


@dataclass(slots=True)
class _BinaryReader:
    """Scans a file from word to word; `position` is the position of the next record."""

    path: Path
    data: mmap.mmap
    count: int
    dim: int
    position: int
    words: list[bytes] = field(default_factory=list)

    def scan(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield for each batch the number of its first word and the positions where the values of its words start."""
        for first in range(0, self.count, _BATCH_ROWS):
            yield first, np.array(self._find_starts(min(_BATCH_ROWS, self.count - first)), np.int64)

        rest = len(self.data) - self.position
        if rest and self.data[self.position : self.position + 2] != b"\n":
            raise StorageError(f"{self.path}: {rest:,} extra bytes after the last of {self.count:,} words")

    def _find_starts(self, count: int) -> list[int]:
        # Local names: attribute lookups would dominate this loop, which runs once per word.
        data = self.data
        find = data.find
        words = self.words
        row_bytes = 4 * self.dim
        position = self.position
        starts = []

        for _ in range(count):
            space = find(b" ", position)
            if space < 0:
                self._raise_cut()
            words.append(data[position:space])
            starts.append(space + 1)
            position = space + 1 + row_bytes

        if position > len(data):
            self._raise_cut()

        self.position = position
        return starts

    def _raise_cut(self) -> None:
        word = "the first line"
        if self.words:
            word = shown(self.words[-1].strip(b"\n").decode("utf-8", "replace"))
        raise StorageError(
            f"{self.path}, word {len(self.words):,}: the file ends in or after {word}, "
            f"but should have {self.count:,} words"
        )


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


def _copy_values(data: mmap.mmap, starts: NDArray[np.int64], values: Floats) -> int | None:
    """Fill `values` from records at arbitrary byte positions; return the first row that is not finite, or None.

    `items` is a view with stride 1 byte whose item n is the `row_bytes` bytes from byte n on, so that one indexing
    operation copies whole vectors that are not aligned.
    """
    row_bytes = values.shape[1] * values.itemsize
    items = np.ndarray((len(data) - row_bytes + 1,), f"V{row_bytes}", buffer=data, strides=(1,))
    rows = values.reshape(-1).view(f"V{row_bytes}")

    first_wrong = None
    for start in range(0, len(starts), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        rows[piece] = items[starts[piece]]
        if first_wrong is None and (row := first_not_finite(values[piece])) is not None:
            first_wrong = start + row

    return first_wrong
