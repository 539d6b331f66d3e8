"""The cells of a batch on the device: they are there already, or they are copied from host memory in time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swivel.training.backends.triton.cuda_streams import CopyQueue, Mark, record_mark, wait_on_device
from swivel.training.backends.triton.device_cells import DeviceCells, ShardCells
from swivel.training.backends.triton.memory_plan import BUFFERS

Tensor = torch.Tensor
Copy = tuple[int, int, int]  # begin and end in host memory, first entry on the device
EntryArrays = tuple[Tensor, ...]  # slots, positions and counts on the device; see `DeviceCells`
# For each of the buffers: targets and sources of the copies of a batch. Making these views takes the host as long as
# submitting the copies, so that they are made once.
Copies = list[list[tuple[Tensor, Tensor]]]


class CellFeed:
    """Provides the cells of batches on the device; it never waits for the device.

    If the cells are in host memory, they are copied into two buffers in turn: one is filled while the kernels read
    the other. `_used[n]` is the point of the computation after which buffer n may be overwritten.
    """

    def __init__(self, cells: DeviceCells, max_blocks: int) -> None:
        self.cells = cells
        self._device = device = cells.device
        self._turn = 0  # the buffer of the current batch

        # Entries of a buffer: what the memory allows, but no more than a batch can have.
        self._capacity = 0
        if cells.on_host:
            entries = int(cells.resident_bytes) // (BUFFERS * cells.entry_bytes)
            self._capacity = max(1, min(entries, max_blocks * cells.largest))

        count = BUFFERS if cells.on_host else 0
        self._arrays = cells.slots, cells.positions, cells.counts
        self._buffers = [
            tuple(array.new_empty(self._capacity, device=device) for array in self._arrays) for _ in range(count)
        ]
        self._queue = CopyQueue(device)
        self._used: list[Mark] = [record_mark(device)] * count

    def can_hold(self, entries: int) -> bool:
        """Return whether a batch of `entries` entries can be loaded."""
        return not self.cells.on_host or entries <= self._capacity

    def plan(self, shards: Sequence[ShardCells]) -> tuple[list[int], Copies]:
        """Return the first entry of each shard in the arrays of `load`, and the argument of `load`."""
        if not self.cells.on_host:
            return [shard.begin for shard in shards], []
        begins, copies = plan_copies(shards)
        return begins, [self._find_views(copies, buffers) for buffers in self._buffers]

    def load(self, copies: Copies) -> EntryArrays:
        """Start copying the cells of a batch and return the arrays that will contain them.

        The computation that is submitted after this call waits for the copy. Call `release` after submitting it.
        """
        if not self.cells.on_host:
            return self._arrays

        def copy() -> None:
            for target, source in copies[self._turn]:
                target.copy_(source, non_blocking=True)

        # Copies must not overwrite what the kernels of the last batch but one still read, and the kernels that follow
        # must not start before the copies are complete.
        mark = self._queue.submit(copy, [self._used[self._turn]])
        wait_on_device(self._device, mark)
        return self._buffers[self._turn]

    def _find_views(self, copies: Sequence[Copy], buffers: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return targets and sources of copies from host memory into the buffers."""
        return [
            (buffer[target : target + end - begin], array[begin:end])
            for begin, end, target in copies
            for buffer, array in zip(buffers, self._arrays, strict=True)
        ]

    def release(self) -> None:
        """Record that the kernels of the last batch were submitted: they are the last to read its buffer."""
        # The mark comes before the turn changes: it is that of the buffer which these kernels read.
        if self.cells.on_host:
            self._used[self._turn] = record_mark(self._device)
            self._turn = (self._turn + 1) % BUFFERS


def plan_copies(shards: Sequence[ShardCells]) -> tuple[list[int], list[Copy]]:
    """Return the first entry of each shard on the device, and the copies; shards that are adjacent share one.

    >>> plan_copies([ShardCells(5, 8, 3), ShardCells(8, 9, 1), ShardCells(0, 2, 2)])
    ([0, 3, 4], [(5, 9, 0), (0, 2, 4)])
    """
    begins: list[int] = []
    copies: list[Copy] = []
    target = 0

    for shard in shards:
        begins.append(target)
        if copies and copies[-1][1] == shard.begin:
            begin, _, first = copies.pop()
            copies.append((begin, shard.end, first))
        else:
            copies.append((shard.begin, shard.end, target))
        target += shard.entries

    return begins, copies
