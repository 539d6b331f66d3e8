"""Vectors of texts: texts per second beside model2vec with the same vectors, textual similarity and classification.

`--sets` is a folder of sets of texts; without it the published ones are downloaded (see `swivel.evaluate_texts`). The
figures are Spearman's rho on pairs of texts, and the accuracy of a logistic regression on labels, per set and as means.
`--against` compares with `.npy` files of vectors in the order of the vocabulary.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import keep, make_parser, median_seconds, parse_arguments, plain_corpus, write_corpus
from swivel.evaluation.datasets import TEXT_SOURCES, SimilaritySet, fetch_sets
from swivel.evaluation.text_sets import PLAIN_MEAN, TextSet, read_text_sets, score_texts
from swivel.vectors import Vectors, VectorTable

MEASURES = ("swivel.vectors.text_encoder", "swivel.corpus.text_numbers", "swivel.evaluation.text_sets")
WAYS: dict[str, dict[str, Any]] = {
    "mean": dict(PLAIN_MEAN),
    "weighted": {"components": 0, "guess": False},
    "without_guesses": {"guess": False},
    "encode": {},
}


def main() -> None:
    parser = make_parser(__doc__, "corpus", "repeats", "threads")
    parser.add_argument("--vectors", type=Path, help="trained vectors")
    parser.add_argument("--sets", type=Path, help="folder of sets of texts; default: the published ones, downloaded")
    parser.add_argument("--against", type=Path, nargs="*", default=[], help=".npy files of other vectors")
    parser.add_argument("--texts", type=int, default=100_000, help="number of texts to encode")
    smoke = {"corpus": write_corpus, "repeats": 1, "threads": 1, "texts": 100, "vectors": train_small}
    arguments = parse_arguments(parser, **smoke, sets=write_text_sets)

    vectors = swivel.load(arguments.vectors)
    result: dict[str, Any] = {"words": len(vectors)}
    if arguments.texts:
        result["speed"] = measure_speed(vectors, read_texts(arguments.corpus, arguments.texts), arguments)

    is_ready = arguments.smoke or vectors.subwords is not None  # A smoke run has too few words for n-grams.
    models = {"swivel": vectors if is_ready else vectors.with_subwords()}
    models |= {file.stem: Vectors(VectorTable(vectors.vocabulary, np.load(file))) for file in arguments.against}
    sets = read_text_sets(arguments.sets or fetch_sets(TEXT_SOURCES))
    pairs = [each for each in sets if isinstance(each, SimilaritySet)]
    labels = [each for each in sets if not isinstance(each, SimilaritySet)]
    result["sts_pairs"] = sum(each.size for each in pairs)
    result["sts"] = {name: score_all(model, pairs, arguments.threads) for name, model in models.items()}
    result["classification"] = {name: score_all(model, labels, arguments.threads) for name, model in models.items()}
    keep(arguments, result)


def train_small(folder: Path) -> Path:
    path = folder / "small"
    swivel.run(write_corpus(folder), path, recipe="fast", dim=8, epochs=2)
    return path


def write_text_sets(folder: Path) -> Path:
    (folder / "text-sets").mkdir()
    lines = "4.5\tword1 word2\tword2\n\tword1\tword3\n0.5\tword3 word4\tword5\n2\tword6\tword1\n"
    (folder / "text-sets" / "pairs.tsv").write_text(lines)
    (folder / "text-sets" / "labels.txt").write_text("a word1 word13\nb word2 word14\n" * 6)
    return folder / "text-sets"


def read_texts(corpus: Path, count: int) -> list[str]:
    """Return sentences of the corpus."""
    texts: list[str] = []
    for file in plain_corpus(corpus):
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                texts += [sentence for sentence in line.strip().split(". ") if sentence]
                if len(texts) >= count:
                    return texts[:count]
    return texts


def measure_speed(vectors: Vectors, texts: list[str], arguments: Any) -> dict[str, Any]:
    """Return texts per second of `encode` and of model2vec, which has the exported vectors."""
    from model2vec import StaticModel

    with tempfile.TemporaryDirectory() as folder:
        swivel.export(vectors, Path(folder) / "m", format="model2vec")
        model = StaticModel.from_pretrained(Path(folder) / "m")
    vectors.encode(texts[:10])  # compiles
    model.encode(texts[:10])
    ours = median_seconds(lambda: vectors.encode(texts, guess=False, threads=arguments.threads), arguments.repeats)
    theirs = median_seconds(lambda: model.encode(texts), arguments.repeats)
    started = time.process_time()
    vectors.encode(texts, guess=False, threads=arguments.threads)
    return {
        "texts": len(texts),
        "characters_per_text": round(sum(map(len, texts)) / len(texts), 1),
        "texts_per_second": round(len(texts) / ours),
        "model2vec_texts_per_second": round(len(texts) / theirs),
        "times_as_fast": round(theirs / ours, 1),
        "texts_per_cpu_second": round(len(texts) / (time.process_time() - started)),
    }


def score_all(vectors: Vectors, sets: Sequence[TextSet], threads: int) -> dict[str, Any]:
    """Return the mean over the sets for every way to make vectors, and the figures of each set."""
    figures = {}
    for each in sets:
        found = {way: score_texts(vectors, each, WAYS[way], threads=threads) or 0.0 for way in WAYS if way != "encode"}
        found["encode"] = found["without_guesses"]
        if vectors.subwords is not None:
            found["encode"] = score_texts(vectors, each, WAYS["encode"], threads=threads) or 0.0
        figures[each.name] = found
    means = {way: round(float(np.mean([found[way] for found in figures.values()])), 4) for way in WAYS}
    rounded = {name: {way: round(value, 4) for way, value in found.items()} for name, found in figures.items()}
    return {**means, "sets": rounded}


if __name__ == "__main__":
    main()
