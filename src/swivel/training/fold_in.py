"""Vectors for rows that were not trained, by minimizing the training objective with the columns fixed.

With C, the column sums and D as they were in training, the loss of a row is a convex function of its vector alone::

    sum_j L(w . c_j; x_j) + n decay/2 |w|^2          L_1 and L_0 of `objective`, over all n columns

Training adds `decay w` to gradients that are divided by the number of columns of a block, hence the factor n. The loss
of the observed cells and the weight decay are a quadratic function of w. Its matrix A is computed once per row::

    A = sum_j f_j c_j c_j' + n decay I      b = sum_j f_j pmi_j c_j          j: the observed columns

The unobserved cells need all columns in every step, so that many columns are sampled. The sample S is the same for all
rows, and a column in it has the weight 1 / probability. Newton's method minimizes the sampled loss of all rows of a
batch at once, with conjugate gradients for the step, and the step is halved until the loss falls. Then the gradient is
computed once with all columns, and the sampled loss is minimized again after a linear term has given it this gradient.
Such a correction removes most of the error of the sample. Up to `SAMPLE_COLUMNS` columns, the sample is all of them.

All rows share one preconditioner, the Gram matrix of the columns weighted by their frequency, which only is scaled for
each row: in its eigenvectors, that costs two products with a matrix (dim, dim) for a whole batch.

Masks keep the rows independent: the result of a row does not depend on the other rows of its batch.

For a new row, x_i* is the sum of its counts; D and x_*j are those of the training, as if the row were too small to
change them. Counts in columns without training counts are ignored, also in the sum, because they have no PMI and no
column vector. A row without counts gets the zero vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from swivel.config import TrainConfig
from swivel.errors import CountsError
from swivel.runtime.parallel import open_torch_pool
from swivel.training.objective import column_offsets, confidence, find_decays, observed_targets, row_offsets
from swivel.training.objective_torch import unobserved_curvatures, unobserved_gradients_, unobserved_losses
from swivel.training.training_plan import choose_backend

# Training stops before it reaches the minimum, which keeps vectors short like a weight decay. Without decay, a row of
# few counts may have no minimum: the loss of its unobserved cells falls without end. So the decay is at least that of
# recipe `default`, even if the training had none. With 1e-6, rows of 24 counts took five times as many products
# (ingredients and compounds, dim 128), and their neighbors matched those of trained rows less (experiments/notes.md).
MIN_WEIGHT_DECAY = 5e-5
MAX_NEWTON_STEPS = 50
MAX_CG_STEPS = 500  # conjugate gradient steps per Newton step
MAX_HALVINGS = 40
SUFFICIENT_DECREASE = 1e-4  # share of the decrease predicted by the slope that a step must reach (Armijo)

SAMPLE_COLUMNS = 8192  # with more columns, so many are sampled; experiments/notes.md has the errors of other sizes
# Norms of the gradient at a minimum, relative to that at the zero vector: with all columns, and with a sample.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
SAMPLE_TOLERANCE = 3e-3
# With a sample: Newton steps and conjugate gradient steps of each, first and after each correction. More steps would
# find the minimum of the sampled loss, which is not that of the loss itself (experiments/notes.md).
SAMPLE_STEPS = ((3, 3), (1, 5))

BATCH_BYTES = 1 << 27  # memory for the arrays of all batches at a time, without those of their observed cells
ARRAYS_PER_CELL = 8  # arrays of shape (rows, sample), in the line search
PIECE = 1 << 14  # columns that are multiplied at a time, to limit the memory


def fold_in(
    counts: Any, columns: ArrayLike, column_sums: ArrayLike, total: float, config: TrainConfig, *, device: str = "auto"
) -> NDArray[np.float32]:
    """Return vectors for rows that were not trained, with the column vectors held fixed.

    With more than 8,192 columns, the result is approximate: the unobserved cells are sampled (see the module).

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
        The settings the columns were trained with; those of the loss, the weight decay and the seed are used.
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

    Examples
    --------
    Two rows with opposite counts get different vectors:

    >>> columns = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> vectors = fold_in([[9, 1], [1, 9]], columns, [10, 10], 20, TrainConfig(dim=2))
    >>> np.round(vectors.astype(float), 2).tolist()
    [[0.29, -0.8], [-0.8, 0.29]]
    """
    return FixedColumns(columns, column_sums, total, config, device=device).fold_in(counts)


class FixedColumns:
    """The fixed part of the problem: column vectors C, their sample and offsets on the device, and the objective.

    The parameters are those of `fold_in`. Creating the object takes about as long as folding in a few rows.
    """

    def __init__(
        self, columns: ArrayLike, column_sums: ArrayLike, total: float, config: TrainConfig, *, device: str = "auto"
    ) -> None:
        vectors = np.asarray(columns)
        sums = np.asarray(column_sums, np.float64)
        if vectors.ndim != 2 or sums.shape != vectors.shape[:1]:
            raise CountsError(f"columns must be (n, dim) and column_sums (n,), got {vectors.shape} and {sums.shape}")
        if not np.isfinite(vectors).all() or not np.isfinite(sums).all():
            raise CountsError("columns and column_sums must be finite")
        if not 0 < total < np.inf:
            raise CountsError(f"total must be positive and finite (the sum of all training counts), got {total}")

        _, device = choose_backend(replace(config, backend="torch", device=device))
        self.is_sampled = len(sums) > SAMPLE_COLUMNS
        dtype = torch.float32 if self.is_sampled else _choose_dtype(device)
        self.vectors = torch.tensor(vectors, dtype=dtype, device=device)
        self.offsets = torch.from_numpy(column_offsets(sums)).to(self.vectors)
        self.sums = sums
        self.total = float(total)
        self.config = config

        ids, weights = _sample_columns(sums, config.seed)
        self.index_in_sample = np.full(len(sums), -1, np.int64)
        self.index_in_sample[ids] = np.arange(len(ids))
        self.sample = self.vectors[torch.from_numpy(ids).to(device)]
        self.sample_offsets = self.offsets[torch.from_numpy(ids).to(device)]
        self.weights = torch.from_numpy(weights).to(self.vectors)
        self.squares = (self.sample * self.sample).sum(1)

        # The shared part of the preconditioner: the Gram matrix of the columns, weighted by the root of their sums. A
        # common column is observed more often, and its unobserved cells have a larger curvature.
        common = torch.from_numpy(weights * np.sqrt(np.maximum(sums[ids], 0))).to(self.vectors)
        gram = (self.sample.T * common) @ self.sample
        strengths, self.axes = torch.linalg.eigh(gram)
        self.strengths = strengths.clamp(min=0) / strengths.sum().clamp(min=torch.finfo(gram.dtype).tiny)

    def find_ridges(self, row_sums: NDArray[np.float64]) -> Tensor:
        """Return the weight decay of each row times n, because the loss of a row is a sum over columns, not a mean."""
        decays = np.maximum(find_decays(row_sums, self.config), MIN_WEIGHT_DECAY)
        return torch.from_numpy(decays * len(self.vectors)).to(self.vectors)

    def fold_in(self, counts: Any) -> NDArray[np.float32]:
        """Return one vector per row of `counts`, as the function `fold_in`."""
        rows = _check_counts(counts, self.sums)
        if self.config.transform == "log":
            rows.data = np.log1p(rows.data)
        result = np.zeros((rows.shape[0], self.vectors.shape[1]), np.float32)

        # On a CPU, a thread takes a batch of its own: threads that share small products wait for each other.
        threads = torch.get_num_threads() if self.vectors.device.type == "cpu" else 1
        batches = _split_rows(rows, self, threads)
        with open_torch_pool(threads) as pool:
            folded = pool.map(lambda ids: _fold_batch(_RowBatch(rows[ids], self)), batches)
            for ids, vectors in zip(batches, folded, strict=True):
                result[ids] = vectors.to(torch.float32).cpu().numpy()
        return result


def _sample_columns(sums: NDArray[np.float64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return columns and their weights, 1 / probability; the probability is proportional to the root of the sum.

    Common columns have most of the gradient of the unobserved cells: the most common ones are always in the sample.
    """
    if len(sums) <= SAMPLE_COLUMNS:
        return np.arange(len(sums)), np.ones(len(sums))

    roots = np.sqrt(np.maximum(sums, 0))
    is_certain = np.zeros(len(sums), bool)
    while True:
        free_places = SAMPLE_COLUMNS - is_certain.sum()
        total = roots[~is_certain].sum()
        probabilities = np.where(is_certain, 1.0, free_places * (roots / total) if total > 0 else 0.0)
        if not (probabilities > 1).any():
            break
        is_certain |= probabilities >= 1

    # Systematic sampling: one random number, and a column wherever the cumulative sum passes an integer.
    ends = np.cumsum(probabilities) + np.random.default_rng(seed).random()
    ids = np.flatnonzero(np.floor(ends) > np.floor(ends - probabilities))
    return ids, 1 / probabilities[ids]


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

    is_valid = (values > 0) & (column_sums[column] > 0)
    return scipy.sparse.csr_array((values[is_valid], (row[is_valid], column[is_valid])), shape=cells.shape)


def _split_rows(rows: scipy.sparse.csr_array, fixed: FixedColumns, threads: int) -> list[NDArray[np.int64]]:
    """Return row numbers of rows with counts in batches, of which one per thread fits into memory.

    Rows are sorted by their sums: similar rows need a similar number of steps.
    """
    sums = np.asarray(rows.sum(axis=1)).ravel()
    ids = np.flatnonzero(sums > 0)
    ids = ids[np.argsort(-sums[ids], kind="stable")]

    dim = fixed.vectors.shape[1]
    numbers = ARRAYS_PER_CELL * len(fixed.sample) + dim**2
    size = BATCH_BYTES // (fixed.vectors.itemsize * numbers * threads) or 1
    size = min(size, -(-len(ids) // threads) or 1)
    return [ids[start : start + size] for start in range(0, len(ids), size)]


class _RowBatch:
    """The sampled loss of some rows as a function of their vectors. Arrays over cells have shape (rows, sample)."""

    def __init__(self, rows: scipy.sparse.csr_array, fixed: FixedColumns) -> None:
        like = fixed.vectors

        row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        column = rows.indices.astype(np.int64)
        sums = np.asarray(rows.sum(axis=1)).ravel()
        offsets = row_offsets(sums, fixed.total, fixed.config)
        targets = observed_targets(rows.data, offsets[row] + column_offsets(fixed.sums[column]))

        self.fixed = fixed
        self.offsets = torch.from_numpy(offsets + np.log(fixed.config.unseen)).to(like)  # the row's part of pmi*
        self.decays = fixed.find_ridges(sums)
        self.A, self.b = _sum_observed(rows, torch.from_numpy(targets).to(like), fixed, self.decays)
        self.b0 = self.b  # without the linear term of `correct_gradient`

        # Observed cells: flat indices in arrays over the sample, and all of them by column.
        index = fixed.index_in_sample[column]
        in_sample = index >= 0
        self.seen = torch.from_numpy(row[in_sample] * len(fixed.sample) + index[in_sample]).to(like.device)
        order = np.argsort(column, kind="stable")
        self.rows_by_column = row[order]
        self.columns_by_column = column[order]

        zeros = torch.zeros_like(self.b)
        products = like.new_zeros((rows.shape[0], len(fixed.sample)))
        self.scale = self.derivatives(zeros, products)[0].norm(dim=1)  # of gradients

    def losses(self, vectors: Tensor, products: Tensor) -> Tensor:
        """Return the loss of each row, shape (rows,), up to a constant."""
        cells = unobserved_losses(self._margins(products)).mul_(self.fixed.weights)
        # Writing to distinct indices is deterministic on a GPU; adding to shared ones is not.
        cells.view(-1)[self.seen] = 0
        return cells.sum(1) + (vectors * (0.5 * _multiply(self.A, vectors) - self.b)).sum(1)

    def derivatives(self, vectors: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient with respect to the vectors, and the weighted second derivative of each cell."""
        slopes = unobserved_gradients_(self._margins(products))
        curvatures = unobserved_curvatures(slopes).mul_(self.fixed.weights)
        slopes.mul_(self.fixed.weights)
        slopes.view(-1)[self.seen] = 0
        curvatures.view(-1)[self.seen] = 0
        return slopes @ self.fixed.sample + _multiply(self.A, vectors) - self.b, curvatures

    def preconditioner(self, curvatures: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function that multiplies vectors by the inverse of t_i G + n decay I, nearly that of the Hessian.

        G is the Gram matrix of `FixedColumns`, with a trace of 1; t_i is the trace of the Hessian without decay.
        """
        axes = self.fixed.axes
        observed = self.A.diagonal(dim1=1, dim2=2).sum(1) - self.decays * len(axes)
        traces = observed.clamp(min=0) + curvatures @ self.fixed.squares
        scales = traces[:, None] * self.fixed.strengths + self.decays[:, None]
        return lambda vectors: ((vectors @ axes) / scales) @ axes.T

    def correct_gradient(self, vectors: Tensor) -> None:
        """Add a linear term to the sampled loss, so that its gradient at `vectors` is that of the loss of all cells."""
        C = self.fixed.vectors
        sampled, _ = self.derivatives(vectors, self.products(vectors))
        gradient = _multiply(self.A, vectors) - self.b0

        for start in range(0, len(C), PIECE):
            piece = slice(start, start + PIECE)
            margins = vectors @ C[piece].T - self.offsets[:, None] - self.fixed.offsets[piece]
            slopes = unobserved_gradients_(margins)
            seen = slice(*np.searchsorted(self.columns_by_column, [start, start + PIECE]))
            slopes[self.rows_by_column[seen], self.columns_by_column[seen] - start] = 0
            gradient += slopes @ C[piece]
        self.b = self.b + sampled - gradient

    def products(self, vectors: Tensor) -> Tensor:
        """Return w . c for every row and column of the sample, shape (rows, sample)."""
        return vectors @ self.fixed.sample.T

    def _margins(self, products: Tensor) -> Tensor:
        return (products - self.offsets[:, None]).sub_(self.fixed.sample_offsets)


def _multiply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of each symmetric matrix and its vector. From the left it is five times as fast on a CPU."""
    return torch.bmm(vectors[:, None], matrices)[:, 0]


def _sum_observed(
    rows: scipy.sparse.csr_array, targets: Tensor, fixed: FixedColumns, decays: Tensor
) -> tuple[Tensor, Tensor]:
    """Return A and b of the module's docstring for each row: shapes (rows, dim, dim) and (rows, dim)."""
    C = fixed.vectors
    dim = C.shape[1]
    roots = torch.from_numpy(np.sqrt(confidence(rows.data, fixed.config))).to(C)
    columns = torch.from_numpy(rows.indices.astype(np.int64)).to(C.device)

    A = C.new_zeros((rows.shape[0], dim, dim))
    b = C.new_zeros((rows.shape[0], dim))
    for row in range(rows.shape[0]):
        for start in range(rows.indptr[row], rows.indptr[row + 1], PIECE):
            cells = slice(start, min(start + PIECE, rows.indptr[row + 1]))
            seen = C[columns[cells]].mul_(roots[cells, None])
            A[row].addmm_(seen.T, seen)
            b[row].addmv_(seen.T, roots[cells] * targets[cells])

    diagonal = A.diagonal(dim1=1, dim2=2)
    # Rounding hides curvatures that are too small relative to the trace; A may not be positive definite then.
    rounding = 8 * torch.finfo(C.dtype).eps * diagonal.sum(1, keepdim=True)
    diagonal += torch.maximum(rounding, decays[:, None])
    return A, b


def _fold_batch(batch: _RowBatch) -> Tensor:
    """Return the vectors that minimize the loss of each row over all cells."""
    vectors = torch.zeros_like(batch.b)
    if not batch.fixed.is_sampled:
        return _minimize(batch, vectors, TOLERANCE[vectors.dtype], MAX_NEWTON_STEPS, MAX_CG_STEPS)

    for number, steps in enumerate(SAMPLE_STEPS):
        if number:
            batch.correct_gradient(vectors)
        vectors = _minimize(batch, vectors, SAMPLE_TOLERANCE, *steps)
    return vectors


def _minimize(batch: _RowBatch, vectors: Tensor, tolerance: float, newton_steps: int, cg_steps: int) -> Tensor:
    """Return the vectors that minimize the sampled loss of each row, by Newton's method from `vectors`."""
    goal = tolerance * batch.scale
    products = batch.products(vectors)

    for _ in range(newton_steps):
        gradient, curvatures = batch.derivatives(vectors, products)
        norm = gradient.norm(dim=1)
        if not (norm > goal).any():
            break

        # Conjugate gradients may stop at a residual that shrinks as a row converges, so that early steps are cheap; it
        # is infinite for a row that has converged.
        allowed = torch.maximum((norm / batch.scale).sqrt().clamp(max=0.1) * norm, 0.3 * goal)
        allowed = torch.where(norm > goal, allowed, torch.inf)
        step = _newton_step(batch, gradient, curvatures, allowed, cg_steps)
        del curvatures  # as large as all cells of the batch; free it before the line search
        change = batch.products(step)
        sizes = _step_sizes(batch, vectors, products, step, change, gradient)[:, None]
        vectors = vectors + sizes * step
        products = products.addcmul_(sizes, change)
    return vectors


def _newton_step(batch: _RowBatch, gradient: Tensor, curvatures: Tensor, tolerance: Tensor, cg_steps: int) -> Tensor:
    """Return -H^-1 gradient for every row, to within its tolerance, by preconditioned conjugate gradients."""
    S = batch.fixed.sample
    precondition = batch.preconditioner(curvatures)
    step = torch.zeros_like(gradient)
    residual = -gradient
    scaled = precondition(residual)
    direction = scaled
    strength = (residual * scaled).sum(1)

    for _ in range(cg_steps):
        is_open = residual.norm(dim=1) > tolerance
        if not is_open.any():
            break

        # H direction, without H: S' (curvature * (S direction)) + A direction.
        curved = batch.products(direction).mul_(curvatures) @ S + _multiply(batch.A, direction)
        size = torch.where(is_open, strength / (direction * curved).sum(1), 0)[:, None]  # 0: the row has converged
        step = step + size * direction
        residual = residual - size * curved

        scaled = precondition(residual)
        previous = strength
        strength = (residual * scaled).sum(1)
        direction = scaled + torch.where(is_open, strength / previous, 0)[:, None] * direction
    return step


def _step_sizes(
    batch: _RowBatch, vectors: Tensor, products: Tensor, step: Tensor, change: Tensor, gradient: Tensor
) -> Tensor:
    """Return the first of 1, 1/2, 1/4, ... at which the loss of each row falls enough; 0 if none does."""
    slope = (gradient * step).sum(1)
    losses = batch.losses(vectors, products)
    # Near the minimum, the decrease is smaller than rounding errors; b . w is the largest term of the loss.
    slack = 8 * torch.finfo(losses.dtype).eps * (losses.abs() + (vectors * batch.b).sum(1).abs())
    sizes = torch.ones_like(slope)

    for _ in range(MAX_HALVINGS):
        new_losses = batch.losses(vectors + sizes[:, None] * step, torch.addcmul(products, sizes[:, None], change))
        too_far = new_losses > losses + SUFFICIENT_DECREASE * sizes * slope + slack
        if not too_far.any():
            return sizes
        sizes = torch.where(too_far, sizes / 2, sizes)
    return torch.where(too_far, 0, sizes)
