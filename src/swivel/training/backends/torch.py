"""The training step in plain torch, for any device that torch supports.

It computes a dense block and assigns the observed cells by index, without custom kernels. It is the backend of devices
that have no faster one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts import BlockCells
from swivel.runtime.parallel import restoring
from swivel.training.backends.base import ArrayBackend, BackendSettings, Gradients, ParameterBlock, Sides
from swivel.training.objective import Loss
from swivel.training.objective_torch import (
    observed_gradients,
    unobserved_gradients_,
    unobserved_losses,
    update_parameters,
)
from swivel.training.zero_sampling import RowPanel

Tensor = torch.Tensor


class TorchBackend(ArrayBackend):
    """Computes one block at a time, on any device."""

    name = "torch"

    def __init__(self, settings: BackendSettings) -> None:
        self.settings = settings
        self._open = contextlib.ExitStack()
        self._open.enter_context(restoring(torch.get_num_threads, torch.set_num_threads))
        # Not more than before: a process that was forked after torch was loaded has one thread.
        torch.set_num_threads(min(settings.threads, torch.get_num_threads()))
        self.device = torch.device(settings.device)
        self._operand_dtype = getattr(torch, settings.dtype)
        self._sum_dtype = torch.float32 if self.device.type == "mps" else torch.float64  # MPS has no float64

    def describe(self) -> str:
        return f"torch on {self.device}, {self.settings.dtype} products, float32 parameters"

    def put(self, array: NDArray[np.float32] | Tensor) -> Any:
        if isinstance(array, Tensor):
            return array.to(self.device, torch.float32, copy=True)
        return torch.tensor(np.asarray(array, np.float32), device=self.device)

    def get(self, array: Any) -> NDArray[np.float32]:
        return array.cpu().numpy()  # type: ignore[no-any-return]

    def close(self) -> None:
        super().close()
        self._open.close()

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        return (a.to(self._operand_dtype) @ b.to(self._operand_dtype)).float()

    @torch.no_grad()
    def add_gradients(self, cells: BlockCells, sides: Sides, seed: Sequence[int]) -> Gradients:
        dW = torch.zeros_like(sides[0].vectors)
        dC = torch.zeros_like(sides[1].vectors)

        # Local rows, local columns and counts of the observed cells.
        positions = cells.positions.astype(np.int64)
        arrays = positions >> 16, positions & 0xFFFF, np.array(cells.counts, np.float32)
        observed = [torch.from_numpy(array).to(self.device) for array in arrays]

        loss = Loss()
        for panel in self.settings.zeros.panels(len(dW), len(dC), seed):
            loss += self._run_panel(panel, observed, sides, (dW, dC))

        return loss, dW, dC

    def update(self, side: ParameterBlock, total: Any, size: int, decay: Any, learning_rate: float) -> None:
        gradient = self.mean_gradient(side, total, size, decay)
        update_parameters(side.vectors, side.state, gradient, learning_rate, self.settings.config.accumulator_decay)

    def _run_panel(self, panel: RowPanel, observed: list[Tensor], sides: Sides, out: tuple[Tensor, Tensor]) -> Loss:
        """Add the gradients of a panel's rows and columns to `out` and return the loss of its cells."""
        rows, columns = sides
        width = len(columns.vectors)

        # The columns that the panel samples, the weight of their zeros, and the index of every column of the block
        # among the sampled ones (-1: not sampled).
        ids = np.arange(width) if panel.columns is None else panel.columns
        weights = np.ones(len(ids), np.float32) if panel.weights is None else panel.weights
        sample = torch.from_numpy(ids).to(self.device)
        weight = torch.from_numpy(weights).to(self.device)
        places = torch.full((width,), -1, device=self.device)
        places[sample] = torch.arange(len(sample), device=self.device)

        # Margins of the hinge: w_i . c_j - pmi*(i;j).
        W = rows.vectors[panel.start : panel.stop]
        C = columns.vectors[sample]
        products = self._product(W, C.T)
        unseen = float(np.log(self.settings.config.unseen))
        margins = products - (rows.offsets[panel.start : panel.stop, None] + columns.offsets[sample] + unseen)

        # Observed cells of the panel. "Dense" ones are in a sampled column, so their dot product is known already.
        is_in_panel = (observed[0] >= panel.start) & (observed[0] < panel.stop)
        cells = [part[is_in_panel] for part in observed]
        is_dense = places[cells[1]] >= 0
        dense = [part[is_dense] for part in cells]
        near = dense[0] - panel.start
        place = places[dense[1]]

        # L_0 of all sampled cells, with weight 0 where a cell is observed; its derivative is the sigmoid.
        zero_weights = weight.expand_as(margins).clone()
        zero_weights[near, place] = 0
        unobserved = (unobserved_losses(margins) * zero_weights).sum(dtype=self._sum_dtype)
        gradient = unobserved_gradients_(margins).mul_(zero_weights)
        dense_loss, gradient[near, place] = self._observed(products[near, place], dense, sides)

        # dL/dW = G C and dL/dC = G^T W.
        out[0][panel.start : panel.stop] += self._product(gradient, C)
        out[1].index_add_(0, sample, self._product(gradient.T, W))

        # The other observed cells, whose column was not sampled.
        i, j, x = (part[~is_dense] for part in cells)
        w = rows.vectors[i]
        c = columns.vectors[j]
        sparse_loss, slope = self._observed((w * c).sum(1), [i, j, x], sides)
        out[0].index_add_(0, i, slope[:, None] * c)
        out[1].index_add_(0, j, slope[:, None] * w)

        zeros = len(W) * width - float(weight[place].sum(dtype=self._sum_dtype))
        return Loss(dense_loss + sparse_loss, len(cells[0]), float(unobserved), zeros)

    def _observed(self, products: Tensor, cells: list[Tensor], sides: Sides) -> tuple[float, Tensor]:
        """Return the loss of observed cells and its gradient with respect to their dot products."""
        i, j, x = cells
        targets = torch.log(x) + sides[0].offsets[i] + sides[1].offsets[j]
        gradients, losses = observed_gradients(products, x, targets, self.settings.config)
        return float(losses.sum(dtype=self._sum_dtype)), gradients
