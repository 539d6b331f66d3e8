"""Memory maps of safetensors files, with NumPy alone.

A file is the length of the header (8 bytes, little-endian), the header (JSON), and the bytes of the tensors. Errors in
a file raise ValueError, which the caller turns into a message for users.
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
    """Content of a safetensors file."""

    matrices: Mapping[str, NDArray[Any]]  # float matrices by name, memory-mapped read-only
    others: tuple[str, ...]  # names of all other tensors
    metadata: Mapping[str, str]


def map_tensors(path: Path) -> Tensors:
    """Return the float matrices of a safetensors file as memory maps, or raise ValueError."""
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)

    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    if not 8 < start <= len(data):
        raise ValueError(f"a header of {start - 8:,} bytes in a file of {len(data):,} bytes")

    try:
        header = json.loads(data[8:start].tobytes())
        metadata = header.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("metadata that is not text")

        matrices = {name: _view(data[start:], entry) for name, entry in header.items() if _is_matrix(entry)}
        others = tuple(name for name in header if name not in matrices)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"a header that does not describe tensors: {error}") from error

    return Tensors(matrices, others, metadata)


def _is_matrix(entry: Mapping[str, Any]) -> bool:
    return entry["dtype"] in _DTYPES and len(entry["shape"]) == 2


def _view(data: NDArray[np.uint8], entry: Mapping[str, Any]) -> NDArray[Any]:
    """Return one tensor as a view of the data section, after checking its offsets."""
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    rows, columns = (int(size) for size in entry["shape"])
    start, stop = (int(offset) for offset in entry["data_offsets"])

    is_inside = min(rows, columns) >= 0 and 0 <= start <= stop <= len(data)
    if not is_inside or stop - start != dtype.itemsize * math.prod((rows, columns)):
        raise ValueError(f"shape ({rows}, {columns}) at bytes {start} to {stop} of {len(data)}")

    # The safetensors library pads its header to 8 bytes, but other writers may not, and matrix products on unaligned
    # addresses are slow.
    view = np.asarray(data[start:stop]).view(dtype).reshape(rows, columns)
    return view if view.flags.aligned else view.copy()
