"""Ranking of held-out cells of a table: Recall, NDCG and MAP at k, by popularity of the column; splits of tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts import Matrix, open_matrix
from swivel.counts.importers import import_counts
from swivel.counts.importers.context import LabelTable, as_labels, number_places
from swivel.counts.importers.import_config import pick_fields
from swivel.counts.importers.import_tables import is_frame
from swivel.counts.importers.importer import make_configs
from swivel.counts.importers.matrix_readers import is_sparse
from swivel.errors import ConfigError
from swivel.storage.manifest import MANIFEST
from swivel.vectors.search import best_of_each, check_count

if TYPE_CHECKING:
    import scipy.sparse

Scores = Callable[[NDArray[np.int64]], NDArray[Any]]
SPLITS = ("cell", "row", "time")
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
    check_count(k, "k")
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
        raise ConfigError("held_out has only cells that were trained with, which are never ranked", argument="held_out")
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


def open_table(table: Any, **settings: Any) -> Matrix:
    """Return a table as a matrix: a matrix, the folder of one, or what `swivel.import_counts` reads with settings."""
    is_matrix = isinstance(table, Matrix)
    if not is_matrix and not (isinstance(table, (str, Path)) and (Path(table) / MANIFEST).exists()):
        return import_counts(table, **settings)
    for name in settings:
        raise ConfigError(f"{name} is for tables that are imported, not for a matrix: omit it", argument=name)
    return table if is_matrix else open_matrix(table)


def split_table(
    table: Any,
    share: float = 0.2,
    *,
    by: str = "cell",
    times: Any = None,
    fields: Any = None,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Return a table without a share of its cells, and those cells, as two tables of the same kind.

    Parameters
    ----------
    table
        A data frame of pandas or polars, with a line per cell; a matrix, its folder or a file of counts, which give
        matrices; or a SciPy sparse matrix.
    share
        Share of the cells to hold out.
    by : {"cell", "row", "time"}
        Hold out random cells, all cells of random rows, or the latest cells.
    times
        The times for `by="time"`: the name of a column of the frame, or a sparse matrix of the same shape.
    fields
        Of a frame: the names of the columns of rows, columns and counts, as in `swivel.import_counts`.
    seed
        Seed of the random choice.

    Examples
    --------
    >>> import pandas
    >>> seen = pandas.DataFrame({"who": ["ann", "bob", "ann"], "what": ["tea", "tea", "jam"], "day": [1, 2, 3]})
    >>> before, after = split_table(seen, by="time", times="day")
    >>> list(after.what)
    ['jam']
    """
    if not 0 < share < 1:
        raise ConfigError(f"share must be between 0 and 1, got {share}", argument="share")
    if by not in SPLITS:
        raise ConfigError(f"by must be one of {', '.join(SPLITS)}, got {by!r}", argument="by")
    if by == "time" and times is None:
        raise ConfigError("times is needed to hold out the latest cells: pass the time of each cell", argument="times")
    if fields is not None and not is_frame(table):
        raise ConfigError("fields is for data frames: omit it", argument="fields")

    rng = np.random.default_rng(seed)
    if is_frame(table):
        return _split_frame(table, share, by, times, fields, rng)
    if is_sparse(table) or isinstance(table, np.ndarray):
        return _split_sparse(table, share, by, times, rng)

    matrix = open_table(table)
    if matrix.columns_per_row:
        raise ConfigError("rows and columns are the same things: only a table of two kinds of things can be split")
    known, held_out = (
        import_counts(part, row_labels=matrix.rows.tokens, column_labels=matrix.columns.tokens)
        for part in _split_sparse(matrix.to_scipy(), share, by, times, rng)
    )
    return known, held_out


def _split_sparse(
    table: Any, share: float, by: str, times: Any, rng: np.random.Generator
) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array]:
    import scipy.sparse

    cells = scipy.sparse.coo_array(table)
    if by == "time":
        if not is_sparse(times) or times.shape != cells.shape:
            raise ConfigError(
                f"times must be a sparse matrix of shape {cells.shape}; with a data frame it is the name of a column",
                argument="times",
            )
        is_held = _choose_latest(np.asarray(scipy.sparse.csr_array(times)[cells.coords]).ravel(), share)
    elif by == "row":
        is_held = (rng.random(cells.shape[0]) < share)[cells.coords[0]]
    else:
        is_held = rng.random(cells.nnz) < share

    def take(mask: NDArray[np.bool_]) -> scipy.sparse.csr_array:
        row, column = cells.coords
        return scipy.sparse.csr_array((cells.data[mask], (row[mask], column[mask])), shape=cells.shape)

    return take(~is_held), take(is_held)


def _split_frame(
    frame: Any, share: float, by: str, times: Any, fields: Any, rng: np.random.Generator
) -> tuple[Any, Any]:
    names = list(map(str, frame.columns))
    if by == "time":
        if times not in list(frame.columns):
            raise ConfigError(f"times must be one of the columns {', '.join(names)}, got {times!r}", argument="times")
        is_held = _choose_latest(np.asarray(frame[times]), share)
    else:
        # Lines of one cell, which is the sum of their counts, are on one side.
        row, column, *_ = pick_fields(make_configs({"fields": fields})[0], names, len(names), "the table")
        places = _number_labels(frame, row)
        if by == "cell":
            columns = _number_labels(frame, column)
            _, places = np.unique(places * (columns.max(initial=0) + 1) + columns, return_inverse=True)
        is_held = (rng.random(places.max(initial=0) + 1) < share)[places]

    if hasattr(frame, "loc"):
        return frame.loc[~is_held], frame.loc[is_held]
    return frame.filter(~is_held), frame.filter(is_held)


def _number_labels(frame: Any, number: int) -> NDArray[np.int64]:
    """Return a number for each line of a frame, the same for equal labels in a column."""
    labels = as_labels(np.asarray(frame[frame.columns[number]]))
    table = LabelTable(memory_bytes=1 << 62)  # They are in memory already.
    return table.look_up(labels, number_places("the table", "row", 0))


def _choose_latest(times: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Return which times are the latest; raise ConfigError if some are missing or none is later than the others."""
    try:
        is_missing = bool((times != times).any())
        _, order = np.unique(times, return_inverse=True)
    except TypeError:  # None among times, or texts among numbers
        is_missing = True
    if is_missing:
        raise ConfigError("times has values that are missing or cannot be compared", argument="times")
    latest: NDArray[np.bool_] = order > np.quantile(order, 1 - share)
    if not latest.any():
        raise ConfigError(f"no {share:.0%} of the cells are later than the others: their times are equal")
    return latest
