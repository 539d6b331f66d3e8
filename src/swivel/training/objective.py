"""The objective and the optimizer in NumPy: losses, gradients and Adagrad, as the reference for all backends.

The same mathematics is in `objective_torch` for torch tensors, in `objective_numba` for the kernels of the CPU and in
`objective_triton` for those of a GPU. A contract test compares every backend with this module, which is written for
clarity, not for speed.

The symbols are those of the Swivel paper: x are counts, W and C the row and column vectors, D the sum of all counts, f
the confidence::

    pmi(i;j)  = log x_ij + log D - log x_i* - log x_*j          target of an observed cell
    pmi*(i;j) = the same with 1 (or `unseen`) in place of x_ij  bound for an unobserved cell
    L_1(i;j)  = 1/2 f(x_ij) (w_i . c_j - pmi(i;j))^2            x_ij > 0
    L_0(i;j)  = log(1 + exp(w_i . c_j - pmi*(i;j)))             x_ij = 0
    f(x)      = b0 + b x^a

The optimizer is Adagrad with one number of state per vector, the sum of the mean squares of its gradients: half the
memory of one number per value, and vectors that are as good (experiments/notes.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig

Array = NDArray[np.float64]
ArrayOrTensor = TypeVar("ArrayOrTensor", bound=Any)  # of NumPy or torch

# Offset of a row or column without counts. It makes the gradient of its cells exactly zero; an infinite offset (from
# log 0) would give NaN, because infinity minus infinity is undefined.
NEVER = 1e30
# Smallest accumulator. Without it, the accumulators of a vector without gradients could decay to 0, and 0 / 0 is NaN.
MIN_ACCUMULATOR = 1e-37


@dataclass(frozen=True, slots=True)
class Loss:
    """Sums of losses and numbers of cells. A sampled unobserved cell counts with its weight."""

    observed: float = 0.0
    observed_cells: float = 0.0
    unobserved: float = 0.0
    unobserved_cells: float = 0.0

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.observed + other.observed,
            self.observed_cells + other.observed_cells,
            self.unobserved + other.unobserved,
            self.unobserved_cells + other.unobserved_cells,
        )

    @property
    def mean_observed(self) -> float:
        """Mean over observed cells."""
        return self.observed / max(self.observed_cells, 1)

    @property
    def mean_unobserved(self) -> float:
        """Mean over unobserved cells."""
        return self.unobserved / max(self.unobserved_cells, 1)

    @property
    def mean(self) -> float:
        """Mean over all cells."""
        return (self.observed + self.unobserved) / max(self.observed_cells + self.unobserved_cells, 1)


def confidence(x: ArrayOrTensor, config: TrainConfig) -> ArrayOrTensor:
    """Return f(x), the weight of an observed cell.

    >>> confidence(np.array([4.0]), TrainConfig()).tolist()
    [0.6]
    """
    weights: ArrayOrTensor = config.confidence_base + config.confidence_scale * x**config.confidence_power
    return weights


def log_or_never(sums: Array) -> Array:
    """Return the log of marginal sums, and `-NEVER` for a sum of zero."""
    empty = sums <= 0
    return np.where(empty, -NEVER, np.log(np.where(empty, 1.0, sums)))


def row_offsets(row_sums: Array, total: float, config: TrainConfig) -> Array:
    """Return the row's part of a target: log D - log x_i* - shift."""
    constant = float(np.log(total)) - config.shift
    return constant - log_or_never(row_sums)


def column_offsets(column_sums: Array) -> Array:
    """Return the column's part of a target: -log x_*j."""
    return -log_or_never(column_sums)


def find_unit_offsets(total: float, config: TrainConfig) -> tuple[float, float]:
    """Return the offset of a row, and of a column, whose sum is 1."""
    one = np.ones(1)
    return float(row_offsets(one, total, config)[0]), float(column_offsets(one)[0])


def find_decays(sums: Array, config: TrainConfig) -> Array:
    """Return the weight decay of rows or columns with these sums.

    >>> find_decays(np.array([4.0, 9.0]), TrainConfig(weight_decay=0.1, decay_power=0.5)).round(6).tolist()
    [0.2, 0.3]
    """
    return config.weight_decay * np.maximum(sums, 0.0) ** config.decay_power


def observed_targets(x: Array, offsets: Array) -> Array:
    """Return the PMI of observed cells; `offsets` is the sum of the row and column offsets of each cell."""
    return np.log(x) + offsets


def observed_losses(products: Array, x: Array, offsets: Array, config: TrainConfig) -> Array:
    """Return L_1 of each observed cell.

    >>> observed_losses(np.array([1.0]), np.array([4.0]), np.array([2 - np.log(4)]), TrainConfig()).tolist()
    [0.3]
    """
    return 0.5 * confidence(x, config) * (products - observed_targets(x, offsets)) ** 2


def unobserved_losses(margins: Array) -> Array:
    """Return L_0 = log(1 + exp(m)) of unobserved cells, with m = w . c - pmi*."""
    return np.logaddexp(0.0, margins)


def unobserved_gradients(margins: Array) -> Array:
    """Return dL_0/dm = 1 / (1 + exp(-m)) of unobserved cells."""
    return np.exp(-np.logaddexp(0.0, -margins))


def loss_and_gradient(
    products: Array, x: Array, offsets: Array, config: TrainConfig, weights: Array | float = 1.0
) -> tuple[Loss, Array]:
    """Return the loss of a dense part of the matrix and its gradient with respect to the dot products.

    `products` are w_i . c_j, `x` the counts and `offsets` the sums of the row and column offsets, all of one shape.
    An unobserved cell counts with its weight.
    """
    is_observed = x > 0
    zeros = np.where(is_observed, 0.0, weights)  # the weight of each cell as a zero
    counts = np.where(is_observed, x, 1.0)
    margins = products - (offsets + np.log(config.unseen))

    # L_1 = 1/2 f d^2 and dL_1 = f d, with d = w . c - pmi.
    observed = observed_losses(products, counts, offsets, config)
    observed_gradients = confidence(counts, config) * (products - observed_targets(counts, offsets))

    gradient = np.where(is_observed, observed_gradients, zeros * unobserved_gradients(margins))
    observed_loss = float(np.where(is_observed, observed, 0.0).sum())
    unobserved_loss = float((zeros * unobserved_losses(margins)).sum())
    return Loss(observed_loss, int(is_observed.sum()), unobserved_loss, float(zeros.sum())), gradient


def update_parameters(
    vectors: Array, state: Array, gradient: Array, learning_rate: float, accumulator_decay: float = 1.0
) -> None:
    """Take an Adagrad step: update vectors and the sum of mean squared gradients of each (`state`) in place.

    With a decay of the sums below 1, old gradients are forgotten: an RMSProp step with the learning rate
    `learning_rate * sqrt(1 - decay)`.
    """
    state *= accumulator_decay
    state += np.mean(gradient**2, axis=1)
    np.maximum(state, MIN_ACCUMULATOR, out=state)
    vectors -= learning_rate * gradient / np.sqrt(state)[:, None]
