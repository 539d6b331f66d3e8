"""The folder of a matrix or of vectors that were opened from one."""

from __future__ import annotations

from pathlib import Path

from swivel.counts import Matrix
from swivel.vectors import Vectors


def folder_of(value: Matrix | Vectors) -> Path:
    assert value.path is not None
    return value.path
