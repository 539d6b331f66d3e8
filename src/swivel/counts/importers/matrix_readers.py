"""Read matrices, whose cells have positions instead of labels: SciPy, arrays, .npz, Matrix Market, files of GloVe.

- SciPy sparse matrices, dense arrays and .npz files of `scipy.sparse.save_npz`, from which SciPy unpickles nothing.
- Matrix Market files (.mtx) of coordinates. Dense (`array`), complex and skew matrices are rejected.
- The co-occurrence files of GloVe: cooccurrence.bin (or the shuffled one) with vocab.txt. A record is int32 word, int32
  word, float64 count, little-endian. Words are numbered from 1: word n is line n of the vocabulary. The counts in the
  vocabulary are not used, because rows are sorted by the sums of the cells.
"""

from __future__ import annotations

import errno
import itertools
import zipfile
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
from swivel.errors import CountsError, MemoryBudgetError, SwivelError, first_line
from swivel.runtime.resources import format_bytes

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
    yield from _read_cells(rowwise, *_find_positions(rowwise), name, context, 1)


def _find_positions(matrix: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the row and the column of each stored value of a SciPy matrix in csr, csc or coo."""
    if matrix.format == "coo":
        return matrix.row, matrix.col

    # Not by `tocoo`: the indices of a file may be wrong, and compiled code trusts them.
    sizes = np.diff(matrix.indptr)
    majors = np.repeat(np.arange(sizes.size, dtype=matrix.indptr.dtype), sizes)
    return (majors, matrix.indices) if matrix.format == "csr" else (matrix.indices, majors)


def _read_cells(
    matrix: Any, rows: NDArray[Any], columns: NDArray[Any], name: str, context: ImportContext, share: float
) -> Iterator[ImportChunk]:
    """Yield the values of a matrix at these positions; `share` is the progress that one of them makes."""
    values = _check_kind(matrix.data, name)
    context.set_shape(matrix.shape[0], matrix.shape[1], name)

    for first in range(0, values.size, PIECE):
        part = slice(first, first + PIECE)
        row_ids, column_ids = (np.asarray(positions[part], np.int64) for positions in (rows, columns))
        for ids, size, kind in ((row_ids, matrix.shape[0], "row"), (column_ids, matrix.shape[1], "column")):
            is_wrong = (ids < 0) | (ids >= size)
            refuse_ids(is_wrong, ids, _number_values(name, first), kind, f"in a matrix of {size:,} {kind}s")

        counts = np.asarray(values[part], np.float64)
        yield ImportChunk(row_ids, column_ids, counts, partial(_name_cell, name, row_ids, column_ids))
        context.task.advance(share * counts.size)


def _check_kind(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind not in "biuf":
        raise CountsError(f"{name}: counts must be numbers, got {values.dtype}")
    return values


def _number_values(name: str, first: int) -> Place:
    return lambda index: f"{name}, stored value {first + index:,}"


def _name_cell(name: str, rows: Ints, columns: Ints, index: int) -> str:
    return f"{name}, row {rows[index]:,}, column {columns[index]:,}"


def read_npz(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a file written by `scipy.sparse.save_npz`: csr, csc or coo."""
    import scipy.sparse

    try:
        with zipfile.ZipFile(file) as archive:
            needed = _MEMORY_PER_BYTE * sum(info.file_size for info in archive.infolist())
        if needed > context.memory_bytes:
            raise MemoryBudgetError(
                f"{file}: reading the matrix needs {format_bytes(needed)} of memory; pass a larger memory",
                argument="memory",
            )

        matrix = scipy.sparse.load_npz(file)
        if matrix.format not in ("csr", "csc", "coo") or matrix.ndim != 2:
            raise CountsError(f"{file}: unsupported matrix format {matrix.format!r}; save it as csr, csc or coo")
        rows, columns = _find_positions(matrix)

    except SwivelError:
        raise
    except Exception as error:  # NumPy and SciPy raise any class of error for damage.
        # The system has no memory left, or zlib: then the file may be whole.
        if isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM or "Error -4 " in str(error):
            raise MemoryBudgetError(f"{file}: there is not enough memory to decompress it") from error
        reason = f"not an .npz file of scipy.sparse, or damaged ({first_line(error)})"
        raise CountsError(f"{file}: {reason}") from error

    yield from _read_cells(matrix, rows, columns, str(file), context, file.stat().st_size / max(matrix.nnz, 1))


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
