"""Triton kernels of the training step. `launch` calls them; the products G Y and G^T X between them use cuBLAS.

Kernels, in the order of a step:

=============  ====================================  ================================================
kernel         one program computes                  reads -> writes
=============  ====================================  ================================================
`find_starts`  the starts of BLOCK slots of a shard  slots of the observed cells -> starts
`gradient`     a tile of BM x BN cells of a shard    V, offsets, observed cells -> G, losses
`update`       ROWS vectors of one side of a shard   gradients, losses -> vectors, state, V, totals
=============  ====================================  ================================================

Symbols:

- V is the mirror: the vectors of both sides in the dtype of the products, one row per vector, padded from D to P
  values. The blocks start at equal distances (`slot_layout.SlotLayout.pitch` rows).
- X is the side of the cells' rows, Y the side of their columns. A mirrored block has the sides swapped.
- A *tile* is BM x BN cells of a shard: 64 x 128 for operands of 16 bits, 64 x 64 for float32.
- m are the margins in units of log 2; `objective_triton` has the losses. Offsets are in units of log 2 too. `unseen` is
  log2 of the count that replaces 0 in pmi*; base, scale and power are b0, b and a of the confidence.
- G is the derivative of the loss with respect to the dot products x . y, in the dtype of the products.
- A *slot* is the list of the observed cells of a tile. The entries of a shard are sorted by slot, and `starts` has the
  first entry of every slot and, at last, the end of the shard's entries.
- `table` has a line of int64 for every shard; `slot_layout.FIELDS` names its columns.
- BY_SUM: the weight decay of a vector is weight_decay * (sum of its counts)^decay_power. The sum follows from the
  vector's offset and from that of a sum of 1, `unit0` for rows of the matrix and `unit1` for its columns.
- DECAY is the share of the accumulators that an update keeps; None: `update` writes the gradients in place of the
  vectors, and no state.
- FAST uses the hardware approximations of exp2, log2 and 1/x.
"""
# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False, disallow_untyped_calls=False

from __future__ import annotations

import triton
import triton.language as tl

from swivel.training.backends.triton import slot_layout
from swivel.training.objective_triton import LOG2E, find_rate, log2, observed_gradient, unobserved_gradient

FIELDS = tl.constexpr(len(slot_layout.FIELDS))
NEVER = tl.constexpr(1e30)  # offset of a row or column outside the block: the gradient of its cells is 0


@triton.jit
def _bring_in(
    margins, place, x, positions, counts, start, stop, tile_g, pitch, unseen, base, scale, power,
    BM: tl.constexpr, CHUNK: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Overwrite the gradient of zeros by that of the observed cells of a tile in G, CHUNK at a time.

    margins: all margins of the tile. `place` and `x` are index in `margins` and count of the first chunk, which the
    caller has loaded before the product. Returns the loss of the cells, and their loss as zeros (in log 2), which the
    tile has added and the caller subtracts.
    """
    observed, zeros = tl.zeros((CHUNK,), tl.float32), tl.zeros((CHUNK,), tl.float32)
    cell = start + tl.arange(0, CHUNK)
    while start < stop:
        ok = cell < stop
        m = tl.where(ok, tl.gather(margins, place, 0), 0.0)
        gradient, loss = observed_gradient(m, x, unseen, base, scale, power, SQRT, FAST)

        # `place` counts in the order of `margins`: 8 columns, then BM rows, then the next 8 columns.
        row, column = (place // 8) % BM, (place // (8 * BM)) * 8 + place % 8
        tl.store(tile_g + row * pitch + column, gradient.to(tile_g.dtype.element_ty), mask=ok)

        _, hinge = unobserved_gradient(m, FAST)
        observed += tl.where(ok, loss, 0.0)
        zeros += tl.where(ok, log2(hinge, FAST), 0.0)

        start += CHUNK
        cell += CHUNK
        place = tl.load(positions + cell, mask=cell < stop, other=0).to(tl.int32)
        x = tl.load(counts + cell, mask=cell < stop, other=1.0)

    return tl.sum(observed), tl.sum(zeros)


@triton.jit
def _find_tile(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return row and column of a tile.

    Tiles are numbered in groups of GROUP rows, column by column within a group, so that the vectors that the running
    programs read fit in the L2 cache.
    """
    first = tile // (GROUP * tiles_n) * GROUP
    rows_at_once = min(tiles_m - first, GROUP)
    return first + tile % (GROUP * tiles_n) % rows_at_once, tile % (GROUP * tiles_n) // rows_at_once


# A binary search for every slot, in `steps` steps. If there are many shards, a list of the starts of all their slots
# would take more memory than the cells: 69 GB for 2^23 rows and columns.
@triton.jit(do_not_specialize=["slot_count", "steps"])
def find_starts(slots, table, starts, slot_count, steps, BLOCK: tl.constexpr):
    """Write the first entry of every slot of a shard; slots: that of each entry, ascending within the shard."""
    shard = tl.program_id(1)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    entry = table + shard * FIELDS
    low = tl.load(entry + 4) + tl.zeros((BLOCK,), tl.int64)
    high = tl.load(entry + 5) + tl.zeros((BLOCK,), tl.int64)

    for _ in range(steps):
        is_open = low < high
        middle = (low + high) // 2
        entry_slot = tl.load(slots + middle, mask=is_open, other=0).to(tl.int32)
        if slots.dtype.element_ty == tl.int16:
            entry_slot = entry_slot & 0xFFFF
        low = tl.where(is_open & (entry_slot < slot), middle + 1, low)
        high = tl.where(is_open & (entry_slot >= slot), middle, high)

    tl.store(starts + shard.to(tl.int64) * slot_count + slot, low, mask=slot < slot_count)


# The grid has tiles_m * tiles_n programs for every shard. The margins of a tile stay in registers. Shared memory has
# the operands of the product and, if the tile has observed cells, the margins for `tl.gather`, in an order (8 columns,
# BM rows, next 8 columns) that avoids bank conflicts; the positions of the cells use the same order.
@triton.jit
def gradient(
    V, offsets, G, table, starts, positions, counts, losses,
    tiles_m, tiles_n, unseen, base, scale, power,
    P: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write G of one tile, and the losses of its cells: observed, and unobserved in log 2."""
    pid = tl.program_id(0)
    shard = pid // (tiles_m * tiles_n)
    tile = pid % (tiles_m * tiles_n)
    tm, tn = _find_tile(tile, tiles_m, tiles_n, GROUP)
    entry = table + shard * FIELDS
    x0, height = tl.load(entry), tl.load(entry + 1)
    y0, width = tl.load(entry + 2), tl.load(entry + 3)

    # Start loading the first chunk of the tile's observed cells now; the product below hides the latency.
    slot = starts + shard * (tiles_m * tiles_n + 1) + tm * tiles_n + tn
    start, stop = tl.load(slot), tl.load(slot + 1)
    cell = start + tl.arange(0, CHUNK)
    place = tl.load(positions + cell, mask=cell < stop, other=0).to(tl.int32)
    count = tl.load(counts + cell, mask=cell < stop, other=1.0)

    # Outside the block the offset is NEVER, so that m is very small and the gradient is 0.
    i, j = tm * BM + tl.arange(0, BM), tn * BN + tl.arange(0, BN)
    row_offset = tl.load(offsets + x0 + i, mask=i < height, other=NEVER)
    column_offset = tl.load(offsets + y0 + j, mask=j < width, other=NEVER)

    # product = X Y^T of the tile, BK of the P dimensions at a time; float32 accumulators in registers.
    k = tl.arange(0, BK)
    xs = V + (x0 + i)[:, None] * P + k[None, :]
    ys = V + (y0 + j)[None, :] * P + k[:, None]
    product = tl.zeros((BM, BN), tl.float32)
    for _ in tl.range(0, P, BK, num_stages=STAGES):
        product = tl.dot(tl.load(xs), tl.load(ys), product, input_precision=PRECISION)
        xs += BK
        ys += BK

    # G of all cells as if they were unobserved; the observed ones are overwritten below.
    m = product * LOG2E - ((row_offset + unseen)[:, None] + column_offset[None, :])
    g, hinge = unobserved_gradient(m, FAST)
    # One logarithm for the product of two neighboring cells.
    even, odd = tl.split(tl.reshape(hinge, (BM, BN // 2, 2)))
    zeros = tl.sum(log2(even * odd, FAST))
    pitch = tiles_n * BN
    row_g = shard.to(tl.int64) * (tiles_m * BM) + tm * BM
    tile_g = G + row_g * pitch + tn * BN
    tl.store(tile_g + tl.arange(0, BM)[:, None] * pitch + tl.arange(0, BN)[None, :], g.to(G.dtype.element_ty))

    observed, taken_back = 0.0, 0.0
    if stop > start:
        flat = tl.reshape(tl.permute(tl.reshape(m, (BM, BN // 8, 8)), (1, 0, 2)), (BM * BN,))
        tl.debug_barrier()  # the stores of G above must be complete before cells are overwritten
        observed, taken_back = _bring_in(
            flat, place, count, positions, counts, start, stop, tile_g, pitch, unseen, base, scale, power,
            BM, CHUNK, SQRT, FAST,
        )  # fmt: skip
    program = losses + (shard * tiles_m * tiles_n + tile) * 2
    tl.store(program, observed)
    tl.store(program + 1, zeros - taken_back)


@triton.jit
def update(
    vectors, state, V, offsets, gradients, table, losses, totals, shards, apart0, apart1, pairs, weight_decay,
    decay_power, unit0, unit1, learning_rate, DECAY: tl.constexpr, BY_SUM: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr, PP: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Update both sides of every shard, and sum up the losses of the shard.

    gradients: (shards, apart0, P) for X, followed by (shards, apart1, P) for Y, in the dtype of the products; PP is the
    power of two from P on. The sums, of SIZE losses at a time, are in this kernel because the host takes 40 us to
    launch another one.
    """
    shard, side = tl.program_id(1).to(tl.int64), tl.program_id(2)
    if (tl.program_id(0) == 0) & (side == 0):
        observed, zeros = tl.zeros((SIZE,), tl.float64), tl.zeros((SIZE,), tl.float64)
        losses += shard * pairs * 2
        for start in range(0, pairs, SIZE):
            pair = start + tl.arange(0, SIZE)
            observed += tl.load(losses + 2 * pair, mask=pair < pairs, other=0.0)
            zeros += tl.load(losses + 2 * pair + 1, mask=pair < pairs, other=0.0)
        tl.store(totals + shard * 2, tl.sum(observed))
        tl.store(totals + shard * 2 + 1, tl.sum(zeros))

    entry = table + shard * FIELDS
    row0, rows = tl.load(entry + 2 * side), tl.load(entry + 2 * side + 1).to(tl.int32)
    # The gradient is a mean over the other side, whose size is the field `height` or `width`.
    share = 1.0 / tl.load(entry + 3 - 2 * side).to(tl.float32)
    gradient_row = tl.where(side == 0, shard * apart0, (shards * apart0).to(tl.int64) + shard * apart1)

    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, PP)[None, :]
    is_row = row < rows
    mask = is_row[:, None] & (k < D)
    at, padded_at = row[:, None] * D + k, row[:, None] * P + k
    vectors, state, V = vectors + row0 * D, state + row0, V + row0 * P
    g = tl.load(gradients + gradient_row * P + padded_at, mask=mask, other=0.0).to(tl.float32) * share

    # The decay uses the float32 vectors, not the mirror, whose rounding errors would accumulate over the steps.
    w = tl.load(vectors + at, mask=mask, other=0.0)
    if BY_SUM:
        offset = tl.load(offsets + row0 + row, mask=is_row, other=0.0)
        is_column = tl.load(entry + 6) != side  # a mirrored block has the columns of the matrix as X
        powers = tl.exp2(decay_power * (tl.where(is_column, unit1, unit0) - offset))
        g += (weight_decay * powers)[:, None] * w
    else:
        g += weight_decay * w

    if DECAY is None:
        tl.store(vectors + at, g, mask=mask)
    else:
        rate = find_rate(state + row, is_row, tl.sum(g * g, 1) / D, learning_rate, DECAY)
        w -= rate[:, None] * g
        tl.store(vectors + at, w, mask=mask)
        tl.store(V + padded_at, w.to(V.dtype.element_ty), mask=mask)
