"""Add matrices with different vocabularies: the counts of equal labels are summed.

The matrices must have been counted with the same settings. Cells are streamed in pieces, as integers in a unit that all
matrices share, so the sum is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.builder import MatrixBuilder, MatrixSpec, building_bytes
from swivel.counts.matrix import Matrix, MatrixCells
from swivel.errors import CountsError
from swivel.runtime.estimates import ResourceEstimate
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track

Ids = NDArray[np.int64]
# Settings that must be equal. Imported counts have no window unless they are baskets.
COUNT_SETTINGS = ("window_left", "window_right", "weight", "columns", "near", "oov")
IMPORT_SETTINGS = ("window", "weight")
KEPT = ("corpus", "count")  # stages whose settings the manifest of the sum keeps if they are equal in all matrices
_PIECE_CELLS = 1 << 18
_PIECE_SHARE = 8  # one eighth of the memory is for pieces
_BYTES_PER_CELL = 160  # memory for a cell of a piece and its mirror
_MAX_UNITS = 1 << 62


@dataclass(frozen=True, slots=True)
class SumTarget:
    """Output folder of the sum, with the configuration and inputs for its manifest."""

    path: Path
    config: Mapping[str, Any]
    inputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Term:
    """A matrix to add, with the positions of its rows and columns in the sum and the factor of its units."""

    matrix: Matrix
    rows: Ids
    columns: Ids
    factor: int

    def pieces(self, max_cells: int) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Yield rows, columns and units of all cells, in the numbering of the sum."""
        for rows, columns, units in walk_cells(self.matrix.stored, max_cells):
            yield self.rows[rows], self.columns[columns], units * self.factor


def walk_cells(stored: MatrixCells, max_cells: int) -> Iterator[tuple[Ids, Ids, Ids]]:
    """Yield rows, columns and units of all cells in pieces of at most `max_cells`.

    For a symmetric matrix, x_ij and x_ji are both yielded, although only one of them may be stored.
    """
    for first in range(0, len(stored.positions), max_cells):
        last = min(first + max_cells, len(stored.positions))
        shards = np.searchsorted(stored.offsets, np.arange(first, last), side="right") - 1
        rows, columns = stored.layout.find_cells(shards, stored.positions[first:last])
        units = stored.arrays.units(first, last)
        yield rows, columns, units

        if stored.symmetric:  # diagonal shards hold both mirrors already
            once = rows % stored.layout.row_blocks != columns % stored.layout.column_blocks
            yield columns[once], rows[once], units[once]


def shared_config(matrices: Sequence[Matrix]) -> dict[str, Any]:
    """Return the corpus and count settings that all matrices share; raise CountsError if they cannot be added."""
    first = matrices[0]
    for other in matrices[1:]:
        # Settings first: a different setting often changes the kind, and its message is more precise.
        _check_settings(first, other)
        _check_kinds(first, other)

    shared = {}
    for stage, settings in first.config.items():
        if stage in KEPT and all(matrix.config.get(stage) == settings for matrix in matrices):
            shared[stage] = settings

    return shared


def _check_settings(first: Matrix, other: Matrix) -> None:
    ours = _settings_of(first)
    theirs = _settings_of(other)

    for name in ours:
        if theirs.get(name, ours[name]) != ours[name]:
            raise CountsError(
                f"{first.path} and {other.path} were counted differently: {name} is {ours[name]} in the first and "
                f"{theirs[name]} in the second; count both with the same settings"
            )


def _check_kinds(first: Matrix, other: Matrix) -> None:
    if _kind(first) != _kind(other):
        raise CountsError(
            f"{first.path} has {_describe_columns(first)}, {other.path} has {_describe_columns(other)}: "
            "they cannot be added"
        )


def _kind(matrix: Matrix) -> tuple[Any, ...]:
    return matrix.is_symmetric, matrix.columns_per_row, matrix.column_parts


def _describe_columns(matrix: Matrix) -> str:
    if matrix.column_parts:
        return f"{len(matrix.column_parts)} columns per row ({', '.join(matrix.column_parts)})"
    if not matrix.columns_per_row:
        return "columns with their own labels"
    if matrix.is_symmetric:
        return "the same rows and columns (symmetric)"
    return "the same labels for rows and columns"


def _settings_of(matrix: Matrix) -> dict[str, Any]:
    """Return the settings that change the meaning of a count."""
    stages = matrix.config
    if "count" in stages:
        config = CountConfig(**stages["count"])
        return {name: getattr(config, name) for name in COUNT_SETTINGS if name != "near" or config.has_bands}
    return {name: stages["import"][name] for name in IMPORT_SETTINGS if name in stages.get("import", {})}


def add_matrices(matrices: Sequence[Matrix], target: SumTarget, options: RunOptions) -> Matrix:
    """Write the sum of several matrices and return it.

    Parameters
    ----------
    matrices
        Matrices of the same kind (see `shared_config`); their vocabularies may differ.
    target
        Output folder and the content of its manifest.
    options
        Memory budget, threads, progress.

    Raises
    ------
    CountsError
        The matrices are of different kinds, or their units are too different for an exact sum.
    """
    shared_config(matrices)
    unit = _common_unit(matrices)
    spec = _merge_labels(matrices, unit)
    terms = [_make_term(matrix, spec) for matrix in matrices]
    cells = sum(len(matrix.stored.positions) for matrix in matrices)
    memory = options.memory_bytes
    disk, sorting = building_bytes(cells * (2 if spec.symmetric else 1), memory)
    ResourceEstimate("adding", disk, sorting, disk, "add fewer matrices at a time").announce(
        target.path, options.progress
    )
    max_cells = max(1, min(_PIECE_CELLS, memory // (_PIECE_SHARE * _BYTES_PER_CELL)))
    builder = MatrixBuilder(
        target.path,
        spec,
        memory_bytes=memory - memory // _PIECE_SHARE,
        threads=options.thread_count,
        overwrite=options.overwrite,
    )

    with builder, track(options.progress, "adding", cells, "cells") as task:
        for term in terms:
            _add_term(builder, term, max_cells, task)
        return builder.finish(config=target.config, inputs=target.inputs)


def _add_term(builder: MatrixBuilder, term: _Term, max_cells: int, task: Task) -> None:
    for rows, columns, units in term.pieces(max_cells):
        builder.add(rows, columns, units)
        task.advance(len(rows) / (2 if term.matrix.is_symmetric else 1))


def _common_unit(matrices: Sequence[Matrix]) -> int:
    """Return the unit in which all counts are whole numbers."""
    unit = math.lcm(*(matrix.unit for matrix in matrices))
    if sum(int(matrix.facts["total_units"]) * (unit // matrix.unit) for matrix in matrices) >= _MAX_UNITS:
        units = ", ".join(f"1/{matrix.unit:,} ({matrix.path})" for matrix in matrices)
        raise CountsError(
            f"counts in units of {units} are too different for an exact sum; scale the counts and import them again"
        )
    return unit


def _merge_labels(matrices: Sequence[Matrix], unit: int) -> MatrixSpec:
    """Return the spec of the sum: the labels of all matrices in descending order of count."""
    rows = _merge(matrix.rows for matrix in matrices)
    columns: Vocabulary | None = None
    parts = matrices[0].column_parts

    if parts:
        columns = _merge_parts(matrices, rows)
    elif not matrices[0].columns_per_row:
        columns = _merge(matrix.columns for matrix in matrices)

    return MatrixSpec(
        rows=rows, columns=columns, unit=unit, symmetric=matrices[0].is_symmetric, column_parts=tuple(parts)
    )


def _merge(vocabularies: Iterable[Vocabulary]) -> Vocabulary:
    counts = _sum_counts(vocabularies)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Vocabulary([token for token, _ in ranked], [count for _, count in ranked])


def _sum_counts(vocabularies: Iterable[Vocabulary]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for vocabulary in vocabularies:
        for token, count in zip(vocabulary.tokens, vocabulary.counts.tolist(), strict=True):
            counts[token] += count
    return counts


def _merge_parts(matrices: Sequence[Matrix], rows: Vocabulary) -> Vocabulary:
    """Return the column labels if each row has several columns: adjacent, in the order of the rows."""
    parts = len(matrices[0].column_parts)
    labels = [""] * (parts * len(rows))

    for matrix in matrices:
        for token, first in zip(matrix.rows, range(0, parts * len(matrix.rows), parts), strict=True):
            start = parts * rows.ids[token]
            labels[start : start + parts] = matrix.columns.tokens[first : first + parts]

    counts = _sum_counts(matrix.columns for matrix in matrices)
    return Vocabulary(labels, [counts[label] for label in labels])


def _make_term(matrix: Matrix, spec: MatrixSpec) -> _Term:
    rows = _places(matrix.rows, spec.rows)
    columns = rows if spec.columns is None else _places(matrix.columns, spec.columns)
    return _Term(matrix, rows, columns, spec.unit // matrix.unit)


def _places(vocabulary: Vocabulary, merged: Vocabulary) -> Ids:
    return np.array([merged.ids[token] for token in vocabulary], np.int64)
