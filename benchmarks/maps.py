"""Maps of the explorer: how long UMAP takes, and how well it keeps neighbors, beside umap-learn if it is installed.

Two sets of vectors: those of the bundled sample (5,632 words), trained here, and many synthetic ones in clusters, or
those of `--vectors`. Goals on 2 cores: 15 s for the sample, 90 s for 100,000 words, and a trustworthiness (of 15
neighbors, on a sample of the points; Venna and Kaski, 2001) within .01 of that of umap-learn with its defaults.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

import swivel
from common import cpu_seconds, keep, make_parser, parse_arguments
from swivel.vectors.projection import compute_umap, reduce_vectors
from swivel.vectors.search import Floats

MEASURES = ("swivel.vectors.projection", "swivel.vectors.vector_kernels")
NEIGHBORS = 15
QUERIES = 500  # points of which all distances are in memory at a time


def make_vectors(words: int, dim: int) -> Floats:
    """Return vectors around 400 centers, with different spreads."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((400, dim), dtype=np.float32)
    group = rng.integers(0, len(centers), words)
    spreads = rng.uniform(0.3, 1.2, len(centers)).astype(np.float32)
    vectors = centers[group] + spreads[group, None] * rng.standard_normal((words, dim), dtype=np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def train_sample(dim: int, epochs: int) -> Floats:
    settings: dict[str, Any] = {"recipe": "fast", "dim": dim, "epochs": epochs, "block_size": 256, "device": "cpu"}
    return swivel.train(swivel.open_sample(), **settings).unit_vectors


def find_trustworthiness(vectors: Floats, points: Floats, sample: int) -> float:
    """Return how few of the nearest points are far from each other as vectors: 1 if none is, about .5 by chance."""
    count = len(vectors)
    chosen = np.random.default_rng(1).choice(count, min(sample, count), replace=False)
    penalty = 0.0
    for start in range(0, len(chosen), QUERIES):
        ids = chosen[start : start + QUERIES]
        ranks = np.argsort(np.argsort(square_distances(vectors, ids), axis=1), axis=1)  # The point itself has rank 0.
        apart = square_distances(points, ids)
        nearest = np.argsort(apart, axis=1)[:, 1 : NEIGHBORS + 1]
        penalty += np.maximum(np.take_along_axis(ranks, nearest, axis=1) - NEIGHBORS, 0).sum()
    return float(1 - 2 * penalty / (len(chosen) * NEIGHBORS * (2 * count - 3 * NEIGHBORS - 1)))


def square_distances(values: Floats, ids: NDArray[np.int64]) -> NDArray[Any]:
    """Return the squared distances between some rows and all rows; that of a row to itself is the smallest."""
    squares = (values * values).sum(axis=1)
    distances = squares[ids, None] - 2 * values[ids] @ values.T + squares
    distances[np.arange(len(ids)), ids] = -1
    return np.asarray(distances)


def measure(vectors: Floats, arguments: argparse.Namespace) -> dict[str, Any]:
    started = time.perf_counter()
    reduced = reduce_vectors(vectors)
    components = time.perf_counter() - started

    began = time.perf_counter(), cpu_seconds()
    points = compute_umap(reduced)
    found: dict[str, Any] = {
        "words": len(vectors),
        "dim": vectors.shape[1],
        "components_seconds": round(components, 2),
        "umap_seconds": round(time.perf_counter() - began[0], 1),
        "umap_cpu_seconds": round(cpu_seconds() - began[1], 1),
        "trustworthiness": round(find_trustworthiness(reduced, points, arguments.sample), 4),
    }
    if len(vectors) <= arguments.compared and importlib.util.find_spec("umap"):
        found["umap_learn"] = measure_umap_learn(reduced, arguments)
    print(found, flush=True)
    return found


def measure_umap_learn(reduced: Floats, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the same of umap-learn with its defaults; the time includes compiling, as in every new process."""
    began = time.perf_counter(), cpu_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import umap

        points = np.asarray(umap.UMAP(random_state=1, n_jobs=1).fit_transform(reduced))
    return {
        "umap_seconds": round(time.perf_counter() - began[0], 1),
        "umap_cpu_seconds": round(cpu_seconds() - began[1], 1),
        "trustworthiness": round(find_trustworthiness(reduced, points, arguments.sample), 4),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--vectors", help="vectors for the large map, in place of synthetic ones")
    parser.add_argument("--words", type=int, default=100_000, help="of the large map")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=6, help="of the training of the sample")
    parser.add_argument("--sample", type=int, default=2_000, help="points whose neighbors are compared")
    parser.add_argument("--compared", type=int, default=10_000, help="words of the largest map of umap-learn")
    arguments = parse_arguments(parser, words=300, dim=8, epochs=1, sample=50, compared=0)

    large = make_vectors(arguments.words, arguments.dim)
    if arguments.vectors:
        large = swivel.load(arguments.vectors).unit_vectors[: arguments.words]
    compute_umap(large[:100, :5].copy())  # Compiles the kernels, or loads them.
    demo = train_sample(min(arguments.dim, 128), arguments.epochs)[: arguments.words]
    keep(arguments, {"demo": measure(demo, arguments), "large": measure(large, arguments)})


if __name__ == "__main__":
    main()
