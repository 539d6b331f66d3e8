"""Read the folder written by `prep` of the 2017 TensorFlow Swivel, without TensorFlow.

The folder has row_vocab.txt, col_vocab.txt and shard-RRR-CCC.pb. Its row_sums.txt and col_sums.txt are not used,
because their float32 sums stop growing at 2^24; sums are computed from the cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import Place
from swivel.counts.importers.lines import read_lines
from swivel.counts.importers.protobuf import WireError, parse_example
from swivel.counts.importers.spill import ImportChunk
from swivel.errors import CountsError, MemoryBudgetError
from swivel.runtime.resources import format_bytes

ROW_WORDS = "row_vocab.txt"
COLUMN_WORDS = "col_vocab.txt"
SHARDS = "shard-*.pb"
_MEMORY_PER_FILE_BYTE = 16  # while a shard is decoded


def is_tensorflow_folder(path: Path) -> bool:
    """Return whether a folder has the vocabulary files that `prep` writes."""
    return (path / ROW_WORDS).is_file() and (path / COLUMN_WORDS).is_file()


def read_tensorflow(folder: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a folder, one chunk per shard."""
    rows = _read_words(folder / ROW_WORDS)
    columns = _read_words(folder / COLUMN_WORDS)

    if context.config.sides is None and rows == columns:
        context.sides = "same"
    elif context.is_shared and rows != columns:
        raise CountsError(f"{folder}: the two vocabularies differ; omit sides")

    context.row_labels = rows
    context.column_labels = columns
    context.set_shape(len(rows), len(columns), str(folder))
    shards = sorted(folder.glob(SHARDS))
    if not shards:
        raise CountsError(f"{folder}: no files {SHARDS}")

    for shard in shards:
        size = shard.stat().st_size
        if size * _MEMORY_PER_FILE_BYTE > context.memory_bytes:
            raise MemoryBudgetError(
                f"{shard}: a shard of {format_bytes(size)} needs {format_bytes(size * _MEMORY_PER_FILE_BYTE)} "
                "of memory; pass a larger memory"
            )

        yield _read_shard(shard, len(rows), len(columns))
        context.advance(size)


def _read_words(file: Path) -> list[str]:
    words = []
    for lines in read_lines(file):
        for index, line in enumerate(lines.data.split(b"\n")[:-1]):
            try:
                words.append(line.decode())
            except UnicodeDecodeError:
                raise CountsError(f"{lines.place(index)}: a word is not valid UTF-8; convert the file first") from None

    return words


def _read_shard(file: Path, rows: int, columns: int) -> ImportChunk:
    try:
        features = parse_example(file.read_bytes())
    except WireError as error:
        raise CountsError(f"{file}: not a serialized tf.train.Example, or damaged ({error})") from None

    local_rows = _take(file, features, "sparse_local_row", "i")
    local_columns = _take(file, features, "sparse_local_col", "i")
    counts = _take(file, features, "sparse_value", "f").astype(np.float64)

    if not local_rows.size == local_columns.size == counts.size:
        raise CountsError(
            f"{file}: {local_rows.size:,} rows, {local_columns.size:,} columns and {counts.size:,} values"
        )

    def place(index: int) -> str:
        return f"{file}, cell {index + 1:,}"

    return ImportChunk(
        _to_global_ids(_take(file, features, "global_row", "i"), local_rows, rows, "row", place),
        _to_global_ids(_take(file, features, "global_col", "i"), local_columns, columns, "column", place),
        counts,
        place,
    )


def _take(file: Path, features: dict[str, NDArray[Any]], name: str, kind: str) -> NDArray[Any]:
    if name not in features:
        raise CountsError(f"{file}: no feature {name!r}; it has {', '.join(map(repr, sorted(features))) or 'none'}")
    values = features[name]
    if values.dtype.kind != kind and values.size:
        raise CountsError(f"{file}: the feature {name!r} is {values.dtype}")
    return values


def _to_global_ids(
    ids: NDArray[np.int64], local: NDArray[np.int64], size: int, side: str, place: Place
) -> NDArray[np.int64]:
    """Return the global ids of local positions; raise CountsError for positions and ids out of range."""
    if not local.size:
        return np.empty(0, np.int64)

    wrong = (local < 0) | (local >= ids.size)
    if wrong.any():
        index = int(wrong.argmax())
        raise CountsError(f"{place(index)}: {side} {local[index]:,} in a shard of {ids.size:,} {side}s")

    global_ids = ids[local]
    wrong = (global_ids < 0) | (global_ids >= size)
    if wrong.any():
        index = int(wrong.argmax())
        raise CountsError(f"{place(index)}: {side} {global_ids[index]:,} in a vocabulary of {size:,}")

    return global_ids
