"""State of one import that all readers share (settings, labels, progress), and the chunks that they yield."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Ints
from swivel.counts.importers.import_config import ImportConfig
from swivel.errors import ConfigError, CountsError, MemoryBudgetError
from swivel.runtime.progress import Task
from swivel.runtime.resources import format_bytes

# Returns the location of the item at an index, for error messages: "visits.tsv, line 12".
Place = Callable[[int], str]

_BYTES_PER_LABEL = 170  # besides its text: the object, its entry in the table, and later in the vocabulary
_FREE_POSITIONS = 1 << 16  # rows or columns that a matrix may have without any counts
_POSITIONS_PER_COUNT = 64


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
        text = _check_label(label)
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


def _check_label(label: Any) -> str:
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
    """Return the labels of an array: strings unchanged, integers as text. `look_up` rejects other types."""
    if values.dtype.kind in "iu":
        return list(map(str, values.tolist()))
    labels: list[Any] = values.tolist()
    if values.dtype.kind == "O" and set(map(type, labels)) != {str}:
        return [str(label) if isinstance(label, int) and not isinstance(label, bool) else label for label in labels]
    return labels


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

    def make_chunk(
        self, rows: Sequence[Any], columns: Sequence[Any], counts: NDArray[np.float64] | None, place: Place
    ) -> ImportChunk:
        """Return the cells of labeled rows and columns."""
        return ImportChunk(self.rows.look_up(rows, place), self.columns.look_up(columns, place), counts, place)

    def set_shape(self, rows: int, columns: int, name: str) -> None:
        """Declare that ids are positions in a matrix of this shape, not labels."""
        if self.is_shared and rows != columns:
            raise CountsError(
                f"{name}: {rows:,} rows and {columns:,} columns cannot be the same things; pass sides='apart'"
            )
        self.shape = (rows, columns)
        self._name = name

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
