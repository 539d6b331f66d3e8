"""Vectors of texts: texts per second beside model2vec with the same vectors, and semantic textual similarity.

`--sts` is a folder of files with a score and two texts per line, separated by tabs (lines without a score are skipped):
those of SemEval 2012 to 2016, from github.com/brmson/dataset-sts. The figure is the mean of Spearman's rho over the
files. `--against` compares with `.npy` files of vectors in the order of the vocabulary.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import keep, make_parser, median_seconds, parse_arguments, plain_corpus, write_corpus
from swivel.evaluation.bootstrap import rank_correlation
from swivel.vectors import Vectors, VectorTable

MEASURES = ("swivel.vectors.texts", "swivel.corpus.text_numbers")
WAYS: dict[str, dict[str, Any]] = {
    "mean": {"smoothing": np.inf, "components": 0, "guess": False},
    "weighted": {"components": 0, "guess": False},
    "without_guesses": {"guess": False},
    "encode": {},
}


def main() -> None:
    parser = make_parser(__doc__, "corpus", "repeats", "threads")
    parser.add_argument("--vectors", type=Path, help="trained vectors")
    parser.add_argument("--sts", type=Path, help="folder of STS files")
    parser.add_argument("--against", type=Path, nargs="*", default=[], help=".npy files of other vectors")
    parser.add_argument("--texts", type=int, default=100_000, help="number of texts to encode")
    smoke = {"corpus": write_corpus, "repeats": 1, "threads": 1, "texts": 100, "vectors": train_small, "sts": write_sts}
    arguments = parse_arguments(parser, **smoke)

    vectors = swivel.load(arguments.vectors)
    result: dict[str, Any] = {"words": len(vectors)}
    if arguments.texts:
        result["speed"] = measure_speed(vectors, read_texts(arguments.corpus, arguments.texts), arguments)
    if arguments.sts:
        is_ready = arguments.smoke or vectors.subwords is not None  # A smoke run has too few words for n-grams.
        models = {"swivel": vectors if is_ready else vectors.with_subwords()}
        models |= {file.stem: Vectors(VectorTable(vectors.vocabulary, np.load(file))) for file in arguments.against}
        sets = read_sts(arguments.sts)
        result["sts_files"] = len(sets)
        result["sts_pairs"] = sum(len(rows) for rows in sets)
        result["sts"] = {name: score_sts(model, sets) for name, model in models.items()}
    keep(arguments, result)


def train_small(folder: Path) -> Path:
    path = folder / "small"
    swivel.run(write_corpus(folder), path, recipe="fast", dim=8, epochs=2)
    return path


def write_sts(folder: Path) -> Path:
    (folder / "sts").mkdir()
    lines = "4.5\tword1 word2\tword2\n\tword1\tword3\n0.5\tword3 word4\tword5\n2\tword6\tword1\n"
    (folder / "sts" / "a.test.tsv").write_text(lines)
    return folder / "sts"


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


def read_sts(folder: Path) -> list[list[list[str]]]:
    """Return the lines of each file that have a score."""
    sets = []
    for file in sorted(folder.rglob("*.test.tsv")):
        if file.parent.name != "all":  # the same files again
            rows = [line.split("\t") for line in file.read_text(encoding="utf-8").split("\n")]
            sets.append([row for row in rows if len(row) >= 3 and row[0].strip()])
    return sets


def score_sts(vectors: Vectors, sets: list[list[list[str]]]) -> dict[str, float]:
    figures = {}
    for way, settings in WAYS.items():
        rhos = []
        for rows in sets:
            first, second = (vectors.encode([row[side] for row in rows], normalize=True, **settings) for side in (1, 2))
            cosines = np.einsum("ij,ij->i", first, second)
            rhos.append(rank_correlation(cosines.astype(float), np.array([float(row[0]) for row in rows])) or 0.0)
        figures[way] = round(float(np.mean(rhos)), 4)
    return figures


if __name__ == "__main__":
    main()
