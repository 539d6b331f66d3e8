"""The parameters of all blocks: on the device or, if they do not all fit, in host memory with some on the device.

`ParameterStore` keeps the groups of the blocks that are trained next in their banks on the device. It copies the next
group in and the previous one out while the kernels compute. If other processes have the other blocks, it is a pool:
every bank is for one block, and blocks come and go by `set_block` and `drop_block`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
STAGES = 2  # page-locked buffers for downloads
STAGE_VALUES = 1 << 22  # float32 values of each buffer: 16 MiB
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
    banks hold copies of some groups. Three CUDA streams then work at the same time, ordered by marks:

    - the computation waits for `_GroupSlot.load_mark` before it uses a bank;
    - `_outward` saves a group to host memory after `_GroupSlot.used`;
    - `_inward` loads a group after the previous group of the bank was saved, and after its own last save (`_saved`).

    Both copying streams only copy. A kernel in them would wait until the kernels of a step, which fill the device, are
    complete, and all later copies with it. So the computation itself copies new vectors to the mirror and checks that
    the values which leave the device are finite.
    """

    def __init__(
        self,
        parameters: Parameters,
        places: SlotLayout,
        banks: tuple[Banks, Banks],
        host: HostMemory,
        *,
        is_pool: bool = False,
    ) -> None:
        self.parameters = parameters
        self.places = places
        self.layout = banks
        self.device = parameters.vectors.device
        self.is_pool = is_pool
        self._memory = host

        self._banks = [[_GroupSlot(record_mark(self.device)) for _ in range(side.banks)] for side in banks]
        self._bank_of: tuple[dict[int, int], dict[int, int]] = {}, {}  # banks of the groups that are on the device
        self._host: dict[int, ParameterBlock] = {}  # sides in host memory, see `_keep`; offsets in units of log 2
        self._saved: dict[tuple[int, int], Mark] = {}  # (side, group): its last save to host memory is complete
        # One stream per direction: the bus carries both at once, and copies of one direction would only wait in turn.
        self._inward = CopyQueue(self.device)
        self._outward = CopyQueue(self.device)

        self._upcoming: list[Pair] = []  # announced pairs of groups, in order
        self._current: Pair | None = None
        # Largest magnitude that left the device since the last `is_finite`; torch.maximum keeps NaN.
        self._largest_left = torch.zeros((), device=self.device)
        self._stages: list[torch.Tensor] = []

    @property
    def is_swapping(self) -> bool:
        """Whether some parameters are in host memory."""
        return bool(self._host)

    @property
    def groups(self) -> tuple[Sequence[int], Sequence[int]]:
        """Starts of the groups of row blocks and of column blocks; a pool has none."""
        if self.is_pool:
            return (), ()
        return self.layout[0].starts, self.layout[1].starts

    def put(self, side: int, values: ParameterBlock) -> None:
        """Copy the parameters of a side to the device, or to host memory if they do not fit."""
        if not self.layout[side].is_whole:
            source = replace(values, offsets=np.asarray(values.offsets, np.float64) / LN2)
            self._host[side] = source.map(partial(self._keep, side))
            return

        for group, bank in enumerate(self._banks[side]):
            bank.group = group
            self._bank_of[side][group] = group

        source = values.map(lambda array: torch.from_numpy(np.require(array, np.float32, ["C", "W"])))
        for block in range(self.places.blocks[side]):
            rows = self._host_rows(side, block)
            write_rows(self.parameters, self._device_rows(side, block), source.part(rows.start, rows.stop))

    def _keep(self, side: int, array: NDArray[Any]) -> torch.Tensor:
        """Return an array of a side in page-locked memory, its blocks `pitch` rows apart.

        As on the device, so that a group is copied at once: for small groups, submitting copies takes the host longer
        than they take.
        """
        blocks = self.places.blocks[side]
        host_array = self._memory.empty((blocks * self.places.pitch, *array.shape[1:]), np.float32)
        host_array.numpy()[...] = 0
        for block in range(blocks):
            host_array.numpy()[self._kept_rows(side, block)] = array[self._host_rows(side, block)]
        return host_array

    def _kept_rows(self, side: int, block: int) -> slice:
        rows = self._host_rows(side, block)
        first = block * self.places.pitch
        return slice(first, first + rows.stop - rows.start)

    def _host_rows(self, side: int, block: int) -> slice:
        return slice(*map(int, self.places.starts[side][block : block + 2]))

    def fetch(self, side: int) -> ParameterBlock:
        """Return the parameters of a side as host arrays."""
        shape = int(self.places.starts[side][-1]), self.places.dim
        arrays = ParameterBlock(*(np.empty(each, np.float32) for each in (shape, shape, shape[:1])))
        if side in self._host:
            self._save_all(side)
            for name in PARAMETERS:
                host_array = getattr(self._host[side], name).numpy()
                for block in range(self.places.blocks[side]):
                    getattr(arrays, name)[self._host_rows(side, block)] = host_array[self._kept_rows(side, block)]
        else:
            # All groups are on the device.
            self._download(self._resident_pieces(side, arrays.map(torch.from_numpy)))

        return replace(arrays, offsets=arrays.offsets * LN2)

    def _resident_pieces(self, side: int, target: ParameterBlock) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pairs of device and host tensors, each small enough for a stage, that cover the whole side."""
        for block in range(self.places.blocks[side]):
            host_rows, device_rows = self._host_rows(side, block), self._device_rows(side, block)
            for name in PARAMETERS:
                device, host = getattr(self.parameters, name), getattr(target, name)
                size = max(1, STAGE_VALUES // max(1, device[:1].numel()))
                pieces = torch.split(device[device_rows], size)
                yield from zip(pieces, torch.split(host[host_rows], size), strict=True)

    def _download(self, pieces: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy tensors to host memory through page-locked buffers: one is filled while the other is emptied."""
        transfers: deque[tuple[torch.Tensor, torch.Tensor, Mark]] = deque()
        for number, (source, target) in enumerate(pieces):
            if len(transfers) == STAGES:
                _empty_stage(*transfers.popleft())

            if len(self._stages) < STAGES:
                self._stages.append(self._memory.empty((STAGE_VALUES,), np.float32))
            stage = self._stages[number % STAGES][: source.numel()].view(source.shape)
            stage.copy_(source, non_blocking=True)
            transfers.append((stage, target, record_mark(self.device)))

        for entry in transfers:
            _empty_stage(*entry)

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

        return read_rows(self.parameters, self._device_rows(side, block))

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Overwrite a block on the device, including its copy in the mirror; a pool adds it in the first free bank."""
        if self.is_pool and block not in self._bank_of[side]:
            # Without gaps, more blocks of a round are adjacent, and share their batched products.
            number = next((n for n, bank in enumerate(self._banks[side]) if bank.group is None), None)
            if number is None:
                raise TrainingError(
                    "internal error: no place for another block, "
                    f"the device has {len(self._bank_of[side])} of this side"
                )
            self._banks[side][number].group = block
            self._bank_of[side][block] = number

        self.get_block(side, block)  # raises if it is not there
        write_rows(self.parameters, self._device_rows(side, block), values)

    def drop_block(self, side: int, block: int) -> None:
        """Free the bank of a block of a pool, if it is here."""
        number = self._bank_of[side].pop(block, None)
        if number is not None:
            self._banks[side][number].group = None

    def _device_rows(self, side: int, block: int) -> slice:
        rows = self._host_rows(side, block)
        first = self.slot_of(side, block) * self.places.pitch
        return slice(first, first + rows.stop - rows.start)

    def _save_all(self, side: int) -> None:
        """Save all groups of a side that are on the device to host memory, and wait until they are there."""
        now = record_mark(self.device)
        for number, bank in enumerate(self._banks[side]):
            if bank.group is not None:
                self._save(side, self.layout[side].blocks(bank.group), number, [now, bank.load_mark])

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
        return self.layout[0].group_of(block[0]), self.layout[1].group_of(block[1])

    def ensure_loaded(self, pair: Pair) -> None:
        """Load two groups if necessary; the computation that is submitted next waits until they are on the device."""
        if self.is_pool:
            return
        if pair in self._upcoming:
            del self._upcoming[: self._upcoming.index(pair)]
        if pair == self._current:
            return

        self._check_leaving_groups(pair)
        self._current = pair
        for side, group in enumerate(pair):
            number = self._bank_for(side, group)
            bank = self._banks[side][number]
            wait_on_device(self.device, bank.load_mark)
            if not bank.is_mirrored:
                rows = self._bank_rows(side, number)
                self.parameters.mirror[rows, : self.places.dim].copy_(self.parameters.vectors[rows])
                bank.is_mirrored = True

    def _check_leaving_groups(self, pair: Pair) -> None:
        """Check the values of the current groups that are not in `pair`: they may leave the device from now on."""
        for side, group in enumerate(self._current or ()):
            if group != pair[side] and not self.layout[side].is_whole:
                number = self._bank_of[side][group]
                for largest in find_largest(self.parameters, self._bank_rows(side, number)):
                    torch.maximum(self._largest_left, largest, out=self._largest_left)
                self._banks[side][number].used = record_mark(self.device)

    def _bank_rows(self, side: int, number: int) -> slice:
        """Return the rows of a bank in the joint arrays."""
        layout = self.layout[side]
        first = layout.first + number * layout.slots_per_bank
        return slice(first * self.places.pitch, (first + layout.slots_per_bank) * self.places.pitch)

    def slot_of(self, side: int, block: int) -> int:
        """Return the slot of a block whose groups are loaded."""
        if self.layout[side].groups == 1:
            return self.layout[side].first + block

        group = self.layout[side].group_of(block)
        return self.layout[side].slot(block, self._bank_of[side][group])

    def placement(self, pair: Pair, blocks: Sequence[Block]) -> Placement:
        """Return what the slots of blocks of two loaded groups depend on: the banks of the groups, or of the blocks."""
        if self.is_pool:
            return tuple((self.slot_of(0, i), self.slot_of(1, j)) for i, j in blocks)
        return self._bank_of[0][pair[0]], self._bank_of[1][pair[1]]

    def release(self) -> None:
        """Record that the steps of the current groups were submitted, and prefetch the next groups."""
        if self._current is None or all(side.is_whole for side in self.layout):
            return

        # The kernels submitted so far use the banks of the current groups: a later load into one waits for this mark.
        now = record_mark(self.device)
        for side, group in enumerate(self._current):
            self._banks[side][self._bank_of[side][group]].used = now

        # With a single bank, loading the next group would evict the current one.
        if len(self._upcoming) > 1:
            for side, group in enumerate(self._upcoming[1]):
                if self.layout[side].banks > 1:
                    self._bank_for(side, group)

    def _bank_for(self, side: int, group: int) -> int:
        """Return the bank number of a group, and load the group if it is not on the device."""
        if group not in self._bank_of[side]:
            self._load(side, group, self._choose_bank(side))
        return self._bank_of[side][group]

    def _choose_bank(self, side: int) -> int:
        """Return the bank to evict: an empty one, or the one whose group is needed last (Belady's rule)."""
        next_groups = [pair[side] for pair in (self._current, *self._upcoming) if pair is not None]

        def next_use(number: int) -> int:
            group = self._banks[side][number].group
            if group is None:
                return len(next_groups) + 1
            return next_groups.index(group) if group in next_groups else len(next_groups)

        return max(range(len(self._banks[side])), key=next_use)

    def _load(self, side: int, group: int, number: int) -> None:
        """Load a group into a bank and save the group that was in it, in pieces.

        A piece is loaded as soon as the blocks in its slots were saved, so that both directions of the bus are in use.
        """
        bank = self._banks[side][number]
        layout = self.layout[side]
        leaving, arriving = range(0), layout.blocks(group)
        if bank.group is not None:
            leaving = layout.blocks(bank.group)
            del self._bank_of[side][bank.group]

        # The first copies wait for the kernels that used the bank, for an earlier load into it, and for the last save
        # of the arriving group, whose host memory is read. A stream is in order: what its first copy waited for, its
        # later copies need not wait for again.
        ready = [bank.used, bank.load_mark, self._saved.get((side, group))]
        before_save, before_load = ready, ready
        size = -(-layout.slots_per_bank // PIECES)
        for first in range(0, layout.slots_per_bank, size):
            old, new = leaving[first : first + size], arriving[first : first + size]
            if old:
                before_load = [*before_load, self._save(side, old, number, before_save)]
                before_save = []
            if new:
                bank.load_mark = self._inward.submit(partial(self._copy_in, side, new, number), before_load)
                before_load = []

        bank.group = group
        bank.is_mirrored = False
        self._bank_of[side][group] = number

    def _save(self, side: int, blocks: range, number: int, after: Sequence[Mark]) -> Mark:
        """Save consecutive blocks of a group, which are in a bank, to host memory."""
        mark = self._outward.submit(partial(self._copy_out, side, blocks, number), after)
        self._saved[side, self.layout[side].group_of(blocks.start)] = mark
        return mark

    def _copy_in(self, side: int, blocks: range, number: int) -> None:
        host, device = self._swapped_rows(side, blocks, number)
        for name in PARAMETERS:
            getattr(self.parameters, name)[device].copy_(getattr(self._host[side], name)[host], non_blocking=True)

    def _copy_out(self, side: int, blocks: range, number: int) -> None:
        host, device = self._swapped_rows(side, blocks, number)
        for name in ("vectors", "state"):  # Offsets never change.
            getattr(self._host[side], name)[host].copy_(getattr(self.parameters, name)[device], non_blocking=True)

    def _swapped_rows(self, side: int, blocks: range, number: int) -> tuple[slice, slice]:
        """Return the rows of consecutive blocks in the host arrays of their side and in the device's joint arrays."""
        pitch = self.places.pitch
        first = self.layout[side].slot(blocks.start, number) * pitch
        return slice(blocks.start * pitch, blocks.stop * pitch), slice(first, first + len(blocks) * pitch)


def read_rows(parameters: Parameters, rows: slice) -> ParameterBlock:
    """Return some rows of the joint arrays: views, and a copy of the offsets."""
    p = parameters
    return ParameterBlock(p.vectors[rows], p.state[rows], p.offsets[rows] * LN2)


def write_rows(parameters: Parameters, rows: slice, values: ParameterBlock) -> None:
    """Overwrite some rows of the joint arrays, and their copies in the mirror."""
    p = parameters
    p.vectors[rows].copy_(torch.as_tensor(values.vectors))
    p.state[rows].copy_(torch.as_tensor(values.state))
    p.offsets[rows].copy_((torch.as_tensor(values.offsets).double() / LN2).float())
    p.mirror[rows, : p.vectors.shape[1]].copy_(p.vectors[rows])


def find_largest(parameters: Parameters, rows: slice = slice(None)) -> list[torch.Tensor]:
    """Return the largest magnitude among the vectors and in the state; not finite if a value is not."""
    # The infinity norm is inf or NaN if a value is, and needs no temporary array.
    arrays = parameters.vectors[rows], parameters.state[rows]
    return [torch.linalg.vector_norm(values, math.inf) for values in arrays]


def _empty_stage(stage: torch.Tensor, target: torch.Tensor, filled: Mark) -> None:
    wait_on_host(filled)
    target.copy_(stage)
