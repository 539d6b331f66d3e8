"""Cells on their way: ids and counts in scratch files, until all labels and their sums are known.

Receives chunks of cells from a reader, one after the other, and refuses what is no count; hands them back, as whole
numbers of one unit, as often as asked. Files are read piece by piece and not mapped, so that memory stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts import to_units
from swivel.counts.importers.labels import Place
from swivel.counts.importers.units import UnitFinder
from swivel.errors import CountsError
from swivel.storage import ArrayAppender

PIECE = 1 << 20  # cells that are worked on at a time
_HEADER_BYTES = 128  # of an .npy file that grew
_MOST_IDS = 1 << 32
_EXACT = float(1 << 53)


@dataclass(frozen=True, slots=True)
class ImportChunk:
    """Some cells as a reader hands them on.

    Attributes
    ----------
    rows, columns
        Ids, as the two sides number them.
    counts
        float64; None: every one is 1.
    place
        Says where the cell of an index stands: "visits.tsv, line 12".
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    counts: NDArray[np.float64] | None
    place: Place


@dataclass(frozen=True, slots=True)
class UnitCells:
    """Cells by id, their counts in units."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    units: NDArray[np.int64]


class CellSpill:
    """Three growing files of rows, columns and counts; see the module."""

    def __init__(self, folder: Path) -> None:
        kinds = {"rows": np.uint32, "columns": np.uint32, "counts": np.float64}
        self._files = {name: ArrayAppender(folder / f"{name}.npy", kind) for name, kind in kinds.items()}
        self._finder = UnitFinder()
        self._largest = 0.0
        self.unit = 1

    @property
    def length(self) -> int:
        """Cells so far."""
        return self._files["rows"].length

    @property
    def largest_units(self) -> int:
        """The largest count, in units."""
        return int(to_units([self._largest], self.unit)[0])

    def add(self, chunk: ImportChunk) -> None:
        """Write a chunk; counts of 0 are left out, negative ones and such as are not finite are refused."""
        rows, columns, counts = chunk.rows, chunk.columns, chunk.counts
        for ids in (rows, columns):
            if ids.size and int(ids.max()) >= _MOST_IDS:
                raise CountsError(f"{chunk.place(int(ids.argmax()))}: more than {_MOST_IDS:,} rows or columns")
        if counts is None:
            self._finder.look_at_ones(rows.size)
            counts = np.ones(rows.size)
        else:
            refuse_bad_counts(counts, chunk.place)
            if not counts.all():
                kept = counts > 0
                rows, columns, counts = rows[kept], columns[kept], counts[kept]
            self._finder.look_at(counts)
        self._largest = max(self._largest, float(counts.max(initial=0)))
        for name, values in (("rows", rows), ("columns", columns), ("counts", counts)):
            self._files[name].append(values)

    def close(self, name: str) -> None:
        """Complete the files and choose the unit; raise CountsError where the source, of this name, had nothing."""
        self.close_files()
        if not self.length:
            raise CountsError(f"{name}: there are no counts at all: every cell is 0, or nothing was there")
        try:
            self.unit = self._finder.choose_unit()
        except CountsError as error:
            raise CountsError(f"{name}: {error}") from None

    def close_files(self) -> None:
        """Complete the files. A second call does nothing."""
        for file in self._files.values():
            file.close()

    def pieces(self, first: int = 0, last: int | None = None) -> Iterator[UnitCells]:
        """Yield the cells from `first` up to `last`, in pieces; several threads may at the same time."""
        last = self.length if last is None else last
        for start in range(first, last, PIECE):
            rows, columns, counts = (self._read(name, start, min(PIECE, last - start)) for name in self._files)
            counts *= self.unit  # Checked when they came: finite, above 0, and their sum fits the unit.
            units = np.maximum(np.rint(counts, out=counts), 1, out=counts).astype(np.int64)
            yield UnitCells(rows.astype(np.int64), columns.astype(np.int64), units)

    def _read(self, name: str, start: int, size: int) -> NDArray[Any]:
        file = self._files[name]
        offset = _HEADER_BYTES + start * file.dtype.itemsize
        return np.fromfile(file.path, file.dtype, size, offset=offset)


def refuse_bad_counts(counts: NDArray[np.float64], place: Place) -> None:
    """Raise CountsError for the first count that is negative or not finite."""
    wrong = ~((counts >= 0) & (counts < np.inf))
    if wrong.any():
        index = int(wrong.argmax())
        what = "negative" if counts[index] < 0 else "not finite"
        raise CountsError(f"{place(index)}: the count {counts[index]:g} is {what}; counts are finite and 0 or more")


def add_sums(sums: NDArray[np.int64], ids: NDArray[np.int64], units: NDArray[np.int64]) -> None:
    """Add units to the sums of their ids, exactly."""
    if float(units.sum(dtype=np.float64)) < _EXACT:  # float64 sums of whole numbers are exact, and fast
        sums += np.bincount(ids, units, minlength=sums.size).astype(np.int64)
    else:
        np.add.at(sums, ids, units)
