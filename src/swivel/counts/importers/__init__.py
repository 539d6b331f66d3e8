"""Import counts of other tools: triples, tables, sparse matrices, baskets, graphs, files of GloVe.

The result is a `Matrix` with rows and columns in descending order of their sums. Sources are streamed within the memory
budget, and errors name the file and the line, row or cell.
"""

from swivel.counts.importers.import_config import FORMATS, ImportConfig, WalkConfig
from swivel.counts.importers.importer import import_counts, walk_counts

__all__ = ["FORMATS", "ImportConfig", "WalkConfig", "import_counts", "walk_counts"]
