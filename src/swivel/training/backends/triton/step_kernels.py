"""Triton kernels of the training step. `launch` calls them; the products G Y and G^T X between them use cuBLAS.

Kernels, in the order of a step:

=================  =============================================  ==================================================
kernel             one program computes                           reads -> writes
=================  =============================================  ==================================================
`find_starts`      the starts of BLOCK slots of a shard           slots of the observed cells -> starts
`gather`           BN sampled columns of a shard                  V, offsets -> V, offsets, all weights, places
`gradient`         a tile of BM x BN cells of a panel of a shard   V, offsets, observed cells -> G, losses
`update`           ROWS vectors of one side of a shard            gradients, losses -> vectors, state, V, totals
`update_sampled`   one row or column of a shard                   gradients, observed cells -> vectors, state
=================  =============================================  ==================================================

`gather` and `update_sampled` run only if zeros are sampled, `update` only if they are not.

Symbols:

- V is the mirror: the vectors of both sides in the dtype of the products, one row per vector, padded from D to P
  values. The blocks start at equal distances (`slot_layout.SlotLayout.pitch` rows).
- X is the side of the cells' rows, Y the side of their columns. A mirrored block has the sides swapped.
- A *tile* is BM x BN cells of a panel of a shard: 64 x 128 for operands of 16 bits, 64 x 64 for float32.
- m are the margins in units of log 2; `objective_triton` has the losses. Offsets are in units of log 2 too. `unseen` is
  log2 of the count that replaces 0 in pmi*; base, scale and power are b0, b and a of the confidence.
- G is the derivative of the loss with respect to the dot products x . y, in the dtype of the products.
- A *slot* is a list of observed cells: those of a tile, or those of a row or column between features that are not
  common ("rare cells"). The entries of a shard are sorted by slot, and `starts` has the first entry of every slot.
- `table` has a line of int64 for every shard and panel; `slot_layout.FIELDS` names its columns.
- BY_SUM: the weight decay of a vector is weight_decay * (sum of its counts)^decay_power. The sum follows from the
  vector's offset and from that of a sum of 1, `unit0` for rows of the matrix and `unit1` for its columns.
- OPTIMIZER are the settings of the optimizer, a tuple; None: `update` and `update_sampled` write the gradients in place
  of the vectors, and no state.
- FAST uses the hardware approximations of exp2, log2 and 1/x.
"""
# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False, disallow_untyped_calls=False

from __future__ import annotations

import triton
import triton.language as tl

from swivel.training.backends.triton import slot_layout
from swivel.training.objective_triton import (
    LOG2E,
    find_rate,
    finish_loss,
    join_losses,
    observed_gradient,
    unobserved_gradient,
)

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
        zeros += tl.where(ok, finish_loss(hinge, FAST), 0.0)

        start += CHUNK
        cell += CHUNK
        place = tl.load(positions + cell, mask=cell < stop, other=0).to(tl.int32)
        x = tl.load(counts + cell, mask=cell < stop, other=1.0)

    return tl.sum(observed), tl.sum(zeros)


@triton.jit
def _hinge(m, weights, is_column, WEIGHTED: tl.constexpr, FAST: tl.constexpr):
    """Return the gradients of a tile's cells as zeros, and their summed loss in log 2.

    `weights` points at the weights of the tile's columns (WEIGHTED: the panel is sampled).
    """
    g, hinge = unobserved_gradient(m, FAST)
    if WEIGHTED:
        weight = tl.load(weights, mask=is_column, other=0.0)
        return g * weight[None, :], tl.sum(finish_loss(hinge, FAST) * weight[None, :])

    # One logarithm for the product of two neighboring cells.
    even, odd = tl.split(tl.reshape(hinge, (m.shape[0], m.shape[1] // 2, 2)))
    return g, tl.sum(finish_loss(join_losses(even, odd), FAST))


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
    low = tl.load(entry + 6) + tl.zeros((BLOCK,), tl.int64)
    high = tl.load(entry + 11) + tl.zeros((BLOCK,), tl.int64)

    for _ in range(steps):
        is_open = low < high
        middle = (low + high) // 2
        entry_slot = tl.load(slots + middle, mask=is_open, other=0).to(tl.int32)
        if slots.dtype.element_ty == tl.int16:
            entry_slot = entry_slot & 0xFFFF
        low = tl.where(is_open & (entry_slot < slot), middle + 1, low)
        high = tl.where(is_open & (entry_slot >= slot), middle, high)

    tl.store(starts + shard.to(tl.int64) * slot_count + slot, low, mask=slot < slot_count)


# The grid has tiles_m * tiles_n programs for every shard of a panel. The margins of a tile stay in registers. Shared
# memory has the operands of the product and, if the tile has observed cells, the margins for `tl.gather`, in an order
# (8 columns, BM rows, next 8 columns) that avoids bank conflicts; the positions of the cells use the same order.
@triton.jit(do_not_specialize_on_alignment=["table"])
def gradient(
    V, offsets, weights, G, table, starts, positions, counts, losses,
    tiles_m, tiles_n, unseen, base, scale, power,
    P: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, WEIGHTED: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write G of one tile, and the losses of its cells: observed, and unobserved in log 2."""
    pid = tl.program_id(0)
    shard = pid // (tiles_m * tiles_n)
    tile = pid % (tiles_m * tiles_n)
    tm, tn = _find_tile(tile, tiles_m, tiles_n, GROUP)
    entry = table + shard * FIELDS
    x0, height = tl.load(entry), tl.load(entry + 1)
    y0, width = tl.load(entry + 2), tl.load(entry + 3)
    slot, slot_columns = tl.load(entry + 4), tl.load(entry + 5)

    # Start loading the first chunk of the tile's observed cells now; the product below hides the latency.
    slot += tm * slot_columns + tn
    has_cells = tn < slot_columns
    start = tl.load(starts + slot, mask=has_cells, other=0)
    stop = tl.load(starts + slot + 1, mask=has_cells, other=0)
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
    g, zeros = _hinge(m, weights + y0 + j, j < width, WEIGHTED, FAST)
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


@triton.jit(do_not_specialize_on_alignment=["table"])
def gather(
    V, offsets, weights, places, zero_weights, table, strides, lengths, fractions,
    y_rows, most, P: tl.constexpr, PP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Copy the columns that a panel samples in this step to the rows of V behind the blocks.

    weights, offsets: of the copied columns, at the same rows. places: index of a column of the block among the copied
    ones. zero_weights: weight of a zero in a column of the block. (Columns that are not sampled have -1 and 0 already.)
    """
    shard = tl.program_id(1)
    entry = table + shard * FIELDS
    y0, width = tl.load(entry + 2), tl.load(entry + 3)
    whole0, stride0 = tl.load(entry + 7), tl.load(entry + 8)

    # Column start + fraction * length of every stride; the length is the weight of its zeros. The kernel is compiled
    # without fused multiply-add, so that the result is the column that NumPy computes in `ZeroSampling.panels`.
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    ok = n < width
    start = tl.load(strides + stride0 + n, mask=ok, other=0.0)
    length = tl.load(lengths + stride0 + n, mask=ok, other=0.0)
    column = (start + tl.load(fractions + shard) * length).to(tl.int64)
    tl.store(weights + y0 + n, length.to(tl.float32), mask=ok)
    tl.store(offsets + y0 + n, tl.load(offsets + whole0 + column, mask=ok, other=0.0), mask=ok)
    tl.store(places + shard.to(tl.int64) * y_rows + column, n, mask=ok)
    tl.store(zero_weights + shard.to(tl.int64) * y_rows + column, length.to(tl.float32), mask=ok)

    # Rows between the last column and the end of the last tile are multiplied by a gradient of 0: they must be finite,
    # so zeros are written there.
    k = tl.arange(0, PP)
    inside = (k < P)[None, :]
    source = V + (whole0 + column)[:, None] * P + k[None, :]
    vector = tl.load(source, mask=ok[:, None] & inside, other=0.0)
    tl.store(V + (y0 + n)[:, None] * P + k[None, :], vector, mask=(n < most)[:, None] & inside)


@triton.jit
def _store_step(w, g, rate, vectors, mirror, at, mirror_at, mask, OPTIMIZER: tl.constexpr, MIRROR: tl.constexpr):
    """Store the elements `at` of vectors after a step; with MIRROR, also write them to the mirror at `mirror_at`.

    Without an OPTIMIZER, the gradient `g` is written in place of the vectors.
    """
    if OPTIMIZER is None:
        tl.store(vectors + at, g, mask=mask)
    else:
        w -= rate * g
        tl.store(vectors + at, w, mask=mask)
        if MIRROR:
            tl.store(mirror + mirror_at, w.to(mirror.dtype.element_ty), mask=mask)


@triton.jit
def _decay_by_sum(offset, entry, side, weight_decay, decay_power, unit0, unit1):
    """Return the weight decay of vectors of one side (0: X, 1: Y) of a shard from their offsets."""
    is_column = tl.load(entry + 12) != side  # a mirrored block has the columns of the matrix as X
    return weight_decay * tl.exp2(decay_power * (tl.where(is_column, unit1, unit0) - offset))


@triton.jit
def update(
    vectors, state, V, offsets, gradients, table, losses, totals, shards, apart0, apart1, pairs, weight_decay,
    decay_power, unit0, unit1, learning_rate, OPTIMIZER: tl.constexpr, BY_SUM: tl.constexpr, D: tl.constexpr,
    P: tl.constexpr, PP: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Update both sides of every shard, for steps that compute all zeros, and sum up the losses of the shard.

    gradients: (shards, apart0, P) for X, followed by (shards, apart1, P) for Y; PP is the power of two from P on. The
    sums, of SIZE losses at a time, are in this kernel because the host takes 40 us to launch another one.
    """
    shard, side = tl.program_id(1).to(tl.int64), tl.program_id(2)
    if (tl.program_id(0) == 0) & (side == 0):
        observed, zeros = tl.zeros((SIZE,), tl.float64), tl.zeros((SIZE,), tl.float64)
        losses += shard * pairs * 2
        for start in range(0, pairs, SIZE):
            pair = start + tl.arange(0, SIZE)
            observed += tl.load(losses + 2 * pair, mask=pair < pairs, other=0.0)
            zeros += tl.load(losses + 2 * pair + 1, mask=pair < pairs, other=0.0)
        _store_three(totals + shard * 3, tl.sum(observed), tl.sum(zeros), 0.0)

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
    g = tl.load(gradients + gradient_row * P + padded_at, mask=mask, other=0.0) * share

    # The decay uses the float32 vectors, not the mirror, whose rounding errors would accumulate over the steps.
    w = tl.load(vectors + at, mask=mask, other=0.0)
    if BY_SUM:
        offset = tl.load(offsets + row0 + row, mask=is_row, other=0.0)
        g += _decay_by_sum(offset, entry, side, weight_decay, decay_power, unit0, unit1)[:, None] * w
    else:
        g += weight_decay * w

    rate = 0.0
    if OPTIMIZER is not None:
        rate = find_rate(state + row, is_row, tl.sum(g * g, 1) / D, learning_rate, OPTIMIZER)[:, None]
    _store_step(w, g, rate, vectors, V, at, padded_at, mask, OPTIMIZER, True)


@triton.jit
def _dense_part(part, shard, apart, local, is_here, k, P: tl.constexpr):
    """Return the part of a vector's gradient that a panel's product contributes, or 0 unless `is_here`."""
    return tl.load(part + (shard * apart + local) * P + k, mask=is_here & (k < P), other=0.0).to(tl.float32)


@triton.jit
def _dense_gradient(
    part0, part1, part2, apart0, apart1, apart2, places, shards, y_rows, shard, row, common, second, k,
    SIDE: tl.constexpr, PANELS: tl.constexpr, HAS_COMMON: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Return the sum of the panels' products for one vector.

    A row (SIDE 0) is in exactly one panel: `part0` are common rows, `part1` rows from `common` on, `part2` rows from
    `second` on. A column (SIDE 1) has a part in every panel that sampled it; `places` has its row there.
    """
    g = tl.zeros(k.shape, tl.float32)
    if HAS_COMMON:
        g += _dense_part(part0, shard, apart0, row, (row < common) | (SIDE == 1), k, P)
    if SIDE == 0:
        g += _dense_part(part1, shard, apart1, row - common, (row >= common) & (row < second), k, P)
        if PANELS == 2:
            g += _dense_part(part2, shard, apart2, row - second, row >= second, k, P)
    else:
        place = tl.load(places + shard * y_rows + row)
        g += _dense_part(part1, shard, apart1, place, place >= 0, k, P)
        if PANELS == 2:
            place = tl.load(places + (shards + shard) * y_rows + row)
            g += _dense_part(part2, shard, apart2, place, place >= 0, k, P)
    return g


@triton.jit
def _update_parts(
    g1, g2, vector, state, mirror, k1, k2, D, weight_decay, learning_rate, OPTIMIZER: tl.constexpr, MIRROR: tl.constexpr
):  # fmt: skip
    """Update a vector, the parts k1 and k2 of which have the gradients g1 and g2 without weight decay."""
    w1 = tl.load(vector + k1, mask=k1 < D, other=0.0)
    w2 = tl.load(vector + k2, mask=k2 < D, other=0.0)
    # Beyond D, vectors are zero, and so are the gradients.
    g1, g2 = g1 + weight_decay * w1, g2 + weight_decay * w2
    rate = 0.0
    if OPTIMIZER is not None:
        rate = find_rate(state, True, (tl.sum(g1 * g1) + tl.sum(g2 * g2)) / D, learning_rate, OPTIMIZER)
    _store_step(w1, g1, rate, vector, mirror, k1, k1, k1 < D, OPTIMIZER, MIRROR)
    _store_step(w2, g2, rate, vector, mirror, k2, k2, k2 < D, OPTIMIZER, MIRROR)


@triton.jit
def _store_three(line, first, second, third):
    tl.store(line, first)
    tl.store(line + 1, second)
    tl.store(line + 2, third)


# The gradient is the sum of the panels' products (`part0` to `part2`) and of the vector's rare observed cells, which
# are computed here in a loop over the slot of the vector, CHUNK cells at a time. The sampled panels begin at rows
# `common` and `second`. A vector of P values is in registers in two parts of P1 and P2 values, because a block of
# Triton has a power of two elements: own1 and own2 are the program's vector, theirs1 and theirs2 those of the cells,
# g1 and g2 its gradient.
#
# A rare cell whose column was sampled was added as a zero before, with the weight `zero`, which is subtracted. For a
# row, `first_weights` has the weights of all columns in the row's panel. For a column, `first_weights` and
# `second_weights` have its weight in each of the panels, and the row of the cell selects the panel.
#
# Rows are launched before columns, and both must read the old vectors in V. Rows therefore do not write V here; the
# launcher copies them afterwards. For rows, `losses` gets the observed loss, the loss of the cells as zeros (in log
# 2), and their weight as zeros, which the launcher subtracts.
@triton.jit
def update_sampled(
    vectors, state, V, offsets, places, zero_weights, table, part0, part1, part2, apart0, apart1, apart2,
    starts, positions, counts, losses, pitch, shards, others, common, second, D,
    weight_decay, decay_power, unit0, unit1, unseen, base, scale, power, learning_rate, OPTIMIZER: tl.constexpr,
    BY_SUM: tl.constexpr, SIDE: tl.constexpr, PANELS: tl.constexpr, HAS_COMMON: tl.constexpr, P: tl.constexpr,
    P1: tl.constexpr, P2: tl.constexpr, CHUNK: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Update one row (SIDE 0) or column (SIDE 1) of every shard, for steps that sample zeros."""
    row, shard = tl.program_id(0), tl.program_id(1).to(tl.int64)
    entry = table + shard * FIELDS
    slot = starts + tl.load(entry + 9 + SIDE) + row
    own, other0 = tl.load(entry + 7 * SIDE) + row, tl.load(entry + 7 - 7 * SIDE)  # `x0` and `whole_y0`
    start, stop = tl.load(slot), tl.load(slot + 1)

    k1, k2 = tl.arange(0, P1), P1 + tl.arange(0, P2)
    g1 = _dense_gradient(
        part0, part1, part2, apart0, apart1, apart2, places, shards, pitch, shard, row, common, second, k1,
        SIDE, PANELS, HAS_COMMON, P,
    )  # fmt: skip
    g2 = _dense_gradient(
        part0, part1, part2, apart0, apart1, apart2, places, shards, pitch, shard, row, common, second, k2,
        SIDE, PANELS, HAS_COMMON, P,
    )  # fmt: skip
    first_weights, second_weights = zero_weights + shard * pitch, zero_weights + ((PANELS - 1) * shards + shard) * pitch
    if SIDE == 0:
        first_weights = second_weights if row >= second else first_weights

    own1 = tl.load(V + own * P + k1, mask=k1 < P, other=0.0).to(tl.float32)
    own2 = tl.load(V + own * P + k2, mask=k2 < P, other=0.0).to(tl.float32)
    offset = tl.load(offsets + own) + unseen
    observed, zeros, weight = 0.0, 0.0, 0.0
    while start < stop:
        cell = start + tl.arange(0, CHUNK)
        ok = cell < stop
        other = tl.load(positions + cell, mask=ok, other=0).to(tl.int32) & 0xFFFF
        x = tl.load(counts + cell, mask=ok, other=1.0)
        source = V + (other0 + other)[:, None] * P
        theirs1 = tl.load(source + k1[None, :], mask=ok[:, None] & (k1 < P)[None, :], other=0.0).to(tl.float32)
        theirs2 = tl.load(source + k2[None, :], mask=ok[:, None] & (k2 < P)[None, :], other=0.0).to(tl.float32)
        if SIDE == 0:
            zero = tl.load(first_weights + other, mask=ok, other=0.0)
        else:
            zero = tl.where(other < second, tl.load(first_weights + row), tl.load(second_weights + row))
        # s = x . y, m = (s - pmi*) / log 2, e = dL / ds; then dL/dx = e y (or dL/dy = e x).
        s = tl.sum(theirs1 * own1[None, :], 1) + tl.sum(theirs2 * own2[None, :], 1)
        m = s * LOG2E - (offset + tl.load(offsets + other0 + other, mask=ok, other=0.0))
        pull, loss = observed_gradient(m, x, unseen, base, scale, power, SQRT, FAST)
        sigmoid, hinge = unobserved_gradient(m, FAST)
        # Subtract the gradient as a zero, rounded to the dtype of G as `gradient` has stored it.
        as_zero = (zero * sigmoid).to(V.dtype.element_ty).to(tl.float32)
        e = tl.where(ok, pull - as_zero, 0.0)
        loss, loss_as_zero = tl.where(ok, loss, 0.0), zero * finish_loss(hinge, FAST)
        g1, g2 = g1 + tl.sum(e[:, None] * theirs1, 0), g2 + tl.sum(e[:, None] * theirs2, 0)
        if SIDE == 0:
            observed += tl.sum(loss)
            zeros += tl.sum(loss_as_zero)
            weight += tl.sum(zero)
        start += CHUNK

    if BY_SUM:
        weight_decay = _decay_by_sum(offset - unseen, entry, SIDE, weight_decay, decay_power, unit0, unit1)
    vectors, state, V = vectors + own * D, state + own, V + own * P
    g1, g2 = g1 / others, g2 / others
    _update_parts(g1, g2, vectors, state, V, k1, k2, D, weight_decay, learning_rate, OPTIMIZER, SIDE == 1)
    if SIDE == 0:
        _store_three(losses + (shard * pitch + row) * 3, observed, zeros, weight)
