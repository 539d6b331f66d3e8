"""Held-out cells of tables, ranked by Swivel's recipe `table` without tuning and by methods tuned on validation.

The cells of a table are split at random: 60 % to train, 20 % for validation, 20 % for the test. ALS, iALS, SVD of PPMI
and EASE take the settings that are best on validation, of at most 25 that are tried; Swivel takes those that follow
from the table. Seen cells are not ranked. A table is a file that `swivel import` reads: experiments/tables.md says
where ours are from. ALS needs the package `implicit`. `--resume` adds to the result file what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import scipy.sparse

import swivel
from common import RESULTS, keep, make_parser, parse_arguments, write_table
from experiments.table_methods import (
    METHODS,
    Table,
    TableSplit,
    choose_fit,
    find_method,
    split_in_three,
    why_left_out,
)
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

MEASURES = (
    "swivel.training.table_settings",
    "swivel.recommender",
    "swivel.evaluation.table_ranking",
    "experiments/table_methods.py",
)
OPTIONS = RunOptions(progress=SILENT)
WITHOUT_DIMS = ("ease", "popularity")


def read_table(path: Path) -> Table:
    """Return the counts of a file."""
    return scipy.sparse.csr_array(swivel.import_counts(path, options=OPTIONS).to_scipy())


def measure_method(name: str, split: TableSplit, dim: int, *, refit: bool = False) -> dict[str, Any]:
    """Return the figures of a method on test cells, with the settings that are best on validation cells."""
    chosen = choose_fit(find_method(name, OPTIONS), split, dim, refit=refit)
    found: dict[str, Any] = {"recall": round(chosen.report.recall, 4), "ndcg": round(chosen.report.ndcg, 4)}
    found |= {"settings": chosen.settings, "tried": chosen.tried}
    return found | {"seconds": round(chosen.seconds, 2), "cpu_seconds": round(chosen.cpu_seconds, 2)}


def measure_methods(
    title: str, split: TableSplit, dims: Sequence[int], methods: Sequence[str], found: dict[str, Any], *, refit: bool
) -> None:
    """Add the figures of methods, by the number of dimensions, to `found`."""
    for name in methods:
        if why_left_out(name, split.train.shape[1]) is not None:
            continue
        measured = found.setdefault(name, {})
        for dim in dims[:1] if name in WITHOUT_DIMS else dims:
            if str(dim) not in measured and not (measured and name in WITHOUT_DIMS):
                measured[str(dim)] = measure_method(name, split, dim, refit=refit)
                print(title, name, dim, measured[str(dim)], flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 256])
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["popularity", "swivel", "svd", "als", "ials", "ease"]
    )
    parser.add_argument("--resume", action="store_true", help="add to the result file what it lacks")
    arguments = parse_arguments(parser, tables=lambda folder: [write_table(folder)], dims=[4])

    tables: dict[str, Any] = {}
    if arguments.resume:
        tables = json.loads((RESULTS / "ranking.json").read_text(encoding="utf-8"))["tables"]
    for path in arguments.tables:
        table = read_table(path)
        found = tables.setdefault(path.stem, {"shape": list(table.shape), "cells": int(table.nnz), "methods": {}})
        measure_methods(
            path.stem, split_in_three(table), arguments.dims, arguments.methods, found["methods"], refit=False
        )
        keep(arguments, {"tables": tables})


if __name__ == "__main__":
    main()
