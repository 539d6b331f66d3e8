"""Rows held out of training and folded in: are their neighbors those of a training that had them?

Rows are held out of a table (the bundled sample, triples of row, column and count, or a matrix), the rest is trained,
the rows are folded in, and their 10 nearest among the other rows are compared with those of trainings that had all. The
reference is how much two such trainings with different seeds overlap with each other: folding is to reach 90 % of it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

import swivel
from common import PrivateMemory, keep, make_parser, parse_arguments, write_table

MEASURES = ("swivel.training.fold_in", "swivel.training.objective_torch", "swivel.estimator")
NEIGHBOURS, GOAL = 10, 0.9
SAMPLE = {"block_size": 256, "epochs": 20, "zeros": "all"}  # as `swivel demo` trains it


def read_triples(path: Path) -> scipy.sparse.csr_array:
    """Return a table of row TAB column TAB count, rows and columns in the order in which they first occur."""
    ids: tuple[dict[str, int], dict[str, int]] = {}, {}
    places: tuple[list[int], list[int]] = [], []
    counts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        *labels, count = line.split("\t")
        for side, label in enumerate(labels):
            places[side].append(ids[side].setdefault(label, len(ids[side])))
        counts.append(float(count))
    return scipy.sparse.csr_array((counts, places), shape=(len(ids[0]), len(ids[1])))


def read_table(path: Path | None) -> scipy.sparse.csr_array:
    if path is not None and not path.is_dir():
        return read_triples(path)
    matrix = swivel.open_sample() if path is None else swivel.open_matrix(path)
    return scipy.sparse.csr_array(matrix.to_scipy())


def to_unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9))


def find_nearest(queries: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.argsort(-(to_unit(queries) @ to_unit(vectors).T), axis=1, kind="stable")[:, :NEIGHBOURS]


def overlap(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    shared = [len(set(a) & set(b)) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    return statistics.mean(shared) / NEIGHBOURS


def mean_overlap(pairs: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> float:
    return statistics.mean(overlap(*pair) for pair in pairs)


def fit(table: scipy.sparse.csr_array, seed: int, arguments: argparse.Namespace) -> swivel.SwivelEmbedding:
    settings = {
        **({} if arguments.table else SAMPLE),
        "recipe": arguments.recipe,
        "weight_decay": arguments.weight_decay,
    }
    if arguments.epochs is not None:
        settings["epochs"] = arguments.epochs
    started = time.perf_counter()
    embedding = swivel.SwivelEmbedding(arguments.dim, random_state=seed, device=arguments.device, **settings)
    embedding.fit(table)
    print(f"seed {seed}: {table.shape[0]:,} rows in {time.perf_counter() - started:.1f} s", flush=True)
    return embedding


def measure(table: scipy.sparse.csr_array, arguments: argparse.Namespace) -> dict[str, Any]:
    rows = table.shape[0]
    held = np.sort(np.random.default_rng(0).choice(rows, max(1, round(arguments.share * rows)), replace=False))
    others = np.setdiff1d(np.arange(rows), held)
    whole = [fit(table, seed, arguments).row_vectors_ for seed in (1, 2)]
    trained = [find_nearest(vectors[held], vectors[others]) for vectors in whole]
    folded, seconds, peaks = [], [], []
    for seed in (3, 4):
        embedding = fit(table[others], seed, arguments)
        with PrivateMemory() as memory:
            embedding.transform(table[held[:1]])
            before, started = memory.peak, time.perf_counter()
            vectors = embedding.transform(table[held])
            seconds.append(time.perf_counter() - started)
        peaks.append(memory.peak - before)
        folded.append(find_nearest(vectors, embedding.row_vectors_))
    seeds = overlap(*trained)
    reached = mean_overlap(itertools.product(folded, trained))
    return {
        "table": str(arguments.table.name if arguments.table else "sample"),
        "shape": table.shape,
        "cells_per_row": round(table.nnz / rows, 1),
        "held_out": len(held),
        "dim": arguments.dim,
        "config": {"recipe": arguments.recipe, "weight_decay": embedding.config_.weight_decay},
        "overlap_of_two_seeds": round(seeds, 4),
        "overlap_folded_with_trained": round(reached, 4),
        "overlap_of_two_foldings": round(overlap(*folded), 4),
        "ratio": round(reached / seeds, 4),
        "goal_reached": reached >= GOAL * seeds,
        "rows_per_second": round(len(held) / min(seconds), 1),
        "memory_bytes": max(peaks),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--table", type=Path, help="triples, tab-separated, or the folder of a matrix; default: the sample"
    )
    parser.add_argument("--share", type=float, default=0.1, help="of the rows, to hold out")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--weight-decay", type=float, help="default: the recipe's")
    parser.add_argument("--device", default="auto")
    arguments = parse_arguments(parser, table=write_table, dim=4, epochs=2, device="cpu")
    keep(arguments, measure(read_table(arguments.table), arguments))


if __name__ == "__main__":
    main()
