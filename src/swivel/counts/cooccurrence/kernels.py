"""The compiled loops of counting. Plain functions over arrays; threads call them without the interpreter's lock.

Legend: a *slot* is a place of a word in the accumulator, `(word % blocks) * stride + word // blocks`, so that the
words of one block lie together; slots of no word take what falls on the places between two units. A *padded* corpus
holds slots instead of ids, with as many empty places between two units as a window reaches: no window needs a test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from swivel.corpus.sentinels import BREAK, GAP

GROUP = 16  # accumulators behind one byte of `touched`: one line of cache of uint32
LINE = 128  # accumulators behind eight bytes of `touched`, which are looked at together
SATURATED = 0xFFFFFFFF
AHEAD = 12  # occurrences between asking for a line of the corpus and using it; 6 to 40 did alike, 0 took 3x as long

_POINTER = ir.IntType(8).as_pointer()

# Places are uint64 in the inner loops: numba looks whether a signed index counts from the end.
_jit = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")


def _make_prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the line of cache that holds array[index]; never faults."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        number = ir.IntType(32)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), _POINTER)
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [_POINTER], kind)
        builder.call(function, [address, *(ir.Constant(number, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


_prefetch: Any = intrinsic(_make_prefetch)


def _make_lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Return the place of the lowest bit that is set."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


_lowest_bit: Any = intrinsic(_make_lowest_bit)


def _make_nonzero_lanes(typing_context: Any, array: Any, first: Any) -> Any:
    """Return which of the GROUP values from `first` on are not 0, a bit each: one comparison of vectors."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        lanes = ir.VectorType(data.type.pointee, GROUP)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), lanes.as_pointer())
        values = builder.load(address, align=data.type.pointee.width // 8)
        differs = builder.icmp_unsigned("!=", values, ir.Constant(lanes, None))
        return builder.zext(builder.bitcast(differs, ir.IntType(GROUP)), ir.IntType(64))

    return types.uint64(array, types.uint64), codegen


_nonzero_lanes: Any = intrinsic(_make_nonzero_lanes)


@_jit
def tally_range(ids, slots, tallies):  # type: ignore[no-untyped-def]
    """Add the occurrences of every slot to `tallies`; return how many breaks there are."""
    breaks = 0
    for position in range(ids.size):
        word = ids[position]
        if word < GAP:
            tallies[slots[word]] += 1
        elif word == BREAK:
            breaks += 1
    return breaks


@_jit
def start_ranges(tallies, starts):  # type: ignore[no-untyped-def]
    """Turn tallies [range, slot] into the first index of each, slot by slot; `starts` gets the slots' own."""
    index = 0
    for slot in range(tallies.shape[1]):
        starts[slot] = index
        for part in range(tallies.shape[0]):
            count = tallies[part, slot]
            tallies[part, slot] = index
            index += count
    starts[tallies.shape[1]] = index


@_jit
def index_range(ids, slots, nobody, reach, padded, place, nexts, positions):  # type: ignore[no-untyped-def]
    """Write a range of the corpus as slots from `place` on, and the places of every slot at its `nexts`."""
    for index in range(ids.size):
        word = ids[index]
        if word < GAP:
            slot = slots[word]
            padded[place] = slot
            positions[nexts[slot]] = place
            nexts[slot] += 1
            place += 1
        elif word == GAP:
            padded[place] = nobody
            place += 1
        else:
            for step in range(reach):
                padded[place] = nobody + step
                place += 1


class Index(NamedTuple):
    """Part of a corpus: slots by place, the places of every slot, and where each slot's begin."""

    padded: np.ndarray
    positions: np.ndarray
    starts: np.ndarray


class Window(NamedTuple):
    """For each place of the window: what its part of the accumulator begins at, and its weight."""

    left: int
    offsets: np.ndarray
    narrow: np.ndarray
    wide: np.ndarray


class CountShape(NamedTuple):
    """Slots of a block of words, blocks, parts of a word's columns, slots between two parts, mirrors left out."""

    stride: int
    blocks: int
    parts: int
    part_stride: int
    symmetric: bool


class Space(NamedTuple):
    """What a thread works in: two accumulators, and which groups of them were touched."""

    narrow: np.ndarray
    wide: np.ndarray
    touched: np.ndarray
    lines: np.ndarray


class CountedCells(NamedTuple):
    """Cells row by row, and `ends[row, column block]`; saturated ones with their index in a list of their own."""

    positions: np.ndarray
    counts: np.ndarray
    ends: np.ndarray
    large_cells: np.ndarray
    large_counts: np.ndarray


@_jit
def _add_occurrences(acc, touched, index, first, last, window, weights):  # type: ignore[no-untyped-def]
    padded, positions, offsets, left = index.padded, index.positions, window.offsets, window.left
    for occurrence in range(first, last):
        ahead = np.intp(positions[occurrence + AHEAD]) - left
        _prefetch(padded, ahead)
        _prefetch(padded, ahead + 16)
        _prefetch(padded, ahead + offsets.size)
        start = np.uint64(positions[occurrence]) - np.uint64(left)
        for step in range(offsets.size):
            place = offsets[step] + np.uint64(padded[start + np.uint64(step)])
            acc[place] += weights[step]
            touched[place >> np.uint64(4)] = 1


@_jit
def _forget(acc, space, first, last):  # type: ignore[no-untyped-def]
    """Set the accumulators from `first` up to `last` back to 0."""
    for line in range(first // LINE, last // LINE):
        touched = space.lines[line]
        space.lines[line] = 0
        while touched:
            place = np.uint64(line * LINE) + (_lowest_bit(touched) >> np.uint64(3)) * np.uint64(GROUP)
            touched &= touched - np.uint64(1)
            for lane in range(GROUP):
                acc[place + np.uint64(lane)] = 0


@_jit
def _emit_group(acc, first, base, found, used, large):  # type: ignore[no-untyped-def]
    """Append what one group of the accumulator holds; positions are `base` + place."""
    mask = _nonzero_lanes(acc, first)
    while mask:
        place = first + _lowest_bit(mask)
        mask &= mask - np.uint64(1)
        value = acc[place]
        if value >= SATURATED:
            found.large_cells[large] = used
            found.large_counts[large] = value
            large += 1
            value = SATURATED
        found.positions[used] = base + np.uint32(place)
        found.counts[used] = value
        used += 1
    for lane in range(GROUP):
        acc[first + np.uint64(lane)] = 0
    return used, large


@_jit
def _emit_block(acc, space, start, stride, row, found, used, large):  # type: ignore[no-untyped-def]
    """Append what one block of the accumulator holds, in the order of columns, and set it back to 0."""
    base = np.uint32(row << 16) - np.uint32(start)
    for line in range(start // LINE, (start + stride) // LINE):
        touched = space.lines[line]
        space.lines[line] = 0
        while touched:
            first = np.uint64(line * LINE) + (_lowest_bit(touched) >> np.uint64(3)) * np.uint64(GROUP)
            touched &= touched - np.uint64(1)
            used, large = _emit_group(acc, first, base, found, used, large)
    return used, large


@_jit
def _emit_row(acc, space, shape, block, row, found, used, large):  # type: ignore[no-untyped-def]
    lead = 0
    if shape.symmetric:
        lead = block
        _forget(acc, space, 0, lead * shape.stride)
        for column_block in range(lead):
            found.ends[row, column_block] = used
    for word_block in range(lead, shape.blocks):
        for part in range(shape.parts):
            start = part * shape.part_stride + word_block * shape.stride
            used, large = _emit_block(acc, space, start, shape.stride, row, found, used, large)
            found.ends[row, word_block * shape.parts + part] = used
    return used, large


@_jit
def count_rows(index, window, shape, space, block, found, progress):  # type: ignore[no-untyped-def]
    """Count the rows of a block from `progress` = [row, cells, large cells] on, until all are done or no room is left.

    A row whose sum fits in 32 bits goes through the narrow accumulator, which keeps more of it in the cache.
    """
    row, used, large = progress[0], progress[1], progress[2]
    most_columns = (shape.blocks - (block if shape.symmetric else 0)) * shape.parts * shape.stride
    narrow_most = SATURATED // max(window.wide.sum(), 1)
    while row < found.ends.shape[0]:
        slot = block * shape.stride + row
        first, last = index.starts[slot], index.starts[slot + 1]
        if used + min((last - first) * window.wide.size, most_columns) + GROUP > found.counts.size:
            break
        if last - first < narrow_most:
            _add_occurrences(space.narrow, space.touched, index, first, last, window, window.narrow)
            used, large = _emit_row(space.narrow, space, shape, block, row, found, used, large)
        else:
            _add_occurrences(space.wide, space.touched, index, first, last, window, window.wide)
            used, large = _emit_row(space.wide, space, shape, block, row, found, used, large)
        row += 1
    progress[0], progress[1], progress[2] = row, used, large


@_jit
def group_by_shard(found, large, lengths, positions, counts, large_cells):  # type: ignore[no-untyped-def]
    """Copy cells that lie row by row to shard by shard; `large_cells` gets the new indexes of the large ones."""
    rows, blocks = found.ends.shape
    nexts = np.zeros(blocks, np.int64)
    first = 0
    for row in range(rows):
        for block in range(blocks):
            lengths[block] += found.ends[row, block] - first
            first = found.ends[row, block]
    for block in range(1, blocks):
        nexts[block] = nexts[block - 1] + lengths[block - 1]
    first, seen = 0, 0
    for row in range(rows):
        for block in range(blocks):
            last, target = found.ends[row, block], nexts[block]
            for cell in range(first, last):
                positions[target] = found.positions[cell]
                counts[target] = found.counts[cell]
                target += 1
            while seen < large and found.large_cells[seen] < last:
                large_cells[seen] = nexts[block] + found.large_cells[seen] - first
                seen += 1
            nexts[block], first = target, last


@_jit
def survey_range(ids, words, is_sampled, places):  # type: ignore[no-untyped-def]
    """Return what planning needs to know of a range: tokens, breaks, runs of places, the first wrong id.

    The places of sampled words are written to `places`, from index 0 on. Runs: before the first break, the longest,
    after the last break.
    """
    tokens = breaks = run = longest = sampled = 0
    head, wrong = -1, -1
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
            head = run - 1 if head < 0 else head
            longest = max(longest, run - 1)
            breaks, run = breaks + 1, 0
        elif word != GAP and wrong < 0:
            wrong = place
    head = run if head < 0 else head
    return np.array([tokens, breaks, head, max(longest, run), run, sampled, wrong])


@_jit
def sample_row(ids, places, parts, left, words, stamps, stamp):  # type: ignore[no-untyped-def]
    """Return how many distinct columns one word has, from the places where it occurs."""
    distinct = 0
    for occurrence in range(places.size):
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
