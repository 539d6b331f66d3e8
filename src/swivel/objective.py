"""The mathematics in plain NumPy float64: the oracle for everything else.

Receives arrays, hands on losses and gradients. Every backend is held to this module by one contract test; nothing
here is fast and nothing here knows a block, a device or a file.

The paper's letters: x counts, W and C the row and column vectors, D the total, f the confidence::

    pmi(i;j)  = log x_ij + log D - log x_i* - log x_*j          the target of an observed cell
    pmi*(i;j) = the same with a stand-in for x_ij (1)           of an unobserved one
    L_1(i;j)  = 1/2 f(x_ij) (w_i . c_j - pmi(i;j))^2            x_ij > 0
    L_0(i;j)  = log(1 + exp(w_i . c_j - pmi*(i;j)))             x_ij = 0
    f(x)      = b0 + b x^a
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig

Array = NDArray[np.float64]

# The offset of a row or column without counts: its cells are as unobserved as can be, so that their gradient is
# exactly zero (log 0 would be infinite, and infinity minus infinity is not a number).
NEVER = 1e30


@dataclass(frozen=True, slots=True)
class Objective:
    """The settings of the loss."""

    confidence_base: float = 0.1
    confidence_scale: float = 0.25
    confidence_power: float = 0.5
    shift: float = 0.0
    unseen: float = 1.0

    @classmethod
    def from_config(cls, config: TrainConfig) -> Objective:
        """Return the part of a training configuration that makes the loss."""
        return cls(
            config.confidence_base, config.confidence_scale, config.confidence_power, config.shift, config.unseen
        )

    def confidence(self, x: Array) -> Array:
        """Return f(x), the weight of an observed cell.

        >>> Objective().confidence(np.array([4.0])).tolist()
        [0.6]
        """
        return np.asarray(self.confidence_base + self.confidence_scale * x**self.confidence_power)


@dataclass(frozen=True, slots=True)
class Loss:
    """Sums over cells; the means are what is shown. Unobserved cells are counted as often as they weigh."""

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
        """Mean loss of an observed cell."""
        return self.observed / max(self.observed_cells, 1)

    @property
    def mean_unobserved(self) -> float:
        """Mean loss of an unobserved cell."""
        return self.unobserved / max(self.unobserved_cells, 1)

    @property
    def mean(self) -> float:
        """Mean loss of a cell."""
        return (self.observed + self.unobserved) / max(self.observed_cells + self.unobserved_cells, 1)


def log_or_never(sums: Array) -> Array:
    """Return log of marginal sums, and `-NEVER` where there is nothing to take the log of."""
    empty = sums <= 0
    return np.where(empty, -NEVER, np.log(np.where(empty, 1.0, sums)))


def row_offsets(row_sums: Array, total: float, objective: Objective) -> Array:
    """Return log D - log x_i* - shift, the rows' share of every target."""
    constant = float(np.log(total)) - objective.shift
    return constant - log_or_never(row_sums)


def column_offsets(column_sums: Array) -> Array:
    """Return -log x_*j, the columns' share of every target."""
    return -log_or_never(column_sums)


def observed_targets(x: Array, offsets: Array) -> Array:
    """Return pmi of observed cells, where `offsets` are row plus column offsets of each."""
    return np.log(x) + offsets


def loss_and_gradient(products: Array, x: Array, offsets: Array, objective: Objective) -> tuple[Loss, Array]:
    """Return the loss of a dense piece of the matrix and its gradient with respect to the dot products.

    Parameters
    ----------
    products, x, offsets
        (rows, columns): w_i . c_j, the counts, and row plus column offsets.
    """
    seen = x > 0
    counts = np.where(seen, x, 1.0)
    distance = products - observed_targets(counts, offsets)
    confidence = objective.confidence(counts)
    margin = np.maximum(products - (offsets + np.log(objective.unseen)), -NEVER)
    observed = np.where(seen, 0.5 * confidence * np.where(seen, distance, 0.0) ** 2, 0.0)
    unobserved = np.where(seen, 0.0, np.logaddexp(0.0, margin))
    hinge = np.exp(-np.logaddexp(0.0, -margin))
    gradient = np.where(seen, confidence * np.where(seen, distance, 0.0), hinge)
    loss = Loss(float(observed.sum()), int(seen.sum()), float(unobserved.sum()), int((~seen).sum()))
    return loss, gradient


def adagrad(vectors: Array, accumulators: Array, gradient: Array, rate: float) -> None:
    """Update vectors and accumulators in place."""
    accumulators += gradient**2
    vectors -= rate * gradient / np.sqrt(accumulators)
