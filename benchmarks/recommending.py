"""CPU seconds of the best 20 of 40,000 columns for a million known rows, without the columns that they have.

Vectors and seen cells are random, because the time does not depend on their values. The rows are a sample; the result
is extrapolated to a million rows. The products alone, without the search for the best, are measured in the same run:
they are the limit of any method that computes all scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import torch

from common import cpu_seconds, keep, make_parser, parse_arguments
from swivel.recommender import ColumnRanking
from swivel.vectors.search import Floats

MEASURES = ("swivel.recommender", "swivel.vectors.search", "swivel.vectors.vector_kernels")
BATCH_ROWS = 256
ROWS = 1_000_000  # to which results are extrapolated


def make_seen(rows: int, columns: int, cells_per_row: int) -> Any:
    rng = np.random.default_rng(1)
    places = rng.integers(0, columns, rows * cells_per_row)
    starts = np.arange(rows + 1) * cells_per_row
    return scipy.sparse.csr_array((np.ones(len(places), np.float32), places, starts), shape=(rows, columns))


def multiply(rows: Floats, columns: Floats) -> None:
    """Compute the scores of all rows on one thread, one batch at a time."""
    torch.set_num_threads(1)
    transposed = torch.from_numpy(columns).T
    buffer = torch.empty(BATCH_ROWS, len(columns))
    for start in range(0, len(rows), BATCH_ROWS):
        batch = torch.from_numpy(rows[start : start + BATCH_ROWS])
        torch.mm(batch, transposed, out=buffer[: len(batch)])


def measure(job: Callable[[], object], rows: int) -> dict[str, float]:
    started = cpu_seconds(), time.perf_counter()
    job()
    spent = cpu_seconds() - started[0], time.perf_counter() - started[1]
    return {name: round(value * ROWS / rows, 1) for name, value in zip(("cpu_seconds", "seconds"), spent, strict=True)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=40_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--seen", type=int, default=100, help="cells of a row that are not recommended")
    parser.add_argument("--count", type=int, default=20)
    arguments = parse_arguments(parser, rows=600, columns=200, seen=5)

    rng = np.random.default_rng(0)
    columns = rng.normal(size=(arguments.columns, arguments.dim)).astype(np.float32)
    rows = rng.normal(size=(arguments.rows, arguments.dim)).astype(np.float32)
    ranking = ColumnRanking(columns, rng.integers(1, 1_000, arguments.columns).astype(np.float64), ROWS)
    seen = make_seen(arguments.rows, arguments.columns, arguments.seen)

    ranking.find_best(rows[:BATCH_ROWS], arguments.count, seen=seen[:BATCH_ROWS])  # loads the kernel
    result = {
        "extrapolated_to": ROWS,
        "all": measure(lambda: ranking.find_best(rows, arguments.count, seen=seen), len(rows)),
    }
    tenth = rows[: max(len(rows) // 10, BATCH_ROWS)]
    result["products_alone"] = measure(lambda: multiply(tenth, columns), len(tenth))
    keep(arguments, result)


if __name__ == "__main__":
    main()
