"""Reading and writing files of arrays, `.npy` and safetensors; errors in a file are ValueErrors.

NumPy evaluates the header of `.npy` as a Python literal and fails in many different ways if it is damaged. The reader
here accepts what NumPy writes for arrays of numbers and strings, and raises ValueError for everything else.

A safetensors file is the length of the header (8 bytes, little-endian), the header (JSON), and the bytes of the
tensors. The library safetensors is not used: it writes under a temporary name that a killed process leaves behind, and
its files are readable by their owner only.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from swivel.errors import clear_errors

_MAX_HEADER_BYTES = 10_000
_APPENDED_HEADER_BYTES = 128  # of a file written by ArrayAppender
_NPY_HEADER = re.compile(
    rb"\{'descr': *'(?P<dtype>[<>|=]?(?P<kind>[biufSUO])\d{0,9})', *'fortran_order': *(?P<fortran>True|False), *"
    rb"'shape': *\((?P<shape>(?:\d{1,18}(?:, *\d{1,18}){0,2})?),?\),? *\}\s*"
)
_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_ALIGNMENT = 8  # of the first tensor of a safetensors file, in bytes


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Header of a `.npy` file: an array of at most three dimensions, of numbers or fixed-size strings."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all elements."""
        return self.size * self.dtype.itemsize


def read_array_header(file: IO[bytes]) -> ArrayHeader:
    """Return the header of a `.npy` file and leave the file position at the first element, or raise ValueError."""
    # Six magic bytes and two of the version, which determines the width of the header's length.
    magic = file.read(8)
    width = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}.get(magic[6:])
    if not magic.startswith(b"\x93NUMPY") or width is None:
        raise ValueError("the file does not start with the .npy signature")

    size = int.from_bytes(file.read(width), "little")
    match = _NPY_HEADER.fullmatch(file.read(min(size, _MAX_HEADER_BYTES)))
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

    return ArrayHeader(shape, "F" if match["fortran"] == b"True" else "C", dtype)


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
        if not header.nbytes:  # An empty array cannot be mapped.
            return np.empty(header.shape, header.dtype)

        return np.memmap(file, header.dtype, "r", start, header.shape, header.order)


@contextlib.contextmanager
def random_reads(array: NDArray[Any]) -> Iterator[None]:
    """Make the system read single pages of a memory map inside the block, because its elements are used at random."""
    pages = _find_pages(array)
    if pages is not None:
        pages.madvise(mmap.MADV_RANDOM)
    try:
        yield
    finally:
        if pages is not None:
            pages.madvise(mmap.MADV_NORMAL)


def _find_pages(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the memory map of an array or of the array that it is a view of; None without, or without advice."""
    pages: mmap.mmap | None = getattr(array, "_mmap", None) or getattr(array.base, "_mmap", None)
    return pages if hasattr(mmap, "MADV_RANDOM") else None


def read_ahead(array: NDArray[Any], first: int, last: int) -> None:
    """Make the system read the elements `first` to `last - 1` of an array, if that is a memory map of a whole file."""
    # By default it reads up to 8 MiB around every page. Where many parts of a file are read at a time in little memory,
    # parts that were read are dropped before they are used.
    pages = _find_pages(array)
    if pages is None or last <= first:
        return

    # The map begins at a multiple of the granularity of the system, which the header of the file is shorter than.
    start = array.offset % mmap.ALLOCATIONGRANULARITY + first * array.itemsize  # type: ignore[attr-defined]
    aligned = start - start % mmap.PAGESIZE
    pages.madvise(mmap.MADV_RANDOM)
    pages.madvise(mmap.MADV_WILLNEED, aligned, start - aligned + (last - first) * array.itemsize)


def write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the header of a `.npy` file in C order; raise ValueError for a dtype with Python objects."""
    if dtype.hasobject:
        raise ValueError("dtype must not contain Python objects, because array files hold numbers only")

    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})


def npy_bytes(array: NDArray[Any]) -> tuple[bytes, memoryview]:
    """Return the header and the data of the `.npy` file of an array."""
    header = io.BytesIO()
    write_header(header, array.dtype, array.shape)
    return header.getvalue(), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_array(file: IO[bytes], array: NDArray[Any]) -> None:
    """Write a whole `.npy` file; unlike `np.save`, report the reason if the disk is full."""
    for buffer in npy_bytes(array):
        file.write(buffer)


def create_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a new writable array that is memory-mapped to a `.npy` file whose disk space is allocated."""
    # macOS and Windows cannot allocate it in advance: if the disk is full, writing to the array ends the process.
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

        if size == 0:  # An empty array cannot be mapped.
            return np.empty(shape, kind)
        return np.lib.format.open_memmap(path, mode="r+")


def _allocate(file: IO[bytes], size: int) -> None:
    """Extend a file to `size` bytes, without holes if the system supports it."""
    file.truncate(size)

    # If the disk is full, writing to a hole of a memory-mapped file kills the process with SIGBUS.
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not supported by the file system
                raise


class ArrayAppender:
    """Writer of a one-dimensional array of unknown length, to a `.npy` file or, without a path, to memory."""

    def __init__(self, path: Path | None, dtype: DTypeLike) -> None:
        self.path = path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.length = 0
        self._pieces: list[NDArray[Any]] = []  # in memory
        self._file: IO[bytes] | None = None

        if path is not None:
            with clear_errors(path):
                self._file = path.open("wb")
                write_header(self._file, self.dtype, (0,))

    def append(self, array: NDArray[Any]) -> None:
        """Append a copy of the values of an array, converted to the dtype of the file."""
        if self._file is None:
            self._pieces.append(np.array(array, self.dtype))
        else:
            with clear_errors(self.path or ""):
                self._file.write(np.ascontiguousarray(array, self.dtype).view(np.uint8).data)
        self.length += array.size

    def close(self) -> None:
        """Write the header with the final length, and close the file. A second call does nothing."""
        if self._file is None or self._file.closed:
            return

        # NumPy pads headers so that one with a larger first dimension has the same number of bytes.
        with clear_errors(self.path or ""), self._file:
            self._file.seek(0)
            write_header(self._file, self.dtype, (self.length,))

    def open(self) -> NDArray[Any]:
        """Return all values of the closed writer: a memory map of the file, or the array in memory."""
        if self.path is not None:
            return map_array(self.path)
        if len(self._pieces) != 1:
            self._pieces = [np.concatenate([np.empty(0, self.dtype), *self._pieces])]
        return self._pieces[0]

    def read(self, first: int, size: int) -> NDArray[Any]:
        """Return a copy of some values of the closed writer; a file is read, so that it takes no memory of its own."""
        if self.path is None:
            return np.array(self.open()[first : first + size])
        return np.fromfile(self.path, self.dtype, size, offset=_APPENDED_HEADER_BYTES + first * self.dtype.itemsize)


class Tensors(NamedTuple):
    """Content of a safetensors file."""

    matrices: Mapping[str, NDArray[Any]]  # float matrices by name, memory-mapped read-only
    others: tuple[str, ...]  # names of all other tensors
    metadata: Mapping[str, str]


def map_tensors(path: Path) -> Tensors:
    """Return the float matrices of a safetensors file as memory maps, or raise ValueError."""
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)

    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    if not 8 < start <= len(data):
        raise ValueError(f"a header of {start - 8:,} bytes in a file of {len(data):,} bytes")

    try:
        header = json.loads(data[8:start].tobytes())
        metadata = header.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("metadata that is not text")

        _check_offsets(header, len(data) - start)
        matrices = {name: _view(data[start:], entry) for name, entry in header.items() if _is_matrix(entry)}
        others = tuple(name for name in header if name not in matrices)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"a header that does not describe tensors: {error}") from error

    return Tensors(matrices, others, metadata)


def write_tensors(file: IO[bytes], tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] = {}) -> None:
    """Write a safetensors file of float arrays of one dtype, with the same bytes as the safetensors library."""
    header = make_header(tensors, metadata)
    file.write(len(header).to_bytes(8, "little") + header)
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name], tensors[name].dtype.newbyteorder("<"))
        file.write(values.reshape(-1).view(np.uint8).data)


def make_header(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] = {}) -> bytes:
    """Return the header of a safetensors file of arrays, which are written one after the other, by name."""
    names = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, values in sorted(tensors.items()):
        stop = start + values.nbytes
        dtype = names[values.dtype.newbyteorder("<")]
        entries[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, stop]}
        start = stop

    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % _ALIGNMENT)


def _check_offsets(header: Mapping[str, Any], size: int) -> None:
    """Raise ValueError unless the tensors fill the data section without gaps and overlaps, as the format requires."""
    end = 0
    for start, stop in sorted([int(offset) for offset in entry["data_offsets"]] for entry in header.values()):
        if start != end or stop < start:
            raise ValueError(f"a tensor at bytes {start} to {stop}, expected at {end}")
        end = stop

    if end != size:
        raise ValueError(f"tensors of {end:,} bytes in a data section of {size:,} bytes")


def _is_matrix(entry: Mapping[str, Any]) -> bool:
    return entry["dtype"] in _DTYPES and len(entry["shape"]) == 2


def _view(data: NDArray[np.uint8], entry: Mapping[str, Any]) -> NDArray[Any]:
    """Return one tensor, whose offsets are in the data section, as a view of it; raise ValueError for a wrong shape."""
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    rows, columns = (int(size) for size in entry["shape"])
    start, stop = (int(offset) for offset in entry["data_offsets"])

    if min(rows, columns) < 0 or stop - start != dtype.itemsize * rows * columns:
        raise ValueError(f"shape ({rows}, {columns}) at bytes {start} to {stop}")

    # The safetensors library pads its header to 8 bytes, but other writers may not, and matrix products on unaligned
    # addresses are slow.
    view = np.asarray(data[start:stop]).view(dtype).reshape(rows, columns)
    return view if view.flags.aligned else view.copy()
