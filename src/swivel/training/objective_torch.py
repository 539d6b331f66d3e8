"""The objective and the optimizer for torch tensors, on any device; see `objective` for the equations.

A margin is m = w . c - pmi*. Functions that end with an underscore overwrite their argument, as those of torch do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swivel.config import TrainConfig
from swivel.training.objective import MIN_ACCUMULATOR, confidence


def observed_gradients(products: Tensor, x: Tensor, targets: Tensor, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Return the gradients of observed cells with respect to their dot products, and their losses L_1."""
    distances = products - targets
    gradients = confidence(x, config) * distances
    return gradients, 0.5 * gradients * distances


def unobserved_losses(margins: Tensor) -> Tensor:
    """Return L_0 of unobserved cells."""
    # The default threshold of 20, from which on softplus is linear, is not exact in float64.
    return torch.nn.functional.softplus(margins, threshold=40)


def unobserved_gradients_(margins: Tensor) -> Tensor:
    """Return dL_0/dm of unobserved cells, in the memory of the margins."""
    return torch.sigmoid_(margins)


def unobserved_curvatures(gradients: Tensor) -> Tensor:
    """Return the second derivative of L_0 of cells with these first derivatives."""
    return gradients * (1 - gradients)


def update_parameters(
    vectors: Tensor, state: Tensor, gradient: Tensor, learning_rate: float, accumulator_decay: float
) -> None:
    """Take an Adagrad step in place, as `objective.update_parameters`."""
    state.mul_(accumulator_decay).add_(gradient.square().mean(1)).clamp_(min=MIN_ACCUMULATOR)
    vectors.sub_(learning_rate * gradient * state.rsqrt()[:, None])
