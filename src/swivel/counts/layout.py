"""Where a cell lies: blocks by mod-interleaving, positions inside a block. Pure arithmetic, no files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.errors import CountsError

BLOCK_SIZE = 1_024  # of stored blocks, about
MOST_SHARDS = 1 << 20
MOST_ROWS_A_BLOCK = 1 << 16  # a position has 16 bits for each side


def block_count_for(size: int, block_size: int) -> int:
    """Return how many blocks of at most `block_size` hold `size` features.

    >>> block_count_for(98_305, 1_024)
    97
    """
    return -(-size // block_size)


def block_length(size: int, blocks: int, block: int) -> int:
    """Return how many of `size` features fall to `block`: r is in block r % blocks.

    >>> [block_length(10, 3, block) for block in range(3)]
    [4, 3, 3]
    """
    return -(-(size - block) // blocks)


@dataclass(frozen=True, slots=True)
class Layout:
    """The blocks of an m x n matrix.

    Row r is in row block r % row_blocks at local position r // row_blocks; columns likewise. A symmetric layout
    keeps only the shards whose row block is not above their column block; diagonal shards are whole.
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
            if block_count_for(size, blocks) > MOST_ROWS_A_BLOCK:
                raise CountsError(
                    f"{size:,} {side}s in {blocks:,} blocks: a block may have at most {MOST_ROWS_A_BLOCK:,} {side}s; "
                    f"ask for {block_count_for(size, MOST_ROWS_A_BLOCK):,} blocks or more"
                )

    @property
    def shards(self) -> int:
        """Number of entries in the table of shards, row block by row block."""
        return self.row_blocks * self.column_blocks

    @property
    def largest_rows(self) -> int:
        """Rows of the largest block."""
        return block_count_for(self.rows, self.row_blocks)

    @property
    def largest_columns(self) -> int:
        """Columns of the largest block."""
        return block_count_for(self.columns, self.column_blocks)

    def shard(self, row_block: int, column_block: int) -> int:
        """Return the place of a block in the table of shards."""
        if not (0 <= row_block < self.row_blocks and 0 <= column_block < self.column_blocks):
            raise IndexError(
                f"block ({row_block}, {column_block}) of a matrix of {self.row_blocks} x {self.column_blocks} blocks"
            )
        return row_block * self.column_blocks + column_block

    def keys(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return shard << 32 | local row << 16 | local column of cells: the order in which they are stored."""
        local_rows, row_blocks = np.divmod(rows, self.row_blocks)
        local_columns, column_blocks = np.divmod(columns, self.column_blocks)
        shards = row_blocks * self.column_blocks + column_blocks
        return (shards << 32 | local_rows << 16 | local_columns).astype(np.uint64)

    def is_kept(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which cells are stored, rather than their mirrors."""
        return rows % self.row_blocks <= columns % self.column_blocks

    def find_cells(
        self, shards: NDArray[np.int64], positions: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows and columns of cells from their shards and their positions inside."""
        row_blocks, column_blocks = np.divmod(shards, self.column_blocks)
        rows = row_blocks + (positions >> np.uint32(16)).astype(np.int64) * self.row_blocks
        columns = column_blocks + (positions & np.uint32(0xFFFF)).astype(np.int64) * self.column_blocks
        return rows, columns


def choose_layout(rows: int, columns: int, *, parts: int = 1, symmetric: bool = False) -> Layout:
    """Return the layout in which a matrix is stored: blocks of about 1,024, at most 2^20 shards.

    With `parts` columns a word, the column blocks are a multiple of `parts`, so that a block holds one part only.

    >>> choose_layout(98_304, 2 * 98_304, parts=2).column_blocks
    192
    """
    parts = max(parts, 1)
    words = columns // parts
    size = BLOCK_SIZE
    while block_count_for(rows, size) * block_count_for(words, size) * parts > MOST_SHARDS:
        size += BLOCK_SIZE
    column_blocks = min(block_count_for(words, size) * parts, columns)
    return Layout(rows, columns, block_count_for(rows, size), column_blocks, symmetric)
