"""The results of `swivel reproduce --table`, and their report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swivel.counts import Matrix
from swivel.evaluation.bootstrap import Doubles, Interval, draw_means, percentile_interval
from swivel.pipeline.reproduce.report import ABOVE, BELOW, format_figure, format_range, mark_difference, write_pages
from swivel.pipeline.reproduce.results import describe_machine
from swivel.reports.document import Block, Cell, Details, Document, Heading, Paragraph, Table, facts_table
from swivel.storage import open_folder

TABLE_METHODS = {
    "swivel": "Swivel, recipe table, nothing tuned",
    "tuned": "Swivel, recipe table, tuned on a tenth of its cells",
    "als": "weighted least squares (implicit)",
    "svd": "truncated SVD of positive PMI",
    "ease": "item-item regression, without dimensions",
    "item2vec": "skip-gram of the columns of a row (gensim)",
    "popularity": "the most common columns",
}
METRICS = ("recall", "ndcg")
_DRAWS = 2_000  # of the bootstrap: a table may have many rows


@dataclass(frozen=True, slots=True)
class TableScore:
    """A mean over rows, its 95 % interval, and that of the first method minus this one (None for the first)."""

    figure: float
    interval: Interval | None
    difference: Interval | None


@dataclass(frozen=True, slots=True)
class TableMethod:
    """The results of one method on the test cells."""

    name: str
    settings: str
    tried: int
    cpu_seconds: float
    scores: Mapping[str, TableScore]


@dataclass(frozen=True, slots=True)
class TableResults:
    """The results of all methods on one split of a table; `left_out` has the reasons for those that did not run."""

    table: Mapping[str, Any]
    dim: int
    methods: tuple[TableMethod, ...]
    left_out: Mapping[str, str]
    machine: Mapping[str, Any]

    @property
    def k(self) -> int:
        """Number of columns that are ranked for each row: 20, or all if there are fewer."""
        return min(20, int(self.table["columns"]))

    def to_dict(self) -> dict[str, Any]:
        """Return all values as JSON has them."""
        return asdict(self)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the table of figures, as texts."""
        header = ["method", f"Recall@{self.k}", f"NDCG@{self.k}", "CPU s per fit", "settings"]
        rows = [
            [
                method.name,
                *(
                    f"{format_figure(score.figure)} ({format_range(score.interval)})"
                    for score in method.scores.values()
                ),
                f"{method.cpu_seconds:.1f}",
                method.settings,
            ]
            for method in self.methods
        ]
        return header, rows


def gather_table(
    name: str,
    matrix: Matrix,
    folders: Mapping[str, Path],
    left_out: Mapping[str, str],
    *,
    dim: int,
    threads: int | None,
) -> TableResults:
    """Return the results of an experiment from the folders of its methods."""
    opened = {method: open_folder(folder, "ranking") for method, folder in folders.items()}
    values = np.stack([np.asarray(folder.array("per_row.npy"))[:, : len(METRICS)] for folder in opened.values()])
    # All methods rank the same rows, so that the same draws give paired differences.
    means = draw_means(values.transpose(1, 0, 2).reshape(values.shape[1], -1), draws=_DRAWS)
    means = means.reshape(_DRAWS, *values.shape[::2])

    methods = []
    for number, (method, folder) in enumerate(opened.items()):
        facts = folder.manifest.facts
        scores = {
            metric: _score(facts[metric], means[:, number, column], means[:, 0, column] if number else None)
            for column, metric in enumerate(METRICS)
        }
        methods.append(TableMethod(method, facts["settings"], facts["tried"], facts["cpu_seconds"], scores))

    rows, columns = matrix.shape
    facts = {"name": name, "rows": rows, "columns": columns, "cells": matrix.cell_count}
    facts |= {"test rows": values.shape[1], "test cells": folder.manifest.facts["cells"]}
    return TableResults(facts, dim, tuple(methods), dict(left_out), describe_machine(threads))


def _score(figure: float, draws: Doubles, first: Doubles | None) -> TableScore:
    difference = None if first is None else percentile_interval(first - draws)
    return TableScore(figure, percentile_interval(draws), difference)


def write_table_report(out: Path, results: TableResults) -> None:
    """Write `report.html`, `report.md` and `results.json`."""
    table = results.table
    density = table["cells"] / (table["rows"] * table["columns"])
    subtitle = (
        f"{table['name']}: {table['rows']:,} rows, {table['columns']:,} columns, {table['cells']:,} observed cells "
        f"({100 * density:.2g} %). Vectors of {results.dim} dimensions."
    )
    document = Document("Swivel: methods on one table", subtitle, tuple(_compose(results)))
    write_pages(out, document, results.to_dict())


def _compose(results: TableResults) -> Iterator[Block]:
    first = results.methods[0].name
    yield Heading("The table")
    yield Paragraph(
        "The cells were split at random: 60 % to train, 20 % to choose settings on, 20 % for this table "
        f"({results.table['test cells']:,} cells of {results.table['test rows']:,} rows). Each method ranks the "
        "columns that a row does not have among the other cells; figures are means over rows. Below each is its 95 % "
        f"bootstrap interval over rows; the best of each column is highlighted. {BELOW}: significantly below "
        f"`{first}`; {ABOVE}: significantly above it, by a paired bootstrap over the same rows (95 %, each column "
        "separately)."
    )
    best = {metric: max(method.scores[metric].figure for method in results.methods) for metric in METRICS}
    rows = [
        (
            Cell(method.name, TABLE_METHODS[method.name]),
            *(_score_cell(method.scores[metric], best[metric]) for metric in METRICS),
            Cell(f"{method.cpu_seconds:,.1f}", "" if method.tried == 1 else f"{method.tried} settings"),
            Cell(method.settings),
        )
        for method in results.methods
    ]
    header = ("", f"Recall@{results.k}", f"NDCG@{results.k}", "CPU seconds of a fit", "settings chosen")
    yield Table(header, tuple(rows))
    yield Paragraph(
        "CPU seconds are those of all threads, for the longest of the fits that settings were chosen from, without "
        "their evaluation; those of `tuned` include its whole search."
    )
    for name, reason in results.left_out.items():
        yield Paragraph(f"`{name}` ({TABLE_METHODS[name]}) is left out: {reason}.")
    yield Details("Table", (facts_table(results.table),))
    yield Details("Machine and versions", (facts_table(results.machine),))


def _score_cell(score: TableScore, best: float) -> Cell:
    mark = mark_difference(score.difference)
    return Cell(format_figure(score.figure), format_range(score.interval), score.figure == best, mark)
