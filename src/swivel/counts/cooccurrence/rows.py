"""Count one chunk of a corpus on the CPU, one block of rows at a time.

An inverted index gives the places of every word. For each word of a row block the neighbors of all its occurrences are
added to one dense accumulator; its nonzero entries are then written in storage order. Nothing is sorted.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import BREAK, GAP
from swivel.counts.block_layout import Layout, block_length
from swivel.counts.cooccurrence import window_kernels as kernels
from swivel.counts.cooccurrence.corpus_count import CountPlan, place_parts, split_places, window_weights
from swivel.counts.shards import CellArrays, start_shards
from swivel.runtime.parallel import map_in_order

_SLACK = 64  # places after the last one that are prefetched but never used


def accumulator_shape(layout: Layout, reach: int) -> kernels.CountShape:
    """Return the shape of the accumulator: blocks of a power of two, and padding slots after each part."""
    parts = layout.columns // layout.rows
    stride = max(kernels.LINE, 1 << (layout.largest_rows - 1).bit_length())
    padding = -(-(reach + 1) // kernels.LINE) * kernels.LINE
    return kernels.CountShape(stride, layout.row_blocks, parts, layout.row_blocks * stride + padding, layout.symmetric)


def make_window(config: CountConfig, plan: CountPlan, shape: kernels.CountShape) -> kernels.Window:
    """Return the window in the form the kernels need; the word itself, in the middle, has weight 0."""
    reach = max(plan.left, plan.right)
    left, right = window_weights(config, reach)
    wide = np.concatenate([left[::-1], [0], right]).astype(np.int64)
    parts = place_parts(config, reach)
    return kernels.Window(plan.left, (parts * shape.part_stride).astype(np.uint64), wide.astype(np.uint32), wide)


class ChunkCounter:
    """Counts the chunks of one corpus and reuses its buffers for every chunk."""

    def __init__(self, ids: NDArray[np.uint32], layout: Layout, config: CountConfig, plan: CountPlan) -> None:
        self.ids = ids
        self.layout = layout
        self.plan = plan
        self.threads = plan.threads
        self.reach = max(plan.left, plan.right, 1)
        self.shape = accumulator_shape(layout, plan.left + plan.right)
        self.window = make_window(config, plan, self.shape)

        words = np.arange(layout.rows)
        # Words of a block are adjacent, so the kernel writes the cells of one column block after the other.
        self.slots = ((words % layout.row_blocks) * self.shape.stride + words // layout.row_blocks).astype(np.uint32)
        self._padding_slot = np.uint32(self.shape.blocks * self.shape.stride)

        # One workspace per thread; a thread takes one for each block and puts it back. Nothing else is written by
        # several threads, so counting needs no locks.
        self._spaces: queue.SimpleQueue[_Workspace] = queue.SimpleQueue()
        for _ in range(plan.threads):
            self._spaces.put(_Workspace(self.shape, layout, plan.block_cells))

    def chunks(self) -> list[tuple[int, int]]:
        """Return the ranges of places to count."""
        return split_places(self.ids.size, self.plan.chunk_places)

    def count_chunk(self, first: int, last: int) -> Iterator[tuple[CellArrays, int]]:
        """Yield the cells of each row block of a chunk, and its number of tokens, in the order of the shards."""
        index = self.make_index(first, last)
        tokens = np.diff(index.starts[:: self.shape.stride])  # of each row block
        blocks = range(self.layout.row_blocks)
        pieces = map_in_order(partial(self.count_block, index), blocks, threads=self.threads)
        yield from zip(pieces, tokens.tolist(), strict=True)

    def release(self) -> None:
        """Free the buffers."""
        self._spaces = queue.SimpleQueue()

    def make_index(self, first: int, last: int) -> kernels.Index:
        """Return the inverted index of the places `first` to `last - 1`, with padding between units."""
        # Each thread indexes one range. Tallies of the ranges give each thread its own part of `positions` to write to.
        threads = self.threads
        edges = np.linspace(first, last, threads + 1).astype(np.int64)
        pieces = [self.ids[edges[part] : edges[part + 1]] for part in range(threads)]
        tallies = np.zeros((threads, self.shape.blocks * self.shape.stride), np.int64)

        with ThreadPoolExecutor(threads) as pool:
            # Count the occurrences of every slot, and the breaks that need padding.
            tally = pool.map(lambda part: kernels.tally_range(pieces[part], self.slots, tallies[part]), range(threads))
            lengths = [piece.size + breaks * (self.reach - 1) for piece, breaks in zip(pieces, tally, strict=True)]

            # Give every range and slot its place in `positions`: tallies[part, slot] becomes the index where the thread
            # `part` writes its next place of the slot.
            starts = np.zeros(tallies.shape[1] + 1, np.int64)
            kernels.start_ranges(tallies, starts)

            # Write both arrays; the first and last `reach` places are the context of the chunk.
            places = self.reach + np.cumsum([0, *lengths])
            padded = np.empty(places[-1] + self.reach + _SLACK, np.uint32)
            positions = np.empty(starts[-1] + _SLACK, np.uint32)
            positions[starts[-1] :] = 0
            self._pad_edges(first, last, padded, int(places[-1]))

            def index(part: int) -> None:
                place = places[part]
                nexts = tallies[part]
                kernels.index_range(
                    pieces[part], self.slots, self._padding_slot, self.reach, padded, place, nexts, positions
                )

            list(pool.map(index, range(threads)))

        return kernels.Index(padded, positions, starts)

    def _pad_edges(self, first: int, last: int, padded: NDArray[np.uint32], end: int) -> None:
        """Write the places before and after the chunk, as far as the window reaches."""
        padding = np.full(self.reach, self._padding_slot)
        before = self._pad(self.ids[max(first - self.reach, 0) : first])
        after = self._pad(self.ids[last : last + self.reach])
        padded[: self.reach] = np.concatenate([padding, before])[-self.reach :]
        padded[end : end + self.reach] = np.concatenate([after, padding])[: self.reach]

    def _pad(self, ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        is_word = ids < GAP
        slots = np.full(ids.size, self._padding_slot)
        slots[is_word] = self.slots[ids[is_word]]
        return np.repeat(slots, np.where(ids == BREAK, self.reach, 1))

    def count_block(self, index: kernels.Index, block: int) -> CellArrays:
        """Return the cells of a row block. Threads may call this concurrently."""
        space = self._spaces.get()
        try:
            return space.count_block(self, index, block)
        finally:
            self._spaces.put(space)


class _Workspace:
    """Buffers of one thread."""

    def __init__(self, shape: kernels.CountShape, layout: Layout, block_cells: int) -> None:
        size = shape.parts * shape.part_stride
        touched = np.zeros(size // kernels.GROUP, np.uint8)
        narrow = np.zeros(size, np.uint32)
        wide = np.zeros(size, np.int64)
        self.space = kernels.Space(narrow, wide, touched, touched.view(np.uint64))

        self.ends = np.zeros((layout.largest_rows, layout.column_blocks), np.int64)
        capacity = max(block_cells, shape.parts * shape.blocks * shape.stride) + kernels.GROUP  # at least one row
        self.positions = np.empty(capacity, np.uint32)
        self.counts = np.empty(capacity, np.uint32)

    def count_block(self, counter: ChunkCounter, index: kernels.Index, block: int) -> CellArrays:
        """Return the cells of a row block in shard order, growing the buffers as needed."""
        shape = counter.shape
        layout = counter.layout
        rows = block_length(layout.rows, layout.row_blocks, block)
        slot = block * shape.stride
        max_units = int(index.starts[slot + shape.stride] - index.starts[slot]) * int(counter.window.wide.sum())
        # A large cell has at least SATURATED units, which bounds their number.
        large = np.zeros((2, max_units // kernels.SATURATED + 1), np.int64)
        progress = np.zeros(3, np.int64)

        # The kernel stops before a row that might not fit, and starts there again with larger buffers.
        while True:
            counted = kernels.CountedCells(self.positions, self.counts, self.ends[:rows], large[0], large[1])
            kernels.count_rows(index, counter.window, shape, self.space, block, counted, progress)
            if progress[0] == rows:
                return _group_by_shard(counted, int(progress[1]), int(progress[2]))
            used = int(progress[1])
            self.positions = np.concatenate([self.positions[:used], np.empty(2 * self.counts.size - used, np.uint32)])
            self.counts = np.concatenate([self.counts[:used], np.empty(2 * self.counts.size - used, np.uint32)])


def _group_by_shard(counted: kernels.CountedCells, cells: int, large: int) -> CellArrays:
    lengths = np.zeros(counted.ends.shape[1], np.int64)
    positions = np.empty(cells, np.uint32)
    counts = np.empty(cells, np.uint32)
    large_cells = np.zeros(large, np.int64)
    kernels.group_by_shard(counted, large, lengths, positions, counts, large_cells)

    order = np.argsort(large_cells)  # the side table is sorted by index
    return CellArrays(start_shards(lengths), positions, counts, large_cells[order], counted.large_counts[:large][order])
