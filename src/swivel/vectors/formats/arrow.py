"""Parquet and Arrow files: a row a word, with the columns `word`, `count` (where known) and `vector`.

Receives a path, hands on `Vectors`, and the other way round. pyarrow reads and writes; it is asked for a piece at a
time, so that what a file claims is not what is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import StorageError, missing_extra
from swivel.storage import create_file
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import make_vectors

if TYPE_CHECKING:
    import pyarrow

_CHUNK_ROWS = 65_536


def _load_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise missing_extra("Parquet and Arrow files", "pyarrow", "export") from error
    return pyarrow


def make_table(vectors: Vectors) -> pyarrow.Table:
    """Return vectors as a table; the values are not copied."""
    pa = _load_pyarrow()
    flat = pa.array(np.ascontiguousarray(vectors.vectors).reshape(-1))
    columns = {"word": pa.array(vectors.vocabulary.tokens, pa.string())}
    if vectors.vocabulary.counts.any():
        columns["count"] = pa.array(vectors.vocabulary.counts)
    return pa.table(columns | {"vector": pa.FixedSizeListArray.from_arrays(flat, vectors.dim)})


def write_parquet(vectors: Vectors, path: Path) -> None:
    """Write vectors as a Parquet file."""
    table = make_table(vectors)
    from pyarrow import parquet

    with create_file(path) as file:  # Values of vectors hardly repeat: a dictionary of them would only cost time.
        parquet.write_table(table, file, use_dictionary=False, compression="zstd", row_group_size=_CHUNK_ROWS)


def write_arrow(vectors: Vectors, path: Path) -> None:
    """Write vectors as an Arrow IPC file (Feather 2)."""
    table = make_table(vectors)
    from pyarrow import ipc

    with create_file(path) as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, _CHUNK_ROWS)


def read_parquet(path: str | Path) -> Vectors:
    """Read the columns `word`, `vector` and, where it is there, `count` of a Parquet file."""
    path, pa = Path(path), _load_pyarrow()
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_names(path, file.schema_arrow.names)
            return _gather(path, file.iter_batches(_CHUNK_ROWS, columns=_wanted(file.schema_arrow.names)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StorageError(f"{path}: not a Parquet file that can be read ({_first_line(error)})") from error


def read_arrow(path: str | Path) -> Vectors:
    """Read the columns `word`, `vector` and, where it is there, `count` of an Arrow IPC file."""
    path, pa = Path(path), _load_pyarrow()
    from pyarrow import ipc

    try:
        with pa.OSFile(str(path)) as opened, ipc.open_file(opened) as file:
            _check_names(path, file.schema.names)
            wanted = _wanted(file.schema.names)
            batches = (file.get_batch(number).select(wanted) for number in range(file.num_record_batches))
            return _gather(path, batches)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StorageError(f"{path}: not an Arrow file that can be read ({_first_line(error)})") from error


def _first_line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]


def _check_names(path: Path, names: Sequence[str]) -> None:
    for wanted in ("word", "vector", "count"):
        if names.count(wanted) > 1:
            raise StorageError(f"{path}: several columns called {wanted!r}")
    for wanted in ("word", "vector"):
        if wanted not in names:
            raise StorageError(
                f"{path}: no column called {wanted!r}; there are {', '.join(map(repr, names)) or 'none'}"
            )


def _wanted(names: Iterable[str]) -> list[str]:
    return [name for name in ("word", "count", "vector") if name in names]


def _gather(path: Path, batches: Iterable[pyarrow.RecordBatch]) -> Vectors:
    words: list[str] = []
    values: list[NDArray[np.float32]] = []
    counts: list[NDArray[np.int64]] = []
    for batch in batches:
        batch.validate(full=True)  # A damaged file may point outside itself, or hold what is no UTF-8.
        words += _take_words(path, batch.column("word"), len(words))
        values.append(_take_matrix(path, batch.column("vector"), len(words) - batch.num_rows))
        if "count" in batch.schema.names:
            counts.append(_take_counts(path, batch.column("count")))
    widths = {piece.shape[1] for piece in values if len(piece)}
    if len(widths) != 1:
        raise StorageError(
            f"{path}: the file has no vectors" if not widths else f"{path}: vectors of {sorted(widths)} values"
        )
    matrix = np.concatenate([piece for piece in values if len(piece)])
    return make_vectors(path, words, matrix, np.concatenate(counts) if counts else None)


def _take_words(path: Path, column: pyarrow.Array, before: int) -> list[str]:
    pa = _load_pyarrow()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise StorageError(f"{path}: the column 'word' is of {_first_line(column.type)}, not text")
    listed: list[str] = column.to_pylist()
    if column.null_count:
        raise StorageError(f"{path}, word {before + listed.index(None) + 1:,}: null")  # type: ignore[arg-type]
    return listed


def _take_matrix(path: Path, column: pyarrow.Array, before: int) -> NDArray[np.float32]:
    pa = _load_pyarrow()
    kinds = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    if not any(is_kind(column.type) for is_kind in kinds) or not pa.types.is_floating(column.type.value_type):
        raise StorageError(f"{path}: the column 'vector' is of {_first_line(column.type)}, not lists of floats")
    if not len(column):
        return np.empty((0, 0), np.float32)
    flat = column.flatten()  # leaves nulls out
    dim = len(flat) // len(column)
    is_even = np.asarray(column.value_lengths().fill_null(-1)) == dim
    if flat.null_count or not dim or not is_even.all():
        number = before + int(np.argmin(is_even)) + 1
        raise StorageError(f"{path}, near word {number:,}: a vector that is null, has one, or is of another length")
    with np.errstate(over="ignore"):  # What is too large for 32 bits becomes infinite, and is told.
        return np.asarray(flat.to_numpy(zero_copy_only=False), np.float32).reshape(len(column), dim)


def _take_counts(path: Path, column: pyarrow.Array) -> NDArray[np.int64]:
    pa = _load_pyarrow()
    if not pa.types.is_integer(column.type) or column.null_count:
        raise StorageError(f"{path}: the column 'count' is not one whole number a word")
    counts: NDArray[np.int64] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if (counts < 0).any():
        raise StorageError(f"{path}: the column 'count' has a negative number")
    return counts
