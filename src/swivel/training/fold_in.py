"""Vectors for rows that were not trained, by minimizing the training objective with the columns fixed.

With C, the column sums and D as they were in training, the loss of a row is a convex function of its vector alone::

    sum_j L(w . c_j; x_j) + n decay/2 |w|^2          L_1 and L_0 of `objective`, over all n columns

Training adds `decay w` to gradients that are divided by the number of columns of a block, hence the factor n. Newton's
method minimizes the loss of all rows of a batch at once. Conjugate gradients give the step; they need products with C
but no Hessian. The step is halved until the loss falls. Masks keep the rows independent: the result of a row does not
depend on the other rows of its batch.

For a new row, x_i* is the sum of its counts; D and x_*j are those of the training, as if the row were too small to
change them. Counts in columns without training counts are ignored, also in the sum, because they have no PMI and no
column vector. A row without counts gets the zero vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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

# Training stops before it reaches the minimum, which keeps vectors short like a weight decay. Without decay, a row of
# few counts may have no minimum: the loss of its unobserved cells falls without end. So the decay is at least that of
# recipe `default`, even if the training had none. With 1e-6, rows of 24 counts took five times as many products
# (ingredients and compounds, dim 128), and their neighbors matched those of trained rows less (docs/estimator.md).
MIN_WEIGHT_DECAY = 5e-5
MAX_NEWTON_STEPS = 50
MAX_CG_STEPS = 500  # conjugate gradient steps per Newton step
MAX_HALVINGS = 40
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}  # relative to the norm of the gradient at the zero vector
SUFFICIENT_DECREASE = 1e-4  # share of the decrease predicted by the slope that a step must reach (Armijo)
BATCH_BYTES = 1 << 28  # memory for the cells of a batch, or the size of the columns if that is larger
BYTES_PER_CELL = 112  # at most: eight dense arrays in the line search, and six of observed cells


def fold_in(
    counts: Any,
    columns: ArrayLike,
    column_sums: ArrayLike,
    total: float,
    config: TrainConfig,
    *,
    device: str = "auto",
) -> NDArray[np.float32]:
    """Return vectors for rows that were not trained, with the column vectors held fixed.

    Parameters
    ----------
    counts : array or sparse matrix of shape (n_rows, n_columns)
        Counts of the new rows, in the column order of the trained matrix. Duplicate cells are summed.
    columns : ndarray of shape (n_columns, dim)
        Trained column vectors.
    column_sums : ndarray of shape (n_columns,)
        Column sums of the matrix that the columns were trained on.
    total : float
        Sum of all counts of that matrix.
    config : TrainConfig
        The settings the columns were trained with; the objective and the weight decay are used.
    device : str
        auto, cpu, cuda, or any name of a torch device.

    Returns
    -------
    ndarray of shape (n_rows, dim), float32
        One vector per row; zeros for a row without counts.

    Raises
    ------
    CountsError
        Counts are negative or not finite, or do not match the columns.
    ConfigError
        The objective is GloVe, whose column biases are not saved.

    Examples
    --------
    Two rows with opposite counts get different vectors:

    >>> columns = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> vectors = fold_in([[9, 1], [1, 9]], columns, [10, 10], 20, TrainConfig(dim=2))
    >>> np.round(vectors.astype(float), 2).tolist()
    [[0.29, -0.8], [-0.8, 0.29]]
    """
    if config.objective != "swivel":
        raise ConfigError(
            f"objective must be swivel to fold rows in, got {config.objective!r}: its biases are not saved"
        )
    fixed = _Columns(columns, column_sums, total, config, device)
    rows = _check_counts(counts, fixed.sums)

    result = np.zeros((rows.shape[0], fixed.vectors.shape[1]), np.float32)
    for ids in _batches(rows, fixed):
        vectors = _minimize(_RowBatch(rows[ids], fixed))
        result[ids] = vectors.to(torch.float32).cpu().numpy()
    return result


class _Columns:
    """The fixed part of the problem: column vectors C and their offsets on the device, marginals and objective."""

    def __init__(
        self, columns: ArrayLike, column_sums: ArrayLike, total: float, config: TrainConfig, device: str
    ) -> None:
        vectors = np.asarray(columns, np.float64)
        sums = np.asarray(column_sums, np.float64)
        if vectors.ndim != 2 or sums.shape != vectors.shape[:1]:
            raise CountsError(f"columns must be (n, dim) and column_sums (n,), got {vectors.shape} and {sums.shape}")
        if not np.isfinite(vectors).all() or not np.isfinite(sums).all():
            raise CountsError("columns and column_sums must be finite")
        if not 0 < total < np.inf:
            raise CountsError(f"total must be positive and finite (the sum of all training counts), got {total}")

        _, device = choose_backend(replace(config, backend="torch", device=device))
        dtype = _choose_dtype(device)
        self.objective = Objective.from_config(config)
        self.vectors = torch.tensor(vectors, dtype=dtype, device=device)
        self.offsets = torch.from_numpy(column_offsets(sums, self.objective)).to(device, dtype)
        self.sums = sums
        self.total = float(total)
        # n decay: the loss of a row is a sum over columns, not a mean.
        self.weight_decay = max(config.weight_decay, MIN_WEIGHT_DECAY) * len(vectors)


def _choose_dtype(device: str) -> torch.dtype:
    return torch.float32 if device.startswith("mps") else torch.float64  # Apple GPUs have no float64.


def _check_counts(counts: Any, column_sums: NDArray[np.float64]) -> scipy.sparse.csr_array:
    """Return a copy of the positive counts in columns with training counts; duplicate cells are summed."""
    cells = scipy.sparse.coo_array(counts)
    if cells.ndim != 2 or cells.shape[1] != len(column_sums):
        raise CountsError(f"counts must have shape (rows, {len(column_sums)}) to match the columns, got {cells.shape}")

    row, column = cells.coords
    values = cells.data.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if wrong.size:
        at = wrong[0]
        raise CountsError(f"row {row[at]}, column {column[at]}: count {values[at]:g}; counts must be finite and >= 0")

    kept = (values > 0) & (column_sums[column] > 0)
    return scipy.sparse.csr_array((values[kept], (row[kept], column[kept])), shape=cells.shape)


def _batches(rows: scipy.sparse.csr_array, fixed: _Columns) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers of rows with counts, as many at a time as fit into memory.

    Rows are sorted by their sums: similar rows need a similar number of steps.
    """
    sums = np.asarray(rows.sum(axis=1)).ravel()
    ids = np.flatnonzero(sums > 0)
    ids = ids[np.argsort(-sums[ids], kind="stable")]

    n, dim = fixed.vectors.shape
    size = max(BATCH_BYTES, 8 * n * dim) // (BYTES_PER_CELL * max(n, 1)) or 1
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


class _RowBatch:
    """The loss of some rows as a function of their vectors. Arrays over all cells have shape (rows, n)."""

    def __init__(self, rows: scipy.sparse.csr_array, fixed: _Columns) -> None:
        objective = fixed.objective
        device = fixed.vectors.device
        dtype = fixed.vectors.dtype

        row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        column = rows.indices.astype(np.int64)
        offsets = row_offsets(np.asarray(rows.sum(axis=1)).ravel(), fixed.total, objective)
        targets = observed_targets(rows.data, offsets[row] + column_offsets(fixed.sums[column], objective))

        self.fixed = fixed
        self.offsets = torch.from_numpy(offsets + np.log(objective.unseen)).to(device, dtype)  # the row's part of pmi*
        # Of the observed cells: flat indices (row * n + column), pmi and f.
        self.seen = torch.from_numpy(row * rows.shape[1] + column).to(device)
        self.targets = torch.from_numpy(targets).to(device, dtype)
        self.confidences = torch.from_numpy(objective.confidence(rows.data)).to(device, dtype)

    def losses(self, vectors: Tensor, products: Tensor) -> Tensor:
        """Return the loss of each row, shape (rows,)."""
        # All cells as if unobserved: L_0. The default threshold of 20 is not exact in float64.
        cells = torch.nn.functional.softplus(self._margins(products), threshold=40)

        # Replace L_0 by L_1 in the observed cells. Writing to distinct indices is deterministic on a GPU; adding to
        # shared ones is not.
        distances = products.view(-1)[self.seen] - self.targets
        cells.view(-1)[self.seen] = 0.5 * self.confidences * distances**2
        return cells.sum(1) + 0.5 * self.fixed.weight_decay * (vectors**2).sum(1)

    def derivatives(self, vectors: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient with respect to the vectors, and the second derivative of each cell."""
        # L_0' = sigmoid(m) and L_0'' = sigmoid(m) (1 - sigmoid(m)); L_1' = f d and L_1'' = f.
        slopes = torch.sigmoid_(self._margins(products))
        curvatures = slopes * (1 - slopes)
        slopes.view(-1)[self.seen] = self.confidences * (products.view(-1)[self.seen] - self.targets)
        curvatures.view(-1)[self.seen] = self.confidences
        return slopes @ self.fixed.vectors + self.fixed.weight_decay * vectors, curvatures

    def products(self, vectors: Tensor) -> Tensor:
        """Return w . c for every row and column, shape (rows, n)."""
        return vectors @ self.fixed.vectors.T

    def _margins(self, products: Tensor) -> Tensor:
        return (products - self.offsets[:, None]).sub_(self.fixed.offsets)


def _minimize(batch: _RowBatch) -> Tensor:
    """Return the vectors that minimize the loss of each row, by Newton's method from zero vectors."""
    columns = batch.fixed.vectors
    vectors = torch.zeros((len(batch.offsets), columns.shape[1]), dtype=columns.dtype, device=columns.device)
    products = batch.products(vectors)
    goal: Tensor | None = None

    for _ in range(MAX_NEWTON_STEPS):
        gradient, curvatures = batch.derivatives(vectors, products)
        norm = gradient.norm(dim=1)
        if goal is None:
            goal = TOLERANCE[columns.dtype] * norm
        if not (norm > goal).any():
            break

        # Conjugate gradients may stop at a residual that shrinks as a row converges, so that early steps are cheap; it
        # is infinite for a row that has converged.
        relative = norm / (goal / TOLERANCE[columns.dtype])  # to the norm at the zero vector
        tolerance = torch.maximum(relative.sqrt().clamp(max=0.1) * norm, 0.1 * goal)
        step = _newton_step(batch, gradient, curvatures, torch.where(norm > goal, tolerance, torch.inf))
        del curvatures  # as large as all cells of the batch; free it before the line search
        vectors = vectors + _step_sizes(batch, vectors, products, step, gradient)[:, None] * step
        products = batch.products(vectors)
    return vectors


def _newton_step(batch: _RowBatch, gradient: Tensor, curvatures: Tensor, tolerance: Tensor) -> Tensor:
    """Return -H^-1 gradient for every row, to within its tolerance, by preconditioned conjugate gradients."""
    C = batch.fixed.vectors
    weight_decay = batch.fixed.weight_decay
    diagonal = curvatures @ C**2 + weight_decay  # of H: the preconditioner

    step = torch.zeros_like(gradient)
    residual = -gradient
    scaled = residual / diagonal
    direction = scaled
    strength = (residual * scaled).sum(1)

    for _ in range(MAX_CG_STEPS):
        is_open = residual.norm(dim=1) > tolerance
        if not is_open.any():
            break

        # H direction, without H: C' (curvature * (C direction)) + decay direction.
        curved = batch.products(direction).mul_(curvatures) @ C + weight_decay * direction
        size = torch.where(is_open, strength / (direction * curved).sum(1), 0)[:, None]  # 0: the row has converged
        step = step + size * direction
        residual = residual - size * curved

        scaled = residual / diagonal
        previous = strength
        strength = (residual * scaled).sum(1)
        direction = scaled + torch.where(is_open, strength / previous, 0)[:, None] * direction
    return step


def _step_sizes(batch: _RowBatch, vectors: Tensor, products: Tensor, step: Tensor, gradient: Tensor) -> Tensor:
    """Return the first of 1, 1/2, 1/4, ... at which the loss of each row falls enough; 0 if none does."""
    change = batch.products(step)
    slope = (gradient * step).sum(1)
    losses = batch.losses(vectors, products)
    # Near the minimum, the decrease is smaller than rounding errors.
    slack = 8 * torch.finfo(losses.dtype).eps * losses
    sizes = torch.ones_like(slope)

    for _ in range(MAX_HALVINGS):
        new_losses = batch.losses(vectors + sizes[:, None] * step, torch.addcmul(products, sizes[:, None], change))
        too_far = new_losses > losses + SUFFICIENT_DECREASE * sizes * slope + slack
        if not too_far.any():
            return sizes
        sizes = torch.where(too_far, sizes / 2, sizes)
    return torch.where(too_far, 0, sizes)
