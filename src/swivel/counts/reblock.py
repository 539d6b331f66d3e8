"""Copy the cells of a matrix into other blocks, with several threads, in memory or in scratch files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Ints, Layout
from swivel.counts.shards import SATURATED, CellArrays
from swivel.storage.arrays import create_array
from swivel.storage.lock import scratch_folder


def reblock(arrays: CellArrays, old: Layout, new: Layout, scratch: Path | None, *, threads: int = 1) -> CellArrays:
    """Return the cells in the new layout, in memory-mapped files in `scratch`, or in memory if it is None."""
    from swivel.counts import matrix_kernels as kernels

    before, after = (kernels.LayoutShape(each.row_blocks, each.column_blocks, each.symmetric) for each in (old, new))
    as_row = _make_table(old.row_blocks, old.largest_rows, new.row_blocks)
    as_column = _make_table(old.column_blocks, old.largest_columns, new.column_blocks)
    ranges = _split_shards(arrays.offsets[0], threads)

    def move_cells(nexts: Ints, packed: NDArray[np.uint64]) -> None:
        """Move the cells; each thread processes one range of old shards and has one row of `nexts`."""

        def move(part: int) -> None:
            kernels.move_cells(before, after, as_row, as_column, arrays, ranges[part], nexts[part], packed)

        _run(move, range(threads), threads)

    # The first scan counts how many cells each range has for each new shard, so that the ranges can be written side by
    # side in the second scan.
    tallies = np.zeros((threads, new.shards), np.int64)
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

        def sort(shards: Ints) -> None:
            for shard in range(*shards):
                cells = slice(offsets[shard], offsets[shard + 1])
                # Position in the high bits: sorting the keys sorts the cells, and carries the counts along.
                keys = np.sort(packed[cells])
                positions[cells] = keys >> np.uint64(32)
                counts[cells] = keys & np.uint64(0xFFFFFFFF)

        _run(sort, _split_shards(offsets, 4 * threads), threads)

    large_cells = np.flatnonzero(counts == SATURATED) if arrays.large_cells.size else np.empty(0, np.int64)
    new_arrays = CellArrays(offsets.reshape(1, -1), positions, counts, large_cells, np.empty(0, np.int64))

    return new_arrays._replace(large_counts=_find_large_counts(arrays, old, new_arrays, new))


def _create(folder: Path | None, name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.empty(shape, dtype) if folder is None else create_array(folder / f"{name}.npy", dtype, shape)


def _run(function: Callable[[Any], None], items: Iterable[Any], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, items))


def _split_shards(offsets: Ints, parts: int) -> list[Ints]:
    """Return ranges of shards with about the same number of cells."""
    ends = np.searchsorted(offsets, np.linspace(0, offsets[-1], parts + 1)[1:-1])
    edges = np.concatenate([[0], ends, [len(offsets) - 1]])
    return [edges[part : part + 2].astype(np.int64) for part in range(parts)]


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
