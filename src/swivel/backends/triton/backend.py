"""The step on CUDA, a round of blocks at a time.

The blocks of a round share no parameters; those that are neighbours in memory go in one launch: the gradient with
respect to the dot products (one kernel, which also brings the observed cells in and adds up the loss), two batched
products back to the vectors, and Adagrad. No block is ever dense in float32. Steps are only handed to the device here;
what they lost is waited for when it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.backends.base import Side, Starts, Step, StepSettings, StoredCells
from swivel.backends.triton.cells import DeviceCells, ShardCells
from swivel.backends.triton.plan import BlockShape, Places, Shapes, Tile
from swivel.backends.triton.steps import Batch, CellArrays, Parameters, StepLauncher
from swivel.objective import Loss

Tensor = torch.Tensor
LN2 = math.log(2)
MOST_SHARDS = 32  # in one launch: enough to fill the device many times over
GRADIENT_BYTES = 5 << 28  # of the gradients with respect to the dot products, at most


@dataclass(frozen=True, slots=True)
class OnTheirWay:
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


def choose_tile(dtype: torch.dtype, dim: int) -> Tile:
    """Return the tile that is fastest (docs/experiments.md)."""
    if dtype == torch.float32:
        return Tile(64, 64, 32, warps=4, stages=2, registers=None)
    return Tile()


class TritonBackend:
    """Computes rounds of blocks on a CUDA device, with operands of the products in `dtype`."""

    name = "triton"
    lays_out = True

    def __init__(self, settings: StepSettings, *, device: str, dtype: str, memory: int | None = None) -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.dtype = dtype
        self.memory = memory
        self._kind = getattr(torch, dtype)

    def describe(self) -> str:
        """Say what runs."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "interpreted"
        return f"triton on {self.device} ({name}), {self.dtype} products, float32 parameters"

    def hold(self, rows: Side, columns: Side, starts: Starts) -> None:
        """Take parameters on."""
        dim = rows.vectors.shape[1]
        self._places = Places(starts, dim)
        self._shapes = Shapes(self.settings.zeros, choose_tile(self._kind, dim))
        self._index = [torch.from_numpy(self._places.index(side)).to(self.device) for side in (0, 1)]
        self._parameters = self._allocate()
        for index, side in zip(self._index, (rows, columns), strict=True):
            self._put_side(index, side)
        self._launcher = StepLauncher(self.settings, self._places, self._shapes, self._parameters)
        self._cells: DeviceCells | None = None

    def _allocate(self) -> Parameters:
        places, tile = self._places, self._shapes.tile
        self._most = self._shards_at_once()
        taken = [
            sum(band.padded(tile)[1] for band in shape.bands if band.stride >= 0) for shape in self._block_shapes()
        ]
        # Behind the last block a tile may read on; what it reads meets gradients of zero.
        room = places.rows + self._most * max(taken) + places.pitch
        return Parameters(
            vectors=torch.zeros(places.rows, places.dim, device=self.device),
            accumulators=torch.ones(places.rows, places.dim, device=self.device),
            mirror=torch.zeros(room, places.padded_dim, dtype=self._kind, device=self.device),
            offsets=torch.zeros(room, device=self.device),
            weights=torch.zeros(room, device=self.device),
        )

    def _block_shapes(self) -> list[BlockShape]:
        """Return the shapes that blocks have, either way round."""
        rows, columns = (np.unique(np.diff(np.asarray(starts))).tolist() for starts in self._places.starts)
        shapes = [self._shapes.of(m, n) for m in rows for n in columns]
        return shapes + [self._shapes.of(n, m) for m in rows for n in columns]

    def _shards_at_once(self) -> int:
        size = self._places.pitch**2 * self._kind.itemsize
        return int(max(1, min(MOST_SHARDS, GRADIENT_BYTES // size, min(self._places.blocks))))

    def _put_side(self, index: Tensor, side: Side) -> None:
        def put(array: NDArray[Any]) -> Tensor:
            return torch.tensor(np.asarray(array, np.float32), device=self.device)

        p, vectors = self._parameters, put(side.vectors)
        p.vectors[index] = vectors
        p.accumulators[index] = put(side.accumulators)
        p.offsets[index] = put(np.asarray(side.offsets, np.float64) / LN2)
        p.mirror[index, : self._places.dim] = vectors.to(self._kind)

    def take(self, cells: StoredCells) -> None:
        """Lay the cells of the whole matrix out on the device."""
        self._cells = DeviceCells(self._places, self._shapes, self.device)
        self._cells.take(cells)

    def fetch(self) -> tuple[Side, Side]:
        """Return the parameters as host arrays."""
        rows, columns = (self._fetch_side(index) for index in self._index)
        return rows, columns

    def _fetch_side(self, index: Tensor) -> Side:
        p = self._parameters
        vectors, accumulators, offsets = (
            array[index].cpu().numpy() for array in (p.vectors, p.accumulators, p.offsets)
        )
        return Side(vectors, accumulators, offsets * LN2)

    def close(self) -> None:
        """Give the device's memory back."""
        for name in ("_parameters", "_launcher", "_cells", "_index"):
            self.__dict__.pop(name, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> OnTheirWay:
        """Hand steps to the device, all or, asked to stop, none."""
        steps = [] if should_stop() else steps
        cells = self._cells or self._load(steps)
        found = torch.zeros(len(steps), 3, dtype=torch.float64, device=self.device)
        counts = np.zeros((len(steps), 2))
        done = 0
        for batch in self._batches(steps, cells):
            arrays = CellArrays(cells.positions, cells.counts, cells.starts, [0] * len(batch))
            self._launcher.run(batch, arrays, found[done : done + len(batch)])
            for shard in batch.cells:
                # A cell of a tile is one entry and takes its zero back itself; one of the rare is two.
                in_tiles = 2 * shard.observed - (shard.end - shard.begin)
                counts[done] = shard.observed, batch.shape.rows * batch.shape.columns - in_tiles
                done += 1
        return self._send(found, counts)

    def _load(self, steps: Sequence[Step]) -> DeviceCells:
        """Lay out the cells of these steps alone."""
        cells = DeviceCells(self._places, self._shapes, self.device)
        cells.take_blocks({step.block: step.load() for step in steps})
        return cells

    def _batches(self, steps: Sequence[Step], cells: DeviceCells) -> Iterator[Batch]:
        """Yield steps in their order, as many at a time as lie at equal distances and have one shape."""
        found: list[tuple[Step, ShardCells, BlockShape, tuple[int, int]]] = []
        for step in steps:
            shard = cells.find(step.block)
            shape = cells.shape_of(step.block, mirrored=shard.mirrored)
            places = step.block[0], self._places.blocks[0] + step.block[1]
            entry = step, shard, shape, (places[1], places[0]) if shard.mirrored else places
            if found and not self._may_join(found, entry):
                yield _make_batch(found)
                found = []
            found.append(entry)
        if found:
            yield _make_batch(found)

    def _may_join(self, found: list[Any], entry: Any) -> bool:
        step, _, shape, place = entry
        last_step, _, last_shape, last = found[-1]
        is_next = place == (last[0] + 1, last[1] + 1)
        return len(found) < self._most and is_next and shape == last_shape and step.rate == last_step.rate

    def _send(self, found: Tensor, counts: NDArray[np.float64]) -> OnTheirWay:
        if self.device.type != "cuda":
            return OnTheirWay(found, None, counts)
        there = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        there.copy_(found, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return OnTheirWay(there, done, counts)


def _make_batch(found: list[tuple[Step, ShardCells, BlockShape, tuple[int, int]]]) -> Batch:
    return Batch([f[0] for f in found], [f[1] for f in found], found[0][2], found[0][3])
