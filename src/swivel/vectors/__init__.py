"""Trained vectors: lookup, nearest neighbors, analogies, alignment, saving and loading.

`Vectors` is the main class. The package needs only NumPy. Formats of other tools are in `swivel.vectors.formats`.
"""

from swivel.vectors.align import find_rotation, shared_words
from swivel.vectors.combine import combine_vectors, recover_axes
from swivel.vectors.expressions import Expression, parse_expression
from swivel.vectors.subwords import Guess, Subwords
from swivel.vectors.vector_table import VectorTable
from swivel.vectors.vectors import Neighbor, Vectors, load

__all__ = [
    "Expression",
    "Guess",
    "Neighbor",
    "Subwords",
    "VectorTable",
    "Vectors",
    "combine_vectors",
    "find_rotation",
    "load",
    "parse_expression",
    "recover_axes",
    "shared_words",
]
