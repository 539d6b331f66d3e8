"""Test sets as files.

Receives paths, hands on `SimilaritySet` and `AnalogySet`. It scores nothing. A file's kind is decided by its
columns: `word1 word2 score`, or `a b c d` with or without a section as the fifth; columns are separated by tabs or by
spaces, and `: name` lines may begin sections instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from swivel.errors import EvaluationError

# The order of the paper's table; other sets follow by name.
PAPER_ORDER = (
    "ws353_similarity",
    "ws353_relatedness",
    "men",
    "mturk",
    "rare_words",
    "simlex999",
    "google_analogies",
    "msr_analogies",
)
SUFFIXES = (".tsv", ".txt")
EXPECTED = "expected word1 word2 score, or a b c d with a section or without, separated by tabs or spaces"


@dataclass(frozen=True, slots=True)
class SimilaritySet:
    """Pairs of words with the score that people gave them."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Questions:
    """One section of analogies: a is to b as c is to d."""

    section: str
    words: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True)
class AnalogySet:
    """Analogies by section, in the file's order."""

    name: str
    sections: tuple[Questions, ...]

    @property
    def size(self) -> int:
        """How many questions there are."""
        return sum(len(section.words) for section in self.sections)


TestSet = SimilaritySet | AnalogySet


@dataclass(frozen=True, slots=True)
class FoundSets:
    """The sets of a folder in the paper's order, and the files that are none."""

    sets: tuple[TestSet, ...]
    left_out: tuple[Path, ...] = ()


@dataclass(slots=True)
class _Reader:
    """A file's lines, and the place of the one at hand."""

    path: Path
    number: int = 0
    lines: list[tuple[int, str]] = field(default_factory=list)

    def each_line(self) -> Iterator[str]:
        for number, line in self.lines:
            self.number = number
            yield line

    def fail(self, message: str) -> NoReturn:
        raise EvaluationError(f"{self.path}, line {self.number}: {message}")


def find_sets(source: str | Path | Iterable[str | Path], *, lowercase: bool = True) -> FoundSets:
    """Read a folder's `.tsv` and `.txt` files, or the files named.

    A file of a folder whose first line fits no kind of set (a list of sources, say) is left out; a named one is an
    error.
    """
    paths = [Path(source)] if isinstance(source, (str, Path)) else [Path(path) for path in source]
    sets: list[TestSet] = []
    left_out: list[Path] = []
    for path in paths:
        for file in _list_folder(path) if path.is_dir() else [path]:
            reader = _open_reader(file)
            if path.is_dir() and _kind_of(reader) is None:
                left_out.append(file)
            else:
                sets.append(_read_lines(reader, lowercase))
    if not sets:
        raise EvaluationError(f"{', '.join(map(str, paths)) or 'no files'}: no test sets; {EXPECTED}")
    return FoundSets(tuple(sorted(sets, key=_paper_place)), tuple(left_out))


def read_set(path: str | Path, *, lowercase: bool = True) -> TestSet:
    """Read one test set; its name is the file's, without the ending.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "pairs.tsv"
    ...     _ = file.write_text("Tiger\\tcat\\t7.35\\n")
    ...     read_set(file)
    SimilaritySet(name='pairs', pairs=(('tiger', 'cat'),), scores=(7.35,))
    """
    return _read_lines(_open_reader(Path(path)), lowercase)


def _paper_place(test_set: TestSet) -> tuple[int, str]:
    name = test_set.name
    return (PAPER_ORDER.index(name) if name in PAPER_ORDER else len(PAPER_ORDER), name)


def _list_folder(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def _open_reader(path: Path) -> _Reader:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EvaluationError(f"{path}: {error.strerror or error}") from error
    reader = _Reader(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reader.number = data.count(b"\n", 0, error.start) + 1
        reader.fail(f"not valid UTF-8 (byte 0x{data[error.start]:02x})")
    # Not splitlines(), which would also break at U+0085 and its like.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    reader.lines = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    return reader


def _split_columns(line: str) -> list[str]:
    return [column.strip() for column in line.split("\t")] if "\t" in line else line.split()


def _kind_of(reader: _Reader) -> Callable[[_Reader, bool], TestSet] | None:
    """Return the function that reads the file, by its first line."""
    if not reader.lines:
        return None
    reader.number, first = reader.lines[0]
    if _section_of(first) is not None:
        return _read_analogies
    width = len(_split_columns(first))
    if width == 3:
        return _read_similarity
    return _read_analogies if width in (4, 5) else None


def _read_lines(reader: _Reader, lowercase: bool) -> TestSet:
    if not reader.lines:
        raise EvaluationError(f"{reader.path}: empty; {EXPECTED}")
    read = _kind_of(reader)
    if read is None:
        reader.fail(f"{EXPECTED}, got {reader.lines[0][1]!r}")
    return read(reader, lowercase)


def _check_columns(reader: _Reader, line: str, count: int, expected: str) -> list[str]:
    columns = _split_columns(line)
    if len(columns) != count or "" in columns:
        reader.fail(f"expected {expected}, got {line!r}")
    return columns


def _read_similarity(reader: _Reader, lowercase: bool) -> SimilaritySet:
    pairs, scores = [], []
    for line in reader.each_line():
        first, second, text = _check_columns(reader, line, 3, "word1 word2 score")
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            reader.fail(f"expected a number as the score, got {text!r}")
        pairs.append((first.lower(), second.lower()) if lowercase else (first, second))
        scores.append(score)
    return SimilaritySet(reader.path.stem, tuple(pairs), tuple(scores))


def _section_of(line: str) -> str | None:
    """Return the name in a `: name` line."""
    return line[1:].strip() if line == ":" or line.startswith((": ", ":\t")) else None


def _read_analogies(reader: _Reader, lowercase: bool) -> AnalogySet:
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    section, width = reader.path.stem, 0
    for line in reader.each_line():
        header = _section_of(line)
        if header is not None:
            section = header or reader.path.stem
            continue
        width = width or (5 if len(_split_columns(line)) == 5 else 4)
        columns = _check_columns(reader, line, width, "a b c d section" if width == 5 else "a b c d")
        a, b, c, d = (column.lower() if lowercase else column for column in columns[:4])
        sections.setdefault(columns[4] if width == 5 else section, []).append((a, b, c, d))
    if not sections:
        reader.fail("sections without questions; expected a b c d")
    return AnalogySet(reader.path.stem, tuple(Questions(name, tuple(words)) for name, words in sections.items()))
