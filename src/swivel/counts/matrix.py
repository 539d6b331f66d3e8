"""A finished matrix of counts: cells in blocks, marginal sums and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints, Layout, UnitCells, block_length
from swivel.counts.shards import CellArrays
from swivel.errors import ConfigError
from swivel.runtime.notebook import draw_html
from swivel.runtime.resources import check_memory

if TYPE_CHECKING:
    import scipy.sparse

    from swivel.counts.matrix_folder import MatrixFolder

_CELLS_PER_PIECE = 1 << 20  # cells that are read at a time
_SCIPY_BYTES = 72  # memory per cell while a SciPy matrix is made: rows, columns and counts twice, and the matrix


@dataclass(frozen=True, slots=True)
class BlockCells:
    """The observed cells of one block."""

    positions: NDArray[np.uint32]  # local row << 16 | local column, ascending
    counts: NDArray[np.float32]  # greater than 0
    mirrored: bool  # whether these are the cells of the stored mirror block: swap rows and columns to read them


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixContents:
    """Everything that a matrix consists of, in memory; `MatrixFolder` is the same in the files of a folder."""

    layout: Layout
    arrays: CellArrays
    rows: Vocabulary
    columns: Vocabulary | None  # None: the vocabulary of the rows
    row_sums: Ints  # in units
    column_sums: Ints
    unit: int = 1
    column_parts: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    path: ClassVar[Path | None] = None

    @property
    def unverified(self) -> CellArrays:
        """The cells."""
        return self.arrays

    @property
    def total_units(self) -> int:
        """Sum of all counts, in units."""
        return int(self.row_sums.sum())

    @property
    def has_columns(self) -> bool:
        """Whether columns have a vocabulary of their own."""
        return self.columns is not None

    @property
    def fingerprint(self) -> str:
        """Digest of the files that `MatrixFolder` would have."""
        from swivel.counts.matrix_folder import fingerprint_contents

        return fingerprint_contents(self)

    def verify(self) -> None:
        """Do nothing, because there are no files that could be damaged."""

    verify_ahead = trust = verify


class Matrix:
    """Counts of m row features with n column features: a value that can be pickled, and read by several threads.

    `counts.open_matrix` opens a stored one, whose cells are memory-mapped; `save` stores it.

    Attributes
    ----------
    layout
        Blocks of the matrix.
    unit
        Counts are stored as integers in units of 1 / unit.
    column_parts
        Names of the columns of a word, such as ("left", "right"); () if columns are not derived from the rows.
    config
        The settings of each stage that produced the matrix.
    path
        The folder that the matrix was opened from; None in memory.
    is_log
        Whether counts and sums are read as those of log(1 + x); `units` and the fingerprint are those of x.
    """

    def __init__(
        self,
        contents: MatrixContents | MatrixFolder,
        *,
        layout: Layout | None = None,
        arrays: CellArrays | None = None,
        is_log: bool = False,
    ) -> None:
        self._contents = contents
        self._moved_arrays = arrays  # in other blocks than those of the contents
        self.layout = layout or contents.layout
        self.unit = contents.unit
        self.column_parts = contents.column_parts
        self.config = contents.config
        self.path = contents.path
        self.is_log = is_log

    def __reduce__(self) -> tuple[Callable[..., Matrix], tuple[Any, ...]]:
        """Pickle all arrays, because a folder may be gone when they are needed."""
        contents = self._contents
        in_memory = MatrixContents(
            layout=self.layout,
            arrays=CellArrays(*map(np.array, self._arrays)),
            rows=contents.rows,
            columns=contents.columns,
            row_sums=np.array(contents.row_sums),
            column_sums=np.array(contents.column_sums),
            unit=self.unit,
            column_parts=self.column_parts,
            config=self.config,
        )
        # What is computed from the cells must stay the same, although those of a copy may be in other blocks.
        computed = {name: value for name, value in vars(self).items() if name == "_log_sums"}
        if self._moved_arrays is not None:
            computed["fingerprint"] = self.fingerprint
        return _restore, (in_memory, self.is_log, computed)

    def to_memory(self) -> Matrix:
        """Return the matrix with all arrays in memory, independent of any folder."""
        if self.path is None:
            return self
        restore, values = self.__reduce__()
        return restore(*values)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Store the counts in a folder, which `counts.open_matrix` opens."""
        from swivel.counts.matrix_folder import save_matrix

        save_matrix(self._contents, Path(folder), overwrite=overwrite)

    @property
    def _arrays(self) -> CellArrays:
        """The cells; those of a folder are verified at the first access."""
        return self._contents.arrays if self._moved_arrays is None else self._moved_arrays

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
        offsets = (self._moved_arrays or self._contents.unverified).offsets[0]
        stored = int(offsets[-1])
        if not self.is_symmetric:
            return stored
        diagonal = np.arange(self.row_blocks) * (self.column_blocks + 1)
        return 2 * stored - int((offsets[diagonal + 1] - offsets[diagonal]).sum())

    @property
    def stored_cell_count(self) -> int:
        """Number of cells that are stored: those of a symmetric matrix once."""
        return len((self._moved_arrays or self._contents.unverified).counts)

    @cached_property
    def total(self) -> float:
        """Sum of all counts of the matrix."""
        return float(self.row_sums.sum()) if self.is_log else self.total_units / self.unit

    @property
    def total_units(self) -> int:
        """Exact sum of all counts, in units."""
        return self._contents.total_units

    @property
    def row_sums_units(self) -> Ints:
        """Exact row sums, int64, in units."""
        return self._contents.row_sums

    @property
    def column_sums_units(self) -> Ints:
        """Exact column sums, int64, in units."""
        return self._contents.column_sums

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        """Row sums x_i*, float64."""
        return self._log_sums[0] if self.is_log else self.row_sums_units / self.unit

    @cached_property
    def column_sums(self) -> NDArray[np.float64]:
        """Column sums x_*j, float64."""
        return self._log_sums[1] if self.is_log else self.column_sums_units / self.unit

    @cached_property
    def _log_sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums of log(1 + x) of the rows and of the columns, for which all cells are read."""
        stored = self.stored
        row_sums, column_sums = (np.zeros(size) for size in self.shape)
        for rows, columns, units in stored.walk(_CELLS_PER_PIECE):
            counts = stored.to_counts(units)
            row_sums += np.bincount(rows, counts, len(row_sums))
            column_sums += np.bincount(columns, counts, len(column_sums))
        return row_sums, column_sums

    @property
    def rows(self) -> Vocabulary:
        """Vocabulary of the rows."""
        return self._contents.rows

    @property
    def columns(self) -> Vocabulary:
        """Vocabulary of the columns; the same object as `rows` if they share it."""
        return self._contents.columns or self._contents.rows

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the content: equal for equal matrices, independent of their source and folder."""
        return self._contents.fingerprint

    @property
    def columns_per_row(self) -> int:
        """Number of columns per row feature: 1 if columns are the rows, 0 if they are unrelated."""
        if self.column_parts:
            return len(self.column_parts)
        return int(not self._contents.has_columns)

    def transformed(self, transform: str) -> Matrix:
        """Return the matrix as training reads it with the setting `transform`: log(1 + x) in place of x for "log"."""
        return self._as_logs if transform == "log" else self

    @cached_property
    def _as_logs(self) -> Matrix:
        # Kept, because its sums are computed from all cells.
        return Matrix(self._contents, layout=self.layout, arrays=self._moved_arrays, is_log=True)

    def verify(self) -> None:
        """Raise DamagedFolder for the first file whose checksum differs from the manifest."""
        self._contents.verify()

    def verify_ahead(self) -> None:
        """Start to verify the cells in the background; the first access to them waits for it and raises its errors."""
        self._contents.verify_ahead()

    def trust(self) -> None:
        """Skip the checksums of the files, because this process wrote them or another process has verified them."""
        self._contents.trust()

    def block_rows(self, block: int) -> int:
        """Return the number of rows in a row block."""
        return block_length(self.layout.rows, self.row_blocks, block)

    def block_columns(self, block: int) -> int:
        """Return the number of columns in a column block."""
        return block_length(self.layout.columns, self.column_blocks, block)

    def _range(self, row_block: int, column_block: int) -> tuple[int, int, bool]:
        mirrored = self.is_symmetric and row_block > column_block
        block = (column_block, row_block) if mirrored else (row_block, column_block)
        shard = self.layout.shard(*block)
        first, last = self._arrays.offsets[0, shard : shard + 2].tolist()
        return first, last, mirrored

    def cells(self, row_block: int, column_block: int) -> BlockCells:
        """Return the observed cells of a block, counts as float32."""
        first, last, mirrored = self._range(row_block, column_block)
        return BlockCells(self._arrays.positions[first:last], self.stored.counts_of(first, last), mirrored)

    @property
    def stored(self) -> MatrixCells:
        """All stored cells; see `MatrixCells`."""
        return MatrixCells(self.layout, self._arrays, self.unit, self.is_log)

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

        return float(self.stored.to_counts(self._arrays.units(cell, cell + 1))[0])

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the whole matrix in memory, float64, with x_ij and x_ji of a symmetric matrix."""
        check_memory(f"{self.path or 'the matrix'}: a SciPy matrix of it", _SCIPY_BYTES * self.cell_count)
        import scipy.sparse

        stored = self.stored
        pieces = zip(*stored.walk(len(self._arrays.counts)), strict=True)
        rows, columns, units = (np.concatenate(arrays) for arrays in pieces)
        return scipy.sparse.csr_matrix((stored.to_counts(units), (rows, columns)), shape=self.shape)

    def select(self, row_places: Ints, column_places: Ints, shape: tuple[int, int]) -> scipy.sparse.csr_array:
        """Return the counts of some rows with some columns, float64; the places of each in the result, or -1."""
        import scipy.sparse

        stored = self.stored
        pieces = []
        for rows, columns, units in stored.walk(_CELLS_PER_PIECE):
            is_wanted = (row_places[rows] >= 0) & (column_places[columns] >= 0)
            places = row_places[rows[is_wanted]], column_places[columns[is_wanted]]
            pieces.append((*places, stored.to_counts(units[is_wanted])))

        if not pieces:
            return scipy.sparse.csr_array(shape)
        row_ids, column_ids, counts = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        return scipy.sparse.csr_array((counts, (row_ids, column_ids)), shape=shape)

    def reblocked(
        self, row_blocks: int, column_blocks: int, *, scratch: Path | None = None, threads: int = 1
    ) -> Matrix:
        """Return the same matrix in other blocks, with its cells in memory, or in files in `scratch`."""
        if (row_blocks, column_blocks) == (self.row_blocks, self.column_blocks):
            return self

        from swivel.counts.reblock import reblock

        # Half of a symmetric matrix is stored only if its blocks are symmetric, too.
        symmetric = self.is_symmetric and row_blocks == column_blocks
        layout = Layout(*self.shape, row_blocks, column_blocks, symmetric)
        arrays = reblock(self._arrays, self.layout, layout, scratch, threads=threads)

        blocked = Matrix(self._contents, layout=layout, arrays=arrays, is_log=self.is_log)
        if self.is_log:
            blocked._log_sums = self._log_sums
        return blocked

    def __repr__(self) -> str:
        place = "" if self.path is None else f": {self.path}"
        return f"<Matrix of {self.shape[0]:,} x {self.shape[1]:,}, {self.cell_count:,} cells{place}>"

    def _repr_html_(self) -> str:
        return draw_html(repr(self)[1:-1], ("row", "sum"), zip(self.rows, self.row_sums.round(2).tolist(), strict=True))


def as_matrix(matrix: Any) -> Matrix:
    """Return a matrix, or the matrix in a folder; raise ConfigError for anything else."""
    if isinstance(matrix, (str, Path)):
        from swivel.counts.matrix_folder import open_matrix

        return open_matrix(matrix)
    if not isinstance(matrix, Matrix):
        raise ConfigError(
            f"expected a matrix or the folder of one, got {type(matrix).__name__}: pass swivel.count(texts) or "
            "swivel.import_counts(table)"
        )
    return matrix


def _restore(contents: MatrixContents, is_log: bool, computed: dict[str, Any]) -> Matrix:
    """Return a matrix that was pickled or copied."""
    matrix = Matrix(contents, is_log=is_log)
    vars(matrix).update(computed)
    return matrix
