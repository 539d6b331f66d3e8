"""Runs to one matrix: shards are merged in threads and written in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from swivel.counts.shards import CellArrays, RunFiles, ShardPiece, make_piece
from swivel.runtime.parallel import map_in_order

_BYTES_A_CELL = 28  # position, units and the comparison that finds large ones; then the piece
_MOST_CELLS = 1 << 22  # more a piece saves nothing


def merge_runs(runs: CellArrays, target: RunFiles, *, memory_bytes: int, threads: int) -> None:
    """Write all runs as one to `target`, summing the cells that several have."""
    most = max(1, min(_MOST_CELLS, memory_bytes // ((threads + 1) * _BYTES_A_CELL)))

    def merge(shards: tuple[int, int]) -> ShardPiece:
        return _merge_shards(runs, *shards, columns=target.layout.largest_columns)

    with target.run():
        for piece in map_in_order(merge, _split_shards(runs.offsets, most), threads=threads):
            target.append(piece, with_sums=False)


def _split_shards(offsets: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of shards that have at most `most` cells in all runs together, or are one shard."""
    ends = np.zeros(offsets.shape[1], np.int64)
    for run in offsets:  # one by one: the whole table may be large, and is on disk
        ends += run - run[0]
    first, shards = 0, len(ends) - 1
    while first < shards:
        last = int(np.searchsorted(ends, ends[first] + most, side="right")) - 1
        last = min(max(last, first + 1), shards)
        yield first, last
        first = last


def _merge_shards(runs: CellArrays, first: int, last: int, *, columns: int) -> ShardPiece:
    from swivel.counts import kernels

    most = int((runs.offsets[:, last] - runs.offsets[:, first]).sum())
    positions, units = np.empty(most, np.uint32), np.empty(most, np.int64)
    lengths = np.zeros(last - first, np.int64)
    arrays = kernels.RunArrays(runs.offsets, runs.positions, runs.counts, runs.large_cells, runs.large_counts)
    used = kernels.merge_shards(arrays, first, lengths, columns, positions, units)
    return make_piece(lengths, positions[:used].copy(), units[:used])
