"""Which parameters of a run are on the device and which in host memory. Pure arithmetic, without a device.

`DeviceMemoryEstimate` computes the bytes that a run needs; `choose_order` and `arrange` decide which groups of blocks
are on the device at a time. Whether the cells are streamed is decided later, when they are counted (`device_cells`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise, product

import torch

from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes
from swivel.training.backends.base import BackendSettings, Starts
from swivel.training.backends.triton import slot_layout
from swivel.training.backends.triton.cuda_streams import usable_memory
from swivel.training.backends.triton.slot_layout import FIELDS, SlotLayout
from swivel.training.schedule import group_starts

# Shares of the free device memory. The order of blocks is chosen for the smaller one, so that it certainly fits later.
PLANNED_SHARE = 0.9
USED_SHARE = 0.95
LIBRARY_BYTES = 1 << 26  # workspace of cuBLAS
MAX_SHARDS_PER_LAUNCH = 128  # enough to fill the device many times over
MAX_PREPARED = 512  # batches of blocks whose tables stay on the device
TABLE_BYTES = 512  # of the smallest table, because the allocator rounds up
MAX_GRADIENT_BYTES = 5 << 28  # of G, the gradients with respect to the dot products, in one launch
MAX_SHORT_SLOTS = 1 << 16  # of a block; their numbers take 2 bytes
PIECE_BYTES = 200  # cell that is being read: its old and its new position, masks, keys
SORT_BYTES = 80  # entry that is being sorted: key, count, their order, and the copies that sorting makes
SHARD_BYTES = 32  # shard while cells are read: its shape, its first cell on disk, its number of cells
SLOT_BYTES = 16  # first entry of a slot, and losses of its tile
MIN_PIECE_CELLS = 1 << 6  # minimum of cells that are read at a time
BUFFERS = 2  # buffers of streamed cells: one is filled while the kernels read the other
SLACK = 1.02  # factor for the rounding of the allocator
SKEW = 1.5  # entries of the largest block / mean; blocks are interleaved, so their sizes are similar
# A rough model of time, in units of one step.
COPY_STEPS = 4  # copying a block (20 MB) to the device and back
LAUNCH_STEPS = 2  # submitting a batch


def entry_bytes(slots: int) -> int:
    """Return the bytes of an observed cell in one of `slots` slots: slot, position (int16) and count (float32)."""
    return (2 if slots <= MAX_SHORT_SLOTS else 4) + 6


class Banks:
    """The groups of blocks of one side, and the banks that hold some of them on the device.

    A bank is a range of consecutive slots (places for blocks in the joint array), large enough for any group.

    >>> banks = Banks((0, 3, 5), banks=1, first=4)
    >>> banks.group_of(3), banks.slot(3, bank=0), banks.slots
    (1, 4, 3)
    """

    def __init__(self, starts: tuple[int, ...], banks: int, first: int) -> None:
        self.starts = starts  # first block of each group, and the end
        self.banks = banks
        self.first = first  # first slot of the side
        self.groups = len(starts) - 1
        self.is_whole = banks >= self.groups  # every group has its own bank, so that no group is ever moved
        self.slots_per_bank = max(stop - start for start, stop in pairwise(starts))
        self.slots = banks * self.slots_per_bank

    def group_of(self, block: int) -> int:
        """Return the number of the group that contains a block."""
        return bisect_right(self.starts, block) - 1

    def blocks(self, group: int) -> range:
        """Return the blocks of a group."""
        return range(self.starts[group], self.starts[group + 1])

    def slot(self, block: int, bank: int) -> int:
        """Return the slot of a block if its group is in the bank `bank`."""
        return self.first + bank * self.slots_per_bank + block - self.starts[self.group_of(block)]


class DeviceMemoryEstimate:
    """Estimates of the device memory that a run needs, in bytes."""

    def __init__(self, settings: BackendSettings, starts: Starts, dim: int) -> None:
        self.settings = settings
        self.layout = SlotLayout(starts, dim, slot_layout.choose_tile(settings.dtype))
        self._itemsize = 4 if settings.dtype == "float32" else 2  # bytes of an operand of the products
        # Of G of a block: the gradients with respect to the dot products.
        self._gradient_bytes = math.prod(self.layout.padded) * self._itemsize
        # Maximum number of batches whose tables stay on the device.
        self.max_prepared = min(MAX_PREPARED, math.prod(self.layout.blocks))

        # Estimate of the observed cells of the largest block.
        rows, columns = self.layout.blocks
        shards = rows * (rows + 1) // 2 if settings.is_halved else rows * columns
        self.largest = math.ceil(min(settings.cells, SKEW * settings.cells / shards))

    def max_blocks(self, groups: tuple[int, int] | None) -> int:
        """Return the maximum number of blocks in one launch.

        It depends only on the order of the blocks (`groups`), not on the memory, so that the results do, too.
        """
        fitting = MAX_GRADIENT_BYTES // self._gradient_bytes
        return max(1, min(MAX_SHARDS_PER_LAUNCH, fitting, *(groups or self.layout.blocks)))

    def banks(self, groups: tuple[int, int] | None, count: tuple[int, int]) -> tuple[Banks, Banks]:
        """Return the banks of both sides: `count` of each side, but no more than there are groups."""
        sides: list[Banks] = []
        first = 0
        for blocks, group, banks in zip(self.layout.blocks, groups or self.layout.blocks, count, strict=True):
            starts = tuple(group_starts(blocks, group))
            sides.append(Banks(starts, min(banks, len(starts) - 1), first))
            first = sides[0].slots

        return sides[0], sides[1]

    def parameters(self, slots: int) -> int:
        """Return the bytes of the parameters in `slots` slots."""
        layout = self.layout
        # For every row: vector, state and offset in float32, and the mirror of the vector.
        return slots * layout.pitch * ((layout.dim + 2) * 4 + layout.padded_dim * self._itemsize)

    def work(self, max_blocks: int) -> int:
        """Return the bytes of the temporary arrays of a launch of `max_blocks` blocks; see `launch.StepLauncher`."""
        layout = self.layout
        back = sum(layout.padded) * layout.padded_dim * self._itemsize
        tables = (self.max_prepared + 1) * len(FIELDS) * 8  # those that stay, and that of this launch
        block = self._gradient_bytes + back + SLOT_BYTES * layout.slot_count + tables

        library = LIBRARY_BYTES if self.settings.device.startswith("cuda") else 0
        return library + int(SLACK * max_blocks * block) + TABLE_BYTES * self.max_prepared + (1 << 14)

    def min_bytes(self, groups: tuple[int, int] | None, count: tuple[int, int]) -> int:
        """Return the minimum of device memory for an order of blocks and its banks, if all cells are streamed."""
        slots = sum(side.slots for side in self.banks(groups, count))
        return self.min_bytes_of(slots, self.max_blocks(groups))

    def min_bytes_of(self, slots: int, max_blocks: int) -> int:
        """Return the minimum of device memory for `slots` slots and launches of `max_blocks` blocks."""
        # While training: temporary arrays and the buffers of streamed cells.
        buffered = min(self.settings.cells, BUFFERS * max_blocks * self.largest)
        streaming = self.work(max_blocks) + buffered * entry_bytes(self.layout.slot_count)

        # Before training: reading the cells in small pieces and sorting those of one block.
        piece = min(self.settings.cells, MIN_PIECE_CELLS) * PIECE_BYTES
        shards = SHARD_BYTES * math.prod(self.layout.blocks)
        sorting = max(8 * piece, piece + shards + self.largest * SORT_BYTES)

        return self.parameters(slots) + max(streaming, sorting)


def choose_groups(settings: BackendSettings, starts: Starts, dim: int) -> tuple[int, int] | None:
    """Return how many row blocks and column blocks are trained together, or None if all fit on the device."""
    memory = usable_memory(torch.device(settings.device), PLANNED_SHARE, settings.memory)
    return choose_order(DeviceMemoryEstimate(settings, starts, dim), memory)


def choose_order(needs: DeviceMemoryEstimate, memory: float) -> tuple[int, int] | None:
    """Return the sizes of the groups of blocks that are best trained together, or None if all parameters fit.

    Raises TrainingError if not even one row block and one column block fit.
    """
    rows, columns = needs.layout.blocks
    if needs.min_bytes(None, (1, 1)) <= memory:
        return None

    # With two banks per side, the next group is copied during the computation; one bank is the last resort.
    for count in ((2, 2), (1, 1)):
        times: dict[tuple[int, int], float] = {}
        for groups in product(_sizes(rows), _sizes(columns)):
            if needs.min_bytes(groups, count) <= memory:
                times[groups] = _epoch_time(needs.banks(groups, count), needs.max_blocks(groups))
        if times:
            # The fastest; of those, the first one, which has the largest groups.
            return min(times, key=lambda groups: times[groups])

    smallest = needs.min_bytes((1, 1), (1, 1))
    raise TrainingError(
        f"one row block and one column block need {format_bytes(smallest)} of device memory, and there are "
        f"{format_bytes(int(memory))}; raise device_memory, or lower block_size or dim",
        argument=("device_memory", "block_size", "dim"),
    )


def _sizes(blocks: int) -> list[int]:
    """Return the possible sizes of equal groups, the largest first."""
    return sorted({math.ceil(blocks / groups) for groups in range(1, blocks + 1)}, reverse=True)


def _epoch_time(banks: tuple[Banks, Banks], max_blocks: int) -> float:
    """Return the estimated time of an epoch, in units of one step."""
    outer, inner = sorted(banks, key=lambda side: side.groups)
    steps = outer.starts[-1] * inner.starts[-1]

    # The outer groups are copied once per epoch. The inner groups are copied for every outer group, except for the one
    # that is still on the device from the previous outer group.
    moved = 0.0 if outer.is_whole else float(outer.starts[-1])
    if not inner.is_whole:
        moved += inner.starts[-1] * (1 + (outer.groups - 1) * (1 - 1 / inner.groups))
    copies = COPY_STEPS * moved

    # With a second bank, copies run during the computation.
    is_overlapped = all(side.is_whole or side.banks > 1 for side in banks)
    busy = max(steps, copies) if is_overlapped else steps + copies
    return busy + LAUNCH_STEPS * steps / max_blocks


def arrange(needs: DeviceMemoryEstimate, groups: tuple[int, int] | None, memory: float) -> tuple[Banks, Banks]:
    """Return the banks for an order of blocks: one for each group if they fit, else two per side, else one.

    Raises TrainingError if the order needs more than `memory` bytes; a run never changes its order.
    """
    for count in (needs.layout.blocks, (2, 2), (1, 1)):
        required_bytes = needs.min_bytes(groups, count)
        if required_bytes <= memory:
            return needs.banks(groups, count)

    what = "all blocks" if groups is None else f"groups of {groups[0]} x {groups[1]} blocks"
    raise TrainingError(
        f"this run trains {what} together, which needs {format_bytes(required_bytes)} of "
        f"device memory, and there are {format_bytes(int(memory))}; free some, raise device_memory, or start again",
        argument="device_memory",
    )
