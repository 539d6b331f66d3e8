"""The objective and the optimizer for numba: functions of one cell or one parameter, inlined in the CPU's kernels.

LLVM vectorizes the loops around them: exp and log are polynomials, and branches are selects. Exponents are in base 2,
e^z = 2^(z log2(e)). `objective` has the equations.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from swivel.runtime.kernels import njit_cached
from swivel.training.objective import MIN_ACCUMULATOR

F = np.float32
LOG2E = F(1.4426950408889634)
LN2 = F(0.6931471805599453)
# Exponents y of 2^y are clipped to this range. Beyond it the soft hinge log(1 + 2^y) is constant or linear in float32.
# The upper bound also keeps a product of four (1 + 2^y) finite. The gradient is exact to the last bit there; the loss
# of a cell is limited to 30 log 2 = 20.8.
LOWEST = F(-86.0)
HIGHEST = F(30.0)

# Always inlined into the calling kernel: as separate functions they would be inlined or not, and therefore round
# differently, depending on which process compiled which of them first.
_inline = numba.njit(inline="always", fastmath=True, error_model="numpy")
_kernel = njit_cached(nogil=True, fastmath=True, error_model="numpy", boundscheck=False)


@_inline
def exp2(y: Any) -> Any:
    """Return 2^y for -126 < y < 127, with a relative error below 2e-7."""
    # 2^y = 2^whole 2^rest with |rest| <= 1/2; a polynomial of degree 5 approximates 2^rest.
    whole = np.rint(y)
    rest = y - whole

    p = F(1.3264727270531492e-3)
    p = p * rest + F(9.67151308088281e-3)
    p = p * rest + F(5.5507337460813586e-2)
    p = p * rest + F(2.4022242077873884e-1)
    p = p * rest + F(6.931469775960035e-1)
    p = p * rest + F(1.0)

    # Multiply by 2^whole: add `whole` to the exponent bits of p. The casts matter: for numba the sum of two int32 is an
    # int64, which would halve the number of lanes of the vector unit.
    power = np.int32(np.int32(whole) << np.int32(23))
    return np.int32(F(p).view(np.int32) + power).view(np.float32)


@_inline
def log(x: Any) -> Any:
    """Return log x of a positive normal float32 (Cephes polynomial), with an absolute error below 2e-7 near 1."""
    # x = m 2^exponent with 1/2 <= m < 1, read from the bits of the float.
    bits = F(x).view(np.int32)
    exponent = F((bits >> np.int32(23)) - np.int32(126))
    m = np.int32((bits & np.int32(0x007FFFFF)) | np.int32(0x3F000000)).view(np.float32)

    # Move m to [sqrt(1/2), sqrt(2)), where the polynomial for log(1 + (m - 1)) is accurate.
    small = m < F(0.70710678)
    exponent = exponent - (F(1.0) if small else F(0.0))
    m = (m + m if small else m) - F(1.0)

    z = m * m
    p = F(7.0376836292e-2)
    p = p * m - F(1.1514610310e-1)
    p = p * m + F(1.1676998740e-1)
    p = p * m - F(1.2420140846e-1)
    p = p * m + F(1.4249322787e-1)
    p = p * m - F(1.6668057665e-1)
    p = p * m + F(2.0000714765e-1)
    p = p * m - F(2.4999993993e-1)
    p = p * m + F(3.3333331174e-1)

    return m - F(0.5) * z + p * m * z + exponent * LN2


@_inline
def confidence(log_x: Any, objective: Any) -> Any:
    """Return f(x) = b0 + b x^a from log x; objective: b0, b, a, log of the count that replaces 0."""
    # x^a = 2^(a log2 x), with the exponent clipped to what `exp2` supports.
    exponent = F(objective[2]) * log_x * LOG2E
    return F(objective[0]) + F(objective[1]) * exp2(min(max(exponent, F(-120.0)), F(120.0)))


@_inline
def observed_gradient(margin: Any, x: Any, objective: Any) -> Any:
    """Return the gradient and the loss L_1 of an observed cell from w . c - offsets and its count."""
    log_x = log(x)
    distance = margin - log_x
    gradient = confidence(log_x, objective) * distance
    return gradient, F(0.5) * gradient * distance


@_inline
def unobserved_gradient(exponent: Any) -> Any:
    """Return dL_0 and 1 + e^z of an unobserved cell from z log2(e), with z = w . c - pmi*.

    L_0 = log(1 + e^z). `finish_loss` takes the logarithm, once for the cells that `join_losses` has joined.
    """
    power = exp2(min(max(exponent, LOWEST), HIGHEST))
    return power / (F(1.0) + power), F(1.0) + power


@_inline
def join_losses(a: Any, b: Any) -> Any:
    """Join the second results of `unobserved_gradient` of two cells; up to four are finite in float32."""
    return a * b


@_inline
def finish_loss(joined: Any) -> Any:
    """Return the sum of L_0 of cells that were joined."""
    return log(joined)


@_inline
def mean_gradient(total: Any, scale: Any, vector: Any, decay: Any) -> Any:
    """Return the gradient of a parameter: its sum over the cells times `scale`, and the weight decay."""
    return scale * total + decay * vector


@_inline
def next_state(state: Any, mean_square: Any, accumulator_decay: Any) -> Any:
    """Return the state of a vector for the next Adagrad step: the sum of the mean squares of its gradients."""
    return max(F(accumulator_decay) * state + mean_square, F(MIN_ACCUMULATOR))


@_kernel
def update_parameters(
    vectors: Any,
    state: Any,
    gradient: Any,
    scale: float,
    weight_decay: float,
    learning_rate: float,
    accumulator_decay: float,
) -> None:
    """Take a step of the optimizer in place, with the gradient scale * gradient + weight_decay * vectors."""
    factor, decay, rate = F(scale), F(weight_decay), F(learning_rate)
    means = np.empty(vectors.shape[1], F)
    for i in range(vectors.shape[0]):
        w, g = vectors[i], gradient[i]
        for t in range(len(w)):
            means[t] = mean_gradient(g[t], factor, w[t], decay)

        # From an array, and not while it is filled: then the sum has the same bits if the gradient is already a mean.
        squares = F(0.0)
        for t in range(len(w)):
            squares += means[t] * means[t]

        state[i] = next_state(state[i], squares / F(len(w)), accumulator_decay)
        step = rate / np.sqrt(state[i])
        for t in range(len(w)):
            w[t] -= step * means[t]
