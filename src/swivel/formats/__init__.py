"""Vectors wherever they are: a folder of ours, or another tool's file.

Receives paths, hands on `Vectors`. It evaluates nothing and trains nothing.
"""

from swivel.formats.opening import find_vectors, open_vectors
from swivel.formats.text import read_text

__all__ = ["find_vectors", "open_vectors", "read_text"]
