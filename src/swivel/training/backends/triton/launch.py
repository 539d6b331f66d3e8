"""Kernel launches of a batch of steps: G, the products from G to the gradients of the vectors, and the optimizer.

`StepLauncher.run` changes the parameters on the device and writes the losses of each block. No function here waits for
the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from swivel.training.backends.base import BackendSettings, Step
from swivel.training.backends.triton import step_kernels as kernels
from swivel.training.backends.triton.device_cells import Copies, EntryArrays, ShardCells
from swivel.training.backends.triton.slot_layout import FIELDS, BlockShape, KernelTile, PanelShape, SlotLayout
from swivel.training.objective import Optimizer
from swivel.training.zero_sampling import step_fraction

if TYPE_CHECKING:
    from swivel.training.backends.triton.hopper import HopperGradient

Tensor = torch.Tensor
CHUNK = 256  # observed cells of a tile that are processed at a time
RARE_CHUNK = 8  # observed cells of a row or column that are processed at a time
ELEMENTS = 2048  # padded parameters per program of `update`
SUMMED_LOSSES = 1024  # losses that `update` adds at a time
SEARCHED_SLOTS = 128  # slots per program of `find_starts`
GATHERED_COLUMNS = 16  # columns per program of `gather`
GROUP = 8  # rows of tiles that are numbered together; see `kernels._find_tile`
KNOWN_TRITONS = ("3.6.", "3.7.")  # versions that compile the Hopper kernel; the names of Gluon still change


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks of one shape that are launched together, and what a launch needs besides learning rate and seeds.

    It is prepared once, and launched in every epoch that has the same blocks in the same slots.
    """

    blocks: Sequence[ShardCells]
    slots: Sequence[tuple[int, int]]  # of the blocks' parameters: X, the side of the cells' rows, and Y
    begins: Sequence[int]  # first entry of each block in the device arrays of the cells
    copies: Copies  # that bring the cells there
    table: Tensor  # of the kernels, (panels, blocks, fields); see `slot_layout.FIELDS`
    runs: Sequence[slice]  # `find_runs`
    operands: Sequence[Sequence[tuple[Tensor, Tensor]]]  # X and Y of the products, for each panel and run
    search_steps: int  # of a binary search among the entries of any block
    counts: NDArray[np.float64]  # (blocks, 2): `count_cells`

    @property
    def shape(self) -> BlockShape:
        """The shape of all blocks."""
        return self.blocks[0].shape

    def __len__(self) -> int:
        return len(self.blocks)


def count_cells(block: ShardCells) -> tuple[int, int]:
    """Return the observed cells of a block, and its zeros before the kernels subtract those of rare cells."""
    # A cell of a tile is one entry, and the kernel replaces its zero. A rare cell is two entries, and the weight of
    # its zero is in `totals` of `StepLauncher.run`. So entries = in_tiles + 2 (observed - in_tiles).
    in_tiles = 2 * block.observed - block.entries
    return block.observed, block.shape.rows * block.shape.columns - in_tiles


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
    """Device arrays of both sides; see `slot_layout.SlotLayout`.

    `mirror`, `offsets` and `weights` have more rows than the other arrays: the copies of sampled columns.
    """

    vectors: Tensor  # (rows, dim), float32
    state: Tensor  # (rows,), float32; of the optimizer
    mirror: Tensor  # (more rows, padded dim): copy of the vectors in the dtype of the products, padded with zeros
    offsets: Tensor  # (more rows,), in units of log 2
    weights: Tensor  # (more rows,): weights of the zeros of the sampled columns


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

        # Starts and lengths of the strides, with one unused stride at the end.
        self._strides = [self._put(np.append(values, 0.0)) for values in layout.strides]
        # Signs of the three losses of rare cells in `totals`: their loss as zeros is subtracted.
        self._signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64, device=self.device)
        self._buffers: dict[str, Tensor] = {}

    @property
    def kernel(self) -> str:
        """The gradient kernel that is used: "hopper" or "plain"."""
        return "plain" if self._hopper is None else "hopper"

    def prepare(
        self, blocks: Sequence[ShardCells], slots: Sequence[tuple[int, int]], begins: Sequence[int], copies: Copies
    ) -> Batch:
        """Return a batch of blocks of one shape; see `Batch`."""
        search_steps = max(block.entries for block in blocks).bit_length()
        counts = np.array([count_cells(block) for block in blocks], np.float64)
        table = self._put(self._make_table(blocks, slots, begins))
        runs = find_runs(slots)
        # Views are made once, not for every launch: where the host is the limit, they take 4 % of its time.
        operands = [[self._find_operands(slots, run, panel) for run in runs] for panel in blocks[0].shape.panels]
        return Batch(blocks, slots, begins, copies, table, runs, operands, search_steps, counts)

    def run(
        self, batch: Batch, steps: Sequence[Step], cells: EntryArrays, totals: Tensor, optimizer: Optimizer | None
    ) -> None:
        """Submit a batch and write the losses of its steps to `totals`; all steps have the same learning rate.

        Without an optimizer, the gradients replace the vectors.
        totals: (steps, 3) float64. Observed loss; unobserved loss in units of log 2; weight that
        observed cells had as zeros.
        """
        n, layout = len(batch), self.layout
        # The first entry of every slot of each block.
        starts = self._buffer("starts", n * layout.slot_count, torch.int64)
        kernels.find_starts[triton.cdiv(layout.slot_count, SEARCHED_SLOTS), n](
            cells[0], batch.table, starts, layout.slot_count, batch.search_steps, BLOCK=SEARCHED_SLOTS
        )

        # The settings of the optimizer are constants of the compiled kernel: a run has one optimizer, and the learning
        # rate, which changes in every epoch, is an argument.
        update = {
            "learning_rate": steps[0].learning_rate,
            "OPTIMIZER": optimizer,
            "BY_SUM": self.settings.config.decay_power != 0,
        }
        if batch.shape.is_sampled:
            self._run_sampled(batch, steps, cells, starts, totals, update)
            return

        # All zeros are computed: there is one panel.
        p, panel, width = self.parameters, batch.shape.panels[0], layout.padded_dim
        rows, columns = panel.padded
        G, losses = self._gradient(batch, panel, batch.table[0], cells, starts)
        gradients = self._buffer("gradients", n * (rows + columns) * width, torch.float32)
        row_gradients, column_gradients = torch.split(gradients, [n * rows * width, n * columns * width])
        row_gradients = row_gradients.view(n, rows, width)
        column_gradients = column_gradients.view(n, columns, width)
        multiply_back(batch, 0, G, row_gradients, column_gradients)

        # One launch for both sides, and for the sums of the losses.
        padded_width = triton.next_power_of_2(width)
        rows_per_program = max(1, ELEMENTS // padded_width)
        size = max(batch.shape.rows, batch.shape.columns)
        kernels.update[triton.cdiv(size, rows_per_program), n, 2](
            p.vectors, p.state, p.mirror, p.offsets, gradients, batch.table, losses, totals,
            n, rows, columns, losses.shape[1], *self._decay,
            D=layout.dim, P=width, PP=padded_width, ROWS=rows_per_program, SIZE=SUMMED_LOSSES, **update,
        )  # fmt: skip

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return the buffer `name`, which later calls use again; its content is undefined."""
        if name not in self._buffers or self._buffers[name].numel() < size:
            # Free the old one before allocating.
            self._buffers.pop(name, None)
            self._buffers[name] = torch.empty(size, dtype=dtype, device=self.device)
        return self._buffers[name][:size]

    def _make_table(
        self, blocks: Sequence[ShardCells], slots: Sequence[tuple[int, int]], begins: Sequence[int]
    ) -> NDArray[np.int64]:
        """Return the table of the kernels, (panels, blocks, fields); see `slot_layout.FIELDS`."""
        shape = blocks[0].shape
        table = np.zeros((len(shape.panels), len(blocks), len(FIELDS)), np.int64)
        number = np.arange(len(blocks))
        whole = np.array(slots).T * self.layout.pitch  # first rows of X and of Y blocks
        slot = number * self.layout.slot_count
        mirrored = np.array([block.mirrored for block in blocks])
        ends = np.array([begin + block.entries for begin, block in zip(begins, blocks, strict=True)])

        for line, panel in zip(table, shape.panels, strict=True):
            columns = whole[1]
            if panel.stride >= 0:
                columns = self._first_copy(len(blocks), panel) + number * panel.padded[1]
            values: tuple[Any, ...] = (
                whole[0] + panel.start, panel.rows, columns, panel.columns, slot + panel.slot, panel.slot_columns,
                begins, whole[1], panel.stride, slot + shape.row_slots, slot + shape.column_slots, ends, mirrored,
            )  # fmt: skip
            for field, value in enumerate(values):
                line[:, field] = value

        return table

    def _first_copy(self, count: int, panel: PanelShape) -> int:
        """Return the first row of the copies of the columns that a panel of `count` blocks samples."""
        # The copies are behind the blocks: panel by panel, and block by block within a panel.
        return len(self.parameters.vectors) + count * panel.copies_before

    def _put(self, array: NDArray[Any]) -> Tensor:
        """Return a small array on the device, without waiting for the device."""
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _gradient(
        self, batch: Batch, panel: PanelShape, table: Tensor, cells: EntryArrays, starts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return G of a panel for all steps, (steps, rows, columns), and the losses of its cells, (steps, pairs, 2)."""
        p, tile, n = self.parameters, self.layout.tile, len(batch)
        rows, columns = panel.padded
        programs = panel.tiles[0] * panel.tiles[1]
        pairs = programs if self._hopper is None else self._hopper.loss_pairs(panel.tiles)
        G = self._buffer("gradient", n * rows * columns, p.mirror.dtype)
        losses = self._buffer("losses", n * pairs * 2, torch.float32)

        arrays = p.offsets, p.weights, G, table, starts, *cells[1:], losses
        if self._hopper is not None:
            self._hopper.launch(arrays, panel.tiles, shards=n, is_weighted=panel.stride >= 0)
        else:
            kernels.gradient[(n * programs,)](
                p.mirror, *arrays, *panel.tiles, *self._objective,
                P=self.layout.padded_dim, BM=tile.rows, BN=tile.columns, BK=tile.depth, CHUNK=CHUNK, GROUP=GROUP,
                STAGES=tile.stages, WEIGHTED=panel.stride >= 0, PRECISION=self._precision,
                num_warps=tile.warps, maxnreg=tile.registers, **self._flags,
            )  # fmt: skip

        return G.view(n, rows, columns), losses.view(n, pairs, 2)

    def _find_operands(self, slots: Sequence[tuple[int, int]], run: slice, panel: PanelShape) -> tuple[Tensor, Tensor]:
        """Return the vectors of a panel's rows (X) and of its columns (Y), for a run of the blocks in these slots."""
        rows, columns = panel.padded
        n, pitch, mirror = run.stop - run.start, self.layout.pitch, self.parameters.mirror
        x_slot, y_slot = slots[run.start]
        x = view_blocks(mirror, x_slot * pitch + panel.start, n, rows, pitch)
        if panel.stride < 0:
            return x, view_blocks(mirror, y_slot * pitch, n, columns, pitch)
        return x, view_blocks(mirror, self._first_copy(len(slots), panel) + run.start * columns, n, columns, columns)

    def _run_sampled(
        self,
        batch: Batch,
        steps: Sequence[Step],
        cells: EntryArrays,
        starts: Tensor,
        totals: Tensor,
        update: dict[str, Any],
    ) -> None:
        """Submit a batch of steps that sample zeros; update: arguments of the kernel."""
        p, layout, n, shape = self.parameters, self.layout, len(batch), batch.shape
        pitch, width = layout.pitch, layout.padded_dim
        totals.zero_()

        # For every sampled panel, step and column: its index among the sampled ones (or -1) and the weight of zeros.
        size = len(shape.panels) - 1, n, pitch
        places = self._buffer("places", math.prod(size), torch.int32).fill_(-1).view(size)
        zero_weights = self._buffer("zero_weights", math.prod(size), torch.float32).fill_(0).view(size)

        # The gradients of rows and of columns, for every panel that has rows.
        parts: list[tuple[Tensor, ...]] = []
        for number, panel in enumerate(shape.panels):
            if panel.stride >= 0:
                fractions = np.array([step_fraction(step.seed, number - 1) for step in steps])
                # Without fused multiply-add, start + fraction * length rounds as in NumPy: the same columns as there.
                kernels.gather[triton.cdiv(panel.padded[1], GATHERED_COLUMNS), n](
                    p.mirror, p.offsets, p.weights, places[number - 1], zero_weights[number - 1], batch.table[number],
                    *self._strides, self._put(fractions), pitch, panel.padded[1], P=width,
                    PP=triton.next_power_of_2(width), BN=GATHERED_COLUMNS, enable_fp_fusion=False,
                )  # fmt: skip
            if not panel.rows:
                continue

            G, panel_losses = self._gradient(batch, panel, batch.table[number], cells, starts)
            totals[:, :2] += panel_losses.sum(1, dtype=torch.float64)
            part = tuple(torch.empty(n, size, width, device=self.device) for size in panel.padded)
            multiply_back(batch, number, G, *part)
            parts.append(part)
            del G  # the next panel may need a larger buffer

        # The kernel takes three parts. It does not use those of common rows, or of a third panel, if there are none.
        has_common = shape.panels[0].rows > 0
        three = [*(parts if has_common else [parts[0], *parts]), parts[-1]][:3]
        second = shape.panels[2].start if len(shape.panels) > 2 else shape.rows
        whole, rest = _two_powers(width)

        # Rows before columns: both read the old vectors in the mirror, so the rows are copied there only at the end.
        losses = self._buffer("rare losses", n * pitch * 3, torch.float32).view(n, -1, 3)
        sizes = shape.rows, shape.columns
        for side in (0, 1):
            kernels.update_sampled[(sizes[side], n)](
                p.vectors, p.state, p.mirror, p.offsets, places, zero_weights, batch.table[0],
                *(part[side] for part in three), *(part[side].shape[1] for part in three),
                starts, *cells[1:], losses, pitch, n, sizes[1 - side], shape.panels[0].rows, second, layout.dim,
                *self._decay, *self._objective, SIDE=side, PANELS=len(shape.panels) - 1,
                HAS_COMMON=has_common, P=width, P1=whole, P2=rest, CHUNK=RARE_CHUNK,
                num_warps=1, **update, **self._flags,
            )  # fmt: skip

        for run in batch.runs:
            where = batch.slots[run.start][0] * pitch, run.stop - run.start, shape.rows, pitch
            view_blocks(p.mirror, *where)[..., : layout.dim].copy_(view_blocks(p.vectors, *where))

        rare = losses[:, : shape.rows].sum(1, dtype=torch.float64)
        totals += rare * self._signs


def _make_hopper(
    mirror: Tensor, tile: KernelTile, objective: tuple[float, float, float, float]
) -> HopperGradient | None:
    """Return the gradient kernel for Hopper, or None if the plain kernel must be used."""
    is_hopper = mirror.device.type == "cuda" and torch.cuda.get_device_capability(mirror.device)[0] == 9
    if not is_hopper or not triton.__version__.startswith(KNOWN_TRITONS):
        return None

    from swivel.training.backends.triton import hopper

    return hopper.HopperGradient(mirror, objective) if hopper.fits(mirror, tile) else None


def _two_powers(width: int) -> tuple[int, int]:
    """Return two powers of two whose sum is at least `width`, with as little padding as possible.

    >>> _two_powers(320), _two_powers(64), _two_powers(448)
    ((256, 64), (32, 32), (256, 256))
    """
    first = triton.next_power_of_2(width) // 2
    return first, triton.next_power_of_2(width - first)


def view_blocks(array: Tensor, first: int, count: int, rows: int, pitch: int) -> Tensor:
    """Return a view of some rows of an array: `count` blocks of `rows` rows, `pitch` rows apart."""
    width = array.shape[1]
    return array.as_strided((count, rows, width), (pitch * width, width, 1), first * width)


def multiply_back(batch: Batch, panel: int, G: Tensor, row_gradients: Tensor, column_gradients: Tensor) -> None:
    """Write the products G Y (of a panel's rows X) and G^T X (of its columns Y), run by run."""
    for run, (x, y) in zip(batch.runs, batch.operands[panel], strict=True):
        _multiply(G[run], y, row_gradients[run])
        _multiply(G[run].transpose(1, 2), x, column_gradients[run])


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write a batch of products a b to `out`, accumulated and returned in float32."""
    if a.dtype != torch.float32 and a.device.type == "cuda":
        torch.bmm(a, b, out_dtype=torch.float32, out=out)
    else:
        torch.bmm(a.float(), b.float(), out=out)
