"""Methods that rank the cells of a table: Swivel, and baselines with settings chosen on held-out cells."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.evaluation.table_ranking import RankingReport, Scores, evaluate_ranking, split_table
from swivel.pipeline.train import fit_sparse
from swivel.recommender import Recommender
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.runtime.resources import count_cores
from swivel.vectors.search import scale_to_unit

Table = Any  # a csr array
Candidates = Iterable[tuple[str, Scores]]  # settings in words, and the scores of a fit with them

POWERS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)  # of the singular values
RIDGES = (30.0, 100.0, 300.0, 1000.0)  # of EASE
MAX_EASE_COLUMNS = 8_000  # EASE inverts a matrix of columns x columns
ALS_DECAYS = (0.1, 1.0, 10.0, 30.0, 100.0)
ALS_ALPHAS = (1.0, 5.0, 20.0, 80.0)  # weight of an observed cell
ALS_ITERATIONS = 15
NEGATIVE_POWERS = (0.75, 0.0, -0.5)  # of a column's count, in the distribution of item2vec's negative samples
ITEM_WINDOW = 20
ITEM_EPOCHS = 10
LIBRARIES = {"als": "implicit", "item2vec": "gensim"}

METHODS = {
    "swivel": "Swivel, recipe table, nothing tuned",
    "tuned": "Swivel, recipe table, tuned on a tenth of its cells",
    "als": "weighted least squares (implicit)",
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


def choose_fit(candidates: Candidates, split: TableSplit, *, k: int = 20) -> ChosenFit:
    """Return the fit with the highest Recall + NDCG at k on the validation cells, evaluated on the test cells."""
    best: tuple[str, Scores] = "", lambda rows: np.empty(0)
    highest = -1.0
    tried = 0
    seconds, cpu_seconds = 0.0, 0.0

    started, cpu_started = time.perf_counter(), time.process_time()
    for settings, scores in candidates:
        seconds = max(seconds, time.perf_counter() - started)
        cpu_seconds = max(cpu_seconds, time.process_time() - cpu_started)
        tried += 1
        report = evaluate_ranking(scores, split.validation, split.train, k=k)
        if report.recall + report.ndcg > highest:
            highest = report.recall + report.ndcg
            best = settings, scores
        started, cpu_started = time.perf_counter(), time.process_time()

    settings, scores = best
    report = evaluate_ranking(scores, split.test, split.train + split.validation, k=k)
    return ChosenFit(settings, tried, seconds, cpu_seconds, report)


def why_left_out(method: str, columns: int) -> str | None:
    """Return why a baseline cannot run on a table with so many columns, None if it can.

    >>> why_left_out("ease", 100_000)
    'more than 8,000 columns'
    """
    library = LIBRARIES.get(method)
    if library is not None and importlib.util.find_spec(library) is None:
        return f"the package {library} is not installed"
    if method == "ease" and columns > MAX_EASE_COLUMNS:
        return f"more than {MAX_EASE_COLUMNS:,} columns"
    return None


def fit_method(name: str, train: Table, dim: int, options: RunOptions) -> Candidates:
    """Return the fits of a method by its name in `METHODS`."""
    if name in BASELINES:
        return BASELINES[name](train, dim)
    return fit_swivel(train, dim, options, tune=name == "tuned")


def fit_swivel(train: Table, dim: int, options: RunOptions, *, tune: bool = False) -> Candidates:
    """Return Swivel's fit with the recipe `table`: settings follow from the table, or are tuned on a part of it."""
    # Load torch and compile kernels before the time is taken.
    fit_sparse(train, options=replace(options, progress=SILENT), dim=dim, epochs=1)

    def fit() -> Candidates:
        fitted = fit_sparse(train, options=options, dim=dim, tune=tune)
        weight_decay, popularity = fitted.settings["train"]["weight_decay"], fitted.settings["ranking"]["popularity"]
        yield f"weight decay {weight_decay:.2g}, popularity {popularity:.2g}", Recommender(fitted).score_rows

    return fit()


def fit_popularity(train: Table, dim: int) -> Iterator[tuple[str, Scores]]:
    """Yield the number of rows of each column, the same for all rows."""
    popularity = np.bincount(train.indices, minlength=train.shape[1])
    yield "", lambda rows: np.tile(popularity, (len(rows), 1))


def fit_svd(train: Table, dim: int) -> Iterator[tuple[str, Scores]]:
    """Yield truncated SVDs of positive PMI, with several powers of the singular values."""
    import scipy.sparse
    from scipy.sparse.linalg import svds

    cells = train.tocoo()
    row_sums, column_sums = train.sum(axis=1), train.sum(axis=0)
    pmi = np.log(cells.data * cells.data.sum() / (row_sums[cells.coords[0]] * column_sums[cells.coords[1]]))
    ppmi = scipy.sparse.csr_array((np.maximum(pmi, 0), cells.coords), shape=cells.shape)

    kept = min(dim, min(train.shape) - 1)
    if kept < 1 or not ppmi.data.any():
        yield "no positive PMI", lambda rows: np.zeros((len(rows), train.shape[1]))
        return

    u, s, v = svds(ppmi, k=kept, rng=np.random.default_rng(0))
    for power in POWERS:
        yield f"power {power:g}", partial(_multiply, u * (s / s.max()) ** power, v)


def fit_ease(train: Table, dim: int) -> Iterator[tuple[str, Scores]]:
    """Yield item-item regressions in closed form (Steck, 2019); `dim` has no effect."""
    seen = train.astype(bool).astype(np.float32)
    gram = (seen.T @ seen).toarray()

    for ridge in RIDGES:
        inverse = np.linalg.inv(gram + ridge * np.eye(len(gram), dtype=np.float32))
        weights = inverse / -np.diag(inverse)
        np.fill_diagonal(weights, 0)
        yield f"ridge {ridge:g}", partial(_multiply, seen, weights)


def fit_als(train: Table, dim: int) -> Iterator[tuple[str, Scores]]:
    """Yield weighted least squares (Hu, Koren and Volinsky, 2008) of log(1 + x) by the package implicit."""
    import scipy.sparse
    from implicit.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    counts = scipy.sparse.csr_matrix(train, dtype=np.float32)
    if counts.max() > 1:
        counts.data = np.log1p(counts.data)

    for decay in ALS_DECAYS:
        for alpha in ALS_ALPHAS:
            with threadpool_limits(1, "blas"):  # implicit has its own threads; those of BLAS slow them down.
                model = AlternatingLeastSquares(
                    dim, regularization=decay, alpha=alpha, iterations=ALS_ITERATIONS, random_state=1, use_gpu=False
                )
                model.fit(counts, show_progress=False)
            yield f"decay {decay:g} alpha {alpha:g}", partial(_multiply, model.user_factors, model.item_factors.T)


def fit_item2vec(train: Table, dim: int) -> Iterator[tuple[str, Scores]]:
    """Yield skip-gram vectors of the columns (Barkan and Koenigstein, 2016) by gensim.

    The columns of a row have a new random order in every epoch, so that any two of them may share a window. A row is
    the sum of the vectors of its columns; it ranks columns by the cosine, or by the product with their context vectors.
    """
    from gensim.models import Word2Vec

    sentences = _ShuffledRows(train, np.random.default_rng(0))
    seen = train.astype(bool).astype(np.float32)
    for power in NEGATIVE_POWERS:
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

        unit = scale_to_unit(vectors)
        means = seen @ vectors / np.maximum(np.diff(train.indptr), 1)[:, None]
        yield f"negative samples ^{power:g}, cosine", partial(_multiply, seen @ unit, unit.T)
        yield f"negative samples ^{power:g}, contexts", partial(_multiply, means, contexts.T)


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


BASELINES: Mapping[str, Callable[[Table, int], Candidates]] = {
    "popularity": fit_popularity,
    "svd": fit_svd,
    "als": fit_als,
    "ease": fit_ease,
    "item2vec": fit_item2vec,
}
