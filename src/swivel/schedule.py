"""Pure: the order of blocks, how many passes, how the rate falls.

Knows numbers only: no arrays of parameters, no devices, no files.
"""

from __future__ import annotations

import math

import numpy as np

Block = tuple[int, int]

# Measured (docs/experiments.md): what counts is how often a vector is updated, whatever the block size.
UPDATES_PER_VECTOR = 480
SMALLEST_BLOCK = 256
LARGEST_BLOCK = {"cpu": 1024}  # what a device is fastest with to the same quality
LARGEST_BLOCK_ELSEWHERE = 4096
FEWEST_PASSES = 3


def rounds_without_conflict(row_blocks: int, column_blocks: int, seed: tuple[int, ...]) -> list[list[Block]]:
    """Return one pass in random order: rounds of blocks no two of which share a row block or a column block.

    >>> sorted(block for round in rounds_without_conflict(2, 3, (1,)) for block in round)
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(row_blocks).tolist(), rng.permutation(column_blocks).tolist()
    longer = max(row_blocks, column_blocks)
    rounds = []
    for turn in rng.permutation(longer).tolist():
        # A diagonal of the longer side meets every block of the shorter side once.
        diagonal = [(n % row_blocks, (n + turn) % column_blocks) for n in range(min(row_blocks, column_blocks))]
        if row_blocks > column_blocks:
            diagonal = [((n + turn) % row_blocks, n) for n in range(column_blocks)]
        rounds.append([(rows[i], columns[j]) for i, j in diagonal])
    return rounds


def default_block_size(rows: int, columns: int, device: str = "cpu") -> int:
    """Return the block size that reaches good vectors soonest.

    On a CPU a pass costs the same at every block size and smaller blocks need fewer passes, but below 1,024 each update
    sees fewer columns; small matrices take what leaves them some tens of blocks. A GPU needs large blocks to be busy.

    >>> [default_block_size(n, n) for n in (500, 8_192, 32_768, 98_304, 400_000)]
    [256, 256, 512, 1024, 1024]
    """
    largest = LARGEST_BLOCK.get(device, LARGEST_BLOCK_ELSEWHERE)
    return min(largest, max(SMALLEST_BLOCK, math.ceil(min(rows, columns) / (64 if device == "cpu" else 16))))


def nested_block_count(size: int, block_size: int, stored: int) -> int:
    """Return the number of blocks of about `block_size` that nests in `stored` blocks, where that is finer.

    >>> nested_block_count(100_000, 1024, 98), nested_block_count(8_192, 256, 8), nested_block_count(8_192, 4096, 8)
    (98, 32, 2)
    """
    wanted = math.ceil(size / block_size)
    if wanted < stored:
        return wanted
    return min(size, round(wanted / stored) * stored)


def default_passes(row_blocks: int, column_blocks: int) -> int:
    """Return how many passes give every vector about 480 updates.

    >>> [default_passes(n, n) for n in (24, 96, 400)]
    [20, 5, 3]
    """
    return max(FEWEST_PASSES, round(UPDATES_PER_VECTOR / min(row_blocks, column_blocks)))


def falling_rate(rate: float, done: float, total: float) -> float:
    """Return the rate after `done` of `total` steps, falling linearly to zero.

    >>> falling_rate(0.1, 5, 10)
    0.05
    """
    return rate * max(0.0, 1.0 - done / total)
