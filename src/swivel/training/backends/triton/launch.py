"""Kernel launches of a batch of steps: G, the products from G to the gradients of the vectors, and the optimizer.

`StepLauncher.run` changes the parameters on the device and writes the losses of each block. No function here waits for
the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton

from swivel.training.backends.base import BackendSettings
from swivel.training.backends.triton import step_kernels as kernels
from swivel.training.backends.triton.device_cells import Copies, EntryArrays, ShardCells
from swivel.training.backends.triton.slot_layout import KernelTile, SlotLayout

if TYPE_CHECKING:
    from swivel.training.backends.triton.hopper import HopperGradient

Tensor = torch.Tensor
CHUNK = 256  # observed cells of a tile that are processed at a time
ELEMENTS = 2048  # padded parameters per program of `update`
SUMMED_LOSSES = 1024  # losses that `update` adds at a time
SEARCHED_SLOTS = 128  # slots per program of `find_starts`
GROUP = 8  # rows of tiles that are numbered together; see `kernels._find_tile`
KNOWN_TRITONS = ("3.6.", "3.7.")  # versions that compile the Hopper kernel; the names of Gluon still change


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks that are launched together, and what a launch needs besides the learning rate.

    It is prepared once, and launched in every epoch that has the same blocks in the same slots.
    """

    shards: Sequence[ShardCells]
    copies: Copies  # that bring the cells to the device
    table: Tensor  # of the kernels, (blocks, fields); see `slot_layout.FIELDS`
    runs: Sequence[tuple[slice, Tensor, Tensor]]  # adjacent blocks, and X and Y of their products
    search_steps: int  # of a binary search among the entries of any block


def find_runs(slots: Sequence[tuple[int, int]]) -> list[slice]:
    """Return maximal runs of adjacent blocks; a batched product needs equal distances in memory on both sides."""
    edges = [0]
    for number, ((i, j), after) in enumerate(pairwise(slots), 1):
        if after != (i + 1, j + 1):
            edges.append(number)
    edges.append(len(slots))

    return [slice(start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Device arrays of both sides; see `slot_layout.SlotLayout`."""

    vectors: Tensor  # (rows, dim), float32
    state: Tensor  # (rows,), float32; of the optimizer
    mirror: Tensor  # (rows, padded dim): copy of the vectors in the dtype of the products, padded with zeros
    offsets: Tensor  # (rows,), in units of log 2


class StepLauncher:
    """Launches batches of steps over one set of parameters."""

    def __init__(self, settings: BackendSettings, layout: SlotLayout, parameters: Parameters) -> None:
        self.settings = settings
        self.layout = layout
        self.parameters = parameters
        self.device = parameters.vectors.device

        # unseen, base, scale and power of the kernels.
        config = settings.config
        self._objective = (
            math.log2(config.unseen),
            config.confidence_base,
            config.confidence_scale,
            config.confidence_power,
        )

        # weight_decay, decay_power, unit0 and unit1 of the kernels.
        units = (offset / math.log(2) for offset in settings.unit_offsets)
        self._decay = settings.config.weight_decay, settings.config.decay_power, *units

        # The hardware approximations of exp2 and log2 are less accurate than float32, but the error is negligible if
        # the operands have 16 bits.
        is_fast = self.device.type == "cuda" and parameters.mirror.dtype != torch.float32
        self._flags = {"SQRT": config.confidence_power == 0.5, "FAST": is_fast}

        self._precision = "ieee" if parameters.mirror.dtype == torch.float32 else "tf32"
        self._hopper = _make_hopper(parameters.mirror, layout.tile, self._objective)
        self._buffers: dict[str, Tensor] = {}

    @property
    def kernel(self) -> str:
        """The gradient kernel that is used: "hopper" or "plain"."""
        return "plain" if self._hopper is None else "hopper"

    def prepare(
        self, shards: Sequence[ShardCells], slots: Sequence[tuple[int, int]], begins: Sequence[int], copies: Copies
    ) -> Batch:
        """Return a batch of shards.

        slots: of the parameters of each shard, X (the side of the cells' rows) and Y. begins: its first entry in the
        arrays that `copies` fills.
        """
        values = []
        for shard, (x, y), begin in zip(shards, slots, begins, strict=True):
            x0, y0 = x * self.layout.pitch, y * self.layout.pitch
            values.append((x0, shard.rows, y0, shard.columns, begin, begin + shard.entries, shard.mirrored))
        # The copy to the device does not wait for it.
        table = torch.from_numpy(np.array(values, np.int64)).to(self.device, non_blocking=True)

        # Views are made once, not for every launch: where the host is the limit, they take 4 % of its time.
        runs = [(run, *self._find_operands(slots, run)) for run in find_runs(slots)]
        search_steps = max(shard.entries for shard in shards).bit_length()
        return Batch(shards, copies, table, runs, search_steps)

    def run(
        self,
        batch: Batch,
        learning_rate: float,
        cells: EntryArrays,
        totals: Tensor,
        accumulator_decay: float | None,
    ) -> None:
        """Submit a batch and write the losses of its blocks to `totals`.

        Without a decay of the accumulators, the gradients replace the vectors.
        totals: (blocks, 2) float64. Observed loss; unobserved loss in units of log 2.
        """
        n, layout, p = len(batch.shards), self.layout, self.parameters
        G, losses = self._gradient(batch, cells)

        width = layout.padded_dim
        rows, columns = layout.padded
        # In the dtype of the products, to save half of the bytes; cuBLAS adds up in float32.
        gradients = self._buffer("gradients", n * (rows + columns) * width, p.mirror.dtype)
        row_gradients, column_gradients = torch.split(gradients, [n * rows * width, n * columns * width])
        row_gradients = row_gradients.view(n, rows, width)
        column_gradients = column_gradients.view(n, columns, width)
        for run, x, y in batch.runs:
            torch.bmm(G[run], y, out=row_gradients[run])
            torch.bmm(G[run].transpose(1, 2), x, out=column_gradients[run])

        # One launch for both sides, and for the sums of the losses. The settings of the optimizer are constants of the
        # compiled kernel: a run has one optimizer, and the learning rate, which changes in every epoch, is an argument.
        padded_width = triton.next_power_of_2(width)
        rows_per_program = max(1, ELEMENTS // padded_width)
        kernels.update[triton.cdiv(max(rows, columns), rows_per_program), n, 2](
            p.vectors, p.state, p.mirror, p.offsets, gradients, batch.table, losses, totals,
            n, rows, columns, losses.shape[1], *self._decay, learning_rate,
            DECAY=accumulator_decay, BY_SUM=self.settings.config.decay_power != 0,
            D=layout.dim, P=width, PP=padded_width, ROWS=rows_per_program, SIZE=SUMMED_LOSSES,
        )  # fmt: skip

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return the buffer `name`, which later calls use again; its content is undefined."""
        if name not in self._buffers or self._buffers[name].numel() < size:
            # Free the old one before allocating.
            self._buffers.pop(name, None)
            self._buffers[name] = torch.empty(size, dtype=dtype, device=self.device)
        return self._buffers[name][:size]

    def _gradient(self, batch: Batch, cells: EntryArrays) -> tuple[Tensor, Tensor]:
        """Return G of all blocks, (blocks, rows, columns), and the losses of their cells, (blocks, pairs, 2)."""
        p, n, layout, tile = self.parameters, len(batch.shards), self.layout, self.layout.tile

        # The first entry of every slot of each block.
        starts = self._buffer("starts", n * layout.slot_count, torch.int64)
        kernels.find_starts[triton.cdiv(layout.slot_count, SEARCHED_SLOTS), n](
            cells[0], batch.table, starts, layout.slot_count, batch.search_steps, BLOCK=SEARCHED_SLOTS
        )

        programs = math.prod(layout.tiles)
        pairs = programs if self._hopper is None else self._hopper.loss_pairs(layout.tiles)
        G = self._buffer("gradient", n * math.prod(layout.padded), p.mirror.dtype)
        losses = self._buffer("losses", n * pairs * 2, torch.float32)
        arrays = p.offsets, G, batch.table, starts, *cells[1:], losses
        if self._hopper is not None:
            self._hopper.launch(arrays, layout.tiles, shards=n)
        else:
            kernels.gradient[(n * programs,)](
                p.mirror, *arrays, *layout.tiles, *self._objective,
                P=layout.padded_dim, BM=tile.rows, BN=tile.columns, BK=tile.depth, CHUNK=CHUNK, GROUP=GROUP,
                STAGES=tile.stages, PRECISION=self._precision,
                num_warps=tile.warps, maxnreg=tile.registers, **self._flags,
            )  # fmt: skip

        return G.view(n, *layout.padded), losses.view(n, pairs, 2)

    def _find_operands(self, slots: Sequence[tuple[int, int]], run: slice) -> tuple[Tensor, Tensor]:
        """Return the vectors of X and of Y, for a run of the blocks in these slots: (blocks, padded size, width)."""
        pitch, mirror, width = self.layout.pitch, self.parameters.mirror, self.layout.padded_dim
        strides = pitch * width, width, 1
        x, y = (
            mirror.as_strided((run.stop - run.start, size, width), strides, slot * pitch * width)
            for size, slot in zip(self.layout.padded, slots[run.start], strict=True)
        )
        return x, y


def _make_hopper(
    mirror: Tensor, tile: KernelTile, objective: tuple[float, float, float, float]
) -> HopperGradient | None:
    """Return the gradient kernel for Hopper, or None if the plain kernel must be used."""
    is_hopper = mirror.device.type == "cuda" and torch.cuda.get_device_capability(mirror.device)[0] == 9
    if not is_hopper or not triton.__version__.startswith(KNOWN_TRITONS):
        return None

    from swivel.training.backends.triton import hopper

    return hopper.HopperGradient(mirror, objective) if hopper.fits(mirror, tile) else None
