"""Sorted pieces of consecutive shards, and the files or arrays they are appended to; runs: merging, re-blocking, sums.

A run holds all shards once, in order, in the layout of the finished matrix; so a single run needs no merging. Only
`reblock`, which copies the cells of a matrix into other blocks, sorts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Ints, Layout
from swivel.runtime.parallel import map_in_order
from swivel.storage.arrays import ArrayAppender, create_array, read_ahead
from swivel.storage.lock import scratch_folder
from swivel.storage.manifest import open_array

SATURATED = (1 << 32) - 1  # counts from here on are in large_counts
FILES: dict[str, type[np.generic]] = {
    "offsets.npy": np.int64,
    "positions.npy": np.uint32,
    "counts.npy": np.uint32,
    "large_cells.npy": np.int64,
    "large_counts.npy": np.int64,
}
_MERGE_BYTES = 28  # per merged cell: position, units, the mask of large cells, and the finished piece
_MERGE_CELLS = 1 << 22  # larger pieces are not faster
_SUM_CELLS = 1 << 21  # minimum of cells that a thread adds to sums of its own


class CellArrays(NamedTuple):
    """The cells of consecutive shards, of one or more runs; a tuple, because Numba accepts no dataclass."""

    offsets: Ints  # one row per run: the first cell of each shard, then the end of the last one
    positions: NDArray[np.uint32]  # local row << 16 | local column, ascending inside a shard
    counts: NDArray[np.uint32]  # units, at most SATURATED
    large_cells: Ints  # indexes of the saturated cells, ascending
    large_counts: Ints  # exact units of these

    def units(self, first: int, last: int) -> Ints:
        """Return the exact units of the cells `first` to `last - 1`."""
        units = self.counts[first:last].astype(np.int64)
        begin, end = np.searchsorted(self.large_cells, (first, last))
        units[self.large_cells[begin:end] - first] = self.large_counts[begin:end]
        return units


def make_piece(lengths: Ints, positions: NDArray[np.uint32], units: Ints) -> CellArrays:
    """Return the cells of some shards from exact units; units of SATURATED and more are stored as large counts."""
    large = np.flatnonzero(units >= SATURATED)
    counts = np.minimum(units, SATURATED).astype(np.uint32)
    return CellArrays(start_shards(lengths), positions, counts, large, units[large])


def start_shards(lengths: Ints) -> Ints:
    """Return the offsets of a single run from the numbers of cells of its shards."""
    return np.concatenate([[0], np.cumsum(lengths)])[None]


def name_arrays(arrays: CellArrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of the cells by the names of their files."""
    values: tuple[NDArray[Any], ...] = arrays
    return {name: array.ravel() for name, array in zip(FILES, values, strict=True)}


def open_cells(folder: Path) -> CellArrays:
    """Return the cells of a single run in the files of a folder, memory-mapped."""
    offsets, *others = (open_array(folder / name) for name in FILES)
    return CellArrays(offsets.reshape(1, -1), *others)


class RunFiles:
    """Five growing arrays of consecutive runs, in a folder or in memory."""

    def __init__(self, folder: Path | None, layout: Layout, shards: range | None = None) -> None:
        self.folder = folder
        self.layout = layout
        self.shards = range(layout.shards) if shards is None else shards  # of every run
        self.runs = 0
        self._files = {
            name: ArrayAppender(None if folder is None else folder / name, dtype) for name, dtype in FILES.items()
        }
        self._next_shard = self.shards.start

    @property
    def cells(self) -> int:
        """Number of cells written so far, in all runs."""
        return self._files["counts.npy"].length

    @contextlib.contextmanager
    def run(self) -> Iterator[RunFiles]:
        """Start a run; pieces passed to `append` must hold every shard once, in order."""
        # One more offset than shards: the end of a run is not the start of the next one in the table.
        self._files["offsets.npy"].append(np.array([self.cells]))
        self._next_shard = self.shards.start
        yield self
        if self._next_shard != self.shards.stop:
            raise AssertionError(f"run has {self._next_shard - self.shards.start} shards instead of {len(self.shards)}")
        self.runs += 1

    def append(self, piece: CellArrays) -> None:
        """Write the next shards of the run."""
        # Indexes and offsets count from the first cell of the file. `self.cells` is the length of counts.npy, so
        # counts are appended last.
        self._files["large_cells.npy"].append(self.cells + piece.large_cells)
        self._files["large_counts.npy"].append(piece.large_counts)
        self._files["offsets.npy"].append(self.cells + piece.offsets[0, 1:])
        self._files["positions.npy"].append(piece.positions)
        self._files["counts.npy"].append(piece.counts)
        self._next_shard += piece.offsets.shape[1] - 1

    def close(self) -> None:
        """Write the headers and close the files."""
        for file in self._files.values():
            file.close()

    def open(self) -> CellArrays:
        """Return the content of the closed files, memory-mapped, or the arrays in memory."""
        offsets, *others = (file.open() for file in self._files.values())
        return CellArrays(offsets.reshape(self.runs, -1), *others)


@contextlib.contextmanager
def gather_runs(parent: Path | None, layout: Layout, shards: range | None = None) -> Iterator[RunFiles]:
    """Yield files for runs in a scratch folder in `parent`, deleted when the block ends; without it, runs in memory."""
    with contextlib.nullcontext() if parent is None else scratch_folder(parent) as folder:
        runs = RunFiles(folder, layout, shards)
        with contextlib.closing(runs):
            yield runs


def split_evenly(weights: NDArray[Any], parts: int) -> list[tuple[int, int]]:
    """Return at most `parts` ranges of indices that cover all weights, with about the same sum of weights.

    >>> split_evenly(np.array([3, 2, 1]), 2)
    [(0, 1), (1, 3)]
    """
    ends = np.cumsum(weights)
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts, side="left") + 1
    return list(pairwise(np.unique([0, *edges.tolist(), weights.size]).tolist()))


def merge_runs(runs: CellArrays, target: RunFiles, *, memory_bytes: int, threads: int) -> None:
    """Write the sum of all runs to `target` as one run; threads merge ranges of shards, which are written in order."""
    from swivel.counts import matrix_kernels as kernels

    max_cells = max(1, min(_MERGE_CELLS, memory_bytes // ((threads + 1) * _MERGE_BYTES)))

    def merge(shards: tuple[int, int]) -> CellArrays:
        first, last = shards
        # Upper bound: cells that several runs have are summed to one.
        starts, stops = runs.offsets[:, first].tolist(), runs.offsets[:, last].tolist()
        size = sum(stops) - sum(starts)
        for start, stop in zip(starts, stops, strict=True):
            read_ahead(runs.positions, start, stop)
            read_ahead(runs.counts, start, stop)

        # Each thread writes to arrays of its own; the runs are only read.
        positions = np.empty(size, np.uint32)
        units = np.empty(size, np.int64)
        lengths = np.zeros(last - first, np.int64)
        used = kernels.merge_shards(runs, first, lengths, target.layout.largest_columns, positions, units)

        return make_piece(lengths, positions[:used].copy(), units[:used])

    with target.run():
        for piece in map_in_order(merge, shard_ranges(runs.offsets, max_cells), threads=threads):
            target.append(piece)


def sum_cells(cells: CellArrays, layout: Layout, *, threads: int) -> tuple[Ints, Ints]:
    """Return the row sums and column sums of a single run in units, one array for a symmetric layout."""
    from swivel.counts import matrix_kernels as kernels

    shape = (layout.row_blocks, layout.column_blocks, layout.symmetric)
    ends = cells.offsets[0]

    def make_sums() -> tuple[Ints, Ints]:
        row_sums = np.zeros(layout.rows, np.int64)
        return row_sums, row_sums if layout.symmetric else np.zeros(layout.columns, np.int64)

    def sum_shards(shards: tuple[int, int]) -> tuple[Ints, Ints]:
        first, last = shards
        part = slice(ends[first], ends[last])
        sums = make_sums()
        kernels.add_sums(
            *shape, first, np.diff(ends[first : last + 1]), cells.positions[part], cells.counts[part], *sums
        )
        return sums

    # Threads add to sums of their own, which this one adds up: all shards of a row share its sum.
    row_sums, column_sums = make_sums()
    for one_row_sums, one_column_sums in map_in_order(
        sum_shards, shard_ranges(cells.offsets, max(_SUM_CELLS, cells.counts.size // threads)), threads=threads
    ):
        row_sums += one_row_sums
        if not layout.symmetric:
            column_sums += one_column_sums

    # The saturated counts of large cells were added; add what these lack.
    shards = np.searchsorted(ends[1:], cells.large_cells, side="right")
    rows, columns = layout.find_cells(shards, cells.positions[cells.large_cells])
    excess = cells.large_counts - SATURATED
    np.add.at(row_sums, rows, excess)
    if layout.symmetric:  # the mirrors of the cells in diagonal shards are cells of their own
        excess *= layout.is_off_diagonal(rows, columns)
    np.add.at(column_sums, columns, excess)
    return row_sums, column_sums


def shard_ranges(offsets: Ints, max_cells: float) -> Iterator[tuple[int, int]]:
    """Yield ranges of shards with at most `max_cells` cells in all runs together, or of a single shard."""
    ends = np.zeros(offsets.shape[1], np.int64)
    for run in offsets:  # one at a time: the table is memory-mapped and may be large
        ends += run - run[0]

    # Whole shards, because a shard is merged or written by one thread at a time.
    first = 0
    shards = len(ends) - 1

    while first < shards:
        last = int(np.searchsorted(ends, ends[first] + max_cells, side="right")) - 1
        last = min(max(last, first + 1), shards)
        yield first, last
        first = last


def reblock(arrays: CellArrays, old: Layout, new: Layout, scratch: Path | None, *, threads: int = 1) -> CellArrays:
    """Return the cells in the new layout, in memory-mapped files in `scratch`, or in memory if it is None."""
    from swivel.counts import matrix_kernels as kernels

    before, after = ((each.column_blocks, each.symmetric) for each in (old, new))
    as_row = _make_table(old.row_blocks, old.largest_rows, new.row_blocks)
    as_column = _make_table(old.column_blocks, old.largest_columns, new.column_blocks)
    ranges = split_evenly(np.diff(arrays.offsets[0]), threads)  # each for one thread

    def move_cells(nexts: Ints, packed: NDArray[np.uint64]) -> None:
        """Move the cells; each thread processes one range of old shards and has one row of `nexts`."""

        def move(part: int) -> None:
            kernels.move_cells(before, after, as_row, as_column, arrays, ranges[part], nexts[part], packed)

        list(map_in_order(move, range(len(ranges)), threads=threads))

    # The first scan counts how many cells each range has for each new shard, so that the ranges can be written side by
    # side in the second scan.
    tallies = np.zeros((len(ranges), new.shards), np.int64)
    move_cells(tallies, np.empty(0, np.uint64))
    # First index of each (range, new shard): the offset of the shard, and the cells of earlier ranges in it.
    offsets = np.concatenate([[0], np.cumsum(tallies.sum(axis=0))])
    nexts = offsets[:-1] + np.cumsum(tallies, axis=0) - tallies

    name = f"{new.row_blocks}x{new.column_blocks}"
    size = (int(offsets[-1]),)

    with contextlib.nullcontext() if scratch is None else scratch_folder(scratch) as folder:
        packed = _create(folder, "packed", np.uint64, size)  # position << 32 | count
        move_cells(nexts, packed)
        positions = _create(scratch, f"positions-{name}", np.uint32, size)
        counts = _create(scratch, f"counts-{name}", np.uint32, size)

        def sort(shards: tuple[int, int]) -> None:
            for shard in range(*shards):
                cells = slice(offsets[shard], offsets[shard + 1])
                # Position in the high bits: sorting the keys sorts the cells, and carries the counts along.
                keys = np.sort(packed[cells])
                positions[cells] = keys >> np.uint64(32)
                counts[cells] = keys & np.uint64(0xFFFFFFFF)

        list(map_in_order(sort, split_evenly(np.diff(offsets), 4 * threads), threads=threads))

    large_cells = np.flatnonzero(counts == SATURATED) if arrays.large_cells.size else np.empty(0, np.int64)
    new_arrays = CellArrays(offsets.reshape(1, -1), positions, counts, large_cells, np.empty(0, np.int64))

    return new_arrays._replace(large_counts=_find_large_counts(arrays, old, new_arrays, new))


def _create(folder: Path | None, name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.empty(shape, dtype) if folder is None else create_array(folder / f"{name}.npy", dtype, shape)


def _make_table(old_blocks: int, largest: int, new_blocks: int) -> Ints:
    """Return new block << 16 | new local position for each [old block, old local position]."""
    features = np.arange(old_blocks)[:, None] + np.arange(largest) * old_blocks
    return (features % new_blocks) << 16 | features // new_blocks


def _find_large_counts(arrays: CellArrays, old: Layout, moved: CellArrays, new: Layout) -> Ints:
    """Return the exact counts of the saturated cells in the new layout."""
    # A cell is found by (row, column), or by (column, row) if the old layout stored its mirror.
    exact = dict(zip(_find_large_cells(arrays, old), arrays.large_counts.tolist(), strict=True))
    counts = [exact[cell] if cell in exact else exact[cell[::-1]] for cell in _find_large_cells(moved, new)]
    return np.array(counts, np.int64)


def _find_large_cells(arrays: CellArrays, layout: Layout) -> list[tuple[int, int]]:
    shards = np.searchsorted(arrays.offsets[0], arrays.large_cells, side="right") - 1
    rows, columns = layout.find_cells(shards, arrays.positions[arrays.large_cells])
    return list(zip(rows.tolist(), columns.tolist(), strict=True))
