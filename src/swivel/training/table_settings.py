"""Settings of training that follow from a table: ratings, purchases, tags and other rows and columns of two kinds.

experiments/tables.md has the measurements behind the constants, and names the tables on which they were chosen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from swivel.config import RECIPES, TrainConfig
from swivel.counts import Matrix
from swivel.runtime.parallel import open_torch_pool
from swivel.runtime.resources import check_memory

UNSEEN_GAP = 6.0  # targets of unobserved cells are this much below those of observed cells

# The recipe's learning rate is for so many dimensions. A step changes all d values of a vector by about the rate, and
# a product with another vector by sqrt(d) times that.
RATE_DIMS = 64

# The weight decay: experiments/tables.md.
STRENGTH = 0.77  # times the noise
SPECTRUM_DIMS = 128  # singular values that are looked at, whatever the dimensions of the vectors
STRUCTURE_POWER = 0.65  # of the ratio of their squares in noise and in the table
LEADING_DIMS = 8  # of them that are left out of the ratio: a few large ones say little about the others
MIN_FACTOR = 0.68  # tables with more structure need about as much decay: Gowalla, Yelp2018
ITERATIONS = 2  # of the estimate of singular values
SPARE_DIMS = 16  # additional dimensions make the singular values of a random projection more exact
# Larger tables are represented by a sample of their rows.
MAX_SPECTRUM_CELLS = 10_000_000
MAX_SPECTRUM_ROWS = 50_000
CELLS_PER_PIECE = 1 << 22  # cells of the matrix that are read at a time
BYTES_PER_CELL = 80  # of a table whose singular values are estimated; measured: 65 to 73, while it is read
MIN_NOISE = 1e-9
MIN_UNOBSERVED = 0.01  # share of the cells of a full table that count as not observed

MIN_TABLE_BLOCK = 512
MAX_TABLE_BLOCK = 8192
CELLS_PER_VECTOR = 12  # observed cells that the mean vector of a block should have in it
MAX_SIZE = 65_536  # more rows or columns: the block size and the epochs of text
EPOCHS = 24
# Of tables with fewer cells, observed or not, all zeros are computed, because few steps average few samples.
FEW_CELLS = 2_000_000
# Zeros are sampled in proportion to the density, about as many for each observed cell; the recipe's settings are for
# this density.
USUAL_DENSITY = 0.001
MAX_DENSITY_RATIO = 4.0
POPULAR_COLUMNS = 20  # whose share of a table shows how much of it is popularity


def is_table(matrix: Matrix) -> bool:
    """Return whether rows and columns are things of different kinds, such as users and products."""
    return matrix.columns_per_row == 0


def choose_table_settings(matrix: Matrix) -> dict[str, Any]:
    """Return the settings of the recipe `table` that depend on the table, except the weight decay."""
    rows, columns = matrix.shape
    cells = matrix.cell_count
    density = cells / (rows * columns)

    # The last digits of sums of logarithms differ between CPUs, but a run must have one configuration on all of them.
    unseen = max(math.exp(-UNSEEN_GAP) * matrix.total / cells, matrix.absent_bound)
    settings: dict[str, Any] = {"unseen": float(f"{unseen:.9g}")}
    if max(rows, columns) <= MAX_SIZE:
        settings["epochs"] = EPOCHS
        settings["block_size"] = choose_block_size(rows, columns, density)
    return settings | _choose_zeros(rows * columns, density)


def choose_learning_rate(config: TrainConfig) -> float:
    """Return the learning rate of a table for the dimensions of a configuration with the recipe's rate.

    >>> [choose_learning_rate(TrainConfig(dim=dim, learning_rate=0.5)) for dim in (16, 64, 256)]
    [0.5, 0.5, 0.25]
    """
    return float(f"{config.learning_rate * math.sqrt(min(RATE_DIMS / config.dim, 1.0)):.6g}")


def choose_block_size(rows: int, columns: int, density: float) -> int:
    """Return a block size with which a vector has several observed cells in most of its blocks.

    A step of a vector that has no observed cell in the block is decay and zeros alone: with blocks of 512, most steps
    of a very sparse table. At least two blocks can be trained at the same time, if the table is not small.
    """
    ideal = min(CELLS_PER_VECTOR / density, MAX_TABLE_BLOCK, math.ceil(min(rows, columns) / 2))
    return max(int(ideal), MIN_TABLE_BLOCK)


def _choose_zeros(cells: int, density: float) -> dict[str, Any]:
    """Return which zeros of a table with so many cells, observed or not, are computed; CUDA computes all of them."""
    if cells <= FEW_CELLS:
        return {"zeros": "all"}

    ratio = min(density / USUAL_DENSITY, MAX_DENSITY_RATIO)
    usual = RECIPES["table"]["train"]
    tiers = {
        "zeros_common": usual["zeros_common"] * ratio,
        "zeros_middle": usual["zeros_middle"] * math.sqrt(ratio),
        "zeros_share": usual["zeros_share"] * ratio,
    }
    return {"zeros": "auto"} | {name: float(f"{value:.6g}") for name, value in tiers.items()}


def choose_popularity(rows: int, cells: int, column_sums: NDArray[np.float64]) -> float:
    """Return the factor of a column's log sum in a ranking.

    The weight decay of common columns is larger, so that products with them are too small: popularity makes up for it.
    It is more if rows have many cells, and if few columns have most of them.

    >>> many, few = np.full(1000, 1.0), np.full(1000, 1e-3)
    >>> few[:20] = 1.0
    >>> [choose_popularity(20_000, 100_000, sums) for sums in (many, few)]
    [0.41, 1.0]
    """
    common = np.sort(column_sums)[-POPULAR_COLUMNS:].sum() / column_sums.sum()
    return round(float(min(max(0.25 + 0.09 * math.log(cells / rows) + common, 0.0), 1.0)), 2)


def choose_weight_decay(matrix: Matrix, config: TrainConfig) -> float:
    """Return the weight decay of a table; the other settings are those of `config`."""
    step = max(math.ceil(matrix.cell_count / MAX_SPECTRUM_CELLS), math.ceil(matrix.shape[0] / MAX_SPECTRUM_ROWS))
    _check_memory(matrix.cell_count // step, matrix.shape[0] // step, matrix.shape[1])

    table = read_rows(matrix, step)
    row_sums, column_sums = matrix.row_sums[matrix.row_sums > 0], matrix.column_sums[matrix.column_sums > 0]
    shape = len(row_sums), len(column_sums)
    scale = _noise_of_size(shape, matrix.cell_count) / _noise_of_size(table.shape, table.nnz)
    mean_decay = scale * find_mean_decay(table, config)
    return float(f"{_divide_by_powers(mean_decay, row_sums, column_sums, config):.6g}")


def read_rows(matrix: Matrix, step: int = 1) -> scipy.sparse.coo_array:
    """Return every `step`-th row of a matrix, without empty rows and columns."""
    pieces = []
    for rows, columns, units in matrix.walk(CELLS_PER_PIECE):
        is_taken = rows % step == 0
        pieces.append((rows[is_taken], columns[is_taken], matrix.to_counts(units[is_taken])))

    rows, columns, counts = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return drop_empty(scipy.sparse.coo_array((counts, (rows, columns)), shape=matrix.shape))


def drop_empty(table: scipy.sparse.coo_array) -> scipy.sparse.coo_array:
    """Return a table without the rows and columns that have no cells."""
    coords, shape = [], []
    for ids, size in zip(table.coords, table.shape, strict=True):
        has_cells = np.zeros(size, bool)
        has_cells[ids] = True
        coords.append((np.cumsum(has_cells) - 1)[ids])
        shape.append(int(has_cells.sum()))
    return scipy.sparse.coo_array((table.data, tuple(coords)), shape=tuple(shape))


def _noise_of_size(shape: tuple[int, ...], cells: int) -> float:
    """Return what the noise of a table is proportional to: the norm of a random matrix with such numbers of cells."""
    rows, columns = shape
    return (math.sqrt(cells / rows) + math.sqrt(cells / columns)) / math.sqrt(rows * columns)


def find_weight_decay(table: scipy.sparse.coo_array, config: TrainConfig) -> float:
    """Return the setting `weight_decay` of a table without empty rows and columns."""
    rows, columns = table.shape
    _check_memory(table.nnz, rows, columns)
    return _divide_by_powers(find_mean_decay(table, config), table.sum(axis=1), table.sum(axis=0), config)


def _check_memory(cells: int, rows: int, columns: int) -> None:
    """Raise MemoryBudgetError if the singular values of a table with so many cells need more memory than is free."""
    # The cells, and projections of rows, of columns and of their basis, in float64.
    projections = 8 * (SPECTRUM_DIMS + SPARE_DIMS) * (3 * rows + 2 * columns)
    check_memory("choosing the weight decay", BYTES_PER_CELL * cells + projections)


def _divide_by_powers(mean_decay: float, row_sums: Any, column_sums: Any, config: TrainConfig) -> float:
    """Return the setting `weight_decay` with which rows and columns have a mean decay.

    Their two means may differ, by the means of the powers of their sums, because only their product matters: w and c
    can be multiplied by a number and its inverse.
    """
    powers = np.mean(row_sums**config.decay_power) * np.mean(column_sums**config.decay_power)
    return mean_decay / math.sqrt(powers)


def find_mean_decay(table: scipy.sparse.coo_array, config: TrainConfig) -> float:
    """Return the geometric mean of the mean decays of rows and columns, for a table without empty ones.

    Decay of both sides is a soft threshold of singular values: it has to remove those of noise. Noise is a table with
    the same rows, columns and numbers of cells, but cells that are independent: the columns of the cells, shuffled. The
    threshold lowers the singular values of structure, too: the more structure there is, the less decay is best.

    If decays differ, the threshold is that of the singular values of t_ij / sqrt(decay_i decay_j), relative to their
    means: in the vectors w sqrt(decay), the decay is the same for all.
    """
    rng = np.random.default_rng(1)
    column_ids = table.coords[1]
    shuffled = rng.permutation(column_ids)
    # On several threads, products that are so small took 4 to 10 times the processor time.
    with open_torch_pool(1) as pool:
        structure, noise = (
            pool.submit(find_singular_values, _make_targets(table, ids, config), SPECTRUM_DIMS, rng).result()
            for ids in (column_ids, shuffled)
        )
    leading = min(LEADING_DIMS, len(noise) // 4)
    noise_share = float((noise[leading:] ** 2).sum()) / max(float((structure[leading:] ** 2).sum()), MIN_NOISE)
    factor = max(min(noise_share, 1.0) ** STRUCTURE_POWER, MIN_FACTOR)

    # Chance decides which cells are observed. It decides less the more of them are observed, nothing in a full table.
    size = math.prod(table.shape)
    chance = math.sqrt(max(1 - table.nnz / size, MIN_UNOBSERVED))

    # A row's gradient is a mean over the columns, and a column's over the rows: together they divide by sqrt(m n).
    middle = noise[len(noise) // 2] / math.sqrt(size)
    return float(STRENGTH * factor * chance * config.confidence_base * middle)


def _make_targets(
    table: scipy.sparse.coo_array, column_ids: NDArray[Any], config: TrainConfig
) -> scipy.sparse.csr_array:
    """Return a table of the targets of observed cells, over the roots of decays, with other columns for the cells."""
    row_ids = table.coords[0]
    row_sums, column_sums = table.sum(axis=1), table.sum(axis=0)
    sums = row_sums[row_ids] * column_sums[column_ids]
    targets = np.log(table.data * table.data.sum() / sums) - config.shift

    powers = row_sums**config.decay_power, column_sums**config.decay_power
    targets /= np.sqrt(powers[0][row_ids] / powers[0].mean() * powers[1][column_ids] / powers[1].mean())
    return scipy.sparse.csr_array((targets, (row_ids, column_ids)), shape=table.shape)


def find_singular_values(matrix: Any, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return estimates of the largest singular values of a sparse matrix, descending, by subspace iteration."""
    import torch  # here, because ranking imports this module, too

    size = min(count + SPARE_DIMS, *matrix.shape)
    projected = matrix @ rng.standard_normal((matrix.shape[1], size))
    for _ in range(ITERATIONS):
        # An orthonormal basis from the eigenvectors of the Gram matrix takes a fraction of the time of a QR.
        rows = torch.from_numpy(projected)
        squares, axes = torch.linalg.eigh(rows.T @ rows)
        basis = rows @ (axes / squares.clamp(min=1e-12 * float(squares[-1])).sqrt())
        back = matrix.T @ basis.numpy()
        projected = matrix @ back

    columns = torch.from_numpy(back)
    squares = torch.linalg.eigvalsh(columns.T @ columns).flip(0)
    return np.asarray(squares[: min(count, size)].clamp(min=0).sqrt())
