"""Merge sorted runs into one: threads merge ranges of shards, which are written in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from swivel.counts.shards import CellArrays, RunFiles, ShardPiece, make_piece
from swivel.runtime.parallel import map_in_order

_BYTES_PER_CELL = 28  # position, units, the mask of large cells, and the finished piece
_MAX_CELLS = 1 << 22  # larger pieces are not faster


def merge_runs(runs: CellArrays, target: RunFiles, *, memory_bytes: int, threads: int) -> None:
    """Write the sum of all runs to `target` as one run."""
    max_cells = max(1, min(_MAX_CELLS, memory_bytes // ((threads + 1) * _BYTES_PER_CELL)))

    def merge(shards: tuple[int, int]) -> ShardPiece:
        return _merge_shards(runs, *shards, columns=target.layout.largest_columns)

    # Row and column sums do not change; they were added when the runs were written.
    with target.run():
        for piece in map_in_order(merge, _split_shards(runs.offsets, max_cells), threads=threads):
            target.append(piece, with_sums=False)


def _split_shards(offsets: NDArray[np.int64], max_cells: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of shards with at most `max_cells` cells in all runs together, or of a single shard."""
    ends = np.zeros(offsets.shape[1], np.int64)
    for run in offsets:  # one at a time: the table is memory-mapped and may be large
        ends += run - run[0]

    first = 0
    shards = len(ends) - 1

    while first < shards:
        last = int(np.searchsorted(ends, ends[first] + max_cells, side="right")) - 1
        last = min(max(last, first + 1), shards)
        yield first, last
        first = last


def _merge_shards(runs: CellArrays, first: int, last: int, *, columns: int) -> ShardPiece:
    from swivel.counts import kernels

    # Upper bound: cells that several runs have are summed to one.
    max_cells = int((runs.offsets[:, last] - runs.offsets[:, first]).sum())
    positions = np.empty(max_cells, np.uint32)
    units = np.empty(max_cells, np.int64)
    lengths = np.zeros(last - first, np.int64)
    arrays = kernels.RunArrays(runs.offsets, runs.positions, runs.counts, runs.large_cells, runs.large_counts)
    used = kernels.merge_shards(arrays, first, lengths, columns, positions, units)

    return make_piece(lengths, positions[:used].copy(), units[:used])
