"""Array files that are written piece by piece: mapped at their full size, or growing.

Receives paths and values, hands on `.npy` files. It knows no folders and no manifests.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from swivel.errors import clear_errors

_HEADER_BYTES = 128  # of an .npy file; leaves room for any length


def create_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a new memory-mapped array that fills the `.npy` file at `path`, with its room on the disk reserved.

    Where room cannot be reserved (macOS, Windows) a full disk shows when the array is written, and ends the process:
    what can be written in one go is better given to `FolderWriter.write_array`.
    """
    kind = np.dtype(dtype)
    with clear_errors(path):
        size = math.prod(shape) * kind.itemsize
        with path.open("wb") as file:
            write_header(file, kind, shape)
            try:
                _reserve(file, file.tell() + size)
            except OSError:
                file.truncate(0)  # What was got before the disk was full goes back at once.
                raise
        return np.lib.format.open_memmap(path, mode="r+") if size else np.empty(shape, kind)  # 0 bytes have no map


def write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write what comes before the values of an `.npy` file."""
    if dtype.hasobject:
        raise ValueError("an array file holds numbers, not Python objects")
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def _reserve(file: IO[bytes], size: int) -> None:
    """Make a file so long, without holes where the system can: a hole that finds no room kills who writes there."""
    file.truncate(size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that cannot
                raise


class ArrayAppender:
    """A one-dimensional `.npy` file whose length is known only at the end.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     appender = ArrayAppender(Path(parent) / "numbers.npy", np.int64)
    ...     appender.append(np.arange(2))
    ...     appender.append(np.arange(3))
    ...     appender.close()
    ...     np.load(Path(parent) / "numbers.npy").tolist()
    [0, 1, 0, 1, 2]
    """

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.path = path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.length = 0
        with clear_errors(path):
            self._file = path.open("wb")
            self._file.write(bytes(_HEADER_BYTES))

    def append(self, array: NDArray[Any]) -> None:
        """Write the array's values after those that are there."""
        with clear_errors(self.path):
            self._file.write(np.ascontiguousarray(array, self.dtype).view(np.uint8).data)
        self.length += array.size

    def close(self) -> None:
        """Write the header, which holds the length, and close the file. A second call does nothing."""
        if self._file.closed:
            return
        fields = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': ({self.length},), }}"
        magic = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
        with clear_errors(self.path), self._file:
            self._file.seek(0)
            self._file.write(magic + fields.ljust(_HEADER_BYTES - 11).encode() + b"\n")
