"""A finished matrix of counts, read-only and memory-mapped, one block at a time.

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

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.layout import Ints, Layout, UnitCells, block_length
from swivel.counts.shards import FILES, CellArrays
from swivel.errors import ConfigError, DamagedFolder, StorageError, VocabularyError
from swivel.runtime.notebook import draw_html
from swivel.storage import REMEDY, Folder, open_folder

if TYPE_CHECKING:
    import scipy.sparse

LARGE = ("positions.npy", "counts.npy")  # memory-mapped, and not read when the matrix is opened


@dataclass(frozen=True, slots=True)
class BlockCells:
    """The observed cells of one block.

    Attributes
    ----------
    positions
        local row << 16 | local column, ascending; if `mirrored`, local column << 16 | local row.
    counts
        float32, greater than 0.
    mirrored
        Whether these are the cells of the stored mirror block: swap rows and columns to read them.
    """

    positions: NDArray[np.uint32]
    counts: NDArray[np.float32]
    mirrored: bool


@dataclass(frozen=True, slots=True)
class MatrixCells:
    """All observed cells, in the order of the shards."""

    layout: Layout
    arrays: CellArrays
    unit: int
    is_log: bool = False  # whether counts are read as log(1 + x)

    @property
    def blocks(self) -> tuple[int, int]:
        """Numbers of row blocks and column blocks."""
        return self.layout.row_blocks, self.layout.column_blocks

    @property
    def symmetric(self) -> bool:
        """Whether the shards below the diagonal are empty because their mirrors are stored."""
        return self.layout.symmetric

    @property
    def offsets(self) -> Ints:
        """Index of the first cell of each shard, followed by the number of cells."""
        return np.asarray(self.arrays.offsets[0])

    @property
    def positions(self) -> NDArray[np.uint32]:
        """Local row << 16 | local column."""
        return self.arrays.positions

    def counts_of(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the counts of the cells `first` to `last - 1`."""
        arrays = self.arrays
        counts = self.to_counts(arrays.counts[first:last]).astype(np.float32)
        begin, end = np.searchsorted(arrays.large_cells, (first, last))
        if begin < end:
            counts[arrays.large_cells[begin:end] - first] = self.to_counts(arrays.large_counts[begin:end])
        return counts

    def to_counts(self, units: NDArray[Any]) -> NDArray[np.float64]:
        """Return the counts of cells that have these units, float64."""
        counts: NDArray[np.float64] = np.divide(units, self.unit, dtype=np.float64)
        if self.is_log:
            np.log1p(counts, out=counts)
        return counts

    def walk(self, max_cells: int) -> Iterator[UnitCells]:
        """Yield rows, columns and units of all cells, also of mirrors that are not stored, in pieces of `max_cells`."""
        for first in range(0, len(self.positions), max_cells):
            last = min(first + max_cells, len(self.positions))
            first_shard, last_shard = np.searchsorted(self.offsets, (first, last - 1), side="right") - 1
            edges = np.clip(self.offsets[first_shard : last_shard + 2], first, last)
            shards = np.repeat(np.arange(first_shard, last_shard + 1), np.diff(edges))
            rows, columns = self.layout.find_cells(shards, self.positions[first:last])
            units = self.arrays.units(first, last)
            yield rows, columns, units

            if self.symmetric:
                once = self.layout.is_off_diagonal(rows, columns)
                yield columns[once], rows[once], units[once]


class Matrix:
    """Counts of m row features with n column features. Reading is thread-safe.

    Attributes
    ----------
    path
        Folder of the matrix.
    unit
        Counts are stored as integers in units of 1 / unit.
    layout
        Blocks of the matrix.
    column_parts
        Names of the columns of a word, such as ("left", "right"); () if columns are not derived from the rows.
    """

    def __init__(self, folder: Folder, layout: Layout, arrays: CellArrays) -> None:
        facts = folder.manifest.facts
        self.path: Path = folder.path
        self.layout = layout
        self.unit: int = facts["unit"]
        self.column_parts: tuple[str, ...] = tuple(facts["column_parts"])
        self.facts = facts
        self._folder = folder
        self._mapped = arrays
        self._verifying: threading.Thread | None = None

    @cached_property
    def _arrays(self) -> CellArrays:
        """The cells; their checksums are verified at the first access."""
        self._wait_for_checksums()
        self._folder.check(*LARGE)
        return self._mapped

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.layout.rows, self.layout.columns

    @property
    def row_blocks(self) -> int:
        """Number of row blocks; row r is in block r % row_blocks, at local position r // row_blocks."""
        return self.layout.row_blocks

    @property
    def column_blocks(self) -> int:
        """Number of column blocks; column c is in block c % column_blocks."""
        return self.layout.column_blocks

    @property
    def is_symmetric(self) -> bool:
        """Whether x_ij = x_ji; then only half of the shards are stored."""
        return self.layout.symmetric

    @cached_property
    def cell_count(self) -> int:
        """Number of observed cells; in a symmetric matrix x_ij and x_ji are two cells."""
        stored = len(self._mapped.counts)
        if not self.is_symmetric:
            return stored
        diagonal = np.arange(self.row_blocks) * (self.column_blocks + 1)
        offsets = self._mapped.offsets[0]
        return 2 * stored - int((offsets[diagonal + 1] - offsets[diagonal]).sum())

    @cached_property
    def total(self) -> float:
        """Sum of all counts of the matrix."""
        return float(self.facts["total_units"] / self.unit)

    @cached_property
    def row_sums_units(self) -> Ints:
        """Exact row sums, int64, in units."""
        return _read_numbers(self._folder, "row_sums.npy", np.int64)

    @cached_property
    def column_sums_units(self) -> Ints:
        """Exact column sums, int64, in units."""
        return _read_numbers(self._folder, "column_sums.npy", np.int64)

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        """Row sums x_i*, float64."""
        return self.row_sums_units / self.unit

    @cached_property
    def column_sums(self) -> NDArray[np.float64]:
        """Column sums x_*j, float64."""
        return self.column_sums_units / self.unit

    @cached_property
    def rows(self) -> Vocabulary:
        """Vocabulary of the rows."""
        return _read_vocabulary(self._folder, "rows.txt")

    @cached_property
    def columns(self) -> Vocabulary:
        """Vocabulary of the columns; the same object as `rows` if they share it."""
        if "columns.txt" not in self._folder.manifest.parts:
            return self.rows
        return _read_vocabulary(self._folder, "columns.txt")

    def keep_labels(self, rows: Vocabulary, columns: Vocabulary | None) -> None:
        """Use these vocabularies, which were just written, instead of reading them; columns: None for those of rows."""
        self.rows = rows
        self.columns = rows if columns is None else columns

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the content: equal for equal matrices, independent of their source and folder."""
        return self._folder.manifest.fingerprint

    @property
    def config(self) -> Any:
        """Configuration from the manifest: the settings of each stage that produced the matrix."""
        return self._folder.manifest.config

    @property
    def columns_per_row(self) -> int:
        """Number of columns per row feature: 1 if columns are the rows, 0 if they are unrelated."""
        if self.column_parts:
            return len(self.column_parts)
        return int("columns.txt" not in self._folder.manifest.parts)

    def verify(self) -> None:
        """Raise DamagedFolder for the first file whose checksum differs from the manifest."""
        self._wait_for_checksums()
        self._folder.verify()

    def verify_ahead(self) -> None:
        """Start to verify the cells in the background; the first access to them waits for it and raises its errors."""
        self._verifying = threading.Thread(target=self._verify_quietly, daemon=True)
        self._verifying.start()

    def _verify_quietly(self) -> None:
        with contextlib.suppress(Exception):  # The next check raises it.
            self._folder.check(*LARGE)

    def _wait_for_checksums(self) -> None:
        verifying = self._verifying
        if verifying is not None:
            verifying.join()
            self._verifying = None

    def trust(self) -> None:
        """Skip the checksums of this folder, because this process wrote it or another process has verified it."""
        self._folder.trust()

    def block_rows(self, block: int) -> int:
        """Return the number of rows in a row block."""
        return block_length(self.layout.rows, self.row_blocks, block)

    def block_columns(self, block: int) -> int:
        """Return the number of columns in a column block."""
        return block_length(self.layout.columns, self.column_blocks, block)

    def _range(self, row_block: int, column_block: int) -> tuple[int, int, bool]:
        mirrored = self.is_symmetric and row_block > column_block
        stored = (column_block, row_block) if mirrored else (row_block, column_block)
        shard = self.layout.shard(*stored)
        first, last = self._arrays.offsets[0, shard : shard + 2].tolist()
        return first, last, mirrored

    def cells(self, row_block: int, column_block: int) -> BlockCells:
        """Return the observed cells of a block, counts as float32."""
        first, last, mirrored = self._range(row_block, column_block)
        return BlockCells(self._arrays.positions[first:last], self.stored.counts_of(first, last), mirrored)

    @property
    def stored(self) -> MatrixCells:
        """All stored cells; see `MatrixCells`."""
        return MatrixCells(self.layout, self._arrays, self.unit)

    def units(self, row_block: int, column_block: int) -> tuple[NDArray[np.uint32], Ints]:
        """Return positions and exact units of a block, possibly mirrored (see `BlockCells.mirrored`)."""
        first, last, _ = self._range(row_block, column_block)
        return self._arrays.positions[first:last], self._arrays.units(first, last)

    def count(self, row: str, column: str) -> float:
        """Return the count of a row feature with a column feature."""
        local_row, row_block = divmod(self.rows.id(row), self.row_blocks)
        local_column, column_block = divmod(self.columns.id(column), self.column_blocks)
        first, last, mirrored = self._range(row_block, column_block)
        if mirrored:
            local_row, local_column = local_column, local_row

        position = local_row << 16 | local_column
        cell = first + int(np.searchsorted(self._arrays.positions[first:last], np.uint32(position)))
        if cell == last or self._arrays.positions[cell] != position:
            return 0.0

        return float(self._arrays.units(cell, cell + 1)[0] / self.unit)

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the whole matrix in memory, float64, with x_ij and x_ji of a symmetric matrix."""
        import scipy.sparse

        pieces = zip(*self.stored.walk(len(self._arrays.counts)), strict=True)
        rows, columns, units = (np.concatenate(arrays) for arrays in pieces)
        return scipy.sparse.csr_matrix((units / self.unit, (rows, columns)), shape=self.shape)

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int = 1) -> Matrix:
        """Return the same matrix in other blocks, with its cells in files in `scratch`, which must outlive it.

        A symmetric matrix stays symmetric if the two numbers are equal; otherwise all its cells are written.
        """
        if (row_blocks, column_blocks) == (self.row_blocks, self.column_blocks):
            return self

        from swivel.counts.reblock import reblock

        symmetric = self.is_symmetric and row_blocks == column_blocks
        layout = Layout(*self.shape, row_blocks, column_blocks, symmetric)

        return Matrix(self._folder, layout, reblock(self._arrays, self.layout, layout, scratch, threads=threads))

    def __repr__(self) -> str:
        return f"<Matrix of {self.shape[0]:,} x {self.shape[1]:,}, {self.cell_count:,} cells: {self.path}>"

    def _repr_html_(self) -> str:
        return draw_html(repr(self)[1:-1], ("row", "sum"), zip(self.rows, self.row_sums.round(2).tolist(), strict=True))


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

    return Matrix(folder, layout, arrays)


def as_matrix(matrix: Any) -> Matrix:
    """Return a matrix, or the matrix in a folder; raise ConfigError for anything else."""
    if isinstance(matrix, (str, Path)):
        return open_matrix(matrix)
    if not isinstance(matrix, Matrix):
        raise ConfigError(
            f"expected a matrix or the folder of one, got {type(matrix).__name__}: pass swivel.count(texts) or "
            "swivel.import_counts(table)"
        )
    return matrix


def _read_layout(facts: Mapping[str, Any]) -> Layout:
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
