"""Test sets and the files they are read from.

The kind of a file follows from its columns: `word1 word2 score`; `a b c d`, optionally with a section as fifth column;
or `word category`, separated by a tab. The other kinds are separated by tabs or spaces. Instead of the fifth column,
lines of the form `: name` may start sections of analogies.

BATS has 40 files, one per section, which are one set. A line has a word and its answers, separated by `/`, and is asked
about every other line: the first answer is part of the questions, and all of them are right.

The sets of the suites (the paper's eight, three on which nothing was tuned, and sets of texts) are downloaded into a
cache and verified by checksum. pooch, in the extra `evaluate`, downloads and stores the files. The environment variable
SWIVEL_DATA selects another folder than the user's cache.
"""

from __future__ import annotations

import logging
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import compress, permutations
from pathlib import Path, PurePosixPath
from typing import NoReturn

from swivel.errors import ConfigError, EvaluationError, StorageError, clear_errors, needs_extra
from swivel.runtime.numbers import parse_float
from swivel.runtime.progress import SILENT, Progress
from swivel.storage.files import write_file
from swivel.storage.lock import scratch_folder

HOST = "https://raw.githubusercontent.com"
FOLDER_VARIABLE = "SWIVEL_DATA"
HALVES = ("tune", "report")
BATS = "bats"
SUFFIXES = (".tsv", ".txt")
EXPECTED = (
    "expected word1 word2 score, or a b c d with or without a section, separated by tabs or spaces, or word and "
    "category, separated by a tab"
)
FourWords = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class SimilaritySet:
    """Pairs of words, or of texts, with human similarity scores."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    scores: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of pairs."""
        return len(self.pairs)


@dataclass(frozen=True, slots=True)
class AnalogySet:
    """Questions "a is to b as c is to d", and the name of the section of each of them."""

    name: str
    questions: tuple[FourWords, ...]
    sections: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...] = ()  # all right answers to each question; by default only d

    @property
    def size(self) -> int:
        """Number of questions."""
        return len(self.questions)

    @property
    def right_answers(self) -> tuple[tuple[str, ...], ...]:
        """The right answers to each question."""
        return self.answers or tuple(question[3:] for question in self.questions)


@dataclass(frozen=True, slots=True)
class CategorySet:
    """Words, or texts, and the category that people assigned to each of them."""

    name: str
    items: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of words or texts."""
        return len(self.items)


TestSet = SimilaritySet | AnalogySet | CategorySet


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file that is not empty, without its end, and its number for error messages."""

    path: Path
    number: int
    text: str

    def columns(self) -> list[str]:
        """Return the columns, separated by tabs or, if there is no tab, by spaces."""
        text = self.text.strip()
        return [column.strip() for column in text.split("\t")] if "\t" in text else text.split()

    def section(self) -> str | None:
        """Return the name in a `: name` line, or None for other lines."""
        text = self.text.strip()
        return text[1:].strip() if text == ":" or text.startswith((": ", ":\t")) else None

    def take(self, count: int, expected: str) -> list[str]:
        """Return `count` columns, or raise an error if the line has another number of them or an empty one."""
        columns = self.columns()
        if len(columns) != count or "" in columns:
            self.fail(f"expected {expected}, got {self.text!r}")
        return columns

    def parse_score(self, text: str) -> float:
        """Return a finite number, or raise an error."""
        try:
            score = parse_float(text.strip())
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            self.fail(f"expected a number as the score, got {text!r}")
        return score

    def fail(self, message: str) -> NoReturn:
        """Raise an error that names the file and the line."""
        raise EvaluationError(f"{self.path}, line {self.number}: {message}")


def list_set_files(source: str | Path | Iterable[str | Path], what: str, expected: str) -> list[tuple[Path, bool]]:
    """Return a file, the `.tsv` and `.txt` files of a folder, or those of a list, each once, and if a folder has it."""
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    if wrong := [each for each in sources if not isinstance(each, (str, Path))]:
        raise ConfigError(f"{what} must be files or folders, got {wrong[0]!r}: write items to a file; {expected}")

    files: dict[Path, tuple[Path, bool]] = {}  # by resolved path, so that a file listed twice is read once
    for path in map(Path, sources):
        if not path.is_dir():
            files[path.resolve()] = path, False
            continue
        with clear_errors(path, EvaluationError):
            inside = sorted(path.iterdir())
        for file in inside:
            if file.suffix.lower() in SUFFIXES and file.is_file():
                files[file.resolve()] = file, True

    if not files:
        raise EvaluationError(f"{', '.join(map(str, sources)) or 'no files'}: no {what} found; {expected}")
    return list(files.values())


def find_sets(
    source: str | Path | Iterable[str | Path], *, lowercase: bool = True
) -> tuple[tuple[TestSet, ...], list[Path]]:
    """Return the sets in some files and folders, in the paper's order, and the files that are not test sets.

    A file of a folder is left out if its first line fits no kind of test set. It is an error if such a file was passed
    explicitly or has the name of a set of the paper, and if two sets have the same name.
    """
    parts: dict[str, tuple[Path, TestSet]] = {}  # sets, and sections of BATS
    left_out: list[Path] = []

    for file, is_from_folder in list_set_files(source, "test sets", EXPECTED):
        name = name_set(file)
        lines = read_lines(file)
        if is_from_folder and _find_kind(lines) is None and name not in PAPER_ORDER:
            left_out.append(file)
            continue

        part = file.stem if name == BATS else name
        if part in parts:
            raise EvaluationError(
                f"{file}: the set {part!r} was already read from {parts[part][0]}; rename one of them"
            )
        parts[part] = file, _parse(file, lines, lowercase)

    if not parts:
        folders = dict.fromkeys(str(file.parent) for file in left_out)
        raise EvaluationError(f"{', '.join(folders)}: no test sets found; {EXPECTED}")

    sets: dict[str, TestSet] = {}
    for _, each in parts.values():
        sets[each.name] = _join(sets[each.name], each) if each.name in sets else each

    # The order of the paper's table, so that columns of results can be compared with it.
    names = [*PAPER_ORDER, *sorted(sets.keys() - set(PAPER_ORDER))]
    return tuple(sets[name] for name in names if name in sets), left_out


def read_set(path: str | Path, *, lowercase: bool = True) -> TestSet:
    """Read one test set; its name is the file name without suffix, or Swivel's name for a file of the paper's sets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "pairs.tsv"
    ...     _ = file.write_text("Tiger\\tcat\\t7.35\\n")
    ...     read_set(file)
    SimilaritySet(name='pairs', pairs=(('tiger', 'cat'),), scores=(7.35,))
    """
    path = Path(path)
    return _parse(path, read_lines(path), lowercase)


def read_bundled() -> AnalogySet:
    """Return the bundled analogies: in each section, every pair of words is asked about every other pair.

    >>> read_bundled().size > 1_000
    True
    """
    pairs: dict[str, list[_Pair]] = {}
    for line in (files("swivel") / "data" / "pairs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(": "):
            section = pairs.setdefault(line[2:], [])
        else:
            a, b = line.split("\t")
            section.append((a, (b,)))
    return _ask_about_each_other("bundled", pairs)


def _ask_about_each_other(name: str, pairs: Mapping[str, Sequence[_Pair]]) -> AnalogySet:
    """Return the questions that ask, in each section, every word with its answers about every other."""
    questions: list[FourWords] = []
    sections: list[str] = []
    answers: list[tuple[str, ...]] = []

    for section, members in pairs.items():
        for (a, b), (c, d) in permutations(members, 2):
            questions.append((a, b[0], c, d[0]))
            sections.append(section)
            answers.append(d)
    return AnalogySet(name, tuple(questions), tuple(sections), tuple(answers))


def _join(first: TestSet, second: TestSet) -> TestSet:
    """Return two parts of a set as one; only BATS has parts."""
    assert isinstance(first, AnalogySet) and isinstance(second, AnalogySet)
    return AnalogySet(
        first.name,
        first.questions + second.questions,
        first.sections + second.sections,
        first.answers + second.answers,
    )


def split_set(test_set: TestSet, half: str) -> TestSet:
    """Return the half of a set with the name `tune` or `report`.

    Similarity and categories are split by line: odd lines are for tuning, even lines for the report. Analogies are
    split by pairs of words: the checksum of a pair, in either order, assigns it to a half. A question belongs to a half
    if both its pairs (a, b) and (c, d) do, and to none otherwise, so that no pair of a reported question occurs in the
    tuning half.

    >>> split_set(SimilaritySet("p", (("a", "b"), ("c", "d"), ("e", "f")), (1, 2, 3)), "tune").pairs
    (('a', 'b'), ('e', 'f'))
    """
    if half not in HALVES:
        raise ConfigError(f"half must be one of {', '.join(HALVES)}, got {half!r}")

    # Every other line: sets are often sorted by score or by kind.
    lines = slice(HALVES.index(half), None, len(HALVES))
    if isinstance(test_set, SimilaritySet):
        return SimilaritySet(test_set.name, test_set.pairs[lines], test_set.scores[lines])
    if isinstance(test_set, CategorySet):
        return CategorySet(test_set.name, test_set.items[lines], test_set.categories[lines])

    is_in_half = [half_of_pair(a, b) == half_of_pair(c, d) == half for a, b, c, d in test_set.questions]
    return AnalogySet(
        test_set.name,
        tuple(compress(test_set.questions, is_in_half)),
        tuple(compress(test_set.sections, is_in_half)),
        tuple(compress(test_set.answers, is_in_half)),
    )


def half_of_pair(first: str, second: str) -> str:
    """Return the half of a pair of words."""
    # Sorted, and a checksum instead of `hash`: the half depends neither on the order nor on the machine.
    return HALVES[zlib.crc32(" ".join(sorted((first, second))).encode()) % 2]


def read_lines(path: Path, *, may_be_latin: bool = False) -> list[Line]:
    """Return the lines of a file that are not empty; the file is UTF-8 or, as some published sets, Latin-1."""
    with clear_errors(path, EvaluationError):
        data = path.read_bytes()

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not may_be_latin:
            number = data.count(b"\n", 0, error.start) + 1
            byte = data[error.start]
            raise EvaluationError(f"{path}, line {number}: not valid UTF-8 (byte 0x{byte:02x})") from error
        text = data.decode("latin-1")

    # Not splitlines(), which also splits at U+0085 and other separators.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [Line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


# Spells words as the vocabulary does.
_Spell = Callable[[str], str]
_Pair = tuple[str, tuple[str, ...]]  # a word and its answers


def _parse(path: Path, lines: Sequence[Line], lowercase: bool) -> TestSet:
    if not lines:
        raise EvaluationError(f"{path}: the file is empty; {EXPECTED}")
    spell = str.lower if lowercase else str
    if name_set(path) == BATS:
        return _ask_about_each_other(BATS, {path.stem: [_parse_pair(line, spell) for line in lines]})
    kind = _find_kind(lines)
    if kind is None:
        lines[0].fail(f"{EXPECTED}, got {lines[0].text!r}")
    if kind == "analogies":
        return _parse_analogies(name_set(path), lines, spell)
    if kind == "categories":
        rows = [line.take(2, "word and category, separated by a tab") for line in lines]
        return CategorySet(name_set(path), tuple(spell(row[0]) for row in rows), tuple(row[1] for row in rows))

    rows = [line.take(3, "word1 word2 score") for line in lines]
    scores = tuple(line.parse_score(row[2]) for line, row in zip(lines, rows, strict=True))
    return SimilaritySet(name_set(path), tuple((spell(row[0]), spell(row[1])) for row in rows), scores)


def _find_kind(lines: Sequence[Line]) -> str | None:
    """Return the kind of set in a file, by its first line, or None."""
    if not lines:
        return None
    if lines[0].section() is not None:
        return "analogies"
    width = len(lines[0].columns())
    if width == 2 and "\t" not in lines[0].text:  # Two words without a tab are more likely to be plain text.
        return None
    return {2: "categories", 3: "similarity", 4: "analogies", 5: "analogies"}.get(width)


def _parse_pair(line: Line, spell: _Spell) -> _Pair:
    """Return a word and its answers, of a line of BATS."""
    expected = "a word and its answers, with a tab between them"
    word, listed = line.take(2, expected)
    answers = tuple(spell(answer) for answer in listed.split("/") if answer)  # Some lines end in a slash.
    if not answers:
        line.fail(f"expected {expected}, got {line.text!r}")
    return spell(word), answers


def _parse_analogies(name: str, lines: Sequence[Line], spell: _Spell) -> AnalogySet:
    questions: list[FourWords] = []
    sections: list[str] = []
    section = ""
    width = 0  # columns per line, set by the first question

    for line in lines:
        header = line.section()
        if header is not None:
            section = header
            continue

        if width == 0:
            width = 5 if len(line.columns()) == 5 else 4
        columns = line.take(width, "a b c d section" if width == 5 else "a b c d")

        a, b, c, d = map(spell, columns[:4])
        questions.append((a, b, c, d))
        sections.append(columns[4] if width == 5 else section)

    if not questions:
        lines[-1].fail("the file has sections but no questions; expected a b c d")
    if not any(sections):
        sections = published_sections(name, len(questions)) or sections
    return AnalogySet(name, tuple(questions), tuple(section or name for section in sections))


@dataclass(frozen=True, slots=True)
class SetSource:
    """Where a test set is published, and the checksum of its file."""

    name: str
    path: str
    sha256: str
    repository: str
    commit: str
    suite: str = ""
    stored_as: str = ""  # name of the file in the cache; by default its published name

    @property
    def file(self) -> str:
        """Name of the file in the cache."""
        return self.stored_as or PurePosixPath(self.path).name

    def url(self, host: str = HOST) -> str:
        """Return the URL of the file."""
        return f"{host}/{self.repository}/{self.commit}/{self.path}"


def _read_data(name: str) -> list[list[str]]:
    """Return the fields of the lines of a file of the package that are no comments."""
    text = (files("swivel") / "data" / name).read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def _read_sources() -> Iterator[SetSource]:
    place = ("", "", "")
    for first, second, third, *stored_as in _read_data("test_sets.txt"):
        if "/" in first:
            place = (first, second, third)
        else:
            yield SetSource(first, second, third, *place, stored_as=" ".join(stored_as))


_ALL_SOURCES = tuple(_read_sources())
# The sets of Levy, Goldberg and Dagan (2015) in the order of the paper's table; pairs with scores of SemEval 2012 to
# 2016, and texts with labels.
SOURCES = tuple(source for source in _ALL_SOURCES if source.suite == "paper")
TEXT_SOURCES = tuple(source for source in _ALL_SOURCES if source.suite == "texts")
# SimVerb-3500, MTurk-771 and BATS: no default of Swivel was chosen with them.
UNTUNED_SOURCES = tuple(source for source in _ALL_SOURCES if source.suite == "untuned")
SUITES = {  # by name: title for messages, and sets
    "paper": ("the paper's test sets", SOURCES),
    "untuned": ("SimVerb-3500, MTurk-771 and BATS", UNTUNED_SOURCES),
}
PAPER_ORDER = tuple(source.name for source in SOURCES)
_OUR_NAMES = {Path(source.file).stem: source.name for source in SOURCES + UNTUNED_SOURCES}


def name_set(file: Path) -> str:
    """Return the name of the set in a file: Swivel's name for a published file, otherwise the file name without suffix.

    >>> name_set(Path("luong_rare.txt")), name_set(Path("own.tsv"))
    ('rare_words', 'own')
    """
    return _OUR_NAMES.get(file.stem, file.stem)


def published_sections(name: str, questions: int) -> list[str] | None:
    """Return the section of each question of a published set; None for other sets or another number of questions."""
    layout = [(int(lines), names) for set_name, lines, *names in _read_data("sections.txt") if set_name == name]
    labels = [names[line % len(names)] for lines, names in layout for line in range(lines)]
    return labels if layout and len(labels) == questions else None


def fetch_sets(
    sources: Sequence[SetSource] = SOURCES,
    *,
    host: str = HOST,
    progress: Progress = SILENT,
    title: str = SUITES["paper"][0],
) -> tuple[Path, ...]:
    """Return the files of the paper's sets, or of other sets with a title for messages, downloading the missing ones.

    Raises
    ------
    EvaluationError
        If a file is missing and cannot be downloaded, or has a wrong checksum.
    """
    with needs_extra(title, "pooch", "evaluate"):
        import pooch

    chosen = os.environ.get(FOLDER_VARIABLE)
    folder = Path(chosen or Path(pooch.os_cache("swivel"), "evaluation")).expanduser()
    if not folder.is_absolute() and not chosen:
        raise EvaluationError(f"no home folder for {title}: pass a folder of sets, or set {FOLDER_VARIABLE}")

    folder = folder.absolute()
    stored = {source: folder / source.file for source in sources}
    missing = []
    for source, file in stored.items():
        if not file.is_file() or pooch.file_hash(str(file)) != source.sha256:
            missing.append(source)
    if missing:
        names = dict.fromkeys(source.name for source in missing)
        progress.message(f"downloading {', '.join(names)} into {folder}")

    # Its messages and warnings would stand between ours.
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        for number, source in enumerate(missing):
            url = source.url(host)
            try:
                # pooch writes to a temporary file that stays if the process is killed and only its owner may read.
                with scratch_folder(folder) as scratch:
                    file = Path(pooch.retrieve(url, f"sha256:{source.sha256}", source.file, scratch))
                    write_file(folder / source.file, file.read_bytes())
            except ValueError as error:  # pooch raises it for a wrong checksum
                raise EvaluationError(
                    f"{source.file}, downloaded from {url}, has a wrong checksum and was not kept: "
                    "try again, or pass a folder of test sets"
                ) from error
            except (OSError, StorageError) as error:
                raise _explain_failure(error, missing[number:], folder, title) from error
    finally:
        logger.setLevel(level)
    return tuple(stored.values())


def _explain_failure(error: Exception, missing: Sequence[SetSource], folder: Path, title: str) -> EvaluationError:
    """Return an error that says why the first of the missing files cannot be downloaded, and how to get them."""
    first = missing[0]
    published = [
        f"{source.path} (as {source.stored_as})" if source.stored_as else source.file
        for source in missing
        if source.repository == first.repository
    ]
    return EvaluationError(
        f"{title} are not in the cache and cannot be downloaded ({_reason(error)}): pass a folder of "
        f"test sets, or copy {', '.join(published)} from "
        f"github.com/{first.repository}, commit {first.commit[:8]}, to {folder}"
    )


def _reason(error: Exception) -> str:
    """Return a short reason for a failed download; the message of the library is a whole paragraph."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP status {response.status_code}"
    if isinstance(error, StorageError):
        return str(error)
    return getattr(error, "strerror", None) or type(error).__name__
