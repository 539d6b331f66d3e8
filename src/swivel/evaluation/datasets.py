"""Test sets and the files they are read from.

The kind of a file follows from its columns: `word1 word2 score`; `a b c d`, optionally with a section as fifth column;
or `word category`, separated by a tab. The other kinds are separated by tabs or spaces. Instead of the fifth column,
lines of the form `: name` may start sections of analogies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from swivel.errors import EvaluationError, clear_errors
from swivel.evaluation.download import PAPER_ORDER, name_set, published_sections

SUFFIXES = (".tsv", ".txt")
EXPECTED = (
    "expected word1 word2 score, or a b c d with or without a section, separated by tabs or spaces, or word and "
    "category, separated by a tab"
)
FourWords = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class SimilaritySet:
    """Pairs of words with human similarity scores."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of pairs."""
        return len(self.pairs)


@dataclass(frozen=True, slots=True)
class Questions:
    """One section of analogies: a is to b as c is to d."""

    section: str
    words: tuple[FourWords, ...]


@dataclass(frozen=True, slots=True)
class AnalogySet:
    """Analogies by section.

    `order` has the position in the file of each question, section after section; it is empty if the two orders are
    equal.
    """

    name: str
    sections: tuple[Questions, ...]
    order: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of questions."""
        return sum(len(section.words) for section in self.sections)

    @property
    def rows(self) -> list[tuple[int, FourWords]]:
        """Section number and words of each question, in the order of the file."""
        rows = []
        for number, section in enumerate(self.sections):
            rows += [(number, words) for words in section.words]

        if not self.order:
            return rows
        return [row for _, row in sorted(zip(self.order, rows, strict=True))]


@dataclass(frozen=True, slots=True)
class CategorySet:
    """Words and the category that people assigned to each of them."""

    name: str
    words: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of words."""
        return len(self.words)


TestSet = SimilaritySet | AnalogySet | CategorySet


@dataclass(frozen=True, slots=True)
class FoundSets:
    """The test sets of a folder in the paper's order, and the files that are not test sets."""

    sets: tuple[TestSet, ...]
    left_out: tuple[Path, ...] = ()


@dataclass(slots=True)
class _SetReader:
    """The lines of a file, and the number of the current line for error messages."""

    path: Path
    number: int = 0
    lines: list[tuple[int, str]] = field(default_factory=list)
    lowercase: bool = True

    @property
    def name(self) -> str:
        return name_set(self.path)

    def each_line(self) -> Iterator[str]:
        for number, line in self.lines:
            self.number = number
            yield line

    def word(self, text: str) -> str:
        return text.lower() if self.lowercase else text

    def fail(self, message: str) -> NoReturn:
        raise EvaluationError(f"{self.path}, line {self.number}: {message}")


def find_sets(source: str | Path | Iterable[str | Path], *, lowercase: bool = True) -> FoundSets:
    """Read the `.tsv` and `.txt` files of a folder, or a list of files and folders.

    A file of a folder is left out if its first line fits no kind of test set. It is an error if such a file was passed
    explicitly or has the name of a set of the paper, and if two sets have the same name.
    """
    paths = [Path(source)] if isinstance(source, (str, Path)) else [Path(path) for path in source]
    files: dict[Path, tuple[Path, bool]] = {}  # by resolved path, so that a file listed twice is read once
    for path in paths:
        for file in _list_files(path):
            files[file.resolve()] = file, path.is_dir()

    sets: dict[str, tuple[Path, TestSet]] = {}
    left_out: list[Path] = []

    for file, is_from_folder in files.values():
        reader = _open_reader(file, lowercase)
        if is_from_folder and _kind_of(reader) is None and reader.name not in PAPER_ORDER:
            left_out.append(file)
            continue

        if reader.name in sets:
            raise EvaluationError(
                f"{file}: the set {reader.name!r} was already read from {sets[reader.name][0]}; rename one of them"
            )
        sets[reader.name] = file, _read_lines(reader)

    if not sets:
        raise EvaluationError(f"{', '.join(map(str, paths)) or 'no files'}: no test sets found; {EXPECTED}")

    ordered = sorted((test_set for _, test_set in sets.values()), key=_paper_position)
    return FoundSets(tuple(ordered), tuple(left_out))


def read_set(path: str | Path, *, lowercase: bool = True) -> TestSet:
    """Read one test set; its name is the file name without suffix, or Swivel's name for a file of the paper's sets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "pairs.tsv"
    ...     _ = file.write_text("Tiger\\tcat\\t7.35\\n")
    ...     read_set(file)
    SimilaritySet(name='pairs', pairs=(('tiger', 'cat'),), scores=(7.35,))
    """
    return _read_lines(_open_reader(Path(path), lowercase))


def group_questions(name: str, rows: Sequence[tuple[str, FourWords]]) -> AnalogySet:
    """Return a set of analogies from questions with their sections, in the order of the file.

    >>> words = ("a", "b", "c", "d")
    >>> group_questions("q", [("x", words), ("y", words), ("x", words)]).order
    (0, 2, 1)
    """
    positions: dict[str, list[int]] = {}
    for position, (section, _) in enumerate(rows):
        positions.setdefault(section, []).append(position)

    sections: list[Questions] = []
    order: list[int] = []
    for section, members in positions.items():
        sections.append(Questions(section, tuple(rows[n][1] for n in members)))
        order += members

    is_file_order = order == list(range(len(order)))
    return AnalogySet(name, tuple(sections), () if is_file_order else tuple(order))


def _paper_position(test_set: TestSet) -> tuple[int, str]:
    name = test_set.name
    return (PAPER_ORDER.index(name) if name in PAPER_ORDER else len(PAPER_ORDER), name)


def _list_files(path: Path) -> list[Path]:
    """Return the files of a folder that may be test sets, or the path itself if it is a file."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def _open_reader(path: Path, lowercase: bool) -> _SetReader:
    with clear_errors(path, EvaluationError):
        data = path.read_bytes()

    reader = _SetReader(path, lowercase=lowercase)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reader.number = data.count(b"\n", 0, error.start) + 1
        reader.fail(f"not valid UTF-8 (byte 0x{data[error.start]:02x})")

    # Not splitlines(), which also splits at U+0085 and other separators.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    reader.lines = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    return reader


def _split_columns(line: str) -> list[str]:
    return [column.strip() for column in line.split("\t")] if "\t" in line else line.split()


def _kind_of(reader: _SetReader) -> Callable[[_SetReader], TestSet] | None:
    """Return the function that reads the file, chosen by its first line, or None."""
    if not reader.lines:
        return None

    reader.number, first = reader.lines[0]
    if _section_of(first) is not None:
        return _read_analogies

    width = len(_split_columns(first))
    if width == 2 and "\t" in first:  # Two words without a tab are more likely to be plain text.
        return _read_categories
    if width == 3:
        return _read_similarity
    return _read_analogies if width in (4, 5) else None


def _read_lines(reader: _SetReader) -> TestSet:
    if not reader.lines:
        raise EvaluationError(f"{reader.path}: the file is empty; {EXPECTED}")
    read = _kind_of(reader)
    if read is None:
        reader.fail(f"{EXPECTED}, got {reader.lines[0][1]!r}")
    return read(reader)


def _check_columns(reader: _SetReader, line: str, count: int, expected: str) -> list[str]:
    columns = _split_columns(line)
    if len(columns) != count or "" in columns:
        reader.fail(f"expected {expected}, got {line!r}")
    return columns


def _read_similarity(reader: _SetReader) -> SimilaritySet:
    pairs = []
    scores = []

    for line in reader.each_line():
        first, second, text = _check_columns(reader, line, 3, "word1 word2 score")
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            reader.fail(f"expected a number as the score, got {text!r}")

        pairs.append((reader.word(first), reader.word(second)))
        scores.append(score)

    return SimilaritySet(reader.name, tuple(pairs), tuple(scores))


def _read_categories(reader: _SetReader) -> CategorySet:
    rows = [_check_columns(reader, line, 2, "word and category, separated by a tab") for line in reader.each_line()]
    return CategorySet(reader.name, tuple(reader.word(word) for word, _ in rows), tuple(kind for _, kind in rows))


def _section_of(line: str) -> str | None:
    """Return the name in a `: name` line, or None for other lines."""
    return line[1:].strip() if line == ":" or line.startswith((": ", ":\t")) else None


def _read_analogies(reader: _SetReader) -> AnalogySet:
    rows: list[tuple[str, FourWords]] = []
    section = ""
    width = 0  # columns per line, set by the first question

    for line in reader.each_line():
        header = _section_of(line)
        if header is not None:
            section = header
            continue

        if width == 0:
            width = 5 if len(_split_columns(line)) == 5 else 4
        expected = "a b c d section" if width == 5 else "a b c d"
        columns = _check_columns(reader, line, width, expected)

        a, b, c, d = map(reader.word, columns[:4])
        rows.append((columns[4] if width == 5 else section, (a, b, c, d)))

    if not rows:
        reader.fail("the file has sections but no questions; expected a b c d")
    return group_questions(reader.name, _name_sections(reader.name, rows))


def _name_sections(name: str, rows: list[tuple[str, FourWords]]) -> list[tuple[str, FourWords]]:
    """Return questions with a section each: if the file has none, that of the published set or the name of the set."""
    labels = None
    if not any(section for section, _ in rows):
        labels = published_sections(name, len(rows))
    if labels is None:
        labels = [section or name for section, _ in rows]
    return [(label, words) for label, (_, words) in zip(labels, rows, strict=True)]
