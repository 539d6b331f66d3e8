"""The training step on CUDA: the blocks of a round run together.

The blocks of a round share no parameters, so one launch computes G, the gradient with respect to the dot products, for
all of them; the same kernel processes the observed cells and sums the losses. Blocks that are adjacent in memory then
share two batched products from G to the gradients of the vectors, and the Adagrad update. No block is ever dense in
float32.

Data that does not fit on the device is in host memory: cells are streamed, and groups of blocks are swapped. `run` only
submits work to the device; `LaunchedSteps.losses` waits for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.errors import TrainingError
from swivel.training.backends.base import DeviceLoad, Gradients, ParameterBlock, Starts, Step, StepSettings, StoredCells
from swivel.training.backends.triton.cell_stream import CellFeed
from swivel.training.backends.triton.cells import CellMemoryLimits, DeviceCells, ShardCells
from swivel.training.backends.triton.cuda_streams import HostMemory, free_memory
from swivel.training.backends.triton.gradients import recover_gradients
from swivel.training.backends.triton.launch import Parameters, StepBatch, StepLauncher
from swivel.training.backends.triton.layout import BlockShape, KernelTile, Shapes, SlotLayout
from swivel.training.backends.triton.memory_plan import (
    BUFFERS,
    ENTRY_BYTES,
    DeviceMemoryEstimate,
    arrange,
    choose_order,
)
from swivel.training.backends.triton.parameter_swap import ParameterStore
from swivel.training.objective import Loss

Tensor = torch.Tensor
LN2 = math.log(2)
# Shares of the free device memory. The order of blocks is chosen for the smaller one, so that it certainly fits later.
PLANNED_SHARE = 0.9
USED_SHARE = 0.95
LIBRARY_BYTES = 1 << 26  # workspace of cuBLAS


@dataclass(frozen=True, slots=True)
class LaunchedSteps:
    """Steps that were submitted to the device."""

    totals: Tensor  # (steps, 3) on the host, valid after `done`; see `StepLauncher.run`
    done: Any  # CUDA event, or None on a CPU
    cells: NDArray[np.float64]  # (steps, 2): observed cells; zeros, including the weight in `totals`

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.cells)

    def losses(self) -> list[Loss]:
        """Wait for the steps and return the loss of each."""
        if self.done is not None:
            self.done.synchronize()

        losses = []
        for (observed, zeros, weight), (seen, unseen) in zip(self.totals.tolist(), self.cells.tolist(), strict=True):
            losses.append(Loss(observed, seen, zeros * LN2, unseen - weight))
        return losses


@dataclass(frozen=True, slots=True)
class _PreparedStep:
    """A step with the positions of its cells and of its blocks on the device."""

    step: Step
    cells: ShardCells
    shape: BlockShape
    slots: tuple[int, int]  # slots of its blocks: X, the side of the cells' rows, and Y


def choose_tile(dtype: torch.dtype) -> KernelTile:
    """Return the fastest tile for operands of a dtype (docs/experiments.md)."""
    if dtype == torch.float32:
        return KernelTile(64, 64, 32, warps=4, stages=2, registers=None)
    return KernelTile()


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Device memory that a run may use, and sizes of the run that are known in advance."""

    memory: int | None = None  # bytes; None: all that is free
    groups: tuple[int, int] | None = None  # row and column blocks that are trained together; None: all
    cells: int = 0  # upper bound of the observed cells
    is_halved: bool = False  # whether only one half of a symmetric matrix is laid out


def choose_groups(load: DeviceLoad, *, device: str, dtype: str, memory: int | None) -> tuple[int, int] | None:
    """Return how many row blocks and column blocks are trained together, or None if all fit on the device."""
    target = torch.device(device)
    memory = free_memory(target, PLANNED_SHARE) if memory is None else memory
    return choose_order(estimate_device_memory(load, target, getattr(torch, dtype)), memory)


def estimate_device_memory(load: DeviceLoad, device: torch.device, dtype: torch.dtype) -> DeviceMemoryEstimate:
    """Return the estimate of the device memory that a run needs."""
    fixed = LIBRARY_BYTES if device.type == "cuda" else 0
    return DeviceMemoryEstimate(load, choose_tile(dtype), dtype.itemsize, fixed)


class TritonBackend:
    """Trains rounds of blocks on a CUDA device, with the operands of the matrix products in `dtype`."""

    name = "triton"
    builds_layout = True

    def __init__(
        self, settings: StepSettings, *, device: str, dtype: str, options: DeviceOptions | None = None
    ) -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.dtype = dtype
        self.options = options or DeviceOptions()
        self._operand_dtype = getattr(torch, dtype)

    def describe(self) -> str:
        """Return a short description of the backend, the device, the dtype and the data in host memory."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "interpreted"
        parts = [f"triton on {self.device} ({name})", f"{self.dtype} products", "float32 parameters"]

        if "_launcher" in self.__dict__ and self.device.type == "cuda":
            parts.append(f"{self._launcher.kernel} kernel")
        if self.is_swapping:
            rows, columns = self._store.layout
            size = f"{rows.slots_per_bank} x {columns.slots_per_bank} blocks"
            parts.append(f"parameters swapped between device and host memory, {size} at a time")
        if self.is_streaming:
            parts.append("cells streamed from host memory")

        return ", ".join(parts)

    @property
    def is_swapping(self) -> bool:
        """Whether some parameters are in host memory."""
        return "_store" in self.__dict__ and not all(side.is_whole for side in self._store.layout)

    @property
    def is_streaming(self) -> bool:
        """Whether the cells are in host memory."""
        cells = self.__dict__.get("_cells")
        return cells is not None and cells.on_host

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Make the device torch's current device, on which kernels are launched; explain errors of lacking memory."""
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                yield
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"{self.device}: out of memory ({str(error).splitlines()[0]}); another process may use the device: "
                "try again, or set device_memory to less than what is free"
            ) from error

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Copy the parameters to the device, or to host memory if they do not fit."""
        self.close()
        with self._on_device():
            self._hold(rows, columns, starts)

    def _hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        options = self.options
        dim = rows.vectors.shape[1]

        # What is where, in whole blocks.
        self._memory = free_memory(self.device, USED_SHARE) if options.memory is None else options.memory
        load = DeviceLoad(starts, dim, self.settings.zeros, options.cells, options.is_halved)
        self._estimate = estimate_device_memory(load, self.device, self._operand_dtype)
        banks = arrange(self._estimate, options.groups, self._memory)
        self._max_blocks = self._estimate.max_blocks(options.groups)
        self._places = SlotLayout(starts, dim, sum(side.slots for side in banks))
        self._shapes = Shapes(self.settings.zeros, choose_tile(self._operand_dtype))

        self._host = HostMemory(self.device)
        self._parameters = self._allocate()
        self._store = ParameterStore(self._parameters, self._places, banks, self._host)
        self._store.put(0, rows)
        self._store.put(1, columns)

        self._launcher = StepLauncher(self.settings, self._places, self._shapes, self._parameters)
        self._cells: DeviceCells | None = None
        self._feed: CellFeed | None = None

    def _allocate(self) -> Parameters:
        places = self._places
        # Behind the blocks: the copies of sampled columns, and rows that the tiles of the last block may read. Those
        # are multiplied by a gradient of 0.
        rows = places.rows + self._max_blocks * self._estimate.taken + places.pitch
        return Parameters(
            vectors=torch.zeros(places.rows, places.dim, device=self.device),
            accumulators=torch.ones(places.rows, places.dim, device=self.device),
            mirror=torch.zeros(rows, places.padded_dim, dtype=self._operand_dtype, device=self.device),
            offsets=torch.zeros(rows, device=self.device),
            weights=torch.zeros(rows, device=self.device),
        )

    def take(self, cells: StoredCells) -> None:
        """Lay out the cells of the whole matrix on the device, or in host memory if they do not fit."""
        with self._on_device():
            limits = self._cell_limits()
            self._cells = DeviceCells(self._places, self._shapes, self.device, limits=limits, host=self._host)
            self._cells.take(cells)
            self._feed = self._make_feed(self._cells)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # returns the memory that sorting used

    def _cell_limits(self) -> CellMemoryLimits | None:
        if self._memory is None:
            return None

        left = self._memory - self._estimate.parameters(self._places.rows // self._places.pitch, self._max_blocks)
        return CellMemoryLimits(resident=left - self._estimate.work(self._max_blocks), temporary=left)

    def _make_feed(self, cells: DeviceCells) -> CellFeed:
        if not cells.on_host or cells.limits is None:
            return CellFeed(cells, self.device, capacity=0)

        entries = (cells.limits.resident - cells.index_bytes) // (BUFFERS * ENTRY_BYTES)
        return CellFeed(cells, self.device, capacity=max(1, min(entries, self._max_blocks * cells.largest)))

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Set the order of the next blocks, from which parameters are prefetched."""
        if self.is_swapping:
            self._store.announce(rounds)

    def fetch(self) -> tuple[ParameterBlock, ParameterBlock]:
        """Return the parameters as host arrays."""
        with self._on_device():
            return self._store.fetch(0), self._store.fetch(1)

    def is_finite(self) -> bool:
        """Return whether all parameters are finite; the reduction runs on the device."""
        with self._on_device():
            return self._store.is_finite()

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the device tensors of a block; raise TrainingError if not all parameters are on the device."""
        return self._store.get_block(side, block)

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Overwrite a block with host arrays or torch tensors."""
        with self._on_device():
            self._store.set_block(side, block, values)

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the loss and the gradients of a step, recovered from the parameters after the step."""
        return recover_gradients(self, step, rows, columns)

    def close(self) -> None:
        """Wait for the device and release its memory."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

        for name in ("_launcher", "_store", "_parameters", "_feed", "_cells"):
            self.__dict__.pop(name, None)
        host = self.__dict__.pop("_host", None)
        if host is not None:
            host.close()

        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> LaunchedSteps:
        """Submit all steps to the device, or none if `should_stop` returns true."""
        with self._on_device():
            return self._run([] if should_stop() else steps)

    def _run(self, steps: Sequence[Step]) -> LaunchedSteps:
        totals = torch.zeros(len(steps), 3, dtype=torch.float64, device=self.device)
        counts = np.zeros((len(steps), 2))
        feed = self._feed or CellFeed(self._load(steps), self.device, capacity=0)

        done = 0
        for groups, group_steps in groupby(steps, key=lambda step: self._store.groups_of(step.block)):
            self._store.ensure_loaded(groups)
            for batch in self._batches(group_steps, feed):
                end = done + len(batch)
                self._launcher.run(batch, feed.load(batch.cells), totals[done:end])
                feed.release()
                counts[done:end] = _count_cells(batch)
                done = end
            self._store.release()

        return self._send(totals, counts)

    def _load(self, steps: Sequence[Step]) -> DeviceCells:
        """Return the cells of these steps only, for callers that did not call `take`."""
        cells = DeviceCells(self._places, self._shapes, self.device)
        cells.take_blocks({step.block: step.load() for step in steps})
        return cells

    def _batches(self, steps: Iterable[Step], feed: CellFeed) -> Iterator[StepBatch]:
        """Yield the steps in their order, in batches that have one shape and fit in the buffers."""
        batch: list[_PreparedStep] = []
        entries = 0

        for step in steps:
            prepared = self._prepare(step, feed.cells)
            size = prepared.cells.end - prepared.cells.begin
            entries += size
            if batch and not (self._may_join(batch, prepared) and feed.can_hold(entries)):
                yield _make_batch(batch)
                batch = []
                entries = size
            batch.append(prepared)

        if batch:
            yield _make_batch(batch)

    def _prepare(self, step: Step, cells: DeviceCells) -> _PreparedStep:
        shard = cells.find(step.block)
        shape = cells.shape_of(step.block, mirrored=shard.mirrored)
        rows = self._store.slot_of(0, step.block[0])
        columns = self._store.slot_of(1, step.block[1])
        return _PreparedStep(step, shard, shape, (columns, rows) if shard.mirrored else (rows, columns))

    def _may_join(self, batch: list[_PreparedStep], prepared: _PreparedStep) -> bool:
        """Return whether a step can be launched together with a batch."""
        last = batch[-1]
        has_same_rate = prepared.step.learning_rate == last.step.learning_rate
        return len(batch) < self._max_blocks and prepared.shape == last.shape and has_same_rate

    def _send(self, totals: Tensor, counts: NDArray[np.float64]) -> LaunchedSteps:
        """Start the copy of the losses to the host, and return a handle to them."""
        if self.device.type != "cuda":
            return LaunchedSteps(totals, None, counts)

        host = torch.empty(totals.shape, dtype=totals.dtype, pin_memory=True)
        host.copy_(totals, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return LaunchedSteps(host, done, counts)


def _make_batch(steps: list[_PreparedStep]) -> StepBatch:
    return StepBatch(
        [prepared.step for prepared in steps],
        [prepared.cells for prepared in steps],
        steps[0].shape,
        [prepared.slots for prepared in steps],
    )


def _count_cells(batch: StepBatch) -> NDArray[np.float64]:
    """Return, for every step, the observed cells, and the zeros before the kernels subtract those of rare cells."""
    observed = np.array([shard.observed for shard in batch.cells])

    # A cell of a tile is one entry, and the kernel replaces its zero. A rare cell is two entries, and the weight of its
    # zero is in `totals`. So entries = in_tiles + 2 (observed - in_tiles).
    entries = np.array([shard.end - shard.begin for shard in batch.cells])
    in_tiles = 2 * observed - entries
    zeros = batch.shape.rows * batch.shape.columns - in_tiles
    return np.stack([observed, zeros], 1).astype(np.float64)
