"""Positions of blocks, panels, tiles and slots in the arrays of the device. Pure arithmetic, without a device.

The blocks of both sides are in one array (`SlotLayout`), `pitch` rows apart: first the row blocks, then the column
blocks, then the columns that sampled panels copy. If not all blocks fit, groups of them share the same rows in turn.

The *slots* of a block are its lists of observed cells: one for each tile of every panel, then one for each row and one
for each column, with the cells between features that are not common. An *entry* is a cell in a slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.training.backends.base import Starts
from swivel.training.zero_sampling import Tier, ZeroSampling

# The columns of the kernels' table, which has a line of int64 for every panel and shard. X is the side of the cells'
# rows, Y the side of their columns; "row" is a row of the joint array.
FIELDS = (
    "x0",  # first row of the panel
    "height",  # rows of the panel
    "y0",  # first row of the panel's columns: those of the block, or the copies of the sampled ones
    "width",  # columns of the panel
    "slot",  # slot of the panel's first tile
    "slot_columns",  # tiles per row of tiles that have a slot
    "first_entry",  # first entry of the block's observed cells
    "whole_y0",  # first row of the block's columns
    "stride0",  # first stride of the panel; -1: not sampled
    "row_slots",  # slot of the block's first row
    "column_slots",  # slot of the block's first column
    "end_entry",  # end of its entries
    "is_mirrored",  # 1 if X are columns of the matrix
)
ALIGNED = 64  # vectors are padded to a multiple of this


@dataclass(frozen=True, slots=True)
class KernelTile:
    """Shape of a tile, and launch options of its kernel."""

    rows: int = 64
    columns: int = 128
    depth: int = 64  # dimensions of the vectors that are multiplied at a time
    warps: int = 4
    stages: int = 2  # loads in flight in the loop over the dimensions
    registers: int | None = 128  # limit per thread; None: the compiler's choice


def choose_tile(dtype: str) -> KernelTile:
    """Return the fastest tile for operands of a dtype (experiments/notes.md)."""
    if dtype == "float32":
        return KernelTile(64, 64, 32, warps=4, stages=2, registers=None)
    return KernelTile()


@dataclass(frozen=True, slots=True)
class PanelShape:
    """A panel of a block: its rows, the columns they are combined with, and its tiles."""

    start: int  # first row within the block
    rows: int
    columns: int
    tiles: tuple[int, int]  # rows and columns of tiles
    padded: tuple[int, int]  # number of rows and of columns, rounded up to whole tiles
    slot: int  # slot of the first tile
    slot_columns: int  # tiles per row of tiles that have a slot of observed cells
    copies_before: int  # columns, rounded up, that the sampled panels before it copy
    stride: int  # first stride in `SlotLayout.strides`; -1: not sampled, all columns in their place


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Size of a block, its panels and its slots."""

    rows: int
    columns: int
    common: tuple[int, int]  # number of rows and of columns whose zeros are all computed
    panels: tuple[PanelShape, ...]
    row_slots: int  # slot of the first row
    column_slots: int  # slot of the first column
    slots: int  # number of slots

    @property
    def is_sampled(self) -> bool:
        """Whether some zeros are not computed."""
        return len(self.panels) > 1


class SlotLayout:
    """Places for blocks in the joint array at equal distances, and the shapes of all blocks of a run.

    starts: first row of each block in the host's arrays of rows and of columns, and the end.
    """

    def __init__(self, starts: Starts, dim: int, zeros: ZeroSampling, tile: KernelTile) -> None:
        self.starts = starts
        self.dim = dim
        self.padded_dim = -(-dim // ALIGNED) * ALIGNED
        self.tile = tile
        self._zeros = zeros
        self.blocks = len(starts[0]) - 1, len(starts[1]) - 1
        # Number of rows of every block: first the row blocks, then the column blocks.
        self.sizes = np.concatenate([np.diff(np.asarray(side, np.int64)) for side in starts])
        # Distance between the first rows of two blocks, a multiple of 128 (two row tiles).
        self.pitch = int(-(-self.sizes.max() // 128) * 128)

        # Starts and lengths of the strides of all sampled panels.
        self.strides: tuple[NDArray[np.float64], NDArray[np.float64]] = np.zeros(0), np.zeros(0)
        heights, widths = (np.unique(part).tolist() for part in np.split(self.sizes, self.blocks[:1]))
        pairs = {(m, n) for m in heights for n in widths} | {(n, m) for m in heights for n in widths}
        # The distinct shapes of blocks, including those of mirrored blocks, by their numbers of rows and columns.
        self.shapes = {pair: self._make_shape(*pair) for pair in sorted(pairs)}
        # Slots of every block; the last one is empty: its start is the end of the one before.
        self.slot_count = 1 + max(shape.slots for shape in self.shapes.values())

    def shape_of(self, block: tuple[int, int], *, mirrored: bool) -> BlockShape:
        """Return the shape of a block in the orientation of its cells."""
        rows, columns = int(self.sizes[block[0]]), int(self.sizes[self.blocks[0] + block[1]])
        return self.shapes[(columns, rows) if mirrored else (rows, columns)]

    def _make_shape(self, rows: int, columns: int) -> BlockShape:
        tiers = self._zeros.tiers(rows, columns)
        common = self._zeros.count_common(rows), self._zeros.count_common(columns)

        # A sampled panel has slots only for tiles with common columns; its other cells are in the slots of rows and
        # columns, which follow those of the tiles.
        panels: list[PanelShape] = []
        slot = copies = 0
        for number, tier in enumerate(tiers):
            panel = self._make_panel(tier, columns, slot, copies, None if number == 0 else common[1])
            slot += panel.tiles[0] * panel.slot_columns
            copies += panel.padded[1] if panel.stride >= 0 else 0
            panels.append(panel)

        extra = rows + columns if len(tiers) > 1 else 0
        return BlockShape(rows, columns, common, tuple(panels), slot, slot + rows, slot + extra)

    def _make_panel(self, tier: Tier, columns: int, slot: int, copies: int, common: int | None) -> PanelShape:
        """Return the panel of a tier; `common` is the number of common columns, or None for the tier of common rows."""
        rows, strides = tier
        tile = self.tile
        width, stride = columns, -1

        if common is not None:
            starts, lengths = strides or (np.arange(columns, dtype=np.float64), np.ones(columns))
            width, stride = len(starts), len(self.strides[0])
            self.strides = np.append(self.strides[0], starts), np.append(self.strides[1], lengths)

        tiles = math.ceil(len(rows) / tile.rows), math.ceil(width / tile.columns)
        padded = tiles[0] * tile.rows, tiles[1] * tile.columns
        slot_columns = tiles[1] if common is None else math.ceil(common / tile.columns)
        return PanelShape(rows.start, len(rows), width, tiles, padded, slot, slot_columns, copies, stride)
