"""The observed cells of a matrix, sorted into the slots of their blocks once, before the first step.

`DeviceCells` reads the cells in the blocks in which they are stored and sorts them on the device into the blocks that
are trained, so that no second copy of the matrix on disk is needed. If they do not fit on the device, it sorts them in
groups and keeps them in host memory, and `CellFeed` copies the cells of a batch while the previous one is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts.builder import STORED_BYTES
from swivel.counts.matrix_cells import MatrixCells
from swivel.counts.shards import shard_ranges
from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes
from swivel.training.backends.triton.cuda_streams import (
    CopyQueue,
    HostMemory,
    Mark,
    Uploader,
    record_mark,
    wait_on_device,
)
from swivel.training.backends.triton.memory_plan import (
    BUFFERS,
    MAX_SHORT_SLOTS,
    PIECE_BYTES,
    SHARD_BYTES,
    SORT_BYTES,
    entry_bytes,
)
from swivel.training.backends.triton.slot_layout import SlotLayout

Tensor = torch.Tensor
PIECE = 1 << 24  # maximum of cells that are read at a time
GROUP = 1 << 27  # maximum of entries that are sorted at a time
_Cells = tuple[Tensor, ...]  # shards of some cells, their local rows and columns there, and their counts
Copy = tuple[int, int, int]  # begin and end in host memory, first entry on the device
EntryArrays = tuple[Tensor, ...]  # slots, positions and counts on the device; see `DeviceCells`
# For each of the buffers: targets and sources of the copies of a batch. Making these views takes the host as long as
# submitting the copies, so that they are made once.
Copies = list[list[tuple[Tensor, Tensor]]]


@dataclass(frozen=True, slots=True)
class ShardCells:
    """Position of the cells of a shard, and its shape in the orientation of the cells."""

    begin: int  # its first entry
    end: int
    mirrored: bool
    rows: int
    columns: int

    @property
    def entries(self) -> int:
        """Number of entries, which are its observed cells."""
        return self.end - self.begin


class DeviceCells:
    """All observed cells of a matrix, sorted by block and slot."""

    # Of every entry: its slot within the shard (int16, or int32 if there are many slots), the position of the cell in
    # its tile (int16), and the count (float32).
    slots: Tensor
    positions: Tensor
    counts: Tensor

    # Of every shard: first entry if the shards are in row-major order (and the end), and first entry in `positions` and
    # `counts`.
    _begins: NDArray[np.int64]
    _kept_at: NDArray[np.int64]
    largest: int  # number of entries of the largest shard
    _reading_bytes: int  # device memory that reading needs, besides the sorted entries

    def __init__(
        self,
        layout: SlotLayout,
        device: torch.device,
        *,
        resident_bytes: float = math.inf,
        temporary_bytes: float = math.inf,
        host: HostMemory | None = None,
        groups: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> None:
        self.layout = layout
        self.device = device
        self.entry_bytes = entry_bytes(layout.slot_count)
        # Device memory that the cells may use: during the whole training, and while they are sorted.
        self.resident_bytes = resident_bytes
        self.temporary_bytes = temporary_bytes
        self.groups = groups  # starts of the groups of row blocks and of column blocks; empty: all in one
        self.on_host = False  # whether the entries are in host memory
        self.symmetric = False  # whether only blocks (i, j) with i <= j are laid out
        self._host = host or HostMemory(device)

    def find(self, block: tuple[int, int]) -> ShardCells:
        """Return the position of the cells of a block."""
        mirrored = self.symmetric and block[0] > block[1]
        i, j = reversed(block) if mirrored else block

        shard = i * self.layout.blocks[1] + j
        begin = int(self._kept_at[shard])
        end = begin + int(self._begins[shard + 1] - self._begins[shard])
        return ShardCells(begin, end, mirrored, self.layout.sizes[0][i], self.layout.sizes[1][j])

    def take(self, stored: MatrixCells) -> None:
        """Read and sort the cells of a whole matrix: count them, allocate memory for them, and sort them in groups."""
        blocks = self.layout.blocks
        self.symmetric = stored.layout.symmetric and blocks[0] == blocks[1]
        total = len(stored.arrays.counts)

        # Reading uses at most an eighth of the temporary memory, and so do the stored cells. If they take more, they
        # are copied to the device again for every group.
        share = self.temporary_bytes / 8
        size = int(max(1, min(PIECE, share / PIECE_BYTES)))
        keep = total * STORED_BYTES <= share
        self._reading_bytes = min(size, total) * PIECE_BYTES + SHARD_BYTES * math.prod(blocks)
        if keep:
            self._reading_bytes += total * STORED_BYTES
        source = _StoredCells(stored, blocks, self.symmetric, self.device, self._host, keep=keep)
        pieces = [(first, min(first + size, total)) for first in range(0, total, size)]

        ranges = self._count(source, pieces)
        self.on_host = self._must_stream()
        self._kept_at = self._order_for_rounds() if self.on_host else self._begins[:-1]
        slot_type = np.int16 if self.layout.slot_count <= MAX_SHORT_SLOTS else np.int32
        self.slots, self.positions, self.counts = (self._empty(dtype) for dtype in (slot_type, np.int16, np.float32))

        for first, last in self._groups():
            # Groups and pieces are both ranges of neighboring shards: most pairs have no cell in common.
            relevant = [piece for piece, (low, high) in zip(pieces, ranges, strict=True) if low < last and first < high]
            self._fill_group(source, relevant, first, last)

    def _empty(self, dtype: type[np.generic]) -> Tensor:
        """Return a new array where the entries are kept."""
        size = int(self._begins[-1])
        if self.on_host:
            return self._host.empty((size,), dtype)
        return torch.from_numpy(np.empty(0, dtype)).new_empty(size, device=self.device)

    def _count(self, source: _StoredCells, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Count the entries of every shard; return, for each piece, the range of the shards it has cells of."""
        count = math.prod(self.layout.blocks)
        entries = np.zeros(count, np.int64)
        ranges = []

        for piece in pieces:
            low, high = count, 0
            for cells in source.read(*piece):
                if not len(cells[0]):
                    continue
                added = torch.bincount(cells[0]).cpu().numpy()
                entries[: len(added)] += added
                low = min(low, int(cells[0].min()))
                high = max(high, len(added))
            ranges.append((low, high))

        self.largest = int(entries.max(initial=0))
        self._begins = np.concatenate([[0], np.cumsum(entries)])
        return ranges

    def _make_keys(self, cells: _Cells) -> Tensor:
        """Return (shard * slot_count + slot) << 16 | position for each cell."""
        shards, rows, columns, _ = cells
        layout, tile = self.layout, self.layout.tile
        slots = (rows // tile.rows) * layout.tiles[1] + columns // tile.columns

        # The order of the margins of a tile in shared memory; see `step_kernels.gradient`.
        column = columns % tile.columns
        places = (column // 8) * (8 * tile.rows) + (rows % tile.rows) * 8 + column % 8
        keys: Tensor = (shards * layout.slot_count + slots) << 16 | places
        return keys

    def _must_stream(self) -> bool:
        """Return whether the cells must be in host memory; raise TrainingError if the largest shard does not fit."""
        cells = int(self._begins[-1]) * self.entry_bytes
        sorting = self._reading_bytes + self.largest * SORT_BYTES
        if cells <= self.resident_bytes and cells + sorting <= self.temporary_bytes:
            return False

        lacking = max(BUFFERS * self.largest * self.entry_bytes - self.resident_bytes, sorting - self.temporary_bytes)
        if lacking > 0:
            raise TrainingError(
                f"the largest block has {self.largest:,} observed cells, for which the device lacks "
                f"{format_bytes(int(lacking))} of memory; raise device_memory, or lower block_size",
                argument=("device_memory", "block_size"),
            )
        return True

    def _order_for_rounds(self) -> NDArray[np.int64]:
        """Return the first entry of each shard in host memory: pair of groups by pair, diagonal by diagonal.

        The blocks of a round are a diagonal of a pair of groups, so the cells of a round can be copied in few large
        copies.
        """
        rows, columns = self.layout.blocks
        i, j = np.divmod(np.arange(rows * columns), columns)
        row_group, row, height = _find_in_groups(i, self.groups[0] or (0, rows))
        column_group, column, width = _find_in_groups(j, self.groups[1] or (0, columns))

        diagonal = (column - row) % np.maximum(height, width)
        # Below the diagonal of a symmetric matrix, a round takes the mirrors of another diagonal.
        along = np.minimum(row, column) if self.symmetric else row
        along = np.where(row_group == column_group, along, row)
        order = np.lexsort((along, diagonal, column_group, row_group))

        lengths = np.diff(self._begins)
        kept_at = np.empty_like(lengths)
        kept_at[order] = np.cumsum(lengths[order]) - lengths[order]
        return kept_at

    def _groups(self) -> Iterator[tuple[int, int]]:
        """Return ranges of shards that are sorted together: as many as fit, but at least one."""
        cells = 0 if self.on_host else int(self._begins[-1]) * self.entry_bytes
        limit = min(GROUP, (self.temporary_bytes - self._reading_bytes - cells) / SORT_BYTES)

        return shard_ranges(self._begins[None], limit)

    def _fill_group(self, source: _StoredCells, pieces: Sequence[tuple[int, int]], first: int, last: int) -> None:
        """Sort the entries of the shards `first` to `last` and write their slots, positions and counts."""
        begin, end = int(self._begins[first]), int(self._begins[last])
        keys = torch.empty(end - begin, dtype=torch.int64, device=self.device)
        counts = torch.empty(end - begin, device=self.device)

        position = 0
        for cells in (cells for piece in pieces for cells in source.read(*piece)):
            inside = _select(cells, (cells[0] >= first) & (cells[0] < last))
            stop = position + len(inside[0])
            keys[position:stop] = self._make_keys(inside)
            counts[position:stop] = inside[3]
            position = stop

        # Sorting by key sorts by shard, slot and position.
        keys, order = torch.sort(keys)
        counts = counts[order]
        del order
        positions = _as_int16(keys & 0xFFFF)
        slots = (keys >> 16) % self.layout.slot_count
        del keys
        self._keep(first, last, (slots if self.slots.dtype == torch.int32 else _as_int16(slots), positions, counts))

    def _keep(self, first: int, last: int, entries: tuple[Tensor, Tensor, Tensor]) -> None:
        """Copy slots, positions and counts of the sorted shards `first` to `last` to where they are kept."""
        begins = (self._begins[first : last + 1] - self._begins[first]).tolist()
        places = self._kept_at[first:last].tolist()
        if not self.on_host:
            # On the device the shards are in the order in which they are sorted: one copy is enough.
            begins = [0, begins[-1]]
            places = places[:1]

        for (begin, end), place in zip(pairwise(begins), places, strict=True):
            for target, source in zip((self.slots, self.positions, self.counts), entries, strict=True):
                target[place : place + end - begin] = source[begin:end]


def _find_in_groups(blocks: NDArray[np.int64], starts: Sequence[int]) -> tuple[NDArray[np.int64], ...]:
    """Return the group of each block, its position in the group, and the size of the group."""
    edges = np.asarray(starts)
    group = np.searchsorted(edges, blocks, side="right") - 1
    return group, blocks - edges[group], np.diff(edges)[group]


class _StoredCells:
    """Reads the cells of a stored matrix to the device, with the shards they are trained in; rows are interleaved.

    keep: copy all cells to the device now, instead of each piece whenever it is read.
    """

    def __init__(
        self,
        stored: MatrixCells,
        blocks: tuple[int, int],
        symmetric: bool,
        device: torch.device,
        host: HostMemory,
        *,
        keep: bool,
    ) -> None:
        self._stored = stored
        self._blocks = blocks
        self._symmetric = symmetric
        self._device = device
        self._uploader = Uploader(device, host)
        self._kept: dict[str, Tensor] = {}
        if keep:
            self._kept = {name: self._get(name, 0, None) for name in ("positions", "counts")}
        self._offsets = self._put(np.array(stored.arrays.offsets[0]))

    def read(self, first: int, last: int) -> Iterator[_Cells]:
        """Yield the cells `first` to `last` of the stored matrix, and their mirrors."""
        stored = self._stored
        positions = self._get("positions", first, last).to(torch.int64)
        counts = self._convert_counts(first, last)

        # Stored shard (i, j) has rows i, i + row_blocks, ...: recover the row and column of every cell.
        shards = torch.searchsorted(self._offsets, torch.arange(first, last, device=self._device), right=True) - 1
        layout = stored.layout
        old_i, old_j = shards // layout.column_blocks, shards % layout.column_blocks
        rows = old_i + ((positions >> 16) & 0xFFFF) * layout.row_blocks
        columns = old_j + (positions & 0xFFFF) * layout.column_blocks
        off = old_i != old_j  # shards on the diagonal have both mirrors already
        del positions, shards, old_i, old_j  # frees device memory before the next arrays are made

        yield self._place(rows, columns, counts)
        if layout.symmetric:
            yield self._place(columns[off], rows[off], counts[off])

    def _place(self, rows: Tensor, columns: Tensor, counts: Tensor) -> _Cells:
        row_blocks, column_blocks = self._blocks
        i, j = rows % row_blocks, columns % column_blocks
        cells = i * column_blocks + j, rows // row_blocks, columns // column_blocks, counts
        return _select(cells, i <= j) if self._symmetric else cells

    def _convert_counts(self, first: int, last: int) -> Tensor:
        """Return the counts of the cells `first` to `last`, converted on the device; equal to `stored.counts_of`."""
        stored, arrays = self._stored, self._stored.arrays
        units = self._get("counts", first, last).to(torch.float64)
        # Stored as uint32, which torch hardly supports: they were read as int32, and the upper half is negative.
        units = torch.where(units < 0, units + (1 << 32), units)

        begin, end = np.searchsorted(arrays.large_cells, (first, last))
        if begin < end:
            places = self._put(arrays.large_cells[begin:end] - first)
            units[places] = self._put(arrays.large_counts[begin:end].astype(np.float64))
        counts = units / stored.unit
        return (torch.log1p(counts) if stored.is_log else counts).to(torch.float32)

    def _put(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, copy=True)

    def _get(self, name: str, first: int, last: int | None) -> Tensor:
        """Return `positions` or `counts` of the cells `first` to `last`, as int32."""
        if self._kept:
            return self._kept[name][first:last]
        array = getattr(self._stored.arrays, name)[first:last]
        return self._uploader.copy(np.asarray(array).view(np.int32))


def _select(cells: _Cells, mask: Tensor) -> _Cells:
    return tuple(array[mask] for array in cells)


def _as_int16(values: Tensor) -> Tensor:
    """Return values below 2^16 as int16 with the same 16 bits."""
    return torch.where(values >= 1 << 15, values - (1 << 16), values).to(torch.int16)


class CellFeed:
    """Provides the cells of batches on the device; it never waits for the device.

    If the cells are in host memory, they are copied into two buffers in turn: one is filled while the kernels read
    the other. `_used[n]` is the point of the computation after which buffer n may be overwritten.
    """

    def __init__(self, cells: DeviceCells, max_blocks: int) -> None:
        self.cells = cells
        self._device = device = cells.device
        self._turn = 0  # the buffer of the current batch

        # Entries of a buffer: what the memory allows, but no more than a batch can have.
        self._capacity = 0
        if cells.on_host:
            entries = int(cells.resident_bytes) // (BUFFERS * cells.entry_bytes)
            self._capacity = max(1, min(entries, max_blocks * cells.largest))

        count = BUFFERS if cells.on_host else 0
        self._arrays = cells.slots, cells.positions, cells.counts
        self._buffers = [
            tuple(array.new_empty(self._capacity, device=device) for array in self._arrays) for _ in range(count)
        ]
        self._queue = CopyQueue(device)
        self._used: list[Mark] = [record_mark(device)] * count

    def can_hold(self, entries: int) -> bool:
        """Return whether a batch of `entries` entries can be loaded."""
        return not self.cells.on_host or entries <= self._capacity

    def plan(self, shards: Sequence[ShardCells]) -> tuple[list[int], Copies]:
        """Return the first entry of each shard in the arrays of `load`, and the argument of `load`."""
        if not self.cells.on_host:
            return [shard.begin for shard in shards], []
        begins, copies = plan_copies([(shard.begin, shard.end) for shard in shards])

        views: Copies = []
        for buffers in self._buffers:
            pairs = [*zip(buffers, self._arrays, strict=True)]
            views.append([(b[at : at + end - begin], a[begin:end]) for begin, end, at in copies for b, a in pairs])
        return begins, views

    def load(self, copies: Copies) -> EntryArrays:
        """Start copying the cells of a batch and return the arrays that will contain them.

        The computation that is submitted after this call waits for the copy. Call `release` after submitting it.
        """
        if not self.cells.on_host:
            return self._arrays

        def copy() -> None:
            for target, source in copies[self._turn]:
                target.copy_(source, non_blocking=True)

        # Copies must not overwrite what the kernels of the last batch but one still read, and the kernels that follow
        # must not start before the copies are complete.
        mark = self._queue.submit(copy, [self._used[self._turn]])
        wait_on_device(self._device, mark)
        return self._buffers[self._turn]

    def release(self) -> None:
        """Record that the kernels of the last batch were submitted: they are the last to read its buffer."""
        # The mark comes before the turn changes: it is that of the buffer which these kernels read.
        if self.cells.on_host:
            self._used[self._turn] = record_mark(self._device)
            self._turn = (self._turn + 1) % BUFFERS


def plan_copies(spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[Copy]]:
    """Return the first entry of each shard on the device, and the copies; shards that are adjacent share one.

    spans: begin and end of each shard in host memory.

    >>> plan_copies([(5, 8), (8, 9), (0, 2)])
    ([0, 3, 4], [(5, 9, 0), (0, 2, 4)])
    """
    begins: list[int] = []
    copies: list[Copy] = []
    target = 0

    for start, stop in spans:
        begins.append(target)
        if copies and copies[-1][1] == start:
            begin, _, first = copies.pop()
            copies.append((begin, stop, first))
        else:
            copies.append((start, stop, target))
        target += stop - start

    return begins, copies
