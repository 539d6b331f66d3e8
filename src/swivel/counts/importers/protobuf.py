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

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
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

    for features in _messages(view, 0, len(view), field=1):
        for entry in _messages(view, *features, field=1):
            name, value = _read_entry(view, *entry)
            if name in values:
                raise WireError(f"byte {entry[0]}: the feature {name!r} occurs twice")
            if value is not None:
                values[name] = value

    return values


def _read_entry(view: memoryview, start: int, end: int) -> tuple[str, NDArray[Any] | None]:
    name = None
    value = None

    for field, kind, first, last in _fields(view, start, end):
        if field == 1 and kind == _BYTES:
            try:
                name = str(view[first:last], "utf-8")
            except UnicodeDecodeError:
                raise WireError(f"byte {first}: the name of a feature is not UTF-8") from None
        elif field == 2 and kind == _BYTES:
            value = _read_feature(view, first, last)
        else:
            raise WireError(f"byte {first}: unexpected field {field} of type {kind} in the entry of a feature")

    if name is None:
        raise WireError(f"byte {start}: a feature without a name")

    return name, value


def _read_feature(view: memoryview, start: int, end: int) -> NDArray[Any] | None:
    value: NDArray[Any] | None = None
    for field, kind, first, last in _fields(view, start, end):
        if kind != _BYTES or field not in (1, 2, 3):
            raise WireError(f"byte {first}: unexpected field {field} of type {kind} in a feature")
        value = None if field == 1 else _read_list(view, first, last, is_float=field == 2)
    return value


def _read_list(view: memoryview, start: int, end: int, *, is_float: bool) -> NDArray[Any]:
    parts = []
    single = _FIXED32 if is_float else _VARINT  # type of a value that is not packed

    for field, kind, first, last in _fields(view, start, end):
        if field != 1 or kind not in (_BYTES, single):
            raise WireError(f"byte {first}: unexpected field {field} of type {kind} in a list")

        if not is_float:
            parts.append(_decode_varints(view, first, last))
        elif (last - first) % 4:
            raise WireError(f"byte {first}: {last - first} bytes are not a whole number of floats")
        else:
            parts.append(np.frombuffer(view[first:last], "<f4"))

    return np.concatenate(parts) if parts else np.empty(0, np.float32 if is_float else np.int64)


def _messages(view: memoryview, start: int, end: int, *, field: int) -> Iterator[tuple[int, int]]:
    for number, kind, first, last in _fields(view, start, end):
        if number != field or kind != _BYTES:
            raise WireError(f"byte {first}: field {number} of type {kind}, expected a message in field {field}")
        yield first, last


def _fields(view: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, first byte and end of the content of each field of a message."""
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

        yield number, kind, first, last
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


def _decode_varints(view: memoryview, start: int, end: int) -> NDArray[np.int64]:
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
