"""Trained vectors: looking up, searching, arithmetic, saving and loading.

Receives what training hands over (rows, columns, their vocabularies and marginals), hands on a `Vectors` that
answers questions, and the folder it is kept in. It trains nothing, reads no foreign formats, and loads nothing
heavier than numpy.
"""

from swivel.vectors.align import find_rotation, shared_words
from swivel.vectors.combine import combine_vectors, recover_axes
from swivel.vectors.expressions import Expression, parse_expression
from swivel.vectors.folder import VectorTable
from swivel.vectors.vectors import Neighbour, Vectors, load, write_vectors

__all__ = [
    "Expression",
    "Neighbour",
    "VectorTable",
    "Vectors",
    "combine_vectors",
    "find_rotation",
    "load",
    "parse_expression",
    "recover_axes",
    "shared_words",
    "write_vectors",
]
