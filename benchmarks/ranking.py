"""Held-out cells of tables, ranked by Swivel's recipe `table` without tuning and by methods tuned on validation.

The cells of a table are split at random: 60 % to train, 20 % for validation, 20 % for the test. ALS, iALS, SVD of PPMI,
EASE and item2vec take the settings that are best on validation, of at most 25 that are tried; Swivel takes those that
follow from the table, or, in the row `tuned`, chooses its weight decay on a part of the training cells. Seen cells are
not ranked. A table is a file that `swivel import` reads. ALS needs the package `implicit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import swivel
from common import keep, make_parser, parse_arguments, write_table
from experiments.table_methods import (
    METHODS,
    Table,
    TableSplit,
    choose_fit,
    find_method,
    prepare_swivel,
    split_in_three,
    why_left_out,
)
from swivel.evaluation import evaluate_ranking
from swivel.evaluation.table_ranking import RankingReport, Scores
from swivel.recommender import ColumnRanking
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

MEASURES = (
    "swivel.training.table_settings",
    "swivel.recommender",
    "swivel.evaluation.table_ranking",
    "experiments/table_methods.py",
)
OPTIONS = RunOptions(progress=SILENT)


def read_table(path: Path) -> Table:
    """Return the counts of a file."""
    return scipy.sparse.csr_array(swivel.import_counts(path, options=OPTIONS).to_scipy())


def describe(report: RankingReport) -> dict[str, float]:
    return {"recall": round(report.recall, 4), "ndcg": round(report.ndcg, 4)}


def measure_methods(split: TableSplit, dim: int, methods: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in methods:
        if why_left_out(name, split.train.shape[1]) is not None:
            continue
        chosen = choose_fit(find_method(name, OPTIONS), split, dim)
        found[name] = {"settings": chosen.settings, **describe(chosen.report), "tried": chosen.tried}
        found[name] |= {"seconds": round(chosen.seconds, 2), "cpu_seconds": round(chosen.cpu_seconds, 2)}
        print(name, found[name], flush=True)
    return found


def measure_new_rows(split: TableSplit, dim: int, share: float = 0.1, draws: int = 5) -> dict[str, Any]:
    """Return mean figures of a share of the rows: trained, folded into columns that were trained without them, and into
    columns that were trained with them, which shows what the columns, and not the folding in, have lost.
    """
    seen = split.train + split.validation
    trained = prepare_swivel(split.train, dim, options=OPTIONS)()
    known = fold_in_rows(split.train, np.zeros(split.train.shape[0], bool), dim)

    found: dict[str, list[RankingReport]] = {}
    for seed in range(1, draws + 1):
        is_new = np.random.default_rng(seed).random(split.train.shape[0]) < share
        held = scipy.sparse.csr_array(split.test.multiply(is_new[:, None]))
        folded = fold_in_rows(split.train, is_new, dim)
        ranked = {"trained": trained, "folded in": folded, "folded into columns that know them": known}
        for name, scores in ranked.items():
            found.setdefault(name, []).append(evaluate_ranking(scores, held, seen))
    return {name: describe_mean(reports) for name, reports in found.items()}


def describe_mean(reports: Sequence[RankingReport]) -> dict[str, float]:
    means = {name: np.mean([getattr(report, name) for report in reports]) for name in ("recall", "ndcg")}
    return {name: round(float(mean), 4) for name, mean in means.items()}


def fold_in_rows(train: Table, is_new: Any, dim: int) -> Scores:
    """Return scores of all rows, folded into columns that were trained without the new ones."""
    fitted = swivel.SwivelEmbedding(dim, recipe="table").fit(train[~is_new])
    ranking = ColumnRanking(fitted.column_vectors_, fitted.column_sums_, int((~is_new).sum()), fitted.popularity_)
    return lambda rows: ranking.score(fitted.transform(train[rows]))


def measure_table(table: Table, dim: int, methods: Sequence[str], *, with_new_rows: bool) -> dict[str, Any]:
    split = split_in_three(table)
    found = measure_methods(split, dim, methods)
    if with_new_rows:
        found["new rows"] = measure_new_rows(split, dim)
    return {"shape": list(table.shape), "cells": int(table.nnz), "methods": found}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=tuple(METHODS))
    parser.add_argument("--no-new-rows", action="store_true", help="do not fold in rows that were not trained")
    arguments = parse_arguments(parser, tables=lambda folder: [write_table(folder)], dim=4)
    measured = {}
    for path in arguments.tables:
        table = read_table(path)
        measured[path.stem] = measure_table(
            table, arguments.dim, arguments.methods, with_new_rows=not arguments.no_new_rows
        )
    keep(arguments, {"tables": measured})


if __name__ == "__main__":
    main()
