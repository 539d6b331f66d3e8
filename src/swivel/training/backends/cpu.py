"""The training step on CPU cores: matrix products by torch, everything else by the numba kernels of `cpu_kernels`.

Every thread trains a different block. The blocks of a round share no parameters, so the threads need no locks and
merge nothing, and the result does not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts import BlockCells
from swivel.runtime.numbers import plural
from swivel.runtime.parallel import open_torch_pool
from swivel.training.backends import cpu_kernels as kernels
from swivel.training.backends.base import (
    ArrayBackend,
    BackendSettings,
    Gradients,
    ParameterBlock,
    PendingLosses,
    Sides,
    Step,
)
from swivel.training.objective import Loss
from swivel.training.objective_numba import update_parameters
from swivel.training.zero_sampling import RowPanel

# Rows of one dense product. Larger blocks (4,096) are split, so that the buffer of a thread has at most
# 1,024 x block columns values.
MAX_PRODUCT_ROWS = 1024

_Array = NDArray[np.float32]


class CpuBackend(ArrayBackend):
    """Trains blocks on `settings.threads` cores."""

    name = "cpu"

    def __init__(self, settings: BackendSettings) -> None:
        self.settings = settings
        self._is_float32 = settings.dtype == "float32"
        self._operand_type = np.float32 if self._is_float32 else np.uint16  # the bits of bfloat16

        # The tuple `objective` of the kernels: b0, b, a, log of the count that replaces 0.
        config = settings.config
        self._objective = (
            config.confidence_base,
            config.confidence_scale,
            config.confidence_power,
            math.log(config.unseen),
        )

        self._local = threading.local()  # the buffers of each thread, by name
        # Indexes and weights of all columns, for panels that are not sampled.
        self._ramp = np.arange(1 << 16)
        self._ones = np.ones(1 << 16, np.float32)

        # A thread trains a whole block, so each product must be single-threaded. torch keeps this setting per thread:
        # set only here, the products of 16 workers would run on 16 threads each.
        self._open = contextlib.ExitStack()
        self._pool = self._open.enter_context(open_torch_pool(settings.threads))
        torch.set_num_threads(1)

    def describe(self) -> str:
        return f"cpu, {plural(self.settings.threads, 'thread')}, {self.settings.dtype} products, float32 parameters"

    def put(self, array: NDArray[np.float32]) -> Any:
        return np.require(array, np.float32, ["C", "OWNDATA", "WRITEABLE"])

    def get(self, array: Any) -> NDArray[np.float32]:
        return np.asarray(array, np.float32)

    def close(self) -> None:
        super().close()
        self._open.close()

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> PendingLosses:
        """Run steps on all threads; a free thread takes the next step."""
        remaining = iter(enumerate(steps))
        claiming = threading.Lock()  # of `should_stop` and the next step together
        losses: dict[int, Loss] = {}

        def work() -> None:
            """Run steps until none is left or a stop is requested."""
            while True:
                # Threads claim steps in order, one at a time. If a thread could ask `should_stop` while another one
                # claims, a later step might run although an earlier one was left out.
                with claiming:
                    number, step = (0, None) if should_stop() else next(remaining, (0, None))
                if step is None:
                    return
                losses[number] = self.run_step(step)

        for future in [self._pool.submit(work) for _ in range(self.settings.threads)]:
            future.result()
        return lambda: [losses[number] for number in range(len(losses))]

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """Return the buffer `name` of this thread, enlarged if necessary; its content is undefined."""
        size = math.prod(shape)
        buffers = self._local.__dict__
        if name not in buffers or buffers[name].size < size:
            buffers[name] = np.empty(size, dtype)
        buffer: NDArray[Any] = buffers[name][:size].reshape(shape)
        return buffer

    def _multiply(self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the product a b to `out`; all three are operands: float32, or the bits of bfloat16."""
        torch.mm(self._as_tensor(a), self._as_tensor(b), out=self._as_tensor(out))

    def _as_tensor(self, operand: NDArray[Any]) -> torch.Tensor:
        if self._is_float32:
            return torch.from_numpy(operand)
        return torch.from_numpy(operand.view(np.int16)).view(torch.bfloat16)

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return the loss and the gradients of a step; the arrays are buffers of a thread of the pool."""
        # Only threads of the pool have single-threaded products. The caller's thread may be any.
        return self._pool.submit(super().gradients, step, rows, columns).result()

    def mean_gradient(self, side: ParameterBlock, total: Any, size: int, decay: Any) -> Any:
        # By a kernel, not by NumPy: with one worker, a parameter server then has the bits of one process.
        kernels.finish_gradient(total, side.vectors, 1 / size, _add_decays(side, total, size, decay))
        return total

    def update(self, side: ParameterBlock, total: Any, size: int, decay: Any, learning_rate: float) -> None:
        rest = _add_decays(side, total, size, decay)
        update_parameters(
            side.vectors, side.state, total, 1 / size, rest, learning_rate, self.settings.config.accumulator_decay
        )

    def add_gradients(self, cells: BlockCells, sides: Sides, seed: Sequence[int]) -> Gradients:
        rows, columns = sides
        gradients = self._buffer("rows", rows.vectors.shape), self._buffer("columns", columns.vectors.shape)

        W = self._round("W", rows.vectors)
        C = self._round("C", columns.vectors)

        loss = Loss()
        for panel in self.settings.zeros.panels(len(rows.vectors), len(columns.vectors), seed):
            for piece in panel.pieces(MAX_PRODUCT_ROWS):
                loss += self._run_panel(piece, cells, sides, (W, C), gradients)

        return loss, *gradients

    def _round(self, name: str, vectors: _Array) -> NDArray[Any]:
        """Return vectors as an operand of products: themselves, or rounded to bfloat16, in the buffer `name`."""
        if self._is_float32:
            return vectors
        rounded = self._buffer(name, vectors.shape, np.uint16)
        kernels.convert_rows(vectors, rounded)
        return rounded

    def _run_panel(
        self,
        panel: RowPanel,
        cells: BlockCells,
        sides: Sides,
        operands: tuple[NDArray[Any], NDArray[Any]],
        gradients: tuple[_Array, _Array],
    ) -> Loss:
        """Set the gradients of a panel's rows and set (first panel) or add to those of the columns; return the loss."""
        rows, columns = sides
        row_offsets = rows.offsets[panel.start : panel.stop]
        W = operands[0][panel.start : panel.stop]
        C, sample_offsets, places, weights = self._take_columns(panel, operands[1], columns.offsets)

        # `products` is W C^T first and then, overwritten in place, G = dL / d(W C^T).
        products = self._buffer("products", (len(W), len(C)), self._operand_type)
        self._multiply(W, C.T, products)

        # The observed cells of the panel, and work arrays with an element for each of them.
        first, last = kernels.find_cells(cells.positions, panel.start, panel.stop)
        positions = cells.positions[first:last]
        counts = cells.counts[first:last]
        whole = self._buffer("whole", (3, last - first), np.int64)
        real = self._buffer("real", (3, last - first))
        observed, unobserved, weight, matches = kernels.panel_gradient(
            (positions, counts, panel.start),
            products,
            (row_offsets, sample_offsets),
            (places, weights),
            self._objective,
            (whole[0], whole[1], real[0], real[1], real[2], whole[2]),
        )
        loss = Loss(observed, matches, unobserved, len(W) * len(columns.vectors) - weight)

        # dL/dW = G C; dL/dC = G^T W.
        self._set_product(gradients[0][panel.start : panel.stop], products, C)
        if panel.columns is None and panel.start == 0:
            self._set_product(gradients[1], products.T, W)
            return loss

        part = self._buffer("part", C.shape, self._operand_type)
        self._multiply(products.T, W, part)
        if panel.start == 0:
            gradients[1].fill(0)
        ids = self._ramp[: len(C)] if panel.columns is None else panel.columns
        kernels.add_rows(gradients[1], ids, part)

        # The observed cells in columns that were not sampled.
        others = positions, counts, whole[2, : last - first - matches]
        arrays = rows.vectors, rows.offsets, columns.vectors, columns.offsets
        return loss + Loss(kernels.sparse_step(others, arrays, gradients, self._objective), len(others[2]))

    def _set_product(self, gradient: _Array, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Set a gradient to the product of two operands."""
        if self._is_float32:
            self._multiply(a, b, gradient)
            return
        product = self._buffer("product", gradient.shape, np.uint16)
        self._multiply(a, b, product)
        kernels.convert_rows(product, gradient)

    def _take_columns(
        self, panel: RowPanel, C: NDArray[Any], offsets: _Array
    ) -> tuple[NDArray[Any], _Array, NDArray[np.int64], _Array]:
        """Return operand and offsets of the columns that a panel samples: those of all columns, or copies.

        Also the index of each column of the block among them (-1: not sampled), and the weight of a zero in each.
        """
        if panel.columns is None or panel.weights is None:
            return C, offsets, self._ramp[: len(C)], self._ones[: len(C)]

        sample = self._buffer("sample", (len(panel.columns), C.shape[1]), self._operand_type)
        sample_offsets = self._buffer("offsets", (len(panel.columns),))
        places = self._buffer("places", (len(C),), np.int64)
        kernels.take_columns(C, offsets, panel.columns, (sample, sample_offsets, places))
        return sample, sample_offsets, places, panel.weights


def _add_decays(side: ParameterBlock, total: _Array, size: int, decay: Any) -> float:
    """Add the weight decay of each vector to sums of gradients, and return the decay that is left for all vectors."""
    if isinstance(decay, float):
        return decay
    # The optimizer divides the sums by the size of the other side, but not the decay.
    kernels.add_decays(total, side.vectors, decay[:, 0] * size)
    return 0.0
