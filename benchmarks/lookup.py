"""Opening and asking large vectors: 1,000,000 words of 300 dimensions by default, synthetic, in a folder that goes.

Goals: word2vec's binary file in 2 s, our own folder in 50 ms; `nearest` of one word in 1.3 times a plain float32
matrix-vector product, of 1,000 words at once in 1.6 times the plain matrix product, each timed in turn with the other.
Fresh memory alone may cost seconds on a virtual machine, so the time of touching as much is printed beside.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import keep, make_parser, parse_arguments, work_folder
from swivel.corpus.vocabulary import Vocabulary
from swivel.vectors import Vectors, VectorTable

MEASURES = (
    "swivel.vectors.folder",
    "swivel.vectors.vectors",
    "swivel.vectors.formats.word2vec",
    "swivel.corpus.vocabulary",
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parse_arguments(parser, words=500, dim=8, queries=10, repeats=1)

    with tempfile.TemporaryDirectory(dir=work_folder()) as folder:
        opened = time_opening(arguments, Path(folder))
        asked = time_asking(arguments, swivel.load(Path(folder) / "own"))

    sizes = {"words": arguments.words, "dim": arguments.dim, "queries": arguments.queries}
    keep(arguments, {**sizes, **opened, **asked})


def time_opening(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((arguments.words, arguments.dim), dtype=np.float32)
    words = [f"{number:x}{'é' * (number % 7)}" for number in range(arguments.words)]
    vectors = Vectors(VectorTable(Vocabulary(words), values))
    vectors.save(folder / "own")
    swivel.export(vectors, folder / "vectors.bin")
    touched, binary, own = [], [], []
    for _ in range(arguments.repeats):
        touched.append(seconds(lambda: touch_memory(values.nbytes)))
        binary.append(seconds(lambda: swivel.load(folder / "vectors.bin")))
        own.append(seconds(lambda: swivel.load(folder / "own")))
    return {
        "touch_memory_seconds": statistics.median(touched),
        "binary_seconds": statistics.median(binary),
        "binary_best_seconds": min(binary),
        "folder_seconds": statistics.median(own),
    }


def touch_memory(size: int) -> None:
    np.empty(size, np.uint8)[::4096] = 1


def time_asking(arguments: argparse.Namespace, vectors: Vectors) -> dict[str, float]:
    unit, words = vectors.unit_vectors, vectors.vocabulary.tokens
    asked = [words[int(row)] for row in np.linspace(0, len(words) - 1, arguments.queries)]
    queries = np.ascontiguousarray(unit[[vectors.vocabulary.id(word) for word in asked]])
    products = np.empty((len(asked), len(words)), np.float32)
    vectors.nearest(asked[0])
    one = [
        (seconds(lambda: unit @ queries[0]), seconds(lambda: vectors.nearest(asked[0])))
        for _ in range(6 * arguments.repeats)
    ]
    many = [
        (seconds(lambda: np.matmul(queries, unit.T, out=products)), seconds(lambda: vectors.nearest_each(asked)))
        for _ in range(arguments.repeats + 1)
    ][1:]  # The first touches the products' memory.
    return compare("one", one) | compare("many", many)


def compare(name: str, pairs: list[tuple[float, float]]) -> dict[str, float]:
    plain, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(second / first for first, second in pairs)
    return {f"{name}_plain_seconds": plain, f"{name}_seconds": ours, f"{name}_ratio": ratio}


def seconds(job: Callable[[], Any]) -> float:
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
