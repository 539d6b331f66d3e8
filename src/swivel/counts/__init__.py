"""Co-occurrence matrices on disk: vocabularies, marginals and cells in blocks, memory-mapped, and their builder.

Counts come from `cooccurrence`, from `importers` or from any caller of `MatrixBuilder`. A `Matrix` opens in
milliseconds and returns one block at a time.
"""

from swivel.counts.builder import MatrixBuilder, MatrixSpec, to_units
from swivel.counts.matrix import Matrix, as_matrix, open_matrix
from swivel.counts.matrix_cells import BlockCells
from swivel.counts.triples_file import export_counts

__all__ = [
    "BlockCells",
    "Matrix",
    "MatrixBuilder",
    "MatrixSpec",
    "as_matrix",
    "export_counts",
    "open_matrix",
    "to_units",
]
