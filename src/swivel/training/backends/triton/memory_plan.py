"""What of a run lies on the device and what in host memory. Pure arithmetic, no device.

Receives what a run asks for and how much memory there is; hands on an arrangement: which groups of blocks have room
on the device. Cells that do not fit besides are streamed; that is decided when they are counted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes
from swivel.training.backends.base import DeviceLoad
from swivel.training.backends.triton.layout import BlockShape, KernelTile, Shapes, SlotLayout
from swivel.training.schedule import group_starts

MOST_SHARDS = 128  # in one launch: enough to fill the device many times over
GRADIENT_BYTES = 5 << 28  # of the gradients with respect to the dot products, at most
ENTRY_BYTES = 6  # an observed cell: place and count
PIECE_BYTES = 200  # a cell that is being read: its place in the old blocks and in the new, masks, keys
SORT_BYTES = 80  # an entry that is being sorted: key, count, their order, and the sort's own copies
SLOT_BYTES = 40  # a slot whose start is being looked up
LEAST_PIECE = 1 << 6  # cells that are read at a time, at least
BUFFERS = 2  # one is filled while the other is read
SLACK = 1.02  # tables, losses and what an allocator rounds up
SKEW = 1.5  # entries of the largest block, in those of a block on average: blocks are interleaved, hence alike
# A rough model of time, in steps: moving a block there and back (20 MB), handing a batch over.
COPY, LAUNCH = 4, 2


def sort_bytes(entries: Any, slots: Any) -> Any:
    """Return the bytes of entries and slots while they are sorted."""
    return entries * SORT_BYTES + slots * SLOT_BYTES


def index_bytes(shards: int, slots: int) -> int:
    """Return the bytes that say where the cells of so many shards, of so many slots each, begin."""
    return shards * (slots * 8 + 128) + 8


@dataclass(frozen=True, slots=True)
class Banks:
    """The groups of blocks of one side, and the banks of slots in which some of them are at a time.

    >>> banks = Banks((0, 3, 5), banks=1, first=4)
    >>> banks.group_of(3), banks.slot(3, bank=0), banks.slots
    (1, 4, 3)
    """

    starts: tuple[int, ...]  # of the groups among the blocks, and the end
    banks: int
    first: int  # slot

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.starts) - 1

    @property
    def is_whole(self) -> bool:
        """Whether every group has a bank of its own."""
        return self.banks >= self.groups

    @property
    def room(self) -> int:
        """Slots of a bank."""
        return max(last - first for first, last in pairwise(self.starts))

    @property
    def slots(self) -> int:
        """Slots of all banks."""
        return self.banks * self.room

    def group_of(self, block: int) -> int:
        """Return the group of a block."""
        return bisect_right(self.starts, block) - 1

    def blocks(self, group: int) -> range:
        """Return the blocks of a group."""
        return range(self.starts[group], self.starts[group + 1])

    def slot(self, block: int, bank: int) -> int:
        """Return the slot of a block whose group is in a bank."""
        return self.first + bank * self.room + block - self.starts[self.group_of(block)]


@dataclass(frozen=True)
class DeviceMemoryEstimate:
    """What a run asks for, in bytes."""

    load: DeviceLoad
    tile: KernelTile
    itemsize: int  # of an operand of the products
    fixed: int = 0  # what the libraries take for themselves

    @cached_property
    def places(self) -> SlotLayout:
        """All blocks."""
        return SlotLayout(self.load.starts, self.load.dim)

    @cached_property
    def shapes(self) -> tuple[BlockShape, ...]:
        """The shapes that blocks have, either way round."""
        shapes = Shapes(self.load.zeros, self.tile)
        rows, columns = (np.unique(np.diff(np.asarray(starts))).tolist() for starts in self.load.starts)
        pairs = {(m, n) for m in rows for n in columns} | {(n, m) for m in rows for n in columns}
        return tuple(shapes.of(*pair) for pair in sorted(pairs))

    @cached_property
    def taken(self) -> int:
        """Columns that sampled bands of a block take, at most."""
        return max(sum(band.padded(self.tile)[1] for band in shape.bands if band.stride >= 0) for shape in self.shapes)

    def most(self, groups: tuple[int, int] | None) -> int:
        """Return how many blocks go in one launch: a matter of the order alone, so that the results are, too."""
        size = max(self._gradient_of(shape) for shape in self.shapes)
        return int(max(1, min(MOST_SHARDS, GRADIENT_BYTES // size, *(groups or self.places.blocks))))

    def banks(self, groups: tuple[int, int] | None, count: tuple[int, int]) -> tuple[Banks, Banks]:
        """Return the banks of both sides, so many of each, or as many as there are groups."""
        found: list[Banks] = []
        for blocks, group, banks in zip(self.places.blocks, groups or self.places.blocks, count, strict=True):
            starts = tuple(group_starts(blocks, group))
            found.append(Banks(starts, min(banks, len(starts) - 1), found[0].slots if found else 0))
        return found[0], found[1]

    def parameters(self, slots: int, most: int) -> int:
        """Return the bytes of parameters in so many slots, and of the columns taken for so many blocks."""
        places = self.places
        masters = slots * places.pitch * places.dim * 8
        rows = slots * places.pitch + most * self.taken + places.pitch
        return masters + rows * (places.padded_dim * self.itemsize + 8)

    def work(self, most: int) -> int:
        """Return the bytes that so many blocks of a launch need besides."""
        return self.fixed + int(SLACK * most * max(self._work_of(shape) for shape in self.shapes)) + (1 << 14)

    def _gradient_of(self, shape: BlockShape) -> int:
        """Return the bytes of the gradients with respect to the dot products of a band, the largest."""
        return max(math.prod(band.padded(self.tile)) for band in shape.bands) * self.itemsize

    def _work_of(self, shape: BlockShape) -> int:
        bands = [band.padded(self.tile) for band in shape.bands]
        back = sum(rows + columns for rows, columns in bands) * self.places.padded_dim * 4
        losses = max(band.tiles[0] * band.tiles[1] for band in shape.bands) * 24
        rare = (8 * len(bands) + 12) * self.places.pitch if shape.is_sampled else 0
        strides = 32 * sum(band.columns for band in shape.bands)
        return self._gradient_of(shape) + back + losses + rare + strides + 512 * len(bands)

    @cached_property
    def entries(self) -> int:
        """Entries of all observed cells, at most: two for a cell between features that are not common."""
        return self.load.cells * (2 if any(shape.is_sampled for shape in self.shapes) else 1)

    @cached_property
    def largest(self) -> int:
        """Entries of the largest block, about."""
        rows, columns = self.places.blocks
        shards = rows * (rows + 1) // 2 if self.load.is_halved else rows * columns
        return math.ceil(min(self.entries, SKEW * self.entries / shards))

    @cached_property
    def index(self) -> int:
        """Return the bytes that say where every slot of cells begins."""
        rows, columns = self.places.blocks
        return index_bytes(rows * columns, self.slots)

    @cached_property
    def slots(self) -> int:
        """Lists of cells that a block has, at most, and the end."""
        return 1 + max(shape.slots for shape in self.shapes)

    def least(self, banks: tuple[Banks, Banks], most: int) -> int:
        """Return the bytes without which an arrangement does not work, all cells being streamed."""
        streaming = self.work(most) + min(self.entries, BUFFERS * most * self.largest) * ENTRY_BYTES
        piece = min(self.load.cells, LEAST_PIECE) * PIECE_BYTES
        sorting = max(8 * piece, piece + int(sort_bytes(self.largest, self.slots)))
        slots = sum(side.slots for side in banks)
        return self.parameters(slots, most) + self.index + max(streaming, sorting)


def choose_order(needs: DeviceMemoryEstimate, memory: int | None) -> tuple[int, int] | None:
    """Return the sizes of the groups in which blocks are best trained, or None where all of them fit.

    Raises TrainingError where not even one row block and one column block do.
    """
    rows, columns = needs.places.blocks
    whole = needs.banks(None, (1, 1))
    if memory is None or needs.least(whole, needs.most(None)) <= memory:
        return None
    for count in (2, 1):
        found = [
            (_time_of_pass(needs.banks(groups, (count, count)), needs.most(groups)), groups)
            for groups in ((p, q) for p in _sizes(rows) for q in _sizes(columns))
            if needs.least(needs.banks(groups, (count, count)), needs.most(groups)) <= memory
        ]
        if found:
            return min(found, key=lambda one: (one[0], -one[1][0], -one[1][1]))[1]
    smallest = needs.least(needs.banks((1, 1), (1, 1)), 1)
    raise TrainingError(
        f"one block of rows and one of columns need {format_bytes(smallest)} of the device's memory and there are "
        f"{format_bytes(memory)}; raise --device-memory, or lower --block-size or --dim"
    )


def _sizes(blocks: int) -> list[int]:
    """Return the sizes that equal groups can have."""
    return sorted({math.ceil(blocks / groups) for groups in range(1, blocks + 1)}, reverse=True)


def _time_of_pass(banks: tuple[Banks, Banks], most: int) -> float:
    """Return about how long an epoch takes, in steps."""
    outer, inner = sorted(banks, key=lambda side: side.groups)
    steps = outer.starts[-1] * inner.starts[-1]
    moved = 0.0 if outer.is_whole else float(outer.starts[-1])
    if not inner.is_whole:
        moved += inner.starts[-1] * (1 + (outer.groups - 1) * (1 - 1 / inner.groups))
    hidden = all(side.is_whole or side.banks > 1 for side in banks)
    copies = COPY * moved
    return (max(steps, copies) if hidden else steps + copies) + LAUNCH * steps / most


def arrange(needs: DeviceMemoryEstimate, groups: tuple[int, int] | None, memory: int | None) -> tuple[Banks, Banks]:
    """Return the banks in which the groups of an order take turns: one for each, or two, or one.

    Raises TrainingError where the order needs more memory than there is; a run never changes its order.
    """
    most = needs.most(groups)
    choices = [needs.banks(groups, count) for count in (needs.places.blocks, (2, 2), (1, 1))]
    for banks in choices:
        if memory is None or needs.least(banks, most) <= memory:
            return banks
    what = "all blocks" if groups is None else f"groups of {groups[0]} x {groups[1]} blocks"
    raise TrainingError(
        f"this run trains {what} together, which needs {format_bytes(needs.least(choices[-1], most))} of the device's "
        f"memory, and there are {format_bytes(memory or 0)}; free some, raise --device-memory, or start again"
    )
