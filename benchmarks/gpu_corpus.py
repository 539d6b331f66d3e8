"""A tokenised corpus to vectors on a GPU, in a process of its own as a user starts it, and how good they are.

Receives files of tokenised text (or raw text, which is tokenised first) and the folder of the test sets. The second run
is the one that counts: Triton's and numba's caches are warm then. Goal: 10 s, and no figure below the CPU's by more
than two seed deviations (five seeds).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import swivel
from common import RESULTS, ROOT, WORK, plain_corpus
from counting import tokenise
from end_to_end import evaluate
from swivel.evaluation.datasets import PAPER_ORDER
from swivel.matrix import open_matrix
from swivel.resources import count_cores
from swivel.storage import read_manifest, remove_tree

SEEDS = range(1, 6)


def measure_corpus(corpus: list[Path], eval_folder: Path) -> dict[str, Any]:
    """Return seconds of two runs of the command, and the eight figures over five seeds beside the CPU's."""
    tokens = make_tokens(corpus)
    out = WORK / "gpu-run"
    seconds = [time_command(tokens, out) for _ in range(3)]
    training = read_manifest(out / "vectors").facts
    figures = []
    for seed in SEEDS:
        vectors = swivel.train(open_matrix(out / "matrix"), recipe="fast", seed=seed)
        figures.append(evaluate(vectors, eval_folder))
    return {
        "seconds": seconds,
        "median_of_later_runs": statistics.median(seconds[1:]),
        "training_seconds": training["training_seconds"],
        "plan": training["plan"],
        **compare(figures),
    }


def make_tokens(corpus: list[Path]) -> Path:
    """Return the corpus with a space between tokens, lines kept."""
    WORK.mkdir(parents=True, exist_ok=True)
    files = [file for path in corpus for file in plain_corpus(path)]
    return tokenise(files, count_cores())[0]


def time_command(tokens: Path, out: Path) -> float:
    remove_tree(out)
    arguments = ["run", str(tokens), "-o", str(out), "--recipe", "fast", "--tokenizer", "whitespace"]
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "swivel", *arguments, "--min-count", "12", "--device", "cuda"],
        check=True,
        cwd=ROOT,
    )
    return time.perf_counter() - started


def compare(figures: list[list[float]]) -> dict[str, Any]:
    """Return means and deviations, and which are below the CPU's by more than two deviations."""
    means = [statistics.mean(column) for column in zip(*figures, strict=True)]
    deviations = [statistics.stdev(column) for column in zip(*figures, strict=True)]
    cpu = json.loads((RESULTS / "end_to_end.json").read_text())["figures"]
    below = [
        name
        for name, mean, deviation in zip(PAPER_ORDER, means, deviations, strict=True)
        if mean < cpu[name] - 2 * deviation
    ]
    return {
        "figures": dict(zip(PAPER_ORDER, (round(value, 4) for value in means), strict=True)),
        "deviations": [round(value, 4) for value in deviations],
        "cpu_figures": cpu,
        "below_the_cpu": below,
    }
