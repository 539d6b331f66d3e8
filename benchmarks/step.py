"""The training step against its three matrix products alone, timed in the same run, and sampled zeros against all.

Blocks are real ones (98,304 words, k = 1,024, d = 300); products and steps take turns, on the same threads, each
thread on blocks of its own. Goals: 92 % float32, 85 % bfloat16; a pass with sampled zeros at most 0.36 of a full one.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

import swivel
from common import REFERENCE_RATE, WORK, keep, parse_arguments, plain_corpus
from swivel.backends import Side, Step, StepSettings, Zeros
from swivel.backends.choice import measure_products
from swivel.backends.cpu import CpuBackend
from swivel.config import TrainConfig, stage_config
from swivel.means import Means
from swivel.objective import Objective, column_offsets, row_offsets
from swivel.schedule import block_order, block_starts

DIM = 300


def make_steps(matrix: swivel.Matrix, backend: CpuBackend) -> list[Step]:
    """Return one round of real blocks, with vectors as they are when training has settled a little."""
    rng = np.random.default_rng(1)
    count = matrix.row_blocks
    starts, order = block_starts(matrix.shape[0], count), block_order(matrix.shape[0], count)

    def side(offsets: Any) -> Side:
        vectors = rng.standard_normal((matrix.shape[0], DIM), np.float32) / np.float32(np.sqrt(DIM))
        return Side(backend.put(vectors), backend.put(np.ones_like(vectors)), backend.put(offsets[order].astype("f4")))

    rows = side(row_offsets(matrix.row_sums, matrix.total, Objective()))
    columns = side(column_offsets(matrix.column_sums, Objective()))
    return [
        Step(
            rows.part(starts[i], starts[i + 1]),
            columns.part(starts[j], starts[j + 1]),
            lambda i=i, j=j: matrix.cells(i, j),
            1e-4,
            (1, i, j),
        )
        for i, j in ((n, (n + count // 2) % count) for n in range(count))
    ]


def products_round(steps: list[Step], dtype: torch.dtype, pool: ThreadPoolExecutor) -> float:
    """Return seconds of the three products of every step, operands ready in `dtype`, outputs reused."""
    k = max(len(step.rows.vectors) for step in steps)
    sides = [(torch.from_numpy(s.rows.vectors).to(dtype), torch.from_numpy(s.columns.vectors).to(dtype)) for s in steps]
    buffers = [(torch.empty(k, k, dtype=dtype), torch.empty(k, DIM, dtype=dtype)) for _ in steps[: pool._max_workers]]

    def share(number: int) -> None:
        square, tall = buffers[number]
        for w, c in sides[number :: len(buffers)]:
            torch.mm(w, c.t(), out=square[: len(w), : len(c)])
            torch.mm(square[: len(w), : len(c)], c, out=tall[: len(w)])
            torch.mm(square[: len(w), : len(c)].t(), w, out=tall[: len(c)])

    started = time.perf_counter()
    list(pool.map(share, range(len(buffers))))
    return time.perf_counter() - started


def compare(matrix: swivel.Matrix, dtype: str, threads: int, repeats: int) -> dict[str, float]:
    config = stage_config(TrainConfig, "fast")
    everything = StepSettings(Objective(), Zeros(), config.decay)
    sampled = StepSettings(Objective(), Zeros(config.common, config.middle, config.share), config.decay)
    full, few = (CpuBackend(settings, threads=threads, dtype=dtype) for settings in (everything, sampled))
    steps = make_steps(matrix, full)
    cells = sum(len(step.rows.vectors) * len(step.columns.vectors) for step in steps)
    times: dict[str, list[float]] = {"products": [], "all": [], "sampled": []}
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for turn in range(repeats + 1):
            seconds = [products_round(steps, getattr(torch, dtype), pool)]
            for backend in (full, few):
                started = time.perf_counter()
                backend.run(steps, lambda: False)
                seconds.append(time.perf_counter() - started)
            if turn:  # The first turn warms.
                for name, value in zip(times, seconds, strict=True):
                    times[name].append(value)
    few.close()
    full.close()
    ratio = [p / a for p, a in zip(times["products"], times["all"], strict=True)]
    share = [s / a for s, a in zip(times["sampled"], times["all"], strict=True)]
    return {
        "products_cells_per_second": cells / statistics.median(times["products"]),
        "step_cells_per_second": cells / statistics.median(times["all"]),
        "products_share_of_step": statistics.median(ratio),
        "sampled_share_of_all": statistics.median(share),
    }


def main() -> None:
    arguments = parse_arguments(__doc__)
    matrix = swivel.count(
        plain_corpus(arguments.corpus),
        WORK / "step-matrix",
        recipe="fast",
        min_count=12,
        means=Means(threads=arguments.threads),
    )
    dtypes = list(measure_products("float32", "bfloat16"))
    result = {dtype: compare(matrix, dtype, arguments.threads, 5 * arguments.repeats) for dtype in dtypes}
    rates = {dtype: result[dtype]["products_cells_per_second"] for dtype in dtypes}
    keep(
        arguments.name or "step",
        {
            **result,
            "bfloat16_products_run": "bfloat16" in dtypes,
            "best_products_rate_against_reference": max(rates.values()) / REFERENCE_RATE,
        },
    )


if __name__ == "__main__":
    main()
