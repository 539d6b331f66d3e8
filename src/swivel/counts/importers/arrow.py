"""Read triples from Parquet, Arrow and Feather files and from pyarrow tables, batch by batch.

The only importer that uses pyarrow. Batches are fully validated before use, and errors of pyarrow become one line with
the name of the file.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.block_layout import Ints
from swivel.counts.importers.context import ImportChunk, ImportContext, LabelTable, Place, number_places
from swivel.counts.importers.import_config import pick_fields
from swivel.errors import CountsError, first_line, needs_extra
from swivel.runtime.parallel import map_in_order

_MEMORY_PER_BATCH_ROW = 1 << 10  # bytes; about a sixth of it is used, by the three batches in flight
_MIN_BATCH_ROWS = 1 << 12
_MAX_BATCH_ROWS = 1 << 20
_TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary")


def _batch_rows(context: ImportContext) -> int:
    return min(max(context.memory_bytes // _MEMORY_PER_BATCH_ROW, _MIN_BATCH_ROWS), _MAX_BATCH_ROWS)


@contextlib.contextmanager
def _load_pyarrow(what: str, name: str) -> Iterator[Any]:
    """Yield the module pyarrow, and convert its exceptions to a CountsError of one line with the name of the file."""
    with needs_extra(what, "pyarrow", "parquet"):
        import pyarrow as pa

    try:
        yield pa
    except (pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeDecodeError) as error:
        reason = f"pyarrow cannot read the file; it may be damaged ({first_line(error)})"
        raise CountsError(f"{name}: {reason}") from error


def read_parquet(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a Parquet file, row group by row group."""
    with _load_pyarrow(f"{file}: Parquet files", str(file)) as pa:
        import pyarrow.parquet as parquet

        with parquet.ParquetFile(file) as reader:
            all_names = reader.schema_arrow.names
            names = [all_names[pick] for pick in pick_fields(context.config, all_names, len(all_names), str(file))]
            repeated = next((name for name in names if all_names.count(name) > 1), None)
            if repeated is not None:
                raise CountsError(f"{file}: several columns are named {repeated!r}")

            # One row group after another: a reader of all groups keeps the whole file in memory.
            groups = (
                batch.select(names)
                for group in range(reader.num_row_groups)
                for batch in reader.iter_batches(_batch_rows(context), row_groups=[group], columns=names)
            )
            share = file.stat().st_size / max(reader.metadata.num_rows, 1)
            yield from _read_batches(pa, groups, str(file), context, share)

        pa.default_memory_pool().release_unused()


def read_arrow(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of an Arrow file or stream, or of a Feather file (version 2)."""
    with _load_pyarrow(f"{file}: Arrow files", str(file)) as pa, pa.memory_map(str(file)) as memory:
        if memory.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(memory)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            memory.seek(0)
            reader = pa.ipc.open_stream(memory)
            batches = iter(reader)

        yield from _read_batches(pa, _select(batches, reader.schema, context, str(file)), str(file), context, 0)
        context.task.advance(file.stat().st_size)


def read_table(table: Any, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a pyarrow table, record batch or record batch reader."""
    name = "the table"
    with _load_pyarrow("pyarrow's tables", name) as pa:
        if isinstance(table, pa.RecordBatch):
            batches = [table]
        elif hasattr(table, "to_batches"):
            batches = table.to_batches()
        else:
            batches = table

        yield from _read_batches(pa, _select(iter(batches), table.schema, context, name), name, context, 1)


def _select(batches: Iterator[Any], schema: Any, context: ImportContext, name: str) -> Iterator[Any]:
    """Yield the columns of rows, columns and counts, in slices of limited length."""
    picks = list(pick_fields(context.config, schema.names, len(schema.names), name))
    rows = _batch_rows(context)
    for batch in batches:
        columns = batch.select(picks)
        columns.validate(full=True)  # other functions of pyarrow trust the offsets in the file
        for start in range(0, columns.num_rows, rows):
            yield columns.slice(start, rows)


def _read_batches(
    pa: Any, batches: Iterator[Any], name: str, context: ImportContext, share: float
) -> Iterator[ImportChunk]:
    """Yield one chunk per batch."""
    begin = 0

    with ThreadPoolExecutor(2) as pool:
        # One thread decodes the next batch.
        for batch in map_in_order(lambda _: next(batches, None), itertools.count(), threads=1):
            if batch is None:
                break

            place = number_places(name, "row", begin)
            sides = [_check_labels(pa, batch.column(number), place) for number in (0, 1)]
            # Two threads encode; `_find_ids` adds labels, possibly to one table for both sides, so it is serial.
            encoded = list(pool.map(lambda side: side.dictionary_encode(), sides))
            rows = _find_ids(pa, encoded[0], context.rows, place)
            columns = _find_ids(pa, encoded[1], context.columns, place)
            counts = _take_counts(pa, batch.column(2), place, context) if batch.num_columns > 2 else None
            yield ImportChunk(rows, columns, counts, place)
            begin += batch.num_rows
            context.task.advance(share * batch.num_rows)


def _take_plain(pa: Any, array: Any, what: str, place: Place) -> Any:
    """Return a column without dictionary encoding; raise CountsError if a value is missing."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        index = int(np.argmax(array.is_null().to_numpy(False)))
        raise CountsError(f"{place(index)}: the {what} is missing (null)")
    return array


def _check_labels(pa: Any, array: Any, place: Place) -> Any:
    array = _take_plain(pa, array, "label", place)
    if not pa.types.is_integer(array.type) and str(array.type) not in _TEXT_TYPES:
        raise CountsError(f"{place(0)}: labels must be strings or integers, got {first_line(array.type)}")
    return array


def _find_ids(pa: Any, encoded: Any, table: LabelTable, place: Place) -> Ints:
    """Return the ids of encoded labels; only the distinct labels of a batch are looked up in Python."""
    labels = encoded.dictionary
    if pa.types.is_integer(labels.type):
        labels = labels.cast(pa.string())

    # As bytes, because the table refuses labels that are not valid UTF-8 with their place.
    texts = labels.cast(pa.large_binary()).to_pylist()
    codes = encoded.indices.to_numpy(False)
    ids = table.look_up(texts, lambda number: place(int(np.argmax(codes == number))))
    return np.asarray(ids[codes])


def _take_counts(pa: Any, array: Any, place: Place, context: ImportContext) -> NDArray[np.float64]:
    if context.config.suppressed_below is not None and array.null_count:
        array = array.fill_null(-1)
    array = _take_plain(pa, array, context.number_name, place)
    types = pa.types
    if context.config.has_dates:
        if not (types.is_date(array.type) or types.is_timestamp(array.type)):
            return context.read_times(array.to_pylist(), place)
        return np.asarray(array.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(False), np.float64)
    if not (types.is_integer(array.type) or types.is_floating(array.type) or types.is_decimal(array.type)):
        raise CountsError(
            f"{place(0)}: {context.number_name}s must be numbers, got {first_line(array.type)}; "
            "pass fields to choose the columns, or within with a unit, such as 30d, if they are the times of events",
            argument=("fields", "within"),
        )
    if types.is_decimal(array.type):
        array = array.cast(pa.float64())

    return np.asarray(array.to_numpy(False), np.float64)
