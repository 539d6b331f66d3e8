"""Vectors wherever they are: a folder of ours, or another tool's file, in and out.

Receives paths, hands on `Vectors`; receives `Vectors`, hands on files that other tools read. `table` has the formats by
name, one module each kind of them. It evaluates nothing and trains nothing.
"""

from swivel.formats.exporting import export, take_columns
from swivel.formats.keyed import from_gensim, to_gensim
from swivel.formats.opening import find_vectors, load, open_vectors
from swivel.formats.table import FORMATS
from swivel.formats.text import read_text

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
