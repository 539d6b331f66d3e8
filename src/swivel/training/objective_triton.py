"""The objective and the optimizer for Triton: functions that the kernels of a GPU inline.

A margin is m = (x . y - pmi*) / log 2, so that L_0 / log 2 = log2(1 + 2^m), and its derivative with respect to x . y
is 2^m / (1 + 2^m). `objective` has the equations. FAST uses the hardware approximations of exp2, log2 and 1/x.

`triton.hopper` has its own version of the losses, written for its order of the registers.
"""
# mypy: disallow_untyped_defs=False, disallow_incomplete_defs=False, disallow_untyped_calls=False

from __future__ import annotations

import triton
import triton.language as tl

from swivel.training import objective

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Upper limit of the margins: 2^60 squared is still finite in float32, so that two hinges can share one logarithm.
MAX_MARGIN = tl.constexpr(60.0)
MIN_ACCUMULATOR = tl.constexpr(objective.MIN_ACCUMULATOR)


@triton.jit
def log2(x, FAST: tl.constexpr):
    """Return the logarithm of x to base 2."""
    if FAST:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.log2(x)


@triton.jit
def unobserved_gradient(m, FAST: tl.constexpr):
    """Return the gradient of unobserved cells, 2^m / (1 + 2^m), and 1 + 2^m, whose logarithm is L_0 / log 2.

    The logarithm of the product of two of them is the loss of two cells.
    """
    m = tl.minimum(m, MAX_MARGIN)
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
def observed_gradient(m, x, unseen, base, scale, power, SQRT: tl.constexpr, FAST: tl.constexpr):
    """Return gradient and loss L_1 of observed cells of count x from their margins."""
    # distance = x . y - pmi
    log_x = log2(x, FAST)
    distance = (m + unseen - log_x) * LN2

    # f(x) = base + scale x^power; the paper's power is 1/2.
    if SQRT:
        confidence = base + scale * tl.sqrt(x)
    else:
        confidence = base + scale * tl.exp2(power * log_x)

    gradient = confidence * distance
    return gradient, 0.5 * gradient * distance


@triton.jit
def find_rate(state, mask, mean_square, learning_rate, DECAY: tl.constexpr):
    """Return by what an Adagrad step multiplies the gradient of a vector; update the vector's state.

    mean_square: of the values of the gradient. `state` points at one number per vector.
    """
    a = tl.load(state, mask=mask, other=1.0)
    # Each of the warps that share a long vector loads its state: none may store it before all have.
    tl.debug_barrier()
    a = tl.maximum(DECAY * a + mean_square, MIN_ACCUMULATOR)
    tl.store(state, a, mask=mask)
    return learning_rate * tl.rsqrt(a)
