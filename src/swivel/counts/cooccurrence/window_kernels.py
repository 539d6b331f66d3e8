"""Numba kernels of co-occurrence counting. They release the GIL, so threads run them in parallel.

A *slot* is the position of a word in the accumulator, `(word % blocks) * stride + word // blocks`: the words of a block
are adjacent. Slots from `blocks * stride` on belong to no word; padding between units is counted there and never read.
A *padded* corpus holds slots instead of ids, with as many padding slots between two units as the window reaches, so
that the inner loop needs no test for the end of a unit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from swivel.corpus.vocabulary import BREAK, GAP
from swivel.runtime.kernels import njit_cached

GROUP = 16  # accumulators per byte of `touched`: one cache line of uint32
LINE = 128  # accumulators per eight bytes of `touched`, which are tested together
SATURATED = 0xFFFFFFFF
# Prefetch distance in occurrences: 6 to 40 are equally fast; without prefetching the loop takes 3 times as long.
AHEAD = 12

_POINTER = ir.IntType(8).as_pointer()
_intrinsic: Any = intrinsic  # its type annotations do not know that callers leave out the typing context

# Indexes are uint64 in the inner loops: for signed ones numba adds a test for negative values.
_jit = njit_cached(nogil=True, boundscheck=False, error_model="numpy")


@_intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of array[index]. An index out of range is harmless."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        number = ir.IntType(32)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), _POINTER)
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_POINTER], kind)
        flags = (0, 3, 1)  # read access, keep in all cache levels, data cache
        builder.call(function, [address, *(ir.Constant(number, value) for value in flags)])

        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@_intrinsic
def _lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the index of the lowest set bit."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@_intrinsic
def _nonzero_lanes(typing_context: Any, array: Any, first: Any) -> Any:
    """Return a bit mask of the nonzero values among the GROUP values from `first` on, in one vector comparison."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        lanes = ir.VectorType(data.type.pointee, GROUP)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), lanes.as_pointer())
        values = builder.load(address, align=data.type.pointee.width // 8)
        differs = builder.icmp_unsigned("!=", values, ir.Constant(lanes, None))
        return builder.zext(builder.bitcast(differs, ir.IntType(GROUP)), ir.IntType(64))

    return types.uint64(array, types.uint64), codegen


@_jit
def tally_range(ids, slots, tallies):  # type: ignore[no-untyped-def]
    """Add the number of occurrences of every slot to `tallies` and return the number of unit breaks."""
    breaks = 0
    for position in range(ids.size):
        word = ids[position]
        if word < GAP:  # GAP and BREAK are the two largest ids
            tallies[slots[word]] += 1
        elif word == BREAK:
            breaks += 1

    return breaks


@_jit
def start_ranges(tallies, starts):  # type: ignore[no-untyped-def]
    """Replace tallies [range, slot] by their first index in `positions`; write the starts of the slots to `starts`."""
    index = 0
    for slot in range(tallies.shape[1]):
        starts[slot] = index
        for part in range(tallies.shape[0]):
            count = tallies[part, slot]
            tallies[part, slot] = index
            index += count

    starts[tallies.shape[1]] = index


@_jit
def index_range(ids, slots, padding_slot, reach, padded, place, nexts, positions):  # type: ignore[no-untyped-def]
    """Write a range of the corpus to `padded` from `place` on, and the occurrences of every slot to `positions`."""
    for index in range(ids.size):
        word = ids[index]

        if word < GAP:
            slot = slots[word]
            padded[place] = slot
            # Places are visited in order, so those of each slot are ascending.
            positions[nexts[slot]] = place
            nexts[slot] += 1
            place += 1
        elif word == GAP:
            padded[place] = padding_slot
            place += 1
        else:  # the end of a unit: as much padding as the window reaches
            for step in range(reach):
                padded[place] = padding_slot + step
                place += 1


class Index(NamedTuple):
    """Inverted index of part of a corpus.

    `padded[place]` is the slot at a place; `positions[starts[slot] : starts[slot + 1]]` are the places of a slot.
    """

    padded: np.ndarray
    positions: np.ndarray
    starts: np.ndarray


class Window(NamedTuple):
    """For each place of the window: the offset of its part in the accumulator, and its weight as uint32 and int64."""

    left: int
    offsets: np.ndarray
    narrow: np.ndarray
    wide: np.ndarray


class CountShape(NamedTuple):
    """Shape of the accumulator: `parts` parts of `part_stride` slots, each with `blocks` blocks of `stride` slots."""

    stride: int
    blocks: int
    parts: int
    part_stride: int
    symmetric: bool


class Space(NamedTuple):
    """Buffers of one thread: two accumulators, and a byte for each group that is not zero.

    `lines` is a view of `touched` as uint64, to test eight groups at a time.
    """

    narrow: np.ndarray
    wide: np.ndarray
    touched: np.ndarray
    lines: np.ndarray


class CountedCells(NamedTuple):
    """Cells row by row; `ends[row, column block]` is the index after the last cell of each part of a row.

    Saturated cells are also in `large_cells` (index) and `large_counts` (exact units).
    """

    positions: np.ndarray
    counts: np.ndarray
    ends: np.ndarray
    large_cells: np.ndarray
    large_counts: np.ndarray


@_jit
def _add_occurrences(acc, touched, index, first, last, window, weights):  # type: ignore[no-untyped-def]
    """Add the windows around the given occurrences of a word to the accumulator."""
    padded = index.padded
    positions = index.positions
    offsets = window.offsets
    left = window.left

    for occurrence in range(first, last):
        # A window spans up to three cache lines of the corpus.
        ahead = np.intp(positions[occurrence + AHEAD]) - left
        _prefetch(padded, ahead)
        _prefetch(padded, ahead + 16)
        _prefetch(padded, ahead + offsets.size)

        start = np.uint64(positions[occurrence]) - np.uint64(left)

        # No test for the word itself (weight 0), for padding (its slots are never read) or for parts (in `offsets`).
        for step in range(offsets.size):
            place = offsets[step] + np.uint64(padded[start + np.uint64(step)])
            acc[place] += weights[step]
            touched[place >> np.uint64(4)] = 1


@_jit
def _clear(acc, space, first, last):  # type: ignore[no-untyped-def]
    """Reset the accumulators from `first` to `last - 1` to 0."""
    for line in range(first // LINE, last // LINE):
        # Each byte of `touched` is one group: its lowest set bit, divided by 8, is the first group that is not zero.
        touched = space.lines[line]
        space.lines[line] = 0
        while touched:
            place = np.uint64(line * LINE) + (_lowest_bit(touched) >> np.uint64(3)) * np.uint64(GROUP)
            touched &= touched - np.uint64(1)
            for lane in range(GROUP):
                acc[place + np.uint64(lane)] = 0


@_jit
def _emit_group(acc, first, base, cells, used, large):  # type: ignore[no-untyped-def]
    """Append the nonzero counts of one group as cells at `base` + place, and reset the group to 0."""
    mask = _nonzero_lanes(acc, first)
    while mask:
        place = first + _lowest_bit(mask)
        mask &= mask - np.uint64(1)
        value = acc[place]

        if value >= SATURATED:
            cells.large_cells[large] = used
            cells.large_counts[large] = value
            large += 1
            value = SATURATED

        cells.positions[used] = base + np.uint32(place)
        cells.counts[used] = value
        used += 1

    for lane in range(GROUP):
        acc[first + np.uint64(lane)] = 0

    return used, large


@_jit
def _emit_block(acc, space, start, stride, row, cells, used, large):  # type: ignore[no-untyped-def]
    """Append the nonzero counts of one block as cells in column order, and reset the block to 0."""
    # base + place = row << 16 | local column, because place - start is the local column; both wrap modulo 2^32.
    base = np.uint32(row << 16) - np.uint32(start)
    for line in range(start // LINE, (start + stride) // LINE):
        touched = space.lines[line]
        space.lines[line] = 0
        while touched:
            first = np.uint64(line * LINE) + (_lowest_bit(touched) >> np.uint64(3)) * np.uint64(GROUP)
            touched &= touched - np.uint64(1)
            used, large = _emit_group(acc, first, base, cells, used, large)

    return used, large


@_jit
def _emit_row(acc, space, shape, block, row, cells, used, large):  # type: ignore[no-untyped-def]
    """Append the cells of one row, block by block; a symmetric matrix stores only column blocks >= `block`."""
    lead = 0
    if shape.symmetric:
        # The inner loop also adds columns of earlier blocks, whose mirrors are stored instead: discard them.
        lead = block
        _clear(acc, space, 0, lead * shape.stride)
        for column_block in range(lead):
            cells.ends[row, column_block] = used

    for word_block in range(lead, shape.blocks):
        for part in range(shape.parts):
            start = part * shape.part_stride + word_block * shape.stride
            used, large = _emit_block(acc, space, start, shape.stride, row, cells, used, large)
            cells.ends[row, word_block * shape.parts + part] = used

    return used, large


@_jit
def count_rows(index, window, shape, space, block, cells, progress):  # type: ignore[no-untyped-def]
    """Count the rows of a block, starting at `progress` = [row, cells, large cells]."""
    # Stop when all rows are counted or the next row might not fit in `cells`; `progress` then holds the new position. A
    # row whose sum fits in 32 bits uses the narrow accumulator, more of which fits in the cache.
    # Locals instead of entries of `progress`, so that they stay in registers.
    row = progress[0]
    used = progress[1]
    large = progress[2]
    skipped = block if shape.symmetric else 0
    max_columns = (shape.blocks - skipped) * shape.parts * shape.stride
    # Occurrences of a word whose counts cannot exceed 32 bits: each adds at most the sum of the window.
    max_narrow = SATURATED // max(window.wide.sum(), 1)

    while row < cells.ends.shape[0]:
        slot = block * shape.stride + row
        first = index.starts[slot]
        last = index.starts[slot + 1]
        # A row has at most one cell per neighbor, and one per column.
        if used + min((last - first) * window.wide.size, max_columns) + GROUP > cells.counts.size:
            break

        if last - first < max_narrow:
            _add_occurrences(space.narrow, space.touched, index, first, last, window, window.narrow)
            used, large = _emit_row(space.narrow, space, shape, block, row, cells, used, large)
        else:
            _add_occurrences(space.wide, space.touched, index, first, last, window, window.wide)
            used, large = _emit_row(space.wide, space, shape, block, row, cells, used, large)

        row += 1

    progress[0] = row
    progress[1] = used
    progress[2] = large


@_jit
def group_by_shard(cells, large, lengths, positions, counts, large_cells):  # type: ignore[no-untyped-def]
    """Copy cells from row order to shard order; write the new indexes of the large cells to `large_cells`."""
    rows, blocks = cells.ends.shape
    nexts = np.zeros(blocks, np.int64)
    first = 0

    for row in range(rows):
        for block in range(blocks):
            lengths[block] += cells.ends[row, block] - first
            first = cells.ends[row, block]

    for block in range(1, blocks):
        nexts[block] = nexts[block - 1] + lengths[block - 1]

    # Counting sort by column block: rows are visited in order, so cells stay ascending inside a shard.
    first = 0
    seen = 0  # large cells copied so far

    for row in range(rows):
        for block in range(blocks):
            last = cells.ends[row, block]
            target = nexts[block]

            for cell in range(first, last):
                positions[target] = cells.positions[cell]
                counts[target] = cells.counts[cell]
                target += 1

            while seen < large and cells.large_cells[seen] < last:
                large_cells[seen] = nexts[block] + cells.large_cells[seen] - first
                seen += 1

            nexts[block] = target
            first = last


@_jit
def survey_range(ids, words, is_sampled, places):  # type: ignore[no-untyped-def]
    """Return tokens, breaks, three unit lengths, sampled places and the first wrong id (or -1) of a range."""
    # The lengths are those before the first break, of the longest unit, and after the last break. The places of sampled
    # words are written to `places`, from index 0 on.
    tokens = breaks = run = longest = sampled = 0
    head = -1
    wrong = -1

    for place in range(ids.size):
        word = ids[place]
        run += 1
        if word < words:
            tokens += 1
            if is_sampled[word]:
                if sampled < places.size:
                    places[sampled] = place
                sampled += 1
        elif word == BREAK:
            if head < 0:
                head = run - 1
            longest = max(longest, run - 1)
            breaks += 1
            run = 0
        elif word != GAP and wrong < 0:
            wrong = place

    if head < 0:
        head = run

    return np.array([tokens, breaks, head, max(longest, run), run, sampled, wrong])


@_jit
def sample_row(ids, places, parts, left, words, stamps, stamp):  # type: ignore[no-untyped-def]
    """Return the number of distinct columns of one word, from the places where it occurs."""
    # `stamps[column] == stamp` marks a column as seen, so that the array need not be cleared for the next word.
    distinct = 0
    for occurrence in range(places.size):
        # Outwards from the word, so that a break ends one side.
        for direction in (-1, 1):
            side = left if direction < 0 else parts.size - left - 1
            for distance in range(1, side + 1):
                place = places[occurrence] + direction * distance
                if place < 0 or place >= ids.size or ids[place] == BREAK:
                    break
                if ids[place] == GAP:
                    continue

                column = parts[left + direction * distance] * words + np.intp(ids[place])
                distinct += stamps[column] != stamp
                stamps[column] = stamp

    return distinct
