"""Trained vectors: lookup, nearest neighbors, analogies, alignment, saving and loading.

`Vectors` is the main class. The package needs only NumPy. Formats of other tools are in `swivel.vectors.formats`.
"""

from swivel.vectors.combine import combine_vectors as combine_vectors
from swivel.vectors.combine import recover_axes as recover_axes
from swivel.vectors.search import Expression as Expression
from swivel.vectors.search import parse_expression as parse_expression
from swivel.vectors.subwords import Guess as Guess
from swivel.vectors.subwords import Subwords as Subwords
from swivel.vectors.vector_table import VectorTable as VectorTable
from swivel.vectors.vector_table import find_rotation as find_rotation
from swivel.vectors.vector_table import shared_words as shared_words
from swivel.vectors.vectors import Neighbor as Neighbor
from swivel.vectors.vectors import Vectors as Vectors
