"""State of one import that all readers share (settings, labels, progress), the chunks that they yield, and their spill.

The cells are in scratch files, or in memory, until all labels and their sums are known. Chunks are validated and
appended; afterwards the cells can be read any number of times, as integers in one unit, so that they are summed exactly
in any order. If the counts share no small unit, they are rounded to multiples of a power of 2 that suits the smallest
and largest. Files are read in pieces instead of memory-mapped, so that they do not add to the memory of the process.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import to_label
from swivel.counts.block_layout import Ints, UnitCells
from swivel.counts.importers.import_config import ImportConfig
from swivel.errors import ConfigError, CountsError, MemoryBudgetError
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import Task
from swivel.runtime.resources import format_bytes
from swivel.storage.arrays import ArrayAppender

# Returns the location of the item at an index, for error messages: "visits.tsv, line 12".
Place = Callable[[int], str]

_BYTES_PER_LABEL = 170  # besides its text: the object, its entry in the table, and later in the vocabulary
_FREE_POSITIONS = 1 << 16  # rows or columns that a matrix may have without any counts
_POSITIONS_PER_COUNT = 64
PIECE = 1 << 20  # cells processed at a time
_MAX_IDS = 1 << 32  # in a file of the spill
# Whole numbers, halves and quarters, decimals, and windows of 1/t up to 10 and up to 16 (GloVe's is 15).
_CANDIDATES = (1, 4, 10, 100, 1_000, 2_520, 10_000, 720_720, 1_000_000)
_TOLERANCE = 1e-9  # relative, for rounding errors of float64
_GOOD_BITS = 24  # precision of the smallest count if possible: that of float32
_FAIR_BITS = 10  # precision of the smallest count at least: about 0.1 %
_STORED_BITS = 31  # cells of 2^32 units or more are stored separately
MAX_TOTAL_BITS = 61
_MAX_BITS = 60  # largest unit: 2^60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
MARK = re.compile(r"\*?|<(=?) *(\d+(?:\.\d+)?)")  # of a suppressed cell in a text


def number_places(name: str, kind: str, begin: int) -> Place:
    """Return the places of a batch whose first item is the number `begin`, from 0, of its source."""
    return lambda index: f"{name}, {kind} {begin + index + 1:,}"


def refuse_ids(wrong: NDArray[np.bool_], ids: NDArray[Any], place: Place, kind: str, problem: str) -> None:
    """Raise CountsError for the first id that is wrong."""
    if wrong.any():
        index = int(wrong.argmax())
        raise CountsError(f"{place(index)}: {kind} {ids[index]:,.15g} {problem}")


@dataclass(frozen=True, slots=True)
class ImportChunk:
    """A batch of cells from a reader."""

    rows: Ints  # ids from the label table, or positions in a matrix
    columns: Ints
    counts: NDArray[np.float64] | None  # None if every count is 1
    place: Place


class LabelTable(dict[Any, int]):
    """Ids of labels in order of first occurrence. Labels are UTF-8 bytes from text files, else strings.

    >>> table = LabelTable(memory_bytes=1 << 20)
    >>> table.look_up([b"tea", b"milk", b"tea"], str).tolist(), table.labels()
    ([0, 1, 0], ['tea', 'milk'])
    """

    def __init__(self, *, memory_bytes: int, used: Counter[str] | None = None) -> None:
        super().__init__()
        self._memory_bytes = memory_bytes
        # Numbers of "labels" and "bytes" of all tables that share the memory.
        self.used = Counter[str]() if used is None else used

    def __missing__(self, label: Any) -> int:
        # Called for new labels only: labels that are known cost one lookup, in C.
        text = check_label(label)
        self.used["labels"] += 1
        self.used["bytes"] += _BYTES_PER_LABEL + 2 * len(text)
        if self.used["bytes"] > self._memory_bytes // 2:
            raise MemoryBudgetError(
                f"{self.used['labels']:,} labels take {format_bytes(self.used['bytes'])}, more than half of the memory "
                f"of {format_bytes(self._memory_bytes)}; pass a larger memory",
                argument="memory",
            )

        return self.setdefault(label, len(self))

    def look_up(self, labels: Sequence[Any], place: Place) -> Ints:
        """Return the ids of labels and add new ones; `place` returns the location of the label at an index."""
        items = iter(labels)
        try:
            return np.fromiter(map(self.__getitem__, items), np.int64, len(labels))
        except (CountsError, TypeError) as error:
            index = len(labels) - length_hint(items) - 1  # the last one that was taken
            reason = error if isinstance(error, CountsError) else _wrong_type(labels[index])  # not hashable: a list
            raise CountsError(f"{place(index)}: {reason}") from None

    def labels(self) -> list[str]:
        """Return all labels in the order of their ids."""
        return [label.decode() if isinstance(label, bytes) else label for label in self]


def check_label(label: Any) -> str:
    """Return a label as text; raise CountsError if it is none."""
    text = label
    if isinstance(label, bytes):
        try:
            text = label.decode()
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{label[error.start]:02x} of {label[:40]!r}"
            raise CountsError(f"a label is not valid UTF-8 ({wrong}); convert the file first") from None
    elif not isinstance(label, str):
        raise CountsError(_wrong_type(label))
    elif not label.isascii() and any("\ud800" <= char <= "\udfff" for char in label):
        raise CountsError(f"the label {label!a} has a lone surrogate, which UTF-8 cannot encode")

    if text == "":
        raise CountsError("the label is empty")
    return str(text)


def _wrong_type(label: Any) -> str:
    return f"labels must be strings or integers, got {type(label).__name__} {show(label)}"


def show(value: Any) -> str:
    """Return a short representation of a value on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def as_labels(values: NDArray[Any]) -> list[Any]:
    """Return the labels of an array: strings unchanged, other ids as text. `look_up` rejects what is no id."""
    if values.dtype.kind in "iu":
        return list(map(str, values.tolist()))
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]")  # `tolist` returns nanoseconds as numbers
    labels: list[Any] = values.tolist()
    return labels if set(map(type, labels)) == {str} else list(map(to_label, labels))


def label_positions(size: int, labels: Sequence[str] | None, counts: int, name: str, side: str) -> list[str]:
    """Return the labels of the rows or columns of a matrix with `counts` cells; without labels, their positions."""
    if labels is None:
        # Before memory is allocated for a size that only a damaged file has.
        if size > _FREE_POSITIONS + _POSITIONS_PER_COUNT * counts:
            raise CountsError(f"{name}: {size:,} {side} for only {counts:,} counts; is it damaged?")
        return list(map(str, range(size)))

    if len(labels) != size:
        raise CountsError(f"{name}: {size:,} {side}, but {len(labels):,} labels for them")

    table = LabelTable(memory_bytes=1 << 62)  # They are in memory already.
    ids = table.look_up(labels, lambda index: f"{name}: {side}: label {index + 1:,}")
    if len(table) < size:
        place = int(np.argmax(ids != np.arange(size)))
        raise CountsError(f"{name}: {side}: label {place + 1:,}: {labels[place]!r} occurs twice")
    return table.labels()


@dataclass(slots=True)
class ImportContext:
    """State of one import."""

    config: ImportConfig
    sides: str  # see `ImportConfig.sides`; some readers set it from the file
    memory_bytes: int
    task: Task  # readers report the bytes or rows of the source that they have read
    # Labels for the rows and columns of a matrix, from the user or from the format.
    row_labels: Sequence[str] | None = None
    column_labels: Sequence[str] | None = None
    # Tables for readers of labeled sources; the same object if rows and columns are the same things.
    rows: LabelTable = field(init=False)
    columns: LabelTable = field(init=False)
    shape: tuple[int, int] | None = None  # numbers of rows and columns if ids are positions in a matrix
    labels: tuple[list[str], list[str]] = ([], [])  # of all rows and of all columns, after `settle`
    marked: int = 0  # cells that the source marks as suppressed
    _name: str = ""

    def __post_init__(self) -> None:
        # All labels together may take half of the memory: few columns leave more of it to the rows.
        self.rows = self.columns = LabelTable(memory_bytes=self.memory_bytes)
        if not self.is_shared:
            self.columns = LabelTable(memory_bytes=self.memory_bytes, used=self.rows.used)

    @property
    def is_shared(self) -> bool:
        """Whether rows and columns are the same things."""
        return self.sides != "apart"

    def read_times(self, values: Sequence[Any], place: Place) -> NDArray[np.float64]:
        """Return dates and times, as texts or objects of Python, in microseconds; without a zone, as those of UTC."""
        known: dict[Any, float] = {}
        for index, value in enumerate(values):
            if value in known:
                continue
            try:
                text = value.decode() if isinstance(value, bytes) else str(value)
                moment = datetime.fromisoformat(text.strip())
            except ValueError:
                raise CountsError(
                    f"{place(index)}: the time {show(value)} is no date such as 2026-01-31 or 2026-01-31T12:00:00; if "
                    "times are numbers, pass within without a unit",
                    argument="within",
                ) from None
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            known[value] = (moment - _EPOCH) / _MICROSECOND
        return np.fromiter(map(known.__getitem__, values), np.float64, len(values))

    def make_chunk(
        self, rows: Sequence[Any], columns: Sequence[Any], counts: NDArray[np.float64] | None, place: Place
    ) -> ImportChunk:
        """Return the cells of labeled rows and columns."""
        return ImportChunk(self.rows.look_up(rows, place), self.columns.look_up(columns, place), counts, place)

    def find_columns(self, names: Sequence[Any], where: str) -> Ints:
        """Return the ids of the columns of a crosstab, which must have different names."""
        ids = self.columns.look_up(names, lambda index: f"{where}, column {index + 2:,}")
        _, firsts = np.unique(ids, return_index=True)
        if len(firsts) < len(ids):
            repeated = next(index for index in range(len(ids)) if index not in set(firsts.tolist()))
            raise CountsError(f"{where}, column {repeated + 2:,}: {show(names[repeated])} occurs twice")
        return ids

    def set_shape(self, rows: int, columns: int, name: str) -> None:
        """Declare that ids are positions in a matrix of this shape, not labels."""
        if self.is_shared and rows != columns:
            raise CountsError(
                f"{name}: {rows:,} rows and {columns:,} columns cannot be the same things; pass sides='apart'"
            )
        self.shape = (rows, columns)
        self._name = name

    def is_mark(self, text: str) -> bool:
        """Return whether a text in place of a count marks a suppressed cell, such as <11 or *."""
        found = MARK.fullmatch(text.strip())
        limit = self.config.suppressed_below
        if limit is None or found is None:
            return False
        is_closed, bound = found.groups()
        if bound is not None and (float(bound) > limit or (is_closed and float(bound) == limit)):
            raise CountsError(f"the count {text.strip()!r} may be above the limit suppressed_below, which is {limit:g}")
        return True

    @property
    def number_name(self) -> str:
        """What the third field is called in messages."""
        return "count" if self.config.by is None else "time"

    @property
    def marked_count(self) -> float:
        """Count in place of a mark, the geometric mean of 1 and the largest count below the limit, such as 3 of <11."""
        limit = self.config.suppressed_below or 1.0
        return float(round(math.sqrt(limit - 1))) if limit >= 2 else limit / 2

    def fill_marked(self, chunk: Any) -> Any:
        """Return a chunk with counts for the marks NaN and -1 of suppressed cells, which are counted."""
        if self.config.suppressed_below is None or chunk.counts is None:
            return chunk
        is_marked = np.isnan(chunk.counts) | (chunk.counts == -1)
        self.marked += int(is_marked.sum())
        return replace(chunk, counts=np.where(is_marked, self.marked_count, chunk.counts))

    def settle(self, counts: int) -> None:
        """Set the labels of all rows and columns after reading, when the number of counts is known."""
        if self.shape is not None:
            rows = label_positions(self.shape[0], self.row_labels, counts, self._name, "rows")
            columns = rows
            if not self.is_shared:
                columns = label_positions(self.shape[1], self.column_labels, counts, self._name, "columns")
        elif self.row_labels is not None or self.column_labels is not None:
            raise ConfigError(
                "row_labels and column_labels are for matrices; this source has its own labels",
                argument=("row_labels", "column_labels"),
            )
        else:
            rows = self.rows.labels()
            columns = rows if self.is_shared else self.columns.labels()

        self.labels = (rows, columns)


class UnitFinder:
    """Finds the smallest unit in which all counts are integers.

    >>> finder = UnitFinder()
    >>> finder.look_at(np.array([0.5, 3.25]))
    >>> finder.choose_unit()
    4
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self._left = list(_CANDIDATES)
        self._smallest = math.inf
        self._total = 0.0

    def look_at(self, counts: NDArray[np.float64]) -> None:
        """Take counts into account; all must be positive and finite."""
        if not counts.size:
            return

        self._smallest = min(self._smallest, float(counts.min()))
        self.largest = max(self.largest, float(counts.max()))
        with np.errstate(over="ignore"):  # `choose_unit` raises an error if the total overflows
            self._total += float(counts.sum())

        # Candidates only drop out: a unit that does not fit a chunk cannot fit the source.
        while self._left and not _fits(counts, self._left[0]):
            del self._left[0]

    def choose_unit(self) -> int:
        """Return the unit; raise CountsError if no unit can represent both the smallest count and the total."""
        if self._total >= 2.0**MAX_TOTAL_BITS:
            raise CountsError(
                f"counts up to {self.largest:g} add up to {self._total:g}, more than the largest exact sum "
                f"({2**MAX_TOTAL_BITS:.2g}); scale them"
            )

        for unit in self._left:
            if self._total * unit < 2.0**MAX_TOTAL_BITS:
                return unit

        return self._choose_binary()

    def _choose_binary(self) -> int:
        """Return the power of 2 that keeps the smallest count precise and the largest count in 32 bits."""
        # With unit 2^bits, a count x has about bits + log2(x) bits.
        smallest = math.floor(math.log2(self._smallest))
        largest = math.ceil(math.log2(self.largest))
        bits = min(_GOOD_BITS - smallest, _STORED_BITS - largest)
        bits = max(bits, _FAIR_BITS - smallest, 0)
        bits = min(bits, MAX_TOTAL_BITS - math.ceil(math.log2(self._total)), _MAX_BITS)

        # The smallest count needs three bits, so that it is at most one part in 8 off.
        needed_bits = max(3 - smallest, 0)
        if bits < needed_bits:
            total = math.ceil(math.log2(self._total))
            span = f"counts from {self._smallest:g} to {self.largest:g}"
            if total - smallest + 3 <= MAX_TOTAL_BITS:  # They would fit if they were larger.
                raise CountsError(
                    f"{span} are too small for an exact sum (the smallest unit is 2^-{_MAX_BITS}); scale them"
                )
            raise CountsError(f"{span} are too far apart for an exact sum; remove the smallest, or scale them")

        return 1 << bits


def _fits(counts: NDArray[np.float64], unit: int) -> bool:
    scaled = counts * unit
    whole = np.rint(scaled)
    return bool((np.abs(scaled - whole) <= _TOLERANCE * whole).all())


def open_spill(folder: Path | None, **kinds: type[np.generic]) -> list[ArrayAppender]:
    """Return growing arrays, in files of a scratch folder or in memory."""
    return [ArrayAppender(None if folder is None else folder / f"{name}.npy", kind) for name, kind in kinds.items()]


class CellSpill:
    """Files of rows, columns and counts."""

    def __init__(self, folder: Path | None) -> None:
        # Counts stay float64 until the last one is known, because only then their unit is; ids have half of the bytes.
        self.files = open_spill(folder, rows=np.uint32, columns=np.uint32, counts=np.float64)
        self._finder = UnitFinder()
        self.unit = 1

    @property
    def length(self) -> int:
        """Number of cells written so far."""
        return self.files[0].length

    def add(self, chunk: ImportChunk) -> None:
        """Write a chunk without counts of 0; raise CountsError for negative counts and counts that are not finite."""
        for ids in (chunk.rows, chunk.columns):
            if ids.size and int(ids.max()) >= _MAX_IDS:
                raise CountsError(f"{chunk.place(int(ids.argmax()))}: more than {_MAX_IDS:,} rows or columns")

        counts = np.ones(chunk.rows.size) if chunk.counts is None else chunk.counts
        refuse_bad_counts(counts, chunk.place)
        is_positive: Any = slice(None) if counts.all() else counts > 0
        counts = counts[is_positive]
        self._finder.look_at(counts)
        for file, values in zip(self.files, (chunk.rows[is_positive], chunk.columns[is_positive], counts), strict=True):
            file.append(values)

    def finish(self, name: str) -> None:
        """Close the files and choose the unit; raise CountsError if the source `name` has no counts."""
        for file in self.files:
            file.close()
        if not self.length:
            raise CountsError(f"{name}: there are no counts: the source is empty, or every cell is 0")
        try:
            self.unit = self._finder.choose_unit()
        except CountsError as error:
            raise CountsError(f"{name}: {error}") from None

    def pieces(self, threads: int) -> Iterator[UnitCells]:
        """Yield rows, columns and units of all cells in pieces, which several threads read."""
        return map_in_order(self._read, range(0, self.length, PIECE), threads=threads)

    def _read(self, start: int) -> UnitCells:
        rows, columns, counts = (file.read(start, min(PIECE, self.length - start)) for file in self.files)
        # `add` checked that counts are finite and positive; `choose_unit` that their sum fits in int64.
        counts *= self.unit
        units = np.maximum(np.rint(counts, out=counts), 1, out=counts).astype(np.int64)
        return rows.astype(np.int64), columns.astype(np.int64), units


def refuse_bad_counts(counts: NDArray[np.float64], place: Place) -> None:
    """Raise CountsError for the first count that is negative or not finite."""
    is_wrong = ~((counts >= 0) & (counts < np.inf))
    if is_wrong.any():
        index = int(is_wrong.argmax())
        reason = "negative" if counts[index] < 0 else "not finite"
        hint = "; pass suppressed_below if it marks a suppressed count" if counts[index] == -1 else ""
        raise CountsError(
            f"{place(index)}: the count {counts[index]:g} is {reason}; counts must be finite and not negative{hint}"
        )
