"""Read triples in memory: pandas and polars tables, dictionaries and iterables; and tables that are crosstabs.

Neither library is imported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import to_label
from swivel.counts.importers.context import ImportChunk, ImportContext, Place, as_labels, number_places, show
from swivel.counts.importers.import_config import pick_fields
from swivel.errors import ConfigError, CountsError

_ROWS = 1 << 17


def is_frame(source: Any) -> bool:
    """Return whether an object is a table of named columns, like those of pandas and polars."""
    if type(source).__name__ == "LazyFrame":
        raise ConfigError("a LazyFrame has no rows yet; pass frame.collect()")
    return hasattr(source, "columns") and hasattr(source, "shape") and hasattr(source, "__getitem__")


def read_frame(frame: Any, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a pandas or polars table of triples."""
    _refuse_wide(frame, context)
    names = [str(column) for column in frame.columns]
    picks = pick_fields(context.config, names, len(names), "the table")
    # Columns that can be sliced by position, independent of their index and name.
    if hasattr(frame, "iloc"):
        columns = [frame.iloc[:, pick].array for pick in picks]
    else:
        columns = [frame[frame.columns[pick]] for pick in picks]

    for begin in range(0, frame.shape[0], _ROWS):
        parts = [np.asarray(column[begin : begin + _ROWS]) for column in columns]
        yield _make_chunk(context, parts, number_places("the table", "row", begin))
        context.task.advance(parts[0].size)


def read_wide_frame(frame: Any, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a crosstab or pivot table: a column per label, with the rows' labels in the index.

    Without labels in the index (polars, or a new index of pandas), the first column has them.
    """
    index = getattr(frame, "index", None)
    if index is None or type(index).__name__ == "RangeIndex":
        index = frame[frame.columns[0]]
        frame = frame[list(frame.columns[1:])]

    name = "the table"
    place = number_places(name, "row", 0)
    rows = context.rows.look_up(as_labels(np.asarray(index)), place)
    columns = context.find_columns(list(map(to_label, frame.columns)), name)
    values = frame.to_numpy()
    for number, column in enumerate(columns.tolist()):
        # A pivot table has a missing value where nothing was observed. Marks such as * are among texts and objects.
        column_values = values[:, number]
        if column_values.dtype.kind == "O":
            column_values = _as_array(tuple(0.0 if _is_missing(value) else value for value in column_values))
        counts = _as_counts(column_values, place, context)
        counts = np.nan_to_num(counts, nan=0.0, posinf=np.inf, neginf=-np.inf) if values.dtype.kind == "f" else counts
        yield ImportChunk(rows, np.full(len(rows), column), counts, place)
    context.task.advance(len(rows))


def _is_missing(value: Any) -> bool:
    return type(value).__name__ in ("NoneType", "NAType") or value != value  # the second one is that of pandas


def _refuse_wide(frame: Any, context: ImportContext) -> None:
    """Raise ConfigError for a pandas table that is a matrix (crosstab, pivot) instead of triples."""
    kinds = [getattr(kind, "kind", "O") for kind in getattr(frame, "dtypes", [])]
    index = getattr(frame, "index", None)
    has_labels = getattr(getattr(index, "dtype", None), "kind", "i") not in "iu"

    if has_labels and not context.config.fields and all(kind in "iufb" for kind in kinds):
        raise ConfigError(
            "the table has labels in its index and numbers in all columns; pass format='crosstab' if each column is a "
            "label, frame.reset_index() or fields for triples"
        )


def _make_chunk(context: ImportContext, parts: list[NDArray[Any]], place: Place) -> ImportChunk:
    """Return the cells of arrays of rows, columns and optionally counts."""
    counts = _as_counts(parts[2], place, context) if len(parts) > 2 else None
    return context.make_chunk(as_labels(parts[0]), as_labels(parts[1]), counts, place)


def _as_counts(values: NDArray[Any], place: Place, context: ImportContext) -> NDArray[np.float64]:
    """Return values as counts, NaN for those that mark a suppressed cell; those of events as times."""
    if context.config.has_dates:
        if values.dtype.kind == "M":  # `tolist` returns nanoseconds as numbers
            values = values.astype("datetime64[us]")
        return context.read_times(values.tolist(), place)
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)

    counts = np.empty(values.size)
    for index, value in enumerate(values.tolist()):
        if isinstance(value, dict):  # the attributes of an edge, as in networkx
            value = value.get("weight", 1)
        if context.config.suppressed_below is not None and (value is None or isinstance(value, str)):
            try:
                value = math.nan if context.is_mark(value or "") else value
            except CountsError as error:
                raise CountsError(f"{place(index)}: {error}", argument="suppressed_below") from None
        if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
            raise CountsError(f"{place(index)}: the {context.number_name} {value!r} is not a number")
        try:
            counts[index] = float(value)
        except OverflowError:  # an integer beyond float64 is rejected later as not finite
            counts[index] = np.inf

    return counts


def read_mapping(counts: Mapping[Any, Any], context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a dictionary from (row, column) to count, such as Counter(pairs)."""
    # Other keys become tuples of one, which read_iterable rejects with their number.
    triples = ((*key, count) if isinstance(key, tuple) and len(key) == 2 else (key,) for key, count in counts.items())
    return read_iterable(triples, context)


def read_iterable(triples: Iterable[Any], context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of an iterable of (row, column, count) or (row, column), such as the result of a query."""
    # The names of the fields, as cursors of databases (DB-API) and results of SQLAlchemy have them.
    names = [str(column[0]) for column in getattr(triples, "description", None) or ()]
    if not names and hasattr(triples, "keys"):
        names = list(map(str, triples.keys()))
    items = iter(triples)
    begin = 0

    while batch := list(itertools.islice(items, _ROWS)):
        place = number_places("the triples", "item", begin)
        width = len(batch[0]) if _is_record(batch[0]) else 0
        is_wrong = width not in (2, 3) and not (width and context.config.by)

        for index, item in enumerate(batch):
            if not _is_record(item) or len(item) != width or is_wrong:
                raise CountsError(f"{place(index)}: expected a row, a column and a count, got {show(item)}")

        arrays = [_as_array(values) for values in zip(*batch, strict=True)]
        if context.config.by:
            arrays = [arrays[pick] for pick in pick_fields(context.config, names or None, width, "the events")]
        yield _make_chunk(context, arrays, place)
        begin += len(batch)


def _is_record(item: Any) -> bool:
    """Return whether an item is a tuple, a list, or a row of a database, which may be of another type."""
    if isinstance(item, (tuple, list)):
        return True
    return hasattr(item, "__getitem__") and hasattr(item, "__len__") and not isinstance(item, (str, bytes, Mapping))


def _as_array(values: tuple[Any, ...]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
