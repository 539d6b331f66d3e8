"""Words left out of a vocabulary and added by `swivel.extend`: are their neighbors those of a training that had them?

The commonest words of a slice of text are trained whole, with two seeds; then with some words left out, which are added
afterwards from the same text. The 10 nearest of the added words, among all others, are compared with those of the whole
trainings. The reference is how much these two overlap with each other: extending is to reach 90 % of it.

With `--vectors`, words of the text that trained vectors do not have are added to these, and only the time is measured.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import SHARED, cpu_seconds, keep, make_parser, parse_arguments, plain_corpus, write_text
from swivel import RunOptions, Vectors
from swivel.runtime.progress import Stopwatch

MEASURES = ("swivel.pipeline.extend", "swivel.training.fold_in")
NEIGHBOURS, GOAL = 10, 0.9


def take_slice(corpus: Path, words: int, folder: Path) -> Path:
    """Return a file of the first lines of the corpus, of so many words in all."""
    target, left = folder / "text.txt", words
    with (lzma.open if corpus.suffix == ".xz" else Path.open)(corpus, "rb") as source, target.open("wb") as out:
        for line in source:
            out.write(line)
            left -= len(line.split())
            if left <= 0:
                break
    return target


def find_nearest(vectors: Vectors, words: Sequence[str]) -> list[set[str]]:
    return [{near.token for near in found} for found in vectors.nearest_each(words, count=NEIGHBOURS)]


def overlap(first: list[set[str]], second: list[set[str]]) -> float:
    return statistics.mean(len(a & b) for a, b in zip(first, second, strict=True)) / NEIGHBOURS


def train(text: Path, words: Sequence[str], seed: int, recipe: str, arguments: argparse.Namespace) -> Vectors:
    started = time.perf_counter()
    matrix = swivel.count(text, vocabulary=words, recipe=recipe)
    vectors = swivel.train(matrix, recipe=recipe, dim=arguments.dim, seed=seed)
    print(f"{recipe}, seed {seed}: {len(words):,} words in {time.perf_counter() - started:.1f} s", flush=True)
    return vectors


def measure(text: Path, recipe: str, arguments: argparse.Namespace) -> dict[str, Any]:
    words = swivel.count(text, max_size=arguments.vocabulary, columns="symmetric", window=1).rows.tokens
    places = np.random.default_rng(0).choice(
        np.arange(arguments.spared, len(words)), round(arguments.share * len(words)), replace=False
    )
    left_out = [words[place] for place in sorted(places)]
    rest = [word for word in words if word not in set(left_out)]
    whole = [find_nearest(train(text, words, seed, recipe, arguments), left_out) for seed in (1, 2)]
    added, times = [], []
    for seed in (3, 4):
        trained = train(text, rest, seed, recipe, arguments)
        extended, taken = time_extension(trained, text, vocabulary=left_out)
        times.append(taken)
        added.append(find_nearest(extended, left_out))
    seeds = overlap(*whole)
    reached = statistics.mean(overlap(*pair) for pair in itertools.product(added, whole))
    return {
        "left_out": len(left_out),
        "columns_per_word": extended.columns_per_row,
        "overlap_of_two_seeds": round(seeds, 4),
        "overlap_extended_with_trained": round(reached, 4),
        "overlap_of_two_extensions": round(overlap(*added), 4),
        "ratio": round(reached / seeds, 4),
        "goal_reached": reached >= GOAL * seeds,
        **min(times, key=lambda taken: taken["seconds"]),
    }


def time_extension(vectors: Vectors, text: Path, **settings: Any) -> tuple[Vectors, dict[str, float]]:
    """Return extended vectors, and how long the whole call and folding the words in took."""
    watch = Stopwatch()
    started, cpu = time.perf_counter(), cpu_seconds()
    extended = swivel.extend(vectors, text, options=RunOptions(progress=watch), **settings)
    taken = {
        "added_words": len(extended) - len(vectors),
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(cpu_seconds() - cpu, 1),
        "milliseconds_per_word": round(1e3 * watch.seconds["folding in"] / (len(extended) - len(vectors)), 1),
    }
    return extended, taken


def measure_trained(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how long adding words to trained vectors takes."""
    vectors = swivel.load(arguments.vectors)
    (text,) = plain_corpus(arguments.corpus)
    _, taken = time_extension(vectors, text, max_size=arguments.added, min_count=1)
    return {"rows": len(vectors), "columns_per_word": vectors.columns_per_row, "dim": vectors.rows.shape[1], **taken}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--corpus", type=Path, default=SHARED / "corpus" / "enwiki-1.txt.xz")
    parser.add_argument("--words", type=int, default=4_000_000, help="of the corpus, to take")
    parser.add_argument("--vocabulary", type=int, default=8_000)
    parser.add_argument("--share", type=float, default=0.05, help="of the vocabulary, to leave out")
    parser.add_argument("--spared", type=int, default=200, help="most frequent words, which are never left out")
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--recipes", nargs="+", default=["fast", "default"])
    parser.add_argument("--vectors", type=Path, help="trained vectors to add words to")
    parser.add_argument("--added", type=int, default=1000, help="number of words to add to them")
    arguments = parse_arguments(
        parser, corpus=write_text, words=3_000, vocabulary=100, spared=10, dim=4, recipes=["fast"]
    )

    if arguments.vectors is not None:
        keep(arguments, measure_trained(arguments))
        return

    folder = Path(tempfile.mkdtemp(prefix="swivel-extend-"))
    try:
        text = take_slice(arguments.corpus, arguments.words, folder)
        recipes = {recipe: measure(text, recipe, arguments) for recipe in arguments.recipes}
    finally:
        shutil.rmtree(folder)

    taken = {name: getattr(arguments, name) for name in ("words", "vocabulary", "dim")}
    keep(arguments, {"corpus": arguments.corpus.name, **taken, "recipes": recipes})


if __name__ == "__main__":
    main()
