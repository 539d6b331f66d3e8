"""The step on CPU cores: torch's matrix products, one numba pass for everything else.

Each thread trains a block of its own: the blocks of a round share no parameters, so nothing is locked, nothing is
merged, and the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.backends import kernels
from swivel.backends.base import Band, ObservedCells, Side, Step, StepSettings
from swivel.objective import Loss

# Rows of one dense product. Larger blocks (4,096) are done in pieces, so that a thread's buffer stays at
# 1,024 x block columns.
ROWS_AT_ONCE = 1024


_Pair = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _Observed:
    """The observed cells of a band."""

    positions: NDArray[np.uint32]
    counts: NDArray[np.float32]
    dense: NDArray[np.int64]  # (3, n): row and column in the products, and which cell, where the column was taken
    sparse: NDArray[np.int64]  # which cell, where it was not


class CpuBackend:
    """Computes blocks on `threads` cores, with operands of the matrix products in `dtype`."""

    name = "cpu"

    def __init__(self, settings: StepSettings, *, threads: int, dtype: str) -> None:
        self.settings = settings
        self.dtype = dtype
        self.threads = threads
        self._torch_dtype = getattr(torch, dtype)
        objective = settings.objective
        self._log_unseen = np.float32(np.log(objective.unseen))
        self._objective = (
            objective.confidence_base,
            objective.confidence_scale,
            objective.confidence_power,
            float(self._log_unseen),
        )
        self._local = threading.local()
        # One thread a block, so each product is single-threaded; restored on close.
        self._torch_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="swivel-step")

    def describe(self) -> str:
        """Say what runs."""
        return f"cpu, {self.threads} threads, {self.dtype} products, float32 parameters"

    def put(self, array: NDArray[np.float32]) -> Any:
        """Return a float32 copy."""
        return np.array(array, np.float32, order="C")

    def fetch(self, array: Any) -> NDArray[np.float32]:
        """Return the array itself: it is on the host already."""
        return np.asarray(array, np.float32)

    def close(self) -> None:
        """End the threads and give torch its own back."""
        self._pool.shutdown()
        torch.set_num_threads(self._torch_threads)

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> list[Loss]:
        """Run steps on all threads, each taking the next block."""

        def run_unless_stopped(step: Step) -> Loss | None:
            # Steps begin in order, so what was run when someone says stop is a prefix.
            return None if should_stop() else self._run_step(step)

        futures: list[Future[Loss | None]] = [self._pool.submit(run_unless_stopped, step) for step in steps]
        results = [future.result() for future in futures]
        losses = [loss for loss in results if loss is not None]
        if results[: len(losses)] != losses:
            # One thread saw the request a moment before another began its block: run the hole, too.
            last = max(n for n, loss in enumerate(results) if loss is not None)
            losses = [loss or self._run_step(steps[n]) for n, loss in enumerate(results[: last + 1])]
        return losses

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """Return this thread's buffer of that name, grown when needed; its content is what was left in it."""
        size = math.prod(shape)
        buffers = self._local.__dict__
        if name not in buffers or buffers[name].size < size:
            buffers[name] = np.empty(size, dtype)
        buffer: NDArray[Any] = buffers[name][:size].reshape(shape)
        return buffer

    def _operand(self, array: NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._torch_dtype)

    def _multiply(self, a: torch.Tensor, b: torch.Tensor, out: NDArray[np.float32], *, is_sum: bool = False) -> None:
        """Write, or add, a matrix product to `out`."""
        target = torch.from_numpy(out)
        if a.dtype != torch.float32:
            product = torch.mm(a, b)
            target.add_(product) if is_sum else target.copy_(product)
        elif is_sum:
            target.addmm_(a, b)
        else:
            torch.mm(a, b, out=target)

    def _run_step(self, step: Step) -> Loss:
        cells, rows, columns = step.oriented()
        height, width = len(rows.vectors), len(columns.vectors)
        gradients = self._buffer("rows", rows.vectors.shape), self._buffer("columns", columns.vectors.shape)
        loss = Loss()
        is_first = True
        for band in self.settings.zeros.bands(height, width, step.seed):
            for start in range(band.start, band.stop, ROWS_AT_ONCE):
                piece = replace(band, start=start, stop=min(start + ROWS_AT_ONCE, band.stop))
                loss += self._run_band(piece, cells, (rows, columns), gradients, is_first=is_first)
                is_first = False
        decay = self.settings.decay
        kernels.adagrad(rows.vectors, rows.accumulators, gradients[0], 1 / width, decay, step.rate)
        kernels.adagrad(columns.vectors, columns.accumulators, gradients[1], 1 / height, decay, step.rate)
        return loss

    def _run_band(
        self, band: Band, cells: ObservedCells, sides: tuple[Side, Side], gradients: _Pair, *, is_first: bool
    ) -> Loss:
        """Set the gradients of some rows of a block, and set or add to those of its columns."""
        rows = sides[0].part(band.start, band.stop)
        row_gradient, column_gradient = gradients[0][band.start : band.stop], gradients[1]
        taken = sides[1].vectors if band.chosen is None else sides[1].vectors[band.chosen]
        W, C = self._operand(rows.vectors), self._operand(taken)
        products = self._buffer("products", (len(rows.vectors), len(taken)))
        self._multiply(W, C.t(), products)
        observed = self._find_observed(band, cells, len(sides[1].vectors))
        loss = self._turn_into_gradient(band, observed, (rows, sides[1]), products)
        G = self._operand(products)
        self._multiply(G, C, row_gradient)
        if band.chosen is None:
            self._multiply(G.t(), W, column_gradient, is_sum=not is_first)
            return loss
        if is_first:
            column_gradient.fill(0)
        part = self._buffer("taken", taken.shape)
        self._multiply(G.t(), W, part)
        kernels.add_rows(column_gradient, band.chosen, part)
        return loss + self._add_sparse(observed, sides, gradients)

    def _find_observed(self, band: Band, cells: ObservedCells, width: int) -> _Observed:
        """Return the observed cells of a band, those in taken columns apart from the others."""
        first = np.searchsorted(cells.positions, np.uint32(band.start << 16))
        last = np.searchsorted(cells.positions, np.uint32((band.stop << 16) - 1), side="right")
        positions, counts = cells.positions[first:last], cells.counts[first:last]
        if band.chosen is None:
            places = np.arange(width)
        else:
            places = np.full(width, -1)
            places[band.chosen] = np.arange(len(band.chosen))
        n = len(positions)
        dense = self._buffer("dense", (3, n), np.int64)
        sparse = self._buffer("sparse", (n,), np.int64)
        found = kernels.split_cells(positions, band.start, places, (dense[0], dense[1], dense[2]), sparse)
        return _Observed(positions, counts, dense[:, :found], sparse[: n - found])

    def _turn_into_gradient(
        self, band: Band, observed: _Observed, sides: tuple[Side, Side], products: NDArray[np.float32]
    ) -> Loss:
        """Overwrite the dot products of a band by the gradient with respect to them."""
        rows, columns = sides
        offsets = rows.offsets, columns.offsets if band.chosen is None else columns.offsets[band.chosen]
        where = observed.dense[0], observed.dense[1]
        margins = self._buffer("margins", where[0].shape)
        kernels.read_observed(where, offsets, products, margins)
        weights = np.ones(products.shape[1], np.float32) if band.weights is None else band.weights
        zero_weights = weights[where[1]]
        counts = observed.counts[observed.dense[2]]
        observed_loss, as_zeros = kernels.observed_gradient(margins, zero_weights, counts, self._objective)
        powers = (offsets[0] + self._log_unseen) * kernels.LOG2E, offsets[1] * kernels.LOG2E
        if band.weights is None:
            unobserved_loss = kernels.hinge(products, *powers)
        else:
            unobserved_loss = kernels.weighted_hinge(products, *powers, weights)
        kernels.write_observed(where, margins, products)
        zeros = len(rows.vectors) * len(columns.vectors) - float(zero_weights.sum(dtype=np.float64))
        return Loss(observed_loss, len(margins), unobserved_loss - as_zeros, zeros)

    def _add_sparse(self, observed: _Observed, sides: tuple[Side, Side], gradients: _Pair) -> Loss:
        """Add the gradients of the observed cells in columns that were not taken."""
        rows, columns = sides
        cells = observed.positions, observed.counts, observed.sparse
        arrays = rows.vectors, rows.offsets, columns.vectors, columns.offsets
        return Loss(kernels.sparse_step(cells, arrays, gradients, self._objective), len(observed.sparse))
