"""Vectors as text: word2vec and fastText `.vec`, with a first line `words dimensions`, and GloVe, without it.

Reading is strict: a line that is not valid raises an error with its number and is never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import StorageError, VocabularyError, clear_errors
from swivel.storage import create_file
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats.decimal_text import join_digits
from swivel.vectors.formats.validate import refuse_labels, shown

WHITE = " \t\n\r\v\f"  # characters that some reader of these formats treats as the end of a word
_MAX_DIGITS = 15  # of a size in the first line; int() refuses thousands of digits
_CHUNK_ROWS = 1_024


@dataclass(slots=True)
class _TextReader:
    """The vectors read so far, and the number of the current line."""

    path: Path
    line: int = 0
    dim: int = 0
    expected: int | None = None  # number of words according to the first line
    words: dict[str, None] = field(default_factory=dict)  # an ordered set
    values: list[np.ndarray] = field(default_factory=list)

    def fail(self, message: str) -> NoReturn:
        raise StorageError(f"{self.path}, line {self.line}: {message}")

    def read_header(self, text: str) -> bool:
        """Parse the first line as `words dimensions`; return False if it is a vector instead."""
        sizes = read_sizes(text)
        if sizes is not None:
            self.expected, self.dim = sizes
            if self.dim == 0:
                self.fail("the number of dimensions is 0")
            return True

        self.dim = len(text.split(" ")) - 1
        if self.dim < 1:
            self.fail(f"expected a word and its numbers, got {shown(text)}")
        return False

    def read_vector(self, text: str) -> None:
        """Parse one line; the word is everything before the last `dim` numbers, because it may contain spaces."""
        word, *numbers = text.rsplit(" ", self.dim)
        word = word.strip(" ")

        if len(numbers) != self.dim:
            self.fail(f"expected a word and {self.dim} numbers, got {len(numbers)}: {shown(text)}")
        if not word:
            self.fail("the word is empty")
        if " " in word and is_number(word.rsplit(" ", 1)[1]):
            self.fail(f"expected a word and {self.dim} numbers, got more: {shown(text)}")
        if word in self.words:
            self.fail(f"duplicate word {word!r}")

        self.words[word] = None
        self.values.append(self._parse(numbers))
        if self.expected is not None and len(self.words) > self.expected:
            self.fail(f"the first line says {self.expected:,} words, but the file has more")

    def _parse(self, numbers: list[str]) -> np.ndarray:
        try:
            values = np.array(list(map(float, numbers)))
        except ValueError:
            wrong = next(number for number in numbers if not is_number(number))
            self.fail(f"{wrong!r} is not a number, or the vector has more than {self.dim} of them")

        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)

        is_finite = np.isfinite(narrow)
        if not is_finite.all():
            self.fail(f"{numbers[int(is_finite.argmin())]} is not a finite float32")
        return narrow

    def finish(self) -> Vectors:
        if not self.words:
            raise StorageError(f"{self.path}: the file has no vectors")
        if self.expected is not None and len(self.words) != self.expected:
            self.fail(f"the first line says {self.expected:,} words, but the file has {len(self.words):,}")
        return Vectors(VectorTable(Vocabulary(self.words), np.stack(self.values)))


def read_text(path: str | Path) -> Vectors:
    """Read vectors in the text format of word2vec or GloVe; words keep the order of the file and have no counts.

    Raises
    ------
    StorageError
        With the line number, for a vector of another length, an empty or duplicate word, or a value that is not finite.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "vectors.txt"
    ...     _ = file.write_bytes(b"2 3\\nking 1 0 0\\nqueen 0.8 0.6 0\\n")
    ...     read_text(file).nearest("king")[0].token
    'queen'
    """
    reader = _TextReader(Path(path))
    for text in _lines(reader):
        if reader.line > 1 or not reader.read_header(text):
            reader.read_vector(text)
    return reader.finish()


def _lines(reader: _TextReader) -> Iterator[str]:
    try:
        with clear_errors(reader.path), reader.path.open("rb") as file:
            for data in file:  # splits at \n only: words may contain U+0085 and other line separators
                reader.line += 1
                text = data.decode("utf-8").rstrip("\r\n").replace("\t", " ").rstrip(" ")
                yield text.removeprefix("\ufeff") if reader.line == 1 else text
    except UnicodeDecodeError as error:
        reader.fail(f"not valid UTF-8 (byte 0x{error.object[error.start]:02x})")


def is_number(text: str) -> bool:
    """Return whether `float` accepts a text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_sizes(line: str) -> tuple[int, int] | None:
    """Return the number of words and dimensions in a first line of word2vec, or None if the line is something else.

    >>> read_sizes("71290 300"), read_sizes("the 0.1 0.2")
    ((71290, 300), None)
    """
    fields = line.split()
    if len(fields) != 2 or not all(field.isdecimal() and len(field) <= _MAX_DIGITS for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def write_word2vec_text(vectors: Vectors, path: Path) -> None:
    """Write vectors with a first line `words dimensions`; values have the fewest digits that identify them."""
    refuse_labels(vectors.vocabulary, WHITE, "word2vec text")
    _write_lines(vectors, path, f"{len(vectors)} {vectors.dim}\n")


def write_glove(vectors: Vectors, path: Path) -> None:
    """Write vectors without a first line; values have the fewest digits that identify them."""
    refuse_labels(vectors.vocabulary, WHITE, "glove")
    if vectors.vocabulary[0].startswith("\ufeff"):
        raise VocabularyError("glove cannot store a first label that starts with U+FEFF: use word2vec-text")
    _write_lines(vectors, path, "")


def _write_lines(vectors: Vectors, path: Path, header: str) -> None:
    with create_file(path) as file:
        file.write(header.encode())
        for start in range(0, len(vectors), _CHUNK_ROWS):
            words = vectors.vocabulary.tokens[start : start + _CHUNK_ROWS]
            rows = join_digits(vectors.vectors[start : start + _CHUNK_ROWS], " ")
            file.write("".join(f"{word} {row}\n" for word, row in zip(words, rows, strict=True)).encode())
