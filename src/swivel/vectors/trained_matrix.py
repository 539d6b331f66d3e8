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
        # By its fingerprint: another run may have replaced it since, or have the same labels. Rows that `extend` added
        # are in no matrix.
        if matrix.fingerprint == vectors.facts.get("matrix") and matrix.rows.tokens == vectors.vocabulary.tokens:
            return matrix
    return None
