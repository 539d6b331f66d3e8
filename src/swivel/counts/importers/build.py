"""Build the matrix from spilled cells: rank labels by their sums, then write the cells.

If a cell and its units fit together in 64 bits (nearly always), threads sort the cells into runs for the builder.
Otherwise, and for symmetric matrices, `MatrixBuilder.add` sorts them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.importers.baskets import BasketSpill
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import MatrixPositions, Side
from swivel.counts.importers.spill import PIECE, CellSpill, UnitCells, add_sums
from swivel.counts.layout import Layout
from swivel.counts.shards import ShardPiece, make_piece
from swivel.errors import CountsError
from swivel.runtime.options import RunOptions
from swivel.runtime.parallel import map_in_order
from swivel.runtime.progress import Task, track

_BYTES_PER_KEY = 12  # of a run that is sorted in place, with a margin
_PIECE_BYTES = 96 << 20  # pieces in flight, in all threads
_PIECE_KEYS = 1 << 20
_MIN_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Ranked:
    """Rows or columns in the order of the matrix: the vocabulary, and the position of each id in it (-1 if dropped)."""

    vocabulary: Vocabulary
    places: NDArray[np.int64]


def rank_side(side: Side, sums: NDArray[np.int64], unit: int, *, drop_empty: bool) -> Ranked:
    """Rank rows or columns by descending sum; equal sums by label, or by position in a matrix.

    Labels without counts are dropped; positions of a matrix only with `drop_empty`.
    """
    labels = side.labels()
    by_name = np.arange(len(labels))
    if not isinstance(side, MatrixPositions):
        by_name = np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)

    order = by_name[np.argsort(-sums[by_name], kind="stable")]
    if drop_empty or not isinstance(side, MatrixPositions):
        order = order[: int(np.count_nonzero(sums))]

    places = np.full(len(labels), -1, np.int64)
    places[order] = np.arange(order.size)
    counts = np.maximum((sums[order] + unit // 2) // unit, sums[order] > 0)

    return Ranked(Vocabulary([labels[number] for number in order.tolist()], counts.tolist()), places)


def sum_sides(
    spill: CellSpill, context: ImportContext, *, threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row sums and column sums in units; if both are the same things, one array with their total."""
    row_sums = np.zeros(_size(context.row_side), np.int64)
    column_sums = row_sums if context.is_shared else np.zeros(_size(context.column_side), np.int64)
    sum_piece = functools.partial(_sum_piece, spill, context.sides, (row_sums.size, column_sums.size))
    starts = range(0, spill.length, PIECE)

    for piece in map_in_order(sum_piece, starts, threads=threads):
        row_sums += piece[0]
        column_sums += piece[1]

    return row_sums, column_sums


def _sum_piece(spill: CellSpill, kind: str, sizes: tuple[int, int], start: int) -> list[NDArray[np.int64]]:
    """Return the row sums and column sums of one piece."""
    sums = [np.zeros(size, np.int64) for size in sizes]
    for cells in spill.pieces(start, min(start + PIECE, spill.length)):
        add_sums(sums[0], cells.rows, cells.units)
        if kind == "undirected":  # a diagonal cell is its own mirror and counts once
            add_sums(sums[1], cells.columns, np.where(cells.rows == cells.columns, 0, cells.units))
        elif kind != "mirrored":
            add_sums(sums[1], cells.columns, cells.units)

    return sums


def rank_sides(spill: CellSpill | BasketSpill, context: ImportContext, *, threads: int = 1) -> tuple[Ranked, Ranked]:
    """Return the ranked rows and columns; the same object if they are the same things."""
    drop = context.config.drop_empty
    if isinstance(spill, BasketSpill):
        row_sums = column_sums = spill.count_items(_size(context.row_side))
        unit = 1
    else:
        row_sums, column_sums = sum_sides(spill, context, threads=threads)
        unit = spill.unit

    rows = rank_side(context.row_side, row_sums, unit, drop_empty=drop)
    columns = rows if context.is_shared else rank_side(context.column_side, column_sums, unit, drop_empty=drop)
    return rows, columns


def _size(side: Side) -> int:
    return side.size if isinstance(side, MatrixPositions) else len(side)


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """Output folder of the matrix, with the configuration and inputs for its manifest."""

    path: Path
    config: Mapping[str, Any]
    inputs: Mapping[str, str]


def build_matrix(
    spill: CellSpill | BasketSpill, context: ImportContext, target: ImportTarget, options: RunOptions
) -> Matrix:
    """Write the matrix of the spilled cells and return it."""
    rows, columns = rank_sides(spill, context, threads=options.thread_count)
    if context.sides == "mirrored" and isinstance(spill, CellSpill):
        _refuse_one_way(spill, context, rows.places)

    symmetric = context.sides in ("mirrored", "undirected")
    spec = MatrixSpec(
        rows=rows.vocabulary,
        columns=None if context.is_shared else columns.vocabulary,
        unit=spill.unit,
        symmetric=symmetric,
    )

    memory = max(context.memory_bytes - context.used_bytes, _MIN_BYTES)
    builder = MatrixBuilder(
        target.path, spec, memory_bytes=memory, threads=options.thread_count, overwrite=options.overwrite
    )

    with builder, track(options.progress, "building", getattr(spill, "length", None), "cells") as task:
        keys = None
        if isinstance(spill, CellSpill) and not symmetric:
            keys = _Keys.fit(builder.layout, spill.largest_units)

        if keys is None or isinstance(spill, BasketSpill):
            _add_cells(builder, spill, (rows, columns), context.sides, task)
        else:
            _add_runs(builder, spill, _SortedRuns(keys, spill, rows.places, columns.places), memory, task)

        return builder.finish(config=target.config, inputs=target.inputs)


def _refuse_one_way(spill: CellSpill, context: ImportContext, places: NDArray[np.int64]) -> None:
    """Raise CountsError for a column that is never a row; the row sums alone would not reveal it."""
    for cells in spill.pieces():
        one_way = places[cells.columns] < 0
        if one_way.any():
            labels = context.row_side.labels()
            cell = int(one_way.argmax())
            row = labels[int(cells.rows[cell])]
            column = labels[int(cells.columns[cell])]
            raise CountsError(
                f"the counts are not mirrored: {column!r} is a column of {row!r} but never a row; pass "
                "sides='undirected' if each pair is given once, sides='apart' if rows and columns are different things"
            )


def _add_cells(
    builder: MatrixBuilder, spill: CellSpill | BasketSpill, sides: tuple[Ranked, Ranked], kind: str, task: Task
) -> None:
    for cells in spill.pieces():
        rows = sides[0].places[cells.rows]
        columns = sides[1].places[cells.columns]
        units = cells.units
        builder.add(rows, columns, units)

        if kind == "undirected" and not isinstance(spill, BasketSpill):
            apart = rows != columns  # a diagonal cell is its own mirror
            builder.add(columns[apart], rows[apart], units[apart])

        task.advance(units.size)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Encoding of a cell and its units in one integer: shard, local row, local column, units, from high to low bits."""

    layout: Layout
    row_bits: int
    column_bits: int
    unit_bits: int

    @classmethod
    def fit(cls, layout: Layout, largest_units: int) -> _Keys | None:
        """Return the encoding for a layout, or None if it needs more than 64 bits."""
        row_bits = layout.largest_rows.bit_length()
        column_bits = layout.largest_columns.bit_length()
        unit_bits = largest_units.bit_length()
        is_fit = layout.shards.bit_length() + row_bits + column_bits + unit_bits <= 64
        return cls(layout, row_bits, column_bits, unit_bits) if is_fit else None

    def tables(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the part of the key of each row and of each column: two lookups instead of four divisions per cell."""
        layout = self.layout
        inside = self.row_bits + self.column_bits
        row_part = (rows % layout.row_blocks * layout.column_blocks) << inside
        row_part |= rows // layout.row_blocks << self.column_bits
        column_part = (columns % layout.column_blocks) << inside | columns // layout.column_blocks
        shift = np.uint64(self.unit_bits)
        return row_part.astype(np.uint64) << shift, column_part.astype(np.uint64) << shift

    def make_piece(self, keys: NDArray[np.uint64], first: int, last: int) -> ShardPiece:
        """Return the piece of the shards `first` to `last - 1` from their sorted keys; equal cells are summed."""
        cells = keys >> np.uint64(self.unit_bits)
        units = (keys & np.uint64((1 << self.unit_bits) - 1)).astype(np.int64)
        starts = np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]])[: cells.size])

        if starts.size < cells.size:
            cells = cells[starts]
            units = np.add.reduceat(units, starts)

        shards = (cells >> np.uint64(self.row_bits + self.column_bits)).astype(np.int64) - first
        local_rows = cells >> np.uint64(self.column_bits) & np.uint64((1 << self.row_bits) - 1)
        positions = local_rows << np.uint64(16) | cells & np.uint64((1 << self.column_bits) - 1)
        lengths = np.bincount(shards, minlength=last - first).astype(np.int64)

        return make_piece(lengths, positions.astype(np.uint32), units)

    def split(self, keys: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], int, int]]:
        """Yield sorted keys in parts of whole shards, with the range of shards of each; the ranges cover all shards."""
        shift = np.uint64(self.unit_bits + self.row_bits + self.column_bits)
        first = 0  # shard
        begin = 0  # key

        while first < self.layout.shards:
            last = self.layout.shards
            middle = begin + _PIECE_KEYS
            if middle < keys.size:
                last = max(int(keys[middle] >> shift), first + 1)

            end = keys.size
            if last < self.layout.shards:
                end = int(np.searchsorted(keys, np.uint64(last) << shift))

            yield keys[begin:end], first, last
            first = last
            begin = end


class _SortedRuns:
    """Sorts ranges of the spilled cells. Threads may sort several ranges at the same time."""

    def __init__(self, keys: _Keys, spill: CellSpill, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        self.keys = keys
        self._spill = spill
        self._row_part, self._column_part = keys.tables(rows, columns)

    def sort(self, bounds: tuple[int, int]) -> NDArray[np.uint64]:
        """Return the sorted keys of the cells of a range."""
        first, last = bounds
        keys = np.empty(last - first, np.uint64)
        done = 0

        for cells in self._spill.pieces(first, last):
            self._fill(keys[done : done + cells.rows.size], cells)
            done += cells.rows.size

        keys.sort()
        return keys

    def _fill(self, keys: NDArray[np.uint64], cells: UnitCells) -> None:
        np.add(self._row_part[cells.rows], self._column_part[cells.columns], out=keys)
        keys |= cells.units.astype(np.uint64)


def _add_runs(builder: MatrixBuilder, spill: CellSpill, runs: _SortedRuns, memory: int, task: Task) -> None:
    threads = builder.threads
    max_keys = max((memory - _PIECE_BYTES) // ((threads + 1) * _BYTES_PER_KEY), memory // (64 * threads), 1)
    count = -(-spill.length // max_keys)
    edges = [spill.length * number // count for number in range(count + 1)]

    # Threads sort the next ranges while this one is written.
    for keys in map_in_order(runs.sort, itertools.pairwise(edges), threads=threads):
        with builder.begin_run() as run:
            for part, first, last in runs.keys.split(keys):
                run.append(runs.keys.make_piece(part, first, last))
        task.advance(keys.size)
        del keys
