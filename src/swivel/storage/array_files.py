"""Writing `.npy` files in pieces: memory-mapped at full size, or appended to."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from swivel.errors import clear_errors

_HEADER_BYTES = 128  # size of the header that `ArrayAppender` writes: enough for any length


def create_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a new memory-mapped array backed by a `.npy` file whose disk space is allocated.

    macOS and Windows cannot allocate the space in advance: if the disk is full, writing to the array ends the process.
    Prefer `FolderWriter.write_array` for arrays that are written at once.

    Parameters
    ----------
    path
        File to create.
    dtype
        Data type of the array.
    shape
        Shape of the array.

    Returns
    -------
    ndarray of the given shape, writable
        A memory map, or an ordinary array if it has no elements, because 0 bytes cannot be mapped.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize

    with clear_errors(path):
        with path.open("wb") as file:
            write_header(file, kind, shape)
            try:
                _allocate(file, file.tell() + size)
            except OSError:
                file.truncate(0)  # Free the space that was allocated before the disk was full.
                raise

        if size == 0:
            return np.empty(shape, kind)
        return np.lib.format.open_memmap(path, mode="r+")


def write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the header of a `.npy` file in C order; raise ValueError for a dtype with Python objects."""
    if dtype.hasobject:
        raise ValueError("dtype must not contain Python objects, because array files hold numbers only")

    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def _allocate(file: IO[bytes], size: int) -> None:
    """Extend a file to `size` bytes, without holes if the system supports it.

    If the disk is full, writing to a hole of a memory-mapped file kills the process with SIGBUS.
    """
    file.truncate(size)

    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not supported by the file system
                raise


class ArrayAppender:
    """Writer of a one-dimensional `.npy` file whose length is not known in advance.

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
        """Append the values of an array, converted to the dtype of the file."""
        with clear_errors(self.path):
            self._file.write(np.ascontiguousarray(array, self.dtype).view(np.uint8).data)
        self.length += array.size

    def close(self) -> None:
        """Write the header, which contains the length, and close the file. A second call does nothing."""
        if self._file.closed:
            return

        # The .npy format: magic string, version 1.0, length of the rest of the header, a dict padded with spaces.
        fields = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': ({self.length},), }}"
        magic = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")

        with clear_errors(self.path), self._file:
            self._file.seek(0)
            self._file.write(magic + fields.ljust(_HEADER_BYTES - 11).encode() + b"\n")
