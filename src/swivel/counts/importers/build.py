"""Cells and labels to a matrix: vocabularies by falling sum, then the builder.

Receives what was spilled, hands on a finished matrix. Cells go to the builder as sorted runs, made in threads, wherever
a cell and its units fit into 64 bits together (nearly always); else, and for symmetric matrices, by `add`.
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

_BYTES_A_KEY = 12  # of a run that is being sorted in place, and room to spare
_PIECE_BYTES = 96 << 20  # pieces under way, in all threads
_PIECE_KEYS = 1 << 20
_LEAST_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Ranked:
    """A side in the matrix's order: its vocabulary, and the place of each id in it (-1: left out)."""

    vocabulary: Vocabulary
    places: NDArray[np.int64]


def rank_side(side: Side, sums: NDArray[np.int64], unit: int, *, drop_empty: bool) -> Ranked:
    """Sort a side by falling sums; equal ones by label, or by place where they are places.

    Labels that no count is left of go; places stay unless they are to be dropped.
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
    spill: CellSpill, reading: ImportContext, *, threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sums of all rows and of all columns, in units; where both are the same things, of both together."""
    row_sums = np.zeros(_size(reading.row_side), np.int64)
    column_sums = row_sums if reading.is_shared else np.zeros(_size(reading.column_side), np.int64)
    sum_piece = functools.partial(_sum_piece, spill, reading.sides, (row_sums.size, column_sums.size))
    starts = range(0, spill.length, PIECE)
    for piece in map_in_order(sum_piece, starts, threads=threads):
        row_sums += piece[0]
        column_sums += piece[1]
    return row_sums, column_sums


def _sum_piece(spill: CellSpill, kind: str, sizes: tuple[int, int], start: int) -> list[NDArray[np.int64]]:
    """Return what one piece adds to the sums of the rows and of the columns."""
    sums = [np.zeros(size, np.int64) for size in sizes]
    for cells in spill.pieces(start, min(start + PIECE, spill.length)):
        add_sums(sums[0], cells.rows, cells.units)
        if kind == "undirected":  # a thing with itself is its own mirror
            add_sums(sums[1], cells.columns, np.where(cells.rows == cells.columns, 0, cells.units))
        elif kind != "mirrored":
            add_sums(sums[1], cells.columns, cells.units)
    return sums


def rank_sides(spill: CellSpill | BasketSpill, reading: ImportContext, *, threads: int = 1) -> tuple[Ranked, Ranked]:
    """Return rows and columns in the matrix's order; the same object where they are the same things."""
    drop = reading.config.drop_empty
    if isinstance(spill, BasketSpill):
        row_sums = column_sums = spill.count_items(_size(reading.row_side))
        unit = 1
    else:
        row_sums, column_sums = sum_sides(spill, reading, threads=threads)
        unit = spill.unit
    rows = rank_side(reading.row_side, row_sums, unit, drop_empty=drop)
    columns = rows if reading.is_shared else rank_side(reading.column_side, column_sums, unit, drop_empty=drop)
    return rows, columns


def _size(side: Side) -> int:
    return side.size if isinstance(side, MatrixPositions) else len(side)


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """Where the matrix goes and what its manifest says of its making."""

    path: Path
    config: Mapping[str, Any]
    inputs: Mapping[str, str]


def build_matrix(
    spill: CellSpill | BasketSpill, reading: ImportContext, target: ImportTarget, options: RunOptions
) -> Matrix:
    """Write the matrix of what was spilled."""
    rows, columns = rank_sides(spill, reading, threads=options.thread_count)
    if reading.sides == "mirrored" and isinstance(spill, CellSpill):
        _refuse_one_way(spill, reading, rows.places)
    symmetric = reading.sides in ("mirrored", "undirected")
    spec = MatrixSpec(
        rows=rows.vocabulary,
        columns=None if reading.is_shared else columns.vocabulary,
        unit=spill.unit,
        symmetric=symmetric,
    )
    memory = max(reading.memory_bytes - reading.used_bytes, _LEAST_BYTES)
    builder = MatrixBuilder(
        target.path, spec, memory_bytes=memory, threads=options.thread_count, overwrite=options.overwrite
    )
    with builder, track(options.progress, "building", getattr(spill, "length", None), "cells") as task:
        keys = None
        if isinstance(spill, CellSpill) and not symmetric:
            keys = _Keys.fit(builder.layout, spill.largest_units)
        if keys is None or isinstance(spill, BasketSpill):
            _add_cells(builder, spill, (rows, columns), reading.sides, task)
        else:
            _add_runs(builder, spill, _SortedRuns(keys, spill, rows.places, columns.places), memory, task)
        return builder.finish(config=target.config, inputs=target.inputs)


def _refuse_one_way(spill: CellSpill, reading: ImportContext, places: NDArray[np.int64]) -> None:
    """Raise CountsError for a column that is no row, of which no sum would tell: that pair stands one way only."""
    for cells in spill.pieces():
        one_way = places[cells.columns] < 0
        if one_way.any():
            labels, cell = reading.row_side.labels(), int(one_way.argmax())
            row, column = labels[int(cells.rows[cell])], labels[int(cells.columns[cell])]
            raise CountsError(
                f"{column!r} is a column, of {row!r}, and never a row: the counts are not mirrored; "
                "pass --sides undirected where a pair stands once, apart where rows and columns are different things"
            )


def _add_cells(
    builder: MatrixBuilder, spill: CellSpill | BasketSpill, sides: tuple[Ranked, Ranked], kind: str, task: Task
) -> None:
    for cells in spill.pieces():
        rows, columns, units = sides[0].places[cells.rows], sides[1].places[cells.columns], cells.units
        builder.add(rows, columns, units)
        if kind == "undirected" and not isinstance(spill, BasketSpill):
            apart = rows != columns  # a thing with itself is its own mirror
            builder.add(columns[apart], rows[apart], units[apart])
        task.advance(units.size)


@dataclass(frozen=True, slots=True)
class _Keys:
    """How a cell and its units are one number: shard, local row, local column, units, the shard highest."""

    layout: Layout
    row_bits: int
    column_bits: int
    unit_bits: int

    @classmethod
    def fit(cls, layout: Layout, largest_units: int) -> _Keys | None:
        """Return the keys of a layout, or None where 64 bits are too few."""
        row_bits, column_bits = (size.bit_length() for size in (layout.largest_rows, layout.largest_columns))
        unit_bits = largest_units.bit_length()
        is_fit = layout.shards.bit_length() + row_bits + column_bits + unit_bits <= 64
        return cls(layout, row_bits, column_bits, unit_bits) if is_fit else None

    def tables(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return what each row and each column, by its place, adds to a key: one look-up instead of four divisions."""
        layout = self.layout
        inside = self.row_bits + self.column_bits
        row_part = (rows % layout.row_blocks * layout.column_blocks) << inside
        row_part |= rows // layout.row_blocks << self.column_bits
        column_part = (columns % layout.column_blocks) << inside | columns // layout.column_blocks
        shift = np.uint64(self.unit_bits)
        return row_part.astype(np.uint64) << shift, column_part.astype(np.uint64) << shift

    def make_piece(self, keys: NDArray[np.uint64], first: int, last: int) -> ShardPiece:
        """Return the shards from `first` up to `last` from their sorted keys, equal cells summed."""
        cells = keys >> np.uint64(self.unit_bits)
        units = (keys & np.uint64((1 << self.unit_bits) - 1)).astype(np.int64)
        starts = np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]])[: cells.size])
        if starts.size < cells.size:
            cells, units = cells[starts], np.add.reduceat(units, starts)
        shards = (cells >> np.uint64(self.row_bits + self.column_bits)).astype(np.int64) - first
        local_rows = cells >> np.uint64(self.column_bits) & np.uint64((1 << self.row_bits) - 1)
        positions = local_rows << np.uint64(16) | cells & np.uint64((1 << self.column_bits) - 1)
        lengths = np.bincount(shards, minlength=last - first).astype(np.int64)
        return make_piece(lengths, positions.astype(np.uint32), units)

    def split(self, keys: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], int, int]]:
        """Yield sorted keys in parts of whole shards, and the range of shards of each; together all shards once."""
        shift = np.uint64(self.unit_bits + self.row_bits + self.column_bits)
        first, begin = 0, 0
        while first < self.layout.shards:
            middle = begin + _PIECE_KEYS
            last = self.layout.shards if middle >= keys.size else max(int(keys[middle] >> shift), first + 1)
            end = keys.size
            if last < self.layout.shards:
                end = int(np.searchsorted(keys, np.uint64(last) << shift))
            yield keys[begin:end], first, last
            first, begin = last, end


class _SortedRuns:
    """Sorted runs of what was spilled; several threads make several at the same time."""

    def __init__(self, keys: _Keys, spill: CellSpill, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        self.keys = keys
        self._spill = spill
        self._row_part, self._column_part = keys.tables(rows, columns)

    def sort(self, bounds: tuple[int, int]) -> NDArray[np.uint64]:
        """Return the keys of the cells of a range, ascending."""
        first, last = bounds
        keys, done = np.empty(last - first, np.uint64), 0
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
    most = max((memory - _PIECE_BYTES) // ((threads + 1) * _BYTES_A_KEY), memory // (64 * threads), 1)
    count = -(-spill.length // most)
    edges = [spill.length * number // count for number in range(count + 1)]
    for keys in map_in_order(runs.sort, itertools.pairwise(edges), threads=threads):
        with builder.begin_run() as run:
            for part, first, last in runs.keys.split(keys):
                run.append(runs.keys.make_piece(part, first, last))
        task.advance(keys.size)
        del keys
