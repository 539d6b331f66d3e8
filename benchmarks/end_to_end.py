"""Raw text to vectors with the recipe `fast`: seconds, and the eight figures as means of three seeds.

Seconds are also given for a machine whose three products run at 210 M cells/s: each run's training scaled by the rate
measured right before and after it on the same threads, in the dtype that the run took; counting is not scaled. Goal:
150 s, and at least as good as SGNS on six sets of eight and as CBOW on six.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import swivel
from common import REFERENCE_RATE, WORK, keep, parse_arguments, plain_corpus, products_rate
from swivel.evaluation.datasets import PAPER_ORDER
from swivel.means import Means
from swivel.storage import read_manifest, remove_tree

# gensim 4 on the same corpus, window 10, 5 negatives, 5 passes, 300 dimensions, 96,376 words: the better known
# figure of gensim's and fastText's would be SGNS .765 .669 .728 .675 .438 .371 | .522 .400 and
# CBOW .767 .680 .709 .672 .433 .360 | .528 .469; both are compared.
BASELINES = {
    "sgns_gensim": (0.765, 0.669, 0.714, 0.672, 0.427, 0.352, 0.462, 0.377),
    "sgns_fasttext": (0.760, 0.654, 0.728, 0.675, 0.438, 0.371, 0.522, 0.400),
    "cbow_gensim": (0.749, 0.665, 0.682, 0.666, 0.399, 0.336, 0.447, 0.426),
    "cbow_fasttext": (0.767, 0.680, 0.709, 0.672, 0.433, 0.360, 0.528, 0.469),
}


def evaluate(vectors: swivel.Vectors, folder: Path) -> list[float]:
    report = swivel.evaluate(vectors, folder)
    return [
        report[name].rho if hasattr(report[name], "rho") else report[name].accuracy  # type: ignore[union-attr,misc]
        for name in PAPER_ORDER
    ]


def run_once(files: list[Path], seed: int, threads: int) -> tuple[swivel.Vectors, dict[str, float]]:
    out = WORK / f"run-{seed}"
    remove_tree(out)
    means = Means(threads=threads)
    started = time.perf_counter()
    matrix = swivel.count(files, out / "matrix", recipe="fast", min_count=12, means=means)
    counting = time.perf_counter() - started
    before = products_rate("float32", threads)
    started = time.perf_counter()
    vectors = swivel.train(matrix, out / "vectors", recipe="fast", seed=seed, means=means)
    training = time.perf_counter() - started
    dtype = read_manifest(out / "vectors").facts["plan"]["dtype"]
    after = products_rate(dtype, threads)
    rate = (before + after) / 2 if dtype == "float32" else after
    return vectors, {
        "counting": counting,
        "training": training,
        "whole": counting + training,
        "products_cells_per_second": rate,
        "whole_at_210_M_cells_per_second": counting + training * rate / REFERENCE_RATE,
    }


def main() -> None:
    arguments = parse_arguments(__doc__)
    files = plain_corpus(arguments.corpus)
    figures: list[list[float]] = []
    seconds: list[dict[str, float]] = []
    for seed in range(1, arguments.repeats + 1):
        vectors, times = run_once(files, seed, arguments.threads)
        figures.append(evaluate(vectors, arguments.eval))
        seconds.append(times)
    means = [statistics.mean(column) for column in zip(*figures, strict=True)]
    whole: dict[str, Any] = {part: statistics.median(run[part] for run in seconds) for part in seconds[0]}
    keep(
        "end_to_end",
        {
            "medians": whole,
            "figures": dict(zip(PAPER_ORDER, (round(value, 4) for value in means), strict=True)),
            "spread_over_seeds": [round(max(c) - min(c), 4) for c in zip(*figures, strict=True)],
            "sets_at_least_as_good": {
                name: sum(ours >= theirs for ours, theirs in zip(means, baseline, strict=True))
                for name, baseline in BASELINES.items()
            },
        },
    )


if __name__ == "__main__":
    main()
