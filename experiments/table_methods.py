"""Methods that rank the cells of a table: Swivel, and baselines with settings chosen on held-out cells."""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.evaluation.table_ranking import RankingReport, Scores, evaluate_ranking, split_table
from swivel.pipeline.train import fit_sparse
from swivel.recommender import Recommender
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.runtime.resources import count_cores
from swivel.vectors.search import scale_to_unit

Table = Any  # a csr array
Fit = Callable[..., Scores]  # scores of a fit with settings, which are passed by name

TRIALS = 25  # settings of a method that are tried at most
MAX_VALIDATION_ROWS = 10_000  # settings are chosen on so many rows at most
MAX_EASE_COLUMNS = 10_000  # EASE inverts a matrix of columns x columns
MAX_EASE_COLUMNS_CUDA = 50_000
ALS_ITERATIONS = 15
IALS_EPOCHS = 16
IALS_STEPS = 3  # of conjugate gradients in half an epoch
SMALLEST = 1e-30  # no division by zero
ITEM_WINDOW = 20
ITEM_EPOCHS = 10
LIBRARIES = {"als": "implicit", "item2vec": "gensim"}

METHODS = {
    "swivel": "Swivel, recipe table, nothing tuned",
    "tuned": "Swivel, recipe table, tuned on a tenth of its cells",
    "als": "weighted least squares (implicit)",
    "ials": "weighted least squares with decays that are scaled by frequency",
    "svd": "truncated SVD of positive PMI",
    "ease": "item-item regression, without dimensions",
    "item2vec": "skip-gram of the columns of a row (gensim)",
    "popularity": "the most common columns",
}


@dataclass(frozen=True, slots=True)
class TableSplit:
    """A table as cells to train with, cells to choose settings on, and cells to report on."""

    train: Table
    validation: Table
    test: Table


@dataclass(frozen=True, slots=True)
class ChosenFit:
    """The fit that is best on the validation cells: its settings, its scores and its report on the test cells.

    `tried` is the number of settings; `seconds` and `cpu_seconds` are wall time and processor time of the longest fit,
    without evaluation: some methods try several settings with one fit.
    """

    settings: str
    tried: int
    seconds: float
    cpu_seconds: float
    report: RankingReport


def split_in_three(table: Table) -> TableSplit:
    """Split the cells of a table at random: 60 % to train, 20 % for validation, 20 % for the test."""
    train, rest = split_table(table, 0.4)
    return TableSplit(train, *split_table(rest, 0.5, seed=1))


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of a setting in the order of their size: value number 0 is tried first, its neighbors next."""

    value: Callable[[int], float | None]  # None: there is no such value, so the one before may be the best

    @classmethod
    def geometric(cls, start: float, factor: float) -> Axis:
        """Return an axis without ends."""
        return cls(lambda number: start * factor**number)

    @classmethod
    def listed(cls, *values: float, first: int = 0) -> Axis:
        """Return the only values that are possible, of which number `first` is tried first."""
        return cls(lambda number: values[first + number] if 0 <= first + number < len(values) else None)


@dataclass(frozen=True, slots=True)
class Method:
    """A method that ranks the cells of a table: `prepare(train, dim)` returns what fits it with given settings."""

    prepare: Callable[[Table, int], Fit]
    axes: Mapping[str, Axis] = field(default_factory=dict)


def choose_fit(
    method: Method, split: TableSplit, dim: int, *, k: int = 20, trials: int = TRIALS, refit: bool = False
) -> ChosenFit:
    """Return the fit with the highest Recall + NDCG at k on the validation cells, evaluated on the test cells.

    From the first settings on, one setting at a time moves to the better one of its neighbors, until no neighbor is
    better: the optimum is inside what was tried. Raises ConfigError if that takes more than `trials` fits. With
    `refit`, the validation cells are trained, too, before the test.
    """
    fit = method.prepare(split.train, dim)
    validation = _keep_rows(split.validation, MAX_VALIDATION_ROWS)
    tried: dict[tuple[int, ...], float] = {}
    best: tuple[float, Mapping[str, float], Scores] | None = None
    times = [0.0, 0.0]

    def measure(fit: Fit, values: Mapping[str, Any]) -> Scores:
        started = time.perf_counter(), time.process_time()
        scores = fit(**values)
        for number, now in enumerate((time.perf_counter(), time.process_time())):
            times[number] = max(times[number], now - started[number])
        return scores

    def quality(position: tuple[int, ...]) -> float:
        nonlocal best
        values = {name: axis.value(number) for (name, axis), number in zip(method.axes.items(), position, strict=True)}
        if position in tried or None in values.values():
            return tried.get(position, -math.inf)
        if len(tried) == trials:
            raise ConfigError(f"the best settings are not inside the {trials} that were tried")

        scores = measure(fit, values)
        report = evaluate_ranking(scores, validation, split.train, k=k)
        tried[position] = report.recall + report.ndcg
        if best is None or tried[position] > best[0]:
            best = tried[position], values, scores  # type: ignore[assignment]
        return tried[position]

    place = (0,) * len(method.axes)
    highest = quality(place)
    is_inside = False
    while not is_inside:
        is_inside = True
        for axis in range(len(place)):
            neighbors = [(*place[:axis], place[axis] + step, *place[axis + 1 :]) for step in (-1, 1)]
            best_neighbor = max(neighbors, key=quality)
            if quality(best_neighbor) > highest:
                place, highest, is_inside = best_neighbor, quality(best_neighbor), False

    assert best is not None
    _, values, scores = best
    known = scipy.sparse.csr_array(split.train + split.validation)
    if refit:
        scores = measure(method.prepare(known, dim), values)
    report = evaluate_ranking(scores, split.test, known, k=k)
    settings = " ".join(f"{name} {value:.4g}" for name, value in values.items())
    return ChosenFit(settings, len(tried), times[0], times[1], report)


def _keep_rows(table: Table, count: int) -> Table:
    """Return a table with the cells of at most `count` of its rows, chosen at random."""
    rows = np.flatnonzero(np.diff(table.indptr))
    is_kept = np.zeros(table.shape[0], bool)
    is_kept[np.random.default_rng(0).permutation(rows)[:count]] = True
    return scipy.sparse.csr_array(scipy.sparse.diags_array(is_kept.astype(table.dtype)) @ table)


def why_left_out(method: str, columns: int) -> str | None:
    """Return why a baseline cannot run on a table with so many columns, None if it can.

    >>> why_left_out("ease", 100_000)
    'more than 10,000 columns'
    """
    library = LIBRARIES.get(method)
    if library is not None and importlib.util.find_spec(library) is None:
        return f"the package {library} is not installed"
    most = MAX_EASE_COLUMNS if _device() == "cpu" else MAX_EASE_COLUMNS_CUDA
    if method == "ease" and columns > most:
        return f"more than {most:,} columns"
    return None


def find_method(name: str, options: RunOptions) -> Method:
    """Return a method by its name in `METHODS`."""
    if name in BASELINES:
        return BASELINES[name]
    return Method(partial(prepare_swivel, options=options, tune=name == "tuned"))


def prepare_swivel(train: Table, dim: int, *, options: RunOptions, tune: bool = False) -> Fit:
    """Return Swivel's fit with the recipe `table`: settings follow from the table, or are tuned on a part of it."""
    # Load torch and compile kernels before the time is taken.
    fit_sparse(train, options=replace(options, progress=SILENT), dim=dim, epochs=1)
    return lambda: Recommender(fit_sparse(train, options=options, dim=dim, tune=tune), train).score_rows


def prepare_popularity(train: Table, dim: int) -> Fit:
    """Return the number of rows of each column as scores, the same for all rows."""
    popularity = np.bincount(train.indices, minlength=train.shape[1])
    return lambda: lambda rows: np.tile(popularity, (len(rows), 1))


def prepare_svd(train: Table, dim: int) -> Fit:
    """Return truncated SVDs of positive PMI with a power of the singular values."""
    from scipy.sparse.linalg import svds

    cells = train.tocoo()
    row_sums, column_sums = train.sum(axis=1), train.sum(axis=0)
    pmi = np.log(cells.data * cells.data.sum() / (row_sums[cells.coords[0]] * column_sums[cells.coords[1]]))
    ppmi = scipy.sparse.csr_array((np.maximum(pmi, 0), cells.coords), shape=cells.shape)

    kept = min(dim, min(train.shape) - 1)
    if kept < 1 or not ppmi.data.any():
        return lambda power: lambda rows: np.zeros((len(rows), train.shape[1]))

    @cache
    def decompose() -> tuple[NDArray[Any], ...]:
        return tuple(svds(ppmi, k=kept, rng=np.random.default_rng(0)))

    def fit(power: float) -> Scores:
        u, s, v = decompose()
        return partial(_multiply, u * (s / s.max()) ** power, v)

    return fit


def prepare_ease(train: Table, dim: int) -> Fit:
    """Return item-item regressions in closed form (Steck, 2019); `dim` has no effect."""
    import torch

    seen = train.astype(bool).astype(np.float32)
    gram = (seen.T @ seen).tocoo()

    def fit(ridge: float) -> Scores:
        size = train.shape[1]
        weights = torch.zeros(size, size, device=_device())
        weights[tuple(torch.from_numpy(ids.astype(np.int64)) for ids in gram.coords)] = torch.from_numpy(gram.data).to(
            weights.device
        )
        weights.diagonal().add_(ridge)
        weights = torch.linalg.inv(weights)
        weights.div_(-weights.diagonal().clone()).fill_diagonal_(0)
        return partial(_multiply_on_device, seen, weights)

    return fit


def prepare_als(train: Table, dim: int) -> Fit:
    """Return weighted least squares (Hu, Koren and Volinsky, 2008) of log(1 + x) by the package implicit."""
    from implicit.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    counts = scipy.sparse.csr_matrix(_weights(train))

    def fit(decay: float, alpha: float) -> Scores:
        with threadpool_limits(1, "blas"):  # implicit has its own threads; those of BLAS slow them down.
            model = AlternatingLeastSquares(
                dim, regularization=decay, alpha=alpha, iterations=ALS_ITERATIONS, random_state=1, use_gpu=False
            )
            model.fit(counts, show_progress=False)
        return partial(_multiply, model.user_factors, model.item_factors.T)

    return fit


def prepare_ials(train: Table, dim: int) -> Fit:
    """Return weighted least squares with scaled decays (Rendle et al., 2022).

    The loss is the sum of w_ij (x_i . y_j - 1)^2 over observed cells, of zeros * (x_i . y_j)^2 over all cells, and of
    decay * (observed cells + zeros * all cells) * squared norm over rows and columns.
    """
    import torch

    by_rows = scipy.sparse.csr_array(_weights(train))
    sides = [_to_torch(by_rows), _to_torch(scipy.sparse.csr_array(by_rows.T))]

    def fit(zeros: float, decay: float) -> Scores:
        generator = torch.Generator().manual_seed(1)
        vectors = [
            torch.randn(size, dim, generator=generator).mul_(0.1 / math.sqrt(dim)).to(_device()) for size in train.shape
        ]
        for _ in range(IALS_EPOCHS):
            for side, weights in enumerate(sides):
                _improve_side(vectors[side], vectors[1 - side], weights, zeros, decay)
        return partial(_multiply_on_device, vectors[0], vectors[1].T)

    return fit


def _weights(table: Table) -> Table:
    """Return the weights of the observed cells: log(1 + x), or 1 in a table of ones."""
    weights = table.astype(np.float32)
    if weights.max() > 1:
        weights.data = np.log1p(weights.data)
    return weights


def _to_torch(table: Table) -> Any:
    """Return a csr array as a sparse tensor on the device."""
    import torch

    starts, columns, weights = (torch.from_numpy(part) for part in (table.indptr, table.indices, table.data))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        tensor = torch.sparse_csr_tensor(starts, columns, weights, table.shape, check_invariants=False)
    return tensor.to(_device())


def _improve_side(vectors: Any, others: Any, weights: Any, zeros: float, decay: float) -> None:
    """Bring the vectors of one side near the minimum of the loss for those of the other side.

    Some steps of conjugate gradients for all rows at once, from the vectors of the epoch before.
    """
    import torch

    gram = zeros * (others.T @ others)
    frequency = weights.crow_indices().diff() + zeros * len(others)

    def apply(values: Any) -> Any:
        products = torch.sparse.sampled_addmm(weights, values, others.T.contiguous(), beta=0)
        weighted = weights.clone()
        weighted.values().mul_(products.values())
        return weighted @ others + values @ gram + decay * frequency[:, None] * values

    residual = weights @ others - apply(vectors)
    direction = residual.clone()
    square = (residual**2).sum(1, keepdim=True)
    for _ in range(IALS_STEPS):
        applied = apply(direction)
        step = square / (direction * applied).sum(1, keepdim=True).clamp(min=SMALLEST)
        vectors += step * direction
        residual -= step * applied
        square, before = (residual**2).sum(1, keepdim=True), square
        direction = residual + square / before.clamp(min=SMALLEST) * direction


def prepare_item2vec(train: Table, dim: int) -> Fit:
    """Return skip-gram vectors of the columns (Barkan and Koenigstein, 2016) by gensim.

    The columns of a row have a new random order in every epoch, so that any two of them may share a window. A row is
    the sum of the vectors of its columns; it ranks columns by the cosine, or by the product with their context vectors.
    """
    from gensim.models import Word2Vec

    sentences = _ShuffledRows(train, np.random.default_rng(0))
    seen = train.astype(bool).astype(np.float32)

    @cache
    def learn(power: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        model = Word2Vec(
            sentences,
            vector_size=dim,
            sg=1,
            window=ITEM_WINDOW,
            epochs=ITEM_EPOCHS,
            ns_exponent=power,
            sample=0,  # Subsampling is for words; a column of a small table may have a percent of all cells.
            min_count=1,
            seed=1,
            workers=count_cores(),
        )
        vectors, contexts = np.zeros((2, train.shape[1], dim), np.float32)
        columns = [int(name) for name in model.wv.index_to_key]
        vectors[columns] = model.wv.vectors
        contexts[columns] = model.syn1neg
        return vectors, contexts

    def fit(power: float, contexts: float) -> Scores:
        vectors, context_vectors = learn(power)
        if contexts:
            means = seen @ vectors / np.maximum(np.diff(train.indptr), 1)[:, None]
            return partial(_multiply, means, context_vectors.T)
        unit = scale_to_unit(vectors)
        return partial(_multiply, seen @ unit, unit.T)

    return fit


@dataclass(frozen=True, slots=True)
class _ShuffledRows:
    """The columns of each row, as gensim reads sentences, in another order in every iteration."""

    table: Table
    rng: np.random.Generator

    def __iter__(self) -> Iterator[list[str]]:
        names = np.array([str(column) for column in range(self.table.shape[1])], object)
        for columns in np.split(self.table.indices, self.table.indptr[1:-1]):
            yield names[self.rng.permutation(columns)].tolist()


def _multiply(rows: Any, columns: NDArray[Any], ids: NDArray[np.int64]) -> NDArray[Any]:
    """Return the products of some rows with all columns."""
    return np.asarray(rows[ids] @ columns)


def _multiply_on_device(rows: Any, columns: Any, ids: NDArray[np.int64]) -> NDArray[Any]:
    """Return the products of some rows, an array or tensor, with the columns of a tensor."""
    import torch

    chosen = rows[ids]
    if scipy.sparse.issparse(chosen):
        chosen = torch.from_numpy(chosen.toarray()).to(columns.device)
    return np.asarray((chosen @ columns).cpu())


def _device() -> str:
    """Return the device of the methods that use torch."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


# The powers of item2vec are those of a column's count in the distribution of negative samples.
BASELINES: Mapping[str, Method] = {
    "popularity": Method(prepare_popularity),
    "svd": Method(prepare_svd, {"power": Axis(lambda number: 0.5 * number + 0.5 if number >= -1 else None)}),
    "als": Method(prepare_als, {"decay": Axis.geometric(30, 3), "alpha": Axis.geometric(20, 2)}),
    "ials": Method(prepare_ials, {"zeros": Axis.geometric(0.1, 3), "decay": Axis.geometric(0.01, 2)}),
    "ease": Method(prepare_ease, {"ridge": Axis.geometric(100, 2)}),
    "item2vec": Method(prepare_item2vec, {"power": Axis(lambda number: 0.5 * number), "contexts": Axis.listed(0, 1)}),
}
