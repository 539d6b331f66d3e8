"""The schedule: block sizes, order of blocks, number of epochs and learning rate, as pure functions."""

from __future__ import annotations

import math
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

Block = tuple[int, int]

MIN_BLOCK_SIZE = 256
# The block size with which a device is fastest, among those of about the same quality.
MAX_BLOCK_SIZE_ON_CPU = 1024
MAX_BLOCK_SIZE_ON_GPU = 4096
# Measured with 98,304 words: a fourth epoch still raises six of the eight test sets (experiments/notes.md).
MIN_EPOCHS = 4


def rounds_without_conflict(row_blocks: int, column_blocks: int, seed: tuple[int, ...]) -> list[list[Block]]:
    """Return one epoch as rounds in random order; no two blocks of a round share a row block or a column block.

    >>> sorted(block for round in rounds_without_conflict(2, 3, (1,)) for block in round)
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    """
    turns = max(row_blocks, column_blocks)
    order = [0]
    if turns > 1:  # Creating a generator takes a hundred times longer than the order of one block.
        order = np.random.default_rng(seed).permutation(turns).tolist()
    rounds = []

    # A round is a diagonal, which contains every block of the shorter side once. Rows are interleaved between blocks,
    # so that all blocks are alike and shuffling the diagonals is enough. Neighbors on a diagonal stay neighbors in
    # memory, which is fast on a GPU.
    for turn in order:
        if row_blocks > column_blocks:
            rounds.append([((n + turn) % row_blocks, n) for n in range(column_blocks)])
        else:
            rounds.append([(n, (n + turn) % column_blocks) for n in range(row_blocks)])
    return rounds


def rounds_in_groups(
    row_blocks: int, column_blocks: int, row_group: int, column_group: int, seed: tuple[int, ...]
) -> list[list[Block]]:
    """Return one epoch that loads few groups: all rounds of one pair of groups, then all rounds of the next pair.

    For a device that holds one group of row blocks and one group of column blocks. Pairs follow each other in snake
    order, with fewer groups in the outer loop, so that every further pair loads one group. No order needs fewer loads,
    because two different pairs differ in at least one group. PyTorch-BigGraph's inside-out order and Marius's BETA
    order are for graphs, where rows and columns share their parameters; here they do not, and the snake is optimal.

    >>> [sorted(round) for round in rounds_in_groups(2, 4, 2, 2, (1,))]
    [[(0, 0), (1, 1)], [(0, 1), (1, 0)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    """
    rng = np.random.default_rng(seed)
    row_starts = group_starts(row_blocks, row_group)
    column_starts = group_starts(column_blocks, column_group)
    rounds = []

    for i, j in _snake_order(len(row_starts) - 1, len(column_starts) - 1, rng):
        rows = row_starts[i + 1] - row_starts[i]
        columns = column_starts[j + 1] - column_starts[j]
        for blocks in rounds_without_conflict(rows, columns, (*seed, i, j)):
            rounds.append(_shift(blocks, row_starts[i], column_starts[j]))
    return rounds


def _shift(blocks: list[Block], row: int, column: int) -> list[Block]:
    return [(row + i, column + j) for i, j in blocks]


def rounds_for_ranks(row_blocks: int, column_blocks: int, ranks: int, seed: tuple[int, ...]) -> list[list[Block]]:
    """Return one epoch in which every rank keeps its row blocks and column blocks move around a ring.

    Column blocks form two chunks per rank, so that one is sent while the other is trained: in turn t, rank r trains its
    rows with chunk 2r + t, and rank r - 1 uses that chunk in turn t + 2. An epoch starts with the chunks where the
    previous epoch left them; the last part of `seed` is the number of the epoch. A round has blocks of every rank, so
    that one process that runs all of them computes the same result.

    >>> rounds_for_ranks(2, 4, 2, (1, 0))
    [[(0, 0), (1, 2)], [(0, 1), (1, 3)], [(0, 2), (1, 0)], [(0, 3), (1, 1)]]
    """
    row_starts = block_starts(row_blocks, ranks).tolist()
    chunk_starts = block_starts(column_blocks, 2 * ranks).tolist()
    rounds: list[list[Block]] = []

    for turn in range(2 * ranks):
        rounds_of_ranks: list[list[list[Block]]] = []
        for rank in range(ranks):
            chunk = (2 * rank + turn - 2 * seed[-1]) % (2 * ranks)
            height = row_starts[rank + 1] - row_starts[rank]
            width = chunk_starts[chunk + 1] - chunk_starts[chunk]
            inside = rounds_without_conflict(height, width, (*seed, turn, rank)) if height and width else []
            rounds_of_ranks.append([_shift(blocks, row_starts[rank], chunk_starts[chunk]) for blocks in inside])

        # The n-th round of this turn joins the n-th rounds of all ranks; some ranks may have fewer rounds.
        for pieces in zip_longest(*rounds_of_ranks, fillvalue=[]):
            rounds.append(list(chain.from_iterable(pieces)))
    return rounds


def rank_of_row(row_blocks: int, ranks: int, block: int) -> int:
    """Return the rank that owns a row block.

    >>> [rank_of_row(5, 2, block) for block in range(5)]
    [0, 0, 0, 1, 1]
    """
    return int(np.searchsorted(block_starts(row_blocks, ranks), block, "right")) - 1


def group_starts(blocks: int, group: int) -> list[int]:
    """Return the start of each group of at most `group` blocks, followed by `blocks`. Group sizes are about equal.

    >>> group_starts(7, 3)
    [0, 3, 5, 7]
    """
    starts: list[int] = block_starts(blocks, math.ceil(blocks / group)).tolist()
    return starts


def _snake_order(rows: int, columns: int, rng: np.random.Generator) -> list[Block]:
    """Return all pairs (row, column) in an order in which consecutive pairs share one of the two."""
    if rows > columns:
        return [(i, j) for j, i in _snake_order(columns, rows, rng)]

    inner = rng.permutation(columns).tolist()
    pairs = []
    for outer in rng.permutation(rows).tolist():
        pairs += [(outer, number) for number in inner]
        inner.reverse()
    return pairs


def default_block_size(rows: int, columns: int, largest: int = MAX_BLOCK_SIZE_ON_CPU, smallest: int = 1) -> int:
    """Return the block size for a matrix: `largest`, or less if the matrix would have fewer than some tens of blocks.

    On a CPU an epoch costs the same with every block size, and smaller blocks need fewer epochs, but each update then
    uses fewer columns, which lowers the quality. A GPU needs large blocks to be busy. Executors that move blocks
    between processes ask for at least `smallest`, as long as there are four blocks per side.

    >>> [default_block_size(n, n) for n in (500, 8_192, 32_768, 98_304, 400_000)]
    [256, 256, 512, 1024, 1024]
    >>> [default_block_size(n, n, smallest=1024) for n in (500, 2_000, 8_192, 400_000)]
    [256, 500, 1024, 1024]
    """
    size = min(rows, columns)
    block_size = max(min(MIN_BLOCK_SIZE, largest), math.ceil(size * largest / 65_536))
    block_size = min(largest, block_size)
    return max(block_size, min(smallest, math.ceil(size / 4)))


def choose_block_count(size: int, block_size: int, stored: int) -> int:
    """Return the number of blocks of about `block_size`, or the stored number if it is close enough.

    Keeping the stored blocks avoids a copy of the matrix.

    >>> choose_block_count(100_000, 1024, 98), choose_block_count(3_000, 1024, 4), choose_block_count(8_192, 256, 8)
    (98, 4, 32)
    """
    ideal = math.ceil(size / block_size)
    return stored if 0.75 * ideal <= stored <= 1.34 * ideal else ideal


def default_epochs(row_blocks: int, column_blocks: int, updates: int) -> int:
    """Return the number of epochs that gives every vector about `updates` updates.

    Measured (experiments/notes.md): quality depends on the number of updates per vector, not on the block size.

    >>> [default_epochs(n, n, 480) for n in (24, 96, 400)]
    [20, 5, 4]
    """
    return max(MIN_EPOCHS, round(updates / min(row_blocks, column_blocks)))


def falling_rate(learning_rate: float, done: float, total: float) -> float:
    """Return the learning rate after `done` of `total` steps, which falls linearly to zero."""
    return learning_rate * max(0.0, 1.0 - done / total)


def block_starts(size: int, blocks: int) -> NDArray[np.int64]:
    """Return the start of each block in block order, followed by `size`. Block sizes differ by at most one."""
    sizes = size // blocks + (np.arange(blocks) < size % blocks)
    return np.concatenate([[0], np.cumsum(sizes)])


def is_sorted_enough(sums: NDArray[np.float64], common: float) -> bool:
    """Return whether features are sorted by frequency, roughly.

    True if the first `common` share of them has at least half of the counts of the most frequent `common` share.

    >>> is_sorted_enough(np.array([9.0, 4, 3, 2]), 0.25), is_sorted_enough(np.array([2.0, 3, 4, 9]), 0.25)
    (True, False)
    """
    first = max(1, round(len(sums) * common))
    return bool(sums[:first].sum() >= 0.5 * np.sort(sums)[-first:].sum())


def block_order(size: int, blocks: int) -> NDArray[np.int64]:
    """Return the features in block order: those of block 0, then those of block 1, and so on.

    Feature n belongs to block n mod `blocks`, so that every block has frequent and rare features.

    >>> block_order(5, 2).tolist()
    [0, 2, 4, 1, 3]
    """
    return np.concatenate([np.arange(block, size, blocks) for block in range(blocks)])
