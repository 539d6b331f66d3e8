"""Vectors wherever they are: a folder of ours, or another tool's file, in and out.

Receives paths, hands on `Vectors`; receives `Vectors`, hands on files that other tools read. `table` has the formats by
name, one module each kind of them. It evaluates nothing and trains nothing.
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
