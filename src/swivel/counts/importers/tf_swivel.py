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

from swivel.counts.importers.context import ImportChunk, ImportContext, number_places, refuse_ids
from swivel.counts.importers.lines import read_lines
from swivel.counts.importers.protobuf import WireError, parse_example
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
        context.task.advance(size)


def _read_words(file: Path) -> list[str]:
    return [block.decode(line, index) for block in read_lines(file) for index, line in enumerate(block.lines())]


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

    place = number_places(str(file), "cell", 0)
    ids = []
    for side, local, name, size in (
        ("row", local_rows, "global_row", rows),
        ("column", local_columns, "global_col", columns),
    ):
        all_ids = _take(file, features, name, "i")
        wrong = (local < 0) | (local >= all_ids.size)
        refuse_ids(wrong, local, place, side, f"in a shard of {all_ids.size:,} {side}s")
        found = all_ids[local.astype(np.int64)]
        refuse_ids((found < 0) | (found >= size), found, place, side, f"in a vocabulary of {size:,}")
        ids.append(found.astype(np.int64))

    return ImportChunk(ids[0], ids[1], counts, place)


def _take(file: Path, features: dict[str, NDArray[Any]], name: str, kind: str) -> NDArray[Any]:
    if name not in features:
        raise CountsError(f"{file}: no feature {name!r}; it has {', '.join(map(repr, sorted(features))) or 'none'}")
    values = features[name]
    if values.dtype.kind != kind and values.size:
        raise CountsError(f"{file}: the feature {name!r} is {values.dtype}")
    return values
