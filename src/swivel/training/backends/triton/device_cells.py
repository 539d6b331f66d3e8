"""The observed cells of a matrix, sorted into the slots of their blocks once, before the first step.

`DeviceCells` reads the cells in the blocks in which they are stored and sorts them on the device into the blocks that
are trained, so that no second copy of the matrix on disk is needed. If they do not fit on the device, it sorts them in
groups and keeps them in host memory, and `cell_feed` copies the cells of a batch while the previous one is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts.builder import STORED_BYTES
from swivel.counts.matrix import MatrixCells
from swivel.errors import TrainingError
from swivel.runtime.resources import count_cores, format_bytes
from swivel.training.backends.triton.cuda_streams import HostMemory, Uploader
from swivel.training.backends.triton.memory_plan import (
    BUFFERS,
    MAX_SHORT_SLOTS,
    PIECE_BYTES,
    SHARD_BYTES,
    SORT_BYTES,
    entry_bytes,
)
from swivel.training.backends.triton.slot_layout import BlockShape, KernelTile, Shapes, SlotLayout

Tensor = torch.Tensor
PIECE = 1 << 24  # maximum of cells that are read at a time
GROUP = 1 << 27  # maximum of entries that are sorted at a time


@dataclass(frozen=True, slots=True)
class ShardCells:
    """Position of the cells of a shard."""

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

    # Of every entry: its slot within the shard (int16, or int32 if there are many slots); the position of the cell in
    # its tile or, in the slot of a row or column, the local index on the other side (int16); and the count (float32).
    slots: Tensor
    positions: Tensor
    counts: Tensor
    slot_count: int  # slots of every shard; the last one is empty

    # Of every shard: first entry if the shards are in row-major order (and the end), first entry in `positions` and
    # `counts`, and the number of observed cells.
    _begins: NDArray[np.int64]
    _kept_at: NDArray[np.int64]
    _observed: NDArray[np.int64]

    def __init__(
        self,
        places: SlotLayout,
        shapes: Shapes,
        device: torch.device,
        *,
        resident_bytes: float = math.inf,
        temporary_bytes: float = math.inf,
        host: HostMemory | None = None,
        groups: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> None:
        self.places = places
        self.shapes = shapes
        self.device = device
        # Device memory that the cells may use: during the whole training, and while they are sorted.
        self.resident_bytes = resident_bytes
        self.temporary_bytes = temporary_bytes
        self.groups = groups  # starts of the groups of row blocks and of column blocks; empty: all in one
        self.on_host = False  # whether positions and counts are in host memory
        self.symmetric = False  # whether only blocks (i, j) with i <= j are laid out
        self._host = host or HostMemory(device)
        self._piece_bytes = 0

    def find(self, block: tuple[int, int]) -> ShardCells:
        """Return the position of the cells of a block."""
        mirrored = self.symmetric and block[0] > block[1]
        i, j = reversed(block) if mirrored else block

        shard = i * self.places.blocks[1] + j
        begin = int(self._kept_at[shard])
        end = begin + int(self._begins[shard + 1] - self._begins[shard])
        return ShardCells(begin, end, int(self._observed[shard]), mirrored)

    def shape_of(self, block: tuple[int, int], *, mirrored: bool) -> BlockShape:
        """Return the shape of a block in the orientation of its cells."""
        rows = int(self.places.sizes[block[0]])
        columns = int(self.places.sizes[self.places.blocks[0] + block[1]])
        return self.shapes.of(columns, rows) if mirrored else self.shapes.of(rows, columns)

    def take(self, stored: MatrixCells) -> None:
        """Read and sort the cells of a whole matrix."""
        self.symmetric = stored.symmetric and self.places.blocks[0] == self.places.blocks[1]
        total = int(stored.offsets[-1])

        # Reading uses at most an eighth of the temporary memory, and so do the stored cells. If they take more, they
        # are copied to the device again for every group.
        share = self.temporary_bytes / 8
        size = int(max(1, min(PIECE, share / PIECE_BYTES)))
        self._piece_bytes = min(size, total) * PIECE_BYTES
        raw = _RawCells(stored, Uploader(self.device, self._host))
        if total * STORED_BYTES <= share:
            self._piece_bytes += total * STORED_BYTES
            raw.keep()
        offsets = self._put(np.array(stored.offsets, np.int64))

        firsts = range(0, total, size)
        self._fill([partial(self._read, raw, offsets, first, min(first + size, total)) for first in firsts])

    def _put(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, copy=True)

    def _convert_counts(self, raw: _RawCells, first: int, last: int) -> Tensor:
        """Return the counts of the cells `first` to `last`, converted on the device; equal to `stored.counts_of`."""
        stored, arrays = raw.stored, raw.stored.arrays
        units = raw.get("counts", first, last).to(torch.float64)
        # Stored as uint32, which torch hardly supports: they were read as int32, and the upper half is negative.
        units = torch.where(units < 0, units + (1 << 32), units)

        begin, end = np.searchsorted(arrays.large_cells, (first, last))
        if begin < end:
            places = self._put(arrays.large_cells[begin:end] - first)
            units[places] = self._put(arrays.large_counts[begin:end].astype(np.float64))
        counts = units / stored.unit
        return (torch.log1p(counts) if stored.is_log else counts).to(torch.float32)

    def _read(self, raw: _RawCells, offsets: Tensor, first: int, last: int) -> Iterator[_CellPiece]:
        """Yield the cells `first` to `last` of the stored matrix with the shards they belong to, and their mirrors."""
        stored = raw.stored
        positions = raw.get("positions", first, last).to(torch.int64)
        counts = self._convert_counts(raw, first, last)

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
        shapes, kinds = self._list_shapes()
        # The last slot is empty: its start is the end of the one before.
        self.slot_count = 1 + max((shape.slots for shape in shapes), default=0)
        self.entry_bytes = entry_bytes(self.slot_count)
        table = _ShapeTable(shapes, self._put(kinds), self.shapes.tile, self.device)

        ranges = self._count(sources, table, len(kinds))
        total = int(self._begins[-1])
        self.on_host = self._must_stream()
        self._kept_at = self._order_for_rounds() if self.on_host else self._begins[:-1]
        slot_type = np.int16 if self.slot_count <= MAX_SHORT_SLOTS else np.int32
        self.slots, self.positions, self.counts = (
            self._empty(total, dtype) for dtype in (slot_type, np.int16, np.float32)
        )

        for first, last in self._groups(len(kinds)):
            # Groups and sources are both ranges of neighboring shards: most pairs have no cell in common.
            relevant = [
                source for source, (low, high) in zip(sources, ranges, strict=True) if low < last and first < high
            ]
            self._fill_group(relevant, table, first, last)

    def _list_shapes(self) -> tuple[list[BlockShape], NDArray[np.int16]]:
        """Return the distinct shapes of blocks, and which of them each shard has."""
        rows = self.places.blocks[0]
        sizes = [np.unique(each, return_inverse=True) for each in np.split(self.places.sizes, [rows])]
        shapes = [self.shapes.of(m, n) for m in sizes[0][0].tolist() for n in sizes[1][0].tolist()]
        kinds = np.add.outer(sizes[0][1] * len(sizes[1][0]), sizes[1][1])
        return shapes, kinds.ravel().astype(np.int16)

    def _empty(self, size: int, dtype: type[np.generic]) -> Tensor:
        """Return a new array where the cells are kept."""
        if self.on_host:
            return self._host.empty((size,), dtype)
        return torch.from_numpy(np.empty(0, dtype)).new_empty(size, device=self.device)

    def _count(self, sources: Sequence[_Source], table: _ShapeTable, count: int) -> list[tuple[int, int]]:
        """Count the entries of every shard; return, for each source, the range of the shards it has cells of."""
        entries = np.zeros(count, np.int64)
        observed = np.zeros(count, np.int64)
        ranges = []

        for source in sources:
            low, high = count, 0
            for piece in source():
                if not len(piece.shards):
                    continue
                # Rare cells are two entries each: they are counted with all cells, and once more.
                cells = torch.bincount(piece.shards).cpu().numpy()
                rare = torch.bincount(piece.shards[table.is_sparse(piece)]).cpu().numpy()
                observed[: len(cells)] += cells
                entries[: len(cells)] += cells
                entries[: len(rare)] += rare
                low = min(low, int(piece.shards.min()))
                high = max(high, len(cells))
            ranges.append((low, high))

        self._observed = observed
        self._begins = np.concatenate([[0], np.cumsum(entries)])
        return ranges

    @property
    def largest(self) -> int:
        """Number of entries of the largest shard."""
        return int(np.diff(self._begins).max(initial=0))

    @property
    def _shard_bytes(self) -> int:
        """Bytes that all shards need on the device while they are sorted."""
        return SHARD_BYTES * len(self._observed)

    def _must_stream(self) -> bool:
        """Return whether the cells must be in host memory; raise TrainingError if the largest shard does not fit."""
        cells = int(self._begins[-1]) * self.entry_bytes
        sorting = self._piece_bytes + self._shard_bytes + self.largest * SORT_BYTES
        if cells <= self.resident_bytes and cells + sorting <= self.temporary_bytes:
            return False

        lacking = max(BUFFERS * self.largest * self.entry_bytes - self.resident_bytes, sorting - self.temporary_bytes)
        if lacking > 0:
            raise TrainingError(
                f"the largest block has {self.largest:,} entries, for which the device lacks "
                f"{format_bytes(int(lacking))} of memory; raise device_memory, or lower block_size",
                argument=("device_memory", "block_size"),
            )
        return True

    def _order_for_rounds(self) -> NDArray[np.int64]:
        """Return the first entry of each shard in host memory: pair of groups by pair, diagonal by diagonal.

        The blocks of a round are a diagonal of a pair of groups, so the cells of a round can be copied in few large
        copies.
        """
        rows, columns = self.places.blocks
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

    def _groups(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of shards that are sorted together: as many as fit, but at least one."""
        cells = 0 if self.on_host else int(self._begins[-1]) * self.entry_bytes
        free_bytes = self.temporary_bytes - self._shard_bytes - cells - self._piece_bytes
        limit = min(GROUP, free_bytes / SORT_BYTES)

        first = 0
        while first < count:
            last = int(np.searchsorted(self._begins, self._begins[first] + limit, side="right")) - 1
            last = min(max(last, first + 1), count)
            yield first, last
            first = last

    def _fill_group(self, sources: Iterable[_Source], table: _ShapeTable, first: int, last: int) -> None:
        """Sort the entries of the shards `first` to `last` and write their slots, positions and counts."""
        begin, end = int(self._begins[first]), int(self._begins[last])
        keys = torch.empty(end - begin, dtype=torch.int64, device=self.device)
        counts = torch.empty(end - begin, device=self.device)

        position = 0
        for piece in (piece for source in sources for piece in source()):
            inside = piece.where((piece.shards >= first) & (piece.shards < last))
            for key, count in table.entries(inside, self.slot_count):
                keys[position : position + len(key)] = key
                counts[position : position + len(key)] = count
                position += len(key)

        # A key is (shard * slot_count + slot) << 16 | position, so sorting by key sorts by shard, slot and position.
        keys, order = torch.sort(keys)
        counts = counts[order]
        del order
        positions = _as_int16(keys & 0xFFFF)
        slots = (keys >> 16) % self.slot_count
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


class _RawCells:
    """Positions and counts of a stored matrix, as int32, on the device."""

    def __init__(self, stored: MatrixCells, uploader: Uploader) -> None:
        self.stored = stored
        self._uploader = uploader
        self._threads = count_cores()
        self._kept: dict[str, Tensor] = {}

    def keep(self) -> None:
        """Copy all cells to the device now, instead of each piece whenever it is read."""
        self._kept = {name: self._upload(name, 0, None) for name in ("positions", "counts")}

    def get(self, name: str, first: int, last: int) -> Tensor:
        """Return `positions` or `counts` of the cells `first` to `last`."""
        return self._kept[name][first:last] if self._kept else self._upload(name, first, last)

    def _upload(self, name: str, first: int, last: int | None) -> Tensor:
        array = getattr(self.stored.arrays, name)[first:last]
        return self._uploader.copy(np.asarray(array).view(np.int32), self._threads)


def _as_int16(values: Tensor) -> Tensor:
    """Return values below 2^16 as int16 with the same 16 bits."""
    return torch.where(values >= 1 << 15, values - (1 << 16), values).to(torch.int16)


class _ShapeTable:
    """The values that determine the slot of a cell, as tensors with one element per shape; `kinds`: of the shards."""

    def __init__(self, shapes: list[BlockShape], kinds: Tensor, tile: KernelTile, device: torch.device) -> None:
        self.kinds = kinds
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

        # Start, slot and slot_columns of each panel; a shape with fewer panels repeats its last one.
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

        kinds = self.kinds_of(piece)
        return (piece.rows >= self.common_rows[kinds]) & (piece.columns >= self.common_columns[kinds])

    def kinds_of(self, piece: _CellPiece) -> Tensor:
        """Return the number of the shape of each cell's shard."""
        return self.kinds[piece.shards].to(torch.int64)

    def entries(self, piece: _CellPiece, slots: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield keys, (shard * slots + slot) << 16 | position, and counts."""
        sparse = self.is_sparse(piece)
        if self.is_sampled:
            rare = piece.where(sparse)
            begin = rare.shards * slots
            kinds = self.kinds_of(rare)

            # A rare cell is an entry of its row and an entry of its column.
            yield (begin + self.row_slots[kinds] + rare.rows) << 16 | rare.columns, rare.counts
            yield (begin + self.column_slots[kinds] + rare.columns) << 16 | rare.rows, rare.counts
            piece = piece.where(~sparse)

        yield self._tile_keys(piece, slots), piece.counts

    def _tile_keys(self, piece: _CellPiece, slots: int) -> Tensor:
        """Return the keys of cells that belong to a tile."""
        # The panel of a cell is the last one that starts at or above its row.
        kinds = self.kinds_of(piece)
        start, slot, across = (values[kinds] for values in self.panels[0])
        for starts, slots_of_panel, slot_columns in self.panels[1:]:
            is_in_panel = piece.rows >= starts[kinds]
            start = torch.where(is_in_panel, starts[kinds], start)
            slot = torch.where(is_in_panel, slots_of_panel[kinds], slot)
            across = torch.where(is_in_panel, slot_columns[kinds], across)

        local = piece.rows - start
        tile = (local // self.tile_rows) * across + piece.columns // self.tile_columns

        # The order of the margins of a tile in shared memory; see `step_kernels.gradient`.
        row = local % self.tile_rows
        column = piece.columns % self.tile_columns
        place = (column // 8) * (8 * self.tile_rows) + row * 8 + column % 8
        return (piece.shards * slots + slot + tile) << 16 | place
