"""Copies of observed cells from host memory to buffers on the device.

The cells of a batch are copied while the previous batch is computed. No function here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swivel.training.backends.triton.cells import DeviceCells, ShardCells
from swivel.training.backends.triton.cuda_streams import CopyQueue, Mark, record_mark, wait_on_device
from swivel.training.backends.triton.launch import DeviceCellArrays
from swivel.training.backends.triton.memory_plan import BUFFERS


class CellFeed:
    """Provides the cells of batches on the device.

    If the cells are in host memory, they are copied into two buffers in turn: one is filled while the kernels read
    the other. `_used[n]` is the point of the computation after which buffer n may be overwritten.
    """

    def __init__(self, cells: DeviceCells, device: torch.device, capacity: int) -> None:
        self.cells = cells
        self.capacity = capacity  # maximum of entries per batch, if the cells are in host memory
        self._device = device
        self._turn = 0  # the buffer of the current batch

        count = BUFFERS if cells.on_host else 0
        self._positions = [torch.empty(capacity, dtype=torch.int16, device=device) for _ in range(count)]
        self._counts = [torch.empty(capacity, dtype=torch.float32, device=device) for _ in range(count)]
        self._queue = CopyQueue(device)
        self._used: list[Mark] = [record_mark(device)] * count

    def can_hold(self, entries: int) -> bool:
        """Return whether a batch of `entries` entries can be loaded."""
        return not self.cells.on_host or entries <= self.capacity

    def load(self, shards: Sequence[ShardCells]) -> DeviceCellArrays:
        """Start copying the cells of a batch and return the arrays that will contain them.

        The computation that is submitted after this call waits for the copy. Call `release` after submitting it.
        """
        cells = self.cells
        if not cells.on_host:
            return DeviceCellArrays(cells.positions, cells.counts, cells.starts, [0] * len(shards))

        positions = self._positions[self._turn]
        counts = self._counts[self._turn]
        base, copies = plan_copies(shards)

        def copy() -> None:
            for begin, end, target in copies:
                stop = target + end - begin
                positions[target:stop].copy_(cells.positions[begin:end], non_blocking=True)
                counts[target:stop].copy_(cells.counts[begin:end], non_blocking=True)

        copied = self._queue.submit(copy, [self._used[self._turn]])
        wait_on_device(self._device, copied)
        return DeviceCellArrays(positions, counts, cells.starts, base)

    def release(self) -> None:
        """Record that the kernels of the last batch were submitted: they are the last to read its buffer."""
        if self.cells.on_host:
            self._used[self._turn] = record_mark(self._device)
            self._turn = (self._turn + 1) % BUFFERS


def plan_copies(shards: Sequence[ShardCells]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the value to add to the starts of each shard, and the copies (begin, end, target).

    Shards that are adjacent in host memory are copied together.

    >>> plan_copies([ShardCells(0, 5, 8, 3), ShardCells(1, 8, 9, 1), ShardCells(2, 0, 2, 2)])
    ([-5, -5, 4], [(5, 9, 0), (0, 2, 4)])
    """
    base: list[int] = []
    copies: list[tuple[int, int, int]] = []
    target = 0

    for shard in shards:
        base.append(target - shard.begin)
        if copies and copies[-1][1] == shard.begin:
            begin, _, first = copies.pop()
            copies.append((begin, shard.end, first))
        else:
            copies.append((shard.begin, shard.end, target))
        target += shard.end - shard.begin

    return base, copies
