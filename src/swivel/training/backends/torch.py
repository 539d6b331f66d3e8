"""The step in plain torch, for any device that torch has.

No kernel of our own: a dense block, indexed assignment for the observed cells. It is what runs on devices that have
no faster backend, and a second opinion for those that have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.training.backends.array_backend import ArrayBackend
from swivel.training.backends.base import ObservedCells, ParameterBlock, RowBand, StepSettings
from swivel.training.objective import Loss

Tensor = torch.Tensor


class TorchBackend(ArrayBackend):
    """Computes blocks one after the other on `device`, with operands of the products in `dtype`."""

    name = "torch"

    def __init__(self, settings: StepSettings, *, device: str, dtype: str, threads: int) -> None:
        self.settings = settings
        self._torch_threads = torch.get_num_threads()
        torch.set_num_threads(threads)
        self.device = torch.device(device)
        self.dtype = dtype
        self._operand_dtype = getattr(torch, dtype)
        self._sum_dtype = torch.float32 if self.device.type == "mps" else torch.float64  # MPS has no float64

    def describe(self) -> str:
        """Say what runs."""
        return f"torch on {self.device}, {self.dtype} products, float32 parameters"

    def put(self, array: NDArray[np.float32] | Tensor) -> Any:
        """Return a copy on the device."""
        if isinstance(array, Tensor):
            return array.to(self.device, torch.float32, copy=True)
        return torch.tensor(np.asarray(array, np.float32), device=self.device)

    def get(self, array: Any) -> NDArray[np.float32]:
        """Return a copy on the host."""
        return array.cpu().numpy()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Give torch its own number of threads back."""
        torch.set_num_threads(self._torch_threads)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        return (a.to(self._operand_dtype) @ b.to(self._operand_dtype)).float()

    @torch.no_grad()
    def compute(
        self, cells: ObservedCells, rows: ParameterBlock, columns: ParameterBlock, seed: Sequence[int]
    ) -> tuple[Loss, Any, Any]:
        """Return the loss of a block and its gradients, as tensors."""
        dW, dC = torch.zeros_like(rows.vectors), torch.zeros_like(columns.vectors)
        observed = self._put_cells(cells)
        loss = Loss()
        for band in self.settings.zeros.bands(len(dW), len(dC), seed):
            loss += self._run_band(band, observed, (rows, columns), (dW, dC))
        return loss, dW, dC

    def update(self, side: ParameterBlock, gradient: Any, learning_rate: float) -> None:
        """Take an Adagrad step, in place."""
        side.accumulators.addcmul_(gradient, gradient)
        side.vectors.sub_(learning_rate * gradient * side.accumulators.rsqrt())

    def _put_cells(self, cells: ObservedCells) -> tuple[Tensor, Tensor, Tensor]:
        positions = cells.positions.astype(np.int64)
        arrays = positions >> 16, positions & 0xFFFF, np.array(cells.counts, np.float32)
        i, j, x = (torch.from_numpy(array).to(self.device) for array in arrays)
        return i, j, x

    def _run_band(
        self,
        band: RowBand,
        observed: tuple[Tensor, Tensor, Tensor],
        sides: tuple[ParameterBlock, ParameterBlock],
        out: tuple[Tensor, Tensor],
    ) -> Loss:
        rows, columns = sides
        width = len(columns.vectors)
        chosen = np.arange(width) if band.chosen is None else band.chosen
        weights = np.ones(len(chosen), np.float32) if band.weights is None else band.weights
        taken, weight = torch.from_numpy(chosen).to(self.device), torch.from_numpy(weights).to(self.device)
        places = torch.full((width,), -1, device=self.device)
        places[taken] = torch.arange(len(taken), device=self.device)
        W, C = rows.vectors[band.start : band.stop], columns.vectors[taken]
        products = self._product(W, C.T)
        unseen = float(np.log(self.settings.objective.unseen))
        margins = products - (rows.offsets[band.start : band.stop, None] + columns.offsets[taken] + unseen)
        i, j, x = (part[(observed[0] >= band.start) & (observed[0] < band.stop)] for part in observed)
        is_dense = places[j] >= 0
        near, place = i[is_dense] - band.start, places[j[is_dense]]
        zero_weights = weight.expand_as(margins).clone()
        zero_weights[near, place] = 0
        unobserved = (torch.nn.functional.softplus(margins) * zero_weights).sum(dtype=self._sum_dtype)
        gradient = torch.sigmoid(margins) * zero_weights
        dense_loss, gradient[near, place] = self._observed(products[near, place], i, j, x, is_dense, sides)
        out[0][band.start : band.stop] += self._product(gradient, C)
        out[1].index_add_(0, taken, self._product(gradient.T, W))
        sparse_loss = self._add_sparse(i, j, x, ~is_dense, sides, out)
        zeros = len(W) * width - float(weight[place].sum(dtype=self._sum_dtype))
        return Loss(dense_loss + sparse_loss, len(x), float(unobserved), zeros)

    def _observed(
        self,
        products: Tensor,
        i: Tensor,
        j: Tensor,
        x: Tensor,
        which: Tensor,
        sides: tuple[ParameterBlock, ParameterBlock],
    ) -> tuple[float, Tensor]:
        """Return the loss of some observed cells and its gradient with respect to their dot products."""
        objective = self.settings.objective
        targets = torch.log(x[which]) + sides[0].offsets[i[which]] + sides[1].offsets[j[which]]
        confidence = objective.confidence_base + objective.confidence_scale * x[which] ** objective.confidence_power
        confidence = confidence.clamp(max=objective.confidence_most)
        distance = products - targets
        gradient = confidence * distance
        return float((0.5 * gradient * distance).sum(dtype=self._sum_dtype)), gradient

    def _add_sparse(
        self,
        i: Tensor,
        j: Tensor,
        x: Tensor,
        which: Tensor,
        sides: tuple[ParameterBlock, ParameterBlock],
        out: tuple[Tensor, Tensor],
    ) -> float:
        """Add the gradients of observed cells whose column was not taken."""
        w, c = sides[0].vectors[i[which]], sides[1].vectors[j[which]]
        loss, gradient = self._observed((w * c).sum(1), i, j, x, which, sides)
        out[0].index_add_(0, i[which], gradient[:, None] * c)
        out[1].index_add_(0, j[which], gradient[:, None] * w)
        return loss
