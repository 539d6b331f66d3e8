"""Other people's counts to a matrix: triples, tables, sparse matrices, baskets, GloVe's and TensorFlow Swivel's files.

Receives files or objects, hands on a `Matrix`, whose rows and columns are sorted by falling sum and may be different
things. Everything is streamed, inside the memory given; what is malformed is refused with its place. It reads no text.
"""

from swivel.counts.importers.config import FORMATS, ImportConfig
from swivel.counts.importers.importer import import_counts

__all__ = ["FORMATS", "ImportConfig", "import_counts"]
