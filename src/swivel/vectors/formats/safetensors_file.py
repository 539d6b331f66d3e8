"""Vectors in one safetensors file.

The file has a float32 tensor `vectors` of shape (words, dimensions). The header's metadata has `words` and `counts` as
JSON lists. Values are memory-mapped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swivel.errors import StorageError, VocabularyError
from swivel.storage.files import create_file
from swivel.storage.safetensors import Tensors, make_header, map_tensors, write_tensors
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import check_names, make_vectors, reading
from swivel.vectors.search import Floats

_TENSOR = "vectors"
_MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors library


def write_safetensors(vectors: Vectors, path: Path) -> None:
    """Write vectors, words and counts to one safetensors file."""
    vocabulary = vectors.vocabulary
    metadata = {"words": json.dumps(vocabulary.tokens), "format": "swivel"}
    if vocabulary.counts.any():
        metadata["counts"] = json.dumps(vocabulary.counts.tolist())
    write_matrix(path, _TENSOR, vectors.vectors, metadata)


def write_matrix(path: Path, name: str, matrix: Floats, metadata: Mapping[str, str]) -> None:
    """Write one float32 matrix to a safetensors file."""
    tensors = {name: np.asarray(matrix, np.float32)}
    size = len(make_header(tensors, metadata))
    if size > _MAX_HEADER_BYTES:
        raise VocabularyError(
            f"safetensors cannot store these labels: they need {size:,} bytes, and the header may have at most "
            f"{_MAX_HEADER_BYTES:,}; use parquet, arrow or npz"
        )

    with create_file(path) as file:
        write_tensors(file, tensors, metadata)


def read_safetensors(path: Path) -> Vectors:
    """Read a float matrix called `vectors` with its `words` in the metadata."""
    tensors = read_tensors(path)
    check_names(path, "tensor", [_TENSOR], tensors.matrices)
    check_names(path, "list in the metadata", ["words"], tensors.metadata)

    words = _read_list(path, tensors.metadata, "words", str)
    counts = None
    if "counts" in tensors.metadata:
        counts = np.array(_read_list(path, tensors.metadata, "counts", int))

    return make_vectors(path, words, tensors.matrices[_TENSOR], counts)


def _read_list(path: Path, metadata: Mapping[str, str], name: str, kind: type) -> list[Any]:
    try:
        values = json.loads(metadata[name])
        if isinstance(values, list) and all(type(value) is kind for value in values):
            return values
    except (ValueError, RecursionError):
        pass

    expected = "words" if kind is str else "numbers"
    raise StorageError(f"{path}: {name!r} in the metadata is not a JSON list of {expected}")


def read_tensors(path: Path) -> Tensors:
    """Return the float matrices of a safetensors file, memory-mapped read-only; other tensors are skipped."""
    with reading(path, "a safetensors file"):
        return map_tensors(path)
