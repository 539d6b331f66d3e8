"""Positions of blocks, tiles and slots in the arrays of the device. Pure arithmetic, without a device.

The blocks of both sides are in one array (`SlotLayout`), `pitch` rows apart: first the row blocks, then the column
blocks. If not all blocks fit, groups of them share the same rows in turn.

Every block has the tiles of the largest one, so that blocks of different sizes are launched together. The *slots* of a
block are the lists of the observed cells of its tiles. An *entry* is a cell in a slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from swivel.training.backends.base import Starts

# The columns of the kernels' table, which has a line of int64 for every shard. X is the side of the cells' rows, Y the
# side of their columns; "row" is a row of the joint array.
FIELDS = (
    "x0",  # first row of X
    "height",  # rows of the block
    "y0",  # first row of Y
    "width",  # columns of the block
    "first_entry",  # first entry of the block's observed cells
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


class SlotLayout:
    """Places for blocks in the joint array at equal distances, and the tiles of every block.

    starts: first row of each block in the host's arrays of rows and of columns, and the end.
    """

    def __init__(self, starts: Starts, dim: int, tile: KernelTile) -> None:
        self.starts = starts
        self.dim = dim
        self.padded_dim = -(-dim // ALIGNED) * ALIGNED
        self.tile = tile
        self.blocks = len(starts[0]) - 1, len(starts[1]) - 1
        # Number of rows of every row block, and of columns of every column block.
        self.sizes: list[list[int]] = [np.diff(np.asarray(side)).tolist() for side in starts]

        # Rows and columns of tiles of a block, and of its cells, rounded up to whole tiles.
        rows, columns = map(max, self.sizes)
        self.tiles = math.ceil(rows / tile.rows), math.ceil(columns / tile.columns)
        self.padded = self.tiles[0] * tile.rows, self.tiles[1] * tile.columns
        # Slots of a block; the last one is empty: its start is the end of the one before.
        self.slot_count = math.prod(self.tiles) + 1
        # Distance between the first rows of two blocks, a multiple of 128 (two row tiles).
        self.pitch = math.ceil(max(rows, columns) / 128) * 128
