"""The parameters of all blocks: in slots on the device, or, where they do not all fit, in host memory and taking turns.

Receives both sides of a run and the banks of slots there are; sees to it that the groups of the blocks that are run
next are in their banks, the next group being fetched and the last one saved beside the computation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.errors import TrainingError
from swivel.training.backends.base import ParameterBlock
from swivel.training.backends.triton.cuda_streams import HostMemory, Lane, Mark, mark_here, wait_for, wait_here
from swivel.training.backends.triton.launch import Parameters
from swivel.training.backends.triton.layout import SlotLayout
from swivel.training.backends.triton.memory_plan import Banks

LN2 = math.log(2)
STAGES, STAGE_VALUES = 2, 1 << 22  # locked buffers for downloads, and float32 values of each: 16 MiB
Pair = tuple[int, int]  # a group of rows and a group of columns


class _GroupSlot:
    """A group's place on the device."""

    def __init__(self, used: Mark) -> None:
        self.group: int | None = None
        self.loaded: Mark = None
        self.used: Mark = used  # no copy may touch the slots before


class ParameterStore:
    """The parameters of both sides, wherever they are."""

    def __init__(
        self, parameters: Parameters, places: SlotLayout, banks: tuple[Banks, Banks], host: HostMemory
    ) -> None:
        self.parameters, self.places, self.layout = parameters, places, banks
        self.device = parameters.vectors.device
        self._memory = host
        self._banks = [[_GroupSlot(mark_here(self.device)) for _ in range(side.banks)] for side in banks]
        self._host: list[ParameterBlock | None] = [None, None]  # offsets in units of log 2
        self._saved: dict[tuple[int, int], Mark] = {}  # side and group: when the host has its last state
        self._inward, self._outward = Lane(self.device), Lane(self.device)
        self._coming: list[Pair] = []
        self._now: Pair | None = None
        # The largest magnitude of what was saved to host memory since `is_finite` last looked; NaN is kept by maximum.
        self._largest_saved = torch.zeros((), device=self.device)
        self._stages: list[torch.Tensor] = []

    def put(self, side: int, given: ParameterBlock) -> None:
        """Take the parameters of a side on."""
        offsets = (np.asarray(given.offsets, np.float64) / LN2).astype(np.float32)
        arrays = np.asarray(given.vectors, np.float32), np.asarray(given.accumulators, np.float32), offsets
        if not self.layout[side].is_whole:
            self._host[side] = ParameterBlock(*(self._keep(array) for array in arrays))
            return
        source = ParameterBlock(*(torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays))
        for group, bank in enumerate(self._banks[side]):
            bank.group = group
            for block in self.layout[side].blocks(group):
                self._copy_in(side, block, group, source)

    def _keep(self, array: NDArray[np.float32]) -> torch.Tensor:
        kept = self._memory.empty(array.shape, np.float32)
        kept.numpy()[...] = array
        return kept

    def fetch(self, side: int) -> ParameterBlock:
        """Return the parameters of a side as host arrays."""
        host = self._host[side]
        shape = int(self.places.starts[side][-1]), self.places.dim
        if host is None:
            arrays = [np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape[:1], np.float32)]
            target = ParameterBlock(*(torch.from_numpy(array) for array in arrays))
            self._download(self._resident_pieces(side, target))
        else:
            self._save_all(side)
            arrays = [tensor.numpy().copy() for tensor in (host.vectors, host.accumulators, host.offsets)]
        return ParameterBlock(arrays[0], arrays[1], arrays[2] * LN2)

    def _resident_pieces(self, side: int, target: ParameterBlock) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield device and host tensors of equal shape, small enough for a stage, that together are the whole side."""
        p = self.parameters
        pairs = (p.vectors, target.vectors), (p.accumulators, target.accumulators), (p.offsets, target.offsets)
        for group in range(self.layout[side].groups):
            for block in self.layout[side].blocks(group):
                there, here = self._spans(side, block, group)
                for device, host in pairs:
                    rows = max(1, STAGE_VALUES // max(1, device[:1].numel()))
                    yield from zip(torch.split(device[here], rows), torch.split(host[there], rows), strict=True)

    def _download(self, pieces: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy tensors to host memory through two locked buffers: one is filled while the other is emptied."""
        waiting: deque[tuple[torch.Tensor, torch.Tensor, Mark]] = deque()
        for number, (source, target) in enumerate(pieces):
            if len(waiting) == STAGES:
                _empty_stage(*waiting.popleft())
            if len(self._stages) < STAGES:
                self._stages.append(self._memory.empty((STAGE_VALUES,), np.float32))
            stage = self._stages[number % STAGES][: source.numel()].view(source.shape)
            stage.copy_(source, non_blocking=True)
            waiting.append((stage, target, mark_here(self.device)))
        for entry in waiting:
            _empty_stage(*entry)

    def is_finite(self) -> bool:
        """Return whether all parameters are finite, those that were swapped out included; one flag comes back."""
        p = self.parameters
        # The infinity norm is inf or NaN where a value is, and needs no temporary array.
        largest = [torch.linalg.vector_norm(values, math.inf) for values in (p.vectors, p.accumulators)]
        wait_here(self.device, self._outward.submit(lambda: None, []))
        found = torch.stack([*largest, self._largest_saved]).isfinite().all()
        self._largest_saved.zero_()
        return bool(found)

    def lend(self, side: int, block: int) -> ParameterBlock:
        """Return the tensors of a block on the device."""
        if not self.layout[side].is_whole:
            raise TrainingError(
                "blocks cannot be handed between processes while parameters take turns on the device; "
                "use more devices, or --device-memory as large as the device has"
            )
        here = self._here(side, block)
        p = self.parameters
        return ParameterBlock(p.vectors[here], p.accumulators[here], p.offsets[here] * LN2)

    def overwrite(self, side: int, block: int, values: ParameterBlock) -> None:
        """Copy a block to the device, and bring the operands of the products up to date."""
        here, mine = self._here(side, block), self.lend(side, block)
        mine.vectors.copy_(torch.as_tensor(values.vectors))
        mine.accumulators.copy_(torch.as_tensor(values.accumulators))
        self.parameters.offsets[here].copy_((torch.as_tensor(values.offsets).double() / LN2).float())
        self.parameters.mirror[here, : self.places.dim].copy_(mine.vectors)

    def _here(self, side: int, block: int) -> slice:
        return self._spans(side, block, self.layout[side].group_of(block))[1]

    def _save_all(self, side: int) -> None:
        """Bring the host's state up to date and wait for it."""
        here = mark_here(self.device)
        for number, bank in enumerate(self._banks[side]):
            if bank.group is not None:
                for block in self.layout[side].blocks(bank.group):
                    self._save(side, block, number, [here, bank.loaded])
        for (saved_side, _), mark in self._saved.items():
            if saved_side == side:
                wait_for(mark)

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Hear which blocks will come."""
        pairs = (self.pair_of(block) for blocks in rounds for block in blocks)
        self._coming = [pair for pair, _ in groupby(pairs)]

    def pair_of(self, block: tuple[int, int]) -> Pair:
        """Return the groups of a block."""
        return self.layout[0].group_of(block[0]), self.layout[1].group_of(block[1])

    def bring(self, pair: Pair) -> None:
        """Have two groups on the device when the computation goes on from here."""
        if pair in self._coming:
            del self._coming[: self._coming.index(pair)]
        self._now = pair
        for side, group in enumerate(pair):
            wait_here(self.device, self._banks[side][self._bank_for(side, group)].loaded)

    def slot_of(self, side: int, block: int) -> int:
        """Return the slot of a block that was brought."""
        if self.layout[side].groups == 1:
            return self.layout[side].first + block
        group = self.layout[side].group_of(block)
        return self.layout[side].slot(block, self._held(side)[group])

    def release(self) -> None:
        """Note that steps of the two groups have been handed over, and fetch what comes after them."""
        if self._now is None or all(side.is_whole for side in self.layout):
            return
        here = mark_here(self.device)
        for side, group in enumerate(self._now):
            self._banks[side][self._held(side)[group]].used = here
        if len(self._coming) > 1:
            for side, group in enumerate(self._coming[1]):
                if self.layout[side].banks > 1:
                    self._bank_for(side, group)

    def _held(self, side: int) -> dict[int, int]:
        """Return the bank of every group that is on the device."""
        return {bank.group: number for number, bank in enumerate(self._banks[side]) if bank.group is not None}

    def _bank_for(self, side: int, group: int) -> int:
        """Return the bank of a group, which is loaded where it is not there."""
        held = self._held(side)
        if group not in held:
            held[group] = self._choose_bank(side)
            self._load(side, group, held[group])
        return held[group]

    def _choose_bank(self, side: int) -> int:
        """Return the bank whose group is wanted last."""
        wanted = [pair[side] for pair in ([self._now] if self._now else []) + self._coming]

        def next_use(number: int) -> int:
            group = self._banks[side][number].group
            if group is None:
                return len(wanted) + 1
            return wanted.index(group) if group in wanted else len(wanted)

        return max(range(len(self._banks[side])), key=next_use)

    def _load(self, side: int, group: int, number: int) -> None:
        """Put a group in a bank, saving the one that is there; each block follows its predecessor's way out."""
        bank, layout = self._banks[side][number], self.layout[side]
        leaving = [] if bank.group is None else layout.blocks(bank.group)
        ready = [bank.used, bank.loaded, self._saved.get((side, group))]
        for old, new in zip_longest(leaving, layout.blocks(group)):
            after = ready
            if old is not None:
                after = [*after, self._save(side, old, number, after)]
            if new is not None:
                bank.loaded = self._inward.submit(self._loader(side, new, number), after)
        bank.group = group

    def _loader(self, side: int, block: int, number: int) -> Callable[[], None]:
        host = self._host[side]
        assert host is not None
        return lambda: self._copy_in(side, block, number, host)

    def _save(self, side: int, block: int, number: int, after: Sequence[Mark]) -> Mark:
        host, group = self._host[side], self.layout[side].group_of(block)
        assert host is not None
        mark = self._outward.submit(lambda: self._copy_out(side, block, number, host), after)
        self._saved[side, group] = mark
        return mark

    def _spans(self, side: int, block: int, bank: int) -> tuple[slice, slice]:
        """Return the rows of a block in the host's array and in the device's."""
        first, last = self.places.span(side, block)
        row = self.layout[side].slot(block, bank) * self.places.pitch
        return slice(first, last), slice(row, row + last - first)

    def _copy_in(self, side: int, block: int, bank: int, source: ParameterBlock) -> None:
        there, here = self._spans(side, block, bank)
        p = self.parameters
        p.vectors[here].copy_(source.vectors[there], non_blocking=True)
        p.accumulators[here].copy_(source.accumulators[there], non_blocking=True)
        p.offsets[here].copy_(source.offsets[there], non_blocking=True)
        p.mirror[here, : self.places.dim].copy_(p.vectors[here])

    def _copy_out(self, side: int, block: int, bank: int, target: ParameterBlock) -> None:
        there, here = self._spans(side, block, bank)
        p = self.parameters
        for values in (p.vectors[here], p.accumulators[here]):
            largest = torch.linalg.vector_norm(values, math.inf)
            torch.maximum(self._largest_saved, largest, out=self._largest_saved)
        target.vectors[there].copy_(p.vectors[here], non_blocking=True)
        target.accumulators[there].copy_(p.accumulators[here], non_blocking=True)
        target.offsets[there].copy_(p.offsets[here], non_blocking=True)


def _empty_stage(stage: torch.Tensor, target: torch.Tensor, filled: Mark) -> None:
    wait_for(filled)
    target.copy_(stage)
