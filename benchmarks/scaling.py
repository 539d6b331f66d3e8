"""Cost grows with rows x columns for training and with tokens for counting, and not otherwise; with a plot."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import swivel
from common import RESULTS, WORK, keep, parse_arguments, plain_corpus
from swivel.means import Means
from swivel.storage import read_manifest, remove_tree

SIZES = (8_192, 16_384, 32_768, 65_536)
SHARES = (0.125, 0.25, 0.5, 1.0)


def take_lines(files: list[Path], share: float) -> Path:
    """Write the first share of the corpus's bytes, cut at a line."""
    target = WORK / f"part-{share}.txt"
    if not target.exists():
        data = b"".join(file.read_bytes() for file in files)
        end = data.rfind(b"\n", 0, int(len(data) * share)) + 1
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data[:end])
    return target


def count_seconds(text: Path, size: int, threads: int) -> float:
    out = WORK / "scaling"
    remove_tree(out)
    started = time.perf_counter()
    swivel.count(text, out, recipe="fast", max_size=size, min_count=1, means=Means(threads=threads))
    return time.perf_counter() - started


def train_seconds(text: Path, size: int, threads: int) -> float:
    """Return seconds of the loop for one pass over all cells, d = 300, k = 1,024."""
    out = WORK / "scaling"
    remove_tree(out)
    means = Means(threads=threads)
    matrix = swivel.count(text, out, recipe="fast", max_size=size, min_count=1, means=means)
    settings = {"dim": 300, "block_size": 1024, "passes": 1, "zeros": "all", "dtype": "float32"}
    trained = WORK / "scaling-vectors"
    remove_tree(trained)
    swivel.train(matrix, trained, recipe="fast", means=means, **settings)
    return float(read_manifest(trained).facts["training_seconds"])


def slope(x: list[float], y: list[float]) -> float:
    """Return the exponent of y in x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def draw(panels: list[tuple[str, str, dict[str, tuple[list[float], list[float]]]]]) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), layout="constrained")
    for axis, (title, label, curves) in zip(axes, panels, strict=True):
        for name, (x, y) in curves.items():
            axis.loglog(x, y, "o-", label=name)
        axis.set(title=title, xlabel=label, ylabel="seconds")
        axis.legend()
        axis.grid(alpha=0.3, which="both")
    figure.savefig(RESULTS / "scaling.png", dpi=120)


def main() -> None:
    arguments = parse_arguments(__doc__)
    files = plain_corpus(arguments.corpus)
    texts = [take_lines(files, share) for share in SHARES]
    train_seconds(texts[0], SIZES[0], arguments.threads)  # Compiles.
    counting = {
        f"{size:,} words": [count_seconds(text, size, arguments.threads) for text in texts]
        for size in (SIZES[0], SIZES[-1])
    }
    sizes = [text.stat().st_size for text in texts]
    training = {
        f"{share:g} of the corpus": [train_seconds(text, size, arguments.threads) for size in SIZES]
        for share, text in zip((SHARES[0], SHARES[2]), (texts[0], texts[2]), strict=True)
    }
    cells = [float(size) ** 2 for size in SIZES]
    draw(
        [
            ("counting", "bytes of text", {name: ([float(s) for s in sizes], y) for name, y in counting.items()}),
            ("one pass of training", "rows x columns", {name: (cells, y) for name, y in training.items()}),
        ]
    )
    few, many = training.values()
    keep(
        "scaling",
        {
            "counting_seconds": counting,
            "training_seconds": training,
            "counting_exponent_in_tokens": {n: slope([float(s) for s in sizes], y) for n, y in counting.items()},
            "training_exponent_in_cells": {n: slope(cells, y) for n, y in training.items()},
            "training_with_four_times_the_tokens": {
                f"{size:,} words": b / a for size, a, b in zip(SIZES, few, many, strict=True)
            },
        },
    )


if __name__ == "__main__":
    main()
