"""The folder that the 2017 TensorFlow Swivel's `prep` wrote, read without TensorFlow.

Receives the folder (row_vocab.txt, col_vocab.txt, shard-RRR-CCC.pb), hands on chunks of cells. Its row_sums.txt and
col_sums.txt are not used: sums are those of the cells. (Its float32 sums stop growing at 2^24.)
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

ROW_WORDS, COLUMN_WORDS, SHARDS = "row_vocab.txt", "col_vocab.txt", "shard-*.pb"
_BYTES_A_BYTE = 16  # of memory, for a byte of a shard that is being decoded


def is_tensorflow_folder(path: Path) -> bool:
    """Return whether a folder has what `prep` writes."""
    return (path / ROW_WORDS).is_file() and (path / COLUMN_WORDS).is_file()


def read_tensorflow(folder: Path, reading: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a folder, shard by shard."""
    rows, columns = (_read_words(folder / name) for name in (ROW_WORDS, COLUMN_WORDS))
    if reading.config.sides is None and rows == columns:
        reading.sides = "same"
    elif reading.is_shared and rows != columns:
        raise CountsError(f"{folder}: its two vocabularies differ; leave --sides out")
    reading.row_labels, reading.column_labels = rows, columns
    reading.set_shape(len(rows), len(columns), str(folder))
    shards = sorted(folder.glob(SHARDS))
    if not shards:
        raise CountsError(f"{folder}: no {SHARDS}")
    for shard in shards:
        size = shard.stat().st_size
        if size * _BYTES_A_BYTE > reading.memory_bytes:
            raise MemoryBudgetError(
                f"{shard}: a shard of {format_bytes(size)} needs {format_bytes(size * _BYTES_A_BYTE)}"
            )
        yield _read_shard(shard, len(rows), len(columns))
        reading.advance(size)


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
        raise CountsError(f"{file}: not a serialised tf.train.Example, or damaged ({error})") from None
    local_rows, local_columns = (_take(file, features, f"sparse_local_{side}", "i") for side in ("row", "col"))
    counts = _take(file, features, "sparse_value", "f").astype(np.float64)
    if not local_rows.size == local_columns.size == counts.size:
        raise CountsError(
            f"{file}: {local_rows.size:,} rows, {local_columns.size:,} columns and {counts.size:,} values"
        )

    def place(index: int) -> str:
        return f"{file}, cell {index + 1:,}"

    return ImportChunk(
        _globalise(_take(file, features, "global_row", "i"), local_rows, rows, "row", place),
        _globalise(_take(file, features, "global_col", "i"), local_columns, columns, "column", place),
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


def _globalise(
    ids: NDArray[np.int64], local: NDArray[np.int64], size: int, side: str, place: Place
) -> NDArray[np.int64]:
    """Return the ids of local positions, both inside their ranges."""
    if not local.size:
        return np.empty(0, np.int64)
    wrong = (local < 0) | (local >= ids.size)
    if wrong.any():
        index = int(wrong.argmax())
        raise CountsError(f"{place(index)}: {side} {local[index]:,} of a shard of {ids.size:,} {side}s")
    found = ids[local]
    wrong = (found < 0) | (found >= size)
    if wrong.any():
        index = int(wrong.argmax())
        raise CountsError(f"{place(index)}: {side} {found[index]:,} of a vocabulary of {size:,}")
    return found
