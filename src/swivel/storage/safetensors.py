"""Reading and writing safetensors files, with NumPy alone.

A file is the length of the header (8 bytes, little-endian), the header (JSON), and the bytes of the tensors. Errors in
a file raise ValueError, which the caller turns into a message for users.

The library safetensors is not used: it writes under a temporary name that a killed process leaves behind, and its files
are readable by their owner only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_ALIGNMENT = 8  # of the first tensor, in bytes


class Tensors(NamedTuple):
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

        _check_offsets(header, len(data) - start)
        matrices = {name: _view(data[start:], entry) for name, entry in header.items() if _is_matrix(entry)}
        others = tuple(name for name in header if name not in matrices)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"a header that does not describe tensors: {error}") from error

    return Tensors(matrices, others, metadata)


def write_tensors(file: IO[bytes], tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] = {}) -> None:
    """Write float arrays of one dtype, with the same bytes as the safetensors library."""
    header = make_header(tensors, metadata)
    file.write(len(header).to_bytes(8, "little") + header)
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name], tensors[name].dtype.newbyteorder("<"))
        file.write(values.reshape(-1).view(np.uint8).data)


def make_header(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] = {}) -> bytes:
    """Return the header for arrays that are written one after the other, by name."""
    names = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, values in sorted(tensors.items()):
        stop = start + values.nbytes
        dtype = names[values.dtype.newbyteorder("<")]
        entries[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [start, stop]}
        start = stop

    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % _ALIGNMENT)


def _check_offsets(header: Mapping[str, Any], size: int) -> None:
    """Raise ValueError unless the tensors fill the data section without gaps and overlaps, as the format requires."""
    end = 0
    for start, stop in sorted([int(offset) for offset in entry["data_offsets"]] for entry in header.values()):
        if start != end or stop < start:
            raise ValueError(f"a tensor at bytes {start} to {stop}, expected at {end}")
        end = stop

    if end != size:
        raise ValueError(f"tensors of {end:,} bytes in a data section of {size:,} bytes")


def _is_matrix(entry: Mapping[str, Any]) -> bool:
    return entry["dtype"] in _DTYPES and len(entry["shape"]) == 2


def _view(data: NDArray[np.uint8], entry: Mapping[str, Any]) -> NDArray[Any]:
    """Return one tensor, whose offsets are in the data section, as a view of it; raise ValueError for a wrong shape."""
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    rows, columns = (int(size) for size in entry["shape"])
    start, stop = (int(offset) for offset in entry["data_offsets"])

    if min(rows, columns) < 0 or stop - start != dtype.itemsize * rows * columns:
        raise ValueError(f"shape ({rows}, {columns}) at bytes {start} to {stop}")

    # The safetensors library pads its header to 8 bytes, but other writers may not, and matrix products on unaligned
    # addresses are slow.
    view = np.asarray(data[start:stop]).view(dtype).reshape(rows, columns)
    return view if view.flags.aligned else view.copy()
