"""safetensors files, mapped: the header's length (8 bytes, little-endian), the header (JSON), the tensors' bytes.

Receives a path, hands on matrices of floats that are mapped, not read, and the header's metadata. What is wrong with a
file is a ValueError: whoever asked knows what to say to people. numpy is all it needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a file holds: matrices of floats by name, mapped read-only; names of all else; the header's metadata."""

    matrices: Mapping[str, NDArray[Any]]
    others: tuple[str, ...]
    metadata: Mapping[str, str]


def map_tensors(path: Path) -> Tensors:
    """Return the float matrices of a file, or raise ValueError; of other tensors only the names."""
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    if not 8 < start <= len(data):
        raise ValueError(f"a header of {start - 8:,} bytes in a file of {len(data):,}")
    try:
        header = json.loads(data[8:start].tobytes())
        metadata = header.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("metadata that is not text")
        matrices = {name: _view(data[start:], entry) for name, entry in header.items() if _is_matrix(entry)}
        others = tuple(name for name in header if name not in matrices)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"a header that describes no tensors: {error}") from error
    return Tensors(matrices, others, metadata)


def _is_matrix(entry: Mapping[str, Any]) -> bool:
    return entry["dtype"] in _DTYPES and len(entry["shape"]) == 2


def _view(data: NDArray[np.uint8], entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    rows, columns = (int(size) for size in entry["shape"])
    start, stop = (int(offset) for offset in entry["data_offsets"])
    is_inside = min(rows, columns) >= 0 and 0 <= start <= stop <= len(data)
    if not is_inside or stop - start != dtype.itemsize * math.prod((rows, columns)):
        raise ValueError(f"shape ({rows}, {columns}) at bytes {start} to {stop} of {len(data)}")
    view = np.asarray(data[start:stop]).view(dtype).reshape(rows, columns)
    # The library pads its header to 8 bytes; another writer may not, and a product of odd addresses is slow.
    return view if view.flags.aligned else view.copy()
