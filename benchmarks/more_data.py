"""More text and more words: how soon does a warm start reach the loss of training from scratch?

A slice of text is counted and trained; 30 % more text with 20 % more words is counted and added; the sum is trained
from scratch and from the old vectors (`--init`). Printed: the mean loss of each epoch, the loss of all cells after the
last one, the fewest epochs whose end is not above that of scratch, the cosines of old words to their old vectors, and
how many of the 10 neighbors of new words are those that training from scratch finds (beside two such trainings' own).

Goals: at most a third of the epochs; a mean cosine of .9.
"""

from __future__ import annotations

import argparse
import lzma
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import swivel
from common import SHARED, keep, make_parser, parse_arguments, write_text
from swivel.storage.manifest import read_manifest

MEASURES = ("swivel.training.initialization", "swivel.counts.matrix_sum")
NEIGHBOURS, LEAST_COSINE, LARGEST_SHARE = 10, 0.9, 1 / 3
FEWER = 2  # epochs below the third that are tried, too
HARDLY = 1e-12  # a rate that changes no vector: an epoch with it measures the loss


def read_lines(file: Path) -> Iterator[str]:
    with lzma.open(file, "rt", encoding="utf-8") if file.suffix == ".xz" else file.open(encoding="utf-8") as lines:
        yield from lines


def write_slices(file: Path, folder: Path, sizes: list[int]) -> list[Path]:
    """Return files of about so many words each, one after the other in the text."""
    lines, written = read_lines(file), []
    for number, size in enumerate(sizes):
        part, words = [], 0
        for line in lines:
            part.append(line)
            words += len(line.split())
            if words >= size:
                break
        written.append(folder / f"text-{number}.txt")
        written[-1].write_text("".join(part), encoding="utf-8")
    return written


@dataclass(frozen=True)
class Lab:
    """A folder, a recipe, and what is asked for."""

    folder: Path
    recipe: str
    arguments: argparse.Namespace

    def count_both(self) -> tuple[swivel.Matrix, swivel.Matrix]:
        """Return the counts of the old text, and those of old and new together."""
        a = self.arguments
        texts = write_slices(a.corpus, self.folder, [a.words, round(a.words * a.more)])
        old = swivel.count(texts[0], self.folder / "old", recipe=self.recipe, max_size=a.vocabulary)
        there = swivel.count(texts[1], recipe=self.recipe, min_count=1, max_size=10 * a.vocabulary).rows
        new = [word for word in there if word not in old.rows][: round(a.vocabulary * a.more_words)]
        added = swivel.count(texts[1], self.folder / "new", recipe=self.recipe, vocabulary=[*old.rows, *new])
        started = time.perf_counter()
        both = swivel.add(old, added, out=self.folder / "both")
        print(f"{both.shape}: {both.cell_count:,} cells, added in {time.perf_counter() - started:.1f} s", flush=True)
        return old, both

    def train(self, matrix: swivel.Matrix, name: str, **settings: Any) -> swivel.Vectors:
        settings = {"dim": self.arguments.dim, "dtype": self.arguments.dtype, **settings}
        return swivel.train(matrix, self.folder / name, recipe=self.recipe, **settings)

    def losses(self, name: str) -> list[float]:
        return [round(loss["mean"], 5) for loss in read_manifest(self.folder / name).facts["losses"]]

    def end_loss(self, matrix: swivel.Matrix, vectors: swivel.Vectors, name: str) -> float:
        """Return the mean loss of all cells."""
        self.train(matrix, f"{name}-end", init=vectors, epochs=1, learning_rate=HARDLY, zeros="all")
        return self.losses(f"{name}-end")[0]


def cosines(now: NDArray[np.float32], then: NDArray[np.float32]) -> dict[str, float]:
    lengths = np.linalg.norm(now, axis=1) * np.linalg.norm(then, axis=1)
    values = (now * then).sum(axis=1)[lengths > 0] / lengths[lengths > 0]
    return {"mean": round(float(values.mean()), 4), "lowest_percent": round(float(np.quantile(values, 0.01)), 4)}


def compare_old(now: swivel.Vectors, then: swivel.Vectors) -> dict[str, dict[str, float]]:
    assert now.column_vocabulary and then.column_vocabulary and now.columns is not None and then.columns is not None
    rows = [now.vocabulary.id(word) for word in then]
    columns = [now.column_vocabulary.id(word) for word in then.column_vocabulary]
    return {
        "rows": cosines(now.rows[rows], then.rows),
        "columns": cosines(now.columns[columns], then.columns),
        "vectors": cosines(now.vectors[rows], then.vectors),
    }


def overlap(words: list[str], first: swivel.Vectors, second: swivel.Vectors) -> float:
    found = [
        [{near.token for near in each.nearest(word, count=NEIGHBOURS)} for word in words] for each in (first, second)
    ]
    return round(sum(len(a & b) for a, b in zip(*found, strict=True)) / (NEIGHBOURS * len(words)), 4)


def measure(lab: Lab) -> dict[str, Any]:
    old_matrix, both = lab.count_both()
    old = lab.train(old_matrix, "vectors")
    scratch, other = lab.train(both, "scratch"), lab.train(both, "other", seed=2)
    goal, usual = lab.end_loss(both, scratch, "scratch"), len(lab.losses("scratch"))
    tried = range(max(1, usual // 3 - FEWER), usual // 3 + 1)
    warm = {epochs: lab.train(both, f"warm-{epochs}", init=old, epochs=epochs) for epochs in tried}
    ends = {epochs: lab.end_loss(both, vectors, f"warm-{epochs}") for epochs, vectors in warm.items()}
    enough = min((epochs for epochs, end in ends.items() if end <= goal), default=None)
    chosen = usual // 3
    same, new = compare_old(warm[chosen], old), [word for word in both.rows if word not in old]
    return {
        "shape": both.shape,
        "new_words": len(new),
        "cells": both.cell_count,
        "scratch": {"epochs": usual, "losses": lab.losses("scratch"), "end": goal},
        "warm": {epochs: {"losses": lab.losses(f"warm-{epochs}"), "end": ends[epochs]} for epochs in warm},
        "epochs_needed": enough,
        "epochs_ratio": None if enough is None else round(enough / usual, 3),
        "old_words": same,
        "old_words_of_scratch_aligned": cosines(
            scratch.align(old).vectors[[scratch.vocabulary.id(word) for word in old]], old.vectors
        ),
        "neighbors_of_new_words": {
            "warm_and_scratch": overlap(new, warm[chosen], scratch),
            "two_seeds_of_scratch": overlap(new, other, scratch),
        },
        "goal_reached": enough is not None
        and enough <= LARGEST_SHARE * usual
        and all(side["mean"] >= LEAST_COSINE for side in same.values()),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("corpus", type=Path, nargs="?", default=SHARED / "corpus" / "enwiki-1.txt.xz", help="a text")
    parser.add_argument("--words", type=int, default=4_000_000, help="of the old text")
    parser.add_argument("--more", type=float, default=0.3, help="share of words of text that is added")
    parser.add_argument("--vocabulary", type=int, default=8_000, help="words of the old text that get vectors")
    parser.add_argument("--more-words", type=float, default=0.2, help="share of words that is added to them")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--recipes", nargs="+", default=["fast", "default"])
    arguments = parse_arguments(parser, corpus=write_text, words=10_000, vocabulary=80, dim=4, recipes=["fast"])

    asked = {name: getattr(arguments, name) for name in ("words", "more", "vocabulary", "more_words", "dim", "dtype")}
    results = {}
    for recipe in arguments.recipes:
        with tempfile.TemporaryDirectory(prefix="more-data-") as folder:
            results[recipe] = measure(Lab(Path(folder), recipe, arguments))
            print(recipe, results[recipe], flush=True)
    keep(arguments, {"text": arguments.corpus.name, **asked, "recipes": results})


if __name__ == "__main__":
    main()
