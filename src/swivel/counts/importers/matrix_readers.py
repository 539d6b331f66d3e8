"""Read matrices, whose cells have positions instead of labels: SciPy, arrays, .npz, Matrix Market, files of GloVe.

- SciPy sparse matrices, dense arrays and .npz files of `scipy.sparse.save_npz`. Nothing is unpickled, and sizes in a
  file are checked before they are used.
- Matrix Market files (.mtx) of coordinates. Dense (`array`), complex and skew matrices are rejected.
- The co-occurrence files of GloVe: cooccurrence.bin (or the shuffled one) with vocab.txt. A record is int32 word, int32
  word, float64 count, little-endian. Words are numbered from 1: word n is line n of the vocabulary. The counts in the
  vocabulary are not used, because rows are sorted by the sums of the cells.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.streams import LineBlock, read_table_lines
from swivel.counts.block_layout import Ints
from swivel.counts.importers.context import PIECE, ImportChunk, ImportContext, Place, number_places, refuse_ids
from swivel.counts.importers.delimited import FieldBatch, parse_numbers, split_fields
from swivel.errors import CountsError, MemoryBudgetError
from swivel.runtime.resources import format_bytes
from swivel.storage.arrays import read_array_header

_MAX_INFLATION = 1_100  # deflate compresses at most 1,032 to 1
_MEMORY_PER_BYTE = 4  # of an .npz file: its arrays as bytes, and as rows and columns of 64 bits
_HEADER = "%%MatrixMarket matrix coordinate"
VOCABULARY = "vocab.txt"  # of GloVe
_RECORD = np.dtype([("row", "<i4"), ("column", "<i4"), ("count", "<f8")])


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

    rowwise = matrix.tocsr()
    _check_kind(rowwise.data, name)
    rows_total, columns_total = rowwise.shape
    context.set_shape(rows_total, columns_total, name)
    indptr = np.asarray(rowwise.indptr, np.int64)

    for first in range(0, rowwise.nnz, PIECE):
        last = min(first + PIECE, rowwise.nnz)
        rows = _find_rows(indptr, first, last)
        columns = np.asarray(rowwise.indices[first:last], np.int64)
        counts = np.asarray(rowwise.data[first:last], np.float64)
        _check_range(columns, columns_total, "column", _number_values(name, first))
        yield ImportChunk(rows, columns, counts, partial(_name_cell, rows, columns))
        context.task.advance(last - first)


def _check_kind(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind not in "biuf":
        raise CountsError(f"{name}: counts must be numbers, got {values.dtype}")
    return values


def _name_cell(rows: Ints, columns: Ints, index: int) -> str:
    return f"the matrix, row {rows[index]:,}, column {columns[index]:,}"


def _find_rows(indptr: Ints, first: int, last: int) -> Ints:
    """Return the row of each stored cell `first` to `last - 1`."""
    return np.searchsorted(indptr, np.arange(first, last), side="right") - 1


def _number_values(name: str, first: int) -> Place:
    return lambda index: f"{name}, stored value {first + index:,}"


def _check_range(ids: Ints, size: int, kind: str, place: Place) -> None:
    refuse_ids((ids < 0) | (ids >= size), ids, place, kind, f"in a matrix of {size:,} {kind}s")


def _read_member(archive: zipfile.ZipFile, name: str, kinds: str, dimensions: int = 1) -> NDArray[Any]:
    """Return an array of an .npz file, flat, after its claimed size was compared with that of the file."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise ValueError(f"no array {name!r}") from None

    archive_size = Path(str(archive.filename)).stat().st_size
    if info.compress_size > archive_size or info.file_size > _MAX_INFLATION * (info.compress_size + 1):
        raise ValueError(f"array {name!r} claims {info.file_size:,} bytes")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # NumPy writes no others
        raise ValueError(f"array {name!r} has an unsupported compression")

    file = archive.open(info)
    header = read_array_header(file)
    if header.nbytes > info.file_size:
        raise ValueError(f"array {name!r} claims {header.size:,} values in {info.file_size:,} bytes")
    if len(header.shape) != dimensions or header.dtype.kind not in kinds:
        raise ValueError(f"array {name!r} is {header.dtype} with {len(header.shape)} dimensions")

    data = file.read(header.nbytes)
    if len(data) != header.nbytes:
        raise ValueError(f"array {name!r} ends after {len(data)} of {header.nbytes} bytes")
    return np.frombuffer(data, header.dtype)


def _read_ids(archive: zipfile.ZipFile, name: str) -> Ints:
    values = _read_member(archive, name, "iu")
    if values.dtype.kind == "u" and values.size and int(values.max()) >= 1 << 63:
        raise ValueError(f"index {values.max()} does not fit in 63 bits")
    return values.astype(np.int64)


@contextlib.contextmanager
def _open_archive(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open an .npz file; errors become a CountsError with its name."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except CountsError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, MemoryError) as error:
        # The system has no memory left, or zlib: then the file may be whole.
        if isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM or "Error -4 " in str(error):
            raise MemoryBudgetError(f"{file}: there is not enough memory to decompress it") from error
        raise CountsError(f"{file}: not an .npz file of scipy.sparse, or damaged ({error})") from error


def read_npz(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a file written by `scipy.sparse.save_npz`: csr, csc or coo."""
    with _open_archive(file) as archive:
        needed = _MEMORY_PER_BYTE * sum(info.file_size for info in archive.infolist())
        if needed > context.memory_bytes:
            raise MemoryBudgetError(
                f"{file}: reading the matrix needs {format_bytes(needed)} of memory; pass a larger memory",
                argument="memory",
            )

        kind = str(_read_member(archive, "format", "SU", dimensions=0).astype(str)[0])
        shape = _read_ids(archive, "shape").tolist()
        if len(shape) != 2 or min(shape) < 0:
            raise ValueError(f"shape is {' x '.join(map(str, shape))}")
        if kind not in ("csr", "csc", "coo"):
            raise CountsError(f"{file}: unsupported matrix format {kind[:20]!r}; save it as csr, csc or coo")

        context.set_shape(shape[0], shape[1], str(file))
        data = _read_member(archive, "data", "biuf")
        if kind == "coo":
            rows = _read_ids(archive, "row")
            columns = _read_ids(archive, "col")
        else:
            columns = _read_ids(archive, "indices")
            rows = _find_rows(_read_pointers(archive, shape[kind == "csc"], data.size), 0, data.size)
        if not rows.size == columns.size == data.size:
            raise ValueError(f"{rows.size:,} rows, {columns.size:,} columns and {data.size:,} values")
        if kind == "csc":
            rows, columns = columns, rows

    for first in range(0, data.size, PIECE):
        part = slice(first, first + PIECE)
        place = _number_values(str(file), first)
        _check_range(rows[part], shape[0], "row", place)
        _check_range(columns[part], shape[1], "column", place)
        counts = data[part].astype(np.float64)
        yield ImportChunk(rows[part], columns[part], counts, place)
        context.task.advance(file.stat().st_size * counts.size / data.size)


def _read_pointers(archive: zipfile.ZipFile, majors: int, size: int) -> Ints:
    """Return the pointers of csr or csc."""
    pointers = _read_ids(archive, "indptr")
    if pointers.size != majors + 1:
        raise ValueError(f"{pointers.size:,} pointers for {majors:,} rows or columns")
    if pointers[0] != 0 or pointers[-1] != size or (np.diff(pointers) < 0).any():
        raise ValueError("the pointers do not increase from 0 to the number of values")
    return pointers


def read_market(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a Matrix Market file: real, integer or pattern; general or symmetric."""
    blocks = read_table_lines(file, context.task)
    kind, symmetry, size, rest = _read_header(file, blocks)
    rows, columns, announced_entries = size

    if symmetry == "symmetric" and context.config.sides is None:
        context.sides = "undirected"
    if symmetry == "symmetric" and context.sides == "apart":
        raise CountsError(
            f"{file}: rows and columns of a symmetric matrix are the same things; omit sides", argument="sides"
        )

    context.set_shape(rows, columns, str(file))
    width = 2 if kind == "pattern" else 3  # a pattern has no counts
    entries = 0

    for block in itertools.chain([rest], blocks):
        batch = split_fields(block, b" ", width, rule=f"{kind} matrices have")
        counts = None if width == 2 else parse_numbers(batch.column(2), batch.place, "count")
        yield ImportChunk(_take_positions(batch, 0, rows), _take_positions(batch, 1, columns), counts, batch.place)
        entries += len(batch.numbers)

    if entries != announced_entries:
        raise CountsError(f"{file}: the header announces {announced_entries:,} entries, but there are {entries:,}")


def _read_header(file: Path, blocks: Iterator[LineBlock]) -> tuple[str, str, list[int], LineBlock]:
    """Return kind, symmetry, the numbers of rows, columns and entries, and the rest of the block of these lines."""
    kinds: list[str] = []

    for block in blocks:
        for index, line in enumerate(block.lines()):
            if not kinds:
                kinds = _parse_kinds(line, block.place(index))
            elif line.strip() and not line.startswith(b"%"):
                words = line.split()
                if len(words) != 3 or not all(word.isdigit() and len(word) < 19 for word in words):
                    raise CountsError(f"{block.place(index)}: expected rows, columns and entries, got {line[:60]!r}")
                return kinds[0], kinds[1], list(map(int, words)), block.without_lines(index + 1)

    raise CountsError(f"{file}: the file ends before the first entry")


def _parse_kinds(line: bytes, place: str) -> list[str]:
    words = line.decode("ascii", "replace").lower().split()
    if len(words) != 5 or " ".join(words[:3]) != _HEADER.lower():
        raise CountsError(f"{place}: expected {_HEADER!r} and two more words, got {line[:60]!r}")

    kind, symmetry = words[3:]
    if kind not in ("real", "double", "integer", "pattern") or symmetry not in ("general", "symmetric"):
        raise CountsError(f"{place}: expected real, integer or pattern and general or symmetric, got {kind} {symmetry}")

    return [kind, symmetry]


def _take_positions(batch: FieldBatch, column: int, size: int) -> Ints:
    values = parse_numbers(batch.column(column), batch.place, "index")
    is_wrong = ~((values >= 1) & (values <= size) & (values == np.floor(values)))
    refuse_ids(is_wrong, values, batch.place, "index", f"is not in 1 to {size:,}")
    return values.astype(np.int64) - 1


def read_glove(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a cooccurrence.bin file."""
    if context.row_labels is None:
        vocabulary = file.with_name(VOCABULARY)
        if not vocabulary.is_file():
            raise CountsError(
                f"{file}: the vocabulary {vocabulary} does not exist; pass row_labels", argument="row_labels"
            )
        context.row_labels = read_label_file(vocabulary)
    if context.sides == "apart":
        context.column_labels = context.row_labels

    words = len(context.row_labels)
    context.set_shape(words, words, str(file))

    size = file.stat().st_size
    if size % _RECORD.itemsize:
        raise CountsError(
            f"{file}: {size:,} bytes are not a multiple of {_RECORD.itemsize}; damaged, or not from GloVe"
        )

    for first in range(0, size // _RECORD.itemsize, PIECE):
        records = np.fromfile(file, _RECORD, PIECE, offset=first * _RECORD.itemsize)
        place = number_places(str(file), "record", first)
        for ids in (records["row"], records["column"]):
            refuse_ids((ids < 1) | (ids > words), ids, place, "word", f"in a vocabulary of {words:,}")

        rows = records["row"].astype(np.int64) - 1
        columns = records["column"].astype(np.int64) - 1
        yield ImportChunk(rows, columns, records["count"].astype(np.float64), place)
        context.task.advance(records.nbytes)


def read_label_file(file: Path) -> list[str]:
    """Return the labels in a text file with one label per line, without anything after a tab and without a count."""
    # This reads vocabularies of GloVe and word2vec (`word 123`), 10x Genomics files (`id TAB name`) and plain lists.
    labels = []
    for block in read_table_lines(file):
        for index, line in enumerate(block.lines()):
            label = line.partition(b"\t")[0]
            word, blank, number = label.rpartition(b" ")
            labels.append(block.decode(word if blank and number.isdigit() else label, index))

    while labels and not labels[-1]:
        labels.pop()

    return labels
