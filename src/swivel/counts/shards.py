"""Sorted pieces of consecutive shards, and the files to which they are appended.

A run holds all shards once, in order, in the layout of the finished matrix; so a single run needs no merging. Nothing
here sorts.
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

SATURATED = (1 << 32) - 1  # counts from here on are in large_counts
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
        Number of cells of each shard.
    positions
        local row << 16 | local column, ascending inside a shard.
    counts
        Units, at most SATURATED.
    large_cells, large_counts
        Indexes into `counts` of the saturated cells, and their exact units.
    """

    lengths: NDArray[np.int64]
    positions: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    large_cells: NDArray[np.int64]
    large_counts: NDArray[np.int64]


def make_piece(lengths: NDArray[np.int64], positions: NDArray[np.uint32], units: NDArray[np.int64]) -> ShardPiece:
    """Return a piece from exact units; units of SATURATED and more are stored as large counts."""
    large = np.flatnonzero(units >= SATURATED)
    counts = np.minimum(units, SATURATED).astype(np.uint32)
    return ShardPiece(lengths, positions, counts, large, units[large])


@dataclass(frozen=True, slots=True)
class CellArrays:
    """The cells of one or more runs, as stored on disk. `offsets` has one row per run."""

    offsets: NDArray[np.int64]
    positions: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    large_cells: NDArray[np.int64]
    large_counts: NDArray[np.int64]

    def units(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the exact units of the cells `first` to `last - 1`."""
        units = self.counts[first:last].astype(np.int64)
        begin, end = np.searchsorted(self.large_cells, (first, last))
        units[self.large_cells[begin:end] - first] = self.large_counts[begin:end]
        return units


class RunFiles:
    """Five growing files of consecutive runs, with the row and column sums of all their cells.

    A run has all shards of the layout, or those in the range `shards`.
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
        """Number of cells written so far, in all runs."""
        return self._files["counts.npy"].length

    @contextlib.contextmanager
    def run(self) -> Iterator[RunFiles]:
        """Start a run; pieces passed to `append` must hold every shard once, in order."""
        self._files["offsets.npy"].append(np.array([self.cells]))
        self._next_shard = self.shards.start
        yield self
        if self._next_shard != self.shards.stop:
            raise AssertionError(f"run has {self._next_shard - self.shards.start} shards instead of {len(self.shards)}")
        self.runs += 1

    def append(self, piece: ShardPiece, *, with_sums: bool = True) -> None:
        """Write the next shards of the run, and add them to the sums unless `with_sums` is false."""
        if with_sums and piece.counts.size:
            self._add_sums(piece)

        # Indexes and offsets count from the first cell of the file. `self.cells` is the length of counts.npy, so
        # counts are appended last.
        self._files["large_cells.npy"].append(self.cells + piece.large_cells)
        self._files["large_counts.npy"].append(piece.large_counts)
        self._files["offsets.npy"].append(self.cells + np.cumsum(piece.lengths))
        self._files["positions.npy"].append(piece.positions)
        self._files["counts.npy"].append(piece.counts)
        self._next_shard += len(piece.lengths)

    def add_sums(self, row_sums: NDArray[np.int64], column_sums: NDArray[np.int64]) -> None:
        """Add the sums of pieces that were appended with `with_sums=False`."""
        self.row_sums += row_sums
        if not self.layout.symmetric:
            self.column_sums += column_sums

    def _add_sums(self, piece: ShardPiece) -> None:
        from swivel.counts import kernels

        layout = self.layout
        first = self._next_shard
        shape = kernels.LayoutShape(layout.row_blocks, layout.column_blocks, layout.symmetric)
        # Saturated counts first, then what they lack.
        kernels.add_sums(shape, first, piece.lengths, piece.positions, piece.counts, self.row_sums, self.column_sums)

        if piece.large_cells.size:
            ends = np.cumsum(piece.lengths)
            shards = first + np.searchsorted(ends, piece.large_cells, side="right")
            excess = piece.large_counts - SATURATED
            kernels.add_large_sums(
                shape, shards, piece.positions[piece.large_cells], excess, self.row_sums, self.column_sums
            )

    def close(self) -> None:
        """Write the headers and close the files."""
        for file in self._files.values():
            file.close()

    def open(self) -> CellArrays:
        """Return the content of the closed files, memory-mapped."""
        arrays = {name.removesuffix(".npy"): open_array(self.folder / name) for name in FILES}
        offsets = arrays.pop("offsets").reshape(self.runs, -1)
        return CellArrays(offsets, **arrays)
