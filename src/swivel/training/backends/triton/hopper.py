"""The gradient kernel for Hopper GPUs (compute capability 9): `step_kernels.gradient` with specialized warps.

It reads and writes the same arrays as `step_kernels.gradient`, for tiles of 64 x 128 and operands of 16 bits. Only the
order of the losses differs (`HopperGradient.loss_pairs`). Symbols as in `step_kernels`.

One program runs on each multiprocessor and processes *items*: 128 rows of a shard and a part (1 / SPLIT) of its
columns. The first item of a program is its number; the others come from a global counter. The warps of a program:

===========  =====  ================  ===========================================================================
partition    warps  registers/thread  work
===========  =====  ================  ===========================================================================
consumer 0   4      240               rows 0 to 63 of the item against every tile of 128 columns
consumer 1   4      240               rows 64 to 127 of the item against every tile of 128 columns
producer     1      24                copies rows and columns of the items from global to shared memory (TMA)
===========  =====  ================  ===========================================================================

The consumers take turns: the tensor cores compute the product of one while the other computes its logarithms.

Shared memory:

===========  ===========================  ==========================================================================
array        shape                        contents
===========  ===========================  ==========================================================================
ring         SLOTS x CHUNKS x [128, 64]   128 vectors per slot, in CHUNKS pieces of 64 dimensions: the rows of an
                                          item, then its columns, 128 at a time
following    SLOTS x [1]                  next item of the program, written with the rows of an item
margins0/1   [16, 64, 8] float32          margins of a consumer's tile, for looking up observed cells
lines        2 x [128] float32            offsets of the columns of a tile, while they are distributed to the threads
full         SLOTS barriers               the copy into a slot is complete (1 arrival: the producer's, plus bytes)
empty        SLOTS barriers               both consumers have read a slot (2 arrivals)
turn         2 barriers                   a consumer may use the tensor cores (1 arrival: the other consumer's)
===========  ===========================  ==========================================================================

Registers of a consumer: its 64 rows as operands x (CHUNKS pieces), the product and margins of a tile (64 x 128
float32, 64 per thread), and the running sums of the losses.

Counters: e is the number of ring slots that were filled or read, so slot = e % SLOTS and the phase of its barriers is
(e // SLOTS) & 1. n is the number of tiles of a consumer.

Layouts, that is, which thread or address holds which element:

=======  ====================================  ======================================================================
layout   of                                    purpose
=======  ====================================  ======================================================================
MMA      [64, 128] in registers                result of the tensor cores: 4 warps of 16 rows each
LINE     [n] in registers                      one element per thread, for columns and observed cells
PAIRS    [64, 64] int32 in registers           G as pairs of 16-bit values, in the order of the columns
WORD     [n] in shared memory                  plain order
MARGINS  [16, 64, 8] float32 in shared memory  margins in the order of the cells' positions, without bank conflicts
=======  ====================================  ======================================================================
"""
# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

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

from swivel.training.backends.triton.slot_layout import KernelTile
from swivel.training.backends.triton.step_kernels import FIELDS, NEVER
from swivel.training.objective_triton import LN2, LOG2E, MAX_MARGIN

Tensor = torch.Tensor
MAX_WIDTH = 320  # values of a padded vector: the 64 rows of a consumer then use 80 registers per thread
SHARED_BYTES = 160 << 10  # upper limit of the ring
ITEMS_PER_PAIR = 4  # items per pair of row tiles; measured
ROWS = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
COLUMNS = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=5)
COLUMNS_SHAPE = (4, 4, 4, 2, 64)  # 128 columns as [32 columns, j, q, b], and 64 dimensions; see `PAIRS`

SPLIT = gl.constexpr(ITEMS_PER_PAIR)
FIRST_CHUNK = gl.constexpr(128)  # one cell per thread
CHUNK = gl.constexpr(512)  # observed cells that are processed together, after the first chunk; measured
ONE_WARP = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
WORD = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# The columns are permuted before the product, so that a thread gets eight neighboring columns and writes 16 bytes at a
# time: of every 32 columns, column 8 q + 2 j + b becomes number 8 j + 2 q + b (see `order`). The ring is filled in
# that order.
PAIRS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], [0, 16], [0, 32]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [],
        [64, 64],
    )
)  # fmt: skip
# Margins of a tile, [column // 8, row, column % 8]: the order of the cells' positions, except for two bits that are
# XORed into the address to avoid bank conflicts of the stores. `_overwrite` computes the same address.
MARGINS = gl.constexpr(
    gl.SharedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0], [0, 8, 0], [0, 16, 0], [0, 32, 0],
         [1, 2, 0], [2, 0, 4], [4, 0, 0], [8, 0, 0]]
    )
)  # fmt: skip
barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # until Triton 3.6, and since then


@gluon.jit
def _exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _log2(x):
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _reciprocal(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _pack(low, high, HALF: gl.constexpr):
    """Return two numbers, rounded to 16 bits, in one word (float16 with HALF, else bfloat16)."""
    asm: gl.constexpr = "cvt.rn.f16x2.f32 $0, $2, $1;" if HALF else "cvt.rn.bf16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(asm, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _load_shared(address):
    """Return float32 values from shared memory; every thread has its own addresses."""
    return gl.inline_asm_elementwise(
        "ld.shared.f32 $0, [$1];", "=f,r,~{memory}", [address], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def write_addresses():
    """Write to every 16 bytes of shared memory their own address.

    Gluon does not expose the address of a shared array. After this call the first word of an array is its address
    (`read_address`). It must run before anything else is written to shared memory.
    """
    place = gl.arange(0, 16384, LINE)
    gl.inline_asm_elementwise(
        """
        {
        .reg .pred p;
        .reg .u32 size, address;
        mov.u32 size, %dynamic_smem_size;
        shl.b32 $0, $1, 4;
        setp.lt.u32 p, $0, size;
        mov.u32 address, global_smem;
        add.u32 address, address, $0;
        @p st.shared.u32 [address], address;
        }
        """,
        "=&r,r,~{memory}",
        [place],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    barrier()


@gluon.jit
def read_address(margins):
    """Return the address of an array in shared memory, which `write_addresses` has stored in its first word."""
    words = margins._reinterpret(gl.int32, [8192], WORD).slice(0, 128).load(LINE)
    return gl.sum(gl.where(gl.arange(0, 128, LINE) == 0, words, 0))


@gluon.jit
def sum_pairs(x):
    """Sum [64 rows, 64 pairs] to [64, 4]; all terms of a sum are in one thread."""
    return gl.sum(gl.reshape(x, (64, 16, 4)), axis=1)


@gluon.jit
def order(n):
    """Return the column of the tile that is number n in the product; see `PAIRS`."""
    return n // 32 * 32 + n // 2 % 4 * 8 + n // 8 % 4 * 2 + n % 2


@gluon.jit
def spread(x, line):
    """Distribute a value per column from LINE to the columns of MMA, through the shared array `line`."""
    line.store(x)
    return line.load(gl.SliceLayout(0, MMA))


@gluon.jit
def unobserved_gradient(m, HALF: gl.constexpr):
    """Return the gradients of all cells as zeros, packed in pairs, and partial sums of log2(1 + 2^m)."""
    # Two neighboring cells 0 and 1: with a = 1 + 2^m0 and b = 1 + 2^m1, one reciprocal 1 / (a b) gives both sigmoids,
    # 2^m0 b / (a b) and 2^m1 a / (a b), and one logarithm log2(a b) gives both losses.
    e0, e1 = gl.split(gl.reshape(_exp2(gl.minimum(m, MAX_MARGIN)), (64, 64, 2)))
    one0 = e0 + 1.0
    one1 = e1 + 1.0
    both = one0 * one1
    inverse = _reciprocal(both)
    g0 = e0 * (inverse * one1)
    g1 = e1 * (inverse * one0)
    return _pack(g0, g1, HALF), sum_pairs(_log2(both))


@gluon.jit
def _overwrite(address, place, x, ok, tile_g, pitch, objective):
    """Overwrite the gradient of zeros by that of observed cells in G.

    address: the tile's margins in shared memory. place: the index of each cell there. Returns the losses L_1 of the
    cells and their losses as zeros (in log 2), each summed to FIRST_CHUNK values.
    """
    unseen, base, scale, power = objective
    place = place.to(gl.int32)

    # The XORs are those of the layout MARGINS.
    m = _load_shared(address + (place ^ (place // 32 & 16) ^ (place // 256 & 4)) * 4)

    # distance = x . y - pmi; f(x) = base + scale x^power.
    log_x = _log2(x)
    distance = (m + unseen - log_x) * LN2
    confidence = base + scale * _exp2(power * log_x)
    gradient = confidence * distance

    row, column = (place // 8) % 64, (place // 512) * 8 + place % 8
    gl.store(tile_g + row * pitch + column, gradient.to(tile_g.dtype.element_ty), mask=ok)

    hinge = _log2(1.0 + _exp2(gl.minimum(m, MAX_MARGIN)))
    return _fold(gl.where(ok, 0.5 * gradient * distance, 0.0)), _fold(gl.where(ok, hinge, 0.0))


@gluon.jit
def first_cells(positions, counts, cells):
    """Start loading the first chunk of a tile's cells; return the tuple that `bring_in` takes."""
    at = gl.arange(0, FIRST_CHUNK, LINE)
    place = gl.load(positions + at, mask=at < cells, other=0)
    return positions, counts, cells, place, gl.load(counts + at, mask=at < cells, other=1.0)


@gluon.jit
def bring_in(cells, address, tile_g, pitch, objective, observed, zeros):
    """Overwrite the observed cells of a tile; return the two sums of losses of `_overwrite`, with this tile added."""
    positions, counts, cells, place, x = cells
    ok = gl.arange(0, FIRST_CHUNK, LINE) < cells
    barrier()  # the stores of the tile's gradients and margins must be complete
    more, fewer = _overwrite(address, place, x, ok, tile_g, pitch, objective)
    observed += more
    zeros += fewer

    if cells > FIRST_CHUNK:
        at = FIRST_CHUNK + gl.arange(0, CHUNK, LINE)
        places = gl.load(positions + at, mask=at < cells, other=0)
        xs = gl.load(counts + at, mask=at < cells, other=1.0)
        for _ in range(FIRST_CHUNK, cells, CHUNK):
            # Load the next chunk while this one is processed.
            after = at + CHUNK
            next_places = gl.load(positions + after, mask=after < cells, other=0)
            next_xs = gl.load(counts + after, mask=after < cells, other=1.0)
            more, fewer = _overwrite(address, places, xs, at < cells, tile_g, pitch, objective)
            observed += more
            zeros += fewer
            at, places, xs = after, next_places, next_xs

    return observed, zeros


@gluon.jit
def _fold(x):
    """Sum [chunk] to [FIRST_CHUNK]; all terms of a sum are in one thread."""
    folded = gl.sum(gl.reshape(x, (x.shape[0] // FIRST_CHUNK, FIRST_CHUNK)), axis=0)
    return gl.convert_layout(folded, LINE, assert_trivial=True)


@gluon.jit
def write_tile(tile_g, g, pitch, is_there):
    """Write the gradients of a tile to G; `g` has them in pairs, in the order of the product."""
    # Back to the order of the columns. No data moves: each thread already has the pairs that it writes.
    g = gl.reshape(gl.permute(gl.reshape(g, (64, 4, 4, 4)), (0, 1, 3, 2)), (64, 64))
    g = gl.convert_layout(g, PAIRS, assert_trivial=True)
    row, pair = gl.arange(0, 64, gl.SliceLayout(1, PAIRS)), gl.arange(0, 64, gl.SliceLayout(0, PAIRS))
    at = row[:, None] * (pitch // 2) + pair[None, :]
    words = tile_g.to(gl.pointer_type(gl.int32), bitcast=True)
    gl.store(words + at, g, mask=gl.full((64, 64), is_there, gl.int1, PAIRS))


@gluon.jit
def _locate(item, items_m, tiles_n):
    """Return the shard of an item, its pair of row tiles, and its first and last (exclusive) tile of columns."""
    shard = item // (items_m * SPLIT)
    rest = item - shard * (items_m * SPLIT)
    each = (tiles_n + SPLIT - 1) // SPLIT
    first = gl.minimum((rest % SPLIT) * each, tiles_n)
    return shard, rest // SPLIT, first, gl.minimum(first + each, tiles_n)


@gluon.jit
def _fetch(source, at, ring, barrier, slot, CHUNKS: gl.constexpr):
    """Start the copy of 128 vectors from `at` on into a slot of the ring; `barrier` completes when they arrive."""
    mbarrier.expect(barrier, CHUNKS * 128 * 64 * 2)
    for k in gl.static_range(CHUNKS):
        place = ring.index(slot * CHUNKS + k)._reinterpret(source.dtype, source.block_shape, source.layout)
        tma.async_copy_global_to_shared(source, at + [k * 64], barrier, place)  # noqa: RUF005


@gluon.jit
def _produce(rows, columns, table, counter, shared, sizes, CHUNKS: gl.constexpr, SLOTS: gl.constexpr):
    """Copy rows and columns of one item after the other to the ring; with the rows goes the number of the next item."""
    ring, following, _, _, full, empty, _, _ = shared
    items, _, items_m, tiles_n = sizes
    e, item = 0, gl.program_id(0)

    while item < items:
        shard, tm, first, stop = _locate(item, items_m, tiles_n)
        row = gl.load(table + shard * FIELDS).to(gl.int32) + tm * 128
        column = gl.load(table + shard * FIELDS + 2).to(gl.int32)
        item = gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")  # the next item

        # The first copy (t = first - 1) is that of the rows.
        for t in range(first - 1, stop):
            slot = e % SLOTS
            mbarrier.wait(empty.index(slot), ((e // SLOTS) & 1) ^ 1)
            if t < first:
                following.index(slot).store(gl.full([1], item, gl.int32, ONE_WARP))
                _fetch(rows, [row], ring, full.index(slot), slot, CHUNKS)
            else:
                _fetch(columns, [column // 32 + t * 4, 0, 0, 0], ring, full.index(slot), slot, CHUNKS)
            e += 1

    # The last program to finish resets the counters for the next launch.
    if gl.atomic_add(counter + 1, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        gl.store(counter, 0)
        gl.store(counter + 1, 0)


@gluon.jit
def _take_rows(shared, e, C: gl.constexpr, CHUNKS: gl.constexpr, SLOTS: gl.constexpr):
    """Return the rows of consumer C as operands in registers (a tuple of CHUNKS pieces), and the next item."""
    ring, following, _, _, full, empty, _, _ = shared
    slot = e % SLOTS
    mbarrier.wait(full.index(slot), (e // SLOTS) & 1)

    operand: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    x = (ring.index(slot * CHUNKS).slice(C * 64, 64).load(operand),)
    for k in gl.static_range(1, CHUNKS):
        x = x + (ring.index(slot * CHUNKS + k).slice(C * 64, 64).load(operand),)  # type: ignore[assignment]  # noqa: RUF005

    # Every thread must have read the slot before it is marked empty.
    item = gl.max(following.index(slot).load(LINE), 0)
    fence_async_shared()
    barrier()
    mbarrier.arrive(empty.index(slot), count=1)
    return x, item


@gluon.jit
def _take_product(x, shared, e, n, zero, C: gl.constexpr, CHUNKS: gl.constexpr, SLOTS: gl.constexpr):
    """Return the product of x and the next tile of columns (64 x 128, float32, in registers).

    Waits until the tile is in the ring and consumer C may use the tensor cores.
    """
    ring, _, _, _, full, empty, turn, _ = shared
    slot = e % SLOTS
    mbarrier.wait(full.index(slot), (e // SLOTS) & 1)
    mbarrier.wait(turn.index(C), (n & 1) ^ (1 - C))  # consumer 0 starts

    product = warpgroup_mma(x[0], ring.index(slot * CHUNKS).permute((1, 0)), zero, use_acc=False, is_async=True)
    for k in gl.static_range(1, CHUNKS):
        product = warpgroup_mma(x[k], ring.index(slot * CHUNKS + k).permute((1, 0)), product, is_async=True)
    product = warpgroup_mma_wait(0, deps=[product])

    # All threads have their product. They have also finished the cells of the previous tile, so that the margins in
    # shared memory may be overwritten.
    barrier()
    mbarrier.arrive(turn.index(1 - C), count=1)
    mbarrier.arrive(empty.index(slot), count=1)
    return product


# The line of the table is that of `slot_layout.FIELDS`. With an odd number of row tiles, the last one of consumer 1
# does not exist (`is_there` is false): it computes, but writes nothing. Entries [start, stop) are the observed cells of
# a tile. Outside the block the offsets are NEVER, so that m is very small and the gradient is 0. The running sums
# (hinges, observed, taken_back) have the layouts in which `unobserved_gradient` and `bring_in` produce them, and are
# summed over the threads at the end. m = (x . y - pmi*) / log 2.
@gluon.jit
def _consume(
    arrays, shared, sizes, objective, C: gl.constexpr, CHUNKS: gl.constexpr, SLOTS: gl.constexpr, HALF: gl.constexpr
):  # fmt: skip
    """Write G and the losses of the rows of consumer C of one item after the other, until none is left."""
    offsets, G, table, all_starts, positions, counts, losses = arrays
    items, tiles_m, items_m, tiles_n = sizes
    e, n, item = 0, 0, gl.program_id(0)

    while item < items:
        shard, tm, first, last = _locate(item, items_m, tiles_n)
        entry = table + shard * FIELDS
        x0, height, y0, width = gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), gl.load(entry + 3)

        is_there = tm * 2 + C < tiles_m
        starts = all_starts + (shard * (tiles_m * tiles_n + 1) + (tm * 2 + C) * tiles_n)
        start = gl.load(starts + first, mask=is_there & (first < tiles_n), other=0)
        stop = gl.load(starts + first + 1, mask=is_there & (first < tiles_n), other=0)

        i = tm * 128 + C * 64 + gl.arange(0, 64, gl.SliceLayout(1, MMA))
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
            # Start the loads that are needed after the product; offsets and starts are loaded one tile ahead.
            offset = spread(column_offset, shared[7])
            column += 128
            column_offset = gl.load(offsets + y0 + column, mask=column < width, other=NEVER)
            cells = first_cells(positions + start, counts + start, (stop - start).to(gl.int32))
            start = stop
            stop = gl.load(starts + t + 2, mask=is_there & (t + 1 < tiles_n), other=stop)

            m = _take_product(x, shared, e, n, zero, C, CHUNKS, SLOTS) * LOG2E - (row_offset[:, None] + offset[None, :])
            n += 1
            # If the tile has observed cells, keep the margins in shared memory for `bring_in`.
            if cells[2] > 0:
                by_column = gl.permute(gl.reshape(m, (64, 4, 4, 4, 2)), (1, 3, 0, 2, 4))
                shared[2].store(gl.reshape(by_column, (16, 64, 8)))
            # All cells as if they were unobserved, then the observed ones over them.
            g, more = unobserved_gradient(m, HALF)
            hinges += more
            write_tile(tile_g, g, pitch, is_there)
            if cells[2] > 0:
                observed, taken_back = bring_in(cells, shared[3], tile_g, pitch, objective, observed, taken_back)
            tile_g += 128
        gl.store(losses + (item * 2 + C) * 2, gl.sum(observed))
        gl.store(losses + (item * 2 + C) * 2 + 1, gl.sum(gl.sum(hinges, axis=1), axis=0) - gl.sum(taken_back))
        item = following
        e += 1


# These arguments are not specialized, so that the kernel is compiled once and not again for every alignment of an array
# and for sizes that are multiples of 16.
@gluon.jit(
    do_not_specialize=["items", "tiles_m", "tiles_n"],
    do_not_specialize_on_alignment=["table", "starts", "positions", "counts", "losses"],
)
def gradient(
    rows, columns, offsets, G, table, starts, positions, counts, losses, counter,
    items, tiles_m, tiles_n, unseen, base, scale, power,
    CHUNKS: gl.constexpr, SLOTS: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """Write G of all tiles of every shard, and the losses of their cells; see the module's docstring."""
    margins0 = gl.allocate_shared_memory(gl.float32, [16, 64, 8], MARGINS)
    margins1 = gl.allocate_shared_memory(gl.float32, [16, 64, 8], MARGINS)
    # Must come before anything else is written to shared memory.
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
    arrays = (offsets, G, table, starts, positions, counts, losses)
    shared0 = (ring, following, margins0, address0, full, empty, turn, lines.index(0))
    shared1 = (ring, following, margins1, address1, full, empty, turn, lines.index(1))
    sizes = (items, tiles_m, items_m, tiles_n)
    objective = (unseen, base, scale, power)

    # Two consumers and the producer; see the table in the module's docstring for warps and registers.
    gl.warp_specialize(
        [
            (_consume, (arrays, shared0, sizes, objective, 0, CHUNKS, SLOTS, HALF)),
            (_consume, (arrays, shared1, sizes, objective, 1, CHUNKS, SLOTS, HALF)),
            (_produce, (rows, columns, table, counter, shared0, sizes, CHUNKS, SLOTS)),
        ],
        [4, 1],
        [240, 24],
    )


def fits(mirror: Tensor, tile: KernelTile) -> bool:
    """Return whether the kernel supports the dtype and width of the mirror and the shape of the tiles."""
    is_short = mirror.shape[1] <= MAX_WIDTH and mirror.dtype in (torch.bfloat16, torch.float16)
    return is_short and (tile.rows, tile.columns) == (64, 128)


class HopperGradient:
    """Launches the kernel for one mirror of the vectors; `launch.StepLauncher` has the objective."""

    def __init__(self, mirror: Tensor, objective: tuple[float, float, float, float]) -> None:
        self._objective = objective
        self._rows = TensorDescriptor.from_tensor(mirror, [128, 64], ROWS)

        # The copies of columns permute them: column 32 i + 8 q + 2 j + b of the mirror is row (i, j, q, b) of the copy.
        # `PAIRS` says why.
        rows, width = mirror.shape
        shape, strides = [rows // 32, 4, 4, 2, width], [32 * width, 2 * width, 8 * width, width, 1]
        self._columns = TensorDescriptor(mirror, shape, strides, list(COLUMNS_SHAPE), COLUMNS)

        # The next item, and the number of programs that have finished.
        self._counter = torch.zeros(2, dtype=torch.int32, device=mirror.device)
        self._programs = torch.cuda.get_device_properties(mirror.device).multi_processor_count
        self._flags = choose_flags(mirror.dtype, width)

    def loss_pairs(self, tiles: tuple[int, int]) -> int:
        """Return the number of loss pairs (observed, unobserved) per shard of `tiles` rows and columns."""
        return -(-tiles[0] // 2) * ITEMS_PER_PAIR * 2

    def launch(self, arrays: tuple[Tensor, ...], tiles: tuple[int, int], *, shards: int) -> None:
        """Launch the kernel; arrays: offsets, G, table, starts, positions, counts, losses."""
        items = shards * self.loss_pairs(tiles) // 2
        gradient[(min(items, self._programs),)](
            self._rows, self._columns, *arrays, self._counter, items, *tiles, *self._objective, **self._flags
        )


def choose_flags(dtype: torch.dtype, width: int) -> dict[str, int | bool]:
    """Return the compile-time constants and launch options for vectors of `width` padded values."""
    chunks = width // 64
    slots = min(4, SHARED_BYTES // (chunks * 128 * 64 * 2))
    return {"CHUNKS": chunks, "SLOTS": slots, "HALF": dtype == torch.float16, "num_warps": 4, "maxnreg": 168}
