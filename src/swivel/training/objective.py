"""The mathematics in plain NumPy float64: the oracle for everything else.

Receives arrays, hands on losses and gradients. Every backend is held to this module by one contract test; nothing
here is fast and nothing here knows a block, a device or a file.

The paper's letters: x counts, W and C the row and column vectors, D the total, f the confidence::

    pmi(i;j)  = log x_ij + log D - log x_i* - log x_*j          the target of an observed cell
    pmi*(i;j) = the same with a stand-in for x_ij (1)           of an unobserved one
    L_1(i;j)  = 1/2 f(x_ij) (w_i . c_j - pmi(i;j))^2            x_ij > 0
    L_0(i;j)  = log(1 + exp(w_i . c_j - pmi*(i;j)))             x_ij = 0
    f(x)      = b0 + b x^a, at most f_max

GloVe's objective is the same with other targets, log x_ij, and with biases that are learned: [w b 1] . [c 1 b'] is
w . c + b + b', the ones held fixed. Its stand-in for a count of 0 is infinite: no product is ever above it, and no
unobserved cell pushes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig

Array = NDArray[np.float64]
Single = NDArray[np.float32]

# The offset of a row or column without counts: its cells are as unobserved as can be, so that their gradient is
# exactly zero (log 0 would be infinite, and infinity minus infinity is not a number).
NEVER = 1e30
BIASES = 2  # dimensions that biases take: one's own, and the 1 that the other side's meets
# Adagrad's accumulator of what is to stay as it is: its steps are smaller than the rounding of a 1, also in float64.
HELD = np.float32(1e36)


@dataclass(frozen=True, slots=True)
class Objective:
    """The settings of the loss."""

    confidence_base: float = 0.1
    confidence_scale: float = 0.25
    confidence_power: float = 0.5
    shift: float = 0.0
    unseen: float = 1.0
    confidence_most: float = math.inf
    has_biases: bool = False  # learned ones, in place of the marginals

    @classmethod
    def from_config(cls, config: TrainConfig) -> Objective:
        """Return the part of a training configuration that makes the loss."""
        is_glove = config.objective == "glove"
        return cls(
            config.confidence_base,
            config.confidence_scale,
            config.confidence_power,
            config.shift,
            math.inf if is_glove else config.unseen,
            math.inf if config.confidence_most is None else config.confidence_most,
            has_biases=is_glove,
        )

    @property
    def pushes(self) -> bool:
        """Whether unobserved cells push their product down."""
        return self.unseen < math.inf

    @property
    def extra_dims(self) -> int:
        """Dimensions that are trained beside those of the vectors."""
        return BIASES if self.has_biases else 0

    def confidence(self, x: Array) -> Array:
        """Return f(x), the weight of an observed cell.

        >>> Objective().confidence(np.array([4.0])).tolist()
        [0.6]
        """
        rising = self.confidence_base + self.confidence_scale * x**self.confidence_power
        return np.minimum(rising, self.confidence_most)


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
    """Return the rows' share of every target: log D - log x_i* - shift; with biases none."""
    if objective.has_biases:
        return _nothing_or_never(row_sums)
    constant = float(np.log(total)) - objective.shift
    return constant - log_or_never(row_sums)


def column_offsets(column_sums: Array, objective: Objective) -> Array:
    """Return the columns' share of every target: -log x_*j; with biases none."""
    return _nothing_or_never(column_sums) if objective.has_biases else -log_or_never(column_sums)


def _nothing_or_never(sums: Array) -> Array:
    return np.where(sums <= 0, NEVER, 0.0)


def add_biases(vectors: Single, accumulators: Single, side: int) -> tuple[Single, Single]:
    """Return a side's vectors and accumulators with two dimensions more: [w b 1] of rows, [c 1 b'] of columns.

    >>> vectors, accumulators = add_biases(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), 1)
    >>> vectors.tolist(), int((accumulators == HELD).argmax())
    ([[1.0, 1.0, 0.0]], 1)
    """
    dim = vectors.shape[1]
    wide = np.zeros((len(vectors), dim + BIASES), np.float32)
    wide_accumulators = np.empty_like(wide)
    wide[:, :dim], wide_accumulators[:, :dim] = vectors, accumulators
    one, bias = (dim, dim + 1) if side else (dim + 1, dim)
    wide[:, one], wide_accumulators[:, one] = 1, HELD
    wide_accumulators[:, bias] = accumulators[:, 0]
    return wide, wide_accumulators


def observed_targets(x: Array, offsets: Array) -> Array:
    """Return pmi of observed cells, where `offsets` are row plus column offsets of each."""
    return np.log(x) + offsets


def observed_losses(products: Array, x: Array, offsets: Array, objective: Objective) -> Array:
    """Return the loss of each of some observed cells.

    >>> observed_losses(np.array([1.0]), np.array([4.0]), np.array([2 - np.log(4)]), Objective()).tolist()
    [0.3]
    """
    return 0.5 * objective.confidence(x) * (products - observed_targets(x, offsets)) ** 2


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


def adagrad(vectors: Array, accumulators: Array, gradient: Array, learning_rate: float) -> None:
    """Update vectors and accumulators in place."""
    accumulators += gradient**2
    vectors -= learning_rate * gradient / np.sqrt(accumulators)
