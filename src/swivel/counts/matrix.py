"""A finished matrix of counts: opens in milliseconds, hands out one block at a time.

Receives a folder that `MatrixBuilder` wrote; hands on blocks of observed cells, sums and vocabularies. Everything is
mapped, nothing is read before it is asked for. It does not change anything.

The folder (stage "matrix"): `rows.txt` and `columns.txt` (token TAB count; no `columns.txt`: the rows' vocabulary);
`row_sums.npy`, `column_sums.npy` (int64 units); `offsets.npy` (int64, row_blocks x column_blocks + 1: where each shard
begins in the next two, row block by row block; in a symmetric matrix the shards below the diagonal are empty);
`positions.npy` (uint32, local row << 16 | local column, ascending inside a shard); `counts.npy` (uint32 units, at most
2^32 - 1); `large_cells.npy`, `large_counts.npy` (int64: indexes of the cells that hold 2^32 - 1, and their true units).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.layout import Layout, block_length
from swivel.counts.shards import CellArrays
from swivel.errors import DamagedFolder, VocabularyError
from swivel.storage import REMEDY, Folder, fingerprint, open_folder

if TYPE_CHECKING:
    import scipy.sparse

_KINDS = {"offsets": "<i8", "positions": "<u4", "counts": "<u4", "large_cells": "<i8", "large_counts": "<i8"}


LARGE = ("positions.npy", "counts.npy")  # not read on opening


@dataclass(frozen=True, slots=True)
class BlockCells:
    """The observed cells of one block.

    Attributes
    ----------
    positions
        local row << 16 | local column, ascending; where `mirrored`, local column << 16 | local row.
    counts
        float32, above 0.
    mirrored
        The block is the mirror of the one that is stored: swap the sides instead of transposing.
    """

    positions: NDArray[np.uint32]
    counts: NDArray[np.float32]
    mirrored: bool


@dataclass(frozen=True, slots=True)
class MatrixCells:
    """All observed cells, shard after shard."""

    layout: Layout
    arrays: CellArrays
    unit: int

    @property
    def blocks(self) -> tuple[int, int]:
        """Row blocks and column blocks."""
        return self.layout.row_blocks, self.layout.column_blocks

    @property
    def symmetric(self) -> bool:
        """Whether shards below the diagonal are left out, being mirrors."""
        return self.layout.symmetric

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each shard begins, and the end."""
        return np.asarray(self.arrays.offsets[0])

    @property
    def positions(self) -> NDArray[np.uint32]:
        """Local row << 16 | local column."""
        return self.arrays.positions

    def counts_of(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the counts of the cells from `first` up to `last`."""
        arrays = self.arrays
        counts = np.divide(arrays.counts[first:last], self.unit, dtype=np.float64).astype(np.float32)
        begin, end = np.searchsorted(arrays.large_cells, (first, last))
        if begin < end:
            counts[arrays.large_cells[begin:end] - first] = arrays.large_counts[begin:end] / self.unit
        return counts


class Matrix:
    """Counts of m row features with n column features. Threads may read it at the same time.

    Attributes
    ----------
    path, unit, layout, column_parts
        Folder; counts are whole numbers of 1 / unit; blocks; names of the columns of a word, () where columns are not
        made of the rows.
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

    @cached_property
    def _arrays(self) -> CellArrays:
        """The cells, whose checksums are compared when the first is asked for."""
        self._folder.check(*LARGE)
        return self._mapped

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.layout.rows, self.layout.columns

    @property
    def row_blocks(self) -> int:
        """Number of row blocks; row r is in block r % row_blocks, at r // row_blocks."""
        return self.layout.row_blocks

    @property
    def column_blocks(self) -> int:
        """Number of column blocks."""
        return self.layout.column_blocks

    @property
    def is_symmetric(self) -> bool:
        """Whether x_ij = x_ji and half of the shards are stored."""
        return self.layout.symmetric

    @cached_property
    def cell_count(self) -> int:
        """Observed cells of the whole matrix, both mirrors."""
        stored = len(self._mapped.counts)
        if not self.is_symmetric:
            return stored
        diagonal = np.arange(self.row_blocks) * (self.column_blocks + 1)
        offsets = self._mapped.offsets[0]
        return 2 * stored - int((offsets[diagonal + 1] - offsets[diagonal]).sum())

    @cached_property
    def total(self) -> float:
        """Sum of all counts."""
        return float(self.facts["total_units"] / self.unit)

    @cached_property
    def row_sums_units(self) -> NDArray[np.int64]:
        """Exact sums of the rows, in units."""
        return _read_numbers(self._folder, "row_sums.npy", "<i8")

    @cached_property
    def column_sums_units(self) -> NDArray[np.int64]:
        """Exact sums of the columns, in units."""
        return _read_numbers(self._folder, "column_sums.npy", "<i8")

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        """Sums of the rows."""
        return self.row_sums_units / self.unit

    @cached_property
    def column_sums(self) -> NDArray[np.float64]:
        """Sums of the columns."""
        return self.column_sums_units / self.unit

    @cached_property
    def rows(self) -> Vocabulary:
        """What the rows are."""
        return _read_vocabulary(self._folder, "rows.txt")

    @cached_property
    def columns(self) -> Vocabulary:
        """What the columns are; the rows' own vocabulary where they are the same."""
        if "columns.txt" not in self._folder.manifest.parts:
            return self.rows
        return _read_vocabulary(self._folder, "columns.txt")

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the content: two matrices that share it are the same, wherever they came from."""
        return fingerprint({name: part.sha256 for name, part in sorted(self._folder.manifest.parts.items())})

    @property
    def config(self) -> Any:
        """The configuration that the matrix was made with."""
        return self._folder.manifest.config

    @property
    def columns_per_row(self) -> int:
        """How many columns each row's feature has: 1 where columns are the rows, 0 where they are something else."""
        if self.column_parts:
            return len(self.column_parts)
        return int("columns.txt" not in self._folder.manifest.parts)

    def verify(self) -> None:
        """Raise DamagedFolder for the first file whose checksum is not the manifest's."""
        self._folder.verify()

    def trust(self) -> None:
        """Take the files as they are: another process has compared their checksums."""
        self._folder.trust()

    def block_rows(self, block: int) -> int:
        """Return the number of rows in a row block."""
        return block_length(self.layout.rows, self.row_blocks, block)

    def block_columns(self, block: int) -> int:
        """Return the number of columns in a column block."""
        return block_length(self.layout.columns, self.column_blocks, block)

    def _range(self, row_block: int, column_block: int) -> tuple[int, int, bool]:
        mirrored = self.is_symmetric and row_block > column_block
        shard = self.layout.shard(*((column_block, row_block) if mirrored else (row_block, column_block)))
        first, last = self._arrays.offsets[0, shard : shard + 2].tolist()
        return first, last, mirrored

    def cells(self, row_block: int, column_block: int) -> BlockCells:
        """Return the observed cells of a block, counts as float32."""
        first, last, mirrored = self._range(row_block, column_block)
        return BlockCells(self._arrays.positions[first:last], self.stored.counts_of(first, last), mirrored)

    @property
    def stored(self) -> MatrixCells:
        """All observed cells as they are stored."""
        return MatrixCells(self.layout, self._arrays, self.unit)

    def units(self, row_block: int, column_block: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return positions and exact units of a block as it is stored (see `Cells.mirrored`)."""
        first, last, _ = self._range(row_block, column_block)
        return self._arrays.positions[first:last], self._arrays.units(first, last)

    def count(self, row: str, column: str) -> float:
        """Return the count of a row feature with a column feature."""
        r, c = self.rows.id(row), self.columns.id(column)
        row_block, column_block = r % self.row_blocks, c % self.column_blocks
        first, last, mirrored = self._range(row_block, column_block)
        sides = r // self.row_blocks, c // self.column_blocks
        position = (sides[1] << 16 | sides[0]) if mirrored else (sides[0] << 16 | sides[1])
        cell = first + int(np.searchsorted(self._arrays.positions[first:last], np.uint32(position)))
        if cell == last or self._arrays.positions[cell] != position:
            return 0.0
        return float(self._arrays.units(cell, cell + 1)[0] / self.unit)

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """Return the whole matrix, both mirrors, as float64 in memory."""
        import scipy.sparse

        arrays = self._arrays
        shards = np.repeat(np.arange(self.layout.shards), np.diff(arrays.offsets[0]))
        rows, columns = self.layout.find_cells(shards, arrays.positions)
        counts = arrays.units(0, len(arrays.counts)) / self.unit
        if self.is_symmetric:
            once = rows % self.row_blocks != columns % self.column_blocks
            rows, columns = np.concatenate([rows, columns[once]]), np.concatenate([columns, rows[once]])
            counts = np.concatenate([counts, counts[once]])
        return scipy.sparse.csr_matrix((counts, (rows, columns)), shape=self.shape)

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int = 1) -> Matrix:
        """Return the same matrix in other blocks; its cells go to files in `scratch`, which must outlive it.

        A symmetric matrix stays so where both numbers are equal, and is laid out whole where they are not.
        """
        if (row_blocks, column_blocks) == (self.row_blocks, self.column_blocks):
            return self
        from swivel.counts.reblock import reblock

        symmetric = self.is_symmetric and row_blocks == column_blocks
        layout = Layout(*self.shape, row_blocks, column_blocks, symmetric)
        return Matrix(self._folder, layout, reblock(self._arrays, self.layout, layout, scratch, threads=threads))

    def __repr__(self) -> str:
        return f"<Matrix of {self.shape[0]:,} x {self.shape[1]:,}, {self.cell_count:,} cells: {self.path}>"


def open_matrix(path: str | Path) -> Matrix:
    """Open the folder of a matrix.

    >>> open_matrix("nowhere")
    Traceback (most recent call last):
    swivel.errors.StorageError: nowhere: no such folder
    """
    folder = open_folder(path, "matrix")
    try:
        layout = _read_layout(folder.manifest.facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedFolder(f"{folder.path}: its manifest is not that of a matrix ({error}); {REMEDY}") from error
    # Plain views of the mapped files: slicing a numpy.memmap costs several times as much.
    parts = {name: np.asarray(_read_numbers(folder, f"{name}.npy", kind)) for name, kind in _KINDS.items()}
    arrays = CellArrays(parts.pop("offsets").reshape(1, -1), **parts)
    if not _fit_together(layout, arrays):
        folder.verify()  # which names the file that is not as it was written
        raise DamagedFolder(f"{folder.path / 'offsets.npy'}: does not fit the other parts; {REMEDY}")
    return Matrix(folder, layout, arrays)


def _read_layout(facts: Mapping[str, Any]) -> Layout:
    rows, columns = facts["shape"]
    numbers = rows, columns, facts["row_blocks"], facts["column_blocks"], facts["unit"], facts["total_units"]
    if not all(type(number) is int and number > 0 for number in numbers):
        raise ValueError(f"sizes that are no whole numbers above 0: {numbers}")
    if not all(isinstance(name, str) for name in facts["column_parts"]) or type(facts["symmetric"]) is not bool:
        raise ValueError("names of columns, or a symmetry, that are none")
    return Layout(*numbers[:4], facts["symmetric"])


def _read_vocabulary(folder: Folder, name: str) -> Vocabulary:
    try:
        return Vocabulary.from_lines(folder.lines(name))
    except VocabularyError as error:
        raise DamagedFolder(f"{folder.path / name}: {error}; {REMEDY}") from error


def _read_numbers(folder: Folder, name: str, kind: str) -> NDArray[Any]:
    """Return a part that is a list of numbers of this kind."""
    array = folder.mapped(name) if name in LARGE else folder.array(name)
    if array.ndim != 1 or array.dtype != np.dtype(kind):
        raise DamagedFolder(f"{folder.path / name}: {array.dtype} of {array.ndim} dimensions; {REMEDY}")
    return array


def _fit_together(layout: Layout, arrays: CellArrays) -> bool:
    """Return whether every shard is a range of the cells. What the cells hold is the checksum's affair."""
    offsets, cells, large = arrays.offsets[0], len(arrays.counts), arrays.large_cells
    return bool(
        len(offsets) == layout.shards + 1
        and offsets[0] == 0
        and offsets[-1] == cells == len(arrays.positions)
        and (offsets[1:] >= offsets[:-1]).all()
        and len(large) == len(arrays.large_counts)
        and (not len(large) or (large.min() >= 0 and large.max() < cells))
    )
