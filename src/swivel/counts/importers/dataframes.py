"""Read triples in memory: pandas and polars tables, dictionaries and iterables. Neither library is imported."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.importers.config import pick_fields
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import Place, as_labels
from swivel.counts.importers.spill import ImportChunk
from swivel.errors import ConfigError, CountsError

_ROWS = 1 << 17


def is_frame(source: Any) -> bool:
    """Return whether an object is a table of named columns, like those of pandas and polars."""
    if type(source).__name__ == "LazyFrame":
        raise ConfigError("a LazyFrame has no rows yet; pass frame.collect()")
    return hasattr(source, "columns") and hasattr(source, "shape") and hasattr(source, "__getitem__")


def read_frame(frame: Any, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a pandas or polars table of triples."""
    name = "the table"
    _refuse_wide(frame, context)
    names = [str(column) for column in frame.columns]
    picks = pick_fields(context.config, names, len(names), name)
    chosen = [_column(frame, pick) for pick in picks]

    for begin in range(0, frame.shape[0], _ROWS):
        place = _placer(name, "row", begin)
        rows, columns, *counts = (np.asarray(column[begin : begin + _ROWS]) for column in chosen)
        yield ImportChunk(
            context.rows.look_up(as_labels(rows), place),
            context.columns.look_up(as_labels(columns), place),
            _as_counts(counts[0], place) if counts else None,
            place,
        )
        context.advance(rows.size)


def _refuse_wide(frame: Any, context: ImportContext) -> None:
    """Raise ConfigError for a pandas table that is a matrix (crosstab, pivot) instead of triples."""
    kinds = [getattr(kind, "kind", "O") for kind in getattr(frame, "dtypes", [])]
    index = getattr(frame, "index", None)
    has_labels = getattr(getattr(index, "dtype", None), "kind", "i") not in "iu"

    if has_labels and not context.config.fields and all(kind in "iufb" for kind in kinds):
        raise ConfigError(
            "the table has labels in its index and numbers in all columns; for a matrix pass frame.to_numpy() with "
            "row_labels=frame.index and column_labels=frame.columns; for triples pass frame.reset_index(), or fields"
        )


def _column(frame: Any, pick: int) -> Any:
    """Return a column that can be sliced by position, independent of its index and name."""
    return frame.iloc[:, pick].array if hasattr(frame, "iloc") else frame[frame.columns[pick]]


def _placer(name: str, kind: str, begin: int) -> Place:
    return lambda index: f"{name}, {kind} {begin + index + 1:,}"


def _as_counts(values: NDArray[Any], place: Place) -> NDArray[np.float64]:
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)
    listed = values.tolist()
    for index, value in enumerate(listed):
        if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
            raise CountsError(f"{place(index)}: the count {value!r} is not a number")
    return np.array([_as_float(value) for value in listed])


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64 is rejected later as not finite
        return float("inf")


def read_mapping(counts: Mapping[Any, Any], context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a dictionary from (row, column) to count, such as Counter(pairs)."""
    # Other keys become tuples of one, which read_iterable rejects with their number.
    triples = ((*key, count) if isinstance(key, tuple) and len(key) == 2 else (key,) for key, count in counts.items())
    return read_iterable(triples, context)


def read_iterable(triples: Iterable[Any], context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of an iterable of (row, column, count) or (row, column)."""
    items = iter(triples)
    begin = 0

    while batch := list(itertools.islice(items, _ROWS)):
        place = _placer("the triples", "item", begin)
        width = len(batch[0]) if isinstance(batch[0], (tuple, list)) else 0

        for index, item in enumerate(batch):
            if not isinstance(item, (tuple, list)) or len(item) != width or width not in (2, 3):
                raise CountsError(f"{place(index)}: expected a row, a column and a count, got {_shown(item)}")

        rows, columns, *counts = (_as_array(values) for values in zip(*batch, strict=True))
        yield ImportChunk(
            context.rows.look_up(as_labels(rows), place),
            context.columns.look_up(as_labels(columns), place),
            _as_counts(counts[0], place) if counts else None,
            place,
        )
        begin += len(batch)


def _as_array(values: tuple[Any, ...]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _shown(item: Any) -> str:
    text = " ".join(repr(item).split())
    return text if len(text) <= 60 else text[:57] + "..."
