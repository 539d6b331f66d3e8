"""Cost grows with rows x columns for training and with tokens for counting, and not otherwise; with a plot."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import RESULTS, keep, make_parser, parse_arguments, plain_corpus, work_folder, write_corpus
from swivel.runtime.options import RunOptions
from swivel.storage.lock import remove_tree
from swivel.storage.manifest import read_manifest

MEASURES = (
    "swivel.corpus",
    "swivel.counts.cooccurrence",
    "swivel.counts",
    "swivel.training.loop",
    "swivel.training.backends.cpu",
    "swivel.training.backends.cpu_kernels",
    "swivel.training.objective_numba",
)
SIZES = (8_192, 16_384, 32_768, 65_536)
SHARES = (0.125, 0.25, 0.5, 1.0)


def take_lines(files: list[Path], share: float) -> Path:
    """Write the first share of the corpus's bytes, cut at a line."""
    target = work_folder() / f"part-{share}.txt"
    if not target.exists():
        data = b"".join(file.read_bytes() for file in files)
        end = data.rfind(b"\n", 0, int(len(data) * share)) + 1
        target.write_bytes(data[:end])
    return target


def count_seconds(text: Path, size: int, threads: int) -> float:
    out = work_folder() / "scaling"
    remove_tree(out)
    started = time.perf_counter()
    swivel.count(text, out, recipe="fast", max_size=size, min_count=1, options=RunOptions(threads=threads))
    return time.perf_counter() - started


def train_seconds(text: Path, size: int, threads: int, dim: int, block_size: int) -> float:
    """Return seconds of the loop for one epoch over all cells."""
    out = work_folder() / "scaling"
    remove_tree(out)
    options = RunOptions(threads=threads)
    matrix = swivel.count(text, out, recipe="fast", max_size=size, min_count=1, options=options)
    settings: dict[str, Any] = {"dim": dim, "block_size": block_size, "epochs": 1, "zeros": "all", "dtype": "float32"}
    trained = work_folder() / "scaling-vectors"
    remove_tree(trained)
    swivel.train(matrix, trained, recipe="fast", options=options, **settings)
    return float(read_manifest(trained).facts["training_seconds"])


def slope(x: list[float], y: list[float]) -> float:
    """Return the exponent of y in x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def draw(panels: list[tuple[str, str, dict[str, tuple[list[float], list[float]]]]], file: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5 * len(panels), 4), layout="constrained")
    for axis, (title, label, curves) in zip(axes, panels, strict=True):
        for name, (x, y) in curves.items():
            axis.loglog(x, y, "o-", label=name)
        axis.set(title=title, xlabel=label, ylabel="seconds")
        axis.legend()
        axis.grid(alpha=0.3, which="both")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = make_parser(__doc__, "corpus", "threads")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of words")
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--block-size", type=int, default=1024)
    arguments = parse_arguments(parser, corpus=write_corpus, threads=1, sizes=(20, 40), dim=4, block_size=16)

    files = plain_corpus(arguments.corpus)
    texts = [take_lines(files, share) for share in SHARES]
    sizes, threads = arguments.sizes, arguments.threads

    def train(text: Path, size: int) -> float:
        return train_seconds(text, size, threads, arguments.dim, arguments.block_size)

    train(texts[0], sizes[0])  # Compiles.
    counting = {
        f"{size:,} words": [count_seconds(text, size, threads) for text in texts] for size in (sizes[0], sizes[-1])
    }
    bytes_of_text = [float(text.stat().st_size) for text in texts]
    training = {
        f"{share:g} of the corpus": [train(text, size) for size in sizes]
        for share, text in zip((SHARES[0], SHARES[2]), (texts[0], texts[2]), strict=True)
    }
    cells = [float(size) ** 2 for size in sizes]

    draw(
        [
            ("counting", "bytes of text", {name: (bytes_of_text, y) for name, y in counting.items()}),
            ("one epoch of training", "rows x columns", {name: (cells, y) for name, y in training.items()}),
        ],
        (work_folder() if arguments.smoke else RESULTS) / "scaling.png",
    )
    few, many = training.values()
    keep(
        arguments,
        {
            "counting_seconds": counting,
            "training_seconds": training,
            "counting_exponent_in_tokens": {n: slope(bytes_of_text, y) for n, y in counting.items()},
            "training_exponent_in_cells": {n: slope(cells, y) for n, y in training.items()},
            "training_with_four_times_the_tokens": {
                f"{size:,} words": b / a for size, a, b in zip(sizes, few, many, strict=True)
            },
        },
    )


if __name__ == "__main__":
    main()
