"""What a warp group of the Hopper kernel does with one tile of 64 x 128 margins: zeros, then observed cells.

Receives margins in registers; writes gradients, and hands on what the cells lose. It knows no ring, no items and no
order of tiles: those are `hopper`'s. Legend as in `kernels`.
"""
# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
MOST = gl.constexpr(60.0)
FIRST_CHUNK = gl.constexpr(128)  # a cell a thread
MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
WORD = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# Columns go through the products in another order, so that a thread gets eight neighbours and writes 16 bytes at a
# time: of 32 columns, column 8 q + 2 j + b is taken as number 8 j + 2 q + b. The ring is filled in that order.
PAIRS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], [0, 16], [0, 32]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [],
        [64, 64],
    )
)  # fmt: skip
# Margins of a tile, [16 eights of columns, 64 rows, 8 columns]: in the order of the cells' positions, but for two bits
# that keep the threads' stores out of each other's banks.
MARGINS = gl.constexpr(
    gl.SharedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0], [0, 8, 0], [0, 16, 0], [0, 32, 0],
         [1, 2, 0], [2, 0, 4], [4, 0, 0], [8, 0, 0]]
    )
)  # fmt: skip


barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name until Triton 3.6, and since


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
    """Return two numbers of 16 bits in one word."""
    if HALF:
        return gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
        )
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _load_shared(address):
    """Return numbers from shared memory, each from an address of its own."""
    return gl.inline_asm_elementwise(
        "ld.shared.f32 $0, [$1];", "=f,r,~{memory}", [address], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def write_addresses():
    """Write its own address to every 16 bytes of shared memory.

    The first word of an array says then where it lies, which the language does not. To be done before all else.
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
    """Return where an array lies in shared memory."""
    words = margins._reinterpret(gl.int32, [8192], WORD).slice(0, 128).load(LINE)
    return gl.sum(gl.where(gl.arange(0, 128, LINE) == 0, words, 0))


@gluon.jit
def sum_pairs(x):
    """[64 rows, 64 pairs] -> [64, 4], inside each thread."""
    return gl.sum(gl.reshape(x, (64, 16, 4)), axis=1)


@gluon.jit
def order(n):
    """Return the column that is taken as number n."""
    return n // 32 * 32 + n // 2 % 4 * 8 + n // 8 % 4 * 2 + n % 2


@gluon.jit
def spread(x, line):
    """Give every thread what belongs to its columns of a tile."""
    line.store(x)
    return line.load(gl.SliceLayout(0, MMA))


@gluon.jit
def push(m, weight, line, WEIGHTED: gl.constexpr, HALF: gl.constexpr, PUSH: gl.constexpr):
    """Return the gradients of zeros, packed in pairs, and sums of their hinges; zeros of both, unless they PUSH."""
    if not PUSH:
        nothing, _ = gl.split(gl.reshape(gl.zeros((64, 128), gl.float32, MMA), (64, 64, 2)))
        return _pack(nothing, nothing, HALF), sum_pairs(nothing)
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
    """Put the gradient of observed cells where that of zeros was written; return the losses to add."""
    unseen, base, scale, power = objective
    place = place.to(gl.int32)
    m = _load_shared(address + (place ^ (place // 32 & 16) ^ (place // 256 & 4)) * 4)
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
    """Ask for the first chunk of a tile's cells."""
    at = gl.arange(0, FIRST_CHUNK, LINE)
    place = gl.load(positions + at, mask=at < cells, other=0)
    return positions, counts, cells, place, gl.load(counts + at, mask=at < cells, other=1.0)


@gluon.jit
def bring_in(
    cells, address, tile_g, pitch, objective, observed, zeros,
    CHUNK: gl.constexpr, CAP: gl.constexpr, PUSH: gl.constexpr,
):  # fmt: skip
    """Bring a tile's observed cells in; return observed loss and zeros' loss to take back, both added to."""
    positions, counts, cells, place, x = cells
    ok = gl.arange(0, FIRST_CHUNK, LINE) < cells
    barrier()  # the tile's own gradients, and the margins, come first
    more, fewer = _overwrite(address, place, x, ok, tile_g, pitch, objective, CAP, PUSH)
    observed += more
    zeros += fewer
    if cells > FIRST_CHUNK:
        at = FIRST_CHUNK + gl.arange(0, CHUNK, LINE)
        places = gl.load(positions + at, mask=at < cells, other=0)
        xs = gl.load(counts + at, mask=at < cells, other=1.0)
        for _ in range(FIRST_CHUNK, cells, CHUNK):
            # The next ones are on their way meanwhile.
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
    """[chunk] -> [first chunk], inside each thread."""
    folded = gl.sum(gl.reshape(x, (x.shape[0] // FIRST_CHUNK, FIRST_CHUNK)), axis=0)
    return gl.convert_layout(folded, LINE, assert_trivial=True)


@gluon.jit
def write_tile(tile_g, g, pitch, is_there):
    """Write a tile's gradients, which come in pairs and in the order of the products."""
    g = gl.reshape(gl.permute(gl.reshape(g, (64, 4, 4, 4)), (0, 1, 3, 2)), (64, 64))
    g = gl.convert_layout(g, PAIRS, assert_trivial=True)
    row, pair = gl.arange(0, 64, gl.SliceLayout(1, PAIRS)), gl.arange(0, 64, gl.SliceLayout(0, PAIRS))
    at = row[:, None] * (pitch // 2) + pair[None, :]
    words = tile_g.to(gl.pointer_type(gl.int32), bitcast=True)
    gl.store(words + at, g, mask=gl.full((64, 64), is_there, gl.int1, PAIRS))
