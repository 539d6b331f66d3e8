"""The compiled loops of matrices: sums, merging of runs, re-blocking. Called from threads."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

SATURATED = np.uint32(0xFFFFFFFF)
GROUP = 16  # columns behind one byte of `touched`

_jit = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")


class LayoutShape(NamedTuple):
    """Blocks of a layout."""

    row_blocks: int
    column_blocks: int
    symmetric: bool


@_jit
def add_sums(shape, first, lengths, positions, counts, row_sums, column_sums):  # type: ignore[no-untyped-def]
    """Add cells of the shards from `first` on to the sums of their rows and columns.

    In a symmetric layout `column_sums` is `row_sums`, and a diagonal shard holds both mirrors already.
    """
    cell = 0
    for number in range(lengths.size):
        row_block = (first + number) // shape.column_blocks
        column_block = (first + number) % shape.column_blocks
        add_columns = not (shape.symmetric and row_block == column_block)
        for _ in range(lengths[number]):
            count = np.int64(counts[cell])
            row_sums[row_block + np.int64(positions[cell] >> 16) * shape.row_blocks] += count
            if add_columns:
                column_sums[column_block + np.int64(positions[cell] & 0xFFFF) * shape.column_blocks] += count
            cell += 1


@_jit
def add_large_sums(shape, shards, positions, excess, row_sums, column_sums):  # type: ignore[no-untyped-def]
    """Add what saturated cells have above saturation."""
    for cell in range(shards.size):
        row_block, column_block = shards[cell] // shape.column_blocks, shards[cell] % shape.column_blocks
        row_sums[row_block + np.int64(positions[cell] >> 16) * shape.row_blocks] += excess[cell]
        if not (shape.symmetric and row_block == column_block):
            column_sums[column_block + np.int64(positions[cell] & 0xFFFF) * shape.column_blocks] += excess[cell]


@_jit
def _true_count(arrays, cell):  # type: ignore[no-untyped-def]
    count = arrays.counts[cell]
    if count == SATURATED:
        return arrays.large_counts[np.searchsorted(arrays.large_cells, cell)]
    return np.int64(count)


class RunArrays(NamedTuple):
    """The arrays of all runs; see `CellArrays`."""

    offsets: np.ndarray
    positions: np.ndarray
    counts: np.ndarray
    large_cells: np.ndarray
    large_counts: np.ndarray


@_jit
def _merge_shard(runs, shard, cursors, acc, touched, positions, units, used):  # type: ignore[no-untyped-def]
    """Append one shard's merged cells at `used`, row by row through a small accumulator; return the new `used`."""
    total = cursors.size
    for run in range(total):
        cursors[run] = runs.offsets[run, shard]
    while True:
        row = np.int64(1 << 16)
        for run in range(total):
            if cursors[run] < runs.offsets[run, shard + 1]:
                row = min(row, np.int64(runs.positions[cursors[run]] >> 16))
        if row == 1 << 16:
            return used
        for run in range(total):
            cell, last = cursors[run], runs.offsets[run, shard + 1]
            while cell < last and np.int64(runs.positions[cell] >> 16) == row:
                column = np.int64(runs.positions[cell] & 0xFFFF)
                acc[column] += _true_count(runs, cell)
                touched[column >> 4] = 1
                cell += 1
            cursors[run] = cell
        for group in range(touched.size):
            if touched[group]:
                touched[group] = 0
                for place in range(group * GROUP, group * GROUP + GROUP):
                    if acc[place]:
                        positions[used] = row << 16 | place
                        units[used] = acc[place]
                        acc[place] = 0
                        used += 1


@_jit
def merge_shards(runs, first, lengths, columns, positions, units):  # type: ignore[no-untyped-def]
    """Merge the shards from `first` on; `lengths` gets the cells of each. Return how many cells there are."""
    groups = (columns + GROUP - 1) // GROUP
    acc = np.zeros(groups * GROUP, np.int64)
    touched = np.zeros(groups, np.uint8)
    cursors = np.zeros(runs.offsets.shape[0], np.int64)
    used = 0
    for number in range(lengths.size):
        before = used
        used = _merge_shard(runs, first + number, cursors, acc, touched, positions, units, used)
        lengths[number] = used - before
    return used


class Tables(NamedTuple):
    """New block << 16 | new local position, as a row and as a column, of each [old block, old local position].

    Tables instead of divisions took a fifth to a third off the CPU time of re-blocking 64 M cells (one run each, on a
    machine that had other work). Of a symmetric matrix both hold for either side.
    """

    as_row: np.ndarray
    as_column: np.ndarray


@_jit
def _place_cell(new, row, column):  # type: ignore[no-untyped-def]
    """Return the new shard of a cell from its two entries of the tables, -1 where its mirror is kept instead."""
    row_block, column_block = row >> 16, column >> 16
    if new.symmetric and row_block > column_block:
        return -1
    return row_block * new.column_blocks + column_block


@_jit
def tally_shards(old, new, tables, arrays, shards, tallies):  # type: ignore[no-untyped-def]
    """Count, for the old shards of a range, the cells that each new shard gets from them."""
    for shard in range(shards[0], shards[1]):
        i, j = shard // old.column_blocks, shard % old.column_blocks
        has_mirror = old.symmetric and i != j
        for cell in range(arrays.offsets[0, shard], arrays.offsets[0, shard + 1]):
            row, column = arrays.positions[cell] >> 16, arrays.positions[cell] & 0xFFFF
            place = _place_cell(new, tables.as_row[i, row], tables.as_column[j, column])
            if place >= 0:
                tallies[place] += 1
            if has_mirror:
                place = _place_cell(new, tables.as_row[j, column], tables.as_column[i, row])
                if place >= 0:
                    tallies[place] += 1


@_jit
def _put_cell(new, row, column, count, nexts, packed):  # type: ignore[no-untyped-def]
    place = _place_cell(new, row, column)
    if place >= 0:
        position = (row & 0xFFFF) << 16 | (column & 0xFFFF)
        packed[nexts[place]] = np.uint64(position) << np.uint64(32) | np.uint64(count)
        nexts[place] += 1


@_jit
def scatter_shards(old, new, tables, arrays, shards, nexts, packed):  # type: ignore[no-untyped-def]
    """Write position << 32 | count of the old shards of a range to their new shards, at `nexts`."""
    for shard in range(shards[0], shards[1]):
        i, j = shard // old.column_blocks, shard % old.column_blocks
        has_mirror = old.symmetric and i != j
        for cell in range(arrays.offsets[0, shard], arrays.offsets[0, shard + 1]):
            row, column = arrays.positions[cell] >> 16, arrays.positions[cell] & 0xFFFF
            count = arrays.counts[cell]
            _put_cell(new, tables.as_row[i, row], tables.as_column[j, column], count, nexts, packed)
            if has_mirror:
                _put_cell(new, tables.as_row[j, column], tables.as_column[i, row], count, nexts, packed)
