"""The training step on CUDA: the blocks of a round run together.

The blocks of a round share no parameters, so one launch computes G, the gradient with respect to the dot products, for
all of them; the same kernel processes the observed cells. Blocks that are adjacent in memory then share two batched
products from G to the gradients of the vectors, and one launch updates all blocks and sums their losses. No
block is ever dense in float32.

Data that does not fit on the device is in host memory: cells are streamed, and groups of blocks are swapped. `run` only
submits work to the device; the function that it returns waits for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from swivel.counts import Matrix
from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes
from swivel.training.backends.base import (
    Backend,
    BackendSettings,
    Gradients,
    ParameterBlock,
    PendingLosses,
    Sides,
    Starts,
    Step,
)
from swivel.training.backends.triton.cuda_streams import HostMemory, record_mark, usable_memory, wait_on_host
from swivel.training.backends.triton.device_cells import CellFeed, DeviceCells, ShardCells
from swivel.training.backends.triton.launch import Batch, Parameters, StepLauncher
from swivel.training.backends.triton.memory_plan import USED_SHARE, Banks, DeviceMemoryEstimate, arrange
from swivel.training.backends.triton.parameter_swap import Pair, ParameterStore, Placement
from swivel.training.objective import Loss
from swivel.training.schedule import Block

Tensor = torch.Tensor
LN2 = math.log(2)


class TritonBackend(Backend):
    """Trains rounds of blocks on a CUDA device."""

    name = "triton"
    builds_layout = True
    rounds_ahead = 2  # The device has work while the host submits the copies of swapped parameters.
    _store: ParameterStore
    _feed: CellFeed

    def __init__(self, settings: BackendSettings) -> None:
        self.settings = settings
        self.device = torch.device(settings.device)

    def describe(self) -> str:
        """Return a short description of the backend, the device, the dtype and the data in host memory."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "interpreted"
        parts = [f"triton on {self.device} ({name})", f"{self.settings.dtype} products", "float32 parameters"]

        if "_launcher" in self.__dict__ and self.device.type == "cuda":
            parts.append(f"{self._launcher.kernel} kernel")
        if self.is_swapping:
            rows, columns = self._store.banks
            size = f"{rows.slots_per_bank} x {columns.slots_per_bank} blocks"
            parts.append(f"parameters swapped between device and host memory, {size} at a time")
        if self.is_streaming:
            parts.append("cells streamed from host memory")

        return ", ".join(parts)

    @property
    def is_swapping(self) -> bool:
        """Whether some parameters are in host memory."""
        return "_store" in self.__dict__ and self._store.is_swapping

    @property
    def is_streaming(self) -> bool:
        """Whether the cells are in host memory."""
        return "_feed" in self.__dict__ and self._feed.cells.on_host

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Make the device torch's current device, on which kernels are launched; explain errors of lacking memory."""
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                yield
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"{self.device}: out of memory ({str(error).splitlines()[0]}); another process may use the device: "
                "try again, or set device_memory to less than what is free",
                argument="device_memory",
            ) from error

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Copy the parameters to the device, or to host memory if they do not fit."""
        with self._on_device():
            estimate = self._start(starts, rows.vectors.shape[1])
            banks = arrange(estimate, self.settings.groups, self._memory)
            self._allocate(banks, estimate.max_blocks(self.settings.groups))
            self._store.put(0, rows)
            self._store.put(1, columns)

    def hold_some(self, starts: Starts, dim: int, capacity: tuple[int, int]) -> None:
        """Allocate memory for some row blocks and some column blocks, which `set_block` adds."""
        with self._on_device():
            estimate = self._start(starts, dim)
            max_blocks = estimate.max_blocks(capacity)

            # As many column blocks again are on their way to or from other devices.
            transit = capacity[1] * estimate.layout.pitch * (dim + 1) * 4 if capacity[1] > 1 else 0
            required_bytes = estimate.min_bytes_of(sum(capacity), max_blocks) + transit
            if required_bytes > self._memory:
                raise TrainingError(
                    f"{capacity[0]:,} row blocks and {capacity[1]:,} column blocks need "
                    f"{format_bytes(required_bytes)} of device memory, and there are "
                    f"{format_bytes(int(self._memory))}; use more devices, or lower block_size or dim",
                    argument=("block_size", "dim"),
                )
            self._memory -= transit
            self._allocate(estimate.banks((1, 1), capacity), max_blocks, is_pool=True)

    def _start(self, starts: Starts, dim: int) -> DeviceMemoryEstimate:
        """Free all memory of an earlier run, and estimate what the next one needs."""
        self.close()
        self._memory = usable_memory(self.device, USED_SHARE, self.settings.memory)
        self._estimate = DeviceMemoryEstimate(self.settings, starts, dim)
        return self._estimate

    def _allocate(self, banks: tuple[Banks, Banks], max_blocks: int, *, is_pool: bool = False) -> None:
        """Allocate the parameters of the blocks in the banks, for launches of `max_blocks` blocks."""
        layout = self._estimate.layout
        self._max_blocks = max_blocks
        self._prepared: dict[tuple[tuple[Block, ...], Placement], list[Batch]] = {}

        self._slots = sum(side.slots for side in banks)
        rows = self._slots * layout.pitch
        dtype = getattr(torch, self.settings.dtype)
        parameters = Parameters(
            vectors=torch.zeros(rows, layout.dim, device=self.device),
            state=torch.ones(rows, device=self.device),
            mirror=torch.zeros(rows, layout.padded_dim, dtype=dtype, device=self.device),
            offsets=torch.zeros(rows, device=self.device),
        )

        self._host = HostMemory(self.device)
        self._launcher = StepLauncher(self.settings, layout, parameters)
        self._store = ParameterStore(parameters, layout, banks, self._host, is_pool=is_pool)

    def take(self, matrix: Matrix) -> None:
        """Lay out the cells of the whole matrix on the device, or in host memory if they do not fit."""
        estimate, max_blocks = self._estimate, self._max_blocks
        free_bytes = self._memory - estimate.parameters(self._slots)

        with self._on_device():
            cells = DeviceCells(
                estimate.layout,
                self.device,
                resident_bytes=free_bytes - estimate.work(max_blocks),
                temporary_bytes=free_bytes,
                host=self._host,
                groups=self._store.groups,
            )
            cells.take(matrix)
            self._feed = CellFeed(cells, max_blocks)
            self._prepared.clear()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # returns the memory that sorting used

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        if self.is_swapping:
            self._store.announce(rounds)

    def fetch(self) -> Sides:
        with self._on_device():
            return self._store.fetch(0), self._store.fetch(1)

    def is_finite(self) -> bool:
        with self._on_device():
            return self._store.is_finite()

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the device tensors of a block; raise TrainingError if not all parameters are on the device."""
        return self._store.get_block(side, block)

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        with self._on_device():
            self._store.set_block(side, block, values)

    def drop_block(self, side: int, block: int) -> None:
        self._store.drop_block(side, block)

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the loss and the gradients of a step, which the kernels write in place of the vectors."""
        for side, values in enumerate((rows, columns)):
            vectors = np.array(values.vectors, np.float32)  # a copy: torch warns about read-only arrays
            self.set_block(side, step.block[side], ParameterBlock(vectors, values.offsets, values.offsets))

        try:
            with self._on_device():
                (loss,) = self._run([step], None)()
            first, second = (self.get_block(side, step.block[side]).vectors.cpu().numpy() for side in (0, 1))
        finally:
            if self._store.is_pool:
                for side in (0, 1):
                    self._store.drop_block(side, step.block[side])
        return loss, first, second

    def close(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

        for name in ("_launcher", "_store", "_feed", "_prepared"):
            self.__dict__.pop(name, None)
        host = self.__dict__.pop("_host", None)
        if host is not None:
            host.close()

        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> PendingLosses:
        """Submit all steps to the device, or none if `should_stop` returns true."""
        with self._on_device():
            return self._run([] if should_stop() else steps, self.settings.config.accumulator_decay)

    def _run(self, steps: Sequence[Step], accumulator_decay: float | None) -> PendingLosses:
        """Submit steps; without a decay, compute only the gradients (`StepLauncher.run`)."""
        totals = torch.empty(len(steps), 2, dtype=torch.float64, device=self.device)
        shards: list[ShardCells] = []
        feed = self._feed

        for groups, group_steps in groupby(steps, key=lambda step: self._store.groups_of(step.block)):
            self._store.ensure_loaded(groups)
            for batch in self._batches([step.block for step in group_steps], groups):
                losses = totals[len(shards) : len(shards) + len(batch.shards)]
                # All steps have the same learning rate.
                self._launcher.run(batch, steps[0].learning_rate, feed.load(batch.copies), losses, accumulator_decay)
                feed.release()
                shards += batch.shards
            self._store.release()

        return self._send(totals, shards)

    def _batches(self, blocks: Sequence[Block], groups: Pair) -> Sequence[Batch]:
        """Return the batches of blocks whose groups are loaded, prepared now or in an earlier epoch."""
        # Preparing a batch takes the host as long as launching it, and the device may be faster than the host.
        key = tuple(blocks), self._store.placement(groups, blocks)
        if key in self._prepared:
            return self._prepared[key]

        batches = self._prepare(blocks)
        if sum(map(len, self._prepared.values())) + len(batches) <= self._estimate.max_prepared:
            self._prepared[key] = batches
        return batches

    def _prepare(self, blocks: Sequence[Block]) -> list[Batch]:
        """Return the blocks in their order, in batches that fit in the buffers of the cells."""
        feed = self._feed
        batches: list[list[tuple[Block, ShardCells]]] = []
        entries = 0
        for block in blocks:
            shard = feed.cells.find(block)
            entries += shard.entries
            if not batches or len(batches[-1]) == self._max_blocks or not feed.can_hold(entries):
                batches.append([])
                entries = shard.entries
            batches[-1].append((block, shard))

        return [self._prepare_batch(batch) for batch in batches]

    def _prepare_batch(self, batch: Sequence[tuple[Block, ShardCells]]) -> Batch:
        """Return blocks as a batch."""
        shards = [shard for _, shard in batch]
        slots = []
        for (i, j), shard in batch:
            rows, columns = self._store.slot_of(0, i), self._store.slot_of(1, j)
            slots.append((columns, rows) if shard.mirrored else (rows, columns))
        return self._launcher.prepare(shards, slots, *self._feed.plan(shards))

    def _send(self, totals: Tensor, shards: Sequence[ShardCells]) -> PendingLosses:
        """Start to copy the totals of `StepLauncher.run` to the host; return a function that waits for the losses."""
        # torch copies to page-locked memory, so that the host does not wait here.
        host = totals.to("cpu", non_blocking=True)
        copied = record_mark(self.device)

        def losses() -> list[Loss]:
            wait_on_host(copied)
            results = []
            for (observed, zeros), shard in zip(host.tolist(), shards, strict=True):
                cells = shard.entries
                results.append(Loss(observed, cells, zeros * LN2, shard.rows * shard.columns - cells))
            return results

        return losses
