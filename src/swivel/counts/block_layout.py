"""Block layout of a matrix: mod-interleaved blocks and positions inside a block. Pure arithmetic, no files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swivel.errors import CountsError

BLOCK_SIZE = 1_024  # approximate number of rows and columns of a stored block
MAX_SHARDS = 1 << 20
MAX_BLOCK_LENGTH = 1 << 16  # a position has 16 bits for the row and 16 for the column

Ints: TypeAlias = NDArray[np.int64]
UnitCells: TypeAlias = tuple[Ints, Ints, Ints]  # rows, columns and units of some cells


def block_count_for(size: int, block_size: int) -> int:
    """Return the number of blocks of at most `block_size` features that `size` features need.

    >>> block_count_for(98_305, 1_024)
    97
    """
    return -(-size // block_size)


def block_length(size: int, blocks: int, block: int) -> int:
    """Return how many of `size` features are in `block`; feature r is in block r % blocks.

    >>> [block_length(10, 3, block) for block in range(3)]
    [4, 3, 3]
    """
    return -(-(size - block) // blocks)


@dataclass(frozen=True, slots=True)
class Layout:
    """The blocks of an m x n matrix.

    Row r is in row block r % row_blocks at local position r // row_blocks; columns likewise. The cells of one row block
    and one column block are a shard. A symmetric layout stores only shards with row block <= column block; diagonal
    shards hold both x_ij and x_ji.
    """

    rows: int
    columns: int
    row_blocks: int
    column_blocks: int
    symmetric: bool

    def __post_init__(self) -> None:
        for size, blocks, side in ((self.rows, self.row_blocks, "row"), (self.columns, self.column_blocks, "column")):
            if not 0 < blocks <= size:
                raise CountsError(f"{side} blocks must be 1 to {size:,} for {size:,} {side}s, got {blocks:,}")
            if block_count_for(size, blocks) > MAX_BLOCK_LENGTH:
                raise CountsError(
                    f"{size:,} {side}s in {blocks:,} blocks: a block may have at most {MAX_BLOCK_LENGTH:,} {side}s; "
                    f"use {block_count_for(size, MAX_BLOCK_LENGTH):,} blocks or more"
                )

    @property
    def shards(self) -> int:
        """Number of shards, including those that a symmetric layout leaves empty."""
        return self.row_blocks * self.column_blocks

    @property
    def largest_rows(self) -> int:
        """Number of rows of the largest row block."""
        return block_count_for(self.rows, self.row_blocks)

    @property
    def largest_columns(self) -> int:
        """Number of columns of the largest column block."""
        return block_count_for(self.columns, self.column_blocks)

    def shard(self, row_block: int, column_block: int) -> int:
        """Return the number of the shard of a block; shards are numbered row block by row block."""
        if not (0 <= row_block < self.row_blocks and 0 <= column_block < self.column_blocks):
            blocks = f"{self.row_blocks} x {self.column_blocks} blocks"
            raise IndexError(f"block ({row_block}, {column_block}) is outside a matrix of {blocks}")
        return row_block * self.column_blocks + column_block

    @property
    def local_bits(self) -> tuple[int, int]:
        """Numbers of bits of a local row and of a local column."""
        return (self.largest_rows - 1).bit_length(), (self.largest_columns - 1).bit_length()

    @property
    def key_bits(self) -> int:
        """Number of bits of a key."""
        return (self.shards - 1).bit_length() + sum(self.local_bits)

    def keys(self, rows: Ints, columns: Ints) -> NDArray[np.uint64]:
        """Return shard, local row and local column in `key_bits` bits. Cells are stored in ascending order of this key.

        The key of a cell is the sum of those of (its row, column 0) and (row 0, its column).
        """
        row_bits, column_bits = self.local_bits
        local_rows, row_blocks = np.divmod(rows, self.row_blocks)
        local_columns, column_blocks = np.divmod(columns, self.column_blocks)
        shards = row_blocks * self.column_blocks + column_blocks
        return ((shards << row_bits | local_rows) << column_bits | local_columns).astype(np.uint64)

    def split_keys(self, keys: NDArray[np.uint64]) -> tuple[Ints, NDArray[np.uint32]]:
        """Return the shards of keys and the positions in them."""
        row_bits, column_bits = (np.uint64(bits) for bits in self.local_bits)
        shards = (keys >> row_bits + column_bits).astype(np.int64)
        local_rows = keys >> column_bits & np.uint64((1 << int(row_bits)) - 1)
        local_columns = keys & np.uint64((1 << int(column_bits)) - 1)
        return shards, (local_rows << np.uint64(16) | local_columns).astype(np.uint32)

    def is_kept(self, rows: Ints, columns: Ints) -> NDArray[np.bool_]:
        """Return a mask of the cells that a symmetric layout stores; for the others it stores the mirror."""
        return rows % self.row_blocks <= columns % self.column_blocks

    def is_off_diagonal(self, rows: Ints, columns: Ints) -> NDArray[np.bool_]:
        """Return a mask of the cells outside diagonal shards; a symmetric layout does not store their mirrors."""
        return np.asarray(rows % self.row_blocks != columns % self.column_blocks)

    def find_cells(self, shards: Ints, positions: NDArray[np.uint32]) -> tuple[Ints, Ints]:
        """Return the rows and columns of cells from their shards and their positions in the shard."""
        row_blocks, column_blocks = np.divmod(shards, self.column_blocks)
        rows = row_blocks + (positions >> np.uint32(16)).astype(np.int64) * self.row_blocks
        columns = column_blocks + (positions & np.uint32(0xFFFF)).astype(np.int64) * self.column_blocks
        return rows, columns


def choose_layout(rows: int, columns: int, *, parts: int = 1, symmetric: bool = False) -> Layout:
    """Return the layout of a stored matrix: blocks of about 1,024 features, at most 2^20 shards.

    With `parts` columns per word, the number of column blocks is a multiple of `parts`, so that all columns of a block
    belong to the same part.

    >>> choose_layout(98_304, 2 * 98_304, parts=2).column_blocks
    192
    """
    parts = max(parts, 1)
    words = columns // parts
    size = BLOCK_SIZE
    while block_count_for(rows, size) * block_count_for(words, size) * parts > MAX_SHARDS:
        size += BLOCK_SIZE
    column_blocks = min(block_count_for(words, size) * parts, columns)
    return Layout(rows, columns, block_count_for(rows, size), column_blocks, symmetric)
