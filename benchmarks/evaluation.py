"""The paper's eight sets on 400,000 words: seconds of the analogies, of the whole report and of a paired comparison.

Goal, on 2 cores: all 27,544 questions in a minute. Vectors are random, and so are the sets, with as many items, words
and pairs of words as the real ones have: neither time nor memory depends on what they say.
"""

from __future__ import annotations

import argparse
import time
from itertools import combinations
from pathlib import Path

import numpy as np

import swivel
from common import PrivateMemory, keep, make_parser, parse_arguments, work_folder
from swivel.corpus.vocabulary import Vocabulary
from swivel.evaluation import AnalogySet, EvaluationConfig, Report, compare_reports
from swivel.evaluation.datasets import find_sets
from swivel.evaluation.scores import score_analogies
from swivel.storage.lock import remove_tree
from swivel.vectors import VectorTable

MEASURES = (
    "swivel.evaluation.bootstrap",
    "swivel.evaluation.datasets",
    "swivel.evaluation.scores",
)
PAIRS = {"ws353_similarity": 203, "ws353_relatedness": 252, "men": 3000, "mturk": 287, "rare_words": 2034}
PAIRS |= {"simlex999": 999}
QUESTIONS = {
    "google_analogies": (19_544, 905, 550),
    "msr_analogies": (8_000, 966, 1_598),
}  # and words, and pairs of them


def make_vectors(words: int, dim: int, rng: np.random.Generator) -> swivel.Vectors:
    table = rng.standard_normal((words, dim), dtype=np.float32)
    return swivel.Vectors(VectorTable(Vocabulary(f"w{n}" for n in range(words)), table))


def write_sets(folder: Path, arguments: argparse.Namespace, rng: np.random.Generator) -> None:
    """Write random sets of the sizes of the real ones, divided by `--shrink`."""
    folder.mkdir(parents=True)
    shrink = arguments.shrink

    for name, whole in PAIRS.items():
        items = whole // shrink
        words, scores = rng.integers(0, arguments.tested, (items, 2)), rng.integers(0, 100, items) / 10
        lines = [f"w{a}\tw{b}\t{score}" for (a, b), score in zip(words, scores, strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")

    for name, sizes in QUESTIONS.items():
        items, words, pairs = (size // shrink for size in sizes)
        chosen = rng.choice(arguments.tested, words, replace=False)
        every = rng.permutation(np.array(list(combinations(chosen, 2))))[:pairs]
        first, second = every[np.arange(items) % pairs], every[rng.integers(0, pairs, items)]
        lines = ["\t".join(f"w{n}" for n in question) for question in np.concatenate([first, second], axis=1)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def seconds_of_analogies(vectors: swivel.Vectors, folder: Path, method: str) -> float:
    started = time.perf_counter()
    for each in find_sets(folder)[0]:
        if isinstance(each, AnalogySet):
            score_analogies(vectors, each, EvaluationConfig(method=method))
    return time.perf_counter() - started


def seconds_of_comparison(report: Report) -> float:
    started = time.perf_counter()
    compare_reports(report, report)
    return time.perf_counter() - started


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--words", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--tested", type=int, default=30_000, help="the most frequent words, which the sets consist of")
    parser.add_argument("--shrink", type=int, default=1, help="divide the sizes of the sets by this number")
    arguments = parse_arguments(parser, words=300, dim=8, tested=200, shrink=20)

    rng, folder = np.random.default_rng(1), work_folder() / "evaluation-sets"
    remove_tree(folder)
    vectors = make_vectors(arguments.words, arguments.dim, rng)
    write_sets(folder, arguments, rng)

    started = time.perf_counter()
    vectors.unit_vectors, vectors.is_zero  # noqa: B018 - kept by the vectors; part of a first evaluation
    scaling = time.perf_counter() - started
    with PrivateMemory() as memory:
        analogies = {method: seconds_of_analogies(vectors, folder, method) for method in ("3cosadd", "3cosmul")}
    started = time.perf_counter()
    report = swivel.evaluate(vectors, folder)
    whole = time.perf_counter() - started

    keep(
        arguments,
        {
            "words": arguments.words,
            "dim": arguments.dim,
            "questions": sum(items // arguments.shrink for items, _, _ in QUESTIONS.values()),
            "scaling_seconds": scaling,
            "analogies_seconds": analogies,
            "whole_seconds": whole,
            "comparison_seconds": seconds_of_comparison(report),
            "peak_private_bytes": memory.peak,
            "vectors_bytes": 2 * vectors.vectors.nbytes,
        },
    )


if __name__ == "__main__":
    main()
