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
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from swivel.training.backends.base import BackendSettings, Step
from swivel.training.backends.triton import step_kernels as kernels
from swivel.training.backends.triton.cell_feed import Copies, EntryArrays
from swivel.training.backends.triton.device_cells import ShardCells
from swivel.training.backends.triton.slot_layout import FIELDS, BlockShape, KernelTile, PanelShape, Shapes, SlotLayout
from swivel.training.objective import Optimizer
from swivel.training.zero_sampling import step_fraction

if TYPE_CHECKING:
    from swivel.training.backends.triton.hopper import HopperGradient

Tensor = torch.Tensor
_Product = tuple[Tensor, Tensor, Tensor]  # operands a and b, and the result; views of buffers
CHUNK = 256  # observed cells of a tile that are processed at a time
RARE_CHUNK = 8  # observed cells of a row or column that are processed at a time
ELEMENTS = 1024  # parameters per program of `update` and `refresh`
SEARCHED_SLOTS = 128  # slots per program of `find_starts`
GATHERED_COLUMNS = 16  # columns per program of `gather`
SUMMED_PAIRS = 1024  # losses that a program of `add_losses` adds at a time
GROUP = 8  # rows of tiles that are numbered together; see `kernels._find_tile`
KNOWN_TRITONS = ("3.6.", "3.7.")  # versions that compile the Hopper kernel; the names of Gluon still change
# Whether torch can return a product in another dtype than that of the operands.
HAS_OUT_DTYPE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block with the positions of its cells and of its parameters on the device."""

    cells: ShardCells
    shape: BlockShape
    slots: tuple[int, int]  # slots of its parameters in the joint array: X, the side of the cells' rows, and Y

    def count_cells(self) -> tuple[int, int]:
        """Return its observed cells, and its zeros before the kernels subtract those of rare cells."""
        # A cell of a tile is one entry, and the kernel replaces its zero. A rare cell is two entries, and the weight of
        # its zero is in `totals` of `StepLauncher.run`. So entries = in_tiles + 2 (observed - in_tiles).
        observed = self.cells.observed
        in_tiles = 2 * observed - self.cells.entries
        return observed, self.shape.rows * self.shape.columns - in_tiles


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Batch:
    """Blocks of one shape that are launched together, and what a launch needs besides learning rate and seeds.

    It is prepared once, and launched in every epoch that has the same blocks in the same slots.
    """

    blocks: Sequence[PlacedBlock]
    begins: Sequence[int]  # first entry of each block in the device arrays of the cells
    copies: Copies  # that bring the cells there
    slot_count: int  # slots of every block in these arrays
    table: Tensor  # of the kernels, (panels, blocks, fields); see `slot_layout.FIELDS`
    runs: Sequence[slice]
    search_steps: int  # of a binary search among the entries of any block
    counts: NDArray[np.float64]  # (blocks, 2): `PlacedBlock.count_cells`

    @property
    def shape(self) -> BlockShape:
        """The shape of all blocks."""
        return self.blocks[0].shape

    def __len__(self) -> int:
        return len(self.blocks)


def find_runs(blocks: Sequence[PlacedBlock]) -> list[slice]:
    """Return maximal runs of adjacent blocks; a batched product needs equal distances in memory on both sides."""
    edges = [0]
    for number, (before, after) in enumerate(pairwise(blocks), 1):
        i, j = before.slots
        if after.slots != (i + 1, j + 1):
            edges.append(number)
    edges.append(len(blocks))

    return [slice(start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Device arrays of both sides; see `slot_layout.SlotLayout`.

    `mirror`, `offsets` and `weights` have more rows than the other arrays: the copies of sampled columns.
    """

    vectors: Tensor  # (rows, dim), float32
    state: Tensor  # (rows, dim), float32; of the optimizer
    mirror: Tensor  # (more rows, padded dim): copy of the vectors in the dtype of the products, padded with zeros
    offsets: Tensor  # (more rows,), in units of log 2
    weights: Tensor  # (more rows,): weights of the zeros of the sampled columns


class StepLauncher:
    """Launches batches of steps over one set of parameters."""

    def __init__(self, settings: BackendSettings, places: SlotLayout, shapes: Shapes, parameters: Parameters) -> None:
        self.settings = settings
        self.places = places
        self.shapes = shapes
        self.parameters = parameters
        self.device = parameters.vectors.device
        is_cuda = self.device.type == "cuda"

        # unseen, base, scale and power of the kernels.
        objective = settings.objective
        self._objective = (
            math.log2(objective.unseen),
            objective.confidence_base,
            objective.confidence_scale,
            objective.confidence_power,
        )

        # weight_decay, decay_power, unit0 and unit1 of the kernels.
        units = (offset / math.log(2) for offset in settings.unit_offsets)
        self._decay = settings.weight_decay, settings.decay_power, *units

        # The hardware approximations of exp2 and log2 are less accurate than float32, but the error is negligible if
        # the operands have 16 bits.
        is_fast = is_cuda and parameters.mirror.dtype != torch.float32
        self._flags = {"SQRT": objective.confidence_power == 0.5, "FAST": is_fast}

        tile = shapes.tile
        self._launch = {"num_warps": tile.warps, "maxnreg": tile.registers} if is_cuda else {}
        self._one_warp = {"num_warps": 1} if is_cuda else {}
        # Without fused multiply-add, start + fraction * length rounds as in NumPy: the same columns as on the host.
        self._no_fusion = {"enable_fp_fusion": False} if is_cuda else {}
        self._precision = "ieee" if parameters.mirror.dtype == torch.float32 else "tf32"
        self._hopper = _make_hopper(parameters.mirror, tile, self._objective)

        self._strides = [torch.zeros(0), torch.zeros(0)]  # starts and lengths, on the device
        self._nothing = torch.zeros(1, 1, places.padded_dim, device=self.device)  # the gradient of a panel without rows
        # Signs of the three losses of rare cells in `totals`: their loss as zeros is subtracted.
        self._signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64, device=self.device)
        self._buffers: dict[str, Tensor] = {}
        self._products: WeakKeyDictionary[Batch, list[_Product]] = WeakKeyDictionary()

    @property
    def kernel(self) -> str:
        """The gradient kernel that is used: "hopper" or "plain"."""
        return "plain" if self._hopper is None else "hopper"

    def prepare(self, blocks: Sequence[PlacedBlock], begins: Sequence[int], copies: Copies, slot_count: int) -> Batch:
        """Return a batch of blocks of one shape; see `Batch`."""
        steps = max(block.cells.entries for block in blocks).bit_length()
        counts = np.array([block.count_cells() for block in blocks], np.float64)
        table = self._put(self._make_table(blocks, begins, slot_count))
        return Batch(blocks, begins, copies, slot_count, table, find_runs(blocks), steps, counts)

    def run(
        self, batch: Batch, steps: Sequence[Step], cells: EntryArrays, totals: Tensor, optimizer: Optimizer | None
    ) -> None:
        """Submit a batch and write the losses of its steps to `totals`; all steps have the same learning rate.

        Without an optimizer, the gradients replace the state of the parameters, and the vectors do not change.
        totals: (steps, 3) float64. Observed loss; unobserved loss in units of log 2; weight that
        observed cells had as zeros.
        """
        starts = self._find_starts(batch, cells)
        # The settings of the optimizer are constants of the compiled kernel: a run has one optimizer, and the learning
        # rate, which changes in every epoch, is an argument.
        update = {
            "learning_rate": steps[0].learning_rate,
            "OPTIMIZER": optimizer,
            "BY_SUM": self.settings.decay_power != 0,
        }
        if batch.shape.is_sampled:
            self._run_sampled(batch, steps, cells, starts, totals, update)
            return

        # All zeros are computed: there is one panel.
        panel = batch.shape.panels[0]
        G, losses = self._gradient(batch, panel, batch.table[0], cells, starts)
        padded = panel.padded(self.shapes.tile)
        gradients = self._buffer("gradients", len(batch) * sum(padded) * self.places.padded_dim, torch.float32)
        for a, b, out in self._find_products(batch, panel, G, gradients):
            _multiply(a, b, out)

        # One launch for both sides, and for the sums of the losses.
        p, places = self.parameters, self.places
        size = max(batch.shape.rows, batch.shape.columns)
        kernels.update[triton.cdiv(size * places.dim, ELEMENTS), len(batch), 2](
            p.vectors, p.state, p.mirror, p.offsets, gradients, batch.table, losses, totals,
            len(batch), *padded, losses.shape[1], *self._decay,
            D=places.dim, P=places.padded_dim, SIZE=ELEMENTS, **update,
        )  # fmt: skip

    def _find_products(self, batch: Batch, panel: PanelShape, G: Tensor, gradients: Tensor) -> list[_Product]:
        """Return the products G Y (of the rows) and G^T X of all runs; they are made once for each batch."""
        if batch not in self._products:
            n, rows, columns = G.shape
            row_gradients, column_gradients = torch.split(
                gradients.view(-1, self.places.padded_dim), [n * rows, n * columns]
            )
            row_gradients = row_gradients.view(n, rows, -1)
            column_gradients = column_gradients.view(n, columns, -1)

            products: list[_Product] = []
            for run in batch.runs:
                x, y = self._operands(batch, run, panel)
                products.append((G[run], y, row_gradients[run]))
                products.append((G[run].transpose(1, 2), x, column_gradients[run]))
            self._products[batch] = products
        return self._products[batch]

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return the buffer `name`, which later calls use again; its content is undefined."""
        if name not in self._buffers or self._buffers[name].numel() < size:
            # Free the old one before allocating.
            self._buffers.pop(name, None)
            self._products.clear()
            self._buffers[name] = torch.empty(size, dtype=dtype, device=self.device)
        return self._buffers[name][:size]

    def _make_table(self, blocks: Sequence[PlacedBlock], begins: Sequence[int], slot_count: int) -> NDArray[np.int64]:
        """Return the table of the kernels, (panels, blocks, fields); see `slot_layout.FIELDS`."""
        shape = blocks[0].shape
        table = np.zeros((len(shape.panels), len(blocks), len(FIELDS)), np.int64)
        number = np.arange(len(blocks))
        whole = np.array([each.slots for each in blocks]).T * self.places.pitch  # first rows of X and of Y blocks
        slot = number * slot_count
        mirrored = np.array([each.cells.mirrored for each in blocks])
        ends = np.array([begin + each.cells.entries for begin, each in zip(begins, blocks, strict=True)])

        for line, panel in zip(table, shape.panels, strict=True):
            columns = whole[1]
            if panel.stride >= 0:
                columns = self._first_copy(blocks, panel) + number * panel.padded(self.shapes.tile)[1]
            values: tuple[Any, ...] = (
                whole[0] + panel.start, panel.rows, columns, panel.columns, slot + panel.slot, panel.slot_columns,
                begins, whole[1], panel.stride, panel.start, shape.rows, shape.columns,
                slot + shape.row_slots, slot + shape.column_slots, ends, mirrored,
            )  # fmt: skip
            for field, value in enumerate(values):
                line[:, field] = value

        return table

    def _find_starts(self, batch: Batch, cells: EntryArrays) -> Tensor:
        """Return the first entry of every slot of each block."""
        starts = self._buffer("starts", len(batch) * batch.slot_count, torch.int64)
        grid = triton.cdiv(batch.slot_count, SEARCHED_SLOTS), len(batch)
        kernels.find_starts[grid](
            cells[0], batch.table, starts, batch.slot_count, batch.search_steps, BLOCK=SEARCHED_SLOTS
        )
        return starts

    def _first_copy(self, blocks: Sequence[PlacedBlock], panel: PanelShape) -> int:
        """Return the first row of the copies of the columns that a panel samples."""
        # The copies are behind the blocks: panel by panel, and block by block within a panel.
        panels = blocks[0].shape.panels
        before = [b.padded(self.shapes.tile)[1] for b in panels if b.stride >= 0 and b.start < panel.start]
        return self.places.rows + len(blocks) * sum(before)

    def _put(self, array: NDArray[Any]) -> Tensor:
        """Return a small array on the device, without waiting for the device."""
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _gradient(
        self, batch: Batch, panel: PanelShape, table: Tensor, cells: EntryArrays, starts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return G of a panel for all steps, (steps, rows, columns), and the losses of its cells, (steps, pairs, 2)."""
        p, tile, n = self.parameters, self.shapes.tile, len(batch)
        rows, columns = panel.padded(tile)
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
                P=self.places.padded_dim, BM=tile.rows, BN=tile.columns, BK=tile.depth, CHUNK=CHUNK, GROUP=GROUP,
                STAGES=tile.stages, WEIGHTED=panel.stride >= 0, PRECISION=self._precision,
                **self._flags, **self._launch,
            )  # fmt: skip

        return G.view(n, rows, columns), losses.view(n, pairs, 2)

    def _operands(self, batch: Batch, run: slice, panel: PanelShape) -> tuple[Tensor, Tensor]:
        """Return the vectors of a panel's rows (X) and of its columns (Y), for a run of blocks."""
        rows, columns = panel.padded(self.shapes.tile)
        n, pitch = run.stop - run.start, self.places.pitch
        x_slot, y_slot = batch.blocks[run.start].slots

        x = self._blocks(x_slot * pitch + panel.start, n, rows, pitch)
        if panel.stride < 0:
            return x, self._blocks(y_slot * pitch, n, columns, pitch)
        return x, self._blocks(self._first_copy(batch.blocks, panel) + run.start * columns, n, columns, columns)

    def _blocks(self, first: int, count: int, rows: int, pitch: int) -> Tensor:
        """Return a view of the mirror: `count` blocks of `rows` rows, `pitch` rows apart."""
        mirror, width = self.parameters.mirror, self.places.padded_dim
        return mirror.as_strided((count, rows, width), (pitch * width, width, 1), first * width)

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
        n = len(batch)
        shape = batch.shape
        totals.zero_()

        # For every sampled panel, step and column: its index among the sampled ones (or -1) and the weight of zeros.
        size = len(shape.panels) - 1, n, self.places.pitch
        places = self._buffer("places", math.prod(size), torch.int32).fill_(-1).view(size)
        zero_weights = self._buffer("zero_weights", math.prod(size), torch.float32).fill_(0).view(size)

        # The gradients of rows and columns, for every run and panel.
        products: list[list[tuple[Tensor, Tensor]]] = [[] for _ in batch.runs]
        for number, panel in enumerate(shape.panels):
            if panel.stride >= 0:
                fractions = np.array([step_fraction(step.seed, number - 1) for step in steps])
                self._gather(batch, number, self._put(fractions), (places[number - 1], zero_weights[number - 1]))

            if not panel.rows:
                for parts in products:
                    parts.append((self._nothing, self._nothing))
                continue

            G, panel_losses = self._gradient(batch, panel, batch.table[number], cells, starts)
            kernels.add_losses[(n,)](panel_losses, totals, panel_losses.shape[1], BLOCK=SUMMED_PAIRS)
            for parts, run in zip(products, batch.runs, strict=True):
                x, y = self._operands(batch, run, panel)
                parts.append((_multiply(G[run], y), _multiply(G[run].transpose(1, 2), x)))
            del G  # the next panel may need a larger buffer

        # Rows before columns: both read the old vectors in the mirror, so the rows are copied there only at the end.
        losses = self._buffer("rare losses", n * self.places.pitch * 3, torch.float32).view(n, -1, 3)
        arrays = places, zero_weights, starts, losses
        for run, parts in zip(batch.runs, products, strict=True):
            for side in (0, 1):
                self._update_sampled(batch, run, cells, arrays, [p[side] for p in parts], side, update)

        rare = losses[:, : shape.rows].sum(1, dtype=torch.float64)
        totals += rare * self._signs

        p = self.parameters
        grid = triton.cdiv(shape.rows * self.places.dim, ELEMENTS), n
        kernels.refresh[grid](
            p.vectors, p.mirror, batch.table, 0, shape.rows, D=self.places.dim, P=self.places.padded_dim, SIZE=ELEMENTS
        )  # fmt: skip

    def _gather(self, batch: Batch, number: int, fractions: Tensor, places: tuple[Tensor, Tensor]) -> None:
        """Copy the columns that a panel samples in this step.

        fractions: of each step, see `step_fraction`. places: rows of `places` and `zero_weights` of the panel.
        """
        p, panel = self.parameters, batch.shape.panels[number]

        # Starts and lengths of the strides, with one unused stride at the end; a new shape adds more.
        if len(self._strides[0]) != len(self.shapes.starts) + 1:
            self._strides = [self._put(np.append(values, 0.0)) for values in (self.shapes.starts, self.shapes.lengths)]

        padded = panel.padded(self.shapes.tile)[1]
        kernels.gather[(triton.cdiv(padded, GATHERED_COLUMNS), len(batch))](
            p.mirror, p.offsets, p.weights, *places, batch.table[number], *self._strides, fractions,
            self.places.pitch, padded, P=self.places.padded_dim,
            PP=triton.next_power_of_2(self.places.padded_dim), BN=GATHERED_COLUMNS, **self._no_fusion,
        )  # fmt: skip

    def _update_sampled(
        self,
        batch: Batch,
        run: slice,
        cells: EntryArrays,
        arrays: tuple[Tensor, ...],
        parts: list[Tensor],
        side: int,
        update: dict[str, Any],
    ) -> None:
        """Update one side of a run of steps that sample zeros; parts: the side's gradients of each panel."""
        p, shape, pitch = self.parameters, batch.shape, self.places.pitch
        places, zero_weights, starts, losses = arrays
        size, others = (shape.columns, shape.rows) if side else (shape.rows, shape.columns)
        first = batch.blocks[run.start].slots

        # The kernel takes three parts; with two panels the third is not used.
        three = [*parts, parts[-1]][:3]
        second = shape.panels[2].start if len(shape.panels) > 2 else shape.rows
        width = self.places.padded_dim
        whole, rest = _two_powers(width)

        kernels.update_sampled[(size, run.stop - run.start)](
            p.vectors, p.state, p.mirror, p.offsets, places[:, run], zero_weights[:, run],
            batch.table[0, run], *three, *(part.shape[1] for part in three),
            starts, *cells[1:], losses[run], first[side] * pitch,
            first[1 - side] * pitch, pitch, len(batch), others, shape.panels[0].rows, second, self.places.dim,
            *self._decay, *self._objective, SIDE=side, PANELS=len(shape.panels) - 1,
            HAS_COMMON=shape.panels[0].rows > 0, P=width, P1=whole, P2=rest, CHUNK=RARE_CHUNK,
            **update, **self._flags, **self._one_warp,
        )  # fmt: skip


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


def _multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a batch of products a b, accumulated and returned in float32; written to `out` if it is given.

    On a GPU, versions of torch before 2.8 round the result to the dtype of the operands.
    """
    if a.dtype != torch.float32 and a.device.type == "cuda":
        if HAS_OUT_DTYPE:
            return torch.bmm(a, b, out_dtype=torch.float32, out=out)
        product = torch.bmm(a, b)
        return product.float() if out is None else out.copy_(product)
    return torch.bmm(a.float(), b.float(), out=out)
