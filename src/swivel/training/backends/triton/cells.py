"""The observed cells: sorted on the device into the slots of their blocks, once, before the first step.

Receives the cells as a matrix stores them, in whatever blocks; hands on positions, counts and where each slot begins.
Blocks are laid out anew here, on the device, so that no other copy of the matrix is needed. Where they do not fit they
go to host memory, group by group. It knows no vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes
from swivel.training.backends.base import ObservedCells, StoredCells
from swivel.training.backends.triton.cuda_streams import HostMemory
from swivel.training.backends.triton.layout import BlockShape, KernelTile, Shapes, SlotLayout
from swivel.training.backends.triton.memory_plan import BUFFERS, ENTRY_BYTES, PIECE_BYTES, index_bytes, sort_bytes

Tensor = torch.Tensor
PIECE = 1 << 25  # cells that are read at a time, at most
GROUP = 1 << 26  # entries that are sorted at a time, at most


@dataclass(frozen=True, slots=True)
class CellRoom:
    """Bytes of the device that cells may take."""

    lasting: int  # all through training
    passing: int  # while they are laid out


Source = Callable[[], "Iterator[_CellPiece]"]


@dataclass(frozen=True, slots=True)
class ShardCells:
    """Where the cells of a shard are."""

    slot: int  # its first slot
    begin: int  # its first entry
    end: int
    observed: int
    mirrored: bool = False


@dataclass(frozen=True, slots=True)
class _CellPiece:
    """Cells with the shard and the local place that they fall to."""

    shards: Tensor
    rows: Tensor
    columns: Tensor
    counts: Tensor

    def where(self, mask: Tensor) -> _CellPiece:
        return _CellPiece(self.shards[mask], self.rows[mask], self.columns[mask], self.counts[mask])


class DeviceCells:
    """All observed cells of a matrix.

    Attributes
    ----------
    positions, counts
        An entry for each: its place in its tile, or the other side's local index; and its count.
    starts
        Where each slot begins, shard after shard; int64, on the device.
    on_host
        Whether positions and counts are in host memory.
    """

    def __init__(
        self, places: SlotLayout, shapes: Shapes, device: torch.device, *, room: CellRoom | None = None,
        host: HostMemory | None = None,
    ) -> None:  # fmt: skip
        self.places, self.shapes, self.device = places, shapes, device
        self.room = room  # None: as much as there is
        self.on_host = False
        self._host = host
        self.symmetric = False
        self._mirrored: set[tuple[int, int]] = set()
        self.positions = torch.zeros(0, dtype=torch.int16)
        self.counts = torch.zeros(0)
        self.starts = torch.zeros(1, dtype=torch.int64)
        self._begins: NDArray[np.int64] = np.zeros(1, np.int64)  # of the shards' entries, row block by row block
        self._places: NDArray[np.int64] = np.zeros(0, np.int64)  # where the entries of each shard are kept
        self._observed: NDArray[np.int64] = np.zeros(0, np.int64)
        self._slots = 1
        self._piece_bytes = 0

    def find(self, block: tuple[int, int]) -> ShardCells:
        """Return where the cells of a block are."""
        mirrored = block[0] > block[1] if self.symmetric else block in self._mirrored
        i, j = reversed(block) if self.symmetric and mirrored else block
        shard = i * self.places.blocks[1] + j
        begin = int(self._places[shard])
        end = begin + int(self._begins[shard + 1] - self._begins[shard])
        return ShardCells(shard * self._slots, begin, end, int(self._observed[shard]), mirrored)

    def shape_of(self, block: tuple[int, int], *, mirrored: bool) -> BlockShape:
        """Return the shape of a block, the way round in which its cells are."""
        rows = int(self.places.sizes[block[0]])
        columns = int(self.places.sizes[self.places.blocks[0] + block[1]])
        return self.shapes.of(columns, rows) if mirrored else self.shapes.of(rows, columns)

    def take(self, stored: StoredCells) -> None:
        """Lay out the cells of a whole matrix."""
        self.symmetric = stored.symmetric and self.places.blocks[0] == self.places.blocks[1]
        total = int(stored.offsets[-1])
        size = PIECE if self.room is None else max(1, min(PIECE, self.room.passing // (8 * PIECE_BYTES)))
        self._piece_bytes = min(size, total) * PIECE_BYTES
        offsets = self._put(np.asarray(stored.offsets, np.int64))

        def source(first: int) -> Source:
            return lambda: self._read(stored, offsets, first, min(first + size, total))

        self._fill([source(first) for first in range(0, total, size)])

    def take_blocks(self, blocks: dict[tuple[int, int], ObservedCells]) -> None:
        """Lay out some blocks alone, each the way round it is."""
        self._mirrored = {block for block, cells in blocks.items() if cells.mirrored}

        def source(block: tuple[int, int], cells: ObservedCells) -> Source:
            return lambda: iter([self._to_piece(block, cells)])

        self._fill([source(block, cells) for block, cells in blocks.items()])

    def _to_piece(self, block: tuple[int, int], cells: ObservedCells) -> _CellPiece:
        positions = self._put(np.asarray(cells.positions).astype(np.int64))
        shards = torch.full_like(positions, block[0] * self.places.blocks[1] + block[1])
        return _CellPiece(shards, positions >> 16, positions & 0xFFFF, self._put(np.array(cells.counts, np.float32)))

    def _put(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self.device)

    def _read(self, stored: StoredCells, offsets: Tensor, first: int, last: int) -> Iterator[_CellPiece]:
        """Yield the cells that are kept of a range, with their new shards."""
        positions = self._put(np.asarray(stored.positions[first:last]).view(np.int32)).to(torch.int64)
        counts = self._put(stored.counts_of(first, last))
        shards = torch.searchsorted(offsets, torch.arange(first, last, device=self.device), right=True) - 1
        old_i, old_j = shards // stored.blocks[1], shards % stored.blocks[1]
        rows = old_i + ((positions >> 16) & 0xFFFF) * stored.blocks[0]
        columns = old_j + (positions & 0xFFFF) * stored.blocks[1]
        off = old_i != old_j  # shards on the diagonal hold both mirrors already
        del positions, shards, old_i, old_j
        yield self._place(rows, columns, counts)
        if stored.symmetric:
            yield self._place(columns[off], rows[off], counts[off])

    def _place(self, rows: Tensor, columns: Tensor, counts: Tensor) -> _CellPiece:
        row_blocks, column_blocks = self.places.blocks
        i, j = rows % row_blocks, columns % column_blocks
        piece = _CellPiece(i * column_blocks + j, rows // row_blocks, columns // column_blocks, counts)
        return piece.where(i <= j) if self.symmetric else piece

    def _fill(self, sources: Sequence[Source]) -> None:
        shapes = self._shapes_of_shards()
        self._slots = 1 + max((shape.slots for shape in shapes), default=0)  # the last is empty: it ends the one before
        count = len(shapes)
        table = _ShapeTable(shapes, self.shapes.tile, self.device)
        found = self._count(sources, table, count)
        total = int(self._begins[-1])
        self.on_host = self._must_stream()
        self._places = self._keep_together() if self.on_host else self._begins[:-1]
        self.positions = self._empty(total, np.int16)
        self.counts = self._empty(total, np.float32)
        self.starts = torch.full((count * self._slots + 1,), total, dtype=torch.int64, device=self.device)
        for first, last in self._groups(count):
            # Groups are of neighbours, as pieces are: most have nothing to do with each other.
            wanted = [source for source, shards in zip(sources, found, strict=True) if shards[first:last].any()]
            self._fill_group(wanted, table, first, last)

    def _count(self, sources: Sequence[Source], table: _ShapeTable, count: int) -> list[NDArray[np.bool_]]:
        """Count the entries of every shard; return which shards each source has cells of."""
        entries, observed = np.zeros(count, np.int64), np.zeros(count, np.int64)
        found = []
        for source in sources:
            has = np.zeros(count, np.bool_)
            for piece in source():
                cells = torch.bincount(piece.shards, minlength=count).cpu().numpy()
                rare = torch.bincount(piece.shards[table.is_sparse(piece)], minlength=count).cpu().numpy()
                has |= cells > 0
                observed += cells
                entries += cells + rare
            found.append(has)
        self._observed = observed
        self._begins = np.concatenate([[0], np.cumsum(entries)])
        return found

    @property
    def largest(self) -> int:
        """Entries of the largest shard."""
        return int(np.diff(self._begins).max(initial=0))

    @property
    def index_bytes(self) -> int:
        """Bytes that say where cells are."""
        return index_bytes(len(self._observed), self._slots)

    def _must_stream(self) -> bool:
        """Return whether cells stay in host memory; raise TrainingError where not even a shard fits the device."""
        if self.room is None:
            return False
        cells = int(self._begins[-1]) * ENTRY_BYTES
        sorting = self._piece_bytes + sort_bytes(self.largest, self._slots)
        if cells + self.index_bytes <= self.room.lasting and cells + self.index_bytes + sorting <= self.room.passing:
            return False
        lacking = max(
            self.index_bytes + BUFFERS * self.largest * ENTRY_BYTES - self.room.lasting,
            self.index_bytes + sorting - self.room.passing,
        )
        if lacking > 0:
            raise TrainingError(
                f"the largest block has {self.largest:,} entries, for which the device's memory is "
                f"{format_bytes(lacking)} short; raise --device-memory, or lower --block-size"
            )
        return True

    def _empty(self, size: int, dtype: type) -> Tensor:
        if not self.on_host:
            return torch.empty(size, dtype=torch.int16 if dtype is np.int16 else torch.float32, device=self.device)
        self._host = self._host or HostMemory(self.device)
        return self._host.empty((size,), dtype)

    def _sort_room(self) -> int:
        """Return the bytes that sorting may take."""
        most = int(sort_bytes(GROUP, 0))
        if self.room is None:
            return most
        cells = 0 if self.on_host else int(self._begins[-1]) * ENTRY_BYTES
        return min(most, self.room.passing - self.index_bytes - cells - self._piece_bytes)

    def _keep_together(self) -> NDArray[np.int64]:
        """Return where entries are kept so that those of a round are copied in one go: diagonal by diagonal."""
        rows, columns = self.places.blocks
        i, j = np.divmod(np.arange(rows * columns), columns)
        order = np.lexsort((np.minimum(i, j) if self.symmetric else i, (j - i) % max(rows, columns)))
        lengths = np.diff(self._begins)
        places = np.empty_like(lengths)
        places[order] = np.cumsum(lengths[order]) - lengths[order]
        return places

    def _shapes_of_shards(self) -> list[BlockShape]:
        rows, columns = self.places.blocks
        blocks = [(i, j) for i in range(rows) for j in range(columns)]
        return [self.shape_of(block, mirrored=block in self._mirrored) for block in blocks]

    def _groups(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of shards that are sorted together: as many as fit, one at least."""
        first, most = 0, self._sort_room()
        costs = sort_bytes(self._begins, np.arange(count + 1) * self._slots)
        while first < count:
            last = int(np.searchsorted(costs, costs[first] + most, side="right")) - 1
            last = min(max(last, first + 1), count)
            yield first, last
            first = last

    def _fill_group(self, sources: Sequence[Source], table: _ShapeTable, first: int, last: int) -> None:
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
        found, order = torch.sort(keys)
        del keys
        self._keep(first, last, _as_int16(found & 0xFFFF), counts[order])
        slots = torch.arange(first * self._slots, last * self._slots, device=self.device)
        moved = torch.from_numpy(self._places[first:last] - self._begins[first:last] + begin).to(self.device)
        starts = torch.searchsorted(found, slots << 16) + moved.repeat_interleave(self._slots)
        self.starts[first * self._slots : last * self._slots] = starts

    def _keep(self, first: int, last: int, positions: Tensor, counts: Tensor) -> None:
        """Put the entries of some shards where they belong."""
        begins, places = self._begins[first : last + 1] - self._begins[first], self._places[first:last]
        if not self.on_host:
            where = slice(int(places[0]), int(places[0] + begins[-1]))
            self.positions[where], self.counts[where] = positions, counts
            return
        for begin, end, place in zip(begins[:-1].tolist(), begins[1:].tolist(), places.tolist(), strict=True):
            self.positions[place : place + end - begin] = positions[begin:end]
            self.counts[place : place + end - begin] = counts[begin:end]


def _as_int16(values: Tensor) -> Tensor:
    """Return the low 16 bits, as they are."""
    return torch.where(values >= 1 << 15, values - (1 << 16), values).to(torch.int16)


class _ShapeTable:
    """What the slot of a cell depends on, a tensor for each shard."""

    def __init__(self, shapes: list[BlockShape], tile: KernelTile, device: torch.device) -> None:
        self.tile_rows, self.tile_columns = tile.rows, tile.columns

        def column(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self.bands = max((len(shape.bands) for shape in shapes), default=1)
        self.is_sampled = self.bands > 1
        self.common_rows = column([shape.common[0] for shape in shapes])
        self.common_columns = column([shape.common[1] for shape in shapes])
        self.row_slots = column([shape.row_slots for shape in shapes])
        self.column_slots = column([shape.column_slots for shape in shapes])
        padded = [(*shape.bands, *[shape.bands[-1]] * (self.bands - len(shape.bands))) for shape in shapes]
        self.starts = [column([bands[n].start for bands in padded]) for n in range(self.bands)]
        self.slots = [column([bands[n].slot for bands in padded]) for n in range(self.bands)]
        self.slot_columns = [column([bands[n].slot_columns for bands in padded]) for n in range(self.bands)]

    def is_sparse(self, piece: _CellPiece) -> Tensor:
        """Return which cells lie between features that are not common."""
        if not self.is_sampled:
            return torch.zeros_like(piece.shards, dtype=torch.bool)
        rows, columns = self.common_rows[piece.shards], self.common_columns[piece.shards]
        return (piece.rows >= rows) & (piece.columns >= columns)

    def entries(self, piece: _CellPiece, slots: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield keys, (shard x slots + slot) << 16 | position, and counts."""
        sparse = self.is_sparse(piece)
        if self.is_sampled:
            rare = piece.where(sparse)
            begin = rare.shards * slots
            yield (begin + self.row_slots[rare.shards] + rare.rows) << 16 | rare.columns, rare.counts
            yield (begin + self.column_slots[rare.shards] + rare.columns) << 16 | rare.rows, rare.counts
            piece = piece.where(~sparse)
        yield self._tile_keys(piece, slots), piece.counts

    def _tile_keys(self, piece: _CellPiece, slots: int) -> Tensor:
        start, slot, across = (tensors[0][piece.shards] for tensors in (self.starts, self.slots, self.slot_columns))
        for n in range(1, self.bands):
            here = piece.rows >= self.starts[n][piece.shards]
            start = torch.where(here, self.starts[n][piece.shards], start)
            slot = torch.where(here, self.slots[n][piece.shards], slot)
            across = torch.where(here, self.slot_columns[n][piece.shards], across)
        local = piece.rows - start
        tile = (local // self.tile_rows) * across + piece.columns // self.tile_columns
        row, column = local % self.tile_rows, piece.columns % self.tile_columns
        # The order in which the kernel lays a tile out in shared memory.
        place = (column // 8) * (8 * self.tile_rows) + row * 8 + column % 8
        return (piece.shards * slots + slot + tile) << 16 | place
