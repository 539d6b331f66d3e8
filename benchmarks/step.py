"""The training step against its three matrix products alone, timed in the same run, and sampled zeros against all.

Blocks are real ones (98,304 words, k = 1,024, d = 300); products and steps take turns, on the same threads, each
thread on blocks of its own. Goals: 92 % float32, 85 % bfloat16; an epoch with sampled zeros at most 0.36 of a full one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

import swivel
from common import REFERENCE_RATE, keep, make_parser, parse_arguments, plain_corpus, work_folder, write_corpus
from swivel.config import TrainConfig, stage_config
from swivel.runtime.options import RunOptions
from swivel.training.backends import BackendSettings, ParameterBlock, Step, ZeroSampling
from swivel.training.backends.cpu import CpuBackend
from swivel.training.objective import column_offsets, row_offsets
from swivel.training.schedule import block_order, block_starts
from swivel.training.training_plan import choose_zeros, measure_products

MEASURES = (
    "swivel.training.backends.base",
    "swivel.training.zero_sampling",
    "swivel.training.backends.cpu",
    "swivel.training.backends.cpu_kernels",
    "swivel.training.objective_numba",
)

Operands = tuple[torch.Tensor, torch.Tensor]  # the vectors of the rows and of the columns of a block


def make_sides(matrix: swivel.Matrix, dim: int) -> tuple[ParameterBlock, ParameterBlock]:
    """Return parameters in the order of blocks, as they are when training has settled a little."""
    rng = np.random.default_rng(1)
    order = block_order(matrix.shape[0], matrix.row_blocks)

    def make_side(offsets: NDArray[np.float64]) -> ParameterBlock:
        vectors = rng.standard_normal((matrix.shape[0], dim), np.float32) / np.float32(np.sqrt(dim))
        return ParameterBlock(vectors, np.ones(len(vectors), np.float32), offsets[order].astype(np.float32))

    rows = make_side(row_offsets(matrix.row_sums, matrix.total, TrainConfig()))
    return rows, make_side(column_offsets(matrix.column_sums))


def make_steps(matrix: swivel.Matrix) -> list[Step]:
    """Return the steps of one round of real blocks: each row block with the column block half a turn away."""
    count = matrix.row_blocks
    blocks = [(number, (number + count // 2) % count) for number in range(count)]
    return [Step(block, 1e-4, (1, *block)) for block in blocks]


def products_round(sides: list[Operands], threads: int, pool: ThreadPoolExecutor) -> float:
    """Return seconds of the three products of every step, operands ready in their dtype, outputs reused."""
    k, dim, dtype = max(len(w) for w, _ in sides), sides[0][0].shape[1], sides[0][0].dtype
    buffers = [(torch.empty(k, k, dtype=dtype), torch.empty(k, dim, dtype=dtype)) for _ in sides[:threads]]

    def share(number: int) -> None:
        square, tall = buffers[number]
        for w, c in sides[number :: len(buffers)]:
            torch.mm(w, c.t(), out=square[: len(w), : len(c)])
            torch.mm(square[: len(w), : len(c)], c, out=tall[: len(w)])
            torch.mm(square[: len(w), : len(c)].t(), w, out=tall[: len(c)])

    started = time.perf_counter()
    list(pool.map(share, range(len(buffers))))
    return time.perf_counter() - started


def make_operands(steps: list[Step], backend: CpuBackend, dtype: torch.dtype) -> list[Operands]:
    """Return the row and column vectors of every step in the dtype of the products."""
    blocks = [(backend.get_block(0, step.block[0]), backend.get_block(1, step.block[1])) for step in steps]
    return [(torch.from_numpy(w.vectors).to(dtype), torch.from_numpy(c.vectors).to(dtype)) for w, c in blocks]


def compare(matrix: swivel.Matrix, dtype: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return cells a second of the products and of the step, and the ratios of their seconds."""
    threads = arguments.threads
    config = replace(stage_config(TrainConfig, "fast"), zeros="sampled")
    sample = choose_zeros(matrix, config, "cpu", (matrix.row_blocks, matrix.column_blocks))
    full, few = (
        CpuBackend(BackendSettings(TrainConfig(weight_decay=config.weight_decay), zeros, threads=threads, dtype=dtype))
        for zeros in (ZeroSampling(), sample)
    )

    starts = block_starts(matrix.shape[0], matrix.row_blocks)
    for backend in (full, few):
        backend.hold(*make_sides(matrix, arguments.dim), (starts, starts))
        backend.take(matrix)

    steps = make_steps(matrix)
    operands = make_operands(steps, full, getattr(torch, dtype))
    cells = sum(len(w) * len(c) for w, c in operands)
    times: dict[str, list[float]] = {"products": [], "all": [], "sampled": []}
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for turn in range(arguments.repeats + 1):
            seconds = [products_round(operands, threads, pool)]
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
    parser = make_parser(__doc__, "corpus", "repeats", "threads")
    parser.set_defaults(repeats=15)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="of the operands of the products")
    arguments = parse_arguments(parser, corpus=write_corpus, repeats=1, threads=1, dim=4, dtypes=["float32"])

    matrix = swivel.count(
        plain_corpus(arguments.corpus),
        work_folder() / "step-matrix",
        recipe="fast",
        min_count=12,
        options=RunOptions(threads=arguments.threads),
    )
    dtypes = list(measure_products(*arguments.dtypes))  # those that run on this machine
    result = {dtype: compare(matrix, dtype, arguments) for dtype in dtypes}
    rates = {dtype: result[dtype]["products_cells_per_second"] for dtype in dtypes}
    keep(
        arguments,
        {
            **result,
            "bfloat16_products_run": "bfloat16" in dtypes,
            "best_products_rate_against_reference": max(rates.values()) / REFERENCE_RATE,
        },
    )


if __name__ == "__main__":
    main()
