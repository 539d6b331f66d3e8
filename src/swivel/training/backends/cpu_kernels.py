"""Numba kernels of the CPU step: everything in it that is not a matrix product.

Written so that LLVM turns every inner loop into vector code: exp and log are polynomials, branches are selects.
`benchmarks/step.py` prints what they cost beside the products.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

F = np.float32
LOG2E = F(1.4426950408889634)
LN2 = F(0.6931471805599453)
# Beyond these, in powers of two, the soft hinge is flat or straight in float32; 30 also keeps a product of four
# (1 + 2^y) finite. The gradient is exact to the last bit there, and the loss of a cell is cut off at 20.8.
LOWEST = F(-86.0)
HIGHEST = F(30.0)

_inline = numba.njit(inline="always", fastmath=True, error_model="numpy")
# Parts are written into the kernel that calls them. As functions of their own they would be inlined or not, and so
# round differently, depending on which process had compiled which of them first.
_part = numba.njit(inline="always", nogil=True, fastmath=True, error_model="numpy", boundscheck=False)
_kernel = numba.njit(nogil=True, cache=True, fastmath=True, error_model="numpy", boundscheck=False)


@_inline
def _exp2(y: Any) -> Any:
    """2^y for -126 < y < 127, relative error below 2e-7."""
    whole = np.rint(y)
    rest = y - whole
    p = F(1.3264727270531492e-3)
    p = p * rest + F(9.67151308088281e-3)
    p = p * rest + F(5.5507337460813586e-2)
    p = p * rest + F(2.4022242077873884e-1)
    p = p * rest + F(6.931469775960035e-1)
    p = p * rest + F(1.0)
    # The sum of two int32 is an int64 to numba, and twice as wide as need be to the vector unit.
    power = np.int32(np.int32(whole) << np.int32(23))
    return np.int32(F(p).view(np.int32) + power).view(np.float32)


@_inline
def _log(x: Any) -> Any:
    """Log of a positive normal float32 (Cephes' polynomial), absolute error below 2e-7 near 1."""
    bits = F(x).view(np.int32)
    exponent = F((bits >> np.int32(23)) - np.int32(126))
    m = np.int32((bits & np.int32(0x007FFFFF)) | np.int32(0x3F000000)).view(np.float32)
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
def _power(y: Any) -> Any:
    """2^y, with y held where float32 can follow."""
    return _exp2(min(max(y, LOWEST), HIGHEST))


@_part
def hinge(products: Any, row_offsets: Any, column_offsets: Any) -> float:
    """Turn dot products into the gradient of unobserved cells, in place; return their summed loss.

    products (rows, columns) float32; offsets of pmi*, times log2(e). Four cells share one logarithm, for a sum of
    log(1 + e^z) is the log of a product.
    """
    rows, columns = products.shape
    q = columns // 4
    total = 0.0
    one = F(1.0)
    oa, ob, oc, od = (
        column_offsets[:q],
        column_offsets[q : 2 * q],
        column_offsets[2 * q : 3 * q],
        column_offsets[3 * q :],
    )
    for i in range(rows):
        line, offset = products[i], row_offsets[i]
        a, b, c, d = line[:q], line[q : 2 * q], line[2 * q : 3 * q], line[3 * q :]
        loss = F(0.0)
        for j in range(q):
            ea = _power(a[j] * LOG2E - (offset + oa[j]))
            eb = _power(b[j] * LOG2E - (offset + ob[j]))
            ec = _power(c[j] * LOG2E - (offset + oc[j]))
            ed = _power(d[j] * LOG2E - (offset + od[j]))
            ya, yb, yc, yd = one + ea, one + eb, one + ec, one + ed
            loss += _log((ya * yb) * (yc * yd))
            a[j], b[j], c[j], d[j] = ea / ya, eb / yb, ec / yc, ed / yd
        for j in range(q, columns - 3 * q):
            e = _power(d[j] * LOG2E - (offset + od[j]))
            loss += _log(one + e)
            d[j] = e / (one + e)
        total += float(loss)
    return total


@_part
def weighted_hinge(products: Any, row_offsets: Any, column_offsets: Any, weights: Any) -> float:
    """Do as `hinge` does, with a weight for each column."""
    rows, columns = products.shape
    total = 0.0
    for i in range(rows):
        line, offset = products[i], row_offsets[i]
        loss = F(0.0)
        for j in range(columns):
            e = _power(line[j] * LOG2E - (offset + column_offsets[j]))
            loss += weights[j] * _log(F(1.0) + e)
            line[j] = weights[j] * e / (F(1.0) + e)
        total += float(loss)
    return total


@_part
def observed_gradient(margins: Any, weights: Any, counts: Any, objective: Any) -> tuple[float, float]:
    """Turn margins into the gradient of observed cells, in place; return their loss, and their loss as zeros.

    The second is what the hinge adds for these cells without knowing that they are observed; `weights` are those of
    a zero in their place. objective: b0, b, a, f_max, log of the count that stands in for 0.
    """
    base, scale, power, most = F(objective[0]), F(objective[1]), F(objective[2]), F(objective[3])
    log_unseen = F(objective[4])
    observed = 0.0
    as_zeros = 0.0
    for n in range(len(margins)):
        log_count = _log(counts[n])
        confidence = min(base + scale * _exp2(min(max(power * log_count * LOG2E, F(-120.0)), F(120.0))), most)
        distance = margins[n] - log_count
        gradient = confidence * distance
        observed += F(0.5) * gradient * distance
        as_zeros += weights[n] * _log(F(1.0) + _power((margins[n] - log_unseen) * LOG2E))
        margins[n] = gradient
    return observed, as_zeros


@_kernel
def find_cells(positions: Any, start: int, stop: int) -> tuple[int, int]:
    """Return the range of ascending positions that lie in rows start to stop."""
    ends = np.zeros(2, np.int64)
    for n in range(2):
        wanted = np.int64(stop if n else start) << 16
        low, high = 0, len(positions)
        while low < high:
            middle = (low + high) // 2
            if np.int64(positions[middle]) < wanted:
                low = middle + 1
            else:
                high = middle
        ends[n] = low
    return ends[0], ends[1]


@_part
def read_observed(cells: Any, products: Any, offsets: Any, taken: Any, work: Any) -> int:
    """Read what is needed of the observed cells whose column was taken, and list the others.

    cells: positions, counts, first row of the band; offsets: of rows and columns of `products`; taken: the place of
    each column of the block in `products`, or -1, and the weight of zeros at each place. work: rows, places, counts,
    zero weights and margins (w_i . c_j less offsets) of the cells found, and indexes of the others, to fill. Returns
    how many were found.
    """
    positions, counts, first_row = cells
    row_offsets, column_offsets = offsets
    places, weights = taken
    rows, columns, found_counts, zero_weights, margins, others = work
    found = 0
    for n in range(len(positions)):
        place = places[np.int64(positions[n] & np.uint32(0xFFFF))]
        if place < 0:
            others[n - found] = n
            continue
        row = np.int64(positions[n] >> np.uint32(16)) - first_row
        rows[found] = row
        columns[found] = place
        found_counts[found] = counts[n]
        zero_weights[found] = weights[place]
        margins[found] = products[row, place] - (row_offsets[row] + column_offsets[place])
        found += 1
    return found


@_kernel
def band_gradient(cells: Any, products: Any, offsets: Any, taken: Any, objective: Any, work: Any) -> Any:
    """Turn the dot products of a band into the gradient with respect to them, in place.

    Parameters as for `read_observed`, and objective: b0, b, a, f_max, log of the count that stands in for 0, whether
    zeros push. Returns the loss of the observed cells whose column was taken, that of the unobserved, the weight of the
    zeros that turned out to be observed, and how many of the observed were taken.
    """
    rows, columns, found_counts, zero_weights, margins, _ = work
    found = read_observed(cells, products, offsets, taken, work)
    observed, as_zeros = observed_gradient(margins[:found], zero_weights[:found], found_counts[:found], objective)
    powers = (offsets[0] + F(objective[4])) * LOG2E, offsets[1] * LOG2E
    if not objective[5]:
        products[:] = F(0.0)
        unobserved = as_zeros  # which is nothing
    elif products.shape[1] == len(taken[0]):
        unobserved = hinge(products, powers[0], powers[1])
    else:
        unobserved = weighted_hinge(products, powers[0], powers[1], taken[1])
    weight = 0.0
    for n in range(found):
        products[rows[n], columns[n]] = margins[n]
        weight += zero_weights[n]
    return observed, unobserved - as_zeros, weight, found


@_kernel
def take_columns(vectors: Any, offsets: Any, chosen: Any, out: Any) -> None:
    """Copy the chosen columns' vectors and offsets, and note the place of every column (-1: not chosen)."""
    taken, taken_offsets, places = out
    places[:] = -1
    for n in range(len(chosen)):
        taken[n] = vectors[chosen[n]]
        taken_offsets[n] = offsets[chosen[n]]
        places[chosen[n]] = n


@_kernel
def sparse_step(cells: Any, sides: Any, gradients: Any, objective: Any) -> float:
    """Add the gradients of observed cells whose column was not taken, cell by cell; return their loss.

    cells: positions, counts, and which of them; sides: vectors and offsets of rows, then of columns.
    """
    positions, counts, which = cells
    rows, row_offsets, columns, column_offsets = sides
    row_gradients, column_gradients = gradients
    base, scale, power, most = F(objective[0]), F(objective[1]), F(objective[2]), F(objective[3])
    loss = 0.0
    for n in which:
        i = np.int64(positions[n] >> np.uint32(16))
        j = np.int64(positions[n] & np.uint32(0xFFFF))
        w, c, dw, dc = rows[i], columns[j], row_gradients[i], column_gradients[j]
        product = F(0.0)
        for t in range(len(w)):
            product += w[t] * c[t]
        log_count = _log(counts[n])
        distance = product - (row_offsets[i] + column_offsets[j]) - log_count
        g = distance * min(base + scale * _exp2(min(max(power * log_count * LOG2E, F(-120.0)), F(120.0))), most)
        loss += F(0.5) * g * distance
        for t in range(len(w)):
            dw[t] += g * c[t]
            dc[t] += g * w[t]
    return loss


@_kernel
def add_rows(target: Any, which: Any, source: Any) -> None:
    """Add the rows of `source` to the rows `which` of `target`."""
    for n in range(len(which)):
        to, come = target[which[n]], source[n]
        for t in range(len(to)):
            to[t] += come[t]


@_kernel
def adagrad(
    vectors: Any, accumulators: Any, gradient: Any, scale: float, weight_decay: float, learning_rate: float
) -> None:
    """Update a block of vectors in place with the gradient times `scale`, plus weight decay."""
    factor, shrink, speed = F(scale), F(weight_decay), F(learning_rate)
    for i in range(vectors.shape[0]):
        w, a, g = vectors[i], accumulators[i], gradient[i]
        for t in range(len(w)):
            step = factor * g[t] + shrink * w[t]
            a[t] += step * step
            w[t] -= speed * step / np.sqrt(a[t])


@_kernel
def finish_gradient(gradient: Any, vectors: Any, scale: float, weight_decay: float) -> None:
    """Scale a gradient and add weight decay, as `adagrad` does on its way."""
    factor, shrink = F(scale), F(weight_decay)
    for i in range(vectors.shape[0]):
        w, g = vectors[i], gradient[i]
        for t in range(len(w)):
            g[t] = factor * g[t] + shrink * w[t]


# Not fast-math: the square root of a square is the number itself, to the last bit, where both are rounded by the book.
@numba.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def recover_gradient(before: Any, after: Any, accumulators: Any, start: float) -> None:
    """Overwrite accumulators, which began at a tiny `start`, by the gradient of the one step since then.

    Adagrad adds the square of the gradient to them and moves the vectors against its sign.
    """
    first = F(start)
    for i in range(before.shape[0]):
        b, w, a = before[i], after[i], accumulators[i]
        for t in range(len(b)):
            size = np.sqrt(max(a[t] - first, F(0.0)))
            a[t] = -size if w[t] > b[t] else size
