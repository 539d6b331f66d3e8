"""Read SciPy sparse matrices, dense arrays and the .npz files of `scipy.sparse.save_npz`.

Files are streamed: only the row pointers of an .npz are held in memory. Nothing is unpickled, and sizes in the file are
checked before they are used.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import Place
from swivel.counts.importers.spill import PIECE, ImportChunk
from swivel.errors import CountsError, MemoryBudgetError
from swivel.storage.npy import read_array_header

_MAX_INFLATION = 1_100  # deflate compresses at most 1,032 to 1


def is_sparse(source: Any) -> bool:
    """Return whether an object is a sparse matrix of SciPy or compatible with one."""
    return hasattr(source, "tocsr") and hasattr(source, "nnz")


def read_sparse(matrix: Any, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a SciPy sparse matrix or a two-dimensional array."""
    name = "the matrix"
    if len(matrix.shape) != 2:
        raise CountsError(f"{name}: expected two dimensions, got {len(matrix.shape)}")

    if not is_sparse(matrix):
        import scipy.sparse

        matrix = scipy.sparse.csr_array(_check_kind(np.asarray(matrix), name))

    held = matrix.tocsr()
    _check_kind(held.data, name)
    rows_total, columns_total = held.shape
    context.set_shape(rows_total, columns_total, name)

    indptr = np.asarray(held.indptr, np.int64)

    for first in range(0, held.nnz, PIECE):
        last = min(first + PIECE, held.nnz)
        rows = _rows_of(indptr, first, last)
        columns = np.asarray(held.indices[first:last], np.int64)
        _check_range(columns, columns_total, "column", _place_at(name, first))
        yield ImportChunk(
            rows, columns, np.asarray(held.data[first:last], np.float64), _place_cell(name, rows, columns)
        )
        context.advance(last - first)


def _check_kind(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind not in "biuf":
        raise CountsError(f"{name}: counts must be numbers, got {values.dtype}")
    return values


def _rows_of(indptr: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """Return the row of each stored cell `first` to `last - 1`."""
    return np.searchsorted(indptr, np.arange(first, last), side="right") - 1


def _place_cell(name: str, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Place:
    return lambda index: f"{name}, row {rows[index]:,}, column {columns[index]:,}"


def _place_at(name: str, first: int) -> Place:
    return lambda index: f"{name}, stored value {first + index:,}"


def _check_range(ids: NDArray[np.int64], size: int, kind: str, place: Place) -> None:
    wrong = (ids < 0) | (ids >= size)
    if wrong.any():
        index = int(wrong.argmax())
        raise CountsError(f"{place(index)}: {kind} {ids[index]:,} in a matrix of {size:,} {kind}s")


@contextlib.contextmanager
def _clear_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, CountsError):
            raise
        raise CountsError(f"{name}: not an .npz file of scipy.sparse, or damaged ({error})") from error


@dataclass(slots=True)
class _NpzMember:
    """An array in an .npz file, read in pieces."""

    file: IO[bytes]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int

    def take(self, count: int) -> NDArray[Any]:
        """Return the next `count` values; raise ValueError if the array is shorter."""
        wanted = count * self.dtype.itemsize
        data = self.file.read(wanted)
        if len(data) != wanted:
            raise ValueError(f"array ends after {len(data)} of {wanted} bytes")
        return np.frombuffer(data, self.dtype)


class _Archive:
    """The arrays of an .npz file, with their claimed sizes checked against the size of the file."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._size = size
        self.max_bytes = 1 << 62  # for the array of pointers, which is held in memory

    def open(self, name: str) -> _NpzMember:
        try:
            info = self._archive.getinfo(f"{name}.npy")
        except KeyError:
            raise ValueError(f"no array {name!r}") from None

        if info.compress_size > self._size or info.file_size > _MAX_INFLATION * (info.compress_size + 1):
            raise ValueError(f"array {name!r} claims {info.file_size:,} bytes")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # NumPy writes no others
            raise ValueError(f"array {name!r} has an unsupported compression")

        file = self._archive.open(info)
        header = read_array_header(file)
        if header.nbytes > info.file_size:
            raise ValueError(f"array {name!r} claims {header.size:,} values in {info.file_size:,} bytes")

        return _NpzMember(file, header.dtype, header.shape, header.size)

    def numbers(self, name: str, kinds: str) -> _NpzMember:
        member = self.open(name)
        if len(member.shape) != 1 or member.dtype.kind not in kinds:
            raise ValueError(f"array {name!r} is {member.dtype} with {len(member.shape)} dimensions")
        return member

    def text(self, name: str) -> str:
        member = self.open(name)
        if member.size != 1 or member.dtype.kind not in "SU" or member.dtype.itemsize > 100:
            raise ValueError(f"array {name!r} is not a short text")
        value = member.take(1)[0]
        return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def read_npz(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a file written by `scipy.sparse.save_npz`: csr, csc or coo."""
    with _clear_errors(str(file)), zipfile.ZipFile(file) as opened:
        archive = _Archive(opened, file.stat().st_size)
        kind = archive.text("format")
        shape = archive.numbers("shape", "iu")
        if shape.size != 2:
            raise ValueError(f"shape has {shape.size} dimensions")

        rows, columns = map(int, shape.take(2))
        if min(rows, columns) < 0:
            raise ValueError(f"shape is {rows} x {columns}")
        if kind not in ("csr", "csc", "coo"):
            raise CountsError(f"{file}: unsupported matrix format {kind!r}; save it as csr, csc or coo")

        data = archive.numbers("data", "biuf")
        context.set_shape(rows, columns, str(file))
        if kind == "coo":
            pieces = _read_coo(archive, data)
        else:
            archive.max_bytes = context.memory_bytes // 4
            pieces = _read_compressed(archive, data, (rows, columns), kind)

        for first, row_ids, column_ids, counts in pieces:
            place = _place_at(str(file), first)
            _check_range(row_ids, rows, "row", place)
            _check_range(column_ids, columns, "column", place)
            yield ImportChunk(row_ids, column_ids, counts, place)
            context.advance(file.stat().st_size * len(counts) / data.size)


# First stored value, rows, columns and counts of each piece.
_Pieces = Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]


def _read_coo(archive: _Archive, data: _NpzMember) -> _Pieces:
    rows = archive.numbers("row", "iu")
    columns = archive.numbers("col", "iu")
    if not rows.size == columns.size == data.size:
        raise ValueError(f"{rows.size:,} rows, {columns.size:,} columns and {data.size:,} values")
    for first in range(0, data.size, PIECE):
        size = min(PIECE, data.size - first)
        yield first, _as_ids(rows.take(size)), _as_ids(columns.take(size)), data.take(size).astype(np.float64)


def _read_compressed(archive: _Archive, data: _NpzMember, shape: tuple[int, int], kind: str) -> _Pieces:
    pointers = archive.numbers("indptr", "iu")
    indices = archive.numbers("indices", "iu")
    major = shape[0] if kind == "csr" else shape[1]
    if pointers.size != major + 1 or indices.size != data.size:
        raise ValueError(f"{pointers.size:,} pointers and {indices.size:,} indices for {data.size:,} values")
    if 16 * pointers.size > archive.max_bytes:
        raise MemoryBudgetError(f"the {pointers.size:,} pointers of the matrix need more memory; pass a larger memory")

    indptr = _as_ids(pointers.take(pointers.size))
    if indptr[0] != 0 or indptr[-1] != data.size or (np.diff(indptr) < 0).any():
        raise ValueError("the pointers do not increase from 0 to the number of values")

    for first in range(0, data.size, PIECE):
        size = min(PIECE, data.size - first)
        majors = _rows_of(indptr, first, first + size)
        minors = _as_ids(indices.take(size))
        rows, columns = (majors, minors) if kind == "csr" else (minors, majors)
        yield first, rows, columns, data.take(size).astype(np.float64)


def _as_ids(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype.kind == "u" and values.size and int(values.max()) >= 1 << 63:
        raise ValueError(f"index {values.max()} does not fit in 63 bits")
    return values.astype(np.int64)
