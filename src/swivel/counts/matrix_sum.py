"""Add matrices with different vocabularies: the counts of equal labels are summed.

The matrices must have been counted with the same settings. Cells are streamed in pieces, as integers in a unit that all
matrices share, so the sum is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swivel.config import CountConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.block_layout import Ints
from swivel.counts.builder import MatrixBuilder, MatrixSpec, OwnSums, building_bytes
from swivel.counts.matrix import STAGE, Matrix
from swivel.errors import CountsError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.runtime.resources import ResourceEstimate, check_memory

# Settings that must be equal. Imported counts have no window.
COUNT_SETTINGS = ("window_left", "window_right", "weight", "columns", "near", "oov")
READING_SETTINGS = ("encoding", "errors")  # of a text, which may differ
_PIECE_CELLS = 1 << 18
_PIECE_SHARE = 8  # one eighth of the memory is for pieces
_BYTES_PER_CELL = 160  # memory for a cell of a piece and its mirror
_BYTES_PER_LABEL = 300  # measured with labels of 20 bytes: those of the matrices, of the sum, and their places
_MAX_UNITS = 1 << 62


def shared_config(matrices: Sequence[Matrix]) -> dict[str, Any]:
    """Return the corpus and count settings that all matrices share, and what each imported matrix contributes.

    Raises CountsError if they cannot be added.
    """
    first = matrices[0]
    for other in matrices[1:]:
        # Settings first: a different setting often changes the columns, and its message is more precise.
        ours = _settings_of(first)
        theirs = _settings_of(other)
        name = next((name for name in ours if theirs.get(name, ours[name]) != ours[name]), None)
        if name is not None:
            raise CountsError(
                f"{first.path} and {other.path} were counted differently: {name} is {ours[name]} in the first and "
                f"{theirs[name]} in the second; count both with the same settings"
            )
        if _describe_columns(first) != _describe_columns(other):
            raise CountsError(
                f"{first.path} has {_describe_columns(first)}, {other.path} has {_describe_columns(other)}: "
                "they cannot be added"
            )

    common: dict[str, Any] = {}
    for stage, settings in first.config.items():
        others = [matrix.config.get(stage, {}) for matrix in matrices[1:]]
        if stage == "corpus" and all(others):
            # Settings of reading may differ, such as the encoding; the sum has only those that are equal.
            shared = [name for name in settings if all(other.get(name) == settings[name] for other in others)]
            common[stage] = {name: settings[name] for name in shared}
        elif stage in ("count", "graph") and all(other == settings for other in others):
            common[stage] = settings

    if not any("count" in matrix.config for matrix in matrices):
        common["sum"] = {"sites": describe_sites(matrices)}
    return common


def _settings_of(matrix: Matrix) -> dict[str, Any]:
    """Return the settings that change the meaning of a count."""
    if "count" not in matrix.config:
        return {}
    config = CountConfig(**matrix.config["count"])
    text = matrix.config.get("corpus", {})
    joins = text.get("phrases", "none") != "none"
    names = [name for name in text if name not in READING_SETTINGS and (joins or not name.startswith("phrase_"))]
    window = {name: getattr(config, name) for name in COUNT_SETTINGS if name != "near" or config.has_bands}
    return {name: text[name] for name in names} | window


def _describe_columns(matrix: Matrix) -> str:
    if matrix.column_parts:
        return f"{len(matrix.column_parts)} columns per row ({', '.join(matrix.column_parts)})"
    if not matrix.columns_per_row:
        return "columns with their own labels"
    if matrix.is_symmetric:
        return "the same rows and columns (symmetric)"
    return "the same labels for rows and columns"


def add_matrices(matrices: Sequence[Matrix], path: Path, provenance: Mapping[str, Any], options: RunOptions) -> Matrix:
    """Write the sum of matrices that `shared_config` accepts to a folder and return it."""
    labels = sum(matrix.shape[0] + (0 if matrix.columns_per_row == 1 else matrix.shape[1]) for matrix in matrices)
    check_memory(f"adding matrices with {labels:,} labels", _BYTES_PER_LABEL * labels)
    spec = _merge_specs(matrices)
    cells = sum(matrix.stored_cell_count for matrix in matrices)
    copies = 2 if spec.symmetric else 1  # of each cell: it is added together with its mirror
    memory = options.fix_memory().memory_bytes
    disk, sorting = building_bytes(copies * cells, memory)
    estimate = ResourceEstimate("adding", disk, sorting, disk, "add fewer matrices at a time")
    estimate.announce(path, options.progress)

    max_cells = max(1, min(_PIECE_CELLS, memory // (_PIECE_SHARE * _BYTES_PER_CELL)))
    builder = MatrixBuilder(
        path,
        spec,
        memory_bytes=memory - memory // _PIECE_SHARE,
        threads=options.thread_count,
        overwrite=options.overwrite,
    )

    with builder, track(options.progress, "adding", cells, "cells") as task:
        for matrix in matrices:
            row_places = _find_places(matrix.rows, spec.rows)
            column_places = row_places if spec.columns is None else _find_places(matrix.columns, spec.columns)
            factor = spec.unit // matrix.unit

            for rows, columns, units in matrix.walk(max_cells):
                builder.add(row_places[rows], column_places[columns], units * factor)
                task.advance(len(rows) / copies)

        own_sums = any(matrix.has_own_sums for matrix in matrices)
        # A cell that no matrix has may be below the limit of each of them.
        bound = sum(matrix.absent_units * (spec.unit // matrix.unit) for matrix in matrices)
        return builder.finish(**provenance, sums=_add_sums(matrices, spec) if own_sums else None, absent_units=bound)


def _add_sums(matrices: Sequence[Matrix], spec: MatrixSpec) -> OwnSums:
    """Return the sums of equal labels, in the unit and the order of the sum."""
    row_sums = np.zeros(len(spec.rows), np.int64)
    column_sums = np.zeros(spec.column_count, np.int64)
    total = 0
    for matrix in matrices:
        scale = spec.unit // matrix.unit
        total += matrix.total_units * scale
        row_sums[_find_places(matrix.rows, spec.rows)] += matrix.row_sums_units * scale
        column_sums[_find_places(matrix.columns, spec.columns or spec.rows)] += matrix.column_sums_units * scale

    return OwnSums(row_sums, row_sums if spec.symmetric else column_sums, total)


def describe_sites(matrices: Sequence[Matrix]) -> list[dict[str, Any]]:
    """Return what each imported matrix contributes to a sum; those of a matrix that is a sum itself are its own."""
    sites: list[dict[str, Any]] = []
    for matrix in matrices:
        rows, columns = matrix.shape
        site: dict[str, Any] = {"rows": rows, "columns": columns, "cells": matrix.cell_count, "total": matrix.total}
        if matrix.path is not None:
            folder = matrix.path.resolve()
            site = {"name": folder.parent.name if folder.name == STAGE else folder.name, **site}
        limit = matrix.config.get("import", {}).get("suppressed_below")
        if matrix.suppressed_below is not None:
            site["suppressed_below"] = matrix.suppressed_below
        elif limit is not None:  # its suppressed cells are marked, and read as a count
            site["marked_below"] = limit
        sites += matrix.config.get("sum", {}).get("sites", [site])
    return sites


def _find_places(vocabulary: Vocabulary, merged: Vocabulary) -> Ints:
    return np.array([merged.ids[token] for token in vocabulary], np.int64)


def _merge_specs(matrices: Sequence[Matrix]) -> MatrixSpec:
    first = matrices[0]
    rows = _merge(matrix.rows for matrix in matrices)
    columns: Vocabulary | None = None
    if first.column_parts:
        columns = _merge_parts(matrices, rows)
    elif not first.columns_per_row:
        columns = _merge(matrix.columns for matrix in matrices)

    return MatrixSpec(
        rows=rows,
        columns=columns,
        unit=_find_common_unit(matrices),
        symmetric=first.is_symmetric,
        column_parts=first.column_parts,
    )


def _find_common_unit(matrices: Sequence[Matrix]) -> int:
    """Return the unit in which all counts are whole numbers."""
    # Counts in units of 1/2 and 1/3 are whole numbers in units of 1/6, so the sum needs no rounding.
    unit = math.lcm(*(matrix.unit for matrix in matrices))
    if sum(int(matrix.total_units) * (unit // matrix.unit) for matrix in matrices) >= _MAX_UNITS:
        units = ", ".join(f"1/{matrix.unit:,} ({matrix.path})" for matrix in matrices)
        raise CountsError(
            f"counts in units of {units} are too different for an exact sum; scale the counts and import them again"
        )
    return unit


def _merge(vocabularies: Iterable[Vocabulary], tokens: Sequence[str] | None = None) -> Vocabulary:
    """Return the sum of vocabularies, of the given tokens or of all in descending order of count."""
    counts: Counter[str] = Counter()
    for vocabulary in vocabularies:
        for token, count in zip(vocabulary.tokens, vocabulary.counts.tolist(), strict=True):
            counts[token] += count

    if tokens is None:
        tokens = sorted(counts, key=lambda token: (-counts[token], token))
    return Vocabulary(tokens, [counts[token] for token in tokens])


def _merge_parts(matrices: Sequence[Matrix], rows: Vocabulary) -> Vocabulary:
    """Return the column labels if each row has several columns: adjacent, in the order of the rows."""
    parts = len(matrices[0].column_parts)
    labels = [""] * (parts * len(rows))

    for matrix in matrices:
        for token, first in zip(matrix.rows, range(0, parts * len(matrix.rows), parts), strict=True):
            start = parts * rows.ids[token]
            labels[start : start + parts] = matrix.columns.tokens[first : first + parts]

    return _merge((matrix.columns for matrix in matrices), labels)
