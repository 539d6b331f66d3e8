"""Where things lie on the device: blocks, bands, tiles and slots. Pure arithmetic, no device.

Blocks of both sides lie in one array, `pitch` rows apart: the row blocks, then the column blocks, then room for the
columns that sampled bands take. Where not all blocks fit, some take turns in their places. A block's *slots* are its
lists of observed cells, one after the other: those of the tiles of every band, then one for each row and one for each
column (cells between features that are not common).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from swivel.training.backends.base import SamplingTier, Starts, ZeroSampling

# The columns of a kernel's table: a line of int64 for every shard and band.
FIELDS = (
    "x0", "height", "y0", "width", "slot", "slot_columns", "cell0", "whole_y0", "stride0", "start",
    "whole_height", "whole_width", "row_slots", "column_slots",
)  # fmt: skip
ALIGNED = 64  # vectors are padded to a multiple of this


@dataclass(frozen=True, slots=True)
class KernelTile:
    """Rows and columns of a tile, and how its kernel is launched."""

    rows: int = 64
    columns: int = 128
    depth: int = 64
    warps: int = 4
    stages: int = 2
    registers: int | None = 128


@dataclass(frozen=True, slots=True)
class BandShape:
    """A band of a block: its rows, how many columns meet them, and its tiles."""

    start: int
    rows: int
    columns: int
    tiles: tuple[int, int]
    slot: int
    slot_columns: int  # tiles in a row that have observed cells of their own
    stride: int  # where its strides begin among those of all bands; -1: every column as it lies

    def padded(self, tile: KernelTile) -> tuple[int, int]:
        """Return rows and columns, rounded up to whole tiles."""
        return self.tiles[0] * tile.rows, self.tiles[1] * tile.columns


@dataclass(frozen=True, slots=True)
class BlockShape:
    """A block of so many rows and columns."""

    rows: int
    columns: int
    common: tuple[int, int]  # rows and columns whose zeros are all taken
    bands: tuple[BandShape, ...]
    row_slots: int
    column_slots: int
    slots: int

    @property
    def is_sampled(self) -> bool:
        """Whether some zeros are left out."""
        return len(self.bands) > 1


class Shapes:
    """The shapes of all blocks of a run, and the strides of their sampled bands."""

    def __init__(self, zeros: ZeroSampling, tile: KernelTile) -> None:
        self.zeros, self.tile = zeros, tile
        self._shapes: dict[tuple[int, int], BlockShape] = {}
        self._starts: list[NDArray[np.float64]] = []
        self._lengths: list[NDArray[np.float64]] = []
        self._strides = 0

    def of(self, rows: int, columns: int) -> BlockShape:
        """Return the shape of a block."""
        key = rows, columns
        if key not in self._shapes:
            self._shapes[key] = self._make(rows, columns)
        return self._shapes[key]

    @property
    def stride_count(self) -> int:
        """Strides of all bands so far."""
        return self._strides

    def strides(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return starts and lengths of the strides of all bands so far."""
        nothing = np.zeros(1)
        return np.concatenate([*self._starts, nothing]), np.concatenate([*self._lengths, nothing])

    def _make(self, rows: int, columns: int) -> BlockShape:
        levels = self.zeros.levels(rows, columns)
        common = self.zeros.common_of(rows), self.zeros.common_of(columns)
        slot, bands = 0, []
        for number, level in enumerate(levels):
            band = self._make_band(level, columns, slot, None if number == 0 else common[1])
            slot += band.tiles[0] * band.slot_columns
            bands.append(band)
        extra = rows + columns if len(levels) > 1 else 0
        return BlockShape(rows, columns, common, tuple(bands), slot, slot + rows, slot + extra)

    def _make_band(self, level: SamplingTier, columns: int, slot: int, common: int | None) -> BandShape:
        rows = level.stop - level.start
        taken, stride = columns, -1
        if common is not None:
            starts, lengths = level.starts, level.lengths
            if starts is None or lengths is None:
                starts, lengths = np.arange(columns, dtype=np.float64), np.ones(columns)
            taken, stride = len(starts), self._strides
            self._starts.append(starts)
            self._lengths.append(lengths)
            self._strides += taken
        tiles = math.ceil(rows / self.tile.rows), math.ceil(taken / self.tile.columns)
        with_cells = tiles[1] if common is None else math.ceil(common / self.tile.columns)
        return BandShape(level.start, rows, taken, tiles, slot, with_cells, stride)


@dataclass(frozen=True)
class SlotLayout:
    """How blocks lie in the joint array: slots at equal distances, the row blocks' first."""

    starts: Starts  # of the blocks among the rows, and among the columns, as the host has them
    dim: int
    slots: int | None = None  # blocks that there is room for; None: all

    @cached_property
    def blocks(self) -> tuple[int, int]:
        """Row blocks and column blocks."""
        return len(self.starts[0]) - 1, len(self.starts[1]) - 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of every block: the row blocks', then the column blocks'."""
        return np.concatenate([np.diff(np.asarray(starts, np.int64)) for starts in self.starts])

    @cached_property
    def pitch(self) -> int:
        """Rows from one slot to the next."""
        return int(-(-self.sizes.max() // 128) * 128)

    @property
    def rows(self) -> int:
        """Rows of all slots."""
        return (len(self.sizes) if self.slots is None else self.slots) * self.pitch

    @property
    def padded_dim(self) -> int:
        """Length of a padded vector."""
        return -(-self.dim // ALIGNED) * ALIGNED

    def span(self, side: int, block: int) -> tuple[int, int]:
        """Return first and last row of a block in the host's array of its side."""
        return int(self.starts[side][block]), int(self.starts[side][block + 1])
