"""The observed cells of a matrix, sorted into the slots of their blocks once, before the first step.

`DeviceCells` reads the cells in the blocks in which they are stored and sorts them on the device into the blocks that
are trained, so that no second copy of the matrix on disk is needed. If they do not fit on the device, it sorts them in
groups and keeps them in host memory; `CellFeed` then copies the cells of a batch while the previous one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, pairwise
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts.matrix import BlockCells, MatrixCells
from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes
from swivel.training.backends.triton.cuda_streams import CopyQueue, HostMemory, Mark, record_mark, wait_on_device
from swivel.training.backends.triton.layout import BlockShape, KernelTile, Shapes, SlotLayout
from swivel.training.backends.triton.memory_plan import BUFFERS, ENTRY_BYTES, PIECE_BYTES, index_bytes, sort_bytes

Tensor = torch.Tensor
PIECE = 1 << 25  # maximum of cells that are read at a time
GROUP = 1 << 26  # maximum of entries that are sorted at a time


@dataclass(frozen=True, slots=True)
class CellMemoryLimits:
    """Bytes of device memory that the cells may use."""

    resident: int  # during the whole training
    temporary: int  # while they are sorted


@dataclass(frozen=True, slots=True)
class ShardCells:
    """Position of the cells of a shard."""

    slot: int  # its first slot
    begin: int  # its first entry
    end: int
    observed: int  # number of observed cells
    mirrored: bool = False

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class _CellPiece:
    """Cells with their shard and their local row and column in it."""

    shards: Tensor
    rows: Tensor
    columns: Tensor
    counts: Tensor

    def where(self, mask: Tensor) -> _CellPiece:
        return _CellPiece(self.shards[mask], self.rows[mask], self.columns[mask], self.counts[mask])


_Source = Callable[[], Iterator[_CellPiece]]  # reads some cells; it is called once to count and again to sort them


class DeviceCells:
    """All observed cells of a matrix, sorted by block and slot.

    A cell of a tile is one entry. A cell between features that are not common is two entries: one in the slot of its
    row, one in the slot of its column.
    """

    # Of every entry: the position of the cell in its tile or, in the slot of a row or column, the local index on the
    # other side (int16); and the count (float32).
    positions: Tensor
    counts: Tensor
    starts: Tensor  # first entry of each slot, shard by shard; int64, on the device

    # Of every shard: first entry if the shards are in row-major order (and the end), first entry in `positions` and
    # `counts`, and the number of observed cells.
    _begins: NDArray[np.int64]
    _kept_at: NDArray[np.int64]
    _observed: NDArray[np.int64]
    _slots: int  # slots of every shard

    def __init__(
        self,
        places: SlotLayout,
        shapes: Shapes,
        device: torch.device,
        *,
        limits: CellMemoryLimits | None = None,
        host: HostMemory | None = None,
    ) -> None:
        self.places = places
        self.shapes = shapes
        self.device = device
        self.limits = limits  # None: no limit
        self.on_host = False  # whether positions and counts are in host memory
        self.symmetric = False  # whether only blocks (i, j) with i <= j are laid out
        self._host = host or HostMemory(device)
        self._mirrored: set[tuple[int, int]] = set()
        self._piece_bytes = 0

    def find(self, block: tuple[int, int]) -> ShardCells:
        """Return the position of the cells of a block."""
        mirrored = block[0] > block[1] if self.symmetric else block in self._mirrored
        i, j = reversed(block) if self.symmetric and mirrored else block

        shard = i * self.places.blocks[1] + j
        begin = int(self._kept_at[shard])
        end = begin + int(self._begins[shard + 1] - self._begins[shard])
        return ShardCells(shard * self._slots, begin, end, int(self._observed[shard]), mirrored)

    def shape_of(self, block: tuple[int, int], *, mirrored: bool) -> BlockShape:
        """Return the shape of a block in the orientation of its cells."""
        rows = int(self.places.sizes[block[0]])
        columns = int(self.places.sizes[self.places.blocks[0] + block[1]])
        return self.shapes.of(columns, rows) if mirrored else self.shapes.of(rows, columns)

    def take(self, stored: MatrixCells) -> None:
        """Read and sort the cells of a whole matrix."""
        self.symmetric = stored.symmetric and self.places.blocks[0] == self.places.blocks[1]
        total = int(stored.offsets[-1])

        # Reading uses at most an eighth of the temporary memory.
        size = PIECE
        if self.limits is not None:
            size = max(1, min(PIECE, self.limits.temporary // (8 * PIECE_BYTES)))
        self._piece_bytes = min(size, total) * PIECE_BYTES
        offsets = self._put(np.asarray(stored.offsets, np.int64))

        firsts = range(0, total, size)
        self._fill([partial(self._read, stored, offsets, first, min(first + size, total)) for first in firsts])

    def take_blocks(self, blocks: dict[tuple[int, int], BlockCells]) -> None:
        """Sort the cells of some blocks only, each in its given orientation."""
        self._mirrored = {block for block, cells in blocks.items() if cells.mirrored}
        self._fill([partial(self._read_block, block, cells) for block, cells in blocks.items()])

    def _read_block(self, block: tuple[int, int], cells: BlockCells) -> Iterator[_CellPiece]:
        positions = self._put(np.asarray(cells.positions).astype(np.int64))
        shards = torch.full_like(positions, block[0] * self.places.blocks[1] + block[1])
        yield _CellPiece(shards, positions >> 16, positions & 0xFFFF, self._put(np.array(cells.counts, np.float32)))

    def _put(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(_as_writable(np.ascontiguousarray(array))).to(self.device, copy=True)

    def _put_counts(self, stored: MatrixCells, first: int, last: int) -> Tensor:
        """Return the counts of the cells `first` to `last`, converted on the device; equal to `stored.counts_of`."""
        arrays = stored.arrays
        units = self._put(np.asarray(arrays.counts[first:last]).view(np.int32)).to(torch.float64)
        units = torch.where(units < 0, units + (1 << 32), units)  # stored as uint32, which torch hardly supports

        begin, end = np.searchsorted(arrays.large_cells, (first, last))
        if begin < end:
            places = self._put(arrays.large_cells[begin:end] - first)
            units[places] = self._put(arrays.large_counts[begin:end].astype(np.float64))
        counts = units / stored.unit
        return (torch.log1p(counts) if stored.is_log else counts).to(torch.float32)

    def _read(self, stored: MatrixCells, offsets: Tensor, first: int, last: int) -> Iterator[_CellPiece]:
        """Yield the cells `first` to `last` of the stored matrix with the shards they belong to, and their mirrors."""
        positions = self._put(np.asarray(stored.positions[first:last]).view(np.int32)).to(torch.int64)
        counts = self._put_counts(stored, first, last)

        # Stored shard (i, j) has rows i, i + row_blocks, ...: recover the row and column of every cell.
        shards = torch.searchsorted(offsets, torch.arange(first, last, device=self.device), right=True) - 1
        old_i, old_j = shards // stored.blocks[1], shards % stored.blocks[1]
        rows = old_i + ((positions >> 16) & 0xFFFF) * stored.blocks[0]
        columns = old_j + (positions & 0xFFFF) * stored.blocks[1]
        off = old_i != old_j  # shards on the diagonal have both mirrors already
        del positions, shards, old_i, old_j  # frees device memory before the next arrays are made

        yield self._place(rows, columns, counts)
        if stored.symmetric:
            yield self._place(columns[off], rows[off], counts[off])

    def _place(self, rows: Tensor, columns: Tensor, counts: Tensor) -> _CellPiece:
        """Return cells with the shard and the local row and column that are trained; rows are interleaved."""
        row_blocks, column_blocks = self.places.blocks
        i, j = rows % row_blocks, columns % column_blocks
        piece = _CellPiece(i * column_blocks + j, rows // row_blocks, columns // column_blocks, counts)
        return piece.where(i <= j) if self.symmetric else piece

    def _fill(self, sources: Sequence[_Source]) -> None:
        """Count the cells of all sources, allocate memory for them, and sort them group by group."""
        rows, columns = self.places.blocks
        blocks = [(i, j) for i in range(rows) for j in range(columns)]
        shapes = [self.shape_of(block, mirrored=block in self._mirrored) for block in blocks]
        count = len(shapes)
        # All shards have the same number of slots. The last one is empty: its start is the end of the one before.
        self._slots = 1 + max((shape.slots for shape in shapes), default=0)
        table = _ShapeTable(shapes, self.shapes.tile, self.device)

        shards_of_sources = self._count(sources, table, count)
        total = int(self._begins[-1])
        self.on_host = self._must_stream()
        self._kept_at = self._order_for_rounds() if self.on_host else self._begins[:-1]
        if self.on_host:
            self.positions = self._host.empty((total,), np.int16)
            self.counts = self._host.empty((total,), np.float32)
        else:
            self.positions = torch.empty(total, dtype=torch.int16, device=self.device)
            self.counts = torch.empty(total, device=self.device)
        self.starts = torch.full((count * self._slots + 1,), total, dtype=torch.int64, device=self.device)

        for first, last in self._groups(count):
            # Groups and sources are both ranges of neighboring shards: most pairs have no cell in common.
            relevant = compress(sources, (shards[first:last].any() for shards in shards_of_sources))
            self._fill_group(relevant, table, first, last)

    def _count(self, sources: Sequence[_Source], table: _ShapeTable, count: int) -> list[NDArray[np.bool_]]:
        """Count the entries of every shard; return, for each source, the shards it has cells of."""
        entries = np.zeros(count, np.int64)
        observed = np.zeros(count, np.int64)
        shards_of_sources = []

        for source in sources:
            has_cells = np.zeros(count, np.bool_)
            for piece in source():
                cells = torch.bincount(piece.shards, minlength=count).cpu().numpy()
                rare = torch.bincount(piece.shards[table.is_sparse(piece)], minlength=count).cpu().numpy()
                has_cells |= cells > 0
                observed += cells
                entries += cells + rare
            shards_of_sources.append(has_cells)

        self._observed = observed
        self._begins = np.concatenate([[0], np.cumsum(entries)])
        return shards_of_sources

    @property
    def largest(self) -> int:
        """Number of entries of the largest shard."""
        return int(np.diff(self._begins).max(initial=0))

    @property
    def index_bytes(self) -> int:
        """Bytes of `starts`."""
        return index_bytes(len(self._observed), self._slots)

    def _must_stream(self) -> bool:
        """Return whether the cells must be in host memory; raise TrainingError if the largest shard does not fit."""
        if self.limits is None:
            return False

        cells = int(self._begins[-1]) * ENTRY_BYTES
        sorting = self._piece_bytes + sort_bytes(self.largest, self._slots)
        resident = cells + self.index_bytes
        if resident <= self.limits.resident and resident + sorting <= self.limits.temporary:
            return False

        lacking = max(
            self.index_bytes + BUFFERS * self.largest * ENTRY_BYTES - self.limits.resident,
            self.index_bytes + sorting - self.limits.temporary,
        )
        if lacking > 0:
            raise TrainingError(
                f"the largest block has {self.largest:,} entries, for which the device lacks "
                f"{format_bytes(lacking)} of memory; raise device_memory, or lower block_size"
            )
        return True

    def _order_for_rounds(self) -> NDArray[np.int64]:
        """Return the first entry of each shard in host memory: diagonal by diagonal.

        The blocks of a round are a diagonal, so the cells of a round can be copied in few large copies.
        """
        rows, columns = self.places.blocks
        i, j = np.divmod(np.arange(rows * columns), columns)
        diagonal = (j - i) % max(rows, columns)
        order = np.lexsort((np.minimum(i, j) if self.symmetric else i, diagonal))

        lengths = np.diff(self._begins)
        kept_at = np.empty_like(lengths)
        kept_at[order] = np.cumsum(lengths[order]) - lengths[order]
        return kept_at

    def _groups(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of shards that are sorted together: as many as fit, but at least one."""
        limit = int(sort_bytes(GROUP, 0))
        if self.limits is not None:
            cells = 0 if self.on_host else int(self._begins[-1]) * ENTRY_BYTES
            limit = min(limit, self.limits.temporary - self.index_bytes - cells - self._piece_bytes)
        costs = sort_bytes(self._begins, np.arange(count + 1) * self._slots)

        first = 0
        while first < count:
            last = int(np.searchsorted(costs, costs[first] + limit, side="right")) - 1
            last = min(max(last, first + 1), count)
            yield first, last
            first = last

    def _fill_group(self, sources: Iterable[_Source], table: _ShapeTable, first: int, last: int) -> None:
        """Sort the entries of the shards `first` to `last` and write their positions, counts and starts."""
        begin, end = int(self._begins[first]), int(self._begins[last])
        keys = torch.empty(end - begin, dtype=torch.int64, device=self.device)
        counts = torch.empty(end - begin, device=self.device)

        done = 0
        for piece in (piece for source in sources for piece in source()):
            inside = piece.where((piece.shards >= first) & (piece.shards < last))
            for key, count in table.entries(inside, self._slots):
                keys[done : done + len(key)] = key
                counts[done : done + len(key)] = count
                done += len(key)

        # A key is (global slot) << 16 | position, so sorting by key sorts by shard, slot and position.
        sorted_keys, order = torch.sort(keys)
        del keys
        self._keep(first, last, _as_int16(sorted_keys & 0xFFFF), counts[order])

        # The start of a slot is the number of smaller keys, moved to where the entries of its shard are kept.
        slots = torch.arange(first * self._slots, last * self._slots, device=self.device)
        moved = torch.from_numpy(self._kept_at[first:last] - self._begins[first:last] + begin).to(self.device)
        starts = torch.searchsorted(sorted_keys, slots << 16) + moved.repeat_interleave(self._slots)
        self.starts[first * self._slots : last * self._slots] = starts

    def _keep(self, first: int, last: int, positions: Tensor, counts: Tensor) -> None:
        """Copy the sorted entries of the shards `first` to `last` to where they are kept."""
        begins = (self._begins[first : last + 1] - self._begins[first]).tolist()
        places = self._kept_at[first:last].tolist()
        if not self.on_host:
            # On the device the shards are in the order in which they are sorted: one copy is enough.
            begins = [0, begins[-1]]
            places = places[:1]

        for (begin, end), place in zip(pairwise(begins), places, strict=True):
            self.positions[place : place + end - begin] = positions[begin:end]
            self.counts[place : place + end - begin] = counts[begin:end]


def _as_writable(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return a view that claims to be writable, because torch warns about others; it must not be written to.

    A copy of a memory-mapped matrix would take longer than its way to the device.
    """
    interface = dict(array.__array_interface__)
    interface["data"] = interface["data"][0], False  # the address, and whether it is read-only
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=array))


def _as_int16(values: Tensor) -> Tensor:
    """Return values below 2^16 as int16 with the same 16 bits."""
    return torch.where(values >= 1 << 15, values - (1 << 16), values).to(torch.int16)


class _ShapeTable:
    """The values that determine the slot of a cell, as tensors with one element per shard."""

    def __init__(self, shapes: list[BlockShape], tile: KernelTile, device: torch.device) -> None:
        self.tile_rows = tile.rows
        self.tile_columns = tile.columns

        def column(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        most = max((len(shape.panels) for shape in shapes), default=1)
        self.is_sampled = most > 1
        self.common_rows = column([shape.common[0] for shape in shapes])
        self.common_columns = column([shape.common[1] for shape in shapes])
        self.row_slots = column([shape.row_slots for shape in shapes])
        self.column_slots = column([shape.column_slots for shape in shapes])

        # Start, slot and slot_columns of each panel; a shard with fewer panels repeats its last one.
        self.panels: list[tuple[Tensor, Tensor, Tensor]] = []
        for n in range(most):
            panels = [shape.panels[min(n, len(shape.panels) - 1)] for shape in shapes]
            starts = column([panel.start for panel in panels])
            slots = column([panel.slot for panel in panels])
            self.panels.append((starts, slots, column([panel.slot_columns for panel in panels])))

    def is_sparse(self, piece: _CellPiece) -> Tensor:
        """Return which cells are between features that are not common."""
        if not self.is_sampled:
            return torch.zeros_like(piece.shards, dtype=torch.bool)

        rows = self.common_rows[piece.shards]
        columns = self.common_columns[piece.shards]
        return (piece.rows >= rows) & (piece.columns >= columns)

    def entries(self, piece: _CellPiece, slots: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield keys, (shard * slots + slot) << 16 | position, and counts."""
        sparse = self.is_sparse(piece)
        if self.is_sampled:
            rare = piece.where(sparse)
            begin = rare.shards * slots

            # A rare cell is an entry of its row and an entry of its column.
            yield (begin + self.row_slots[rare.shards] + rare.rows) << 16 | rare.columns, rare.counts
            yield (begin + self.column_slots[rare.shards] + rare.columns) << 16 | rare.rows, rare.counts
            piece = piece.where(~sparse)

        yield self._tile_keys(piece, slots), piece.counts

    def _tile_keys(self, piece: _CellPiece, slots: int) -> Tensor:
        """Return the keys of cells that belong to a tile."""
        # The panel of a cell is the last one that starts at or above its row.
        start, slot, across = (values[piece.shards] for values in self.panels[0])
        for starts, slots_of_panel, slot_columns in self.panels[1:]:
            is_in_panel = piece.rows >= starts[piece.shards]
            start = torch.where(is_in_panel, starts[piece.shards], start)
            slot = torch.where(is_in_panel, slots_of_panel[piece.shards], slot)
            across = torch.where(is_in_panel, slot_columns[piece.shards], across)

        local = piece.rows - start
        tile = (local // self.tile_rows) * across + piece.columns // self.tile_columns

        # The order of the margins of a tile in shared memory; see `kernels.gradient`.
        row = local % self.tile_rows
        column = piece.columns % self.tile_columns
        place = (column // 8) * (8 * self.tile_rows) + row * 8 + column % 8
        return (piece.shards * slots + slot + tile) << 16 | place


@dataclass(frozen=True, slots=True)
class DeviceCellArrays:
    """Device arrays with the cells of a batch; see `DeviceCells`."""

    positions: Tensor
    counts: Tensor
    starts: Tensor
    base: Sequence[int]  # value to add to the starts of each shard


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
        if cells.on_host and cells.limits is not None:
            entries = (cells.limits.resident - cells.index_bytes) // (BUFFERS * ENTRY_BYTES)
            self._capacity = max(1, min(entries, max_blocks * cells.largest))

        count = BUFFERS if cells.on_host else 0
        self._positions = [torch.empty(self._capacity, dtype=torch.int16, device=device) for _ in range(count)]
        self._counts = [torch.empty(self._capacity, dtype=torch.float32, device=device) for _ in range(count)]
        self._queue = CopyQueue(device)
        self._used: list[Mark] = [record_mark(device)] * count

    def can_hold(self, entries: int) -> bool:
        """Return whether a batch of `entries` entries can be loaded."""
        return not self.cells.on_host or entries <= self._capacity

    def load(self, shards: Sequence[ShardCells]) -> DeviceCellArrays:
        """Start copying the cells of a batch and return the arrays that will contain them.

        The computation that is submitted after this call waits for the copy. Call `release` after submitting it.
        """
        cells = self.cells
        if not cells.on_host:
            return DeviceCellArrays(cells.positions, cells.counts, cells.starts, [0] * len(shards))

        positions = self._positions[self._turn]
        counts = self._counts[self._turn]
        base, copies = plan_copies(shards)

        def copy() -> None:
            for begin, end, target in copies:
                stop = target + end - begin
                positions[target:stop].copy_(cells.positions[begin:end], non_blocking=True)
                counts[target:stop].copy_(cells.counts[begin:end], non_blocking=True)

        copied = self._queue.submit(copy, [self._used[self._turn]])
        wait_on_device(self._device, copied)
        return DeviceCellArrays(positions, counts, cells.starts, base)

    def release(self) -> None:
        """Record that the kernels of the last batch were submitted: they are the last to read its buffer."""
        if self.cells.on_host:
            self._used[self._turn] = record_mark(self._device)
            self._turn = (self._turn + 1) % BUFFERS


def plan_copies(shards: Sequence[ShardCells]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the value to add to the starts of each shard, and the copies (begin, end, target).

    Shards that are adjacent in host memory are copied together.

    >>> plan_copies([ShardCells(0, 5, 8, 3), ShardCells(1, 8, 9, 1), ShardCells(2, 0, 2, 2)])
    ([-5, -5, 4], [(5, 9, 0), (0, 2, 4)])
    """
    base: list[int] = []
    copies: list[tuple[int, int, int]] = []
    target = 0

    for shard in shards:
        base.append(target - shard.begin)
        if copies and copies[-1][1] == shard.begin:
            begin, _, first = copies.pop()
            copies.append((begin, shard.end, first))
        else:
            copies.append((shard.begin, shard.end, target))
        target += shard.entries

    return base, copies
