"""The parameters of the blocks that a process has at the moment, if other processes have the other blocks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch

from swivel.errors import TrainingError
from swivel.training.backends.base import ParameterBlock
from swivel.training.backends.triton.launch import Parameters
from swivel.training.backends.triton.layout import SlotLayout
from swivel.training.backends.triton.parameter_swap import Pair, Placement, find_largest, read_rows, write_rows
from swivel.training.schedule import Block


class BlockPool:
    """Blocks of rows and of columns on the device, each in the first free slot of its side.

    It has the methods of `ParameterStore` that training uses; no block ever leaves the device by itself.
    """

    is_swapping = False
    groups: tuple[Sequence[int], Sequence[int]] = ((), ())  # Blocks are not in groups.

    def __init__(self, parameters: Parameters, places: SlotLayout, capacity: tuple[int, int]) -> None:
        self.parameters = parameters
        self.places = places
        self._slots: tuple[dict[int, int], dict[int, int]] = {}, {}  # of the blocks that are here
        rows = capacity[0]
        self._free = list(range(rows)), list(range(rows, sum(capacity)))  # heaps

    def slot_of(self, side: int, block: int) -> int:
        """Return the slot of a block that is here."""
        return self._slots[side][block]

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the device tensors of a block."""
        return read_rows(self.parameters, self._rows(side, block))

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Overwrite a block, or add it in a free slot."""
        if block not in self._slots[side]:
            if not self._free[side]:
                raise TrainingError(
                    f"internal error: no place for another block, the device has {len(self._slots[side])} of this side"
                )
            self._slots[side][block] = heapq.heappop(self._free[side])
        write_rows(self.parameters, self._rows(side, block), values)

    def drop_block(self, side: int, block: int) -> None:
        """Free the slot of a block, if it is here."""
        slot = self._slots[side].pop(block, None)
        if slot is not None:
            heapq.heappush(self._free[side], slot)

    def _rows(self, side: int, block: int) -> slice:
        first, last = map(int, self.places.starts[side][block : block + 2])
        row = self.slot_of(side, block) * self.places.pitch
        return slice(row, row + last - first)

    def is_finite(self) -> bool:
        """Return whether all parameters are finite, including what dropped blocks left in their slots."""
        return bool(torch.stack(find_largest(self.parameters)).isfinite().all())

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Do nothing: there is nothing to prefetch."""

    def groups_of(self, block: tuple[int, int]) -> Pair:
        """Return the same pair for all blocks: they are not in groups."""
        return 0, 0

    def ensure_loaded(self, pair: Pair) -> None:
        """Do nothing: all blocks are on the device."""

    def placement(self, pair: Pair, blocks: Sequence[Block]) -> Placement:
        """Return the slots of blocks."""
        return tuple((self.slot_of(0, i), self.slot_of(1, j)) for i, j in blocks)

    def release(self) -> None:
        """Do nothing: no block is waiting for a place."""
