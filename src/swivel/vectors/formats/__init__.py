"""Reading and writing vectors in the formats of other tools, one module per family of formats.

`FORMATS` in `registry` maps the name of each format to its reader and writer.
"""

from swivel.vectors.formats.gensim import from_gensim, to_gensim
from swivel.vectors.formats.registry import FORMATS, as_vectors, export, find_vectors, load, open_vectors, source_of
from swivel.vectors.formats.word2vec import read_text

__all__ = [
    "FORMATS",
    "as_vectors",
    "export",
    "find_vectors",
    "from_gensim",
    "load",
    "open_vectors",
    "read_text",
    "source_of",
    "to_gensim",
]
