"""Recall@20 of rows and of columns that were folded in, against those of a training that had them.

A fifth of the cells is held out. A tenth of the rows is left out of the training and folded in, and likewise a tenth of
the columns. Three figures, each the mean of several seeds: Recall@20 of the new rows; that of all rows, whose columns
include the new ones; and that of the new columns, for which rows are ranked ("who would like this?").
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import swivel
from common import keep, make_parser, parse_arguments, write_table
from folding import read_table
from swivel.errors import SwivelWarning

MEASURES = ("swivel.recommender", "swivel.training.fold_in", "swivel.training.objective_torch")
GOAL = 0.97
KINDS = ("new_rows", "all_rows_with_new_columns", "rows_of_new_columns")
Cells = list[tuple[str, str, float]]


def list_cells(matrix: swivel.Matrix) -> Cells:
    cells = scipy.sparse.coo_array(matrix.to_scipy())
    rows, columns = (
        [labels[number] for number in ids.tolist()]
        for labels, ids in zip((matrix.rows, matrix.columns), cells.coords, strict=True)
    )
    return list(zip(rows, columns, cells.data.tolist(), strict=True))


def fit(cells: Cells, seed: int, arguments: argparse.Namespace) -> swivel.Recommender:
    matrix = swivel.import_counts(cells)
    settings: dict[str, Any] = {} if arguments.epochs is None else {"epochs": arguments.epochs}
    return swivel.Recommender(swivel.train(matrix, dim=arguments.dim, seed=seed, recipe="table", **settings), matrix)


def measure_seed(train: Cells, test: Cells, seed: int, arguments: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return the recall of a training with everything, and that of folding in, for each of `KINDS`."""
    rng = np.random.default_rng(seed)
    trained = fit(train, seed, arguments)
    recalls = {}
    for side in (0, 1):
        names = sorted({cell[side] for cell in train})
        new = {*rng.choice(names, max(1, round(arguments.share * len(names))), replace=False).tolist()}
        known = [cell for cell in train if cell[side] not in new]
        folded = fit(known, seed, arguments).extend([cell for cell in train if cell[side] in new])

        held_out = [cell for cell in test if cell[side] in new]
        if side == 0:
            recalls["new_rows"] = trained.evaluate(held_out).recall, folded.evaluate(held_out).recall
            continue
        recalls["all_rows_with_new_columns"] = trained.evaluate(test).recall, folded.evaluate(test).recall
        flipped = [(column, row, count) for row, column, count in held_out]
        recalls["rows_of_new_columns"] = trained.T.evaluate(flipped).recall, folded.T.evaluate(flipped).recall
    return recalls


def measure_table(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the mean figures of all seeds."""
    table = read_table(path)
    train, test = map(list_cells, swivel.split_table(swivel.import_counts(table), seed=1))
    runs = [measure_seed(train, test, seed, arguments) for seed in range(1, arguments.seeds + 1)]

    result: dict[str, Any] = {"shape": table.shape, "cells": table.nnz}
    for kind in KINDS:
        trained, folded = np.mean([run[kind] for run in runs], axis=0).tolist()
        ratio = folded / trained if trained else None
        result[kind] = {"trained": round(trained, 4), "folded_in": round(folded, 4)}
        result[kind] |= {"ratio": ratio and round(ratio, 4), "goal_reached": ratio is not None and ratio >= GOAL}
    print(path.stem, result, flush=True)
    return result


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("tables", type=Path, nargs="*", metavar="TABLE", help="triples or the folder of a matrix")
    parser.add_argument("--share", type=float, default=0.1, help="of the rows, and of the columns, to fold in")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parse_arguments(parser, tables=lambda folder: [write_table(folder)], dim=4, epochs=2, seeds=1)
    # Rare labels may have no cells left, and are left out.
    warnings.simplefilter("ignore", SwivelWarning)

    keep(arguments, {"tables": {path.stem: measure_table(path, arguments) for path in arguments.tables}})


if __name__ == "__main__":
    main()
