"""Reading and writing vectors in the formats of other tools, one module per family of formats.

`FORMATS` in `registry` maps the name of each format to its reader and writer.
"""

from swivel.vectors.formats.gensim import from_gensim, to_gensim
from swivel.vectors.formats.reader import find_vectors, load, open_vectors
from swivel.vectors.formats.registry import FORMATS
from swivel.vectors.formats.word2vec_text import read_text
from swivel.vectors.formats.writer import export, take_columns

__all__ = [
    "FORMATS",
    "export",
    "find_vectors",
    "from_gensim",
    "load",
    "open_vectors",
    "read_text",
    "take_columns",
    "to_gensim",
]
