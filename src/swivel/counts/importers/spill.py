"""The cells of an import in scratch files, or in memory, until all labels and their sums are known.

Chunks are validated and appended; afterwards the cells can be read any number of times, as integers in one unit, so
that they are summed exactly in any order. If the counts share no small unit, they are rounded to multiples of a power
of 2 that suits the smallest and largest. Files are read in pieces instead of memory-mapped, so that they do not add to
the memory of the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Ints, UnitCells
from swivel.counts.importers.context import ImportChunk, Place
from swivel.errors import CountsError
from swivel.runtime.parallel import map_in_order
from swivel.storage.arrays import ArrayAppender

PIECE = 1 << 20  # cells processed at a time
_MAX_IDS = 1 << 32
_EXACT = float(1 << 53)  # integers below are exact in float64

# Whole numbers, halves and quarters, decimals, and windows of 1/t up to 10 and up to 16 (GloVe's is 15).
_CANDIDATES = (1, 4, 10, 100, 1_000, 2_520, 10_000, 720_720, 1_000_000)
_TOLERANCE = 1e-9  # relative, for rounding errors of float64
_GOOD_BITS = 24  # precision of the smallest count if possible: that of float32
_FAIR_BITS = 10  # precision of the smallest count at least: about 0.1 %
_STORED_BITS = 31  # cells of 2^32 units or more are stored separately
_TOTAL_BITS = 61
_MAX_BITS = 60  # largest unit: 2^60


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
        if self._total >= 2.0**_TOTAL_BITS:
            raise CountsError(
                f"counts up to {self.largest:g} add up to {self._total:g}, more than the largest exact sum "
                f"({2**_TOTAL_BITS:.2g}); scale them"
            )

        for unit in self._left:
            if self._total * unit < 2.0**_TOTAL_BITS:
                return unit

        return self._choose_binary()

    def _choose_binary(self) -> int:
        """Return the power of 2 that keeps the smallest count precise and the largest count in 32 bits."""
        # With unit 2^bits, a count x has about bits + log2(x) bits.
        smallest = math.floor(math.log2(self._smallest))
        largest = math.ceil(math.log2(self.largest))
        bits = min(_GOOD_BITS - smallest, _STORED_BITS - largest)
        bits = max(bits, _FAIR_BITS - smallest, 0)
        bits = min(bits, _TOTAL_BITS - math.ceil(math.log2(self._total)), _MAX_BITS)

        # The smallest count needs three bits, so that it is at most one part in 8 off.
        needed_bits = max(3 - smallest, 0)
        if bits < needed_bits:
            total = math.ceil(math.log2(self._total))
            span = f"counts from {self._smallest:g} to {self.largest:g}"
            if total - smallest + 3 <= _TOTAL_BITS:  # They would fit if they were larger.
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
        raise CountsError(
            f"{place(index)}: the count {counts[index]:g} is {reason}; counts must be finite and not negative"
        )


def add_sums(sums: Ints, ids: Ints, units: Ints) -> None:
    """Add units to the sums of their ids, in exact arithmetic."""
    if float(units.sum(dtype=np.float64)) < _EXACT:  # bincount sums in float64: exact below 2^53, and fast
        sums += np.bincount(ids, units, minlength=sums.size).astype(np.int64)
    else:
        np.add.at(sums, ids, units)
