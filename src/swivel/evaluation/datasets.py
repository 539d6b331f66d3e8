"""Test sets as files.

Receives paths, hands on `SimilaritySet`, `AnalogySet` and `CategorySet`. It scores nothing. A file's kind is decided by
its columns: `word1 word2 score`; `a b c d`, with or without a section as the fifth; or `word category`, separated by a
tab. Elsewhere tabs or spaces separate columns. `: name` lines may begin sections of analogies instead of the fifth
column.
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
    "expected word1 word2 score, or a b c d with a section or without, separated by tabs or spaces, or word and "
    "category, separated by a tab"
)
FourWords = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class SimilaritySet:
    """Pairs of words with the score that people gave them."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many pairs there are."""
        return len(self.pairs)


@dataclass(frozen=True, slots=True)
class Questions:
    """One section of analogies: a is to b as c is to d."""

    section: str
    words: tuple[FourWords, ...]


@dataclass(frozen=True, slots=True)
class AnalogySet:
    """Analogies by section.

    `order` is the place in the file of each question, section after section; empty where the file has them so.
    """

    name: str
    sections: tuple[Questions, ...]
    order: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many questions there are."""
        return sum(len(section.words) for section in self.sections)

    @property
    def rows(self) -> list[tuple[int, FourWords]]:
        """The number of its section, and each question, in the file's order."""
        listed = [(number, words) for number, section in enumerate(self.sections) for words in section.words]
        return [row for _, row in sorted(zip(self.order, listed, strict=True))] if self.order else listed


@dataclass(frozen=True, slots=True)
class CategorySet:
    """Words, and the category that people put each of them into."""

    name: str
    words: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many words there are."""
        return len(self.words)


TestSet = SimilaritySet | AnalogySet | CategorySet


@dataclass(frozen=True, slots=True)
class FoundSets:
    """The sets of a folder in the paper's order, and the files that are none."""

    sets: tuple[TestSet, ...]
    left_out: tuple[Path, ...] = ()


@dataclass(slots=True)
class _SetReader:
    """A file's lines, and the place of the one at hand."""

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
    """Read a folder's `.tsv` and `.txt` files, or the files and folders named.

    A file of a folder whose first line fits no kind of set (a list of sources, say) is left out; one that was named, or
    has the name of a set of the paper's, is an error, and so are two sets of one name.
    """
    paths = [Path(source)] if isinstance(source, (str, Path)) else [Path(path) for path in source]
    files = {file.resolve(): (file, path.is_dir()) for path in paths for file in _list_files(path)}
    sets: dict[str, tuple[Path, TestSet]] = {}
    left_out: list[Path] = []
    for file, is_of_folder in files.values():
        reader = _open_reader(file, lowercase)
        if is_of_folder and _kind_of(reader) is None and reader.name not in PAPER_ORDER:
            left_out.append(file)
            continue
        if reader.name in sets:
            raise EvaluationError(f"{file}: {sets[reader.name][0]} is a set {reader.name!r} already; rename one")
        sets[reader.name] = file, _read_lines(reader)
    if not sets:
        raise EvaluationError(f"{', '.join(map(str, paths)) or 'no files'}: no test sets; {EXPECTED}")
    return FoundSets(tuple(sorted((each for _, each in sets.values()), key=_paper_place)), tuple(left_out))


def read_set(path: str | Path, *, lowercase: bool = True) -> TestSet:
    """Read one test set; its name is the file's, without the ending, or ours for a file of the paper's sets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "pairs.tsv"
    ...     _ = file.write_text("Tiger\\tcat\\t7.35\\n")
    ...     read_set(file)
    SimilaritySet(name='pairs', pairs=(('tiger', 'cat'),), scores=(7.35,))
    """
    return _read_lines(_open_reader(Path(path), lowercase))


def group_questions(name: str, rows: Sequence[tuple[str, FourWords]]) -> AnalogySet:
    """Return a set from questions in the file's order, each with its section.

    >>> words = ("a", "b", "c", "d")
    >>> group_questions("q", [("x", words), ("y", words), ("x", words)]).order
    (0, 2, 1)
    """
    places: dict[str, list[int]] = {}
    for place, (section, _) in enumerate(rows):
        places.setdefault(section, []).append(place)
    sections = tuple(Questions(section, tuple(rows[n][1] for n in own)) for section, own in places.items())
    order = tuple(place for own in places.values() for place in own)
    return AnalogySet(name, sections, () if order == tuple(range(len(order))) else order)


def _paper_place(test_set: TestSet) -> tuple[int, str]:
    name = test_set.name
    return (PAPER_ORDER.index(name) if name in PAPER_ORDER else len(PAPER_ORDER), name)


def _list_files(path: Path) -> list[Path]:
    """Return the files of a folder that may be sets; of a file, itself."""
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
    # Not splitlines(), which would also break at U+0085 and its like.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    reader.lines = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    return reader


def _split_columns(line: str) -> list[str]:
    return [column.strip() for column in line.split("\t")] if "\t" in line else line.split()


def _kind_of(reader: _SetReader) -> Callable[[_SetReader], TestSet] | None:
    """Return the function that reads the file, by its first line."""
    if not reader.lines:
        return None
    reader.number, first = reader.lines[0]
    if _section_of(first) is not None:
        return _read_analogies
    width = len(_split_columns(first))
    if width == 2 and "\t" in first:  # Two words without a tab are more likely some text.
        return _read_categories
    if width == 3:
        return _read_similarity
    return _read_analogies if width in (4, 5) else None


def _read_lines(reader: _SetReader) -> TestSet:
    if not reader.lines:
        raise EvaluationError(f"{reader.path}: empty; {EXPECTED}")
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
    pairs, scores = [], []
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
    """Return the name in a `: name` line."""
    return line[1:].strip() if line == ":" or line.startswith((": ", ":\t")) else None


def _read_analogies(reader: _SetReader) -> AnalogySet:
    rows: list[tuple[str, FourWords]] = []
    section, width = "", 0
    for line in reader.each_line():
        header = _section_of(line)
        if header is not None:
            section = header
            continue
        width = width or (5 if len(_split_columns(line)) == 5 else 4)
        columns = _check_columns(reader, line, width, "a b c d section" if width == 5 else "a b c d")
        a, b, c, d = map(reader.word, columns[:4])
        rows.append((columns[4] if width == 5 else section, (a, b, c, d)))
    if not rows:
        reader.fail("sections without questions; expected a b c d")
    return group_questions(reader.name, _name_sections(reader.name, rows))


def _name_sections(name: str, rows: list[tuple[str, FourWords]]) -> list[tuple[str, FourWords]]:
    """Give questions without a section one: that of the published set, or the set's own name."""
    known = None if any(section for section, _ in rows) else published_sections(name, len(rows))
    labels = known or [section or name for section, _ in rows]
    return [(label, words) for label, (_, words) in zip(labels, rows, strict=True)]
