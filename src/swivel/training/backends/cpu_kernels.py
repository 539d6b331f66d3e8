"""Numba kernels of the CPU training step: everything that is not a matrix product.

The loss of a cell and the update of a parameter are in `objective_numba`; the kernels are the loops around them, and
LLVM vectorizes every inner one. `benchmarks/step.py` prints the time of the kernels and of the matrix products.

Symbols are those of `swivel.training.objective`, and G of shape (rows, columns) is the derivative of the loss with
respect to the dot products w_i . c_j.

The operands and results of matrix products (`products`, and what `convert_rows` writes) are float32, or bfloat16 as the
uint16 of its bits, because neither NumPy nor numba has bfloat16. `_widen` reads an element of either, `_narrow` writes
one; everything in between is float32.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from swivel.runtime.kernels import njit_cached
from swivel.training.objective_numba import (
    LOG2E,
    F,
    finish_loss,
    join_losses,
    mean_gradient,
    observed_gradient,
    unobserved_gradient,
)

# Parts are always inlined into the calling kernel. As separate functions they would be inlined or not, and therefore
# round differently, depending on which process compiled which of them first.
_part = numba.njit(inline="always", nogil=True, fastmath=True, error_model="numpy", boundscheck=False)
_kernel = njit_cached(nogil=True, fastmath=True, error_model="numpy", boundscheck=False)


def _widen(x: Any) -> Any:
    """Return a float32, given as itself or as the bits of a bfloat16."""


@overload(_widen, inline="always")
def _choose_widen(x: Any) -> Any:
    def widen(x: Any) -> Any:
        return np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)  # A bfloat16 is the upper half of a float32.

    def keep(x: Any) -> Any:
        return x

    return widen if isinstance(x, numba.types.Integer) else keep


def _narrow(x: Any, like: Any) -> Any:
    """Return a float32 in the form of `like`: as itself, or as the bits of the nearest bfloat16 (ties to even)."""


@overload(_narrow, inline="always")
def _choose_narrow(x: Any, like: Any) -> Any:
    def narrow(x: Any, like: Any) -> Any:
        bits = F(x).view(np.uint32)
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        return np.uint16(np.uint32(bits + np.uint32(np.uint32(0x7FFF) + odd)) >> np.uint32(16))

    def keep(x: Any, like: Any) -> Any:
        return x

    return narrow if isinstance(like, numba.types.Integer) else keep


@_part
def hinge(products: Any, row_offsets: Any, column_offsets: Any) -> float:
    """Replace dot products by the gradient of unobserved cells, in place; return the sum of their losses L_0.

    products: (rows, columns), w_i . c_j on entry and dL_0 on return. The offsets are those of pmi*, times log2(e).
    The losses of four cells are joined before they are finished, because logarithms are expensive.
    """
    rows, columns = products.shape
    # A row is divided into four parts of q columns: a, b, c and d (with offsets oa to od). The same index j in each of
    # them gives the four cells that share a logarithm. The last part is longer by columns % 4.
    q = columns // 4
    total = 0.0
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
            # Gradients g, and y = 1 + e^z of the losses, of four cells.
            ga, ya = unobserved_gradient(_widen(a[j]) * LOG2E - (offset + oa[j]))
            gb, yb = unobserved_gradient(_widen(b[j]) * LOG2E - (offset + ob[j]))
            gc, yc = unobserved_gradient(_widen(c[j]) * LOG2E - (offset + oc[j]))
            gd, yd = unobserved_gradient(_widen(d[j]) * LOG2E - (offset + od[j]))
            loss += finish_loss(join_losses(join_losses(ya, yb), join_losses(yc, yd)))
            a[j] = _narrow(ga, a[j])
            b[j] = _narrow(gb, b[j])
            c[j] = _narrow(gc, c[j])
            d[j] = _narrow(gd, d[j])

        # The columns % 4 columns at the end of the last part.
        for j in range(q, columns - 3 * q):
            g, y = unobserved_gradient(_widen(d[j]) * LOG2E - (offset + od[j]))
            loss += finish_loss(y)
            d[j] = _narrow(g, d[j])

        total += float(loss)  # float32 within a row, float64 over the rows

    return total


@_part
def weighted_hinge(products: Any, row_offsets: Any, column_offsets: Any, weights: Any) -> float:
    """Compute the same as `hinge` for sampled columns: loss and gradient of a zero are multiplied by `weights`."""
    rows, columns = products.shape
    total = 0.0

    for i in range(rows):
        line, offset = products[i], row_offsets[i]
        loss = F(0.0)
        for j in range(columns):
            g, y = unobserved_gradient(_widen(line[j]) * LOG2E - (offset + column_offsets[j]))
            loss += weights[j] * finish_loss(y)
            line[j] = _narrow(weights[j] * g, line[j])
        total += float(loss)

    return total


@_part
def replace_margins(margins: Any, weights: Any, counts: Any, objective: Any) -> tuple[float, float]:
    """Replace margins by the gradient of observed cells, in place; return their loss L_1 and their loss as zeros.

    The hinge kernels treat every cell of a panel as unobserved. The second loss is what they add for these observed
    cells, and the caller subtracts it. margins: w_i . c_j - offsets. weights: weight of a zero at the same place.
    objective: b0, b, a, log of the count that replaces 0.
    """
    log_unseen = F(objective[3])
    observed = 0.0
    as_zeros = 0.0

    for n in range(len(margins)):
        gradient, loss = observed_gradient(margins[n], counts[n], objective)
        _, y = unobserved_gradient((margins[n] - log_unseen) * LOG2E)
        observed += loss
        as_zeros += weights[n] * finish_loss(y)
        margins[n] = gradient

    return observed, as_zeros


@_kernel
def find_cells(positions: Any, start: int, stop: int) -> Any:
    """Return the range of the ascending positions that are in rows `start` to `stop`, by binary search."""
    # NumPy itself, outside of numba, would convert all positions to int64 first.
    return np.searchsorted(positions, np.int64(start) << 16), np.searchsorted(positions, np.int64(stop) << 16)


@_part
def read_observed(cells: Any, products: Any, offsets: Any, sample: Any, work: Any) -> int:
    """Collect the observed cells whose column was sampled, list the others, and return the number of the former.

    cells: positions, counts, first row of the panel.
    offsets: offsets of the rows and of the columns of `products`.
    sample: column of `products` of each column of the block, or -1; weight of a zero in each column of `products`.
    work: arrays to fill. For the collected cells: rows and columns in `products`, counts, weights of a zero, and
    margins (w_i . c_j - offsets). For the other cells: their indexes.
    """
    positions, counts, first_row = cells
    row_offsets, column_offsets = offsets
    places, weights = sample
    rows, columns, matched_counts, zero_weights, margins, others = work
    count = 0

    for n in range(len(positions)):
        place = places[np.int64(positions[n] & np.uint32(0xFFFF))]
        if place < 0:
            others[n - count] = n
            continue

        row = np.int64(positions[n] >> np.uint32(16)) - first_row
        rows[count] = row
        columns[count] = place
        matched_counts[count] = counts[n]
        zero_weights[count] = weights[place]
        margins[count] = _widen(products[row, place]) - (row_offsets[row] + column_offsets[place])
        count += 1

    return count


@_kernel
def panel_gradient(cells: Any, products: Any, offsets: Any, sample: Any, objective: Any, work: Any) -> Any:
    """Replace the dot products of a panel by the gradient G with respect to them, in place.

    The parameters are those of `read_observed`, and objective: b0, b, a, log of the count that replaces 0.
    Returns the loss of the observed cells whose column was sampled, the loss of the unobserved cells, the summed weight
    that those observed cells would have as zeros, and their number.
    """
    rows, columns, matched_counts, zero_weights, margins, _ = work

    # The margins of observed cells must be read before the hinge overwrites `products`.
    count = read_observed(cells, products, offsets, sample, work)
    observed, as_zeros = replace_margins(margins[:count], zero_weights[:count], matched_counts[:count], objective)

    # All cells as if they were unobserved. `powers` are the offsets of pmi*, times log2(e).
    powers = (offsets[0] + F(objective[3])) * LOG2E, offsets[1] * LOG2E
    if products.shape[1] == len(sample[0]):
        unobserved = hinge(products, powers[0], powers[1])
    else:
        unobserved = weighted_hinge(products, powers[0], powers[1], sample[1])

    # Then the observed cells, over the gradient of a zero.
    weight = 0.0
    for n in range(count):
        products[rows[n], columns[n]] = _narrow(margins[n], products[rows[n], columns[n]])
        weight += zero_weights[n]

    return observed, unobserved - as_zeros, weight, count


@_kernel
def convert_rows(source: Any, target: Any) -> None:
    """Write the rows of `source` to `target`; one of them may be bfloat16."""
    for i in range(len(source)):
        come, to = source[i], target[i]
        for t in range(len(come)):
            to[t] = _narrow(_widen(come[t]), to[t])


@_kernel
def take_columns(vectors: Any, offsets: Any, ids: Any, out: Any) -> None:
    """Copy vectors and offsets of the columns `ids`; write the index of every column among them, or -1."""
    sample, sample_offsets, places = out
    places[:] = -1
    for n in range(len(ids)):
        sample[n] = vectors[ids[n]]
        sample_offsets[n] = offsets[ids[n]]
        places[ids[n]] = n


@_kernel
def sparse_step(cells: Any, sides: Any, gradients: Any, objective: Any) -> float:
    """Add the gradients of observed cells whose column was not sampled, cell by cell; return their loss L_1.

    cells: positions, counts, and the indexes of the cells to compute. sides: vectors and offsets of the rows, then of
    the columns.
    """
    positions, counts, which = cells
    rows, row_offsets, columns, column_offsets = sides
    row_gradients, column_gradients = gradients
    total = 0.0

    for n in which:
        i = np.int64(positions[n] >> np.uint32(16))
        j = np.int64(positions[n] & np.uint32(0xFFFF))
        w, c, dw, dc = rows[i], columns[j], row_gradients[i], column_gradients[j]

        product = F(0.0)
        for t in range(len(w)):
            product += w[t] * c[t]

        g, loss = observed_gradient(product - (row_offsets[i] + column_offsets[j]), counts[n], objective)
        total += loss

        # dL/dw_i = g c_j; dL/dc_j = g w_i.
        for t in range(len(w)):
            dw[t] += g * c[t]
            dc[t] += g * w[t]

    return total


@_kernel
def add_rows(target: Any, which: Any, source: Any) -> None:
    """Add the rows of `source` to the rows `which` of `target`."""
    for n in range(len(which)):
        to, come = target[which[n]], source[n]
        for t in range(len(to)):
            to[t] += _widen(come[t])


@_kernel
def add_decays(gradient: Any, vectors: Any, decays: Any) -> None:
    """Add decays[i] * vectors[i] to row i of `gradient`."""
    for i in range(vectors.shape[0]):
        w, g = vectors[i], gradient[i]
        shrink = F(decays[i])
        for t in range(len(w)):
            g[t] += shrink * w[t]


@_kernel
def finish_gradient(gradient: Any, vectors: Any, scale: float, weight_decay: float) -> None:
    """Replace `gradient` by scale * gradient + weight_decay * vectors, which `update_parameters` applies."""
    factor, decay = F(scale), F(weight_decay)
    for i in range(vectors.shape[0]):
        w, g = vectors[i], gradient[i]
        for t in range(len(w)):
            g[t] = mean_gradient(g[t], factor, w[t], decay)


@_kernel
def permute_rows(values: Any, order: Any) -> None:
    """Bring rows into another order in place: `values` becomes `values[order]`."""
    is_done = np.zeros(len(order), np.bool_)
    row = np.empty(values.shape[1], values.dtype)
    for start in range(len(order)):
        if is_done[start]:
            continue

        # Every row of a cycle of the permutation moves to the place of the one before it; the first one waits outside.
        row[:] = values[start]
        place = start
        while order[place] != start:
            values[place] = values[order[place]]
            is_done[place] = True
            place = order[place]
        values[place] = row
        is_done[place] = True
