"""Build the matrix from spilled cells: rank labels by their sums, then write the cells.

If a cell and its units fit together in 64 bits (nearly always), threads sort the cells into runs for the builder.
Otherwise, and for symmetric matrices, `MatrixBuilder.add` sorts them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints, Layout
from swivel.counts.builder import MatrixBuilder, MatrixSpec, sum_equal
from swivel.counts.importers.baskets import BasketSpill
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.spill import PIECE, CellSpill, add_sums
from swivel.counts.matrix import Matrix
from swivel.counts.shards import CellArrays, make_piece
from swivel.errors import CountsError
from swivel.runtime.options import RunOptions
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import Task, track

_BYTES_PER_KEY = 12  # of a run that is sorted in place, with a margin
_PIECE_BYTES = 96 << 20  # pieces in flight, in all threads
_PIECE_KEYS = 1 << 20
_MIN_BYTES = 1 << 17

Spill: TypeAlias = CellSpill | BasketSpill


def build_matrix(
    spill: Spill, context: ImportContext, path: Path | None, provenance: Mapping[str, Any], options: RunOptions
) -> Matrix:
    """Write the matrix of the spilled cells, with `provenance` in its manifest, and return it."""
    if isinstance(spill, BasketSpill):
        row_sums = column_sums = spill.count_items(len(context.labels[0]))
        unit = 1
    else:
        row_sums, column_sums = _sum_sides(spill, context, options.thread_count)
        unit = spill.unit

    rows, row_places = _rank(context.labels[0], row_sums, unit, context)
    columns: Vocabulary | None = None
    column_places = row_places
    if not context.is_shared:
        columns, column_places = _rank(context.labels[1], column_sums, unit, context)

    symmetric = context.sides in ("mirrored", "undirected")
    spec = MatrixSpec(rows=rows, columns=columns, unit=spill.unit, symmetric=symmetric)
    memory = max(context.memory_bytes - context.used_bytes, _MIN_BYTES)
    builder = MatrixBuilder(path, spec, memory_bytes=memory, threads=options.thread_count, overwrite=options.overwrite)

    with builder, track(options.progress, "building", spill.length, "cells") as task:
        runs = None
        if isinstance(spill, CellSpill) and not symmetric:
            runs = _SortedRuns(builder.layout, spill, row_places, column_places)

        if runs is not None and runs.is_fit:
            _add_runs(builder, runs, memory, task)
        else:
            _add_cells(builder, spill, (row_places, column_places), context, task)

        return builder.finish(**provenance)


def _sum_sides(spill: CellSpill, context: ImportContext, threads: int) -> tuple[Ints, Ints]:
    """Return the row sums and column sums in units; if both are the same things, one array with their total."""
    row_sums = np.zeros(len(context.labels[0]), np.int64)
    column_sums = row_sums if context.is_shared else np.zeros(len(context.labels[1]), np.int64)

    def sum_piece(start: int) -> tuple[Ints, Ints]:
        in_rows = np.zeros_like(row_sums)
        in_columns = np.zeros_like(column_sums)
        for rows, columns, units in spill.pieces(start, min(start + PIECE, spill.length)):
            add_sums(in_rows, rows, units)
            if context.sides == "undirected":  # a diagonal cell is its own mirror and counts once
                add_sums(in_columns, columns, np.where(rows == columns, 0, units))
            elif context.sides != "mirrored":
                add_sums(in_columns, columns, units)

        return in_rows, in_columns

    for in_rows, in_columns in map_in_order(sum_piece, range(0, spill.length, PIECE), threads=threads):
        row_sums += in_rows
        column_sums += in_columns

    return row_sums, column_sums


def _rank(labels: list[str], sums: Ints, unit: int, context: ImportContext) -> tuple[Vocabulary, Ints]:
    """Return the rows or columns by descending sum, and the position of each id among them.

    Equal sums are ordered by label, or by position in a matrix. Labels without counts are dropped (position -1);
    positions of a matrix only with `drop_empty`.
    """
    is_labeled = context.shape is None
    order = np.arange(len(labels))
    if is_labeled:
        order = np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)

    order = order[np.argsort(-sums[order], kind="stable")]
    if is_labeled or context.config.drop_empty:
        order = order[: int(np.count_nonzero(sums))]

    places = np.full(len(labels), -1, np.int64)
    places[order] = np.arange(order.size)
    counts = np.maximum((sums[order] + unit // 2) // unit, sums[order] > 0)

    return Vocabulary([labels[number] for number in order.tolist()], counts.tolist()), places


def _add_cells(
    builder: MatrixBuilder, spill: Spill, places: tuple[Ints, Ints], context: ImportContext, task: Task
) -> None:
    for row_ids, column_ids, units in spill.pieces():
        rows = places[0][row_ids]
        columns = places[1][column_ids]

        # Mirrored cells have only row sums, which do not count a column that is never a row.
        if (columns < 0).any():
            cell = int((columns < 0).argmax())
            row = context.labels[0][row_ids[cell]]
            column = context.labels[0][column_ids[cell]]
            raise CountsError(
                f"the counts are not mirrored: {column!r} is a column of {row!r} but never a row; pass "
                "sides='undirected' if each pair is given once, sides='apart' if rows and columns are different things"
            )

        builder.add(rows, columns, units)
        if context.sides == "undirected":
            apart = rows != columns  # a diagonal cell is its own mirror
            builder.add(columns[apart], rows[apart], units[apart])

        task.advance(units.size)


class _SortedRuns:
    """Sorts ranges of the spilled cells as integers: shard, local row, local column, units, from high to low bits.

    Threads may sort several ranges at the same time.
    """

    def __init__(self, layout: Layout, spill: CellSpill, rows: Ints, columns: Ints) -> None:
        self.spill = spill
        self._shards = layout.shards
        self._row_bits = layout.largest_rows.bit_length()
        self._column_bits = layout.largest_columns.bit_length()
        self._unit_bits = spill.largest_units.bit_length()
        self._cell_bits = self._row_bits + self._column_bits
        self.is_fit = layout.shards.bit_length() + self._cell_bits + self._unit_bits <= 64

        # The part of the key of each row and of each column: two lookups instead of four divisions per cell.
        row_part = (rows % layout.row_blocks * layout.column_blocks) << self._cell_bits
        row_part |= rows // layout.row_blocks << self._column_bits
        column_part = (columns % layout.column_blocks) << self._cell_bits | columns // layout.column_blocks
        self._row_part = row_part.astype(np.uint64) << np.uint64(self._unit_bits)
        self._column_part = column_part.astype(np.uint64) << np.uint64(self._unit_bits)

    def sort(self, bounds: tuple[int, int]) -> NDArray[np.uint64]:
        """Return the sorted keys of the cells of a range."""
        first, last = bounds
        keys = np.empty(last - first, np.uint64)
        begin = 0

        for rows, columns, units in self.spill.pieces(first, last):
            part = keys[begin : begin + rows.size]
            np.add(self._row_part[rows], self._column_part[columns], out=part)
            part |= units.astype(np.uint64)
            begin += rows.size

        # Sorting packed integers in place needs no order of the cells and no copies.
        keys.sort()
        return keys

    def pieces(self, keys: NDArray[np.uint64]) -> Iterator[CellArrays]:
        """Yield sorted keys in pieces of whole shards, which cover all shards."""
        shift = np.uint64(self._unit_bits + self._cell_bits)
        first = 0  # shard
        begin = 0  # key

        while first < self._shards:
            last = self._shards
            middle = begin + _PIECE_KEYS
            if middle < keys.size:
                last = max(int(keys[middle] >> shift), first + 1)

            end = keys.size
            if last < self._shards:
                end = int(np.searchsorted(keys, np.uint64(last) << shift))

            yield self._make_piece(keys[begin:end], first, last)
            first = last
            begin = end

    def _make_piece(self, keys: NDArray[np.uint64], first: int, last: int) -> CellArrays:
        """Return the piece of the shards `first` to `last - 1`; equal cells are summed."""
        units = (keys & np.uint64((1 << self._unit_bits) - 1)).astype(np.int64)
        cells, units = sum_equal(keys >> np.uint64(self._unit_bits), units)

        shards = (cells >> np.uint64(self._cell_bits)).astype(np.int64) - first
        local_rows = cells >> np.uint64(self._column_bits) & np.uint64((1 << self._row_bits) - 1)
        positions = local_rows << np.uint64(16) | cells & np.uint64((1 << self._column_bits) - 1)
        lengths = np.bincount(shards, minlength=last - first).astype(np.int64)

        return make_piece(lengths, positions.astype(np.uint32), units)


def _add_runs(builder: MatrixBuilder, runs: _SortedRuns, memory: int, task: Task) -> None:
    threads = builder.threads
    cells = runs.spill.length
    max_keys = max((memory - _PIECE_BYTES) // ((threads + 1) * _BYTES_PER_KEY), memory // (64 * threads), 1)
    count = -(-cells // max_keys)
    edges = [cells * number // count for number in range(count + 1)]

    # Threads sort the next ranges while this one is written.
    for keys in map_in_order(runs.sort, itertools.pairwise(edges), threads=threads):
        with builder.begin_run() as run:
            for piece in runs.pieces(keys):
                run.append(piece)
        task.advance(keys.size)
        del keys
