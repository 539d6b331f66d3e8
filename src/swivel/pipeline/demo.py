"""`swivel demo`: the bundled matrix of the most frequent English words, and a demonstration with it.

`tools/make_sample.py` makes the two files in `data/`: the words with their counts, and the upper triangle of the
matrix, compressed with xz: one bit per cell (observed or not), then one byte per observed cell, its count in quarter
octaves. No observed cell is left out; rounding changes a count by at most 9 %.
"""

from __future__ import annotations

import hashlib
import lzma
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, open_matrix, to_units
from swivel.errors import DamagedFolder
from swivel.evaluation.datasets import read_bundled
from swivel.evaluation.scores import score_analogies
from swivel.pipeline.report_job import timed_options
from swivel.pipeline.settings import resolve_training
from swivel.pipeline.train import train_vectors
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import check_libraries
from swivel.storage.output_folder import check_output, has_result

WORDS, CELLS = "sample-words.txt", "sample-cells.xz"
STEPS_PER_OCTAVE = 4
SMALLEST = -14  # code 0 is 2^(-14/4) = 0.088, below the 0.1 that a window of 10 can give
UNIT = 2520
SHOWN = ("music", "moon", "dog", "blue", "seven", "physics", "guitar", "apple")
QUESTIONS = (
    ("man", "king", "woman"),
    ("france", "wine", "germany"),
    ("italy", "rome", "greece"),
    ("music", "composer", "painting"),
    ("winter", "cold", "summer"),
    ("large", "larger", "small"),
)
# Half of the cells are observed, so sampling zeros would save nothing. Share of the bundled questions answered rightly
# after 20 epochs: dim 300 .81; with fewer dimensions it is lower, and some seeds rank prince before queen.
SETTINGS: dict[str, Any] = {
    "dim": 300,
    "block_size": 256,
    "epochs": 20,
    "weight_decay": 1e-4,
    "combine": "sum",
    "zeros": "all",
}


def unpack_cells(data: bytes, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return rows, columns (row <= column) and counts of the cells that `tools/make_sample.py` packed."""
    cells = size * (size + 1) // 2
    raw = np.frombuffer(lzma.decompress(data), np.uint8)

    # The bits of all cells come first, then one byte for each bit that is set.
    bits = -(-cells // 8)
    observed = np.flatnonzero(np.unpackbits(raw[:bits], count=cells))
    if len(observed) != len(raw) - bits:
        raise DamagedFolder(f"data/{CELLS}: not what {WORDS} says; install the package again")

    starts = np.concatenate([[0], np.cumsum(np.arange(size, 0, -1))])  # of the rows in the triangle
    rows = np.repeat(np.arange(size), np.diff(np.searchsorted(observed, starts)))
    return rows, observed - starts[rows] + rows, np.exp2((raw[bits:].astype(np.float64) + SMALLEST) / STEPS_PER_OCTAVE)


def open_sample(out: str | Path | None = None, *, options: RunOptions | None = None) -> Matrix:
    """Return the bundled matrix, in memory or opened from the folder `out` that it is unpacked to.

    >>> matrix = open_sample()
    >>> matrix.rows[0], matrix.shape[0] >= 5000
    ('the', True)
    """
    options = options or RunOptions()
    data = files("swivel") / "data"
    packed_cells = (data / CELLS).read_bytes()
    words = Vocabulary.from_lines((data / WORDS).read_text(encoding="utf-8").splitlines())
    provenance: dict[str, Any] = {"config": {}, "inputs": {CELLS: hashlib.sha256(packed_cells).hexdigest()[:16]}}

    output = check_output(out, [], options)
    if output is not None and has_result(output, "matrix", provenance, options):
        return open_matrix(output)

    options.progress.message(f"unpacking the bundled matrix of {len(words):,} English words")
    spec = MatrixSpec(rows=words, columns=None, unit=UNIT, symmetric=True)
    builder = MatrixBuilder(
        output, spec, memory_bytes=options.memory_bytes, threads=options.thread_count, overwrite=options.overwrite
    )

    with builder:
        rows, columns, counts = unpack_cells(packed_cells, len(words))
        units = to_units(counts, UNIT)
        builder.add(rows, columns, units)

        # Only the upper triangle is stored: add the mirror image of the cells off the diagonal.
        is_off_diagonal = rows != columns
        builder.add(columns[is_off_diagonal], rows[is_off_diagonal], units[is_off_diagonal])
        return builder.finish(**provenance)


def run_demo(out: str | Path | None, options: RunOptions) -> dict[str, Any]:
    """Train the bundled matrix, and return neighbors, analogies, and how many questions were answered rightly."""
    folder = None if out is None else Path(out)
    check_libraries("training", needs_torch=True)
    started = time.perf_counter()
    options = timed_options(folder, options)
    matrix = open_sample(folder and folder / "matrix", options=options)
    configs = resolve_training("fast", SETTINGS)
    vectors = train_vectors(matrix, folder and folder / "vectors", *configs, options, folder=folder)

    sections = score_analogies(vectors, read_bundled()).sections
    return {
        "words": len(vectors),
        "cells": matrix.cell_count,
        "seconds": time.perf_counter() - started,
        "neighbors": {word: vectors.nearest(word, count=6) for word in SHOWN if word in vectors},
        "analogies": {f"{a} is to {b} as {c}": vectors.analogy(a, b, c, count=1)[0].token for a, b, c in QUESTIONS},
        "sections": [(section.name, section.correct, section.total) for section in sections],
    }
