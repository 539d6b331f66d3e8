"""New rows for trained columns: the same objective, minimised for each row with the columns held fixed.

Receives counts of rows that were not trained, the trained columns with their sums and the training's total; hands on
one vector a row. It trains no column, knows no label and no file.

With C, the column sums and D held as training left them, a row's loss is a convex function of its vector alone::

    sum_j L(w . c_j; x_j) + n decay/2 |w|^2          L_1 and L_0 of `objective`, every one of the n columns counts

Training adds `decay w` to gradients divided by the columns of a block, hence the n. It is minimised by Newton's method,
all rows of a batch at once: the step comes from conjugate gradients, which need products with C alone and no Hessian,
its length from halving until the loss falls. Each row has masks of its own: the rows beside it do not change it.

The marginals of a new row: x_i* is the row's own sum; D and x_*j stay the training's, as if the row were one more that
is too small to move them. A count in a column that training never saw has no PMI and no vector to meet: it is left out,
of the sum, too. A row without counts is the zero vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from swivel.config import TrainConfig
from swivel.errors import ConfigError, CountsError
from swivel.training.backends import choose_backend
from swivel.training.objective import Objective, column_offsets, observed_targets, row_offsets

# Training ends before its minimum is reached, which keeps vectors short as a decay does. Without any, a row of few
# counts may have no minimum at all: its unobserved cells fall for ever. So rows are folded in with at least the decay
# of the recipe `default`, also after a training without. With 1e-6, rows of 24 counts took five times as many products
# (ingredients and compounds, dim 128), and neighbours overlapped less with the trained ones' (docs/estimator.md).
LEAST_DECAY = 5e-5
MOST_STEPS, MOST_PRODUCTS, MOST_HALVINGS = 50, 500, 40
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}  # of the gradient's length at the zero vector
SUFFICIENT = 1e-4  # share of the fall that a step promises, below which it is halved
BATCH_BYTES = 1 << 28  # of the cells of a batch; or as much as the columns take, where they take more
CELL_BYTES = 112  # eight dense arrays at their most (a line search), and six of observed cells: all may be


def fold_rows(
    counts: Any,
    columns: ArrayLike,
    column_sums: ArrayLike,
    total: float,
    config: TrainConfig,
    *,
    device: str = "auto",
) -> NDArray[np.float32]:
    """Return vectors of rows that were not trained, from their counts with trained columns.

    Parameters
    ----------
    counts
        (rows, n): a scipy sparse matrix, or an array; equal cells are summed.
    columns, column_sums, total
        (n, dim) trained columns; (n,) and the sum of all counts, of the matrix that they were trained on.
    config
        The training's: its objective and its decay are what is minimised.
    device
        auto, cpu, cuda, or any device as torch names it.

    Raises
    ------
    CountsError
        Counts are negative or not finite, or do not fit the columns.
    ConfigError
        The objective is GloVe's, whose column biases are not kept.

    Examples
    --------
    Rows of two columns that are as unlike as can be come out as unlike:

    >>> columns = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> vectors = fold_rows([[9, 1], [1, 9]], columns, [10, 10], 20, TrainConfig(dim=2))
    >>> np.round(vectors.astype(float), 2).tolist()
    [[0.29, -0.8], [-0.8, 0.29]]
    """
    if config.objective != "swivel":
        raise ConfigError(
            f"objective must be swivel to fold rows in, got {config.objective!r}: its biases are not kept"
        )
    fixed = _hold_columns(columns, column_sums, total, config, device)
    rows = _check_counts(counts, fixed.sums)
    result = np.zeros((rows.shape[0], fixed.vectors.shape[1]), np.float32)
    for ids in _batches(rows, fixed):
        vectors = _minimise(_gather_batch(rows[ids], fixed))
        result[ids] = vectors.to(torch.float32).cpu().numpy()
    return result


@dataclass(frozen=True, slots=True)
class _Columns:
    """What stays as it is: the columns on the device, their marginals, the objective."""

    vectors: Tensor  # (n, d)
    offsets: Tensor  # (n,)
    sums: NDArray[np.float64]
    total: float
    objective: Objective
    weight_decay: float  # of a row's whole loss, not of its mean


def _hold_columns(columns: ArrayLike, sums: ArrayLike, total: float, config: TrainConfig, device: str) -> _Columns:
    vectors, sums = np.asarray(columns, np.float64), np.asarray(sums, np.float64)
    if vectors.ndim != 2 or sums.shape != vectors.shape[:1]:
        raise CountsError(f"columns must be (n, dim) and their sums (n,), got {vectors.shape} and {sums.shape}")
    if not np.isfinite(vectors).all() or not np.isfinite(sums).all():
        raise CountsError("columns and their sums must be finite")
    if not 0 < total < np.inf:
        raise CountsError(f"total must be the sum of all counts of the training, above 0, got {total}")
    _, place = choose_backend(replace(config, backend="torch", device=device))
    dtype = _choose_dtype(place)
    objective = Objective.from_config(config)
    weight_decay = max(config.weight_decay, LEAST_DECAY) * len(vectors)
    offsets = torch.from_numpy(column_offsets(sums, objective)).to(place, dtype)
    return _Columns(
        torch.tensor(vectors, dtype=dtype, device=place), offsets, sums, float(total), objective, weight_decay
    )


def _choose_dtype(device: str) -> torch.dtype:
    return torch.float32 if device.startswith("mps") else torch.float64  # Apple's GPUs have no float64.


def _check_counts(counts: Any, column_sums: NDArray[np.float64]) -> scipy.sparse.csr_array:
    """Return a copy of the cells above 0 whose column the training knows, equal ones summed."""
    cells = scipy.sparse.coo_array(counts)
    if cells.ndim != 2 or cells.shape[1] != len(column_sums):
        raise CountsError(f"counts must be (rows, {len(column_sums)}), as many as there are columns, got {cells.shape}")
    row, column = cells.coords
    values = cells.data.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if wrong.size:
        at = wrong[0]
        raise CountsError(f"row {row[at]}, column {column[at]}: count {values[at]:g}; counts are 0 or more and finite")
    kept = (values > 0) & (column_sums[column] > 0)
    return scipy.sparse.csr_array((values[kept], (row[kept], column[kept])), shape=cells.shape)


def _batches(rows: scipy.sparse.csr_array, fixed: _Columns) -> Iterator[NDArray[np.int64]]:
    """Yield ids of rows with counts, as many at a time as memory holds; similar sums together, to end together."""
    sums = np.asarray(rows.sum(axis=1)).ravel()
    ids = np.flatnonzero(sums > 0)
    ids = ids[np.argsort(-sums[ids], kind="stable")]
    n, dim = fixed.vectors.shape
    size = max(BATCH_BYTES, 8 * n * dim) // (CELL_BYTES * max(n, 1)) or 1
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


@dataclass(frozen=True, slots=True)
class _RowBatch:
    """Some rows' loss as a function of their vectors; dense cells are (rows, n)."""

    fixed: _Columns
    offsets: Tensor  # (rows,): with the columns' they make pmi*
    seen: Tensor  # places of the observed cells, row * n + column
    targets: Tensor
    confidences: Tensor

    def losses(self, vectors: Tensor, products: Tensor) -> Tensor:
        """Return each row's loss."""
        cells = torch.nn.functional.softplus(self._margins(products), threshold=40)  # 20 is no float64
        distances = products.view(-1)[self.seen] - self.targets
        # Overwriting distinct places is the same every time; adding to shared ones is not, on a GPU.
        cells.view(-1)[self.seen] = 0.5 * self.confidences * distances**2
        return cells.sum(1) + 0.5 * self.fixed.weight_decay * (vectors**2).sum(1)

    def derivatives(self, vectors: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient with respect to the vectors, and each cell's second derivative."""
        slopes = torch.sigmoid_(self._margins(products))
        curvatures = slopes * (1 - slopes)
        slopes.view(-1)[self.seen] = self.confidences * (products.view(-1)[self.seen] - self.targets)
        curvatures.view(-1)[self.seen] = self.confidences
        return slopes @ self.fixed.vectors + self.fixed.weight_decay * vectors, curvatures

    def products(self, vectors: Tensor) -> Tensor:
        """Return w . c of every row with every column."""
        return vectors @ self.fixed.vectors.T

    def _margins(self, products: Tensor) -> Tensor:
        return (products - self.offsets[:, None]).sub_(self.fixed.offsets)


def _gather_batch(rows: scipy.sparse.csr_array, fixed: _Columns) -> _RowBatch:
    objective, like = fixed.objective, fixed.vectors
    row, column = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), rows.indices.astype(np.int64)
    offsets = row_offsets(np.asarray(rows.sum(axis=1)).ravel(), fixed.total, objective)
    targets = observed_targets(rows.data, offsets[row] + column_offsets(fixed.sums[column], objective))
    pushed = offsets + np.log(objective.unseen)
    seen = torch.from_numpy(row * rows.shape[1] + column).to(like.device)
    arrays = pushed, targets, objective.confidence(rows.data)
    pushed_down, wanted, weights = (torch.from_numpy(array).to(like.device, like.dtype) for array in arrays)
    return _RowBatch(fixed, pushed_down, seen, wanted, weights)


def _minimise(batch: _RowBatch) -> Tensor:
    """Return the vectors at which each row's loss is smallest."""
    like = batch.fixed.vectors
    vectors = torch.zeros((len(batch.offsets), like.shape[1]), dtype=like.dtype, device=like.device)
    products = batch.products(vectors)
    goal: Tensor | None = None
    for _ in range(MOST_STEPS):
        gradient, curvatures = batch.derivatives(vectors, products)
        length = gradient.norm(dim=1)
        goal = TOLERANCE[like.dtype] * length if goal is None else goal
        if not (length > goal).any():
            break
        step = _newton_step(batch, gradient, curvatures, _needed_precision(length, goal))
        del curvatures
        vectors = vectors + _step_sizes(batch, vectors, products, step, gradient)[:, None] * step
        products = batch.products(vectors)
    return vectors


def _needed_precision(length: Tensor, goal: Tensor) -> Tensor:
    """Return how near the solution each row's next step has to be: nearer as the end comes, infinitely far after it."""
    start = goal / TOLERANCE[length.dtype]
    close = torch.maximum((length / start).sqrt().clamp(max=0.1) * length, 0.1 * goal)
    return torch.where(length > goal, close, torch.inf)


def _newton_step(batch: _RowBatch, gradient: Tensor, curvatures: Tensor, close: Tensor) -> Tensor:
    """Return -H^-1 gradient of every row, each to within its own `close`, by conjugate gradients."""
    C, weight_decay = batch.fixed.vectors, batch.fixed.weight_decay
    diagonal = curvatures @ C**2 + weight_decay  # of H: a row's own preconditioner
    step, residual = torch.zeros_like(gradient), -gradient
    scaled = residual / diagonal
    direction, strength = scaled, (residual * scaled).sum(1)
    for _ in range(MOST_PRODUCTS):
        is_open = residual.norm(dim=1) > close
        if not is_open.any():
            break
        bent = batch.products(direction).mul_(curvatures) @ C + weight_decay * direction  # H times the direction
        size = torch.where(is_open, strength / (direction * bent).sum(1), 0)[:, None]  # a row that is done stays
        step = step + size * direction
        residual = residual - size * bent
        scaled = residual / diagonal
        before, strength = strength, (residual * scaled).sum(1)
        direction = scaled + torch.where(is_open, strength / before, 0)[:, None] * direction
    return step


def _step_sizes(batch: _RowBatch, vectors: Tensor, products: Tensor, step: Tensor, gradient: Tensor) -> Tensor:
    """Return the first of 1, 1/2, 1/4, ... for each row at which its loss falls; 0 where none does."""
    change, slope = batch.products(step), (gradient * step).sum(1)
    losses = batch.losses(vectors, products)
    slack = 8 * torch.finfo(losses.dtype).eps * losses  # Near the minimum, falls are smaller than rounding.
    sizes = torch.ones_like(slope)
    for _ in range(MOST_HALVINGS):
        reached = batch.losses(vectors + sizes[:, None] * step, torch.addcmul(products, sizes[:, None], change))
        too_far = reached > losses + SUFFICIENT * sizes * slope + slack
        if not too_far.any():
            return sizes
        sizes = torch.where(too_far, sizes / 2, sizes)
    return torch.where(too_far, 0, sizes)
