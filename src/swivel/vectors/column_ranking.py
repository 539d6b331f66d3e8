"""Ranking of the columns of a table for its rows, by dot products and the popularity of a column."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.vectors.search import Floats, best_rows, check_count
from swivel.vectors.top_columns import TopColumns

MANY_ROWS = 256


def default_popularity(rows: int, columns: int) -> float:
    """Return the factor of a column's log sum in a ranking by vectors that no recipe chose one for.

    More if there are many rows for a column; 0 ranks by the dot product alone, 1 by an estimate of the count.

    >>> default_popularity(1_000, 1_000), default_popularity(100_000, 100)
    (0.5, 1.0)
    """
    return min(max(0.5 + 0.2 * math.log(rows / columns), 0.0), 1.0)


def drop_zeros(counts: Any) -> Any:
    """Return a sparse matrix as a new csr array without explicit zeros, which are not observed cells."""
    import scipy.sparse

    table = scipy.sparse.csr_array(counts, copy=True)
    table.eliminate_zeros()
    return table


class ColumnRanking:
    """Scores w . c + popularity * log(column sum), which rank the columns of a row.

    Parameters
    ----------
    columns : ndarray of shape (n_columns, dim)
    column_sums : ndarray of shape (n_columns,)
    rows
        Number of rows that were trained; the default of `popularity` depends on it.
    popularity
        Factor of the logarithm of a column's sum.
    """

    def __init__(
        self, columns: Floats, column_sums: NDArray[np.float64], rows: int, popularity: float | None = None
    ) -> None:
        if popularity is None:
            popularity = default_popularity(rows, len(columns))
        if not math.isfinite(popularity):
            raise ConfigError(f"popularity must be a finite number, got {popularity}")

        self.popularity = popularity
        self.is_empty = np.asarray(column_sums) <= 0  # columns without counts are never recommended
        logs = np.log(np.where(self.is_empty, 1, column_sums))
        self._columns = np.column_stack([columns, popularity * logs]).astype(np.float32)

    def _extend(self, rows: Floats) -> Floats:
        return np.column_stack([rows, np.ones(len(rows), np.float32)]).astype(np.float32, copy=False)

    def score(self, rows: Floats) -> Floats:
        """Return the scores of some row vectors with all columns, of shape (len(rows), n_columns)."""
        return np.asarray(self._extend(rows) @ self._columns.T)

    def find_best(
        self, rows: Floats, count: int, *, seen: Any = None, is_hidden: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return ids and scores of the best columns of each row, of shape (len(rows), count), best first.

        Parameters
        ----------
        rows : ndarray of shape (n, dim)
        count
            Number of columns; where fewer are left, the id is -1 and the score -inf.
        seen : csr matrix of shape (n, n_columns), optional
            Cells that are not returned.
        is_hidden : ndarray of shape (n_columns,), optional
            Columns that are not returned.
        """
        check_count(count)
        is_hidden = self.is_empty if is_hidden is None else self.is_empty | is_hidden
        if len(rows) < MANY_ROWS:  # A few rows are not worth loading torch.
            excluded: list[Any] = [()] * len(rows)
            if seen is not None:
                excluded = [seen.indices[a:b] for a, b in pairwise(seen.indptr)]
            return best_rows(self._columns, self._extend(rows), count, excluded=excluded, is_zero=is_hidden)

        biases = np.where(is_hidden, -np.inf, self._columns[:, -1]).astype(np.float32)
        ids, scores = TopColumns(self._columns[:, :-1], biases, min(count, len(biases))).find(rows, seen)
        missing = (0, 0), (0, count - ids.shape[1])
        ids[np.isneginf(scores)] = -1
        return np.pad(ids, missing, constant_values=-1), np.pad(scores, missing, constant_values=-np.inf)
