"""Parquet and Arrow files: one row per word, with the columns `word`, `count` (if known) and `vector`.

pyarrow reads the files in batches, so memory is allocated for the data in the file and not for what its header claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import StorageError, first_line, needs_extra
from swivel.runtime.resources import check_libraries, check_memory
from swivel.storage.files import create_file
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import check_names, make_vectors, reading
from swivel.vectors.search import LABEL_BYTES

if TYPE_CHECKING:
    import pyarrow

_CHUNK_ROWS = 65_536
_BUFFER_BYTES = 1 << 20
_COPIES_OF_GROUP = 5  # of a group of rows, that pyarrow has while it reads Parquet; measured: 4.6


def _load_pyarrow() -> Any:
    check_libraries("reading and writing Parquet")
    with needs_extra("Parquet and Arrow files", "pyarrow", "parquet"):
        import pyarrow
    return pyarrow


def _make_table(vectors: Vectors) -> pyarrow.Table:
    """Return the vectors as a pyarrow table without copying the values."""
    pa = _load_pyarrow()
    check_memory("writing a table", vectors.vectors.nbytes + LABEL_BYTES * len(vectors))
    flat = pa.array(np.ascontiguousarray(vectors.vectors).reshape(-1))

    columns = {"word": pa.array(vectors.vocabulary.tokens, pa.string())}
    if vectors.vocabulary.counts.any():
        columns["count"] = pa.array(vectors.vocabulary.counts)

    return pa.table(columns | {"vector": pa.FixedSizeListArray.from_arrays(flat, vectors.dim)})


def write_parquet(vectors: Vectors, path: Path) -> None:
    """Write vectors to a Parquet file, compressed with zstd."""
    table = _make_table(vectors)
    from pyarrow import parquet

    # Vector values hardly repeat: dictionary encoding would only cost time.
    with create_file(path) as file:
        parquet.write_table(table, file, use_dictionary=False, compression="zstd", row_group_size=_CHUNK_ROWS)


def write_arrow(vectors: Vectors, path: Path) -> None:
    """Write vectors to an Arrow IPC file (Feather 2)."""
    table = _make_table(vectors)
    from pyarrow import ipc

    with create_file(path) as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, _CHUNK_ROWS)


def read_parquet(path: Path) -> Vectors:
    """Read the columns `word`, `vector` and, if present, `count` of a Parquet file."""
    pa = _load_pyarrow()
    with reading(path, "a Parquet file", (pa.ArrowException, ValueError)):
        from pyarrow import parquet

        # A small buffer, and no groups of rows ahead of the one that is read: as fast, with half the memory.
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            columns = _select_columns(path, file.schema_arrow)
            # Before anything is read: the largest group, and all values together.
            groups = [file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups)]
            check_memory(f"reading {path}", sum(groups) + _COPIES_OF_GROUP * max(groups, default=0))
            batches = file.iter_batches(_CHUNK_ROWS, columns=columns)
            return _collect_batches(path, batches, file.metadata.num_rows)


def read_arrow(path: Path) -> Vectors:
    """Read the columns `word`, `vector` and, if present, `count` of an Arrow IPC file."""
    pa = _load_pyarrow()
    with reading(path, "an Arrow file", (pa.ArrowException, ValueError)):
        from pyarrow import ipc

        with pa.memory_map(str(path)) as stream, ipc.open_file(stream) as file:
            columns = _select_columns(path, file.schema)
            numbers = range(file.num_record_batches)
            rows = sum(file.get_batch(number).num_rows for number in numbers)  # mapped: no values are read
            return _collect_batches(path, (file.get_batch(number).select(columns) for number in numbers), rows)


def _select_columns(path: Path, schema: pyarrow.Schema) -> list[str]:
    """Return the names of the columns to read, whose types are checked."""
    from pyarrow import types

    columns = [name for name in schema.names if name in ("word", "count", "vector")]
    for name in columns:
        if columns.count(name) > 1:
            raise StorageError(f"{path}: several columns called {name!r}")

    check_names(path, "column", ("word", "vector"), schema.names)
    word, vector = schema.field("word").type, schema.field("vector").type
    if not (types.is_string(word) or types.is_large_string(word)):
        raise StorageError(f"{path}: the column 'word' has type {first_line(word)}, expected text")
    is_list = types.is_fixed_size_list(vector) or types.is_list(vector) or types.is_large_list(vector)
    if not is_list or not types.is_floating(vector.value_type):
        raise StorageError(f"{path}: the column 'vector' has type {first_line(vector)}, expected lists of floats")
    if "count" in columns and not types.is_integer(schema.field("count").type):
        raise StorageError(f"{path}: the column 'count' must contain one integer per word")
    return columns


def _collect_batches(path: Path, batches: Iterable[pyarrow.RecordBatch], rows: int) -> Vectors:
    """Return the vectors of batches that have so many rows together."""
    import pyarrow

    words: list[str] = []
    counts: list[NDArray[np.int64]] = []
    values = np.empty((0, 0), np.float32)

    for batch in batches:
        batch.validate(full=True)  # A damaged file may have offsets outside the file or text that is not UTF-8.
        piece = _take_matrix(path, batch.column("vector"), len(words))
        if not len(piece):
            continue
        # Allocated once: to join the batches at the end would take twice as much.
        if not len(values):
            check_memory(f"reading {path}", rows * (4 * piece.shape[1] + LABEL_BYTES))
            values = np.empty((rows, piece.shape[1]), np.float32)
        if piece.shape[1] != values.shape[1]:
            widths = sorted({piece.shape[1], values.shape[1]})
            raise StorageError(f"{path}: vectors of different lengths, {widths}")

        values[len(words) : len(words) + len(piece)] = piece
        words += _take_words(path, batch.column("word"), len(words))
        if "count" in batch.schema.names:
            if batch.column("count").null_count:
                raise StorageError(f"{path}: the column 'count' must contain one integer per word")
            counts.append(batch.column("count").cast(pyarrow.int64()).to_numpy(zero_copy_only=False))
        del batch, piece
        pyarrow.default_memory_pool().release_unused()  # It would keep the memory of all batches.

    if not words:
        raise StorageError(f"{path}: the file has no vectors")
    return make_vectors(path, words, values, np.concatenate(counts) if counts else None)


def _take_words(path: Path, column: pyarrow.Array, before: int) -> list[str]:
    words: list[str] = column.to_pylist()
    if column.null_count:
        number = before + words.index(None) + 1  # type: ignore[arg-type]
        raise StorageError(f"{path}, word {number:,}: the word is null")
    return words


def _take_matrix(path: Path, column: pyarrow.Array, before: int) -> NDArray[np.float32]:
    if not len(column):
        return np.empty((0, 0), np.float32)

    flat = column.flatten()  # skips nulls
    dim = len(flat) // len(column)
    has_dim = np.asarray(column.value_lengths().fill_null(-1)) == dim
    if flat.null_count or not dim or not has_dim.all():
        number = before + int(np.argmin(has_dim)) + 1
        raise StorageError(f"{path}, near word {number:,}: the vector is null, contains null, or has another length")

    with np.errstate(over="ignore"):  # Values too large for float32 become inf, which is reported as an error.
        return np.asarray(flat.to_numpy(zero_copy_only=False), np.float32).reshape(len(column), dim)
