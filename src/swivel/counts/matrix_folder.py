"""The folder of a matrix: saved, and opened with its cells memory-mapped.

Files of the folder (stage "matrix"):

- `rows.txt` and `columns.txt`: token TAB count; without `columns.txt` the columns have the row vocabulary.
- `row_sums.npy` and `column_sums.npy`: int64 units.
- `offsets.npy`: int64, row_blocks x column_blocks + 1, the start of each shard in `positions` and `counts`; the shards
  of a symmetric matrix below the diagonal are empty.
- `positions.npy`: uint32, local row << 16 | local column, ascending in a shard.
- `counts.npy`: uint32 units, at most 2^32 - 1.
- `large_cells.npy` and `large_counts.npy`: int64, indexes of the cells that hold 2^32 - 1, and their exact units.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints, Layout
from swivel.counts.matrix import Matrix
from swivel.counts.shards import FILES, CellArrays, open_cells
from swivel.errors import DamagedFolder, StorageError, VocabularyError
from swivel.storage import REMEDY, Folder, FolderWriter, create_folder, open_folder
from swivel.storage.checksums import digest_bytes
from swivel.storage.manifest import fingerprint_parts
from swivel.storage.npy import npy_bytes

STAGE = "matrix"
LARGE = ("positions.npy", "counts.npy")  # memory-mapped, and not read when the matrix is opened


class MatrixFolder(Matrix):
    """A matrix in a folder: every file is read, and its checksum verified, at the first access."""

    def __init__(self, folder: Folder, layout: Layout, arrays: CellArrays) -> None:
        facts = folder.manifest.facts
        self.layout = layout
        self.unverified = arrays
        self.has_own_columns = "columns.txt" in folder.manifest.parts
        self.total_units = facts["total_units"]
        self.unit = facts["unit"]
        self.column_parts = tuple(facts["column_parts"])
        self.config = folder.manifest.config
        self.path = folder.path
        self.fingerprint = folder.manifest.fingerprint
        self._folder = folder

    @cached_property
    def arrays(self) -> CellArrays:  # type: ignore[override]
        """The cells."""
        self._folder.check(*LARGE)
        return self.unverified

    @cached_property
    def rows(self) -> Vocabulary:  # type: ignore[override]
        """Vocabulary of the rows."""
        return _read_vocabulary(self._folder, "rows.txt")

    @cached_property
    def columns(self) -> Vocabulary:  # type: ignore[override]
        """Vocabulary of the columns."""
        return _read_vocabulary(self._folder, "columns.txt") if self.has_own_columns else self.rows

    @cached_property
    def row_sums_units(self) -> Ints:  # type: ignore[override]
        """Exact row sums, int64, in units."""
        return _read_numbers(self._folder, "row_sums.npy", np.int64)

    @cached_property
    def column_sums_units(self) -> Ints:  # type: ignore[override]
        """Exact column sums, int64, in units."""
        return _read_numbers(self._folder, "column_sums.npy", np.int64)

    def verify(self) -> None:
        """Raise DamagedFolder for the first file whose checksum differs from the manifest."""
        self._folder.verify()

    def trust(self) -> None:
        """Skip the checksums of this folder, because this process wrote it or another process has verified it."""
        self._folder.trust()


def save_matrix(matrix: Matrix, path: Path, *, overwrite: bool = False) -> None:
    """Write a matrix to a folder."""
    with create_folder(path, STAGE, overwrite=overwrite) as writer:
        writer.write_lines("rows.txt", matrix.rows.to_lines())
        for name, array in name_arrays(matrix.arrays).items():
            writer.write_array(name, array)
        finish_folder(writer, matrix)


def name_arrays(arrays: CellArrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of the cells by the names of their files."""
    values: tuple[NDArray[Any], ...] = arrays
    return {name: array.ravel() for name, array in zip(FILES, values, strict=True)}


def adopt_cells(writer: FolderWriter, scratch: Path, threads: int) -> CellArrays:
    """Move complete files of cells from a scratch folder on the same disk into a folder, and return them mapped."""
    with ThreadPoolExecutor(threads) as pool:  # checksums take about one second per GB
        list(pool.map(lambda name: writer.adopt(name, scratch / name), FILES))
    return open_cells(writer.path)


def finish_folder(
    writer: FolderWriter,
    matrix: Matrix,
    *,
    inputs: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write what a matrix has besides its row labels and cells, and the manifest with further inputs and facts."""
    layout = matrix.layout
    if matrix.has_own_columns:
        writer.write_lines("columns.txt", matrix.columns.to_lines())
    writer.write_array("row_sums.npy", matrix.row_sums_units)
    writer.write_array("column_sums.npy", matrix.column_sums_units)

    all_facts = {
        **(facts or {}),
        "shape": [layout.rows, layout.columns],
        "row_blocks": layout.row_blocks,
        "column_blocks": layout.column_blocks,
        "symmetric": layout.symmetric,
        "stored_cells": len(matrix.unverified.counts),
        "unit": matrix.unit,
        "total_units": matrix.total_units,
        "column_parts": list(matrix.column_parts),
    }
    writer.finish(config=dict(matrix.config), inputs=inputs or {}, facts=all_facts)


def fingerprint_contents(matrix: Matrix) -> str:
    """Return the fingerprint that a folder of this matrix would have."""
    arrays = name_arrays(matrix.arrays)
    arrays |= {"row_sums.npy": matrix.row_sums_units, "column_sums.npy": matrix.column_sums_units}
    parts = {name: digest_bytes(*npy_bytes(array)) for name, array in arrays.items()}

    vocabularies = {"rows.txt": matrix.rows}
    if matrix.has_own_columns:
        vocabularies["columns.txt"] = matrix.columns
    for name, vocabulary in vocabularies.items():
        parts[name] = digest_bytes("".join(f"{line}\n" for line in vocabulary.to_lines()).encode())
    return fingerprint_parts(parts)


def open_matrix(path: str | Path) -> Matrix:
    """Return the matrix in a folder; its cells are not read yet.

    >>> open_matrix("nowhere")
    Traceback (most recent call last):
    swivel.errors.StorageError: nowhere: no such folder
    """
    if Path(path).is_file():
        raise StorageError(
            f"{path}: a file, not a matrix; for text use swivel run, for a table of counts swivel import"
        )
    folder = open_folder(path, "matrix")
    try:
        layout = _read_layout(folder.manifest.facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFolder(f"{folder.path}: the manifest does not describe a matrix ({error}); {REMEDY}") from error

    # Plain views of the mapped files, because slicing a numpy.memmap is several times slower.
    offsets, *others = (np.asarray(_read_numbers(folder, name, kind)) for name, kind in FILES.items())
    arrays = CellArrays(offsets.reshape(1, -1), *others)
    if not _fit_together(layout, arrays):
        folder.verify()  # raises an error that names the damaged file, if a checksum differs
        raise DamagedFolder(f"{folder.path / 'offsets.npy'}: does not match the other files; {REMEDY}")

    return MatrixFolder(folder, layout, arrays)


def _read_layout(facts: Mapping[str, Any]) -> Layout:
    # A damaged manifest may have anything in place of a number.
    rows, columns = facts["shape"]
    numbers = rows, columns, facts["row_blocks"], facts["column_blocks"], facts["unit"], facts["total_units"]
    if not all(type(number) is int and number > 0 for number in numbers):
        raise ValueError(f"sizes must be positive integers, got {numbers}")
    if not all(isinstance(name, str) for name in facts["column_parts"]) or type(facts["symmetric"]) is not bool:
        raise ValueError("column_parts must be strings and symmetric a boolean")
    return Layout(*numbers[:4], facts["symmetric"])


def _read_vocabulary(folder: Folder, name: str) -> Vocabulary:
    try:
        return Vocabulary.from_lines(folder.lines(name))
    except VocabularyError as error:
        raise DamagedFolder(f"{folder.path / name}: {error}; {REMEDY}") from error


def _read_numbers(folder: Folder, name: str, kind: type[np.generic]) -> NDArray[Any]:
    array = folder.mapped(name) if name in LARGE else folder.array(name)
    if array.ndim != 1 or array.dtype != kind:
        problem = f"expected one dimension of {np.dtype(kind)}, got {array.ndim} of {array.dtype}"
        raise DamagedFolder(f"{folder.path / name}: {problem}; {REMEDY}")
    return array


def _fit_together(layout: Layout, arrays: CellArrays) -> bool:
    """Return whether every shard is a range of the cells. The checksums cover the content of the cells."""
    offsets = arrays.offsets[0]
    cells = len(arrays.counts)
    large = arrays.large_cells

    return bool(
        len(offsets) == layout.shards + 1
        and offsets[0] == 0
        and offsets[-1] == cells == len(arrays.positions)
        and (offsets[1:] >= offsets[:-1]).all()
        and len(large) == len(arrays.large_counts)
        and (not len(large) or (large.min() >= 0 and large.max() < cells))
    )
