"""`MatrixBuilder` makes matrices: it accepts counts in any order within a memory budget.

Cells arrive as arrays of rows, columns and units (importers) or as sorted pieces (co-occurrence counting). Sorted runs
are written to a scratch folder, or kept in memory, and merged at the end; a single run becomes the matrix without
merging. The result is identical, byte for byte, for any memory budget, number of threads and order of the cells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints, Layout, choose_layout
from swivel.counts.matrix import STAGE, Matrix, finish_folder, open_matrix
from swivel.counts.shards import (
    FILES,
    CellArrays,
    gather_runs,
    make_piece,
    merge_runs,
    open_cells,
    shard_ranges,
    sum_cells,
)
from swivel.errors import CountsError, MemoryBudgetError
from swivel.runtime.parallel import map_in_order
from swivel.storage.files import FolderWriter, create_folder
from swivel.storage.manifest import to_json

STORED_BYTES = 8  # per cell, on disk
# Memory per cell while a buffer is sorted: up to two copies of keys and units, and the order of the keys.
_SORTED_BYTES = 40
_PIECE_CELLS = 1 << 20  # at most so many cells are converted to keys, or summed and written, at a time
_PIECE_SHARE = 8  # of a buffer, because a piece takes more memory per cell than the buffer
_MIN_CELLS = 1_024
_MAX_UNITS = float(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSpec:
    """Description of a matrix before its cells are known.

    Attributes
    ----------
    rows, columns
        Vocabularies; `columns` is None if it is the same as `rows`.
    unit
        Counts are integers in units of 1 / unit.
    symmetric
        Whether x_ij = x_ji; the builder expects both and stores one.
    column_parts
        Names of the columns of a word if each word has several, such as ("left", "right").
    """

    rows: Vocabulary
    columns: Vocabulary | None = None
    unit: int = 1
    symmetric: bool = False
    column_parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.unit < 1:
            raise CountsError(f"unit must be 1 or more, got {self.unit}")
        if self.symmetric and self.columns is not None:
            raise CountsError("columns must be None for a symmetric matrix: it has the same rows and columns")
        if self.column_parts and self.column_count != len(self.rows) * len(self.column_parts):
            raise CountsError(
                f"{len(self.rows):,} rows in {len(self.column_parts)} column parts make "
                f"{len(self.rows) * len(self.column_parts):,} columns, not {self.column_count:,}"
            )

    @property
    def column_count(self) -> int:
        """Number of columns of the matrix."""
        return len(self.rows) if self.columns is None else len(self.columns)

    def layout(self) -> Layout:
        """Return the block layout of the stored matrix."""
        if not len(self.rows) or not self.column_count:
            raise CountsError(f"a matrix of {len(self.rows)} x {self.column_count} has no cells")
        parts = len(self.column_parts)
        return choose_layout(len(self.rows), self.column_count, parts=parts, symmetric=self.symmetric)


class OwnSums(NamedTuple):
    """Sums of a matrix with missing cells, in units, in the order of its rows and columns.

    They may also be numbers of persons or baskets with a row, of which `total` is the number: a person has several.
    """

    rows: Ints
    columns: Ints  # the same array in a symmetric matrix
    total: int


def to_units(counts: ArrayLike, unit: int) -> Ints:
    """Return counts as integers in units of 1 / unit, rounded to the nearest; positive counts become at least 1.

    >>> to_units([0.5, 2.0], 2520).tolist()
    [1260, 5040]
    """
    values = np.asarray(counts, np.float64)
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0) | (values * unit >= _MAX_UNITS))

    if wrong.size:
        value = values[wrong[0]]
        reason = "too large" if np.isfinite(value) else "not finite"
        if value < 0:
            reason = "negative"
        raise CountsError(f"count {value} at index {wrong[0]:,} is {reason}; counts must be finite and not negative")

    # A positive count stays an observed cell, however small it is.
    return np.maximum(np.rint(values * unit), values > 0).astype(np.int64)


def building_bytes(cells: int, memory_bytes: int) -> tuple[int, int]:
    """Return the bytes of disk and of memory needed to build a matrix of `cells` cells.

    If the cells do not fit in memory, sorted runs take as much disk space as the matrix itself.

    >>> building_bytes(1_000, 1 << 20), building_bytes(1_000_000, 1 << 20)
    ((8000, 40000), (16000000, 1048576))
    """
    sorting = _SORTED_BYTES * cells
    copies = 1 if sorting <= memory_bytes else 2
    return STORED_BYTES * cells * copies, min(sorting, memory_bytes)


class MatrixBuilder:
    """Collects counts and makes a matrix, in the folder `path` or in memory if it is None. Use it as a context manager.

    Sorted pieces are appended to `runs` instead, in runs that hold every shard once, in order.

    >>> spec = MatrixSpec(rows=Vocabulary(["a", "b"]), columns=Vocabulary(["x", "y", "z"]))
    >>> with MatrixBuilder(None, spec, memory_bytes=1 << 20) as builder:
    ...     builder.add([0, 1, 0], [2, 0, 2], [5, 1, 2])
    ...     matrix = builder.finish()
    >>> matrix.count("a", "z"), matrix.cell_count
    (7.0, 2)
    """

    def __init__(
        self, path: str | Path | None, spec: MatrixSpec, *, memory_bytes: int, threads: int = 1, overwrite: bool = False
    ) -> None:
        self.path = None if path is None else Path(path)
        self.spec = spec
        self.layout = spec.layout()
        self.threads = threads
        self.overwrite = overwrite
        self.memory_bytes = memory_bytes

        self._capacity = memory_bytes // _SORTED_BYTES
        # A key and its units fit together in 64 bits nearly always, and integers are sorted in place, several times as
        # fast as keys with an order for the units. The few other cells wait, and are sorted, separately.
        self._unit_bits = min(64 - self.layout.key_bits, 63)
        self._waiting: list[NDArray[np.uint64]] = []  # key << _unit_bits | units, of cells that are not yet in a run
        self._wide: list[tuple[NDArray[np.uint64], Ints]] = []  # keys and units
        self._waiting_cells = 0
        self._units_seen = 0.0
        self._balance = 0  # see _mirror_balance

    def __enter__(self) -> MatrixBuilder:
        if self._capacity < _MIN_CELLS:
            raise MemoryBudgetError(
                f"building a matrix needs at least {_MIN_CELLS * _SORTED_BYTES:,} bytes of memory, "
                f"got {self.memory_bytes:,}"
            )

        with contextlib.ExitStack() as stack:
            self._folder: FolderWriter | None = None
            if self.path is not None:
                self._folder = stack.enter_context(create_folder(self.path, STAGE, overwrite=self.overwrite))
            self.runs = stack.enter_context(gather_runs(self.path, self.layout))
            self._stack = stack.pop_all()

        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, rows: ArrayLike, columns: ArrayLike, units: ArrayLike) -> None:
        """Add counts to cells, in any order; repeated cells are summed. A symmetric matrix needs x_ij and x_ji."""
        arrays = [np.atleast_1d(np.asarray(values)) for values in (rows, columns, units)]
        if len({values.shape for values in arrays}) != 1:
            sizes = ", ".join(f"{values.size:,}" for values in arrays)
            raise CountsError(f"rows, columns and units must have the same length, got {sizes}")

        ids, column_ids, amounts = (_as_integers(values) for values in arrays)
        self._check(ids, column_ids, amounts)

        for start in range(0, ids.size, self._piece_cells):
            piece = slice(start, start + self._piece_cells)
            self._keep(ids[piece], column_ids[piece], amounts[piece])

    def _check(self, rows: Ints, columns: Ints, units: Ints) -> None:
        for values, size, side in ((rows, self.layout.rows, "row"), (columns, self.layout.columns, "column")):
            wrong = np.flatnonzero((values < 0) | (values >= size))
            if wrong.size:
                raise CountsError(
                    f"{side} {values[wrong[0]]} at index {wrong[0]:,} is out of range: there are {size:,} {side}s"
                )

        wrong = np.flatnonzero(units < 0)
        if wrong.size:
            raise CountsError(f"count {units[wrong[0]]} at index {wrong[0]:,} is negative; counts must be 0 or more")

        # Sums are int64; the running total in float64 is exact enough to stop before they overflow.
        self._units_seen += float(units.sum(dtype=np.float64))
        if self._units_seen >= _MAX_UNITS:
            raise CountsError(f"counts sum to more than 2^62 units of 1/{self.spec.unit}; use a smaller unit")

    def _keep(self, rows: Ints, columns: Ints, units: Ints) -> None:
        if self.spec.symmetric:
            self._balance = (self._balance + _mirror_balance(rows, columns, units)) % (1 << 64)
            is_stored = self.layout.is_kept(rows, columns)  # one of x_ij and x_ji, both on diagonal shards
            rows = rows[is_stored]
            columns = columns[is_stored]
            units = units[is_stored]

        if self._waiting_cells + rows.size > self._capacity:
            self._spill()

        row_keys, column_keys = self._key_parts
        keys = row_keys[rows]
        keys += column_keys[columns]
        is_wide = units >> self._unit_bits > 0
        if is_wide.any():
            self._wide.append((keys[is_wide], units[is_wide]))
            keys = keys[~is_wide]
            units = units[~is_wide]

        keys <<= np.uint64(self._unit_bits)
        keys |= units.view(np.uint64)
        self._waiting.append(keys)
        self._waiting_cells += rows.size

    @property
    def _piece_cells(self) -> int:
        return max(min(self._capacity // _PIECE_SHARE, _PIECE_CELLS), 1)

    @cached_property
    def _key_parts(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The part of the key of each row and of each column: two lookups instead of four divisions per cell."""
        zero = np.zeros(1, np.int64)
        rows = self.layout.keys(np.arange(self.layout.rows), zero)
        return rows, self.layout.keys(zero, np.arange(self.layout.columns))

    def _spill(self) -> None:
        """Sort the waiting cells and write them as a run, and those with many units as another one."""
        packed, wide = self._waiting, self._wide
        self._waiting = []
        self._wide = []
        self._waiting_cells = 0

        if packed:
            keys = np.concatenate(packed)
            packed.clear()
            sort_keys(keys, threads=self.threads)
            self._write_run(keys, None)
        if wide:
            keys, units = map(np.concatenate, zip(*wide, strict=True))
            order = np.argsort(keys)  # It need not be stable: units of equal keys are summed.
            self._write_run(keys[order], units[order])

    def _write_run(self, keys: NDArray[np.uint64], units: Ints | None) -> None:
        """Write sorted keys with their units, or keys that contain them, piece by piece."""
        bits = np.uint64(sum(self.layout.local_bits) + (self._unit_bits if units is None else 0))
        ends = np.searchsorted(keys, np.arange(self.layout.shards + 1, dtype=np.uint64) << bits)
        if self.layout.shards << int(bits) >= 1 << 64:  # the last edge does not fit
            ends[-1] = keys.size

        with self.runs.run() as run:
            for first, last in shard_ranges(ends[None], self._piece_cells):
                cells = slice(ends[first], ends[last])
                if units is None:
                    shift = np.uint64(self._unit_bits)
                    mask = (np.uint64(1) << shift) - np.uint64(1)
                    run.append(self._sum_piece(first, last, keys[cells] >> shift, (keys[cells] & mask).view(np.int64)))
                else:
                    run.append(self._sum_piece(first, last, keys[cells], units[cells]))

    def _sum_piece(self, first: int, last: int, keys: NDArray[np.uint64], units: Ints) -> CellArrays:
        """Return the sorted cells of the shards `first` to `last - 1`, in which equal cells are summed."""
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: keys.size])
        if starts.size < keys.size:
            keys = keys[starts]
            units = np.add.reduceat(units, starts)
        if not units.all():
            keys = keys[units > 0]
            units = units[units > 0]

        shards, positions = self.layout.split_keys(keys)
        lengths = np.bincount(shards - first, minlength=last - first).astype(np.int64)
        return make_piece(lengths, positions, units)

    def finish(
        self,
        *,
        config: Any = None,
        inputs: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
        edges: Any = None,
        sums: OwnSums | None = None,
        absent_units: int = 0,
    ) -> Matrix:
        """Merge the runs and return the matrix, opened from its folder if it has one; `facts` are for its manifest.

        `edges` are those of the graph on which walks were counted, a csr array. `sums` replace those of the cells, and
        a cell that was not added has at most `absent_units`.
        """
        knowledge = {"edges": edges, "absent_units": absent_units}
        self._spill()
        self.runs.close()
        if self.runs.cells == 0:
            raise CountsError("there are no counts: every cell is 0")
        if self._balance:
            raise CountsError(
                "the counts are not symmetric: some x_ij differs from x_ji; build the matrix with symmetric=False "
                "(or import it with sides='same')"
            )

        final = self.runs
        if self.runs.runs > 1:
            final = self._stack.enter_context(gather_runs(self.path, self.layout))
            merge_runs(self.runs.open(), final, memory_bytes=self.memory_bytes, threads=self.threads)
            final.close()

        writer, scratch = self._folder, final.folder
        if writer is None or scratch is None:
            return self._make_matrix(final.open(), config, sums, knowledge)

        writer.write_lines("rows.txt", self.spec.rows.to_lines())  # also removes a previous result
        # Threads move the files of the cells, which are on the same disk: checksums take about one second per GB.
        list(map_in_order(lambda name: writer.adopt(name, scratch / name), FILES, threads=self.threads))
        made = self._make_matrix(open_cells(writer.path), config, sums, knowledge)
        finish_folder(writer, made, inputs=inputs, facts=facts)

        matrix = open_matrix(writer.path)
        matrix.rows = self.spec.rows  # They were just written, and need not be read again.
        matrix.columns = self.spec.rows if self.spec.columns is None else self.spec.columns
        return matrix

    def _make_matrix(
        self, arrays: CellArrays, config: Any, sums: OwnSums | None, knowledge: Mapping[str, Any]
    ) -> Matrix:
        """Return the finished matrix of these cells."""
        total = None
        if sums is None:
            row_sums, column_sums = sum_cells(arrays, self.layout, threads=self.threads)
        else:
            row_sums, column_sums, total = sums
        return Matrix(
            self.layout,
            arrays,
            rows=self.spec.rows,
            columns=self.spec.columns,
            row_sums=row_sums,
            column_sums=column_sums,
            unit=self.spec.unit,
            column_parts=self.spec.column_parts,
            config=to_json(config or {}),
            total=total,
            **knowledge,
        )


def _as_integers(values: NDArray[Any]) -> Ints:
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise CountsError(f"rows, columns and units must be integers, got {values.dtype}; convert counts with to_units")
    if values.dtype == np.uint64 and values.size and values.max() >= 1 << 63:
        raise CountsError(f"{values.max()} does not fit in 63 bits")
    return values.astype(np.int64, copy=False).ravel()


def _mirror_balance(rows: Ints, columns: Ints, units: Ints) -> int:
    """Return a sum modulo 2^64 that is 0 if x_ij = x_ji for all cells."""
    # Each unordered pair has a pseudo-random factor, which is added above the diagonal and subtracted below it. So the
    # symmetry of a streamed matrix is checked in constant memory; unequal counts cancel with probability about 2^-64.
    low = np.minimum(rows, columns).astype(np.uint64)
    high = np.maximum(rows, columns).astype(np.uint64)
    mixed = (low << np.uint64(32) | high) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(32)) * np.sign(columns - rows).astype(np.uint64)
    return int((mixed * units.astype(np.uint64)).sum(dtype=np.uint64))


def sort_keys(keys: NDArray[np.uint64], *, threads: int) -> None:
    """Sort keys in place, each thread a part of them."""
    if threads > 1 and keys.size > _MIN_CELLS * threads:
        cuts = [keys.size * number // threads for number in range(1, threads)]
        keys.partition(cuts)  # Every part has its keys, and is sorted on its own.
        list(map_in_order(lambda part: part.sort(), np.split(keys, cuts), threads=threads))
    else:
        keys.sort()
