"""The gradient kernel for Hopper (compute capability 9): what `kernels.gradient` does, by specialised warps.

Receives and hands on the same arrays as `kernels.gradient`, for tiles of 64 x 128 and operands of 16 bits; only the
losses lie otherwise (`HopperGradient.loss_pairs`). It knows nothing of bands or batches beyond their table.

One program stays on each multiprocessor and takes *items*: 128 rows of a shard and a part of its columns. One warp
fetches vectors into a ring in shared memory: the item's own rows, then its columns, 128 at a time. Two groups of four
warps (consumers) keep 64 rows each in registers and take every tile of columns in turn: the tensor cores work for one
while the other is at its logarithms. Legend as in `kernels`; e counts what went through the ring, n tiles.
"""
# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from swivel.training.backends.triton import layout as plan
from swivel.training.backends.triton.hopper_tile import (
    FIRST_CHUNK,
    LINE,
    LOG2E,
    MARGINS,
    MMA,
    WORD,
    barrier,
    bring_in,
    first_cells,
    order,
    push,
    read_address,
    spread,
    sum_pairs,
    write_addresses,
    write_tile,
)
from swivel.training.backends.triton.layout import KernelTile

Tensor = torch.Tensor
LONGEST = 320  # numbers of a vector: a consumer's 64 rows take 80 registers of each thread then
SHARED_BYTES = 160 << 10  # of the ring
ROWS = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
COLUMNS = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=5)
COLUMNS_SHAPE = (4, 4, 4, 2, 64)  # 128 columns as [32s, j, q, b]; see `hopper_tile.PAIRS`

FIELDS = gl.constexpr(len(plan.FIELDS))
NEVER = gl.constexpr(1e30)
ONE_WARP = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))


@gluon.jit
def _locate(item, items_m, tiles_n, SPLIT: gl.constexpr):
    """Return shard, pair of row tiles, and tiles of columns of an item."""
    shard = item // (items_m * SPLIT)
    rest = item - shard * (items_m * SPLIT)
    each = (tiles_n + SPLIT - 1) // SPLIT
    first = gl.minimum((rest % SPLIT) * each, tiles_n)
    return shard, rest // SPLIT, first, gl.minimum(first + each, tiles_n)


@gluon.jit
def _fetch(source, at, ring, barrier, slot, CHUNKS: gl.constexpr):
    """Ask for 128 vectors; `at` is where they begin."""
    mbarrier.announce(barrier, CHUNKS * 128 * 64 * 2)
    for k in gl.static_range(CHUNKS):
        place = ring.index(slot * CHUNKS + k)._reinterpret(source.dtype, source.block_shape, source.layout)
        tma.async_copy_global_to_shared(source, at + [k * 64], barrier, place)  # noqa: RUF005


@gluon.jit
def _produce(
    rows, columns, table, counter, shared, sizes, CHUNKS: gl.constexpr, SLOTS: gl.constexpr, SPLIT: gl.constexpr
):
    """Fetch rows and columns of one item after the other. With its rows goes word of the item that follows."""
    ring, following, _, _, full, empty, _, _ = shared
    items, _, items_m, tiles_n = sizes
    e, item = 0, gl.program_id(0)
    while item < items:
        shard, tm, first, stop = _locate(item, items_m, tiles_n, SPLIT)
        row = gl.load(table + shard * FIELDS).to(gl.int32) + tm * 128
        column = gl.load(table + shard * FIELDS + 2).to(gl.int32)
        item = gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")
        for t in range(first - 1, stop):
            slot = e % SLOTS
            mbarrier.wait(empty.index(slot), ((e // SLOTS) & 1) ^ 1)
            if t < first:
                following.index(slot).store(gl.full([1], item, gl.int32, ONE_WARP))
                _fetch(rows, [row], ring, full.index(slot), slot, CHUNKS)
            else:
                _fetch(columns, [column // 32 + t * 4, 0, 0, 0], ring, full.index(slot), slot, CHUNKS)
            e += 1
    # The last to leave sets the counter back for the next launch.
    if gl.atomic_add(counter + 1, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        gl.store(counter, 0)
        gl.store(counter + 1, 0)


@gluon.jit
def _take_rows(shared, e, C: gl.constexpr, CHUNKS: gl.constexpr, SLOTS: gl.constexpr):
    """Return a consumer's rows as operands of its products, and the item that follows."""
    ring, following, _, _, full, empty, _, _ = shared
    slot = e % SLOTS
    mbarrier.wait(full.index(slot), (e // SLOTS) & 1)
    operand: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    x = (ring.index(slot * CHUNKS).slice(C * 64, 64).load(operand),)
    for k in gl.static_range(1, CHUNKS):
        x = x + (ring.index(slot * CHUNKS + k).slice(C * 64, 64).load(operand),)  # type: ignore[assignment]  # noqa: RUF005
    item = gl.max(following.index(slot).load(LINE), 0)
    fence_async_shared()
    barrier()
    mbarrier.arrive(empty.index(slot), count=1)
    return x, item


@gluon.jit
def _take_product(x, shared, e, n, zero, C: gl.constexpr, CHUNKS: gl.constexpr, SLOTS: gl.constexpr):
    """Return the product with the next tile of columns, when it is this consumer's turn and the tile is there."""
    ring, _, _, _, full, empty, turn, _ = shared
    slot = e % SLOTS
    mbarrier.wait(full.index(slot), (e // SLOTS) & 1)
    mbarrier.wait(turn.index(C), (n & 1) ^ (1 - C))
    product = warpgroup_mma(x[0], ring.index(slot * CHUNKS).permute((1, 0)), zero, use_acc=False, is_async=True)
    for k in gl.static_range(1, CHUNKS):
        product = warpgroup_mma(x[k], ring.index(slot * CHUNKS + k).permute((1, 0)), product, is_async=True)
    product = warpgroup_mma_wait(0, deps=[product])
    # Also what lets the margins of the last tile be written over: all threads are done with them.
    barrier()
    mbarrier.arrive(turn.index(1 - C), count=1)
    mbarrier.arrive(empty.index(slot), count=1)
    return product


@gluon.jit
def _consume_item(
    arrays, shared, sizes, objective, item, e, n,
    C: gl.constexpr, CHUNKS: gl.constexpr, SLOTS: gl.constexpr, SPLIT: gl.constexpr, CHUNK: gl.constexpr,
    WEIGHTED: gl.constexpr, HALF: gl.constexpr, CAP: gl.constexpr, PUSH: gl.constexpr,
):  # fmt: skip
    """Write G for a consumer's rows of an item, and what its cells lose; return the item that follows, e and n."""
    offsets, weights, G, table, starts, positions, counts, losses = arrays
    _, tiles_m, items_m, tiles_n = sizes
    shard, tm, first, last = _locate(item, items_m, tiles_n, SPLIT)
    entry = table + shard * FIELDS
    x0, height, y0, width = gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), gl.load(entry + 3)
    slot_columns, cell0 = gl.load(entry + 5), gl.load(entry + 6)
    is_there = tm * 2 + C < tiles_m
    starts += gl.load(entry + 4) + (tm * 2 + C) * slot_columns
    start = gl.load(starts + first, mask=is_there & (first < slot_columns), other=0)
    stop = gl.load(starts + first + 1, mask=is_there & (first < slot_columns), other=0)
    i = tm * 128 + C * 64 + gl.arange(0, 64, gl.SliceLayout(1, MMA))
    # Beyond the edge a cell is as unobserved as can be: its gradient is zero.
    row_offset = gl.load(offsets + x0 + i, mask=i < height, other=NEVER) + objective[0]
    column = first * 128 + order(gl.arange(0, 128, LINE))
    column_offset = gl.load(offsets + y0 + column, mask=column < width, other=NEVER)
    pitch = tiles_n * 128
    tile_g = G + (shard.to(gl.int64) * (tiles_m * 64) + tm * 128 + C * 64) * pitch + first * 128
    x, following = _take_rows(shared, e, C, CHUNKS, SLOTS)
    zero = gl.zeros((64, 128), gl.float32, MMA)
    half, _ = gl.split(gl.reshape(zero, (64, 64, 2)))
    hinges = sum_pairs(half)
    observed, taken_back = gl.zeros((FIRST_CHUNK,), gl.float32, LINE), gl.zeros((FIRST_CHUNK,), gl.float32, LINE)
    for t in range(first, last):
        e += 1
        # What comes after the product is asked for before it; offsets and starts even a tile ahead.
        weight = gl.load(weights + y0 + column, mask=column < width, other=0.0) if WEIGHTED else column_offset
        offset = spread(column_offset, shared[7])
        column += 128
        column_offset = gl.load(offsets + y0 + column, mask=column < width, other=NEVER)
        cells = first_cells(positions + (start + cell0), counts + (start + cell0), (stop - start).to(gl.int32))
        start = stop
        stop = gl.load(starts + t + 2, mask=is_there & (t + 1 < slot_columns), other=stop)
        m = _take_product(x, shared, e, n, zero, C, CHUNKS, SLOTS) * LOG2E - (row_offset[:, None] + offset[None, :])
        n += 1
        if cells[2] > 0:
            by_column = gl.permute(gl.reshape(m, (64, 4, 4, 4, 2)), (1, 3, 0, 2, 4))
            shared[2].store(gl.reshape(by_column, (16, 64, 8)))
        g, more = push(m, weight, shared[7], WEIGHTED, HALF, PUSH)
        hinges += more
        write_tile(tile_g, g, pitch, is_there)
        if cells[2] > 0:
            observed, taken_back = bring_in(
                cells, shared[3], tile_g, pitch, objective, observed, taken_back, CHUNK, CAP, PUSH
            )  # fmt: skip
        tile_g += 128
    gl.store(losses + (item * 2 + C) * 2, gl.sum(observed))
    gl.store(losses + (item * 2 + C) * 2 + 1, gl.sum(gl.sum(hinges, axis=1), axis=0) - gl.sum(taken_back))
    return following, e + 1, n


@gluon.jit
def _consume(
    arrays, shared, sizes, objective,
    C: gl.constexpr, CHUNKS: gl.constexpr, SLOTS: gl.constexpr, SPLIT: gl.constexpr, CHUNK: gl.constexpr,
    WEIGHTED: gl.constexpr, HALF: gl.constexpr, CAP: gl.constexpr, PUSH: gl.constexpr,
):  # fmt: skip
    e, n, item = 0, 0, gl.program_id(0)
    while item < sizes[0]:
        item, e, n = _consume_item(
            arrays, shared, sizes, objective, item, e, n,
            C, CHUNKS, SLOTS, SPLIT, CHUNK, WEIGHTED, HALF, CAP, PUSH,
        )  # fmt: skip


# Compiled once, not for every alignment of a piece and every multiple of 16.
@gluon.jit(
    do_not_specialize=["items", "tiles_m", "tiles_n"],
    do_not_specialize_on_alignment=["table", "starts", "positions", "counts", "losses"],
)
def gradient(
    rows, columns, offsets, weights, G, table, starts, positions, counts, losses, counter,
    items, tiles_m, tiles_n, unseen, base, scale, power,
    CHUNKS: gl.constexpr, SLOTS: gl.constexpr, SPLIT: gl.constexpr, CHUNK: gl.constexpr, REGISTERS: gl.constexpr,
    WEIGHTED: gl.constexpr, HALF: gl.constexpr, CAP: gl.constexpr, PUSH: gl.constexpr,
):  # fmt: skip
    """Write G for all tiles of every shard of a band, and what their cells lose."""
    margins0 = gl.allocate_shared_memory(gl.float32, [16, 64, 8], MARGINS)
    margins1 = gl.allocate_shared_memory(gl.float32, [16, 64, 8], MARGINS)
    write_addresses()
    address0 = read_address(margins0)
    address1 = read_address(margins1)
    ring = gl.allocate_shared_memory(rows.dtype, [SLOTS * CHUNKS, 128, 64], rows.layout)
    lines = gl.allocate_shared_memory(gl.float32, [2, 128], WORD)
    following = gl.allocate_shared_memory(gl.int32, [SLOTS, 1], WORD)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(SLOTS):
        mbarrier.init(full.index(k), count=1)
        mbarrier.init(empty.index(k), count=2)
    for k in gl.static_range(2):
        mbarrier.init(turn.index(k), count=1)
    fence_async_shared()
    items_m = (tiles_m + 1) // 2
    arrays = (offsets, weights, G, table, starts, positions, counts, losses)
    shared0 = (ring, following, margins0, address0, full, empty, turn, lines.index(0))
    shared1 = (ring, following, margins1, address1, full, empty, turn, lines.index(1))
    sizes = (items, tiles_m, items_m, tiles_n)
    objective = (unseen, base, scale, power)
    gl.warp_specialize(
        [
            (_consume, (arrays, shared0, sizes, objective, 0, CHUNKS, SLOTS, SPLIT, CHUNK, WEIGHTED, HALF, CAP, PUSH)),
            (_consume, (arrays, shared1, sizes, objective, 1, CHUNKS, SLOTS, SPLIT, CHUNK, WEIGHTED, HALF, CAP, PUSH)),
            (_produce, (rows, columns, table, counter, shared0, sizes, CHUNKS, SLOTS, SPLIT)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen by measuring."""

    split: int = 4  # items that a pair of row tiles is divided into
    chunk: int = 512  # cells of a crowded tile at a time


def fits(mirror: Tensor, tile: KernelTile) -> bool:
    """Return whether the kernel is made for such vectors and tiles."""
    is_short = mirror.shape[1] <= LONGEST and mirror.dtype in (torch.bfloat16, torch.float16)
    return is_short and (tile.rows, tile.columns) == (64, 128)


class HopperGradient:
    """The kernel for one mirror of the vectors.

    Parameters
    ----------
    mirror
        (rows, padded dim) of bfloat16 or float16.
    objective
        log2 of the count that stands for zero; base, scale and power of the confidence.
    rules
        CAP, the most of the confidence, or None; PUSH, whether zeros have a gradient.
    """

    def __init__(
        self,
        mirror: Tensor,
        objective: tuple[float, float, float, float],
        rules: Mapping[str, Any],
        tuning: Tuning | None = None,
    ):
        self.tuning = tuning or Tuning()
        self._objective = objective
        self._rows = TensorDescriptor.from_tensor(mirror, [128, 64], ROWS)
        rows, width = mirror.shape
        # Column 32 i + 8 q + 2 j + b is row (i, j, q, b): fetched in the order in which the products take them.
        shape, strides = [rows // 32, 4, 4, 2, width], [32 * width, 2 * width, 8 * width, width, 1]
        self._columns = TensorDescriptor(mirror, shape, strides, list(COLUMNS_SHAPE), COLUMNS)
        self._counter = torch.zeros(2, dtype=torch.int32, device=mirror.device)
        self._programs = torch.cuda.get_device_properties(mirror.device).multi_processor_count
        self._flags = {**choose_flags(mirror.dtype, mirror.shape[1], self.tuning), **rules}

    def loss_pairs(self, tiles: tuple[int, int]) -> int:
        """Return how many pairs of losses each shard of a band of so many tiles gets."""
        return -(-tiles[0] // 2) * self.tuning.split * 2

    def launch(self, arrays: tuple[Tensor, ...], tiles: tuple[int, int], *, shards: int, is_weighted: bool) -> None:
        """Write gradient and losses; arrays: offsets, weights, G, table, starts, positions, counts, losses."""
        items = shards * self.loss_pairs(tiles) // 2
        gradient[(min(items, self._programs),)](
            self._rows, self._columns, *arrays, self._counter, items, *tiles, *self._objective,
            WEIGHTED=is_weighted, **self._flags,
        )  # fmt: skip


def choose_flags(dtype: torch.dtype, width: int, tuning: Tuning) -> dict[str, int | bool]:
    """Return how the kernel is compiled for vectors of a padded width."""
    chunks = width // 64
    return {
        "CHUNKS": chunks, "SLOTS": min(4, SHARED_BYTES // (chunks * 128 * 64 * 2)), "SPLIT": tuning.split,
        "CHUNK": tuning.chunk, "REGISTERS": 240, "HALF": dtype == torch.float16,
        "num_warps": 4, "maxnreg": 168,
    }  # fmt: skip
