"""The step on CUDA, a round of blocks at a time.

The blocks of a round share no parameters and go in one launch: the gradient with respect to the dot products (one
kernel, which also brings the observed cells in and adds up the loss); those that are neighbours in memory then share
two batched products back to the vectors, and Adagrad. No block is ever dense in float32. What does not fit the device
is in host memory: cells are streamed, groups of blocks take turns. Steps are only handed to the device here; what they
lost is waited for when it is asked for.
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
from swivel.training.backends.triton.cells import CellRoom, DeviceCells, ShardCells
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
# Of what is free on the device: an order of blocks is chosen for the first, so that the second holds it for sure.
PLANNED_SHARE, USED_SHARE = 0.9, 0.95
LIBRARY_BYTES = 1 << 26  # that cuBLAS takes on CUDA for itself


@dataclass(frozen=True, slots=True)
class LaunchedSteps:
    """Steps that the device has been given."""

    found: Tensor  # (steps, 3) on the host, once `done`: observed loss, zeros' loss, weight of zeros taken back
    done: Any
    cells: NDArray[np.float64]  # (steps, 2): observed cells, and zeros before what `found` takes off

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.cells)

    def losses(self) -> list[Loss]:
        """Wait, and return what each step lost."""
        if self.done is not None:
            self.done.synchronize()
        return [
            Loss(observed, seen, zeros * LN2, unseen - weight)
            for (observed, zeros, weight), (seen, unseen) in zip(self.found.tolist(), self.cells.tolist(), strict=True)
        ]


def choose_tile(dtype: torch.dtype) -> KernelTile:
    """Return the tile that is fastest (docs/experiments.md)."""
    if dtype == torch.float32:
        return KernelTile(64, 64, 32, warps=4, stages=2, registers=None)
    return KernelTile()


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What a run may use of a device, and what it will need."""

    memory: int | None = None  # bytes; None: what is free
    groups: tuple[int, int] | None = None  # blocks of rows and of columns that the order keeps together; None: all
    cells: int = 0  # observed ones, at most
    is_halved: bool = False  # whether only one mirror of them is laid out


def choose_groups(load: DeviceLoad, *, device: str, dtype: str, memory: int | None) -> tuple[int, int] | None:
    """Return how many row blocks and column blocks an order has to keep together; None: all fit the device."""
    there = torch.device(device)
    memory = free_memory(there, PLANNED_SHARE) if memory is None else memory
    return choose_order(measure_needs(load, there, getattr(torch, dtype)), memory)


def measure_needs(load: DeviceLoad, device: torch.device, dtype: torch.dtype) -> DeviceMemoryEstimate:
    """Return what a run needs of a device's memory."""
    fixed = LIBRARY_BYTES if device.type == "cuda" else 0
    return DeviceMemoryEstimate(load, choose_tile(dtype), dtype.itemsize, fixed)


class TritonBackend:
    """Computes rounds of blocks on a CUDA device, with operands of the products in `dtype`."""

    name = "triton"
    builds_layout = True

    def __init__(
        self, settings: StepSettings, *, device: str, dtype: str, options: DeviceOptions | None = None
    ) -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.dtype = dtype
        self.options = options or DeviceOptions()
        self._kind = getattr(torch, dtype)

    def describe(self) -> str:
        """Say what runs, and what is not on the device."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "interpreted"
        parts = [f"triton on {self.device} ({name})", f"{self.dtype} products", "float32 parameters"]
        if "_launcher" in self.__dict__ and self.device.type == "cuda":
            parts.append(f"{self._launcher.kernel} kernel")
        if self.is_swapping:
            rows, columns = self._store.layout
            parts.append(f"parameters taking turns on the device, {rows.room} x {columns.room} blocks at a time")
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
        """Make the device torch's current one, which kernels are launched on; say what to do where memory runs out."""
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
                yield
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"{self.device}: its memory ran out ({str(error).splitlines()[0]}); another process may have taken "
                "some: try again, or give --device-memory less than what is free"
            ) from error

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Take parameters on."""
        self.close()
        with self._on_device():
            self._hold(rows, columns, starts)

    def _hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        options, dim = self.options, rows.vectors.shape[1]
        self._memory = free_memory(self.device, USED_SHARE) if options.memory is None else options.memory
        load = DeviceLoad(starts, dim, self.settings.zeros, options.cells, options.is_halved)
        self._needs = measure_needs(load, self.device, self._kind)
        banks = arrange(self._needs, options.groups, self._memory)
        self._most = self._needs.most(options.groups)
        self._places = SlotLayout(starts, dim, sum(side.slots for side in banks))
        self._shapes = Shapes(self.settings.zeros, choose_tile(self._kind))
        self._host = HostMemory(self.device)
        self._parameters = self._allocate()
        self._store = ParameterStore(self._parameters, self._places, banks, self._host)
        for side, given in enumerate((rows, columns)):
            self._store.put(side, given)
        self._launcher = StepLauncher(self.settings, self._places, self._shapes, self._parameters)
        self._cells: DeviceCells | None = None
        self._feed: CellFeed | None = None

    def _allocate(self) -> Parameters:
        places = self._places
        # Behind the last block a tile may read on; what it reads meets gradients of zero.
        room = places.rows + self._most * self._needs.taken + places.pitch
        return Parameters(
            vectors=torch.zeros(places.rows, places.dim, device=self.device),
            accumulators=torch.ones(places.rows, places.dim, device=self.device),
            mirror=torch.zeros(room, places.padded_dim, dtype=self._kind, device=self.device),
            offsets=torch.zeros(room, device=self.device),
            weights=torch.zeros(room, device=self.device),
        )

    def take(self, cells: StoredCells) -> None:
        """Lay the cells of the whole matrix out: on the device, or in host memory where they do not fit."""
        with self._on_device():
            room = self._cell_room()
            self._cells = DeviceCells(self._places, self._shapes, self.device, room=room, host=self._host)
            self._cells.take(cells)
            self._feed = self._make_feed(self._cells)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # what sorting took

    def _cell_room(self) -> CellRoom | None:
        if self._memory is None:
            return None
        left = self._memory - self._needs.parameters(self._places.rows // self._places.pitch, self._most)
        return CellRoom(left - self._needs.work(self._most), left)

    def _make_feed(self, cells: DeviceCells) -> CellFeed:
        if not cells.on_host or cells.room is None:
            return CellFeed(cells, self.device, room=0)
        left = (cells.room.lasting - cells.index_bytes) // (BUFFERS * ENTRY_BYTES)
        return CellFeed(cells, self.device, room=max(1, min(left, self._most * cells.largest)))

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Hear which blocks will come next."""
        if self.is_swapping:
            self._store.announce(rounds)

    def fetch(self) -> tuple[ParameterBlock, ParameterBlock]:
        """Return the parameters as host arrays."""
        with self._on_device():
            return self._store.fetch(0), self._store.fetch(1)

    def is_finite(self) -> bool:
        """Return whether all parameters are finite: reductions on the device, one number comes back."""
        with self._on_device():
            return self._store.is_finite()

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return a block's own tensors; only where all parameters are on the device."""
        return self._store.lend(side, block)

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Overwrite a block."""
        with self._on_device():
            self._store.overwrite(side, block, values)

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the gradients of a step, read off the step itself."""
        return recover_gradients(self, step, rows, columns)

    def close(self) -> None:
        """Give the device's memory back."""
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
        """Hand steps to the device, all or, asked to stop, none."""
        with self._on_device():
            return self._run([] if should_stop() else steps)

    def _run(self, steps: Sequence[Step]) -> LaunchedSteps:
        found = torch.zeros(len(steps), 3, dtype=torch.float64, device=self.device)
        counts = np.zeros((len(steps), 2))
        feed = self._feed or CellFeed(self._load(steps), self.device, room=0)
        done = 0
        for pair, some in groupby(steps, key=lambda step: self._store.pair_of(step.block)):
            self._store.bring(pair)
            for batch in self._batches(some, feed):
                end = done + len(batch)
                self._launcher.run(batch, feed.load(batch.cells), found[done:end])
                feed.release()
                counts[done:end] = _count_cells(batch)
                done = end
            self._store.release()
        return self._send(found, counts)

    def _load(self, steps: Sequence[Step]) -> DeviceCells:
        """Lay out the cells of these steps alone."""
        cells = DeviceCells(self._places, self._shapes, self.device)
        cells.take_blocks({step.block: step.load() for step in steps})
        return cells

    def _batches(self, steps: Iterable[Step], feed: CellFeed) -> Iterator[StepBatch]:
        """Yield steps in their order, as many at a time as have one shape and find room."""
        found: list[tuple[Step, ShardCells, BlockShape, tuple[int, int]]] = []
        entries = 0
        for step in steps:
            shard = feed.cells.find(step.block)
            shape = feed.cells.shape_of(step.block, mirrored=shard.mirrored)
            slots = self._store.slot_of(0, step.block[0]), self._store.slot_of(1, step.block[1])
            entry = step, shard, shape, (slots[1], slots[0]) if shard.mirrored else slots
            entries += shard.end - shard.begin
            if found and not (self._may_join(found, entry) and feed.has_room(entries)):
                yield _make_batch(found)
                found, entries = [], shard.end - shard.begin
            found.append(entry)
        if found:
            yield _make_batch(found)

    def _may_join(self, found: list[Any], entry: Any) -> bool:
        step, _, shape, _ = entry
        last_step, _, last_shape, _ = found[-1]
        return len(found) < self._most and shape == last_shape and step.learning_rate == last_step.learning_rate

    def _send(self, found: Tensor, counts: NDArray[np.float64]) -> LaunchedSteps:
        if self.device.type != "cuda":
            return LaunchedSteps(found, None, counts)
        there = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        there.copy_(found, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return LaunchedSteps(there, done, counts)


def _make_batch(found: list[tuple[Step, ShardCells, BlockShape, tuple[int, int]]]) -> StepBatch:
    return StepBatch([f[0] for f in found], [f[1] for f in found], found[0][2], [f[3] for f in found])


def _count_cells(batch: StepBatch) -> NDArray[np.float64]:
    """Return observed cells, and zeros before those that were taken back, of every step."""
    observed = np.array([shard.observed for shard in batch.cells])
    # A cell of a tile is one entry and takes its zero back itself; one of the rare is two.
    in_tiles = 2 * observed - np.array([shard.end - shard.begin for shard in batch.cells])
    return np.stack([observed, batch.shape.rows * batch.shape.columns - in_tiles], 1).astype(np.float64)
