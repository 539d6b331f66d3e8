"""A finished matrix of counts: cells in blocks, marginal sums and labels, in memory or in a folder.

Files of the folder (stage "matrix"):

- `rows.txt` and `columns.txt`: token TAB count; without `columns.txt` the columns have the row vocabulary.
- `row_sums.npy` and `column_sums.npy`: int64 units.
- `offsets.npy`: int64, row_blocks x column_blocks + 1, the start of each shard in `positions` and `counts`; the shards
  of a symmetric matrix below the diagonal are empty.
- `positions.npy`: uint32, local row << 16 | local column, ascending in a shard.
- `counts.npy`: uint32 units, at most 2^32 - 1.
- `large_cells.npy` and `large_counts.npy`: int64, indexes of the cells that hold 2^32 - 1, and their exact units.
- If the import gave own sums, `row_sums.npy` and `column_sums.npy` have them, and the fact `total_units` the own total.
  The fact `absent_units` is the largest count of an absent cell, if that is more than 0.
- `edge_starts.npy`, `edge_ends.npy` and `edge_weights.npy`, of counts of walks only: the graph, as a csr matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints, Layout
from swivel.counts.matrix_cells import BlockCells, MatrixCells
from swivel.counts.shards import FILES, CellArrays, name_arrays, reblock
from swivel.errors import ConfigError, DamagedFolder, StorageError, VocabularyError
from swivel.runtime.display import draw_html
from swivel.runtime.resources import check_memory
from swivel.storage.arrays import npy_bytes
from swivel.storage.files import FolderWriter, create_folder
from swivel.storage.manifest import MANIFEST, REMEDY, Folder, digest_bytes, fingerprint, open_folder
from swivel.storage.output_folder import refuse_run

if TYPE_CHECKING:
    import scipy.sparse

_CELLS_PER_PIECE = 1 << 20  # cells that are read at a time
_COMPUTED = ("total", "row_sums", "column_sums", "_as_logs")  # attributes of a matrix that depend on `is_log`
_PICKLED = (
    *("layout", "rows", "columns", "has_own_columns", "row_sums_units", "column_sums_units", "has_own_sums"),
    *("total_units", "absent_units", "unit", "column_parts", "config", "edges", "is_log"),
)
_SCIPY_BYTES = 72  # memory per cell while a SciPy matrix is made: rows, columns and counts twice, and the matrix
STAGE = "matrix"
EDGES: dict[str, type[np.generic]] = {
    "edge_starts.npy": np.int64,
    "edge_ends.npy": np.int64,
    "edge_weights.npy": np.float64,
}
LARGE = ("positions.npy", "counts.npy")  # memory-mapped, and not read when the matrix is opened


class Matrix(MatrixCells):
    """Counts of m row features with n column features: a value that can be pickled, and read by several threads.

    `counts.open_matrix` opens a stored one, whose cells are memory-mapped; `save` stores it.

    Attributes
    ----------
    layout
        Blocks of the matrix.
    rows, columns
        Vocabularies of the rows and of the columns; the same object if they share it.
    unit
        Counts are stored as integers in units of 1 / unit.
    row_sums_units, column_sums_units, total_units
        Exact sums in units: of the rows and of the columns, int64, and of all counts; or those that were imported.
    has_own_sums
        Whether the sums were imported, because cells are missing, instead of added up from the cells.
    absent_units
        Largest count, in units, that a cell which is not stored may have: more than 0 if small counts are suppressed.
    column_parts
        Names of the columns of a word, such as ("left", "right"); () if columns are not derived from the rows.
    config
        The settings of each stage that produced the matrix.
    edges
        Of counts of walks: the edges of the graph, a csr array in the order of the rows; otherwise None.
    path
        The folder that the matrix was opened from; None in memory.
    is_log
        Whether counts and sums are read as those of log(1 + x); `units` and the fingerprint are those of x.
    """

    path: Path | None = None
    has_own_sums = False
    absent_units = 0
    _original: Matrix | None = None  # the matrix that was reblocked

    def __init__(
        self,
        layout: Layout,
        arrays: CellArrays,
        *,
        rows: Vocabulary,
        columns: Vocabulary | None,  # None: the vocabulary of the rows
        row_sums: Ints,
        column_sums: Ints,
        unit: int = 1,
        column_parts: tuple[str, ...] = (),
        config: Mapping[str, Any],
        edges: Any = None,
        total: int | None = None,  # of own sums
        absent_units: int = 0,
    ) -> None:
        super().__init__(layout, arrays, unit)
        self.unverified = arrays  # the cells, without the test of the checksums of their files
        self.rows = rows
        self.columns = rows if columns is None else columns
        self.has_own_columns = columns is not None
        self.row_sums_units = row_sums
        self.column_sums_units = column_sums
        self.has_own_sums = total is not None
        self.total_units = int(row_sums.sum()) if total is None else total
        self.absent_units = absent_units
        self.column_parts = column_parts
        self.config = config
        self.edges = edges

    def __reduce__(self) -> tuple[Callable[..., Matrix], tuple[Any, ...]]:
        """Pickle all arrays, because a folder may be gone when they are needed."""
        state = {name: getattr(self, name) for name in _PICKLED}
        state["arrays"] = state["unverified"] = CellArrays(*map(np.array, self.arrays))
        for name in ("row_sums_units", "column_sums_units"):
            state[name] = np.array(state[name])
        # What is computed from the cells must stay the same, although those of a copy may be in other blocks.
        if "_log_sums" in vars(self):
            state["_log_sums"] = self._log_sums
        if self._original is not None:
            state["fingerprint"] = self.fingerprint
        return _restore, (state,)

    def _copy(self, **changes: Any) -> Matrix:
        """Return a copy with other attributes; everything else is shared, except what follows from `is_log`."""
        copy = object.__new__(type(self))
        attributes = {name: value for name, value in vars(self).items() if name not in _COMPUTED}
        vars(copy).update(attributes, **changes)
        return copy

    def to_memory(self) -> Matrix:
        """Return the matrix with all arrays in memory, independent of any folder."""
        if self.path is None:
            return self
        restore, values = self.__reduce__()
        return restore(*values)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Store the counts in a folder, which `counts.open_matrix` opens."""
        matrix = self._original or self
        refuse_run(Path(folder))
        for name in ("arrays", *_PICKLED):  # Read all before an old result is replaced, which may be this matrix.
            getattr(matrix, name)
        with create_folder(folder, STAGE, overwrite=overwrite) as writer:
            writer.write_lines("rows.txt", matrix.rows.to_lines())
            for name, array in name_arrays(matrix.arrays).items():
                writer.write_array(name, array)
            finish_folder(writer, matrix)

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
        offsets = self.unverified.offsets[0]
        stored = int(offsets[-1])
        if not self.is_symmetric:
            return stored
        diagonal = np.arange(self.row_blocks) * (self.column_blocks + 1)
        return 2 * stored - int((offsets[diagonal + 1] - offsets[diagonal]).sum())

    @property
    def stored_cell_count(self) -> int:
        """Number of cells that are stored: those of a symmetric matrix once."""
        return len(self.unverified.counts)

    @property
    def absent_bound(self) -> float:
        """Largest count that a cell which is not stored may have: 0 unless small counts are suppressed."""
        bound = self.absent_units / self.unit
        return math.log1p(bound) if self.is_log else bound

    @property
    def suppressed_below(self) -> float | None:
        """The limit below which counts may be missing from the matrix; None if all are there."""
        return (self.absent_units + 1) / self.unit if self.absent_units else None

    @cached_property
    def total(self) -> float:
        """Sum of all counts of the matrix."""
        return float(self.row_sums.sum()) if self.is_log else self.total_units / self.unit

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
        row_sums, column_sums = (np.zeros(size) for size in self.shape)
        for rows, columns, units in self.walk(_CELLS_PER_PIECE):
            counts = self.to_counts(units)
            row_sums += np.bincount(rows, counts, len(row_sums))
            column_sums += np.bincount(columns, counts, len(column_sums))
        return row_sums, column_sums

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the content: equal for equal matrices, independent of their source, folder and blocks."""
        return _fingerprint_contents(self) if self._original is None else self._original.fingerprint

    @property
    def columns_per_row(self) -> int:
        """Number of columns per row feature: 1 if columns are the rows, 0 if they are unrelated."""
        if self.column_parts:
            return len(self.column_parts)
        return int(not self.has_own_columns)

    def transformed(self, transform: str) -> Matrix:
        """Return the matrix as training reads it with the setting `transform`: log(1 + x) in place of x for "log"."""
        return self._as_logs if transform == "log" else self

    @cached_property
    def _as_logs(self) -> Matrix:
        # Kept, because its sums are computed from all cells.
        return self._copy(is_log=True)

    def verify(self) -> None:
        """Raise DamagedFolder for the first file whose checksum differs from the manifest."""

    def trust(self) -> None:
        """Skip the checksums of the files, because this process wrote them or another process has verified them."""

    def _range(self, row_block: int, column_block: int) -> tuple[int, int, bool]:
        mirrored = self.is_symmetric and row_block > column_block
        block = (column_block, row_block) if mirrored else (row_block, column_block)
        shard = self.layout.shard(*block)
        first, last = self.arrays.offsets[0, shard : shard + 2].tolist()
        return first, last, mirrored

    def cells(self, row_block: int, column_block: int) -> BlockCells:
        """Return the observed cells of a block, counts as float32."""
        first, last, mirrored = self._range(row_block, column_block)
        return BlockCells(self.arrays.positions[first:last], self.counts_of(first, last), mirrored)

    def units(self, row_block: int, column_block: int) -> tuple[NDArray[np.uint32], Ints]:
        """Return positions and exact units of a block, possibly mirrored (see `BlockCells.mirrored`)."""
        first, last, _ = self._range(row_block, column_block)
        return self.arrays.positions[first:last], self.arrays.units(first, last)

    def count(self, row: str, column: str) -> float:
        """Return the count of a row feature with a column feature."""
        local_row, row_block = divmod(self.rows.id(row), self.row_blocks)
        local_column, column_block = divmod(self.columns.id(column), self.column_blocks)
        first, last, mirrored = self._range(row_block, column_block)
        if mirrored:
            local_row, local_column = local_column, local_row

        position = local_row << 16 | local_column
        cell = first + int(np.searchsorted(self.arrays.positions[first:last], np.uint32(position)))
        if cell == last or self.arrays.positions[cell] != position:
            return 0.0

        return float(self.to_counts(self.arrays.units(cell, cell + 1))[0])

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the whole matrix in memory, float64, with x_ij and x_ji of a symmetric matrix."""
        check_memory(f"{self.path or 'the matrix'}: a SciPy matrix of it", _SCIPY_BYTES * self.cell_count)
        import scipy.sparse

        rows, columns = (np.arange(size) for size in self.shape)
        return scipy.sparse.csr_matrix(self.select(rows, columns))

    def select(self, row_ids: Ints, column_ids: Ints) -> scipy.sparse.csr_array:
        """Return the counts of some rows with some columns, float64, in the order of these ids."""
        import scipy.sparse

        shape = len(row_ids), len(column_ids)
        row_places, column_places = (np.full(size, -1, np.int64) for size in self.shape)
        row_places[row_ids] = np.arange(shape[0])
        column_places[column_ids] = np.arange(shape[1])

        pieces = []
        for rows, columns, units in self.walk(_CELLS_PER_PIECE):
            is_wanted = (row_places[rows] >= 0) & (column_places[columns] >= 0)
            places = row_places[rows[is_wanted]], column_places[columns[is_wanted]]
            pieces.append((*places, self.to_counts(units[is_wanted])))

        if not pieces:
            return scipy.sparse.csr_array(shape)
        rows, columns, counts = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        return scipy.sparse.csr_array((counts, (rows, columns)), shape=shape)

    def reblocked(
        self, row_blocks: int, column_blocks: int, *, scratch: Path | None = None, threads: int = 1
    ) -> Matrix:
        """Return the same matrix in other blocks, with its cells in memory, or in files in `scratch`."""
        if (row_blocks, column_blocks) == (self.row_blocks, self.column_blocks):
            return self

        # Half of a symmetric matrix is stored only if its blocks are symmetric, too.
        symmetric = self.is_symmetric and row_blocks == column_blocks
        layout = Layout(*self.shape, row_blocks, column_blocks, symmetric)
        arrays = reblock(self.arrays, self.layout, layout, scratch, threads=threads)
        sums = {"_log_sums": self._log_sums} if self.is_log else {}
        return self._copy(layout=layout, arrays=arrays, unverified=arrays, _original=self._original or self, **sums)

    def __repr__(self) -> str:
        place = "" if self.path is None else f": {self.path}"
        return f"<Matrix of {self.shape[0]:,} x {self.shape[1]:,}, {self.cell_count:,} cells{place}>"

    def _repr_html_(self) -> str:
        return draw_html(repr(self)[1:-1], ("row", "sum"), zip(self.rows, self.row_sums.round(2).tolist(), strict=True))


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


def _restore(state: dict[str, Any]) -> Matrix:
    """Return a matrix that was pickled or copied."""
    matrix = object.__new__(Matrix)
    vars(matrix).update(state)
    return matrix


class MatrixFolder(Matrix):
    """A matrix in a folder: every file is read, and its checksum verified, at the first access."""

    def __init__(self, folder: Folder, layout: Layout, arrays: CellArrays) -> None:
        facts = folder.manifest.facts
        self.layout = layout
        self.unverified = arrays
        self.has_own_columns = "columns.txt" in folder.manifest.parts
        self.total_units = facts["total_units"]
        self.has_own_sums = facts.get("own_sums", False)
        self.absent_units = facts.get("absent_units", 0)
        self.unit = facts["unit"]
        self.column_parts = tuple(facts["column_parts"])
        self.config = folder.manifest.config
        self.path = folder.path
        self.fingerprint = _add_knowledge(self, folder.manifest.fingerprint)
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

    @cached_property
    def edges(self) -> Any:
        """The edges of the graph, if this is a matrix of counts of walks."""
        if next(iter(EDGES)) not in self._folder.manifest.parts:
            return None
        import scipy.sparse

        starts, ends, weights = (_read_numbers(self._folder, name, kind) for name, kind in EDGES.items())
        try:
            return scipy.sparse.csr_array((weights, ends, starts), shape=self.shape)
        except ValueError as error:
            raise DamagedFolder(f"{self.path}: the edges do not fit together ({error}); {REMEDY}") from error

    def verify(self) -> None:
        """Raise DamagedFolder for the first file whose checksum differs from the manifest."""
        self._folder.verify()

    def trust(self) -> None:
        """Skip the checksums of this folder, because this process wrote it or another process has verified it."""
        self._folder.trust()


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
    for name, array in _name_edges(matrix).items():
        writer.write_array(name, array)

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
    if matrix.has_own_sums:
        all_facts["own_sums"] = True
    if matrix.suppressed_below is not None:
        all_facts |= {"suppressed_below": matrix.suppressed_below, "absent_units": matrix.absent_units}
    writer.finish(config=dict(matrix.config), inputs=inputs or {}, facts=all_facts)


def _name_edges(matrix: Matrix) -> dict[str, NDArray[Any]]:
    """Return the arrays of the edges by the names of their files."""
    if matrix.edges is None:
        return {}
    values = matrix.edges.indptr, matrix.edges.indices, matrix.edges.data
    return {name: array.astype(kind) for (name, kind), array in zip(EDGES.items(), values, strict=True)}


def _fingerprint_contents(matrix: Matrix) -> str:
    """Return the fingerprint that a folder of this matrix would have."""
    arrays = name_arrays(matrix.arrays)
    arrays |= {"row_sums.npy": matrix.row_sums_units, "column_sums.npy": matrix.column_sums_units}
    arrays |= _name_edges(matrix)
    parts = {name: digest_bytes(*npy_bytes(array)) for name, array in arrays.items()}

    vocabularies = {"rows.txt": matrix.rows}
    if matrix.has_own_columns:
        vocabularies["columns.txt"] = matrix.columns
    for name, vocabulary in vocabularies.items():
        parts[name] = digest_bytes("".join(f"{line}\n" for line in vocabulary.to_lines()).encode())
    return _add_knowledge(matrix, fingerprint(parts))


def _add_knowledge(matrix: Matrix, digest: str) -> str:
    """Return the digest of the contents, changed by what is known about the cells that are not there."""
    if not matrix.has_own_sums and not matrix.absent_units:
        return digest
    return fingerprint([digest, matrix.total_units, matrix.absent_units])


def open_matrix(path: str | Path) -> Matrix:
    """Return the matrix in a folder, which may be that of a run; its cells are not read yet.

    >>> open_matrix("nowhere")
    Traceback (most recent call last):
    swivel.errors.StorageError: nowhere: no such folder
    """
    if Path(path).is_file():
        raise StorageError(
            f"{path}: a file, not a matrix; for text use swivel run, for a table of counts swivel import"
        )
    inside = Path(path) / STAGE
    folder = open_folder(inside if (inside / MANIFEST).exists() else path, STAGE)
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
    absent_units = facts.get("absent_units", 0)
    if type(absent_units) is not int or absent_units < 0 or type(facts.get("own_sums", False)) is not bool:
        raise ValueError("absent_units must be 0 or more and own_sums a boolean")
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
