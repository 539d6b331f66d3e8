"""Co-occurrence matrices on disk: vocabularies, marginals and cells in blocks, memory-mapped, and their builder.

Counts come from `cooccurrence`, from `importers` or from any caller of `MatrixBuilder`. A `Matrix` opens in
milliseconds and returns one block at a time.
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
