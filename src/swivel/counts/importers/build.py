"""Build the matrix from spilled cells: rank labels by their sums, then write the cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints
from swivel.counts.builder import MatrixBuilder, MatrixSpec
from swivel.counts.importers.baskets import BasketSpill
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.spill import CellSpill, add_sums
from swivel.counts.matrix import Matrix
from swivel.errors import CountsError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track

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
        _add_cells(builder, spill, (row_places, column_places), context, task)
        return builder.finish(**provenance)


def _sum_sides(spill: CellSpill, context: ImportContext, threads: int) -> tuple[Ints, Ints]:
    """Return the row sums and column sums in units; if both are the same things, one array with their total."""
    row_sums = np.zeros(len(context.labels[0]), np.int64)
    column_sums = row_sums if context.is_shared else np.zeros(len(context.labels[1]), np.int64)

    for rows, columns, units in spill.pieces(threads):
        add_sums(row_sums, rows, units)
        if context.sides == "undirected":  # a diagonal cell is its own mirror and counts once
            add_sums(column_sums, columns, np.where(rows == columns, 0, units))
        elif context.sides != "mirrored":  # which has every pair in both orders already
            add_sums(column_sums, columns, units)

    return row_sums, column_sums


def _rank(labels: list[str], sums: Ints, unit: int, context: ImportContext) -> tuple[Vocabulary, Ints]:
    """Return the rows or columns by descending sum, and the position of each id among them, or -1."""
    # Equal sums are ordered by label, so that the order of the source does not matter, or by position in a matrix.
    is_labeled = context.shape is None
    order = np.arange(len(labels))
    if is_labeled:
        order = np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)

    order = order[np.argsort(-sums[order], kind="stable")]
    if is_labeled or context.config.drop_empty:
        order = order[: int(np.count_nonzero(sums))]  # those without counts are last

    places = np.full(len(labels), -1, np.int64)
    places[order] = np.arange(order.size)
    counts = np.maximum((sums[order] + unit // 2) // unit, sums[order] > 0)

    return Vocabulary([labels[number] for number in order.tolist()], counts.tolist()), places


def _add_cells(
    builder: MatrixBuilder, spill: Spill, places: tuple[Ints, Ints], context: ImportContext, task: Task
) -> None:
    for row_ids, column_ids, units in spill.pieces(builder.threads):
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
