"""Cells on their way to disk: pieces of consecutive shards, and the files they are appended to.

Receives pieces in the order of the shards, run after run; hands on the arrays of a matrix. A run (all shards once)
has the layout of the finished matrix, so that one run alone needs no merging. It does not sort.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.counts.layout import Layout
from swivel.storage import ArrayAppender, open_array

SATURATED = (1 << 32) - 1  # this count and those above it stand in the side table
FILES = {
    "offsets.npy": np.int64,
    "positions.npy": np.uint32,
    "counts.npy": np.uint32,
    "large_cells.npy": np.int64,
    "large_counts.npy": np.int64,
}


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """The cells of consecutive shards.

    Attributes
    ----------
    lengths
        Cells of each shard.
    positions
        local row << 16 | local column, ascending inside a shard.
    counts
        Units, no larger than SATURATED.
    large_cells, large_counts
        Indexes into `counts` of the cells that are saturated, and their true units.
    """

    lengths: NDArray[np.int64]
    positions: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    large_cells: NDArray[np.int64]
    large_counts: NDArray[np.int64]


def make_piece(lengths: NDArray[np.int64], positions: NDArray[np.uint32], units: NDArray[np.int64]) -> ShardPiece:
    """Return a piece of exact units."""
    large = np.flatnonzero(units >= SATURATED)
    counts = np.minimum(units, SATURATED).astype(np.uint32)
    return ShardPiece(lengths, positions, counts, large, units[large])


@dataclass(frozen=True, slots=True)
class CellArrays:
    """The cells of one or more runs, as they are on disk. `offsets` has a row for each run."""

    offsets: NDArray[np.int64]
    positions: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    large_cells: NDArray[np.int64]
    large_counts: NDArray[np.int64]

    def units(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the exact units of the cells from `first` up to `last`."""
        units = self.counts[first:last].astype(np.int64)
        begin, end = np.searchsorted(self.large_cells, (first, last))
        units[self.large_cells[begin:end] - first] = self.large_counts[begin:end]
        return units


class RunFiles:
    """Five growing files that hold runs, one after the other, and the sums of all their cells.

    A run has all shards of the layout, or those of the range `shards`.
    """

    def __init__(self, folder: Path, layout: Layout, shards: range | None = None) -> None:
        self.folder = folder
        self.layout = layout
        self.shards = range(layout.shards) if shards is None else shards
        self.runs = 0
        self.row_sums = np.zeros(layout.rows, np.int64)
        self.column_sums = self.row_sums if layout.symmetric else np.zeros(layout.columns, np.int64)
        self._files = {name: ArrayAppender(folder / name, dtype) for name, dtype in FILES.items()}
        self._next_shard = self.shards.start

    @property
    def cells(self) -> int:
        """Cells written."""
        return self._files["counts.npy"].length

    @contextlib.contextmanager
    def run(self) -> Iterator[RunFiles]:
        """Open a run: `append` pieces that together hold every shard once."""
        self._files["offsets.npy"].append(np.array([self.cells]))
        self._next_shard = self.shards.start
        yield self
        if self._next_shard != self.shards.stop:
            raise AssertionError(f"a run of {self._next_shard - self.shards.start} shards, not of {len(self.shards)}")
        self.runs += 1

    def append(self, piece: ShardPiece, *, with_sums: bool = True) -> None:
        """Write the next shards of the run."""
        if with_sums and piece.counts.size:
            self._add_sums(piece)
        self._files["large_cells.npy"].append(self.cells + piece.large_cells)
        self._files["large_counts.npy"].append(piece.large_counts)
        self._files["offsets.npy"].append(self.cells + np.cumsum(piece.lengths))
        self._files["positions.npy"].append(piece.positions)
        self._files["counts.npy"].append(piece.counts)
        self._next_shard += len(piece.lengths)

    def add_sums(self, row_sums: NDArray[np.int64], column_sums: NDArray[np.int64]) -> None:
        """Add the sums of pieces that were appended without theirs; of a symmetric layout both are the same."""
        self.row_sums += row_sums
        if not self.layout.symmetric:
            self.column_sums += column_sums

    def _add_sums(self, piece: ShardPiece) -> None:
        from swivel.counts import kernels

        layout = self.layout
        first = self._next_shard
        shape = kernels.LayoutShape(layout.row_blocks, layout.column_blocks, layout.symmetric)
        kernels.add_sums(shape, first, piece.lengths, piece.positions, piece.counts, self.row_sums, self.column_sums)
        if piece.large_cells.size:
            ends = np.cumsum(piece.lengths)
            shards = first + np.searchsorted(ends, piece.large_cells, side="right")
            excess = piece.large_counts - SATURATED
            kernels.add_large_sums(
                shape, shards, piece.positions[piece.large_cells], excess, self.row_sums, self.column_sums
            )

    def close(self) -> None:
        """Complete the files."""
        for file in self._files.values():
            file.close()

    def open(self) -> CellArrays:
        """Return the files' content, mapped; after `close`."""
        arrays = {name.removesuffix(".npy"): open_array(self.folder / name) for name in FILES}
        offsets = arrays.pop("offsets").reshape(self.runs, -1)
        return CellArrays(offsets, **arrays)
