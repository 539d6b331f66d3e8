"""Matrices of different vocabularies as one: cells of equal labels are summed.

Receives finished matrices that were counted in the same way; hands on one that the builder wrote. Cells go by in
pieces, whole numbers of a unit that all matrices share, so that the sum is exact. It does not know text.
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
# Of a matrix's making, what has to be the same; what was imported as it is says nothing of windows.
COUNT_SETTINGS = ("window_left", "window_right", "weight", "columns", "near", "oov")
IMPORT_SETTINGS = ("window", "weight")
KEPT = ("corpus", "count")  # what the manifest of a sum says of its terms, where it is the same for all
_PIECE_CELLS = 1 << 18
_PIECE_SHARE, _BYTES_A_CELL = 8, 160  # of the memory, for pieces; a piece with its mirror, on its way to the builder
_MOST_UNITS = 1 << 62


@dataclass(frozen=True, slots=True)
class SumTarget:
    """Where the sum goes and what its manifest says of its making."""

    path: Path
    config: Mapping[str, Any]
    inputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Term:
    """A matrix that is added: where its rows and columns go, and what its units are multiplied by."""

    matrix: Matrix
    rows: Ids
    columns: Ids
    factor: int

    def pieces(self, most: int) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Yield all cells, both mirrors, as rows, columns and units of the sum."""
        for rows, columns, units in walk_cells(self.matrix.stored, most):
            yield self.rows[rows], self.columns[columns], units * self.factor


def walk_cells(stored: MatrixCells, most: int) -> Iterator[tuple[Ids, Ids, Ids]]:
    """Yield rows, columns and units of all cells, both mirrors of a symmetric matrix, at most so many at a time."""
    for first in range(0, len(stored.positions), most):
        last = min(first + most, len(stored.positions))
        shards = np.searchsorted(stored.offsets, np.arange(first, last), side="right") - 1
        rows, columns = stored.layout.find_cells(shards, stored.positions[first:last])
        units = stored.arrays.units(first, last)
        yield rows, columns, units
        if stored.symmetric:  # Diagonal shards are stored whole.
            once = rows % stored.layout.row_blocks != columns % stored.layout.column_blocks
            yield columns[once], rows[once], units[once]


def shared_config(matrices: Sequence[Matrix]) -> dict[str, Any]:
    """Return the settings of reading and counting that matrices share; raise CountsError where they cannot be added."""
    first = matrices[0]
    for other in matrices[1:]:
        _check_settings(first, other)  # before the kinds, which differ where a setting does: it says more
        _check_kinds(first, other)
    return {
        stage: settings
        for stage, settings in first.config.items()
        if stage in KEPT and all(matrix.config.get(stage) == settings for matrix in matrices)
    }


def _check_settings(first: Matrix, other: Matrix) -> None:
    ours, theirs = _settings_of(first), _settings_of(other)
    for name in ours:
        if theirs.get(name, ours[name]) != ours[name]:
            raise CountsError(
                f"{first.path} and {other.path} were counted differently: {name} is {ours[name]} in the one, "
                f"{theirs[name]} in the other; count both with the same"
            )


def _check_kinds(first: Matrix, other: Matrix) -> None:
    if _kind(first) != _kind(other):
        raise CountsError(
            f"{first.path} has {_describe_columns(first)}, {other.path} has {_describe_columns(other)}: "
            "they do not add up"
        )


def _kind(matrix: Matrix) -> tuple[Any, ...]:
    return matrix.is_symmetric, matrix.columns_per_row, matrix.column_parts


def _describe_columns(matrix: Matrix) -> str:
    if matrix.column_parts:
        return f"{len(matrix.column_parts)} columns a row ({', '.join(matrix.column_parts)})"
    if not matrix.columns_per_row:
        return "columns with labels of their own"
    return "columns that mirror its rows (symmetric)" if matrix.is_symmetric else "its rows' labels as columns"


def _settings_of(matrix: Matrix) -> dict[str, Any]:
    """Return the settings that change what a count is."""
    made = matrix.config
    if "count" in made:
        config = CountConfig(**made["count"])
        return {name: getattr(config, name) for name in COUNT_SETTINGS if name != "near" or config.has_bands}
    return {name: made["import"][name] for name in IMPORT_SETTINGS if name in made.get("import", {})}


def add_matrices(matrices: Sequence[Matrix], target: SumTarget, options: RunOptions) -> Matrix:
    """Write the sum of matrices and return it.

    Parameters
    ----------
    matrices
        Of the same kind (see `shared_config`); vocabularies may differ.
    target
        Folder, and what the manifest says.
    options
        Memory to stay inside, threads, progress.

    Raises
    ------
    CountsError
        The matrices are of different kinds, or their units are too different to be summed exactly.
    """
    shared_config(matrices)
    unit = _common_unit(matrices)
    spec = _merge_labels(matrices, unit)
    terms = [_make_term(matrix, spec) for matrix in matrices]
    cells = sum(len(matrix.stored.positions) for matrix in matrices)
    memory = options.memory_bytes
    disk, sorting = building_bytes(cells * (2 if spec.symmetric else 1), memory)
    ResourceEstimate("adding", disk, sorting, disk, "add fewer at a time").announce(target.path, options.progress)
    most = max(1, min(_PIECE_CELLS, memory // (_PIECE_SHARE * _BYTES_A_CELL)))
    builder = MatrixBuilder(
        target.path,
        spec,
        memory_bytes=memory - memory // _PIECE_SHARE,
        threads=options.thread_count,
        overwrite=options.overwrite,
    )
    with builder, track(options.progress, "adding", cells, "cells") as task:
        for term in terms:
            _add_term(builder, term, most, task)
        return builder.finish(config=target.config, inputs=target.inputs)


def _add_term(builder: MatrixBuilder, term: _Term, most: int, task: Task) -> None:
    for rows, columns, units in term.pieces(most):
        builder.add(rows, columns, units)
        task.advance(len(rows) / (2 if term.matrix.is_symmetric else 1))


def _common_unit(matrices: Sequence[Matrix]) -> int:
    """Return the unit in which all counts are whole numbers."""
    unit = math.lcm(*(matrix.unit for matrix in matrices))
    if sum(int(matrix.facts["total_units"]) * (unit // matrix.unit) for matrix in matrices) >= _MOST_UNITS:
        units = ", ".join(f"1/{matrix.unit:,} ({matrix.path})" for matrix in matrices)
        raise CountsError(f"counts in units of {units} are too different to be summed exactly; scale them and import")
    return unit


def _merge_labels(matrices: Sequence[Matrix], unit: int) -> MatrixSpec:
    """Return what the sum is of: labels of all matrices by falling count."""
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
    """Return the columns' labels where each row has some: they lie beside each other, in the order of the rows."""
    parts = len(matrices[0].column_parts)
    labels = [""] * (parts * len(rows))
    for matrix in matrices:
        for token, first in zip(matrix.rows, range(0, parts * len(matrix.rows), parts), strict=True):
            place = parts * rows.ids[token]
            labels[place : place + parts] = matrix.columns.tokens[first : first + parts]
    counts = _sum_counts(matrix.columns for matrix in matrices)
    return Vocabulary(labels, [counts[label] for label in labels])


def _make_term(matrix: Matrix, spec: MatrixSpec) -> _Term:
    rows = _places(matrix.rows, spec.rows)
    columns = rows if spec.columns is None else _places(matrix.columns, spec.columns)
    return _Term(matrix, rows, columns, spec.unit // matrix.unit)


def _places(vocabulary: Vocabulary, merged: Vocabulary) -> Ids:
    return np.array([merged.ids[token] for token in vocabulary], np.int64)
