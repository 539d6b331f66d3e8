"""The parameters of all blocks: on the device or, if they do not all fit, in host memory with some on the device.

`ParameterStore` keeps the groups of the blocks that are trained next in their banks on the device. It copies the next
group in and the previous one out while the kernels compute.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, zip_longest
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
from swivel.training.backends.triton.layout import SlotLayout
from swivel.training.backends.triton.memory_plan import Banks

LN2 = math.log(2)
STAGES = 2  # page-locked buffers for downloads
STAGE_VALUES = 1 << 22  # float32 values of each buffer: 16 MiB
Pair = tuple[int, int]  # a group of rows and a group of columns


@dataclass(slots=True)
class _GroupSlot:
    """A bank on the device and the group that is in it."""

    used: Mark  # the last kernel that uses the bank is complete; copies must wait for it
    loaded: Mark = None  # the copy of the group to the device is complete
    group: int | None = None  # None: empty


class ParameterStore:
    """The parameters of both sides, on the device or in host memory.

    If not all groups of a side fit (`Banks.is_whole` is false), its parameters are in page-locked host memory, and its
    banks hold copies of some groups. Three CUDA streams then work at the same time, ordered by marks:

    - the computation waits for `_GroupSlot.loaded` before it uses a bank;
    - `_outward` saves a group to host memory after `_GroupSlot.used`;
    - `_inward` loads a group after the previous group of the bank was saved, and after its own last save (`_saved`).
    """

    def __init__(
        self, parameters: Parameters, places: SlotLayout, banks: tuple[Banks, Banks], host: HostMemory
    ) -> None:
        self.parameters = parameters
        self.places = places
        self.layout = banks
        self.device = parameters.vectors.device
        self._memory = host

        self._banks = [[_GroupSlot(record_mark(self.device)) for _ in range(side.banks)] for side in banks]
        self._host: dict[int, ParameterBlock] = {}  # sides in host memory; offsets in units of log 2
        self._saved: dict[tuple[int, int], Mark] = {}  # (side, group): its last save to host memory is complete
        self._inward = CopyQueue(self.device)
        self._outward = CopyQueue(self.device)

        self._upcoming: list[Pair] = []  # announced pairs of groups, in order
        self._current: Pair | None = None
        # Largest magnitude that was saved to host memory since the last `is_finite`; torch.maximum keeps NaN.
        self._largest_saved = torch.zeros((), device=self.device)
        self._stages: list[torch.Tensor] = []

    @property
    def is_swapping(self) -> bool:
        """Whether some parameters are in host memory."""
        return not all(side.is_whole for side in self.layout)

    @property
    def groups(self) -> tuple[Sequence[int], Sequence[int]]:
        """Starts of the groups of row blocks and of column blocks."""
        return self.layout[0].starts, self.layout[1].starts

    def put(self, side: int, given: ParameterBlock) -> None:
        """Copy the parameters of a side to the device, or to host memory if they do not fit."""
        source = replace(given, offsets=np.asarray(given.offsets, np.float64) / LN2)

        if not self.layout[side].is_whole:
            self._host[side] = source.map(self._keep)
            return

        source = source.map(lambda array: torch.from_numpy(np.require(array, np.float32, ["C", "W"])))
        for group, bank in enumerate(self._banks[side]):
            bank.group = group
            for block in self.layout[side].blocks(group):
                self._copy_in(side, block, group, source)

    def _keep(self, array: NDArray[Any]) -> torch.Tensor:
        kept = self._memory.empty(array.shape, np.float32)
        kept.numpy()[...] = array
        return kept

    def fetch(self, side: int) -> ParameterBlock:
        """Return the parameters of a side as host arrays."""
        if side in self._host:
            self._save_all(side)
            arrays = self._host[side].map(lambda tensor: tensor.numpy().copy())
        else:
            # All groups are on the device.
            shape = int(self.places.starts[side][-1]), self.places.dim
            arrays = ParameterBlock(*(np.empty(each, np.float32) for each in (shape, shape, shape[:1])))
            self._download(self._resident_pieces(side, arrays.map(torch.from_numpy)))

        return replace(arrays, offsets=arrays.offsets * LN2)

    def _resident_pieces(self, side: int, target: ParameterBlock) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pairs of device and host tensors, each small enough for a stage, that cover the whole side."""
        for group in range(self.layout[side].groups):
            for block in self.layout[side].blocks(group):
                host_rows, device_rows = self._spans(side, block, group)
                for device, host in _pairs(self.parameters, target):
                    size = max(1, STAGE_VALUES // max(1, device[:1].numel()))
                    pieces = torch.split(device[device_rows], size)
                    yield from zip(pieces, torch.split(host[host_rows], size), strict=True)

    def _download(self, pieces: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy tensors to host memory through page-locked buffers: one is filled while the other is emptied."""
        waiting: deque[tuple[torch.Tensor, torch.Tensor, Mark]] = deque()
        for number, (source, target) in enumerate(pieces):
            if len(waiting) == STAGES:
                _empty_stage(*waiting.popleft())

            if len(self._stages) < STAGES:
                self._stages.append(self._memory.empty((STAGE_VALUES,), np.float32))
            stage = self._stages[number % STAGES][: source.numel()].view(source.shape)
            stage.copy_(source, non_blocking=True)
            waiting.append((stage, target, record_mark(self.device)))

        for entry in waiting:
            _empty_stage(*entry)

    def is_finite(self) -> bool:
        """Return whether all parameters are finite, also those in host memory; only one flag leaves the device."""
        largest = find_largest(self.parameters)

        # `_largest_saved` is written by the outward stream: wait for all saves so far.
        wait_on_device(self.device, self._outward.submit(lambda: None, []))
        is_finite = torch.stack([*largest, self._largest_saved]).isfinite().all()
        self._largest_saved.zero_()
        return bool(is_finite)

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the device tensors of a block; raise TrainingError if its side is not entirely on the device."""
        if not self.layout[side].is_whole:
            raise TrainingError(
                "blocks cannot be sent between processes while parameters are swapped between device and host memory; "
                "use more devices, or set device_memory to all memory of the device"
            )

        return read_rows(self.parameters, self._device_rows(side, block))

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Overwrite a block on the device, including its copy in the mirror."""
        self.get_block(side, block)  # raises if it is not there
        write_rows(self.parameters, self._device_rows(side, block), values)

    def _device_rows(self, side: int, block: int) -> slice:
        return self._spans(side, block, self.layout[side].group_of(block))[1]

    def _save_all(self, side: int) -> None:
        """Save all groups of a side that are on the device to host memory, and wait until they are there."""
        now = record_mark(self.device)
        for number, bank in enumerate(self._banks[side]):
            if bank.group is not None:
                for block in self.layout[side].blocks(bank.group):
                    self._save(side, block, number, [now, bank.loaded])

        for (saved_side, _), mark in self._saved.items():
            if saved_side == side:
                wait_on_host(mark)

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Set the order of the next blocks, from which groups are prefetched."""
        pairs = (self.groups_of(block) for blocks in rounds for block in blocks)
        self._upcoming = [pair for pair, _ in groupby(pairs)]

    def groups_of(self, block: tuple[int, int]) -> Pair:
        """Return the group of a block's rows and the group of its columns."""
        return self.layout[0].group_of(block[0]), self.layout[1].group_of(block[1])

    def ensure_loaded(self, pair: Pair) -> None:
        """Load two groups if necessary; the computation that is submitted next waits until they are on the device."""
        if pair in self._upcoming:
            del self._upcoming[: self._upcoming.index(pair)]
        self._current = pair
        for side, group in enumerate(pair):
            wait_on_device(self.device, self._banks[side][self._bank_for(side, group)].loaded)

    def slot_of(self, side: int, block: int) -> int:
        """Return the slot of a block whose groups are loaded."""
        if self.layout[side].groups == 1:
            return self.layout[side].first + block

        group = self.layout[side].group_of(block)
        return self.layout[side].slot(block, self._held(side)[group])

    def release(self) -> None:
        """Record that the steps of the current groups were submitted, and prefetch the next groups."""
        if self._current is None or all(side.is_whole for side in self.layout):
            return

        now = record_mark(self.device)
        for side, group in enumerate(self._current):
            self._banks[side][self._held(side)[group]].used = now

        # With a single bank, loading the next group would evict the current one.
        if len(self._upcoming) > 1:
            for side, group in enumerate(self._upcoming[1]):
                if self.layout[side].banks > 1:
                    self._bank_for(side, group)

    def _held(self, side: int) -> dict[int, int]:
        """Return the bank number of every group that is on the device."""
        return {bank.group: number for number, bank in enumerate(self._banks[side]) if bank.group is not None}

    def _bank_for(self, side: int, group: int) -> int:
        """Return the bank number of a group, and load the group if it is not on the device."""
        held = self._held(side)
        if group not in held:
            held[group] = self._choose_bank(side)
            self._load(side, group, held[group])
        return held[group]

    def _choose_bank(self, side: int) -> int:
        """Return the bank to evict: an empty one, or the one whose group is needed last (Belady's rule)."""
        needed = [pair[side] for pair in (self._current, *self._upcoming) if pair is not None]

        def next_use(number: int) -> int:
            group = self._banks[side][number].group
            if group is None:
                return len(needed) + 1
            return needed.index(group) if group in needed else len(needed)

        return max(range(len(self._banks[side])), key=next_use)

    def _load(self, side: int, group: int, number: int) -> None:
        """Load a group into a bank and save the group that was in it, block by block.

        A block is loaded as soon as the block in its slot was saved, so that both directions of the bus are in use.
        """
        bank = self._banks[side][number]
        layout = self.layout[side]
        leaving = [] if bank.group is None else layout.blocks(bank.group)
        ready = [bank.used, bank.loaded, self._saved.get((side, group))]

        for old, new in zip_longest(leaving, layout.blocks(group)):
            after = ready
            if old is not None:
                after = [*after, self._save(side, old, number, after)]
            if new is not None:
                copy = partial(self._copy_in, side, new, number, self._host[side])
                bank.loaded = self._inward.submit(copy, after)

        bank.group = group

    def _save(self, side: int, block: int, number: int, after: Sequence[Mark]) -> Mark:
        mark = self._outward.submit(partial(self._copy_out, side, block, number), after)
        self._saved[side, self.layout[side].group_of(block)] = mark
        return mark

    def _spans(self, side: int, block: int, bank: int) -> tuple[slice, slice]:
        """Return the rows of a block in the host's array of its side and in the device's joint array."""
        first, last = map(int, self.places.starts[side][block : block + 2])
        row = self.layout[side].slot(block, bank) * self.places.pitch
        return slice(first, last), slice(row, row + last - first)

    def _copy_in(self, side: int, block: int, bank: int, source: ParameterBlock) -> None:
        host_rows, device_rows = self._spans(side, block, bank)
        p = self.parameters
        for device, host in _pairs(p, source):
            device[device_rows].copy_(host[host_rows], non_blocking=True)
        p.mirror[device_rows, : self.places.dim].copy_(p.vectors[device_rows])

    def _copy_out(self, side: int, block: int, bank: int) -> None:
        host_rows, device_rows = self._spans(side, block, bank)
        p = self.parameters

        # For `is_finite`: values that leave the device are checked here.
        for values in (p.vectors[device_rows], p.accumulators[device_rows]):
            largest = torch.linalg.vector_norm(values, math.inf)
            torch.maximum(self._largest_saved, largest, out=self._largest_saved)

        for device, host in _pairs(p, self._host[side]):
            host[host_rows].copy_(device[device_rows], non_blocking=True)


def read_rows(parameters: Parameters, rows: slice) -> ParameterBlock:
    """Return some rows of the joint arrays: views, and a copy of the offsets."""
    p = parameters
    return ParameterBlock(p.vectors[rows], p.accumulators[rows], p.offsets[rows] * LN2)


def write_rows(parameters: Parameters, rows: slice, values: ParameterBlock) -> None:
    """Overwrite some rows of the joint arrays, and their copies in the mirror."""
    p = parameters
    p.vectors[rows].copy_(torch.as_tensor(values.vectors))
    p.accumulators[rows].copy_(torch.as_tensor(values.accumulators))
    p.offsets[rows].copy_((torch.as_tensor(values.offsets).double() / LN2).float())
    p.mirror[rows, : p.vectors.shape[1]].copy_(p.vectors[rows])


def find_largest(parameters: Parameters) -> list[torch.Tensor]:
    """Return the largest magnitude among the vectors and among the accumulators; not finite if a value is not."""
    # The infinity norm is inf or NaN if a value is, and needs no temporary array.
    return [torch.linalg.vector_norm(values, math.inf) for values in (parameters.vectors, parameters.accumulators)]


def _pairs(device: Parameters, host: ParameterBlock) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the arrays on the device with their copies on the host."""
    names = "vectors", "accumulators", "offsets"
    return [(getattr(device, name), getattr(host, name)) for name in names]


def _empty_stage(stage: torch.Tensor, target: torch.Tensor, filled: Mark) -> None:
    wait_on_host(filled)
    target.copy_(stage)
