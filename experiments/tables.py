"""Compare methods that rank the cells of a table, on one split of any table.

    python -m experiments.tables TABLE -o FOLDER

The cells are split at random: 60 % to train, 20 % to choose the settings of each method, 20 % for the report. A method
whose library is not installed is left out. Run the same command again to resume: finished methods are not run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import swivel
from experiments.report import HTML, MARKS, describe_machine, format_figure, format_range, mark_figure, write_report
from experiments.stages import Stages, run_command
from experiments.table_methods import METHODS, choose_fit, find_method, split_in_three, why_left_out
from swivel.cli.flags import Command, resource_options
from swivel.cli.tables import table_options
from swivel.cli.terminal import draw_table, show
from swivel.errors import ConfigError
from swivel.evaluation.bootstrap import Doubles, Interval, percentile_interval
from swivel.reports.html import (
    Cell,
    write_details,
    write_facts,
    write_heading,
    write_page,
    write_paragraph,
    write_table,
)
from swivel.runtime.options import RunOptions

METRICS = ("recall", "ndcg")
DRAWS = 2_000  # of the bootstrap: a table may have many rows


@dataclass(frozen=True, slots=True)
class TableScore:
    """A mean over rows, its 95 % interval, and that of the first method minus this one (None for the first)."""

    figure: float
    interval: Interval | None
    difference: Interval | None


@dataclass(frozen=True, slots=True)
class TableMethod:
    """The results of one method on the test cells: scores by metric, and the fit that was chosen."""

    name: str
    scores: Mapping[str, TableScore]
    settings: str
    tried: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class TableResults:
    """The results of all methods on one split of a table; `left_out` has the reasons for those that did not run."""

    table: Mapping[str, Any]
    methods: tuple[TableMethod, ...]
    left_out: Mapping[str, str]
    machine: Mapping[str, Any]

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the table of figures, as texts."""
        rows = []
        for method in self.methods:
            scores = [
                f"{format_figure(each.figure)} ({format_range(each.interval)})" for each in method.scores.values()
            ]
            rows.append([method.name, *scores, f"{method.cpu_seconds:.1f}", method.settings])
        return ["method", *self.headers(), "CPU s per fit", "settings"], rows

    def headers(self) -> list[str]:
        """Return the names of the metrics; k is 20, or the number of columns if there are fewer."""
        k = min(20, self.table["columns"])
        return [f"Recall@{k}", f"NDCG@{k}"]


def rank_cells(out: Path, matrix: Path, method: str, dim: int, *, options: RunOptions) -> None:
    """Fit a method, and save how it ranks the test cells of each row."""
    import scipy.sparse

    split = split_in_three(scipy.sparse.csr_array(swivel.open_matrix(matrix).to_scipy()))
    chosen = choose_fit(find_method(method, options), split, dim)

    facts = {"settings": chosen.settings, "tried": chosen.tried, "cpu_seconds": chosen.cpu_seconds}
    facts |= {"cells": chosen.report.cells, "per_row": chosen.report.per_row[:, : len(METRICS)].tolist()}
    out.write_text(json.dumps(facts), encoding="utf-8")


def run_tables(
    table: Path, out: Path, methods: Sequence[str], dim: int, options: RunOptions, **settings: Any
) -> TableResults:
    """Run all methods that are not finished, and write the report; `settings` are those of `swivel.import_counts`."""
    if not methods or len({*methods}) < len(methods) or not {*methods} <= {*METHODS}:
        raise ConfigError(f"methods must be different ones of {', '.join(METHODS)}, got {', '.join(methods)!r}")

    if (table / "manifest.json").exists():
        if any(settings.values()):
            raise ConfigError("fields and header are for files, and this table is a matrix already: omit them")
        matrix = swivel.open_matrix(table)
    else:
        matrix = swivel.import_counts(table, out / "matrix", options=options, **settings)

    stages = Stages(out, options)
    files, left_out = {}, {}
    for name in methods:
        reason = why_left_out(name, matrix.shape[1])
        if reason is None:
            made_from = {"matrix": matrix.fingerprint, "method": name, "dim": dim}
            job = (rank_cells, matrix.path, name, dim)
            files[name] = stages.run(f"method {name}", out / "methods" / f"{name}.json", *job, made_from=made_from)
        else:
            left_out[name] = reason
            options.progress.message(f"{name} is left out: {reason}")
    if not files:
        raise ConfigError("no method is left to run: install what is missing, or choose other methods")

    rows, columns = matrix.shape
    described = {"name": table.name, "rows": rows, "columns": columns, "cells": matrix.cell_count, "dimensions": dim}
    results = gather_results(files, described, left_out, describe_machine(options.threads))
    write_report(out, compose_report(results), asdict(results))
    return results


def gather_results(
    files: Mapping[str, Path], table: Mapping[str, Any], left_out: Mapping[str, str], machine: Mapping[str, Any]
) -> TableResults:
    """Return the results from the files of the methods."""
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    per_row = np.array([each.pop("per_row") for each in found.values()])
    # All methods rank the same rows, so that the same draws give paired differences.
    means = draw_means(per_row.transpose(1, 0, 2).reshape(per_row.shape[1], -1))
    means = means.reshape(DRAWS, len(found), len(METRICS))

    methods = []
    for number, (name, facts) in enumerate(found.items()):
        cells = facts.pop("cells")
        scores = {}
        for column, metric in enumerate(METRICS):
            difference = percentile_interval(means[:, 0, column] - means[:, number, column]) if number else None
            figure = float(per_row[number, :, column].mean())
            scores[metric] = TableScore(figure, percentile_interval(means[:, number, column]), difference)
        methods.append(TableMethod(name, scores, **facts))

    counts = {"test rows": per_row.shape[1], "test cells": cells}
    return TableResults({**table, **counts}, tuple(methods), left_out, machine)


def draw_means(values: Doubles, draws: int = DRAWS) -> Doubles:
    """Return the means (draws, columns) of the columns of `values` over resamplings of its rows.

    >>> low, high = percentile_interval(draw_means(np.arange(100.0)[:, None])[:, 0])
    >>> 43 < low < 45 and 54 < high < 56
    True
    """
    rng = np.random.default_rng(1)
    rows = len(values)
    return np.array([rng.multinomial(rows, np.full(rows, 1 / rows)) @ values / rows for _ in range(draws)])


def compose_report(results: TableResults) -> str:
    """Return the report as a page."""
    table = results.table
    best = {metric: max(method.scores[metric].figure for method in results.methods) for metric in METRICS}
    rows: list[tuple[Cell, ...]] = []
    for method in results.methods:
        scores = [
            (
                mark_figure(score.figure, score.difference, is_best=score.figure == best[metric]),
                format_range(score.interval),
            )
            for metric, score in method.scores.items()
        ]
        cost = (f"{method.cpu_seconds:,.1f}", "" if method.tried == 1 else f"{method.tried} settings")
        rows.append(((method.name, METHODS[method.name]), *scores, cost, method.settings))

    blocks: list[str] = [
        write_heading("The table"),
        write_paragraph(
            "The cells were split at random: 60 % to train, 20 % to choose settings on, 20 % for this table "
            f"({table['test cells']:,} cells of {table['test rows']:,} rows). Each method ranks the columns that a row "
            "does not have among the other cells; figures are means over rows. Below each is its 95 % bootstrap "
            f"interval over rows. {MARKS}"
        ),
        write_table(("", *results.headers(), "CPU seconds of a fit", "settings chosen"), rows),
        write_paragraph(
            "CPU seconds are those of all threads, for the longest of the fits that settings were chosen from, without "
            "their evaluation; those of `tuned` include its whole search."
        ),
        *(
            write_paragraph(f"`{name}` ({METHODS[name]}) is left out: {reason}.")
            for name, reason in results.left_out.items()
        ),
        write_details("Table", write_facts(table)),
        write_details("Machine and versions", write_facts(results.machine)),
    ]
    density = table["cells"] / (table["rows"] * table["columns"])
    size = f"{table['rows']:,} rows, {table['columns']:,} columns, {table['cells']:,} observed cells ({density:.2%})"
    subtitle = f"{table['name']}: {size}. Vectors of {table['dimensions']} dimensions."
    return write_page("Swivel: methods on one table", subtitle, blocks)


@click.command(cls=Command)
@click.argument("table", metavar="TABLE")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for everything, report.html included")
@click.option(
    "--methods", default=",".join(METHODS), show_default=True, help="what to compare, the first with the others"
)
@click.option("--dim", type=int, default=64, show_default=True, help="dimensions of a vector")
@table_options
@resource_options
def main(table: str, output: str, methods: str, dim: int, options: RunOptions, **settings: Any) -> None:
    """Rank held-out cells of TABLE by several methods, and write report.html; run it again to resume.

    TABLE: a file that `swivel import` reads, or the folder of a matrix. Methods: Swivel, ALS (if the package implicit
    is installed), SVD of PPMI, EASE, item2vec (gensim) and popularity.
    """
    names = [name.strip() for name in methods.split(",")]
    results = run_tables(Path(table), Path(output), names, dim, options, **settings)
    show(asdict(results), lambda: draw_table(*results.rows()))
    options.progress.message(f"the report: {Path(output) / HTML}")


if __name__ == "__main__":
    run_command(main)
