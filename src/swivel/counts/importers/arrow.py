"""Read triples from Parquet, Arrow and Feather files and from pyarrow tables, batch by batch.

The only module that uses pyarrow. Batches are fully validated before use, and errors of pyarrow become one line with
the name of the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.importers.config import pick_fields
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import LabelTable, Place
from swivel.counts.importers.spill import ImportChunk
from swivel.errors import CountsError, missing_extra

_MEMORY_PER_BATCH_ROW = 1 << 10  # bytes; about a sixth of it is used, by the three batches in flight
_MIN_BATCH_ROWS = 1 << 12  # small batches are slow: pyarrow hashes all known labels again for each
_MAX_BATCH_ROWS = 1 << 20


def _batch_rows(context: ImportContext) -> int:
    return min(max(context.memory_bytes // _MEMORY_PER_BATCH_ROW, _MIN_BATCH_ROWS), _MAX_BATCH_ROWS)


def load_pyarrow(what: str) -> Any:
    """Return the pyarrow module, or raise MissingExtra if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise missing_extra(what, "pyarrow", "import") from None
    return pyarrow


@contextlib.contextmanager
def _clear_errors(pa: Any, name: str) -> Iterator[None]:
    """Convert exceptions of pyarrow to a CountsError of one line with the name of the file."""
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeDecodeError) as error:
        text = _first_line(error) or type(error).__name__
        raise CountsError(f"{name}: pyarrow cannot read the file; it may be damaged ({text})") from error


def _first_line(value: object) -> str:
    return str(value).strip().split("\n")[0]


def read_parquet(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a Parquet file, row group by row group."""
    pa = load_pyarrow(f"{file}: Parquet files")
    import pyarrow.parquet as parquet

    with _clear_errors(pa, str(file)), parquet.ParquetFile(file) as opened:
        schema = opened.schema_arrow
        picks = pick_fields(context.config, schema.names, len(schema.names), str(file))
        names = _check_names([schema.names[pick] for pick in picks], schema.names, str(file))
        share = file.stat().st_size / max(opened.metadata.num_rows, 1)
        yield from _read_batches(pa, _read_groups(opened, names, _batch_rows(context)), str(file), context, share)

    pa.default_memory_pool().release_unused()


def _read_groups(opened: Any, names: list[str], rows: int) -> Iterator[Any]:
    """Yield the batches of one row group after another; one reader for all groups keeps the whole file in memory."""
    for group in range(opened.num_row_groups):
        for batch in opened.iter_batches(batch_size=rows, row_groups=[group], columns=names):
            yield batch.select(names)


def read_arrow(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of an Arrow file or stream, or of a Feather file (version 2)."""
    pa = load_pyarrow(f"{file}: Arrow files")
    with _clear_errors(pa, str(file)), pa.memory_map(str(file)) as mapped:
        size = file.stat().st_size
        if mapped.read(6) == b"ARROW1":
            opened = pa.ipc.open_file(mapped)
            batches = (opened.get_batch(number) for number in range(opened.num_record_batches))
        else:
            mapped.seek(0)
            opened = pa.ipc.open_stream(mapped)
            batches = iter(opened)

        yield from _read_batches(pa, _select(batches, opened.schema, context, str(file)), str(file), context, 0)
        context.advance(size)


def read_table(table: Any, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a pyarrow table, record batch or record batch reader."""
    pa = load_pyarrow("pyarrow's tables")
    name = "the table"

    if isinstance(table, pa.RecordBatch):
        batches = [table]
    elif hasattr(table, "to_batches"):
        batches = table.to_batches()
    else:
        batches = table

    with _clear_errors(pa, name):
        yield from _read_batches(pa, _select(iter(batches), table.schema, context, name), name, context, 1)


def _select(batches: Iterator[Any], schema: Any, context: ImportContext, name: str) -> Iterator[Any]:
    """Yield the chosen columns, in slices of limited length."""
    picks = list(pick_fields(context.config, schema.names, len(schema.names), name))
    rows = _batch_rows(context)
    for batch in batches:
        chosen = batch.select(picks)
        chosen.validate(full=True)  # other functions of pyarrow trust the offsets in the file
        for start in range(0, chosen.num_rows, rows):
            yield chosen.slice(start, rows)


def _check_names(names: list[str], all_names: list[str], where: str) -> list[str]:
    for name in names:
        if all_names.count(name) > 1:
            raise CountsError(f"{where}: several columns are named {name!r}")
    return names


def _read_batches(
    pa: Any, batches: Iterator[Any], name: str, context: ImportContext, share: float
) -> Iterator[ImportChunk]:
    """Yield one chunk per batch. The next batch is decoded, and rows and columns are matched, in parallel threads."""
    sides = [_LabelSide(pa, table) for table in (context.rows, context.columns)]
    begin = 0

    with ThreadPoolExecutor(len(sides)) as pool:
        # Only `match` runs in threads. `settle` adds labels, possibly to one table for both sides, so it is serial.
        for batch in _read_ahead(batches):
            place = _placer(name, begin)
            pair = [_check_labels(pa, batch.column(number), place) for number in (0, 1)]
            matches = list(pool.map(_LabelSide.match, sides, pair))
            rows, columns = (sides[number].settle(pair[number], matches[number], place) for number in (0, 1))
            counts = _take_counts(pa, batch.column(2), place) if batch.num_columns > 2 else None
            yield ImportChunk(rows, columns, counts, place)
            begin += batch.num_rows
            context.advance(share * batch.num_rows)


def _read_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the items of an iterator; a thread computes the next one in advance."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


def _placer(name: str, begin: int) -> Place:
    return lambda index: f"{name}, row {begin + index + 1:,}"


def _check_labels(pa: Any, array: Any, place: Place) -> Any:
    """Return labels without dictionary encoding; raise CountsError for nulls and other types."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise CountsError(f"{place(int(np.argmax(array.is_null().to_numpy(False))))}: the label is missing (null)")
    if not (pa.types.is_integer(array.type) or _holds_text(pa.types, array.type)):
        raise CountsError(f"{place(0)}: labels must be strings or integers, got {_first_line(array.type)}")
    return array


class _LabelSide:
    """Labels of the rows or of the columns. pyarrow finds known labels in bulk; only new ones use the Python table."""

    def __init__(self, pa: Any, table: LabelTable) -> None:
        import pyarrow.compute

        self._pa = pa
        self._find = pyarrow.compute.index_in
        self._table = table
        self._known: Any = None  # labels seen so far, as a pyarrow array; `_ids` are their ids
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)

    def match(self, array: Any) -> NDArray[np.int64]:
        """Return the index of each label among the known ones, or -1. Rows and columns may be matched in parallel."""
        if self._known is None or self._known.type != array.type:
            return np.full(len(array), -1)
        return self._positions(array, self._known)

    def _positions(self, array: Any, among: Any) -> NDArray[np.int64]:
        indexes = self._find(array, value_set=among)
        return np.asarray(indexes.fill_null(-1).to_numpy(False), np.int64)

    def settle(self, array: Any, matches: NDArray[np.int64], place: Place) -> NDArray[np.int64]:
        """Return the ids of labels from their `matches`, and add new labels to the table."""
        if self._known is None or self._known.type != array.type:
            self._known = array.slice(0, 0)
            self._ids = np.empty(0, np.int64)

        new = np.flatnonzero(matches < 0)
        ids = np.empty(len(array), np.int64)
        if new.size < len(array):
            ids = self._ids[matches]
        if new.size:
            ids[new] = self._learn(array.take(self._pa.array(new)), lambda index: place(int(new[index])))

        return ids

    def _learn(self, array: Any, place: Place) -> NDArray[np.int64]:
        labels = array.unique()
        codes = self._positions(array, labels)
        fresh = self._table.look_up(_texts(labels), lambda number: place(int(np.argmax(codes == number))))
        self._known = self._pa.concat_arrays([self._known, labels])
        self._ids = np.concatenate([self._ids, fresh])
        return fresh[codes]


def _holds_text(types: Any, kind: Any) -> bool:
    is_view = getattr(types, "is_string_view", lambda _: False)
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or is_view(kind)
    )


def _texts(labels: Any) -> list[Any]:
    """Return distinct labels as strings; those that are not UTF-8 as bytes, which the table rejects."""
    try:
        listed = labels.to_pylist()
    except UnicodeDecodeError:
        listed = [scalar.as_buffer().to_pybytes() for scalar in labels]
    return [_text(label) for label in listed]


def _text(label: Any) -> Any:
    if not isinstance(label, bytes):
        return str(label)
    try:
        return label.decode()
    except UnicodeDecodeError:
        return label


def _take_counts(pa: Any, array: Any, place: Place) -> NDArray[np.float64]:
    types = pa.types
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (types.is_integer(array.type) or types.is_floating(array.type) or types.is_decimal(array.type)):
        raise CountsError(
            f"{place(0)}: counts must be numbers, got {_first_line(array.type)}; pass fields to choose the columns"
        )
    if array.null_count:
        raise CountsError(f"{place(int(np.argmax(array.is_null().to_numpy(False))))}: the count is missing (null)")
    if types.is_decimal(array.type):
        array = array.cast(pa.float64())

    return np.asarray(array.to_numpy(False), np.float64)
