"""Held-out cells of tables, ranked by Swivel's recipe `table` without tuning and by methods tuned on validation.

The cells of a table are split at random: 60 % to train, 20 % for validation, 20 % for the test. ALS, SVD of PPMI and
EASE take the settings that are best on validation; Swivel takes those that follow from the table. Seen cells are not
ranked. A table is a file that `swivel import` reads. ALS is that of the package `implicit` if it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

import swivel
from common import cpu_seconds, keep, make_parser, parse_arguments, write_table
from swivel.evaluation import RankingReport, evaluate_ranking, split_table
from swivel.vectors.ranking import ColumnRanking

MEASURES = ("swivel.training.table_settings", "swivel.vectors.ranking", "swivel.evaluation.ranking")
POWERS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)  # of the singular values
RIDGES = (30.0, 100.0, 300.0, 1000.0)  # of EASE
DECAYS = (0.1, 1.0, 10.0, 30.0, 100.0)  # of ALS
ALPHAS = (1.0, 5.0, 20.0, 80.0)  # weight of an observed cell in ALS
ITERATIONS = 15
MAX_EASE_COLUMNS = 8_000
Scores = Callable[[NDArray[np.int64]], Any]
Counts = Any


def read_table(path: Path) -> Counts:
    """Return the counts of a file."""
    return scipy.sparse.csr_array(swivel.import_counts(path).to_scipy())


def multiply(rows: Any, columns: Any, ids: NDArray[np.int64]) -> Any:
    """Return the products of some rows with all columns."""
    return rows[ids] @ columns


def score_popularity(train: Counts) -> Scores:
    popularity = np.asarray(train.astype(bool).sum(axis=0)).ravel()
    return lambda rows: np.tile(popularity, (len(rows), 1))


def score_svd(train: Counts, dim: int) -> Iterable[tuple[str, Scores]]:
    cells = train.tocoo()
    row_sums, column_sums = train.sum(axis=1), train.sum(axis=0)
    pmi = np.log(cells.data * cells.data.sum() / (row_sums[cells.coords[0]] * column_sums[cells.coords[1]]))
    ppmi = scipy.sparse.csr_array((np.maximum(pmi, 0), cells.coords), shape=cells.shape)
    u, s, v = svds(ppmi, k=dim, rng=np.random.default_rng(0))
    for power in POWERS:
        yield f"power {power:g}", partial(multiply, u * (s / s.max()) ** power, v)


def score_ease(train: Counts) -> Iterable[tuple[str, Scores]]:
    """Yield item-item regressions in closed form (Steck, 2019)."""
    seen = train.astype(bool).astype(np.float32)
    gram = (seen.T @ seen).toarray()
    for ridge in RIDGES:
        inverse = np.linalg.inv(gram + ridge * np.eye(len(gram), dtype=np.float32))
        weights = inverse / -np.diag(inverse)
        np.fill_diagonal(weights, 0)
        yield f"ridge {ridge:g}", partial(multiply, seen, weights)


def score_als(train: Counts, dim: int) -> Iterable[tuple[str, Scores]]:
    """Yield weighted least squares (Hu, Koren and Volinsky, 2008) of log(1 + x)."""
    counts = scipy.sparse.csr_matrix(train, dtype=np.float32)
    if counts.max() > 1:
        counts.data = np.log1p(counts.data)

    for decay in DECAYS:
        for alpha in ALPHAS:
            rows, columns = factorize(counts, dim, decay, alpha)
            yield f"decay {decay:g} alpha {alpha:g}", partial(multiply, rows, columns.T)


def factorize(counts: Any, dim: int, decay: float, alpha: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return row and column factors, by `implicit` or, without it, by a slow solution of the same equations."""
    if importlib.util.find_spec("implicit"):
        from implicit.als import AlternatingLeastSquares  # type: ignore[import-not-found, unused-ignore]

        model = AlternatingLeastSquares(dim, regularization=decay, alpha=alpha, iterations=ITERATIONS, random_state=1)
        model.fit(counts, show_progress=False)
        return np.asarray(model.user_factors), np.asarray(model.item_factors)

    columns = 0.1 * np.random.default_rng(1).normal(size=(counts.shape[1], dim))
    transposed = counts.T.tocsr()
    for _ in range(ITERATIONS):
        rows = solve_side(counts, columns, decay, alpha)
        columns = solve_side(transposed, rows, decay, alpha)
    return rows, columns


def solve_side(counts: Any, others: NDArray[Any], decay: float, alpha: float) -> NDArray[Any]:
    gram = others.T @ others + decay * np.eye(others.shape[1])
    solved = np.zeros((counts.shape[0], others.shape[1]))
    for row in range(counts.shape[0]):
        cells = slice(counts.indptr[row], counts.indptr[row + 1])
        seen = others[counts.indices[cells]]
        weights = alpha * counts.data[cells]
        solved[row] = np.linalg.solve(gram + (seen.T * weights) @ seen, seen.T @ np.maximum(weights, 1))
    return solved


def score_swivel(train: Counts, dim: int) -> Scores:
    fitted = swivel.SwivelEmbedding(dim, recipe="table").fit(train)
    ranking = ColumnRanking(fitted.column_vectors_, fitted.column_sums_, train.shape[0])
    return lambda rows: ranking.score(fitted.row_vectors_[rows])


def fold_in_rows(train: Counts, dim: int, share: float = 0.1) -> Scores:
    """Return scores of rows of which a share was not trained but folded in; only their scores are of interest."""
    is_new = np.random.default_rng(1).random(train.shape[0]) < share
    fitted = swivel.SwivelEmbedding(dim, recipe="table").fit(train[~is_new])
    ranking = ColumnRanking(fitted.column_vectors_, fitted.column_sums_, int((~is_new).sum()))
    return lambda rows: ranking.score(fitted.transform(train[rows]))


def measure_table(table: Counts, dim: int) -> dict[str, Any]:
    train, rest = split_table(table, 0.4)
    validation, test = split_table(rest, 0.5, seed=1)
    methods: dict[str, Callable[[], Iterable[tuple[str, Scores]]]] = {
        "popularity": lambda: [("", score_popularity(train))],
        "swivel": lambda: [("", score_swivel(train, dim))],
        "svd": lambda: score_svd(train, dim),
        "als": lambda: score_als(train, dim),
        "ease": lambda: score_ease(train) if train.shape[1] <= MAX_EASE_COLUMNS else [],
    }
    score_swivel(train[:200], dim)  # Loads torch and compiles kernels.
    found: dict[str, Any] = {}
    for name, make in methods.items():
        best: tuple[float, str, RankingReport] | None = None
        tried, started = 0, cpu_seconds()
        for label, scores in make():
            report = evaluate_ranking(scores, validation, train)
            tried += 1
            if best is None or report.recall + report.ndcg > best[0]:
                best = report.recall + report.ndcg, label, evaluate_ranking(scores, test, train + validation)
        if best is not None:
            _, label, report = best
            found[name] = {"settings": label, "recall": round(report.recall, 4), "ndcg": round(report.ndcg, 4)}
            found[name] |= {"tried": tried, "cpu_seconds": round((cpu_seconds() - started) / tried, 1)}
            print(name, found[name], flush=True)

    # New rows: the same rows, trained and folded in.
    is_new = np.random.default_rng(1).random(train.shape[0]) < 0.1
    held = scipy.sparse.csr_array(test.multiply(is_new[:, None]))
    trained = evaluate_ranking(score_swivel(train, dim), held, train + validation)
    folded = evaluate_ranking(fold_in_rows(train, dim), held, train + validation)
    found["new rows"] = {
        name: {"recall": round(report.recall, 4), "ndcg": round(report.ndcg, 4)}
        for name, report in (("trained", trained), ("folded in", folded))
    }
    return {"shape": list(table.shape), "cells": int(table.nnz), "methods": found}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("tables", nargs="*", type=Path, metavar="TABLE")
    parser.add_argument("--dim", type=int, default=64)
    arguments = parse_arguments(parser, tables=lambda folder: [write_table(folder)], dim=4)
    results = {path.stem: measure_table(read_table(path), arguments.dim) for path in arguments.tables}
    keep(arguments, {"tables": results, "als": "implicit" if importlib.util.find_spec("implicit") else "own"})


if __name__ == "__main__":
    main()
