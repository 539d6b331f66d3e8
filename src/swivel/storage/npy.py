"""The beginning of numpy's array files, read strictly.

Receives an open file, hands on shape, order and dtype, and leaves the file at the first value; of a path, the array,
mapped. Not by numpy, which evaluates the header as Python and fails in many ways where it is damaged. No value is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

_LONGEST_HEADER = 10_000
_HEADER = re.compile(
    rb"\{'descr': *'(?P<dtype>[<>|=]?(?P<kind>[biufSUO])\d{0,9})', *'fortran_order': *(?P<fortran>True|False), *"
    rb"'shape': *\((?P<shape>(?:\d{1,18}(?:, *\d{1,18}){0,2})?),?\),? *\}\s*"
)


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What an array file says of its array: at most three dimensions, of numbers or texts of a fixed size."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Values."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.size * self.dtype.itemsize

    @property
    def order(self) -> Literal["C", "F"]:
        """The order as numpy calls it."""
        return "F" if self.is_fortran else "C"


def read_array_header(file: IO[bytes]) -> ArrayHeader:
    """Return what an array file says of its array, or raise ValueError.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.zeros((2, 3), np.float32))
    >>> _ = file.seek(0)
    >>> read_array_header(file).shape
    (2, 3)
    """
    magic = file.read(8)
    width = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}.get(magic[6:])
    if not magic.startswith(b"\x93NUMPY") or width is None:
        raise ValueError("it does not begin as one does")
    size = int.from_bytes(file.read(width), "little")
    found = _HEADER.fullmatch(file.read(min(size, _LONGEST_HEADER)))
    if found is None:
        raise ValueError("its header is not that of an array of numbers or texts")
    if found["kind"] == b"O":
        raise ValueError("it holds Python objects, and no pickle is loaded")
    shape = tuple(int(each) for each in found["shape"].split(b",") if each)
    try:
        dtype = np.dtype(found["dtype"].decode())
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not dtype.itemsize:
        raise ValueError(f"{dtype} of shape {shape}")
    return ArrayHeader(shape, found["fortran"] == b"True", dtype)


def map_array(path: Path) -> NDArray[Any]:
    """Return the array of a file, mapped read-only, or raise ValueError."""
    with path.open("rb") as file:
        header = read_array_header(file)
        start, size = file.tell(), path.stat().st_size
        if header.nbytes > size - start:
            raise ValueError(f"shape {header.shape} of {header.dtype}, and {size - start:,} bytes are there")
        if not header.size:  # An empty array cannot be mapped.
            return np.empty(header.shape, header.dtype)
        return np.memmap(file, header.dtype, "r", start, header.shape, header.order)
