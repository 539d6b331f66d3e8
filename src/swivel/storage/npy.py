"""A strict reader of `.npy` headers, and memory maps of `.npy` files.

NumPy evaluates the header as a Python literal and fails in many different ways if it is damaged. This reader accepts
what NumPy writes for arrays of numbers and strings, and raises ValueError for everything else.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

_MAX_HEADER_BYTES = 10_000
_HEADER = re.compile(
    rb"\{'descr': *'(?P<dtype>[<>|=]?(?P<kind>[biufSUO])\d{0,9})', *'fortran_order': *(?P<fortran>True|False), *"
    rb"'shape': *\((?P<shape>(?:\d{1,18}(?:, *\d{1,18}){0,2})?),?\),? *\}\s*"
)


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Header of a `.npy` file: an array of at most three dimensions, of numbers or fixed-size strings."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def order(self) -> Literal["C", "F"]:
        """Memory order, with NumPy's letter."""
        return "F" if self.is_fortran else "C"


def read_array_header(file: IO[bytes]) -> ArrayHeader:
    """Return the header of a `.npy` file and leave the file position at the first element.

    Raises ValueError if the header is malformed or the array contains Python objects.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.zeros((2, 3), np.float32))
    >>> _ = file.seek(0)
    >>> read_array_header(file).shape
    (2, 3)
    """
    # Six magic bytes and two of the version, which determines the width of the header's length.
    magic = file.read(8)
    width = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}.get(magic[6:])
    if not magic.startswith(b"\x93NUMPY") or width is None:
        raise ValueError("the file does not start with the .npy signature")

    size = int.from_bytes(file.read(width), "little")
    match = _HEADER.fullmatch(file.read(min(size, _MAX_HEADER_BYTES)))
    if match is None:
        raise ValueError("the header does not describe an array of numbers or strings")
    if match["kind"] == b"O":
        raise ValueError("the array contains Python objects, and pickles are not loaded")

    shape = tuple(int(length) for length in match["shape"].split(b",") if length)
    try:
        dtype = np.dtype(match["dtype"].decode())
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not dtype.itemsize:
        raise ValueError(f"the elements have no bytes: {dtype} of shape {shape}")

    return ArrayHeader(shape, match["fortran"] == b"True", dtype)


def map_array(path: Path) -> NDArray[Any]:
    """Return the array in a `.npy` file as a read-only memory map, or raise ValueError."""
    with path.open("rb") as file:
        header = read_array_header(file)
        start = file.tell()
        available = path.stat().st_size - start

        if header.nbytes > available:
            raise ValueError(
                f"the header says shape {header.shape} of {header.dtype}, but only {available:,} bytes follow"
            )
        if not header.size:  # An empty array cannot be mapped.
            return np.empty(header.shape, header.dtype)

        return np.memmap(file, header.dtype, "r", start, header.shape, header.order)
