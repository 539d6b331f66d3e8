"""Numba kernels of the matrix: marginal sums, merging of runs, re-blocking. They release the GIL."""

from __future__ import annotations

import numpy as np

from swivel.runtime.kernels import njit_cached

SATURATED = np.uint32(0xFFFFFFFF)
GROUP = 16  # columns per byte of `touched`

_jit = njit_cached(nogil=True, boundscheck=False, error_model="numpy")


@_jit
def add_sums(row_blocks, column_blocks, symmetric, first, lengths, positions, counts, row_sums, column_sums):  # type: ignore[no-untyped-def]
    """Add the cells of the shards that start at `first` to the sums of their rows and columns."""
    # In a symmetric layout `column_sums` is the same array as `row_sums`. A diagonal shard stores x_ij and x_ji, so its
    # cells are added to the rows only.
    cell = 0
    for number in range(lengths.size):
        row_block = (first + number) // column_blocks
        column_block = (first + number) % column_blocks
        add_columns = not (symmetric and row_block == column_block)

        for _ in range(lengths[number]):
            # Row r of the matrix is row_block + local row * row_blocks, because blocks are interleaved.
            count = np.int64(counts[cell])
            row_sums[row_block + np.int64(positions[cell] >> 16) * row_blocks] += count
            if add_columns:
                column_sums[column_block + np.int64(positions[cell] & 0xFFFF) * column_blocks] += count
            cell += 1


@_jit
def _true_count(arrays, cell):  # type: ignore[no-untyped-def]
    count = arrays.counts[cell]
    if count == SATURATED:  # the exact count is in the side table, sorted by cell
        return arrays.large_counts[np.searchsorted(arrays.large_cells, cell)]
    return np.int64(count)


@_jit
def _merge_shard(runs, shard, cursors, acc, touched, positions, units, used):  # type: ignore[no-untyped-def]
    """Merge one shard of all runs, append its cells at `used`, and return the new `used`."""
    # Rows are merged one at a time: their units are summed in `acc`, one entry per local column. `touched` marks the
    # groups of columns that are not zero, so that the scan skips the others. Both are zero again at the end.
    total = cursors.size
    for run in range(total):
        cursors[run] = runs.offsets[run, shard]

    while True:
        # The next row is the smallest one that any run has left; local rows are below 2^16.
        row = np.int64(1 << 16)
        for run in range(total):
            if cursors[run] < runs.offsets[run, shard + 1]:
                row = min(row, np.int64(runs.positions[cursors[run]] >> 16))

        if row == 1 << 16:
            return used

        # Sum the cells of this row over all runs.
        for run in range(total):
            cell = cursors[run]
            last = runs.offsets[run, shard + 1]

            # Cells of a run are sorted, so those of the row are the next ones; the cursor stops at the row after it.
            while cell < last and np.int64(runs.positions[cell] >> 16) == row:
                column = np.int64(runs.positions[cell] & 0xFFFF)
                acc[column] += _true_count(runs, cell)
                touched[column >> 4] = 1
                cell += 1

            cursors[run] = cell

        # Write the sums in column order and clear the accumulator.
        for group in range(touched.size):
            if touched[group]:
                touched[group] = 0
                for local_column in range(group * GROUP, group * GROUP + GROUP):
                    if acc[local_column]:
                        positions[used] = row << 16 | local_column
                        units[used] = acc[local_column]
                        acc[local_column] = 0
                        used += 1


@_jit
def merge_shards(runs, first, lengths, columns, positions, units):  # type: ignore[no-untyped-def]
    """Merge the shards that start at `first`, write the cells of each to `lengths`, and return the total."""
    groups = (columns + GROUP - 1) // GROUP
    # One accumulator for all shards: it is zero between rows, so it is never cleared as a whole.
    acc = np.zeros(groups * GROUP, np.int64)
    touched = np.zeros(groups, np.uint8)
    cursors = np.zeros(runs.offsets.shape[0], np.int64)
    used = 0

    for number in range(lengths.size):
        before = used
        used = _merge_shard(runs, first + number, cursors, acc, touched, positions, units, used)
        lengths[number] = used - before

    return used


@_jit
def _put_cell(new, row, column, count, nexts, packed):  # type: ignore[no-untyped-def]
    """Write a cell, given by its table entries, to its new shard, unless only its mirror is stored."""
    column_blocks, symmetric = new
    row_block = row >> 16
    column_block = column >> 16
    if symmetric and row_block > column_block:
        return

    shard = row_block * column_blocks + column_block
    if packed.size:
        position = (row & 0xFFFF) << 16 | (column & 0xFFFF)
        packed[nexts[shard]] = np.uint64(position) << np.uint64(32) | np.uint64(count)
    nexts[shard] += 1


@_jit
def move_cells(old, new, as_row, as_column, arrays, shards, nexts, packed):  # type: ignore[no-untyped-def]
    """Write the cells of a range of old shards to their new shards, as position << 32 | count."""
    # `as_row` and `as_column` are new block << 16 | new local position for each [old block, old local position].
    # Looking positions up in tables instead of dividing saved 20 to 33 % of the CPU time of re-blocking 64 M cells (one
    # run each, on a machine with other load). For a symmetric matrix the two tables are equal. `nexts[shard]` is the
    # next free index of each new shard in `packed`. If `packed` is empty, cells are only counted, in `nexts`. Each
    # thread has its own range and its own `nexts`, so no two threads write to the same index. `old` and `new` are the
    # number of column blocks of each layout and whether it is symmetric.
    old_columns, old_symmetric = old
    for shard in range(shards[0], shards[1]):
        i = shard // old_columns
        j = shard % old_columns
        has_mirror = old_symmetric and i != j

        for cell in range(arrays.offsets[0, shard], arrays.offsets[0, shard + 1]):
            row = arrays.positions[cell] >> 16
            column = arrays.positions[cell] & 0xFFFF
            count = arrays.counts[cell]
            _put_cell(new, as_row[i, row], as_column[j, column], count, nexts, packed)
            # The mirror may belong to a new shard that is stored, even if this cell does not.
            if has_mirror:
                _put_cell(new, as_row[j, column], as_column[i, row], count, nexts, packed)


@_jit
def count_pairs(items, after, places, starts, span, block):  # type: ignore[no-untyped-def]
    """Write the cells of the items of a span to `block`: item, item behind it, units. Return the number of cells."""
    # `items` are those of all baskets, and `after` the number of items that each is paired with. The occurrences of
    # item n are `places[starts[n] : starts[n + 1]]`.
    sums = np.zeros(starts.size - 1, np.int64)
    used = 0

    for item in range(span[0], span[1]):
        before = used
        for occurrence in range(starts[item], starts[item + 1]):
            place = places[occurrence]
            for distance in range(after[place]):
                other = items[place + distance + 1]
                # A sum of 0 marks an item that this one has not met.
                if sums[other] == 0:
                    block[1, used] = other
                    used += 1
                sums[other] += 1

        # Write the sums, and clear them for the next item: only those that were changed.
        for cell in range(before, used):
            other = block[1, cell]
            block[0, cell] = item
            block[2, cell] = sums[other]
            sums[other] = 0

    return used


@_jit
def count_event_pairs(persons, codes, times, gap, is_each, span, block):  # type: ignore[no-untyped-def]
    """Write the cells of the persons whose events are in a span: code, larger code, units. Return their number."""
    # Events are sorted by person, code and time. For two codes of a person, `low` and `high` bound the events of the
    # second that are not further than `gap` from one of the first; both only move forward.
    used = 0
    begin = span[0]
    while begin < span[1]:
        end = begin + 1
        while end < span[1] and persons[end] == persons[begin]:
            end += 1

        first = begin
        while first < end:
            second = first + 1
            while second < end and codes[second] == codes[first]:
                second += 1
            next_first = second

            while second < end:
                last = second + 1
                while last < end and codes[last] == codes[second]:
                    last += 1

                units = 0
                low = second
                high = second
                for event in range(first, next_first):
                    while low < last and times[event] - times[low] > gap:
                        low += 1
                    while high < last and times[high] - times[event] <= gap:
                        high += 1
                    units += high - low

                if units > 0:
                    block[0, used] = codes[first]
                    block[1, used] = codes[second]
                    block[2, used] = units if is_each else 1
                    used += 1
                second = last
            first = next_first
        begin = end

    return used
