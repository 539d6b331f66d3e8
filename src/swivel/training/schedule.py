"""Pure: the order of blocks, how many epochs, how the rate falls.

Knows numbers only: no arrays of parameters, no devices, no files.
"""

from __future__ import annotations

import math
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

Block = tuple[int, int]

# Measured (docs/experiments.md): what counts is how often a vector is updated, whatever the block size.
UPDATES_PER_VECTOR = 480
SMALLEST_BLOCK = 256
LARGEST_BLOCK = {"cpu": 1024}
LARGEST_BLOCK_ELSEWHERE = 4096
MIN_EPOCHS = 3


def rounds_without_conflict(row_blocks: int, column_blocks: int, seed: tuple[int, ...]) -> list[list[Block]]:
    """Return one epoch in random order: rounds of blocks no two of which share a row block or a column block.

    >>> sorted(block for round in rounds_without_conflict(2, 3, (1,)) for block in round)
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    rng = np.random.default_rng(seed)
    rounds = []
    # A diagonal of the longer side meets every block of the shorter side once. Blocks are interleaved, so one is like
    # the other: the order of the diagonals is all there is to shuffle, and neighbours on a diagonal stay neighbours in
    # memory, which a GPU is glad of.
    for turn in rng.permutation(max(row_blocks, column_blocks)).tolist():
        if row_blocks > column_blocks:
            rounds.append([((n + turn) % row_blocks, n) for n in range(column_blocks)])
        else:
            rounds.append([(n, (n + turn) % column_blocks) for n in range(row_blocks)])
    return rounds


def rounds_in_groups(
    row_blocks: int, column_blocks: int, row_group: int, column_group: int, seed: tuple[int, ...]
) -> list[list[Block]]:
    """Return one epoch in which few blocks change hands: rounds inside one pair of groups, then inside the next.

    A device that holds one group of row blocks and one of column blocks loads one group for every further pair: pairs
    follow each other as a snake goes, the side with fewer groups on the outside. No order needs fewer loads, since two
    pairs differ in a group at least. PyTorch-BigGraph's inside-out order and Marius's BETA order are for graphs whose
    rows are their columns; here the two sides have parameters of their own, and the snake is the whole answer.

    >>> [sorted(round) for round in rounds_in_groups(2, 4, 2, 2, (1,))]
    [[(0, 0), (1, 1)], [(0, 1), (1, 0)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    """
    rng = np.random.default_rng(seed)
    row_starts, column_starts = group_starts(row_blocks, row_group), group_starts(column_blocks, column_group)
    rounds = []
    for i, j in _snake(len(row_starts) - 1, len(column_starts) - 1, rng):
        rows, columns = row_starts[i + 1] - row_starts[i], column_starts[j + 1] - column_starts[j]
        inside = rounds_without_conflict(rows, columns, (*seed, i, j))
        rounds += [[(row_starts[i] + row, column_starts[j] + column) for row, column in blocks] for blocks in inside]
    return rounds


def rounds_for_ranks(row_blocks: int, column_blocks: int, ranks: int, seed: tuple[int, ...]) -> list[list[Block]]:
    """Return one epoch in which every rank keeps its row blocks and column blocks go round.

    Column blocks are in two chunks for every rank, so that one travels while the other computes: in turn t, rank r
    trains its rows with chunk 2r + t, which rank r - 1 takes over in turn t + 2. An epoch begins with the chunks that the
    last one ended with, where they are. The last part of `seed` is the number of the epoch. A round has blocks of every
    rank: one process that runs them all does the same.

    >>> rounds_for_ranks(2, 4, 2, (1, 0))
    [[(0, 0), (1, 2)], [(0, 1), (1, 3)], [(0, 2), (1, 0)], [(0, 3), (1, 1)]]
    """
    rows, columns = block_starts(row_blocks, ranks).tolist(), block_starts(column_blocks, 2 * ranks).tolist()
    rounds = []
    for turn in range(2 * ranks):
        parts = []
        for rank in range(ranks):
            chunk = (2 * rank + turn - 2 * seed[-1]) % (2 * ranks)
            height, width = rows[rank + 1] - rows[rank], columns[chunk + 1] - columns[chunk]
            inside = rounds_without_conflict(height, width, (*seed, turn, rank)) if height and width else []
            parts.append([[(rows[rank] + i, columns[chunk] + j) for i, j in blocks] for blocks in inside])
        rounds += [[block for blocks in pieces for block in blocks] for pieces in zip_longest(*parts, fillvalue=[])]
    return rounds


def rank_of_row(row_blocks: int, ranks: int, block: int) -> int:
    """Return the rank that keeps a row block.

    >>> [rank_of_row(5, 2, block) for block in range(5)]
    [0, 0, 0, 1, 1]
    """
    return int(np.searchsorted(block_starts(row_blocks, ranks), block, "right")) - 1


def group_starts(blocks: int, group: int) -> list[int]:
    """Return where groups of at most `group` blocks, about equal ones, start; the last entry is `blocks`.

    >>> group_starts(7, 3)
    [0, 3, 5, 7]
    """
    starts: list[int] = block_starts(blocks, math.ceil(blocks / group)).tolist()
    return starts


def _snake(rows: int, columns: int, rng: np.random.Generator) -> list[Block]:
    """Return all pairs, each differing from the one before in one number."""
    if rows > columns:
        return [(i, j) for j, i in _snake(columns, rows, rng)]
    inner = rng.permutation(columns).tolist()
    pairs = []
    for outer in rng.permutation(rows).tolist():
        pairs += [(outer, number) for number in inner]
        inner.reverse()
    return pairs


def default_block_size(rows: int, columns: int, largest: int = LARGEST_BLOCK["cpu"], smallest: int = 1) -> int:
    """Return the block size for a matrix: `largest`, or less where that would leave it less than some tens of blocks.

    On a CPU an epoch costs the same at every block size and smaller blocks need fewer epochs, but the smaller they are
    the fewer columns each update sees, and figures sag. A GPU needs large blocks to be busy. Who hands blocks around
    wants none below `smallest`, as long as there are four a side.

    >>> [default_block_size(n, n) for n in (500, 8_192, 32_768, 98_304, 400_000)]
    [256, 256, 512, 1024, 1024]
    >>> [default_block_size(n, n, 2048) for n in (500, 8_192, 32_768, 98_304, 400_000)]
    [256, 256, 1024, 2048, 2048]
    >>> [default_block_size(n, n, smallest=1024) for n in (500, 2_000, 8_192, 400_000)]
    [256, 500, 1024, 1024]
    """
    size = min(rows, columns)
    alone = min(largest, max(min(SMALLEST_BLOCK, largest), math.ceil(size * largest / 65_536)))
    return max(alone, min(smallest, math.ceil(size / 4)))


def largest_block(device: str) -> int:
    """Return the size of block that a device is fastest with, to about the same quality."""
    return LARGEST_BLOCK.get(device, LARGEST_BLOCK_ELSEWHERE)


def choose_block_count(size: int, block_size: int, stored: int) -> int:
    """Return the number of blocks of about `block_size`, or the stored one where that comes near enough.

    >>> choose_block_count(100_000, 1024, 98), choose_block_count(3_000, 1024, 4), choose_block_count(8_192, 256, 8)
    (98, 4, 32)
    """
    wanted = math.ceil(size / block_size)
    return stored if 0.75 * wanted <= stored <= 1.34 * wanted else wanted


def default_epochs(row_blocks: int, column_blocks: int) -> int:
    """Return how many epochs give every vector about 480 updates.

    >>> [default_epochs(n, n) for n in (24, 96, 400)]
    [20, 5, 3]
    """
    return max(MIN_EPOCHS, round(UPDATES_PER_VECTOR / min(row_blocks, column_blocks)))


def falling_rate(learning_rate: float, done: float, total: float) -> float:
    """Return the rate after `done` of `total` steps, falling linearly to zero.

    >>> falling_rate(0.1, 5, 10)
    0.05
    """
    return learning_rate * max(0.0, 1.0 - done / total)


def block_starts(size: int, blocks: int) -> NDArray[np.int64]:
    """Return where each block starts when blocks lie one after the other; the last entry is `size`."""
    sizes = size // blocks + (np.arange(blocks) < size % blocks)
    return np.concatenate([[0], np.cumsum(sizes)])


def is_sorted_enough(sums: NDArray[np.float64], common: float) -> bool:
    """Return whether the first share of features holds most of what the commonest share of them holds.

    >>> is_sorted_enough(np.array([9.0, 4, 3, 2]), 0.25), is_sorted_enough(np.array([2.0, 3, 4, 9]), 0.25)
    (True, False)
    """
    first = max(1, round(len(sums) * common))
    return bool(sums[:first].sum() >= 0.5 * np.sort(sums)[-first:].sum())


def block_order(size: int, blocks: int) -> NDArray[np.int64]:
    """Return the features in block order: those of block 0, those of block 1, ...

    >>> block_order(5, 2).tolist()
    [0, 2, 4, 1, 3]
    """
    return np.concatenate([np.arange(block, size, blocks) for block in range(blocks)])
