"""word2vec's binary format: a line `words dimensions`, then each word, a space, its float32 values and a line end.

Receives a path, hands on `Vectors`, and the other way round. Words have no fixed length, so a record's place is known
only when the one before it has been found: one thread walks from word to word, others copy the values behind it.
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
from swivel.vectors.formats.validate import check_words, first_not_finite, refuse_labels, shown, tell_not_finite
from swivel.vectors.formats.word2vec_text import WHITE, read_sizes
from swivel.vectors.search import Floats

_LONGEST_HEADER = 64
_BATCH_ROWS = 8_192  # walked before a thread is told to copy them
_CHUNK_ROWS = 512  # copied at a time: at 300 dimensions, what the second cache of a core holds


def write_binary(vectors: Vectors, path: Path) -> None:
    """Write vectors as the original program and gensim read them."""
    refuse_labels(vectors.vocabulary, WHITE, "word2vec")
    values = np.asarray(vectors.vectors, "<f4")
    with create_file(path) as file:
        file.write(b"%d %d\n" % values.shape)
        for start in range(0, len(values), _BATCH_ROWS):
            words = vectors.vocabulary.tokens[start : start + _BATCH_ROWS]
            rows = values[start : start + _BATCH_ROWS]
            file.write(b"".join(b"%b %b\n" % (word.encode(), row.data) for word, row in zip(words, rows, strict=True)))


def read_binary(path: str | Path) -> Vectors:
    """Read vectors in word2vec's binary format, with line ends after the values or without.

    Raises StorageError, with the word's number, where the file ends early or is something else. Nothing is allocated
    for what the first line claims before it is known to be there.
    """
    path = Path(path)
    data = _map_file(path)
    count, dim, start = _read_header(path, data)
    reader = _BinaryReader(path, data, count, dim, start)
    values = np.empty((count, dim), "<f4")
    with ThreadPoolExecutor(count_cores()) as pool:
        copies: list[Future[int | None]] = []
        try:
            for first, starts in reader.walk():
                copies.append(pool.submit(_copy_values, data, starts, values[first : first + _BATCH_ROWS]))
            vocabulary = Vocabulary(_decode_words(path, b" ".join(reader.words)))
            check_words(path, vocabulary)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        for number, copy in enumerate(copies):
            row = copy.result()
            if row is not None:
                tell_not_finite(path, number * _BATCH_ROWS + row, vocabulary.tokens)
    return Vectors(VectorTable(vocabulary, values))


def _map_file(path: Path) -> mmap.mmap:
    try:
        with clear_errors(path), path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise StorageError(f"{path}: the file is empty") from None


def _read_header(path: Path, data: mmap.mmap) -> tuple[int, int, int]:
    """Return words, dimensions, and where the first record begins."""
    end = data.find(b"\n", 0, _LONGEST_HEADER)
    sizes = read_sizes(data[: max(end, 0)].decode("ascii", "replace"))
    if sizes is None:
        raise StorageError(f"{path}, line 1: expected the numbers of words and dimensions, as word2vec writes them")
    count, dim = sizes
    if not count or not dim:
        raise StorageError(f"{path}, line 1: {count:,} words of {dim:,} dimensions are no vectors")
    room = len(data) - end - 1
    needed = count * (4 * dim + 2)  # at least: a word of one letter, the space, the values
    if needed > room:
        raise StorageError(
            f"{path}, line 1: {count:,} words of {dim:,} dimensions need {needed:,} bytes, and {room:,} follow; "
            "it is cut, or not word2vec's binary format"
        )
    return count, dim, end + 1


@dataclass(slots=True)
class _BinaryReader:
    """The walk from word to word."""

    path: Path
    data: mmap.mmap
    count: int
    dim: int
    place: int
    words: list[bytes] = field(default_factory=list)

    def walk(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield, many at a time, the first word's number and where the words' values begin."""
        for first in range(0, self.count, _BATCH_ROWS):
            yield first, np.array(self._find_starts(min(_BATCH_ROWS, self.count - first)), np.int64)
        rest = len(self.data) - self.place
        if rest and self.data[self.place : self.place + 2] != b"\n":
            raise StorageError(f"{self.path}: {rest:,} bytes after the last of {self.count:,} words")

    def _find_starts(self, count: int) -> list[int]:
        data, find, row_bytes, place = self.data, self.data.find, 4 * self.dim, self.place
        words, starts = self.words, []
        for _ in range(count):
            space = find(b" ", place)
            if space < 0:
                self._tell_cut()
            words.append(data[place:space])
            starts.append(space + 1)
            place = space + 1 + row_bytes
        if place > len(data):
            self._tell_cut()
        self.place = place
        return starts

    def _tell_cut(self) -> None:
        word = shown(self.words[-1].strip(b"\n").decode("utf-8", "replace")) if self.words else "the first line"
        raise StorageError(
            f"{self.path}, word {len(self.words):,}: the file ends in or after {word}, and {self.count:,} are promised"
        )


def _decode_words(path: Path, joined: bytes) -> list[str]:
    """Return the words; a line end before one belongs to the record before."""
    try:
        words = joined.decode().replace(" \n", " ").removeprefix("\n").split(" ")
    except UnicodeDecodeError as error:
        number = joined.count(b" ", 0, error.start) + 1
        raise StorageError(f"{path}, word {number:,}: not valid UTF-8 (byte 0x{joined[error.start]:02x})") from error
    if "" in words:
        raise StorageError(f"{path}, word {words.index('') + 1:,}: an empty word")
    return words


def _copy_values(data: mmap.mmap, starts: NDArray[np.int64], values: Floats) -> int | None:
    """Fill `values` from records that begin at any byte; return the first row that is not finite.

    Every `row_bytes` bytes from every byte on are one item of a view, so that taking items copies whole vectors.
    """
    row_bytes = values.shape[1] * values.itemsize
    items = np.ndarray((len(data) - row_bytes + 1,), f"V{row_bytes}", buffer=data, strides=(1,))
    rows = values.reshape(-1).view(f"V{row_bytes}")
    wrong = None
    for start in range(0, len(starts), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        rows[piece] = items[starts[piece]]
        if wrong is None and (row := first_not_finite(values[piece])) is not None:
            wrong = start + row
    return wrong
