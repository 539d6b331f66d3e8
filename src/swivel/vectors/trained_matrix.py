"""The matrix that vectors were trained on, beside their folder."""

from __future__ import annotations

from contextlib import suppress

from swivel.counts import Matrix, open_matrix
from swivel.errors import StorageError
from swivel.vectors.vectors import Vectors


def find_matrix(vectors: Vectors) -> Matrix | None:
    """Return the matrix in the folder `matrix` beside that of the vectors if they were trained on it, else None."""
    if vectors.path is None:
        return None
    with suppress(StorageError):
        matrix = open_matrix(vectors.path.parent / "matrix")
        if matrix.fingerprint == vectors.facts.get("matrix"):
            return matrix
    return None
