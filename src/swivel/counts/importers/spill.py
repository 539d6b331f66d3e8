"""Scratch files for the cells of an import, until all labels and their sums are known.

Chunks are validated and appended; afterwards the cells can be read any number of times, as integers in one unit. Files
are read in pieces instead of memory-mapped, so that they do not add to the memory of the process.
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

PIECE = 1 << 20  # cells processed at a time
_HEADER_BYTES = 128  # of an .npy file written by ArrayAppender
_MAX_IDS = 1 << 32
_EXACT = float(1 << 53)  # integers below are exact in float64


@dataclass(frozen=True, slots=True)
class ImportChunk:
    """A batch of cells from a reader.

    Attributes
    ----------
    rows, columns
        Ids from the label tables, or positions in a matrix.
    counts
        float64; None if every count is 1.
    place
        Returns the location of the cell at an index, such as "visits.tsv, line 12".
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    counts: NDArray[np.float64] | None
    place: Place


@dataclass(frozen=True, slots=True)
class UnitCells:
    """Cells as ids of rows and columns, with counts in units."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    units: NDArray[np.int64]


class CellSpill:
    """Three growing files of rows, columns and counts."""

    def __init__(self, folder: Path) -> None:
        kinds = {"rows": np.uint32, "columns": np.uint32, "counts": np.float64}
        self._files = {name: ArrayAppender(folder / f"{name}.npy", kind) for name, kind in kinds.items()}
        self._finder = UnitFinder()
        self._largest = 0.0
        self.unit = 1

    @property
    def length(self) -> int:
        """Number of cells written so far."""
        return self._files["rows"].length

    @property
    def largest_units(self) -> int:
        """The largest count in units."""
        return int(to_units([self._largest], self.unit)[0])

    def add(self, chunk: ImportChunk) -> None:
        """Write a chunk without counts of 0; raise CountsError for negative counts and counts that are not finite."""
        rows = chunk.rows
        columns = chunk.columns
        counts = chunk.counts

        for ids in (rows, columns):
            if ids.size and int(ids.max()) >= _MAX_IDS:
                raise CountsError(f"{chunk.place(int(ids.argmax()))}: more than {_MAX_IDS:,} rows or columns")

        if counts is None:
            self._finder.look_at_ones(rows.size)
            counts = np.ones(rows.size)
        else:
            refuse_bad_counts(counts, chunk.place)
            if not counts.all():
                kept = counts > 0
                rows = rows[kept]
                columns = columns[kept]
                counts = counts[kept]
            self._finder.look_at(counts)

        self._largest = max(self._largest, float(counts.max(initial=0)))
        for name, values in (("rows", rows), ("columns", columns), ("counts", counts)):
            self._files[name].append(values)

    def close(self, name: str) -> None:
        """Close the files and choose the unit; raise CountsError if the source `name` has no counts."""
        self.close_files()
        if not self.length:
            raise CountsError(f"{name}: there are no counts: the source is empty, or every cell is 0")
        try:
            self.unit = self._finder.choose_unit()
        except CountsError as error:
            raise CountsError(f"{name}: {error}") from None

    def close_files(self) -> None:
        """Close the files. A second call does nothing."""
        for file in self._files.values():
            file.close()

    def pieces(self, first: int = 0, last: int | None = None) -> Iterator[UnitCells]:
        """Yield the cells `first` to `last - 1` in pieces. Threads may read at the same time."""
        last = self.length if last is None else last
        for start in range(first, last, PIECE):
            rows, columns, counts = (self._read(name, start, min(PIECE, last - start)) for name in self._files)
            # `add` checked that counts are finite and positive; `choose_unit` that their sum fits in int64.
            counts *= self.unit
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
        reason = "negative" if counts[index] < 0 else "not finite"
        raise CountsError(
            f"{place(index)}: the count {counts[index]:g} is {reason}; counts must be finite and not negative"
        )


def add_sums(sums: NDArray[np.int64], ids: NDArray[np.int64], units: NDArray[np.int64]) -> None:
    """Add units to the sums of their ids, in exact arithmetic."""
    if float(units.sum(dtype=np.float64)) < _EXACT:  # bincount sums in float64: exact below 2^53, and fast
        sums += np.bincount(ids, units, minlength=sums.size).astype(np.int64)
    else:
        np.add.at(sums, ids, units)
