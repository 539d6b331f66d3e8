"""Train the methods that Swivel is compared with: gensim's SGNS, CBOW and FastText, GloVe, and an SVD of PPMI.

All read the same tokens. For each method: wall and CPU seconds of the whole job (raw text to vectors) and of training,
the eight figures, and, outside the repository (`--answers`), what the method answers to every item. One result per
method (`headline/sgns`, ...), so that they can be made one after the other or on different machines.

FastText has a vector for every word, so all pairs of the similarity sets count for it, with vectors guessed from the
spelling for words that are not in the vocabulary. Analogies are answered from the vocabulary for every method.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse.linalg

import swivel
from answers import answers_folder, figures_by_half, write_answers
from common import (
    PrivateMemory,
    cpu_seconds,
    keep,
    make_parser,
    parse_arguments,
    plain_corpus,
    work_folder,
    write_corpus,
    write_sets,
)
from experiments.glove import GloveConfig, train_glove
from experiments.word2vec import Word2vecConfig, describe_settings, train_gensim_model, vectors_of_words
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.evaluation import Report, evaluate
from swivel.evaluation.datasets import PAPER_ORDER, SimilaritySet, find_sets
from swivel.evaluation.results import EvaluationConfig
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import ForwardingProgress, Task
from swivel.vectors import VectorTable

MEASURES = (
    "experiments/word2vec.py",
    "experiments/glove.py",
    "swivel.evaluation.datasets",
    "swivel.evaluation.scores",
)

METHODS = ("sgns", "cbow", "fasttext", "glove", "svd")
SMOOTHING = 0.75  # power of the sums of contexts for the SVD of PPMI (Levy, Goldberg and Dagan 2015)
# fastText's are those of its paper (Bojanowski et al. 2017); the others are those of the Swivel paper.
SETTINGS: dict[str, dict[str, Any]] = {
    "sgns": {"window": 10},
    "cbow": {"window": 10},
    "fasttext": {"window": 5, "sample": 1e-4},
}


def main() -> None:
    parser = make_parser(__doc__, "corpus", "eval", "megabytes", "threads")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--epochs", type=int, help="default: 5, and 25 for GloVe")
    parser.add_argument("--buckets", type=int, default=2_000_000, help="rows of fastText's table of n-grams")
    parser.add_argument("--answers", type=Path, help="folder for the answers item by item")
    smoke = {"corpus": write_corpus, "eval": write_sets, "threads": 1, "dim": 8, "epochs": 1, "buckets": 1000}
    arguments = parse_arguments(parser, **smoke)

    files = plain_corpus(arguments.corpus, arguments.megabytes)
    options = RunOptions(threads=arguments.threads, overwrite=True)
    matrix = swivel.count(files, work_folder() / "baselines-matrix", recipe="fast", options=options)
    table = "small_corpus" if arguments.megabytes else "headline"
    for method in arguments.methods:
        keep(arguments, run_method(method, files, matrix, arguments), name=f"{table}/{method}")


def run_method(method: str, files: list[Path], matrix: Matrix, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one method and evaluate it."""
    started, cpu_before = time.perf_counter(), cpu_seconds()
    with PrivateMemory() as memory:
        if method in ("glove", "svd"):
            run = run_glove if method == "glove" else run_svd
            vectors, described = run(files, matrix, arguments)
            extended = vectors
        else:
            vectors, extended, described = run_gensim(method, files, matrix, arguments)
    wall = time.perf_counter() - started
    cpu = cpu_seconds() - cpu_before

    answers = answers_folder(arguments)
    report = evaluate_method(vectors, extended, arguments.eval)
    write_answers(report, answers, method)
    return {
        "method": method,
        **described,
        "words": len(matrix.rows),
        "threads": arguments.threads,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "private_bytes": memory.peak,
        "figures": figures_by_half(answers, method, find_sets(arguments.eval)[0]),
        "known_items": {result.name: [result.known, result.total] for result in report.results},
    }


def run_gensim(
    method: str, files: list[Path], matrix: Matrix, arguments: argparse.Namespace
) -> tuple[swivel.Vectors, swivel.Vectors, dict[str, Any]]:
    """Return the vectors of the vocabulary, the same with words guessed by FastText, and what was run."""
    import gensim

    settings = SETTINGS[method] | {"dim": arguments.dim, "buckets": arguments.buckets}
    if arguments.epochs:
        settings["epochs"] = arguments.epochs
    config = Word2vecConfig(**settings)

    clock = TrainingClock()
    options = RunOptions(threads=arguments.threads, progress=clock)
    model = train_gensim_model(files, matrix.rows, method=method, config=config, options=options)
    vectors = swivel.Vectors(VectorTable(matrix.rows, vectors_of_words(model, matrix.rows)))

    extended = vectors
    if method == "fasttext":
        words = [*matrix.rows.tokens, *unknown_words(matrix.rows, arguments.eval)]
        extended = swivel.Vectors(VectorTable(Vocabulary(words), np.stack([model.wv[word] for word in words])))
    return (
        vectors,
        extended,
        {
            "what": f"gensim {gensim.__version__} {type(model).__name__}",
            "settings": describe_settings(method, config),
            "training_seconds": round(clock.seconds, 1),
        },
    )


class TrainingClock(ForwardingProgress):
    """Measures the seconds of the task "training ...", and prints how far it is."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self._job = job
        self._started = time.perf_counter()
        return PrintedTask(job, total)

    def end(self, task: Task) -> None:
        if self._job.startswith("training"):
            self.seconds = time.perf_counter() - self._started


class PrintedTask(Task):
    """Prints the state of a task, twice a minute."""

    def __init__(self, job: str, total: float | None) -> None:
        self.job, self.total = job, total
        self.done = 0.0
        self.printed = time.monotonic()

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.done += amount
        if time.monotonic() - self.printed > 30:
            self.printed = time.monotonic()
            print(f"{self.job}: {self.done:,.0f} of {self.total or 0:,.0f}", flush=True)


def unknown_words(vocabulary: Vocabulary, folder: Path) -> list[str]:
    """Return the words of the similarity sets that are not in the vocabulary."""
    pairs = [pair for each in find_sets(folder)[0] if isinstance(each, SimilaritySet) for pair in each.pairs]
    return sorted({word for pair in pairs for word in pair if word not in vocabulary})


def run_glove(
    files: list[Path], matrix: Matrix, arguments: argparse.Namespace
) -> tuple[swivel.Vectors, dict[str, Any]]:
    """Count with our own counter, which takes the weights that GloVe's does, and train with GloVe's optimizer."""
    started = time.perf_counter()
    options = RunOptions(threads=arguments.threads, overwrite=True)
    counted = swivel.count(files, work_folder() / "baselines-glove", recipe="fast", options=options)
    counting = time.perf_counter() - started

    # The settings of Stanford's `demo.sh`, with its number of iterations for vectors of up to 300 dimensions.
    config = GloveConfig(dim=arguments.dim, epochs=arguments.epochs or 25, x_max=10.0)
    started = time.perf_counter()
    found, losses = train_glove(counted, config, threads=arguments.threads, progress=TrainingClock())
    return swivel.Vectors(VectorTable(matrix.rows, found)), {
        "what": "GloVe's objective and optimizer, experiments/glove.py; counts by Swivel",
        "settings": asdict(config),
        "losses": [round(loss, 6) for loss in losses],
        "counting_seconds": round(counting, 1),
        "training_seconds": round(time.perf_counter() - started, 1),
    }


def run_svd(files: list[Path], matrix: Matrix, arguments: argparse.Namespace) -> tuple[swivel.Vectors, dict[str, Any]]:
    """Factorize the PPMI of the counts with the settings of Levy, Goldberg and Dagan (2015)."""
    started = time.perf_counter()
    options = RunOptions(threads=arguments.threads, overwrite=True)
    counted = swivel.count(files, work_folder() / "baselines-svd", recipe="fast", options=options)
    counting = time.perf_counter() - started

    started = time.perf_counter()
    cells = scipy.sparse.coo_array(counted.to_scipy())
    rows, columns = cells.coords
    contexts = counted.column_sums**SMOOTHING
    pmi = np.log(cells.data * contexts.sum() / (counted.row_sums[rows] * contexts[columns]))
    ppmi = scipy.sparse.csr_array((np.maximum(pmi, 0).astype(np.float32), (rows, columns)), shape=cells.shape)
    ppmi.eliminate_zeros()
    left, values, _ = scipy.sparse.linalg.svds(ppmi, arguments.dim, rng=np.random.default_rng(1))
    return swivel.Vectors(VectorTable(matrix.rows, (left * np.sqrt(values)).astype(np.float32))), {
        "what": f"SVD of positive PMI, SciPy {scipy.__version__}; counts by Swivel",
        "settings": {"smoothing": SMOOTHING, "power": 0.5, "dim": arguments.dim},
        "counting_seconds": round(counting, 1),
        "training_seconds": round(time.perf_counter() - started, 1),
    }


def evaluate_method(vectors: swivel.Vectors, extended: swivel.Vectors, folder: Path) -> Report:
    """Return the figures: those of pairs by the extended vocabulary, those of analogies by the vocabulary itself."""
    pairs = evaluate(extended, [folder / f"{name}.tsv" for name in PAPER_ORDER if not name.endswith("analogies")])
    questions = evaluate(vectors, [folder / f"{name}.tsv" for name in PAPER_ORDER if name.endswith("analogies")])
    return Report((*pairs.results, *questions.results), EvaluationConfig())


if __name__ == "__main__":
    main()
