"""Ranking of held-out cells of a table: Recall, NDCG and MAP at k, by popularity of the column, and splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.vectors.search import best_of_each

if TYPE_CHECKING:
    import scipy.sparse

Scores = Callable[[NDArray[np.int64]], NDArray[Any]]
POPULARITY = ("rare", "middle", "common")  # columns, each with about a third of the held-out cells
_SCORES_PER_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class RankingReport:
    """Means over the rows that have held-out cells."""

    k: int
    rows: int
    cells: int
    recall: float  # share of a row's held-out columns among the first k
    ndcg: float  # normalized discounted cumulative gain of the first k
    map: float  # mean average precision of the first k: precision at each hit, divided by min(k, held-out columns)
    by_popularity: dict[str, float]  # recall of the held-out cells (not of rows) of rare, middle and common columns
    # Recall, NDCG and average precision of each row that has held-out cells, of shape (rows, 3).
    per_row: NDArray[np.float64] = field(compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all values but those of single rows."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "per_row"}


def drop_zeros(counts: Any) -> scipy.sparse.csr_array:
    """Return a sparse matrix as a new csr array without explicit zeros, which are not observed cells."""
    import scipy.sparse  # here, because it takes memory that most evaluations do not need

    table = scipy.sparse.csr_array(counts, copy=True)
    table.eliminate_zeros()
    return table


def evaluate_ranking(scores: Scores, held_out: Any, seen: Any, *, k: int = 20) -> RankingReport:
    """Rank the columns of each row by score and compare the first k with its held-out columns.

    Parameters
    ----------
    scores
        Function that returns the scores of some rows with all columns, of shape (len(rows), n_columns).
        `recommender.score_rows` of `swivel.Recommender`.
    held_out : sparse matrix of shape (n_rows, n_columns)
        The cells to find; those that were seen are left out.
    seen : sparse matrix of shape (n_rows, n_columns)
        The cells that are not ranked: those that were trained with. They also give the popularity of a column.
    k
        Number of columns that count.

    Examples
    --------
    >>> import scipy.sparse
    >>> seen = scipy.sparse.csr_array([[1, 0, 0, 0], [0, 1, 0, 0]])
    >>> held_out = scipy.sparse.csr_array([[0, 1, 0, 0], [0, 0, 0, 1]])
    >>> report = evaluate_ranking(lambda rows: np.array([[9, 3, 2, 1], [1, 9, 3, 2]])[rows], held_out, seen, k=1)
    >>> report.recall, report.ndcg
    (0.5, 0.5)
    """
    if k < 1:
        raise ConfigError(f"k must be a positive integer, got {k}", argument="k")
    held_out = drop_zeros(held_out)
    seen = drop_zeros(seen)
    if held_out.shape != seen.shape:
        raise ConfigError(
            f"held_out and seen must have the same shape, got {held_out.shape} and {seen.shape}", argument="held_out"
        )

    # A cell that was trained with is never ranked, so it cannot be found either.
    held_out = drop_zeros(held_out - held_out.multiply(seen.astype(bool)))
    rows = np.flatnonzero(np.diff(held_out.indptr))
    if not rows.size:
        raise ConfigError("held_out has no cells that are not in seen", argument="held_out")
    k = min(k, held_out.shape[1])
    tiers = _popularity_tiers(held_out, seen)
    hits_of_tier = np.zeros(len(POPULARITY))
    no_biases = np.zeros(held_out.shape[1], np.float32)
    per_row = []

    # In chunks: all scores together would be as large as the dense table.
    size = max(_SCORES_PER_CHUNK // held_out.shape[1], 1)
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        table = np.array(scores(chunk), np.float32)
        table[seen[chunk].tocoo().coords] = -np.inf
        top, _ = best_of_each(table, no_biases, k)
        relevant = held_out[chunk].toarray() > 0
        hits = np.take_along_axis(relevant, top, axis=1) & (top >= 0)  # -1: the row has seen all other columns
        per_row.append(_measure_rows(hits, relevant.sum(axis=1)))
        hits_of_tier += np.bincount(tiers[top[hits]], minlength=len(POPULARITY))

    totals = np.bincount(tiers[held_out.indices], minlength=len(POPULARITY))
    shares = (hits_of_tier / np.maximum(totals, 1)).tolist()
    metrics = np.concatenate(per_row)
    by_popularity = dict(zip(POPULARITY, shares, strict=True))
    recall, ndcg, precision = metrics.mean(axis=0).tolist()
    return RankingReport(k, len(rows), held_out.nnz, recall, ndcg, precision, by_popularity, metrics)


def _measure_rows(hits: NDArray[np.bool_], relevant: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return recall, NDCG and average precision of each row, of shape (rows, 3)."""
    k = hits.shape[1]
    ranks = np.arange(1, k + 1)
    # NDCG: the gains 1 / log2(rank + 1) of the hits, relative to those of the best order.
    gains = 1 / np.log2(ranks + 1)
    best = np.cumsum(gains)[np.minimum(relevant, k) - 1]
    precisions = np.where(hits, np.cumsum(hits, axis=1) / ranks, 0).sum(axis=1)
    return np.column_stack([hits.sum(axis=1) / relevant, hits @ gains / best, precisions / np.minimum(relevant, k)])


def _popularity_tiers(held_out: Any, seen: Any) -> NDArray[np.intp]:
    """Return 0, 1 or 2 for each column, from rare to common, so that each has about a third of the held-out cells."""
    # Thirds of the cells, not of the columns: most columns are rare, and have hardly a cell to find.
    counts = np.bincount(seen.indices, minlength=seen.shape[1])
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(np.bincount(held_out.indices, minlength=seen.shape[1])[order]) - 1
    tiers = np.empty(seen.shape[1], np.intp)
    tiers[order] = np.clip(before * len(POPULARITY) // held_out.nnz, 0, len(POPULARITY) - 1)
    return tiers


def split_table(
    counts: Any, share: float = 0.2, *, by: str = "cell", times: Any = None, seed: int = 0
) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
    """Return a sparse table without a share of its cells, and those cells.

    They are random cells, with `by="row"` all cells of random rows, with `by="time"` the latest cells; `times` is a
    sparse matrix of the same shape.
    """
    import scipy.sparse

    cells = scipy.sparse.coo_array(counts)
    if not 0 < share < 1:
        raise ConfigError(f"share must be between 0 and 1, got {share}")
    rng = np.random.default_rng(seed)

    if by == "cell":
        is_held = rng.random(cells.nnz) < share
    elif by == "row":
        is_held = (rng.random(cells.shape[0]) < share)[cells.coords[0]]
    elif by == "time" and times is None:
        raise ConfigError("times is needed to hold out the latest cells: pass the time of each cell")
    elif by == "time":
        when = np.asarray(scipy.sparse.csr_array(times)[cells.coords]).ravel()
        is_held = when > np.quantile(when, 1 - share)
    else:
        raise ConfigError(f"by must be cell, row or time, got {by!r}")

    def take(mask: NDArray[np.bool_]) -> scipy.sparse.csr_array:
        row, column = cells.coords
        return scipy.sparse.csr_array((cells.data[mask], (row[mask], column[mask])), shape=cells.shape)

    return take(~is_held), take(is_held)
