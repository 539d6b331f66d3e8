"""Read Matrix Market files (.mtx) of coordinates. Dense (`array`), complex and skew matrices are rejected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import Place
from swivel.counts.importers.lines import LineBlock, read_lines
from swivel.counts.importers.spill import ImportChunk
from swivel.errors import CountsError

_LINES = 1 << 16
_HEADER = "%%MatrixMarket matrix coordinate"


def read_market(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a Matrix Market file: real, integer or pattern; general or symmetric."""
    lines = _Numbered(file, context)
    kind, symmetry = _read_header(lines)
    rows, columns, promised = _read_size(lines)
    if symmetry == "symmetric" and context.config.sides is None:
        context.sides = "undirected"
    if symmetry == "symmetric" and context.sides == "apart":
        raise CountsError(f"{file}: rows and columns of a symmetric matrix are the same things; omit sides")

    context.set_shape(rows, columns, str(file))

    width = 2 if kind == "pattern" else 3  # a pattern has no counts
    entries = 0

    for numbers, fields in lines.batches(width):
        values = _parse(lines, numbers, fields, width)
        row_ids = _as_places(lines, numbers, values[:, 0], rows)
        column_ids = _as_places(lines, numbers, values[:, 1], columns)
        counts = None if width == 2 else values[:, 2].copy()
        yield ImportChunk(row_ids, column_ids, counts, _placer(lines, numbers))
        entries += len(numbers)

    if entries != promised:
        raise CountsError(f"{file}: the header announces {promised:,} entries, but there are {entries:,}")


def _placer(lines: _Numbered, numbers: list[int]) -> Place:
    return lambda index: lines.place(numbers[index])


class _Numbered:
    """The lines of a file with their numbers."""

    def __init__(self, file: Path, context: ImportContext) -> None:
        self._file = file
        self._lines = self._number(read_lines(file), context)

    @staticmethod
    def _number(blocks: Iterator[LineBlock], context: ImportContext) -> Iterator[tuple[int, bytes]]:
        for block in blocks:
            yield from enumerate(block.data.split(b"\n")[:-1], block.first)
            context.advance(block.cost)

    def place(self, number: int) -> str:
        return f"{self._file}, line {number:,}"

    def fail(self, number: int, message: str) -> NoReturn:
        raise CountsError(f"{self.place(number)}: {message}")

    def next(self) -> tuple[int, bytes]:
        line = next(self._lines, None)
        if line is None:
            raise CountsError(f"{self._file}: the file ends before the first entry")
        return line

    def batches(self, width: int) -> Iterator[tuple[list[int], list[bytes]]]:
        """Yield the numbers and the fields of lines that are not blank; each must have `width` fields."""
        numbers: list[int] = []
        fields: list[bytes] = []

        for number, line in self._lines:
            split = line.split()
            if not split:
                continue
            if len(split) != width:
                self.fail(number, f"{len(split)} numbers, expected {width}")

            numbers.append(number)
            fields += split
            if len(numbers) == _LINES:
                yield numbers, fields
                numbers = []
                fields = []

        if numbers:
            yield numbers, fields


def _read_header(lines: _Numbered) -> tuple[str, str]:
    number, line = lines.next()
    words = line.decode("ascii", "replace").split()
    if len(words) != 5 or " ".join(words[:3]).lower() != _HEADER.lower():
        lines.fail(number, f"expected {_HEADER!r} and two more words, got {line[:60]!r}")

    kind = words[3].lower()
    symmetry = words[4].lower()
    if kind not in ("real", "double", "integer", "pattern") or symmetry not in ("general", "symmetric"):
        lines.fail(number, f"expected real, integer or pattern and general or symmetric, got {kind} {symmetry}")

    return kind, symmetry


def _read_size(lines: _Numbered) -> tuple[int, int, int]:
    while True:
        number, line = lines.next()
        if line.startswith(b"%") or not line.split():
            continue

        words = line.split()
        if len(words) != 3 or not all(word.isdigit() and len(word) < 19 for word in words):
            lines.fail(number, f"expected rows, columns and entries, got {line[:60]!r}")

        rows, columns, entries = map(int, words)
        return rows, columns, entries


def _parse(lines: _Numbered, numbers: list[int], fields: list[bytes], width: int) -> NDArray[np.float64]:
    with contextlib.suppress(ValueError):
        return np.fromiter(map(float, fields), np.float64, len(fields)).reshape(-1, width)

    # Only if a field is not a number: find it for the message.
    for index, field in enumerate(fields):
        try:
            float(field)
        except ValueError:
            lines.fail(numbers[index // width], f"{field[:40].decode(errors='backslashreplace')!r} is not a number")

    raise AssertionError("one of the fields is not a number")


def _as_places(lines: _Numbered, numbers: list[int], values: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    wrong = ~((values >= 1) & (values <= size) & (values == np.floor(values)))
    if wrong.any():
        index = int(wrong.argmax())
        lines.fail(numbers[index], f"index {values[index]:g} is not in 1 to {size:,}")
    return values.astype(np.int64) - 1
