"""Held-out cells of a table: does `score` find them better than a truncated SVD of PPMI of the same dimensions?

Cells of a table (row TAB column TAB count) are dealt into slices of 5 %. The settings of both methods are chosen on the
first slice, in a training that has none of the test slices; then each test slice in turn is held out and all else is
trained. For every held-out cell the columns that its row was not seen with are ranked by `score`: recall@10 is the
share of held-out cells that are among the first 10. Cells whose row or column has no other cell are left out. The
SVD may choose the power of its singular values, Swivel among a few settings; both are also shown with the logarithm of
the column's sum added, which makes an estimated PMI an estimated count.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

import swivel
from common import RESULTS, ROOT, keep, make_parser, parse_arguments, work_folder, write_table
from experiments.frequency import label_end, spread_labels
from swivel.reports import plots

MEASURES = (
    "swivel.training.loop",
    "swivel.training.objective",
    "swivel.training.schedule",
    "swivel.training.backends.cpu",
    "swivel.training.backends.cpu_kernels",
    "swivel.training.objective_numba",
)
Settings = Mapping[str, Any]
SHARE, FIRST = 0.05, 10
POWERS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)  # of the singular values; 1 is the plain SVD
# A cell that was seen is asked for a target raised by -shift, one that was not seen for one far below 0, so that what
# decides is whether a pair occurs, and not how rare its column is.
SETTINGS: tuple[Settings, ...] = (
    {"shift": -8, "unseen": 3e-4, "weight_decay": 0.01, "confidence_base": 0.1},
    {"shift": -8, "unseen": 3e-4, "weight_decay": 0.01, "confidence_base": 1},
    {"shift": -12, "unseen": 1e-6, "weight_decay": 0.02, "confidence_base": 2},
    {"shift": -14, "unseen": 1e-6, "weight_decay": 0.02, "confidence_base": 3},
    {"shift": -16, "unseen": 1e-6, "weight_decay": 0.03, "confidence_base": 4},
)
Scores = NDArray[np.floating[Any]]
Triple = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Task:
    """A matrix, and the cells that it does not have, as places in it."""

    matrix: swivel.Matrix
    observed: scipy.sparse.csr_array
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    left_out: int

    @property
    def column_logs(self) -> NDArray[np.float64]:
        """Logarithms of the columns' sums."""
        return np.log(self.matrix.column_sums)

    def recall(self, scores: Callable[[NDArray[np.int64]], Scores], extra: NDArray[np.float64] | float = 0.0) -> float:
        """Return recall@10 of what `scores` gives to some rows with all columns, plus `extra` for each column."""
        asked, which = np.unique(self.rows, return_inverse=True)
        table = np.asarray(scores(asked), np.float64) + extra
        table[self.observed[asked].nonzero()] = -np.inf
        best = np.argsort(-table, axis=1, kind="stable")[:, :FIRST]
        return float((best[which] == self.columns[:, None]).any(axis=1).mean())

    def score_nothing(self, rows: NDArray[np.int64]) -> Scores:
        """Return zeros: with the columns' sums added, the commonest columns come first."""
        return np.zeros((len(rows), len(self.matrix.columns)))


def read_triples(path: Path) -> list[Triple]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(row, column, int(count)) for row, column, count in (line.split("\t") for line in lines)]


def make_task(train: list[Triple], held: list[Triple]) -> Task:
    matrix = swivel.import_counts(train)
    known = [cell for cell in held if cell[0] in matrix.rows and cell[1] in matrix.columns]
    return Task(
        matrix,
        scipy.sparse.csr_array(matrix.to_scipy()),
        np.array([matrix.rows.id(row) for row, _, _ in known]),
        np.array([matrix.columns.id(column) for _, column, _ in known]),
        len(held) - len(known),
    )


def compute_ppmi(counts: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    cells = counts.tocoo()
    row_sums, column_sums = counts.sum(axis=1), counts.sum(axis=0)
    pmi = np.log(cells.data * cells.data.sum() / (row_sums[cells.coords[0]] * column_sums[cells.coords[1]]))
    return scipy.sparse.csr_array((np.maximum(pmi, 0), cells.coords), shape=cells.shape)


def measure_svd(task: Task, dim: int) -> dict[float, tuple[float, float]]:
    """Return recall@10, by the scores and by estimated counts, of each power of the singular values."""
    u, s, v = svds(compute_ppmi(task.observed), k=dim, rng=np.random.default_rng(0))

    def both(power: float) -> tuple[float, float]:
        def scores(rows: NDArray[np.int64]) -> Scores:
            return np.asarray((u[rows] * s**power) @ v)

        return task.recall(scores), task.recall(scores, task.column_logs)

    return {power: both(power) for power in POWERS}


def measure_swivel(task: Task, dim: int, seed: int, settings: Settings) -> tuple[float, float]:
    """Return recall@10 by `Vectors.score` and by estimated counts."""
    vectors = swivel.train(task.matrix, dim=dim, recipe="fast", epochs=50, seed=seed, **settings)
    assert vectors.columns is not None
    columns = vectors.columns

    def scores(rows: NDArray[np.int64]) -> Scores:
        return np.asarray(vectors.rows[rows] @ columns.T + vectors.shift)

    row, column = task.matrix.rows[0], task.matrix.columns[1]  # What is ranked here is what users get.
    assert abs(vectors.score(row, column) - scores(np.array([0]))[0, 1]) < 1e-4
    return task.recall(scores), task.recall(scores, task.column_logs)


def choose(task: Task, dim: int) -> tuple[Settings, float]:
    """Return the settings of Swivel and the power of the SVD that are best, by their scores, on a task."""
    ours = {number: measure_swivel(task, dim, 1, settings)[0] for number, settings in enumerate(SETTINGS)}
    theirs = {power: figures[0] for power, figures in measure_svd(task, dim).items()}
    print(f"d = {dim}, chosen among: swivel {ours}, svd {theirs}", flush=True)
    return SETTINGS[max(ours, key=ours.__getitem__)], max(theirs, key=theirs.__getitem__)


def measure(triples: list[Triple], dim: int, tests: int) -> dict[str, Any]:
    order = np.random.default_rng(0).permutation(len(triples))
    size = round(SHARE * len(triples))
    slices = [order[start : start + size] for start in range(0, (tests + 1) * size, size)]

    def take(places: NDArray[np.int64]) -> list[Triple]:
        return [triples[place] for place in places.tolist()]

    settings, power = choose(make_task(take(order[(tests + 1) * size :]), take(slices[0])), dim)
    figures: dict[str, list[float]] = {}
    left_out = 0
    for seed, held in enumerate(slices[1:], 1):
        task = make_task(take(np.setdiff1d(order, held)), take(held))
        svd, ours = measure_svd(task, dim), measure_swivel(task, dim, seed, settings)
        found = {
            "swivel": ours[0], "svd": svd[1.0][0], "svd_power": svd[power][0],
            "swivel_counts": ours[1], "svd_counts": max(figure[1] for figure in svd.values()),
            "commonest": task.recall(task.score_nothing, task.column_logs),
        }  # fmt: skip
        left_out += task.left_out
        for name, figure in found.items():
            figures.setdefault(name, []).append(round(figure, 4))
        print(f"d = {dim}, slice {seed}: {found}", flush=True)
    return {"settings": settings, "power": power, "left_out": left_out, "recall": figures}


@plots.in_style
def draw_recall(title: str, results: Mapping[str, Any]) -> Any:
    """Draw recall@10 against the dimensions, with the span of the test slices."""
    figure, axes = plots.new_figure(4.6, 3.0)
    names = {"swivel": "Swivel", "svd_power": "SVD, power chosen", "svd": "SVD of PPMI"}
    dims, ends = [int(dim) for dim in results], []
    for name, color in zip(names, plots.COLORS, strict=False):
        figures = [results[str(dim)]["recall"][name] for dim in dims]
        means = [statistics.mean(some) for some in figures]
        axes.plot(dims, means, "o-", color=color, markersize=4)
        axes.vlines(dims, [min(some) for some in figures], [max(some) for some in figures], color=color, alpha=0.5)
        ends.append(means[-1])
    low, high = axes.get_ylim()
    heights = spread_labels(ends, 0.06 * (high - low))
    for label, color, height in zip(names.values(), plots.COLORS, heights, strict=False):
        label_end(axes, dims[-1], height, label, color)
    axes.set_xscale("log", base=2)
    axes.set_xticks(dims, [str(dim) for dim in dims])
    axes.minorticks_off()
    axes.set_xlabel("dimensions")
    axes.set_ylabel("recall@10 of held-out cells")
    axes.set_title(title)
    return figure


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("table", type=Path, nargs="?", help="row, column and count, tab-separated")
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--tests", type=int, default=3, help="slices that are held out in turn")
    parser.add_argument("--draw", action="store_true", help="draw the figure of the result that is kept, and no more")
    arguments = parse_arguments(parser, table=write_table, name="smoke", dims=[4], tests=1)
    if arguments.name is None or (arguments.table is None and not arguments.draw):
        parser.error("a table and --name, which names the result and the figure, are required")

    title, arguments.name = arguments.name, f"tables_{arguments.name}"
    images = work_folder() if arguments.smoke else ROOT / "experiments" / "images"
    if arguments.draw:
        draw_result(title, json.loads((RESULTS / f"{arguments.name}.json").read_text()), images)
        return

    triples = read_triples(arguments.table)
    dims = {str(dim): measure(triples, dim, arguments.tests) for dim in arguments.dims}
    shape = [len({cell[side] for cell in triples}) for side in (0, 1)]
    result = {"table": arguments.table.name, "shape": shape, "cells": len(triples), "dims": dims}
    draw_result(title, result, images)
    keep(arguments, result)


def draw_result(name: str, result: Mapping[str, Any], images: Path) -> None:
    rows, columns = result["shape"]
    images.mkdir(parents=True, exist_ok=True)
    title = f"{name}: {rows:,} x {columns:,}, {result['cells']:,} cells"
    plots.save_figure(draw_recall(title, result["dims"]), images / f"{name}.png")


if __name__ == "__main__":
    main()
