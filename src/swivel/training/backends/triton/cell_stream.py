"""Cells on their way to the device.

Receives cells in host memory and the shards of each batch; hands on buffers on the device that hold them, filled while
the batch before is computed. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swivel.training.backends.triton.cells import DeviceCells, ShardCells
from swivel.training.backends.triton.cuda_streams import Lane, Mark, mark_here, wait_here
from swivel.training.backends.triton.launch import DeviceCellArrays
from swivel.training.backends.triton.memory_plan import BUFFERS


class CellFeed:
    """Brings the cells of batches to the device, where they are not there already.

    Buffers take turns: one is filled while the other is read.
    """

    def __init__(self, cells: DeviceCells, device: torch.device, room: int) -> None:
        self.room = room  # entries of a batch, at most, where cells are in host memory
        self.cells, self._device = cells, device
        self._turn = 0
        count = BUFFERS if cells.on_host else 0
        self._positions = [torch.empty(room, dtype=torch.int16, device=device) for _ in range(count)]
        self._counts = [torch.empty(room, dtype=torch.float32, device=device) for _ in range(count)]
        self._lane = Lane(device)
        self._used: list[Mark] = [mark_here(device)] * count

    def has_room(self, entries: int) -> bool:
        """Return whether a batch of so many entries can be loaded."""
        return not self.cells.on_host or entries <= self.room

    def load(self, shards: Sequence[ShardCells]) -> DeviceCellArrays:
        """Return where the cells of a batch will be when the computation comes to it."""
        cells = self.cells
        if not cells.on_host:
            return DeviceCellArrays(cells.positions, cells.counts, cells.starts, [0] * len(shards))
        positions, counts = self._positions[self._turn], self._counts[self._turn]
        base, copies = plan_copies(shards)

        def copy() -> None:
            for begin, end, target in copies:
                stop = target + end - begin
                positions[target:stop].copy_(cells.positions[begin:end], non_blocking=True)
                counts[target:stop].copy_(cells.counts[begin:end], non_blocking=True)

        wait_here(self._device, self._lane.submit(copy, [self._used[self._turn]]))
        return DeviceCellArrays(positions, counts, cells.starts, base)

    def release(self) -> None:
        """Note that the last batch has been handed over: its buffer is free once the computation is past here."""
        if self.cells.on_host:
            self._used[self._turn] = mark_here(self._device)
            self._turn = (self._turn + 1) % BUFFERS


def plan_copies(shards: Sequence[ShardCells]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return what to add to the starts of each shard, and copies: begin, end, target; neighbours go in one.

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
