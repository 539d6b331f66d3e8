"""Ranking of the columns of a table for its rows, by dot products and the popularity of a column.

Selecting the best k of n scores costs more than computing them. For many rows, on all cores or on a GPU, the columns
form groups of s = sqrt(n / k), and the maximum of each group is found first. The k best columns are in the k groups
with the highest maxima, because these maxima are k scores that no column of another group exceeds. Only k s scores are
then compared. `search.best_rows` does so for a few rows without torch.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.runtime.parallel import open_torch_pool
from swivel.runtime.resources import count_cores
from swivel.vectors.search import Floats, best_ids, best_rows, check_count

if TYPE_CHECKING:
    from torch import Tensor

MANY_ROWS = 256  # Fewer are not worth loading torch.
# Rows of a batch, and columns of a tile, whose scores take 8 MiB: their maxima are found before they leave the caches.
BATCH_ROWS = 256
TILE_COLUMNS = 8_192
REGISTER_VALUES = 16
MAX_SCORES = 1 << 25  # of a batch: 128 MiB for each thread


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


class TopColumns:
    """Finds the `count` columns of the highest w . c + bias for each of many rows; never those with the bias -inf."""

    def __init__(self, columns: Floats, biases: Floats, count: int) -> None:
        import torch

        size, dim = columns.shape
        self.count = count
        self.tiles = -(-size // TILE_COLUMNS)
        # Groups of sqrt(n / k) make the search among n / s maxima as long as that among k s members.
        self.group_size = math.isqrt(size // count)
        if self.group_size < REGISTER_VALUES:
            self.group_size = 1  # smaller groups are not worth their maxima
        else:
            self.group_size = -(-self.group_size // REGISTER_VALUES) * REGISTER_VALUES
        self.groups = -(-size // (self.tiles * self.group_size))  # of a tile
        self.batch_rows = max(1, min(BATCH_ROWS, MAX_SCORES // size))
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

        # Columns that fill the last tile, and hidden ones: zero with the bias -inf, because 0 x inf is not a number.
        table = np.zeros((self.tiles * self.group_size * self.groups, dim + 1), np.float32)
        table[:, dim] = -np.inf
        is_shown = biases > -np.inf
        table[:size][is_shown] = np.column_stack([columns, biases])[is_shown]
        self._table = torch.from_numpy(table).to(self.device).view(self.tiles, -1, dim + 1)

    def find(self, rows: Floats, seen: Any = None) -> tuple[NDArray[np.intp], Floats]:
        """Return ids and scores of the best columns of each row, of shape (len(rows), count), ties by id.

        `seen` is a csr matrix of cells that are not returned. The score is -inf where fewer columns are left.
        """
        import torch

        ids = np.empty((len(rows), self.count), np.intp)
        scores = np.empty((len(rows), self.count), np.float32)
        workers = 1 if self.device == "cuda" else count_cores()

        def search(worker: int) -> None:
            # Worker n has the batches n, n + workers, ...: no two write the same rows of `ids` and `scores`.
            # Memory that is allocated for every batch would double the time of the products.
            buffer = torch.empty(self.tiles, self.batch_rows, self._table.shape[1], device=self.device)
            for start in range(worker * self.batch_rows, len(rows), workers * self.batch_rows):
                part = slice(start, min(start + self.batch_rows, len(rows)))
                columns, values = self._search(rows[part], None if seen is None else seen[part], buffer)
                # topk returns equal scores in any order; sorting is needed only then.
                if (values[:, 1:] == values[:, :-1]).any():
                    order = np.lexsort((columns, -values), axis=-1)
                    columns = np.take_along_axis(columns, order, axis=1)
                    values = np.take_along_axis(values, order, axis=1)
                ids[part] = columns
                scores[part] = values

        with open_torch_pool(workers) as pool:  # Every thread has batches of its own.
            list(pool.map(search, range(workers)))
        return ids, scores

    def _search(self, rows: Floats, seen: Any, buffer: Tensor) -> tuple[NDArray[np.intp], Floats]:
        """Return ids and scores of the best columns of a batch of rows; `buffer` is overwritten."""
        import torch

        batch, dim = rows.shape
        width = self._table.shape[1]
        # w . c + bias = (w, 1) . (c, bias): the product adds the bias without another read of the scores.
        with_bias = np.ones((batch, dim + 1), np.float32)
        with_bias[:, :dim] = rows
        vectors = torch.from_numpy(with_bias).to(self.device)
        scores = buffer[:, :batch]
        is_seen = [] if seen is None else self._find_seen(seen)

        peaks = torch.empty(batch, self.tiles, self.groups, device=self.device)
        for tile in range(self.tiles):
            torch.mm(vectors, self._table[tile].T, out=scores[tile])
            if seen is not None:
                scores[tile].view(-1).index_fill_(0, is_seen[tile], -torch.inf)
            torch.amax(scores[tile].view(batch, self.groups, self.group_size), 2, out=peaks[:, tile])

        # Groups are consecutive columns, so that their scores are read together.
        more = min(self.count + 1, self.tiles * self.groups)  # One more shows whether there are ties at the end.
        groups = peaks.view(batch, -1).topk(more).indices
        members = torch.arange(self.group_size, device=self.device)
        candidates = (self.group_size * groups[:, :, None] + members).flatten(1)
        # Place of a score in `buffer`, of shape (tiles, batch_rows, width): the tile of group g is g // groups. Group g
        # starts at s g in all columns, and the rows of the tiles before it add (batch_rows - 1) width each.
        starts = torch.arange(batch, device=self.device)[:, None] * width
        starts = starts + (groups // self.groups) * (self.batch_rows - 1) * width + self.group_size * groups
        places = (starts[:, :, None] + members).flatten(1)

        values, best = buffer.view(-1)[places].topk(more)
        ids = candidates.gather(1, best).cpu().numpy()
        best_scores = values.cpu().numpy()

        # topk takes any of equal scores at the end: search such a row again for those with the smallest ids.
        count = self.count
        if more > count:
            is_tied = (best_scores[:, count - 1] == best_scores[:, count]) & (best_scores[:, count] > -np.inf)
            for row in np.flatnonzero(is_tied):
                line = scores[:, row].reshape(-1).cpu().numpy()
                ids[row, :count] = best_ids(line, count)
                best_scores[row, :count] = line[ids[row, :count]]
        return ids[:, :count], best_scores[:, :count]

    def _find_seen(self, seen: Any) -> list[Tensor]:
        """Return the places of seen cells in the scores of each tile."""
        import torch

        width = self._table.shape[1]
        row = np.repeat(np.arange(seen.shape[0]), np.diff(seen.indptr))
        tile, column = np.divmod(seen.indices.astype(np.int64), width)
        order = np.argsort(tile, kind="stable")
        ends = np.cumsum(np.bincount(tile, minlength=self.tiles))
        places = (row * width + column)[order]
        return [torch.from_numpy(part).to(self.device) for part in np.split(places, ends[:-1])]


class ColumnRanking:
    """Scores w . c + popularity * log(column sum), which rank the columns of a row.

    `rows` is the number of rows that were trained, on which the default of `popularity` depends.
    """

    def __init__(
        self, columns: Floats, column_sums: NDArray[np.float64], rows: int, popularity: float | None = None
    ) -> None:
        if popularity is None:
            popularity = default_popularity(rows, len(columns))
        if not math.isfinite(popularity):
            raise ConfigError(f"popularity must be a finite number, got {popularity}", argument="popularity")

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

        Columns of `is_hidden` and cells of the csr matrix `seen` are left out. Where fewer than `count` columns are
        left, the id is -1 and the score -inf.
        """
        check_count(count)
        is_hidden = self.is_empty if is_hidden is None else self.is_empty | is_hidden
        if len(rows) < MANY_ROWS:
            excluded: list[Any] = [()] * len(rows)
            if seen is not None:
                excluded = [seen.indices[a:b] for a, b in pairwise(seen.indptr)]
            return best_rows(self._columns, self._extend(rows), count, excluded=excluded, is_zero=is_hidden)

        biases = np.where(is_hidden, -np.inf, self._columns[:, -1]).astype(np.float32)
        ids, scores = TopColumns(self._columns[:, :-1], biases, min(count, len(biases))).find(rows, seen)
        missing = (0, 0), (0, count - ids.shape[1])
        ids[np.isneginf(scores)] = -1
        return np.pad(ids, missing, constant_values=-1), np.pad(scores, missing, constant_values=-np.inf)
