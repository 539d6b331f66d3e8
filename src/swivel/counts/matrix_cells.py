"""The observed cells of a matrix, of one block and of all blocks in the order in which they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Layout, UnitCells
from swivel.counts.shards import CellArrays


@dataclass(frozen=True, slots=True)
class BlockCells:
    """The observed cells of one block."""

    positions: NDArray[np.uint32]  # local row << 16 | local column, ascending
    counts: NDArray[np.float32]  # greater than 0
    mirrored: bool  # whether these are the cells of the stored mirror block: swap rows and columns to read them


class MatrixCells:
    """All observed cells, in the order of the shards; counts may be read as log(1 + x)."""

    is_log = False

    def __init__(self, layout: Layout, arrays: CellArrays, unit: int) -> None:
        self.layout = layout
        self.arrays = arrays
        self.unit = unit

    def counts_of(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the counts of the cells `first` to `last - 1`."""
        arrays = self.arrays
        counts = self.to_counts(arrays.counts[first:last]).astype(np.float32)
        begin, end = np.searchsorted(arrays.large_cells, (first, last))
        if begin < end:
            counts[arrays.large_cells[begin:end] - first] = self.to_counts(arrays.large_counts[begin:end])
        return counts

    def to_counts(self, units: NDArray[Any]) -> NDArray[np.float64]:
        """Return the counts of cells that have these units, float64."""
        counts: NDArray[np.float64] = np.divide(units, self.unit, dtype=np.float64)
        if self.is_log:
            np.log1p(counts, out=counts)
        return counts

    def walk(self, max_cells: int) -> Iterator[UnitCells]:
        """Yield rows, columns and units of all cells, also of mirrors that are not stored, in pieces of `max_cells`."""
        offsets, positions = self.arrays.offsets[0], self.arrays.positions
        for first in range(0, len(positions), max_cells):
            last = min(first + max_cells, len(positions))
            first_shard, last_shard = np.searchsorted(offsets, (first, last - 1), side="right") - 1
            edges = np.clip(offsets[first_shard : last_shard + 2], first, last)
            shards = np.repeat(np.arange(first_shard, last_shard + 1), np.diff(edges))
            rows, columns = self.layout.find_cells(shards, positions[first:last])
            units = self.arrays.units(first, last)
            yield rows, columns, units

            if self.layout.symmetric:
                once = self.layout.is_off_diagonal(rows, columns)
                yield columns[once], rows[once], units[once]
