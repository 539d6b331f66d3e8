"""Digests of texts, tables and matrices in memory, so that a call with the same ones is recognized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

import numpy as np

_ITEMS_PER_BATCH = 1_000


def digest_object(value: Any) -> str | None:
    """Return a digest of what a collection, table or matrix contains; None for what can be read only once.

    >>> digest_object(["tea", "milk"]) == digest_object(["tea", "milk"]) != digest_object(["tea milk"])
    True
    >>> digest_object(iter(["tea"])) is None
    True
    """
    digest = hashlib.sha256(type(value).__qualname__.encode())
    try:
        for part in _list_parts(value):
            digest.update(part)
    except TypeError:  # an iterator, or items that JSON does not have
        return None
    return digest.hexdigest()[:16]


def _list_parts(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the content as bytes; raise TypeError if it can be read only once."""
    names = getattr(value, "column_names", getattr(value, "columns", None))
    if hasattr(value, "tocoo"):
        cells = value.tocoo()
        yield repr(cells.shape).encode()
        for array in (cells.row, cells.col, cells.data):
            yield from _list_parts(array)

    elif names is not None:
        # Labels may be in the index of a table of pandas.
        for name, column in [("", getattr(value, "index", ())), *((name, value[name]) for name in names)]:
            yield repr(name).encode()
            yield from _list_parts(np.asarray(column))

    elif hasattr(value, "__array__"):
        array = np.asarray(value)
        yield f"{array.dtype} {array.shape}".encode()
        if array.dtype.hasobject:
            yield from _dump(array.ravel().tolist())
        else:
            yield np.ascontiguousarray(array).ravel().view(np.uint8).data  # no copy, unlike `tobytes`

    elif isinstance(value, Collection):
        yield from _dump(value.items() if isinstance(value, Mapping) else value)
    else:
        raise TypeError(f"{type(value).__name__} can be read only once")


def _dump(items: Iterable[Any]) -> Iterator[bytes]:
    remaining = iter(items)
    while batch := list(islice(remaining, _ITEMS_PER_BATCH)):
        yield json.dumps(batch, default=_replace).encode()


def _replace(item: Any) -> Any:
    """Return what stands in JSON for an item that it does not have."""
    if isinstance(item, Set):
        return sorted(map(repr, item))
    if isinstance(item, Collection):  # The text of a long array leaves values out.
        return list(item)
    return [type(item).__name__, repr(item)]
