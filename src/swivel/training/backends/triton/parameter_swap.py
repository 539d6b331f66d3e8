"""The parameters of all blocks: on the device or, if they do not all fit, in host memory with some on the device.

`ParameterStore` keeps the groups of the blocks that are trained next in their banks on the device. It copies the next
group in and the previous one out while the kernels compute. If other processes have the other blocks, it is a pool:
every bank is for one block, and blocks come and go by `set_block` and `drop_block`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import torch

from swivel.errors import TrainingError
from swivel.training.backends.base import ParameterBlock
from swivel.training.backends.triton.cuda_streams import (
    CopyQueue,
    HostMemory,
    Mark,
    record_mark,
    wait_on_device,
    wait_on_host,
)
from swivel.training.backends.triton.launch import Parameters
from swivel.training.backends.triton.memory_plan import Banks
from swivel.training.backends.triton.slot_layout import SlotLayout
from swivel.training.schedule import Block

LN2 = math.log(2)
PIECES = 2  # in which a group is copied
PARAMETERS = "vectors", "state", "offsets"
Pair = tuple[int, int]  # a group of rows and a group of columns
Placement = Hashable  # what the slots of some blocks depend on


@dataclass(slots=True)
class _GroupSlot:
    """A bank on the device and the group that is in it."""

    used: Mark  # the last kernel that uses the bank is complete; copies must wait for it
    load_mark: Mark = None  # the copy of the group to the device is complete
    group: int | None = None  # None: empty
    is_mirrored: bool = True  # whether the mirror has the vectors that were loaded


class ParameterStore:
    """The parameters of both sides, on the device or in host memory.

    If not all groups of a side fit (`Banks.is_whole` is false), its parameters are in page-locked host memory, and its
    banks hold copies of some groups. Blocks are `pitch` rows apart there as on the device, so that a group is copied at
    once. Three CUDA streams then work at the same time, ordered by marks:

    - the computation waits for `_GroupSlot.load_mark` before it uses a bank;
    - `_outward` saves a group to host memory after `_GroupSlot.used`;
    - `_inward` loads a group after the previous group of the bank was saved, and after its own last save (`_saved`).

    Both copying streams only copy. A kernel in them would wait until the kernels of a step, which fill the device, are
    complete, and all later copies with it. So the computation itself copies new vectors to the mirror.
    """

    def __init__(
        self,
        parameters: Parameters,
        layout: SlotLayout,
        banks: tuple[Banks, Banks],
        host: HostMemory,
        *,
        is_pool: bool = False,
    ) -> None:
        self.parameters = parameters
        self.layout = layout
        self.banks = banks
        self.device = parameters.vectors.device
        self.is_pool = is_pool
        self._memory = host

        self._loaded = [[_GroupSlot(record_mark(self.device)) for _ in range(side.banks)] for side in banks]
        self._bank_of: tuple[dict[int, int], dict[int, int]] = {}, {}  # banks of the groups that are on the device
        self._host: dict[int, ParameterBlock] = {}  # sides in host memory; offsets in units of log 2
        self._saved: dict[tuple[int, int], Mark] = {}  # (side, group): its last save to host memory is complete
        # One stream per direction: the bus carries both at once, and copies of one direction would only wait in turn.
        self._inward = CopyQueue(self.device)
        self._outward = CopyQueue(self.device)

        self._upcoming: list[Pair] = []  # announced pairs of groups, in order
        self._current: Pair | None = None
        self._stage: torch.Tensor | None = None  # page-locked buffer for downloads
        self._largest_left = torch.zeros((), device=self.device)  # magnitude of the values that left the device

    @property
    def is_swapping(self) -> bool:
        """Whether some parameters are in host memory."""
        return bool(self._host)

    @property
    def groups(self) -> tuple[Sequence[int], Sequence[int]]:
        """Starts of the groups of row blocks and of column blocks; a pool has none."""
        if self.is_pool:
            return (), ()
        return self.banks[0].starts, self.banks[1].starts

    def put(self, side: int, values: ParameterBlock) -> None:
        """Copy the parameters of a side to the device, or to host memory if they do not fit."""
        if self.banks[side].is_whole:
            for group, bank in enumerate(self._loaded[side]):
                bank.group = group
                self._bank_of[side][group] = group
        else:
            rows = self.layout.blocks[side] * self.layout.pitch
            shapes = (rows, self.layout.dim), (rows,), (rows,)
            self._host[side] = ParameterBlock(*(self._memory.empty(shape, np.float32).zero_() for shape in shapes))

        source = values.map(lambda array: torch.from_numpy(np.require(array, np.float32, ["C", "W"])))
        for block in range(self.layout.blocks[side]):
            self._write(side, block, source.part(*self._host_rows(side, block)))

    def _host_rows(self, side: int, block: int) -> tuple[int, int]:
        """Return the first row of a block in the arrays of `put` and `fetch`, and the end."""
        first, last = map(int, self.layout.starts[side][block : block + 2])
        return first, last

    def _find(self, side: int, block: int) -> tuple[Parameters | ParameterBlock, slice]:
        """Return the arrays that have the parameters of a block, in host memory or on the device, and its rows."""
        slot = block if side in self._host else self.slot_of(side, block)
        first, last = self._host_rows(side, block)
        start = slot * self.layout.pitch
        return self._host.get(side, self.parameters), slice(start, start + last - first)

    def _write(self, side: int, block: int, values: ParameterBlock) -> None:
        """Overwrite the parameters of a block and, on the device, their copies in the mirror."""
        arrays, rows = self._find(side, block)
        arrays.vectors[rows].copy_(torch.as_tensor(values.vectors))
        arrays.state[rows].copy_(torch.as_tensor(values.state))
        arrays.offsets[rows].copy_((torch.as_tensor(values.offsets).double() / LN2).float())
        if isinstance(arrays, Parameters):
            arrays.mirror[rows, : self.layout.dim].copy_(arrays.vectors[rows])

    def fetch(self, side: int) -> ParameterBlock:
        """Return the parameters of a side as host arrays."""
        if side in self._host:
            self._save_all(side)

        shape = int(self.layout.starts[side][-1]), self.layout.dim
        result = ParameterBlock(*(np.empty(each, np.float32) for each in (shape, shape[:1], shape[:1])))
        target = result.map(torch.from_numpy)
        for block in range(self.layout.blocks[side]):
            arrays, rows = self._find(side, block)
            part = target.part(*self._host_rows(side, block))
            for name in PARAMETERS:
                self._download(getattr(arrays, name)[rows], getattr(part, name))

        return replace(result, offsets=result.offsets * LN2)

    def _download(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy a part of a block to host memory; from the device through page-locked memory, which is much faster."""
        if source.device.type != "cpu":
            if self._stage is None:
                self._stage = self._memory.empty((self.layout.pitch * self.layout.dim,), np.float32)
            source = self._stage[: source.numel()].view(source.shape).copy_(source)
        target.copy_(source)

    def is_finite(self) -> bool:
        """Return whether all parameters are finite, also those in host memory; only one flag leaves the device."""
        # A bank may be loaded at this moment. Its values were checked when they left the device.
        largest = find_largest(self.parameters)
        is_finite = torch.stack([*largest, self._largest_left]).isfinite().all()
        self._largest_left.zero_()
        return bool(is_finite)

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the device tensors of a block; raise TrainingError if its side is not entirely on the device."""
        if side in self._host:
            raise TrainingError(
                "blocks cannot be sent between processes while parameters are swapped between device and host memory; "
                "use more devices, or set device_memory to all memory of the device",
                argument="device_memory",
            )

        arrays, rows = self._find(side, block)
        return ParameterBlock(arrays.vectors[rows], arrays.state[rows], arrays.offsets[rows] * LN2)

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Overwrite a block on the device, including its copy in the mirror; a pool adds it in the first free bank."""
        if self.is_pool and block not in self._bank_of[side]:
            # Without gaps, more blocks of a round are adjacent, and share their batched products.
            number = next((n for n, bank in enumerate(self._loaded[side]) if bank.group is None), None)
            if number is None:
                raise TrainingError(
                    "internal error: no place for another block, "
                    f"the device has {len(self._bank_of[side])} of this side"
                )
            self._loaded[side][number].group = block
            self._bank_of[side][block] = number

        self.get_block(side, block)  # raises if it is not there
        self._write(side, block, values)

    def drop_block(self, side: int, block: int) -> None:
        """Free the bank of a block of a pool, if it is here."""
        number = self._bank_of[side].pop(block, None)
        if number is not None:
            self._loaded[side][number].group = None

    def _save_all(self, side: int) -> None:
        """Save all groups of a side that are on the device to host memory, and wait until they are there."""
        now = record_mark(self.device)
        for number, bank in enumerate(self._loaded[side]):
            if bank.group is not None:
                self._save(side, self.banks[side].blocks(bank.group), number, [now, bank.load_mark])

        for (saved_side, _), mark in self._saved.items():
            if saved_side == side:
                wait_on_host(mark)

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Set the order of the next blocks, from which groups are prefetched."""
        pairs = (self.groups_of(block) for blocks in rounds for block in blocks)
        self._upcoming = [pair for pair, _ in groupby(pairs)]

    def groups_of(self, block: tuple[int, int]) -> Pair:
        """Return the group of a block's rows and the group of its columns; for a pool, the same pair for all blocks."""
        if self.is_pool:
            return 0, 0
        return self.banks[0].group_of(block[0]), self.banks[1].group_of(block[1])

    def ensure_loaded(self, pair: Pair) -> None:
        """Load two groups if necessary; the computation that is submitted next waits until they are on the device."""
        if not self.is_swapping:
            return
        if pair in self._upcoming:
            del self._upcoming[: self._upcoming.index(pair)]
        if pair == self._current:
            return

        self._check_leaving_groups(pair)
        self._current = pair
        for side, group in enumerate(pair):
            number = self._bank_for(side, group)
            bank = self._loaded[side][number]
            wait_on_device(self.device, bank.load_mark)
            if not bank.is_mirrored:
                rows = self._bank_rows(side, number)
                self.parameters.mirror[rows, : self.layout.dim].copy_(self.parameters.vectors[rows])
                bank.is_mirrored = True

    def _check_leaving_groups(self, pair: Pair) -> None:
        """Check the values of the current groups that are not in `pair`: they may leave the device from now on."""
        # On the device, because the host reads its memory a hundred times as slowly.
        for side, group in enumerate(self._current or ()):
            if group != pair[side] and side in self._host:
                number = self._bank_of[side][group]
                for largest in find_largest(self.parameters, self._bank_rows(side, number)):
                    torch.maximum(self._largest_left, largest, out=self._largest_left)
                self._loaded[side][number].used = record_mark(self.device)

    def _bank_rows(self, side: int, number: int) -> slice:
        """Return the rows of a bank in the joint arrays."""
        banks = self.banks[side]
        first = banks.first + number * banks.slots_per_bank
        return slice(first * self.layout.pitch, (first + banks.slots_per_bank) * self.layout.pitch)

    def slot_of(self, side: int, block: int) -> int:
        """Return the slot of a block whose groups are loaded."""
        group = self.banks[side].group_of(block)
        return self.banks[side].slot(block, self._bank_of[side][group])

    def placement(self, pair: Pair, blocks: Sequence[Block]) -> Placement:
        """Return what the slots of blocks of two loaded groups depend on: the banks of the groups, or of the blocks."""
        if self.is_pool:
            return tuple((self.slot_of(0, i), self.slot_of(1, j)) for i, j in blocks)
        return self._bank_of[0][pair[0]], self._bank_of[1][pair[1]]

    def release(self) -> None:
        """Record that the steps of the current groups were submitted, and prefetch the next groups."""
        if not self.is_swapping or self._current is None:
            return

        # The kernels submitted so far use the banks of the current groups: a later load into one waits for this mark.
        now = record_mark(self.device)
        for side, group in enumerate(self._current):
            self._loaded[side][self._bank_of[side][group]].used = now

        # With a single bank, loading the next group would evict the current one.
        if len(self._upcoming) > 1:
            for side, group in enumerate(self._upcoming[1]):
                if self.banks[side].banks > 1:
                    self._bank_for(side, group)

    def _bank_for(self, side: int, group: int) -> int:
        """Return the bank number of a group, and load the group if it is not on the device."""
        if group not in self._bank_of[side]:
            self._load(side, group, self._choose_bank(side))
        return self._bank_of[side][group]

    def _choose_bank(self, side: int) -> int:
        """Return the bank to evict: an empty one, or one whose group is not trained now."""
        # A side that is not whole has at most two banks, so that there is no choice while one of them is used.
        current = None if self._current is None else self._current[side]
        groups = [bank.group for bank in self._loaded[side]]
        return groups.index(None) if None in groups else next(n for n, group in enumerate(groups) if group != current)

    def _load(self, side: int, group: int, number: int) -> None:
        """Load a group into a bank and save the group that was in it, in pieces.

        A piece is loaded as soon as the blocks in its slots were saved, so that both directions of the bus are in use.
        """
        bank = self._loaded[side][number]
        banks = self.banks[side]
        leaving, arriving = range(0), banks.blocks(group)
        if bank.group is not None:
            leaving = banks.blocks(bank.group)
            del self._bank_of[side][bank.group]

        # The first copies wait for the kernels that used the bank, for an earlier load into it, and for the last save
        # of the arriving group, whose host memory is read. A stream is in order: what its first copy waited for, its
        # later copies need not wait for again.
        ready = [bank.used, bank.load_mark, self._saved.get((side, group))]
        before_save, before_load = ready, ready
        size = -(-banks.slots_per_bank // PIECES)
        for first in range(0, banks.slots_per_bank, size):
            old, new = leaving[first : first + size], arriving[first : first + size]
            if old:
                before_load = [*before_load, self._save(side, old, number, before_save)]
                before_save = []
            if new:
                bank.load_mark = self._inward.submit(partial(self._copy, side, new, number, inward=True), before_load)
                before_load = []

        bank.group = group
        bank.is_mirrored = False
        self._bank_of[side][group] = number

    def _save(self, side: int, blocks: range, number: int, after: Sequence[Mark]) -> Mark:
        """Save consecutive blocks of a group, which are in a bank, to host memory."""
        mark = self._outward.submit(partial(self._copy, side, blocks, number, inward=False), after)
        self._saved[side, self.banks[side].group_of(blocks.start)] = mark
        return mark

    def _copy(self, side: int, blocks: range, number: int, *, inward: bool) -> None:
        """Copy consecutive blocks of a group from host memory to a bank (inward), or back."""
        pitch = self.layout.pitch
        first = self.banks[side].slot(blocks.start, number) * pitch
        names = PARAMETERS if inward else ("vectors", "state")  # Offsets never change.
        for name in names:
            host = getattr(self._host[side], name)[blocks.start * pitch : blocks.stop * pitch]
            device = getattr(self.parameters, name)[first : first + len(blocks) * pitch]
            target, source = (device, host) if inward else (host, device)
            target.copy_(source, non_blocking=True)


def find_largest(parameters: Parameters, rows: slice = slice(None)) -> list[torch.Tensor]:
    """Return the largest magnitude among the vectors and in the state; not finite if a value is not."""
    # The infinity norm is inf or NaN if a value is, and needs no temporary array.
    return [torch.linalg.vector_norm(values[rows], math.inf) for values in (parameters.vectors, parameters.state)]
