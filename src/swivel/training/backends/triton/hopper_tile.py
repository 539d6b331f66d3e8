"""The work of a warp group of the Hopper kernel on one tile of 64 x 128 margins: zeros, then observed cells.

`hopper` passes the margins in registers; the functions here write G and return the losses. Symbols as in `kernels`.

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

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
MOST = gl.constexpr(60.0)  # upper limit of the margins: (1 + 2^60)^2 is still finite in float32
FIRST_CHUNK = gl.constexpr(128)  # one cell per thread
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
    if HALF:
        return gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
        )
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


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
def push(m, weight, line, WEIGHTED: gl.constexpr, HALF: gl.constexpr, PUSH: gl.constexpr):
    """Return the gradients of all cells as zeros, packed in pairs, and partial sums of log2(1 + 2^m).

    Both are 0 without PUSH. With WEIGHTED, loss and gradient are multiplied by the weight of the column.
    """
    if not PUSH:
        nothing, _ = gl.split(gl.reshape(gl.zeros((64, 128), gl.float32, MMA), (64, 64, 2)))
        return _pack(nothing, nothing, HALF), sum_pairs(nothing)

    # Two neighboring cells 0 and 1: with a = 1 + 2^m0 and b = 1 + 2^m1, one reciprocal 1 / (a b) gives both sigmoids,
    # 2^m0 b / (a b) and 2^m1 a / (a b), and one logarithm log2(a b) gives both losses.
    e0, e1 = gl.split(gl.reshape(_exp2(gl.minimum(m, MOST)), (64, 64, 2)))
    one0 = e0 + 1.0
    one1 = e1 + 1.0
    both = one0 * one1
    inverse = _reciprocal(both)
    g0 = e0 * (inverse * one1)
    g1 = e1 * (inverse * one0)

    if WEIGHTED:
        wide = spread(weight, line)[None, :] + gl.zeros((64, 128), gl.float32, MMA)
        w0, w1 = gl.split(gl.reshape(wide, (64, 64, 2)))
        hinges = sum_pairs(_log2(one0) * w0 + _log2(one1) * w1)
        return _pack(g0 * w0, g1 * w1, HALF), hinges

    return _pack(g0, g1, HALF), sum_pairs(_log2(both))


@gluon.jit
def _overwrite(address, place, x, ok, tile_g, pitch, objective, CAP: gl.constexpr, PUSH: gl.constexpr):
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
    if CAP is not None:
        confidence = gl.minimum(confidence, CAP)
    gradient = confidence * distance

    row, column = (place // 8) % 64, (place // 512) * 8 + place % 8
    gl.store(tile_g + row * pitch + column, gradient.to(tile_g.dtype.element_ty), mask=ok)

    if PUSH:
        hinge = _log2(1.0 + _exp2(gl.minimum(m, MOST)))
    else:
        hinge = gl.zeros_like(m)
    return _fold(gl.where(ok, 0.5 * gradient * distance, 0.0)), _fold(gl.where(ok, hinge, 0.0))


@gluon.jit
def first_cells(positions, counts, cells):
    """Start loading the first chunk of a tile's cells; return the tuple that `bring_in` takes."""
    at = gl.arange(0, FIRST_CHUNK, LINE)
    place = gl.load(positions + at, mask=at < cells, other=0)
    return positions, counts, cells, place, gl.load(counts + at, mask=at < cells, other=1.0)


@gluon.jit
def bring_in(
    cells, address, tile_g, pitch, objective, observed, zeros,
    CHUNK: gl.constexpr, CAP: gl.constexpr, PUSH: gl.constexpr,
):  # fmt: skip
    """Overwrite the observed cells of a tile; return the two sums of losses of `_overwrite`, with this tile added."""
    positions, counts, cells, place, x = cells
    ok = gl.arange(0, FIRST_CHUNK, LINE) < cells
    barrier()  # the stores of the tile's gradients and margins must be complete
    more, fewer = _overwrite(address, place, x, ok, tile_g, pitch, objective, CAP, PUSH)
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
            more, fewer = _overwrite(address, places, xs, at < cells, tile_g, pitch, objective, CAP, PUSH)
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
