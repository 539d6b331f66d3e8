"""The step's Triton kernels. Plain functions over device arrays; the back products between them are cuBLAS's.

Legend. V is the mirror: the vectors of both sides in the products' dtype, a row each, blocks at equal distances. X is
the side that rows of the cells speak of, Y the other. A *tile* is BM x BN cells of a band of a shard. Margins m are in
units of log 2: m = (x . y - pmi*) / log 2, so that a hinge is log2(1 + 2^m) and its derivative 2^m / (1 + 2^m). G is
the gradient with respect to the dot products. A *slot* is a list of observed cells: those of a tile, or of a row or
column of the rare. `table` has a line of int64 for every shard and band; its columns are named in `plan.FIELDS`.
"""
# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False, disallow_untyped_calls=False

from __future__ import annotations

import triton
import triton.language as tl

FIELDS = tl.constexpr(14)
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Margins are cut off here: 2^60 squared is still a float32, so that a pair of hinges takes one logarithm.
MOST = tl.constexpr(60.0)
NEVER = tl.constexpr(1e30)


@triton.jit
def _log2(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.log2(x)


@triton.jit
def _sigmoid(m, FAST: tl.constexpr):
    """Return 2^m / (1 + 2^m) and 1 + 2^m."""
    if FAST:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .f32 e, r;
            ex2.approx.ftz.f32 e, $2;
            add.f32 $1, e, 0f3f800000;
            rcp.approx.ftz.f32 r, $1;
            mul.f32 $0, e, r;
            }
            """,
            "=&f,=&f,f",
            [m],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    e = tl.exp2(m)
    return e / (1 + e), 1 + e


@triton.jit
def _pull(m, x, unseen, base, scale, power, SQRT: tl.constexpr, FAST: tl.constexpr):
    """Return gradient and loss of observed cells of count x from their margins."""
    log_x = _log2(x, FAST)
    distance = (m + unseen - log_x) * LN2
    if SQRT:
        confidence = base + scale * tl.sqrt(x)
    else:
        confidence = base + scale * tl.exp2(power * log_x)
    gradient = confidence * distance
    return gradient, 0.5 * gradient * distance


@triton.jit
def _overwrite(
    margins, place, x, ok, tile_g, pitch, unseen, base, scale, power,
    BM: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Put the gradient of observed cells where that of zeros was written; return the losses to add."""
    m = tl.where(ok, tl.gather(margins, place, 0), 0.0)
    gradient, loss = _pull(m, x, unseen, base, scale, power, SQRT, FAST)
    row, column = (place // 8) % BM, (place // (8 * BM)) * 8 + place % 8
    tl.store(tile_g + row * pitch + column, gradient.to(tile_g.dtype.element_ty), mask=ok)
    _, hinge = _sigmoid(tl.minimum(m, MOST), FAST)
    return tl.where(ok, loss, 0.0), tl.where(ok, _log2(hinge, FAST), 0.0)


@triton.jit
def _bring_in(
    margins, place, x, positions, counts, start, stop, tile_g, pitch, unseen, base, scale, power,
    BM: tl.constexpr, CHUNK: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Bring a tile's observed cells in, the first chunk of which is loaded already."""
    ok = start + tl.arange(0, CHUNK) < stop
    observed, zeros = _overwrite(
        margins, place, x, ok, tile_g, pitch, unseen, base, scale, power, BM, SQRT, FAST
    )  # fmt: skip
    begin = start + CHUNK
    while begin < stop:
        cell = begin + tl.arange(0, CHUNK)
        ok = cell < stop
        place = tl.load(positions + cell, mask=ok, other=0).to(tl.int32)
        x = tl.load(counts + cell, mask=ok, other=1.0)
        more, more_zeros = _overwrite(
            margins, place, x, ok, tile_g, pitch, unseen, base, scale, power, BM, SQRT, FAST
        )  # fmt: skip
        observed += more
        zeros += more_zeros
        begin += CHUNK
    return tl.sum(observed), tl.sum(zeros)


@triton.jit
def gradient(
    V, offsets, weights, G, table, starts, positions, counts, losses,
    tiles_m, tiles_n, unseen, base, scale, power,
    P: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, WEIGHTED: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write G for a tile of every shard of a band, and what its cells lose: observed, and zeros in log 2."""
    pid = tl.program_id(0)
    shard = pid // (tiles_m * tiles_n)
    # Tiles in groups of rows, so that what is read at a time fits the cache.
    tile = pid % (tiles_m * tiles_n)
    first = tile // (GROUP * tiles_n) * GROUP
    rows_at_once = min(tiles_m - first, GROUP)
    tm = first + tile % (GROUP * tiles_n) % rows_at_once
    tn = tile % (GROUP * tiles_n) // rows_at_once
    entry = table + shard * FIELDS
    x0, height = tl.load(entry), tl.load(entry + 1)
    y0, width = tl.load(entry + 2), tl.load(entry + 3)
    slot, slot_columns, cell0 = tl.load(entry + 4), tl.load(entry + 5), tl.load(entry + 6)
    # The cells' first chunk is asked for before the product, which takes longer.
    slot += tm * slot_columns + tn
    has_cells = tn < slot_columns
    start = tl.load(starts + slot, mask=has_cells, other=0) + cell0
    stop = tl.load(starts + slot + 1, mask=has_cells, other=0) + cell0
    cell = start + tl.arange(0, CHUNK)
    place = tl.load(positions + cell, mask=cell < stop, other=0).to(tl.int32)
    count = tl.load(counts + cell, mask=cell < stop, other=1.0)
    i, j = tm * BM + tl.arange(0, BM), tn * BN + tl.arange(0, BN)
    # Beyond the edge a cell is as unobserved as can be: its gradient is zero.
    row_offset = tl.load(offsets + x0 + i, mask=i < height, other=NEVER)
    column_offset = tl.load(offsets + y0 + j, mask=j < width, other=NEVER)
    k = tl.arange(0, BK)
    xs = V + (x0 + i)[:, None] * P + k[None, :]
    ys = V + (y0 + j)[None, :] * P + k[:, None]
    product = tl.zeros((BM, BN), tl.float32)
    for _ in tl.range(0, P, BK, num_stages=STAGES):
        product = tl.dot(tl.load(xs), tl.load(ys), product, input_precision=PRECISION)
        xs += BK
        ys += BK
    m = product * LOG2E - ((row_offset + unseen)[:, None] + column_offset[None, :])
    g, hinge = _sigmoid(tl.minimum(m, MOST), FAST)
    if WEIGHTED:
        weight = tl.load(weights + y0 + j, mask=j < width, other=0.0)
        zeros = tl.sum(_log2(hinge, FAST) * weight[None, :])
        g *= weight[None, :]
    else:
        even, odd = tl.split(tl.reshape(hinge, (BM, BN // 2, 2)))
        zeros = tl.sum(_log2(even * odd, FAST))
    pitch = tiles_n * BN
    tile_g = G + shard.to(tl.int64) * (tiles_m * BM * pitch) + (tm * BM * pitch + tn * BN)
    tl.store(tile_g + tl.arange(0, BM)[:, None] * pitch + tl.arange(0, BN)[None, :], g.to(G.dtype.element_ty))
    observed, taken_back = 0.0, 0.0
    if stop > start:
        # In an order in which the threads' stores to shared memory do not meet in one bank.
        flat = tl.reshape(tl.permute(tl.reshape(m, (BM, BN // 8, 8)), (1, 0, 2)), (BM * BN,))
        tl.debug_barrier()  # the tile's own stores come first
        observed, taken_back = _bring_in(
            flat, place, count, positions, counts, start, stop, tile_g, pitch, unseen, base, scale, power,
            BM, CHUNK, SQRT, FAST,
        )  # fmt: skip
    program = losses + (shard * tiles_m * tiles_n + tile) * 2
    tl.store(program, observed)
    tl.store(program + 1, zeros - taken_back)


@triton.jit
def gather(
    V, offsets, weights, places, table, strides, lengths, fractions,
    y_rows, most, P: tl.constexpr, PP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Copy the columns that a band takes this time behind the others, and note their weights and places."""
    shard = tl.program_id(1)
    entry = table + shard * FIELDS
    y0, width = tl.load(entry + 2), tl.load(entry + 3)
    whole0, stride0 = tl.load(entry + 7), tl.load(entry + 8)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    ok = n < width
    start = tl.load(strides + stride0 + n, mask=ok, other=0.0)
    length = tl.load(lengths + stride0 + n, mask=ok, other=0.0)
    column = (start + tl.load(fractions + shard) * length).to(tl.int64)
    tl.store(weights + y0 + n, length.to(tl.float32), mask=ok)
    tl.store(offsets + y0 + n, tl.load(offsets + whole0 + column, mask=ok, other=0.0), mask=ok)
    tl.store(places + shard.to(tl.int64) * y_rows + column, n, mask=ok)
    k = tl.arange(0, PP)
    inside = (k < P)[None, :]
    # Rows between the last column and the padded end meet a gradient of zero; they must only be finite.
    source = V + (whole0 + column)[:, None] * P + k[None, :]
    vector = tl.load(source, mask=ok[:, None] & inside, other=0.0)
    tl.store(V + (y0 + n)[:, None] * P + k[None, :], vector, mask=(n < most)[:, None] & inside)


@triton.jit
def _adagrad(gradient, vectors, accumulators, mirror, at, mirror_at, mask, decay, rate, MIRROR: tl.constexpr):
    w = tl.load(vectors + at, mask=mask, other=0.0)
    a = tl.load(accumulators + at, mask=mask, other=1.0)
    g = gradient + decay * w
    a += g * g
    w -= rate * g / tl.sqrt(a)
    tl.store(vectors + at, w, mask=mask)
    tl.store(accumulators + at, a, mask=mask)
    if MIRROR:
        tl.store(mirror + mirror_at, w.to(mirror.dtype.element_ty), mask=mask)


@triton.jit
def update(
    vectors, accumulators, V, gradients, table, side, D, pitch, rows_apart, decay, rate,
    P: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Adagrad on one side of every shard, all zeros computed: elements one after the other, 300 to a row."""
    shard = tl.program_id(1)
    entry = table + shard * FIELDS + 2 * side
    row0, rows = tl.load(entry), tl.load(entry + 1)
    others = tl.load(table + shard * FIELDS + 3 - 2 * side)
    element = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = element < rows * D
    row = element // D
    k = element - row * D
    at = shard.to(tl.int64) * rows_apart * pitch + row.to(tl.int64) * pitch + k
    g = tl.load(gradients + at, mask=mask, other=0.0).to(tl.float32) / others.to(tl.float32)
    _adagrad(g, vectors, accumulators, V, row0 * D + element, (row0 + row) * P + k, mask, decay, rate, True)


@triton.jit
def refresh(vectors, V, table, side, D, rows, P: tl.constexpr, SIZE: tl.constexpr):
    """Copy one side of every shard to the mirror."""
    shard = tl.program_id(1)
    row0 = tl.load(table + shard * FIELDS + 2 * side)
    element = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = element < rows * D
    row = element // D
    w = tl.load(vectors + row0 * D + element, mask=mask, other=0.0)
    tl.store(V + (row0 + row) * P + (element - row * D), w.to(V.dtype.element_ty), mask=mask)


@triton.jit
def _weight_of_zero(weights, places, column, band, places_at, ok):
    """Return how often a zero of each column counts in a band: 0 where it was not taken."""
    place = tl.load(places + places_at + column, mask=ok, other=-1)
    return tl.load(weights + tl.load(band + 2) + place, mask=ok & (place >= 0), other=0.0)


@triton.jit
def update_sampled(
    vectors, accumulators, V, offsets, weights, places, table, part0, part1, part2,
    starts, positions, counts, losses, shards, rows0, rows1, rows2, y_rows, D,
    decay, rate, unseen, base, scale, power,
    SIDE: tl.constexpr, BANDS: tl.constexpr, HAS_COMMON: tl.constexpr, P: tl.constexpr, PP: tl.constexpr,
    CHUNK: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Adagrad on a vector of every shard: what the bands' products say of it, and its observed cells among the rare.

    A program is one row (SIDE 0) or column (SIDE 1). Of an observed cell whose zero was taken, that zero is taken
    off again.
    """
    row = tl.program_id(0)
    shard = tl.program_id(1).to(tl.int64)
    entry = table + shard * FIELDS
    if row >= tl.load(entry + 10 + SIDE):
        return
    own0, other0 = tl.load(entry + 7 * SIDE), tl.load(entry + 7 - 7 * SIDE)
    k = tl.arange(0, PP)
    inside = k < P
    g = tl.zeros((PP,), tl.float32)
    if HAS_COMMON:
        rows = tl.load(entry + 10 + SIDE) if SIDE == 1 else tl.load(entry + 1)
        g += tl.load(part0 + (shard * rows0 + row) * P + k, mask=inside & (row < rows), other=0.0).to(tl.float32)
    for band in tl.static_range(1, BANDS + 1):
        line = entry + band * shards * FIELDS
        if SIDE == 0:
            local = row - tl.load(line + 9)
            taken = (local >= 0) & (local < tl.load(line + 1))
        else:
            local = tl.load(places + ((band - 1) * shards + shard) * y_rows + row).to(tl.int64)
            taken = local >= 0
        part = part1 if band == 1 else part2
        apart = rows1 if band == 1 else rows2
        g += tl.load(part + (shard * apart + local) * P + k, mask=inside & taken, other=0.0).to(tl.float32)
    slot = tl.load(entry + 12 + SIDE) + row
    cell0 = tl.load(entry + 6)
    start, stop = tl.load(starts + slot) + cell0, tl.load(starts + slot + 1) + cell0
    own = tl.load(V + (own0 + row) * P + k, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(offsets + own0 + row) + unseen
    observed, zeros, weight = 0.0, 0.0, 0.0
    while start < stop:
        cell = start + tl.arange(0, CHUNK)
        ok = cell < stop
        other = tl.load(positions + cell, mask=ok, other=0).to(tl.int32) & 0xFFFF
        x = tl.load(counts + cell, mask=ok, other=1.0)
        source = V + (other0 + other)[:, None] * P + k[None, :]
        theirs = tl.load(source, mask=ok[:, None] & inside[None, :], other=0.0).to(tl.float32)
        s = tl.sum(theirs * own[None, :], 1)
        m = s * LOG2E - (offset + tl.load(offsets + other0 + other, mask=ok, other=0.0))
        pull, loss = _pull(m, x, unseen, base, scale, power, SQRT, FAST)
        sigmoid, hinge = _sigmoid(tl.minimum(m, MOST), FAST)
        zero = tl.zeros((CHUNK,), tl.float32)
        for band in tl.static_range(1, BANDS + 1):
            line = entry + band * shards * FIELDS
            column, their_row = (other, row) if SIDE == 0 else (row, other)
            local = their_row - tl.load(line + 9)
            at = ((band - 1) * shards + shard) * y_rows
            is_here = ok & (local >= 0) & (local < tl.load(line + 1))
            zero += _weight_of_zero(weights, places, column + tl.zeros((CHUNK,), tl.int32), line, at, is_here)
        e = tl.where(ok, pull - zero * sigmoid, 0.0)
        g += tl.sum(e[:, None] * theirs, 0)
        observed += tl.sum(tl.where(ok, loss, 0.0))
        zeros += tl.sum(zero * _log2(hinge, FAST))
        weight += tl.sum(zero)
        start += CHUNK
    others = tl.load(entry + 11 - SIDE).to(tl.float32)
    own_at = own0 + row
    # Columns come second and read the rows' old vectors: theirs are copied to the mirror afterwards.
    _adagrad(
        g / others, vectors, accumulators, V, own_at * D + k, own_at * P + k, k < D, decay, rate, SIDE == 1
    )  # fmt: skip
    if SIDE == 0:
        line = losses + (shard * y_rows + row) * 3
        tl.store(line, observed)
        tl.store(line + 1, zeros)
        tl.store(line + 2, weight)
