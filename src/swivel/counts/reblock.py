"""Copy the cells of a matrix into other blocks.

A first scan of the cells counts how many belong to each new shard; a second scan writes each cell to its new shard as
position << 32 | count; then each shard is sorted. All three run in threads and write scratch files only.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.counts.layout import Layout
from swivel.counts.shards import SATURATED, CellArrays
from swivel.storage import create_array, scratch_folder

Ranges = list[NDArray[np.int64]]


def reblock(arrays: CellArrays, old: Layout, new: Layout, scratch: Path, *, threads: int = 1) -> CellArrays:
    """Return the cells in the new layout, in memory-mapped files in `scratch`."""
    move = _CellMove(arrays, old, new, _split_shards(arrays.offsets[0], threads))
    offsets, nexts = move.tally()
    name = f"{new.row_blocks}x{new.column_blocks}"
    shape = (int(offsets[-1]),)

    with scratch_folder(scratch) as folder:
        packed = create_array(folder / "packed.npy", np.uint64, shape)
        move.scatter(nexts, packed)
        positions = create_array(scratch / f"positions-{name}.npy", np.uint32, shape)
        counts = create_array(scratch / f"counts-{name}.npy", np.uint32, shape)
        _sort_shards(packed, offsets, positions, counts, threads)

    large_cells, large_counts = _find_large(arrays, old, new, offsets, positions, counts)
    return CellArrays(offsets.reshape(1, -1), positions, counts, large_cells, large_counts)


def _split_shards(offsets: NDArray[np.int64], threads: int) -> Ranges:
    """Return `threads` ranges of shards with about the same number of cells."""
    ends = np.searchsorted(offsets, np.linspace(0, offsets[-1], threads + 1)[1:-1])
    edges = np.concatenate([[0], ends, [len(offsets) - 1]])
    return [edges[part : part + 2].astype(np.int64) for part in range(threads)]


class _CellMove:
    """Moves cells from one layout to another; each thread processes one range of old shards."""

    def __init__(self, arrays: CellArrays, old: Layout, new: Layout, ranges: Ranges) -> None:
        from swivel.counts import kernels

        self._kernels = kernels
        self._ranges = ranges
        self._new = new
        self._shapes = [
            kernels.LayoutShape(layout.row_blocks, layout.column_blocks, layout.symmetric) for layout in (old, new)
        ]
        self._tables = kernels.Tables(
            _make_table(old.row_blocks, old.largest_rows, new.row_blocks),
            _make_table(old.column_blocks, old.largest_columns, new.column_blocks),
        )
        self._source = kernels.RunArrays(
            arrays.offsets, arrays.positions, arrays.counts, arrays.large_cells, arrays.large_counts
        )

    def _in_threads(self, function: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(len(self._ranges)) as pool:
            list(pool.map(function, range(len(self._ranges))))

    def tally(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the new offsets and, for each range and new shard, the index where the range starts to write."""
        tallies = np.zeros((len(self._ranges), self._new.shards), np.int64)

        def tally(part: int) -> None:
            self._kernels.tally_shards(*self._shapes, self._tables, self._source, self._ranges[part], tallies[part])

        self._in_threads(tally)
        offsets = np.concatenate([[0], np.cumsum(tallies.sum(axis=0))])
        starts = offsets[:-1] + np.cumsum(tallies, axis=0) - tallies

        return offsets, starts

    def scatter(self, nexts: NDArray[np.int64], packed: NDArray[np.uint64]) -> None:
        """Write every cell to its new shard, unsorted."""

        def scatter(part: int) -> None:
            self._kernels.scatter_shards(
                *self._shapes, self._tables, self._source, self._ranges[part], nexts[part], packed
            )

        self._in_threads(scatter)


def _make_table(old_blocks: int, largest: int, new_blocks: int) -> NDArray[np.int64]:
    """Return new block << 16 | new local position for each [old block, old local position]."""
    features = np.arange(old_blocks)[:, None] + np.arange(largest) * old_blocks
    return (features % new_blocks) << 16 | features // new_blocks


def _sort_shards(
    packed: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    positions: NDArray[np.uint32],
    counts: NDArray[np.uint32],
    threads: int,
) -> None:
    def sort(shards: NDArray[np.int64]) -> None:
        for first, last in zip(offsets[shards[0] : shards[1]], offsets[shards[0] + 1 : shards[1] + 1], strict=True):
            cells = np.sort(packed[first:last])
            positions[first:last] = cells >> np.uint64(32)
            counts[first:last] = cells & np.uint64(0xFFFFFFFF)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(sort, _split_shards(offsets, 4 * threads)))


def _find_large(
    arrays: CellArrays,
    old: Layout,
    new: Layout,
    offsets: NDArray[np.int64],
    positions: NDArray[np.uint32],
    counts: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indexes and exact counts of the saturated cells in the new layout.

    A cell is found by (row, column), or by (column, row) if the old layout stored its mirror.
    """
    if not arrays.large_cells.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)

    large = np.flatnonzero(counts == SATURATED)
    old_cells = _find_rows(old, arrays.offsets[0], arrays.large_cells, arrays.positions)
    new_cells = _find_rows(new, offsets, large, positions)
    exact = dict(zip(old_cells, arrays.large_counts.tolist(), strict=True))
    values = [exact[cell] if cell in exact else exact[cell[::-1]] for cell in new_cells]

    return large, np.array(values, np.int64)


def _find_rows(
    layout: Layout, offsets: NDArray[np.int64], cells: NDArray[np.int64], positions: NDArray[np.uint32]
) -> list[tuple[int, int]]:
    shards = np.searchsorted(offsets, cells, side="right") - 1
    rows, columns = layout.find_cells(shards, positions[cells])
    return list(zip(rows.tolist(), columns.tolist(), strict=True))
