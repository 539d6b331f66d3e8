"""One way in: whatever a path holds, as vectors."""

from __future__ import annotations

from pathlib import Path

from swivel.errors import StorageError
from swivel.formats.text import read_text
from swivel.storage import MANIFEST
from swivel.vectors import Vectors, load


def open_vectors(path: str | Path) -> Vectors:
    """Return the vectors in a folder that training wrote, in the folder of a whole run, or in another tool's text file.

    Raises StorageError where there are none.
    """
    found = find_vectors(path)
    return read_text(found) if found.is_file() else load(found)


def find_vectors(path: str | Path) -> Path:
    """Return the file or folder that a path means: of the folder of a whole run, the one inside."""
    path = Path(path)
    if not path.exists():
        raise StorageError(f"{path}: no such file or folder")
    inside = path / "vectors"
    return inside if (inside / MANIFEST).exists() else path
