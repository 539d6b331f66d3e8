"""The counts on disk: vocabularies, marginals and cells by block, memory-mapped; and their builder.

Receives counts (from `counting`, `importers` or anyone); hands on a `Matrix` that opens in milliseconds and gives one
block at a time. It does not know where counts come from, nor what is done with them.
"""

from swivel.counts.builder import STORED_BYTES, MatrixBuilder, MatrixSpec, building_bytes, to_units
from swivel.counts.layout import block_count_for
from swivel.counts.matrix import BlockCells, Matrix, open_matrix

__all__ = [
    "STORED_BYTES",
    "BlockCells",
    "Matrix",
    "MatrixBuilder",
    "MatrixSpec",
    "block_count_for",
    "building_bytes",
    "open_matrix",
    "to_units",
]
