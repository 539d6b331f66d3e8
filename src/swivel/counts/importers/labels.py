"""Labels to numbers, in the order in which they are first seen; or places, which are numbers already.

Receives labels of a chunk, hands on ids; at the end, all labels. It knows no files: who calls says where a label stood.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import CountsError, MemoryBudgetError
from swivel.runtime.resources import format_bytes

Place = Callable[[int], str]

_BYTES_A_LABEL = 170  # beside its text: the object, its entry in the table, and later its place in the vocabulary
_FREE_PLACES = 1 << 16  # so many rows or columns a matrix may claim that has hardly any counts
_PLACES_A_COUNT = 64


class _BadLabel(Exception):
    def __init__(self, label: Any, reason: str) -> None:
        super().__init__(reason)
        self.label = label


class LabelTable(dict[Any, int]):
    """Ids of labels, first seen first: of bytes (UTF-8) where they come from text, of strings elsewhere.

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
        self.used_bytes += _BYTES_A_LABEL + 2 * len(text)
        if self.used_bytes > self._memory_bytes:
            raise MemoryBudgetError(
                f"{len(self):,} labels take {format_bytes(self.used_bytes)}, more than half of the memory; "
                "pass a larger --memory"
            )
        return self.setdefault(label, len(self))

    def look_up(self, labels: Sequence[Any], place: Place) -> NDArray[np.int64]:
        """Return the ids of labels, new ones included; `place` says where the label of an index stands."""
        try:
            return np.fromiter(map(self.__getitem__, labels), np.int64, len(labels))
        except _BadLabel as error:
            index = next(index for index, label in enumerate(labels) if label is error.label)
            raise CountsError(f"{place(index)}: {error}") from None
        except TypeError:  # a list or a dictionary, say, which no table holds
            index = next(index for index, label in enumerate(labels) if not isinstance(label, Hashable))
            raise CountsError(f"{place(index)}: labels are strings or integers, got {_shown(labels[index])}") from None

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
            raise _BadLabel(label, f"the label {label!a} has a lone surrogate, which UTF-8 cannot hold")
    else:
        raise _BadLabel(label, f"labels are strings or integers, got {_shown(label)}")
    if text == "":
        raise _BadLabel(label, "an empty label")
    return text


def _shown(label: Any) -> str:
    text = repr(label)
    return f"{type(label).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def as_labels(values: NDArray[Any]) -> list[Any]:
    """Return the labels of an array: strings as they are, integers as text; what is neither is told when looked up."""
    if values.dtype.kind in "iu":
        return list(map(str, values.tolist()))
    listed: list[Any] = values.tolist()
    if values.dtype.kind == "O" and set(map(type, listed)) != {str}:
        return [str(label) if isinstance(label, int) and not isinstance(label, bool) else label for label in listed]
    return listed


@dataclass(frozen=True, slots=True)
class MatrixPositions:
    """Rows or columns that are places in a matrix: 0 to size - 1, with labels or without."""

    size: int
    given: tuple[str, ...] | None = None

    def labels(self) -> list[str]:
        """Return the label of each place: the number itself where there is none."""
        return list(map(str, range(self.size))) if self.given is None else list(self.given)


Side = LabelTable | MatrixPositions


def make_places(size: int, labels: Sequence[str] | None, counts: int, name: str) -> MatrixPositions:
    """Return the places of one side of a matrix of `counts` cells; one that claims far more than it holds is refused.

    >>> make_places(10**12, None, 3, "a.npz: its rows")
    Traceback (most recent call last):
    swivel.errors.CountsError: a.npz: its rows are 1,000,000,000,000, its counts only 3: damaged?
    """
    if labels is not None:
        if len(labels) != size:
            raise CountsError(f"{name} are {size:,}, the labels given for them {len(labels):,}")
        return MatrixPositions(size, _check_labels(labels, name))
    if size > _FREE_PLACES + _PLACES_A_COUNT * counts:
        raise CountsError(f"{name} are {size:,}, its counts only {counts:,}: damaged?")
    return MatrixPositions(size)


def _check_labels(labels: Sequence[str], name: str) -> tuple[str, ...]:
    seen: set[str] = set()
    for number, label in enumerate(labels, 1):
        try:
            _check_label(label)
        except _BadLabel as error:
            raise CountsError(f"{name}: label {number:,}: {error}") from None
        if label in seen:
            raise CountsError(f"{name}: label {number:,}: {label!r} is there twice")
        seen.add(label)
    return tuple(labels)
