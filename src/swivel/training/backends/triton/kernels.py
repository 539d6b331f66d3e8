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

from swivel.training.backends.triton import layout as plan

FIELDS = tl.constexpr(len(plan.FIELDS))
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
def _pull(m, x, unseen, base, scale, power, SQRT: tl.constexpr, FAST: tl.constexpr, CAP: tl.constexpr):
    """Return gradient and loss of observed cells of count x from their margins; CAP is the most of f, or None."""
    log_x = _log2(x, FAST)
    distance = (m + unseen - log_x) * LN2
    if SQRT:
        confidence = base + scale * tl.sqrt(x)
    else:
        confidence = base + scale * tl.exp2(power * log_x)
    if CAP is not None:
        confidence = tl.minimum(confidence, CAP)
    gradient = confidence * distance
    return gradient, 0.5 * gradient * distance


@triton.jit
def _overwrite(
    margins, place, x, ok, tile_g, pitch, unseen, base, scale, power,
    BM: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr, CAP: tl.constexpr, PUSH: tl.constexpr,
):  # fmt: skip
    """Put the gradient of observed cells where that of zeros was written; return the losses to add."""
    m = tl.where(ok, tl.gather(margins, place, 0), 0.0)
    gradient, loss = _pull(m, x, unseen, base, scale, power, SQRT, FAST, CAP)
    row, column = (place // 8) % BM, (place // (8 * BM)) * 8 + place % 8
    tl.store(tile_g + row * pitch + column, gradient.to(tile_g.dtype.element_ty), mask=ok)
    loss = tl.where(ok, loss, 0.0)
    if not PUSH:
        return loss, tl.zeros_like(loss)
    _, hinge = _sigmoid(tl.minimum(m, MOST), FAST)
    return loss, tl.where(ok, _log2(hinge, FAST), 0.0)


@triton.jit
def _bring_in(
    margins, place, x, positions, counts, start, stop, tile_g, pitch, unseen, base, scale, power,
    BM: tl.constexpr, CHUNK: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr, CAP: tl.constexpr,
    PUSH: tl.constexpr,
):  # fmt: skip
    """Bring a tile's observed cells in, the first chunk of which is loaded already."""
    ok = start + tl.arange(0, CHUNK) < stop
    observed, zeros = _overwrite(
        margins, place, x, ok, tile_g, pitch, unseen, base, scale, power, BM, SQRT, FAST, CAP, PUSH
    )  # fmt: skip
    begin = start + CHUNK
    while begin < stop:
        cell = begin + tl.arange(0, CHUNK)
        ok = cell < stop
        place = tl.load(positions + cell, mask=ok, other=0).to(tl.int32)
        x = tl.load(counts + cell, mask=ok, other=1.0)
        more, more_zeros = _overwrite(
            margins, place, x, ok, tile_g, pitch, unseen, base, scale, power, BM, SQRT, FAST, CAP, PUSH
        )  # fmt: skip
        observed += more
        zeros += more_zeros
        begin += CHUNK
    return tl.sum(observed), tl.sum(zeros)


@triton.jit
def _push(m, weights, is_column, WEIGHTED: tl.constexpr, FAST: tl.constexpr, PUSH: tl.constexpr):
    """Return the gradients of a tile's zeros and their summed loss: nothing, unless they PUSH (`unseen` is 0 then)."""
    if not PUSH:
        return tl.zeros_like(m), 0.0
    g, hinge = _sigmoid(tl.minimum(m, MOST), FAST)
    if WEIGHTED:
        weight = tl.load(weights, mask=is_column, other=0.0)
        return g * weight[None, :], tl.sum(_log2(hinge, FAST) * weight[None, :])
    even, odd = tl.split(tl.reshape(hinge, (m.shape[0], m.shape[1] // 2, 2)))
    return g, tl.sum(_log2(even * odd, FAST))


@triton.jit
def _find_tile(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return row and column of a tile: in groups of rows, so that what is read at a time fits the cache."""
    first = tile // (GROUP * tiles_n) * GROUP
    rows_at_once = min(tiles_m - first, GROUP)
    return first + tile % (GROUP * tiles_n) % rows_at_once, tile % (GROUP * tiles_n) // rows_at_once


@triton.jit
def gradient(
    V, offsets, weights, G, table, starts, positions, counts, losses,
    tiles_m, tiles_n, unseen, base, scale, power,
    P: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr, WEIGHTED: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr, CAP: tl.constexpr,
    PUSH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write G for a tile of every shard of a band, and what its cells lose: observed, and zeros in log 2."""
    pid = tl.program_id(0)
    shard = pid // (tiles_m * tiles_n)
    tile = pid % (tiles_m * tiles_n)
    tm, tn = _find_tile(tile, tiles_m, tiles_n, GROUP)
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
    g, zeros = _push(m, weights + y0 + j, j < width, WEIGHTED, FAST, PUSH)
    pitch = tiles_n * BN
    row_g = shard.to(tl.int64) * (tiles_m * BM) + tm * BM
    tile_g = G + row_g * pitch + tn * BN
    tl.store(tile_g + tl.arange(0, BM)[:, None] * pitch + tl.arange(0, BN)[None, :], g.to(G.dtype.element_ty))
    observed, taken_back = 0.0, 0.0
    if stop > start:
        # In an order in which the threads' stores to shared memory do not meet in one bank.
        flat = tl.reshape(tl.permute(tl.reshape(m, (BM, BN // 8, 8)), (1, 0, 2)), (BM * BN,))
        tl.debug_barrier()  # the tile's own stores come first
        observed, taken_back = _bring_in(
            flat, place, count, positions, counts, start, stop, tile_g, pitch, unseen, base, scale, power,
            BM, CHUNK, SQRT, FAST, CAP, PUSH,
        )  # fmt: skip
    program = losses + (shard * tiles_m * tiles_n + tile) * 2
    tl.store(program, observed)
    tl.store(program + 1, zeros - taken_back)


@triton.jit
def gather(
    V, offsets, weights, places, taken, table, strides, lengths, fractions,
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
    tl.store(taken + shard.to(tl.int64) * y_rows + column, length.to(tl.float32), mask=ok)
    k = tl.arange(0, PP)
    inside = (k < P)[None, :]
    # Rows between the last column and the padded end meet a gradient of zero; they must only be finite.
    source = V + (whole0 + column)[:, None] * P + k[None, :]
    vector = tl.load(source, mask=ok[:, None] & inside, other=0.0)
    tl.store(V + (y0 + n)[:, None] * P + k[None, :], vector, mask=(n < most)[:, None] & inside)


@triton.jit
def _adagrad(
    gradient, vectors, accumulators, mirror, at, mirror_at, mask, weight_decay, learning_rate, MIRROR: tl.constexpr
):
    w = tl.load(vectors + at, mask=mask, other=0.0)
    a = tl.load(accumulators + at, mask=mask, other=1.0)
    g = gradient + weight_decay * w
    a += g * g
    w -= learning_rate * g * tl.rsqrt(a)
    tl.store(vectors + at, w, mask=mask)
    tl.store(accumulators + at, a, mask=mask)
    if MIRROR:
        tl.store(mirror + mirror_at, w.to(mirror.dtype.element_ty), mask=mask)


@triton.jit
def update(
    vectors, accumulators, V, gradients, table, side, pitch, rows_apart, weight_decay, learning_rate,
    D: tl.constexpr, P: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Adagrad on one side of every shard, all zeros computed: elements one after the other, D to a row."""
    shard = tl.program_id(1).to(tl.int64)
    entry = table + shard * FIELDS + 2 * side
    row0, rows = tl.load(entry), tl.load(entry + 1).to(tl.int32)
    share = 1.0 / tl.load(table + shard * FIELDS + 3 - 2 * side).to(tl.float32)
    element = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = element < rows * D
    row = element // D
    k = element - row * D
    g = tl.load(gradients + shard * rows_apart * pitch + (row * pitch + k), mask=mask, other=0.0).to(tl.float32)
    vectors, accumulators, V = vectors + row0 * D, accumulators + row0 * D, V + row0 * P
    _adagrad(g * share, vectors, accumulators, V, element, row * P + k, mask, weight_decay, learning_rate, True)


@triton.jit
def refresh(vectors, V, table, side, rows, D: tl.constexpr, P: tl.constexpr, SIZE: tl.constexpr):
    """Copy one side of every shard to the mirror."""
    shard = tl.program_id(1)
    row0 = tl.load(table + shard * FIELDS + 2 * side)
    element = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = element < rows * D
    row = element // D
    w = tl.load(vectors + row0 * D + element, mask=mask, other=0.0)
    tl.store(V + (row0 + row) * P + (element - row * D), w.to(V.dtype.element_ty), mask=mask)


@triton.jit
def _dense_part(part, shard, apart, local, is_here, k, P: tl.constexpr):
    """Return what a band's product back says of a vector."""
    return tl.load(part + (shard * apart + local) * P + k, mask=is_here & (k < P), other=0.0).to(tl.float32)


@triton.jit
def _dense_gradient(
    part0, part1, part2, apart0, apart1, apart2, places, shards, y_rows, shard, row, common, second, k,
    SIDE: tl.constexpr, BANDS: tl.constexpr, HAS_COMMON: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Return the sum of what the bands' products say of a row (of its band's) or of a column (of all that took it)."""
    g = tl.zeros(k.shape, tl.float32)
    if HAS_COMMON:
        g += _dense_part(part0, shard, apart0, row, (row < common) | (SIDE == 1), k, P)
    if SIDE == 0:
        g += _dense_part(part1, shard, apart1, row - common, (row >= common) & (row < second), k, P)
        if BANDS == 2:
            g += _dense_part(part2, shard, apart2, row - second, row >= second, k, P)
    else:
        place = tl.load(places + shard * y_rows + row)
        g += _dense_part(part1, shard, apart1, place, place >= 0, k, P)
        if BANDS == 2:
            place = tl.load(places + (shards + shard) * y_rows + row)
            g += _dense_part(part2, shard, apart2, place, place >= 0, k, P)
    return g


@triton.jit
def _rare_pull(
    m, x, zero, ok, V, unseen, base, scale, power,
    SQRT: tl.constexpr, FAST: tl.constexpr, CAP: tl.constexpr, PUSH: tl.constexpr,
):  # fmt: skip
    """Return gradient and loss of observed cells of the rare, and the loss of their zeros that is to be taken back."""
    pull, loss = _pull(m, x, unseen, base, scale, power, SQRT, FAST, CAP)
    if not PUSH:
        return tl.where(ok, pull, 0.0), tl.where(ok, loss, 0.0), tl.zeros_like(loss)
    sigmoid, hinge = _sigmoid(tl.minimum(m, MOST), FAST)
    # What was added for the zero was rounded to the products' dtype.
    added = (zero * sigmoid).to(V.dtype.element_ty).to(tl.float32)
    return tl.where(ok, pull - added, 0.0), tl.where(ok, loss, 0.0), zero * _log2(hinge, FAST)


@triton.jit
def _store_three(line, first, second, third):
    tl.store(line, first)
    tl.store(line + 1, second)
    tl.store(line + 2, third)


@triton.jit
def _load_halves(line, k1, k2, P: tl.constexpr):
    """Return a vector of the mirror in two parts, as float32."""
    first = tl.load(line + k1, mask=k1 < P, other=0.0).to(tl.float32)
    return first, tl.load(line + k2, mask=k2 < P, other=0.0).to(tl.float32)


@triton.jit
def update_sampled(
    vectors, accumulators, V, offsets, places, taken, table, part0, part1, part2, apart0, apart1, apart2,
    starts, positions, counts, losses, own_first, other_first, pitch, shards, others, common, second, D,
    weight_decay, learning_rate, unseen, base, scale, power,
    SIDE: tl.constexpr, BANDS: tl.constexpr, HAS_COMMON: tl.constexpr, P: tl.constexpr, P1: tl.constexpr,
    P2: tl.constexpr, CHUNK: tl.constexpr, SQRT: tl.constexpr, FAST: tl.constexpr, CAP: tl.constexpr,
    PUSH: tl.constexpr,
):  # fmt: skip
    """Adagrad on a vector of every shard: what the bands' products say of it, and its observed cells among the rare.

    A program is one row (SIDE 0) or column (SIDE 1). The sampled bands begin at rows `common` and `second`.
    """
    row, shard = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = starts + tl.load(table + shard * FIELDS + 12 + SIDE) + row
    cell0 = tl.load(table + shard * FIELDS + 6)
    own, other0 = own_first + shard * pitch + row, other_first + shard * pitch
    start, stop = tl.load(slot) + cell0, tl.load(slot + 1) + cell0
    k1, k2 = tl.arange(0, P1), P1 + tl.arange(0, P2)
    g1 = _dense_gradient(
        part0, part1, part2, apart0, apart1, apart2, places, shards, pitch, shard, row, common, second, k1,
        SIDE, BANDS, HAS_COMMON, P,
    )  # fmt: skip
    g2 = _dense_gradient(
        part0, part1, part2, apart0, apart1, apart2, places, shards, pitch, shard, row, common, second, k2,
        SIDE, BANDS, HAS_COMMON, P,
    )  # fmt: skip
    # How often a zero counts: of a row, that of the column in the row's band; of a column, that in either band.
    first_taken, second_taken = taken + shard * pitch, taken + ((BANDS - 1) * shards + shard) * pitch
    if SIDE == 0:
        first_taken = second_taken if row >= second else first_taken
    own1, own2 = _load_halves(V + own * P, k1, k2, P)
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
            zero = tl.load(first_taken + other, mask=ok, other=0.0)
        else:
            zero = tl.where(other < second, tl.load(first_taken + row), tl.load(second_taken + row))
        s = tl.sum(theirs1 * own1[None, :], 1) + tl.sum(theirs2 * own2[None, :], 1)
        m = s * LOG2E - (offset + tl.load(offsets + other0 + other, mask=ok, other=0.0))
        e, loss, hinge = _rare_pull(m, x, zero, ok, V, unseen, base, scale, power, SQRT, FAST, CAP, PUSH)
        g1, g2 = g1 + tl.sum(e[:, None] * theirs1, 0), g2 + tl.sum(e[:, None] * theirs2, 0)
        if SIDE == 0:
            observed += tl.sum(loss)
            zeros += tl.sum(hinge)
            weight += tl.sum(zero)
        start += CHUNK
    # Columns come second and read the rows' old vectors: theirs are copied to the mirror afterwards.
    vectors, accumulators, V = vectors + own * D, accumulators + own * D, V + own * P
    _adagrad(g1 / others, vectors, accumulators, V, k1, k1, k1 < D, weight_decay, learning_rate, SIDE == 1)
    _adagrad(g2 / others, vectors, accumulators, V, k2, k2, k2 < D, weight_decay, learning_rate, SIDE == 1)
    if SIDE == 0:
        _store_three(losses + (shard * pitch + row) * 3, observed, zeros, weight)
