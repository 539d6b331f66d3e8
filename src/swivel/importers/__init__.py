"""Other people's counts to a matrix: triples, tables, sparse matrices, baskets, GloVe's and TensorFlow Swivel's files.

Receives files or objects, hands on a `Matrix`, whose rows and columns are sorted by falling sum and may be different
things. Everything is streamed, inside the memory given; what is malformed is refused with its place. It reads no text.
"""

from swivel.importers.importing import import_counts
from swivel.importers.settings import FORMATS, ImportConfig

__all__ = ["FORMATS", "ImportConfig", "import_counts"]
