"""Vectors as one safetensors file, with their words in its metadata.

Receives a path, hands on `Vectors`, and the other way round: a tensor `vectors` (words, dimensions) of float32, and in
the header's metadata `words` and `counts`, each a list as JSON. Values are mapped, not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swivel.errors import StorageError, VocabularyError, clear_errors
from swivel.storage import create_file
from swivel.storage.safetensors import Tensors, map_tensors
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import make_vectors
from swivel.vectors.search import Floats

TENSOR = "vectors"
_LONGEST_HEADER = 100_000_000  # what the library reads
_ALIGNMENT = 8


def write_vectors_tensors(vectors: Vectors, path: Path) -> None:
    """Write vectors with their words and counts as one safetensors file."""
    vocabulary = vectors.vocabulary
    metadata = {"words": json.dumps(vocabulary.tokens), "format": "swivel"}
    if vocabulary.counts.any():
        metadata["counts"] = json.dumps(vocabulary.counts.tolist())
    write_matrix(path, TENSOR, vectors.vectors, metadata)


def write_matrix(path: Path, name: str, matrix: Floats, metadata: Mapping[str, str]) -> None:
    """Write one float32 matrix as a safetensors file."""
    values = np.ascontiguousarray(matrix, "<f4")
    entry = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [0, values.nbytes]}
    header = json.dumps({"__metadata__": dict(metadata), name: entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    if len(header) > _LONGEST_HEADER:
        raise VocabularyError(
            f"safetensors cannot hold so many labels: its header may have {_LONGEST_HEADER:,} bytes, and they take "
            f"{len(header):,}: take parquet, arrow or npz"
        )
    with create_file(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.write(values.reshape(-1).view(np.uint8).data)


def read_vectors_tensors(path: str | Path) -> Vectors:
    """Read what `write_vectors_tensors` wrote; any float matrix called `vectors`, with `words` in the metadata."""
    path = Path(path)
    found = read_tensors(path)
    for name, there in ((TENSOR, found.matrices), ("words", found.metadata)):
        if name not in there:
            kind = "tensor" if name == TENSOR else "list in the metadata"
            raise StorageError(f"{path}: no {kind} called {name!r}; there are {', '.join(map(repr, there)) or 'none'}")
    words = _read_list(path, found.metadata, "words", str)
    counts = _read_list(path, found.metadata, "counts", int) if "counts" in found.metadata else None
    if counts is not None and (len(counts) != len(words) or not all(0 <= count < 1 << 63 for count in counts)):
        raise StorageError(f"{path}: the counts in the metadata are not one whole number a word")
    numbers = None if counts is None else np.array(counts, np.int64)
    return make_vectors(path, words, found.matrices[TENSOR], numbers)


def _read_list(path: Path, metadata: Mapping[str, str], name: str, kind: type) -> list[Any]:
    try:
        values = json.loads(metadata[name])
        if isinstance(values, list) and all(type(value) is kind for value in values):
            for value in values if kind is str else ():
                value.encode()
            return values
    except (ValueError, RecursionError):
        pass
    raise StorageError(f"{path}: {name!r} in the metadata is no JSON list of {'words' if kind is str else 'numbers'}")


def read_tensors(path: Path) -> Tensors:
    """Return the float matrices of a safetensors file, mapped read-only; tensors of other kinds are left out."""
    try:
        with clear_errors(path):
            return map_tensors(path)
    except ValueError as error:
        raise StorageError(f"{path}: not a safetensors file ({error}); it is damaged, or something else") from error
