"""Decode serialized tf.train.Example messages without TensorFlow: lists of integers and floats by name.

The decoder is strict: lengths beyond the end of a message, fields of another type and numbers of more than 64 bits are
errors. It allocates memory only in proportion to the size of the input.

    Example { Features features = 1; }   Features { map<string, Feature> feature = 1; }   (an entry: key = 1, value = 2)
    Feature { BytesList = 1 | FloatList = 2 | Int64List = 3; }   each list: repeated value = 1, packed or not
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts.layout import Ints

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT_BYTES = 10


class WireError(ValueError):
    """Invalid wire format; the text gives the byte."""


def parse_example(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the features of a serialized Example as int64 and float32 arrays; lists of bytes are skipped.

    >>> parse_example(b"\\x0a\\x0c\\x0a\\x0a\\x0a\\x01n\\x12\\x05\\x1a\\x03\\x0a\\x01\\x07")
    {'n': array([7])}
    """
    view = memoryview(data)
    values: dict[str, NDArray[Any]] = {}

    for _, start, end in _fields(view, 0, len(view), "an example", {(1, _BYTES)}):
        for _, first, last in _fields(view, start, end, "a list of features", {(1, _BYTES)}):
            name, value = _read_entry(view, first, last)
            if name in values:
                raise WireError(f"byte {first}: the feature {name!r} occurs twice")
            if value is not None:
                values[name] = value

    return values


def _read_entry(view: memoryview, start: int, end: int) -> tuple[str, NDArray[Any] | None]:
    """Return the name of a feature and its values, or None for a list of bytes."""
    name = None
    value = None

    for field, first, last in _fields(view, start, end, "the entry of a feature", {(1, _BYTES), (2, _BYTES)}):
        if field == 1:
            try:
                name = str(view[first:last], "utf-8")
            except UnicodeDecodeError:
                raise WireError(f"byte {first}: the name of a feature is not UTF-8") from None
            continue

        lists = _fields(view, first, last, "a feature", {(1, _BYTES), (2, _BYTES), (3, _BYTES)})
        for kind, begin, stop in lists:
            value = None if kind == 1 else _read_list(view, begin, stop, is_float=kind == 2)

    if name is None:
        raise WireError(f"byte {start}: a feature without a name")

    return name, value


def _read_list(view: memoryview, start: int, end: int, *, is_float: bool) -> NDArray[Any]:
    parts: list[NDArray[Any]] = [np.empty(0, np.float32 if is_float else np.int64)]
    single = _FIXED32 if is_float else _VARINT  # type of a value that is not packed

    for _, first, last in _fields(view, start, end, "a list", {(1, _BYTES), (1, single)}):
        if not is_float:
            parts.append(_decode_varints(view, first, last))
        elif (last - first) % 4:
            raise WireError(f"byte {first}: {last - first} bytes are not a whole number of floats")
        else:
            parts.append(np.frombuffer(view[first:last], "<f4"))

    return np.concatenate(parts)


def _fields(
    view: memoryview, start: int, end: int, message: str, known: set[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Yield number, first byte and end of the content of each field; `known` has the allowed numbers and wire types."""
    place = start
    while place < end:
        tag, first = _read_varint(view, place, end)
        number = tag >> 3
        kind = tag & 7
        if number == 0:
            raise WireError(f"byte {place}: field number 0")

        if kind == _VARINT:
            _, last = _read_varint(view, first, end)
        elif kind in (_FIXED64, _FIXED32):
            last = first + (8 if kind == _FIXED64 else 4)
        elif kind == _BYTES:
            length, first = _read_varint(view, first, end)
            last = first + length
        else:
            raise WireError(f"byte {place}: unknown wire type {kind}")

        if last > end:
            raise WireError(f"byte {place}: a field of {last - first:,} bytes, but only {end - first:,} are left")
        if (number, kind) not in known:
            raise WireError(f"byte {first}: unexpected field {number} of type {kind} in {message}")

        yield number, first, last
        place = last


def _read_varint(view: memoryview, place: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if place + index >= end:
            raise WireError(f"byte {place}: a number without an end")
        byte = view[place + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, place + index + 1

    raise WireError(f"byte {place}: a number of more than 64 bits")


def _decode_varints(view: memoryview, start: int, end: int) -> Ints:
    """Return packed varints, decoded together.

    A varint is a sequence of bytes with 7 bits each, lowest first; only its last byte is below 0x80.
    """
    data = np.frombuffer(view[start:end], np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if data.size and (not ends.size or ends[-1] != data.size - 1):
        raise WireError(f"byte {start}: packed numbers without an end")

    begins = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    lengths = ends - begins + 1
    longest = int(lengths.max(initial=0))
    if longest > _MAX_VARINT_BYTES:
        raise WireError(f"byte {start}: a packed number of more than 64 bits")

    values = np.zeros(ends.size, np.uint64)
    for index in range(longest):
        longer = np.flatnonzero(lengths > index) if index else np.arange(ends.size)
        bits = (data[begins[longer] + index] & np.uint8(0x7F)).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * index)

    return values.view(np.int64)
