"""Ids of labels, in order of first occurrence, or positions in a matrix, which need no table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import CountsError, MemoryBudgetError
from swivel.runtime.resources import format_bytes

# Returns the location of the item at an index, for error messages: "visits.tsv, line 12".
Place = Callable[[int], str]

_BYTES_PER_LABEL = 170  # besides its text: the object, its entry in the table, and later in the vocabulary
_FREE_POSITIONS = 1 << 16  # rows or columns that a matrix may have without any counts
_POSITIONS_PER_COUNT = 64


class _BadLabel(Exception):
    def __init__(self, label: Any, reason: str) -> None:
        super().__init__(reason)
        self.label = label


class LabelTable(dict[Any, int]):
    """Ids of labels in order of first occurrence. Labels are UTF-8 bytes from text files, else strings.

    >>> table = LabelTable(memory_bytes=1 << 20)
    >>> table.look_up([b"tea", b"milk", b"tea"], str).tolist(), table.labels()
    ([0, 1, 0], ['tea', 'milk'])
    """

    def __init__(self, *, memory_bytes: int) -> None:
        super().__init__()
        self._memory_bytes = memory_bytes
        self.used_bytes = 0

    def __missing__(self, label: Any) -> int:
        text = _check_label(label)
        self.used_bytes += _BYTES_PER_LABEL + 2 * len(text)
        if self.used_bytes > self._memory_bytes:
            raise MemoryBudgetError(
                f"{len(self):,} labels take {format_bytes(self.used_bytes)}, more than half of the memory; "
                "pass a larger memory"
            )

        return self.setdefault(label, len(self))

    def look_up(self, labels: Sequence[Any], place: Place) -> NDArray[np.int64]:
        """Return the ids of labels and add new ones; `place` returns the location of the label at an index."""
        try:
            return np.fromiter(map(self.__getitem__, labels), np.int64, len(labels))
        except _BadLabel as error:
            index = next(index for index, label in enumerate(labels) if label is error.label)
            raise CountsError(f"{place(index)}: {error}") from None
        except TypeError:  # an unhashable label, such as a list
            index = next(index for index, label in enumerate(labels) if not isinstance(label, Hashable))
            raise CountsError(
                f"{place(index)}: labels must be strings or integers, got {_shown(labels[index])}"
            ) from None

    def labels(self) -> list[str]:
        """Return all labels in the order of their ids."""
        return [label.decode() if isinstance(label, bytes) else label for label in self]


def _check_label(label: Any) -> str:
    if isinstance(label, bytes):
        try:
            text = label.decode()
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{label[error.start]:02x} of {label[:40]!r}"
            raise _BadLabel(label, f"a label is not valid UTF-8 ({wrong}); convert the file first") from None
    elif isinstance(label, str):
        text = label
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise _BadLabel(label, f"the label {label!a} has a lone surrogate, which UTF-8 cannot encode")
    else:
        raise _BadLabel(label, f"labels must be strings or integers, got {_shown(label)}")

    if text == "":
        raise _BadLabel(label, "the label is empty")
    return text


def _shown(label: Any) -> str:
    text = repr(label)
    return f"{type(label).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def as_labels(values: NDArray[Any]) -> list[Any]:
    """Return the labels of an array: strings unchanged, integers as text. `look_up` rejects other types."""
    if values.dtype.kind in "iu":
        return list(map(str, values.tolist()))
    listed: list[Any] = values.tolist()
    if values.dtype.kind == "O" and set(map(type, listed)) != {str}:
        return [str(label) if isinstance(label, int) and not isinstance(label, bool) else label for label in listed]
    return listed


@dataclass(frozen=True, slots=True)
class MatrixPositions:
    """Rows or columns that are positions in a matrix, 0 to size - 1, with or without labels."""

    size: int
    given: tuple[str, ...] | None = None

    def labels(self) -> list[str]:
        """Return the label of each position; without labels, the position itself."""
        if self.given is None:
            return list(map(str, range(self.size)))
        return list(self.given)


Side = LabelTable | MatrixPositions


def make_places(size: int, labels: Sequence[str] | None, counts: int, name: str, side: str) -> MatrixPositions:
    """Return the rows or columns of a matrix with `counts` cells.

    A size that is implausible for the number of counts raises CountsError, before memory is allocated for it.

    >>> make_places(10**12, None, 3, "a.npz", "rows")
    Traceback (most recent call last):
    swivel.errors.CountsError: a.npz: 1,000,000,000,000 rows for only 3 counts; is it damaged?
    """
    if labels is not None:
        if len(labels) != size:
            raise CountsError(f"{name}: {size:,} {side}, but {len(labels):,} labels for them")
        return MatrixPositions(size, _check_labels(labels, f"{name}: {side}"))
    if size > _FREE_POSITIONS + _POSITIONS_PER_COUNT * counts:
        raise CountsError(f"{name}: {size:,} {side} for only {counts:,} counts; is it damaged?")
    return MatrixPositions(size)


def _check_labels(labels: Sequence[str], name: str) -> tuple[str, ...]:
    seen: set[str] = set()
    for number, label in enumerate(labels, 1):
        try:
            _check_label(label)
        except _BadLabel as error:
            raise CountsError(f"{name}: label {number:,}: {error}") from None
        if label in seen:
            raise CountsError(f"{name}: label {number:,}: {label!r} occurs twice")
        seen.add(label)

    return tuple(labels)
