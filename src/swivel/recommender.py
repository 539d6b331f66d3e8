"""`Recommender`: columns for the rows of a table, known or new."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, repeat
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from swivel.config import TrainConfig, recorded_config
from swivel.corpus.vocabulary import Vocabulary, to_label
from swivel.counts import Matrix, as_matrix
from swivel.counts.importers.matrix_readers import is_sparse
from swivel.errors import ConfigError, SwivelWarning
from swivel.evaluation.table_ranking import RankingReport, drop_zeros, evaluate_ranking, open_table
from swivel.runtime.numbers import plural
from swivel.training.table_settings import choose_popularity
from swivel.vectors import Neighbor, Vectors, VectorTable
from swivel.vectors.folder import find_matrix
from swivel.vectors.formats import as_vectors
from swivel.vectors.search import Floats, best_rows, check_count

if TYPE_CHECKING:
    from swivel.training.fold_in import FixedColumns

KINDS = ("pmi", "log_count", "ranking")
REASONS = 3  # columns in `because_of`
SHOWN_LABELS = 5  # of those that a warning is about
# The links between columns: experiments/tables.md.
LINK_WEIGHT = 4.0
LINKS_PER_COLUMN = 1_000
MAX_LINKED_COLUMNS = 5_000  # a dense matrix of them is inverted
_COLUMNS_PER_PIECE = 512  # whose links are selected at a time
EXTENSION_ROUNDS = 3  # the vectors that are new know each other from the second one on: experiments/tables.md


def default_popularity(rows: int, columns: int) -> float:
    """Return the factor of a column's log sum in a ranking by vectors that no recipe chose one for.

    More if there are many rows for a column; 0 ranks by the dot product alone, 1 by an estimate of the count.

    >>> default_popularity(1_000, 1_000), default_popularity(100_000, 100)
    (0.5, 1.0)
    """
    return min(max(0.5 + 0.2 * math.log(rows / columns), 0.0), 1.0)


def find_links(seen: Any) -> Any:
    """Return what each column says about each other one, as a csr array of shape (n_columns, n_columns).

    A column is predicted from the other columns of a row by ridge regression over all rows of the table `seen`, in
    closed form (EASE; Steck, 2019). Each column keeps its largest weights. Vectors have few dimensions for all columns;
    links know pairs of columns that occur together although their vectors are not similar.

    >>> pairs = scipy.sparse.csr_array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    >>> find_links(pairs).toarray()[0].astype(float).round(2).tolist()
    [0.0, 0.55, 0.0]
    """
    cells = scipy.sparse.csr_array(seen.astype(bool).astype(np.float64))
    products = (cells.T @ cells).toarray()
    # As much as a column has cells on average.
    products[np.diag_indices_from(products)] += products.trace() / len(products)
    weights = np.linalg.inv(products)
    weights /= -np.diag(weights)
    np.fill_diagonal(weights, 0)

    pieces = []
    for start in range(0, len(weights), _COLUMNS_PER_PIECE):
        piece = weights[:, start : start + _COLUMNS_PER_PIECE].astype(np.float32)
        if len(piece) > LINKS_PER_COLUMN:
            sizes = np.abs(piece)
            piece[sizes < np.partition(sizes, -LINKS_PER_COLUMN, axis=0)[-LINKS_PER_COLUMN]] = 0
        pieces.append(scipy.sparse.csc_array(piece))
    return scipy.sparse.csr_array(scipy.sparse.hstack(pieces))


class ColumnRanking:
    """Scores w . c + popularity * log(column sum), which rank the columns of a row.

    `rows` is the number of rows that were trained, on which the default of `popularity` depends. With `links`
    (`find_links`), the links from the columns that a row has are added.
    """

    def __init__(
        self,
        columns: Floats,
        column_sums: NDArray[np.float64],
        rows: int,
        popularity: float | None = None,
        links: Any = None,
    ) -> None:
        if popularity is None:
            popularity = default_popularity(rows, len(columns))
        if not math.isfinite(popularity):
            raise ConfigError(f"popularity must be a finite number, got {popularity}", argument="popularity")

        self.popularity = popularity
        self.links = links
        self._columns = columns
        self._is_empty = np.asarray(column_sums) <= 0  # columns without counts are never recommended
        self._biases = (popularity * np.log(np.where(self._is_empty, 1, column_sums))).astype(np.float32)

    def score(self, rows: Floats, cells: Any = None) -> Floats:
        """Return the scores of some row vectors with all columns, of shape (len(rows), n_columns).

        `cells` is a csr matrix of the cells of the rows, if they are known.
        """
        scores = np.asarray(rows @ self._columns.T + self._biases)
        return scores if self.links is None or cells is None else scores + self._follow_links(cells)

    def find_best(
        self,
        rows: Floats,
        count: int,
        *,
        cells: Any = None,
        seen: Any = None,
        is_hidden: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return ids and scores of the best columns of each row, of shape (len(rows), count), best first.

        Columns of `is_hidden` and cells of the csr matrix `seen` are left out; `cells` are those of the rows. Where
        fewer than `count` columns are left, the id is -1 and the score -inf.
        """
        check_count(count)
        is_left_out = self._is_empty if is_hidden is None else self._is_empty | is_hidden
        biases = np.where(is_left_out, -np.inf, self._biases).astype(np.float32)
        excluded: Iterable[Any] = repeat(())
        if seen is not None:
            excluded = (seen.indices[start:stop] for start, stop in pairwise(seen.indptr))
        # Of some rows at a time: what links add to the scores of all rows may be as large as the scores.
        added = None if self.links is None or cells is None else lambda part: self._follow_links(cells[part])
        return best_rows(self._columns, rows, count, biases=biases, excluded=excluded, added=added)

    def _follow_links(self, cells: Any) -> Floats:
        """Return what the links from the cells of some rows add to their scores."""
        return np.asarray(LINK_WEIGHT * (cells.astype(bool).astype(np.float32) @ self.links).toarray())


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The label of a column, its score, and the columns of the row that are most similar to it.

    >>> label, score, because_of = Recommendation("jam", 1.5, ("tea",))
    >>> label, score
    ('jam', 1.5)
    """

    label: str
    score: float
    because_of: tuple[str, ...]

    # A named tuple would be an array in the JSON of FastAPI, and with `__iter__` pandas would ignore the names.
    def __getitem__(self, index: int) -> Any:
        return (self.label, self.score, self.because_of)[index]


class Recommender:
    """Recommends columns for rows: products for a user, tags for a package. Its attribute `T` recommends rows.

    Rows and columns are given by their labels, which may be any ids: 7 is the label "7".

    Parameters
    ----------
    vectors
        Vectors trained on a table, or their folder.
    matrix
        The table, its folder, or a SciPy sparse matrix in the order of the vectors: which columns the known rows have,
        and the `links` between columns. By default the folder `matrix` beside that of the vectors, if they were trained
        on it. New rows can do without it.
    popularity
        Factor of the logarithm of a column's sum in the ranking. By default the one that training chose (recipe
        `table`), or one that follows from the numbers of rows and columns; 0 ranks by w . c alone.
    links
        Whether to add links between columns to the scores (`find_links`). By default if the vectors are of the recipe
        `table`, the matrix is known, and it has at most 5,000 columns.

    Examples
    --------
    >>> import swivel
    >>> likes = {"ann": "tea cake", "bob": "tea cake jam", "cid": "beer chips", "dan": "beer chips nuts"}
    >>> table = swivel.import_counts([(who, what, 1) for who in likes for what in likes[who].split()])
    >>> recommender = Recommender(swivel.train(table, dim=4), table)
    >>> [each.label for each in recommender.recommend("ann", 1)]
    ['jam']
    >>> [each.label for each in recommender.recommend({"chips": 1}, 1)]
    ['beer']
    >>> [each.label for each in recommender.T.recommend("jam", 1)]
    ['ann']
    """

    def __init__(
        self,
        vectors: Vectors | str | Path,
        matrix: Any = None,
        *,
        popularity: float | None = None,
        links: bool | None = None,
    ) -> None:
        self.vectors = as_vectors(vectors)
        columns = self.vectors.column_table
        # Vectors of other tools, and sums of rows and columns, cannot rank columns.
        if columns is None or columns.sums is None or self.vectors.row_sums is None:
            raise ConfigError("these vectors have no columns: pass vectors or a folder written by swivel train")

        self._columns = columns
        self._sums = columns.sums
        self._total = float(self.vectors.facts.get("total", columns.sums.sum()))
        self._popularity = popularity
        self._links = links
        self.matrix = find_matrix(self.vectors) if matrix is None else self._check_matrix(matrix)
        if links and self.matrix is None:
            raise ConfigError("links are found in matrix: pass it", argument="links")

    def _check_matrix(self, matrix: Any) -> Any:
        """Return a matrix or opened folder; raise ConfigError if it has other rows or columns than the vectors."""
        rows, columns = self.vectors.vocabulary.tokens, self._columns.vocabulary.tokens
        if is_sparse(matrix):
            is_same = matrix.shape == (len(rows), len(columns))
        else:
            matrix = as_matrix(matrix)
            is_same = (matrix.rows.tokens, matrix.columns.tokens) == (rows, columns)
        if not is_same:
            raise ConfigError(
                "matrix has other rows or columns than the vectors: pass the matrix they were trained on",
                argument="matrix",
            )
        return matrix

    @cached_property
    def ranking(self) -> ColumnRanking:
        """What ranks the columns."""
        chosen = self.vectors.settings.get("ranking", {})  # by the recipe table
        popularity = chosen.get("popularity") if self._popularity is None else self._popularity
        has_links = self._links
        if has_links is None:
            is_small = len(self._columns.values) <= MAX_LINKED_COLUMNS
            has_links = bool(chosen) and is_small and self.matrix is not None and self.vectors.columns_per_row == 0
        links = find_links(self._seen) if has_links else None
        return ColumnRanking(self._columns.values, self._sums, len(self.vectors), popularity, links)

    @cached_property
    def T(self) -> Recommender:  # noqa: N802 (as in NumPy and pandas)
        """The recommender of rows for columns: who would like a film? All methods have rows and columns swapped."""
        row_sums = self.vectors.row_sums
        assert row_sums is not None
        popularity, seen = self._popularity, None
        if self.matrix is not None:
            seen = self._seen.T
            is_rule = "ranking" in self.vectors.settings and "tuning" not in self.vectors.facts
            if popularity is None and is_rule:
                # The rule's choice is for columns; one that was tuned is kept.
                popularity = choose_popularity(seen.shape[0], seen.nnz, row_sums)
        # Links were measured for columns only.
        swapped = Recommender(self.vectors.T, seen, popularity=popularity, links=self._links or False)
        swapped.T = self
        return swapped

    def extend(self, table: Any, **settings: Any) -> Recommender:
        """Return a recommender that also has the new rows and columns of a table.

        New columns are folded into the rows, then the rows that have cells in the table into the columns, and both
        twice more. Other vectors stay, as do those of all known rows without `matrix`. `vectors.save` of the result
        keeps the new ones.

        Parameters
        ----------
        table
            A matrix, its folder, or what `swivel.import_counts` reads, such as a data frame.
        settings
            Of `swivel.import_counts`, such as `fields`.

        Examples
        --------
        >>> import swivel
        >>> likes = {"ann": "tea cake", "bob": "tea cake jam", "cid": "beer chips", "dan": "beer chips nuts"}
        >>> table = swivel.import_counts([(who, what, 1) for who in likes for what in likes[who].split()])
        >>> recommender = Recommender(swivel.train(table, dim=4), table)
        >>> extended = recommender.extend([("cid", "crackers", 1), ("eve", "chips", 1)])
        >>> sorted(each.label for each in extended.recommend("eve", 3))
        ['beer', 'crackers', 'nuts']
        """
        table = open_table(table, **settings)
        rows = _join(self.vectors.vocabulary, table.rows)
        columns = _join(self._columns.vocabulary, table.columns)
        row_ids = np.array([rows.ids[label] for label in table.rows], np.int64)
        column_ids = np.array([columns.ids[label] for label in table.columns], np.int64)
        cells = _place_cells(table, row_ids, column_ids, (len(rows), len(columns)))

        counts = cells
        has_cells = np.arange(len(rows)) >= len(self.vectors)
        if self.matrix is not None:
            counts = self._seen.copy()
            counts.resize(cells.shape)
            counts = counts + cells
            has_cells |= np.diff(cells.indptr) > 0
        is_new = np.arange(len(columns)) >= len(self._columns.vocabulary)

        # The vectors are no longer those of the matrix that they were trained on.
        facts = {name: fact for name, fact in self.vectors.facts.items() if name != "matrix"}
        vectors = self.vectors.replace(
            rows=_append(self.vectors.row_table, rows), columns=_append(self._columns, columns), facts=facts
        )
        for _ in range(EXTENSION_ROUNDS):
            vectors = vectors.replace(columns=_fold_again(vectors.T, counts.T, is_new))
            vectors = vectors.replace(rows=_fold_again(vectors, counts, has_cells))

        _warn_of_lonely(vectors, np.flatnonzero(has_cells))
        _warn_of_lonely(vectors.T, np.flatnonzero(is_new))
        seen = None if self.matrix is None else counts
        return Recommender(vectors, seen, popularity=self._popularity, links=self._links)

    def recommend(
        self,
        row: Hashable | Mapping[Any, float],
        count: int = 10,
        *,
        exclude_seen: bool = True,
        filter: Callable[[str], bool] | None = None,
    ) -> list[Recommendation]:
        """Return the best columns for a row, best first.

        Parameters
        ----------
        row
            The label of a row, or the counts of a new one by column. Unknown columns are left out with a warning.
        exclude_seen
            Leave out the columns that the row has; for a known row this needs `matrix`. Of a graph, the neighbors of a
            node, and the node itself.
        filter
            Function that returns whether a column may be recommended.
        """
        row = row if isinstance(row, Mapping) else to_label(row)
        if isinstance(row, str):
            ids = [self.vectors.find_row(row)]
            excluded = self._excluded[ids] if exclude_seen else None
            is_unknown = self.matrix is None  # what the row has
            counts = scipy.sparse.csr_array((1, len(self._columns.vocabulary))) if is_unknown else self._seen[ids]
            vector = self.vectors.rows[ids]
        else:
            counts = self._place_counts(row)
            excluded = counts if exclude_seen else None
            vector = self.fold_in(counts)

        names = self._columns.vocabulary.tokens
        is_hidden = None if filter is None else np.array([not filter(name) for name in names])
        # The ranking adds popularity x log x_*j to w . c, in which popular columns are no better than others.
        best, scores = self.ranking.find_best(vector, count, cells=counts, seen=excluded, is_hidden=is_hidden)
        return self._describe(best[0], scores[0], counts)

    def recommend_table(
        self, table: Any, count: int = 10, *, exclude_seen: bool = True, **settings: Any
    ) -> dict[str, list[Recommendation]]:
        """Return the best columns for each row of a table of new rows, by its label.

        `table` is a matrix, its folder, or what `swivel.import_counts` reads, with its `settings`. Unknown columns are
        left out with a warning.
        """
        table = open_table(table, **settings)
        # Labels are matched by name: the table may have its columns in another order.
        column_ids = _find_known(self._columns.vocabulary, table.columns, "column")
        shape = table.shape[0], len(self._columns.vocabulary)
        counts = _place_cells(table, np.arange(table.shape[0]), column_ids, shape)
        ids, scores = self.recommend_each(counts, count, exclude_seen=exclude_seen)
        return {
            label: self._describe(ids[number], scores[number], counts[[number]])
            for number, label in enumerate(table.rows)
        }

    def recommend_each(
        self, counts: Any, count: int = 10, *, exclude_seen: bool = True
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return ids and scores of the best columns for each of many new rows, of shape (n_rows, count).

        `counts` is a sparse matrix with the columns of the vectors; ids are positions in `column_vocabulary`, -1 where
        no column is left.
        """
        counts = drop_zeros(counts)
        return self.ranking.find_best(self.fold_in(counts), count, cells=counts, seen=counts if exclude_seen else None)

    def recommend_known(
        self, rows: Sequence[Hashable] | None = None, count: int = 10, *, exclude_seen: bool = True
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return ids and scores of the best columns for each of many known rows, of shape (n_rows, count).

        `rows` are labels, by default all in the order of `vocabulary`. Ids are positions in `column_vocabulary`, -1
        where no column is left. `exclude_seen` needs `matrix`.
        """
        ids = slice(None) if rows is None else self.vectors.find_rows(map(to_label, rows))
        seen = self._excluded[ids] if exclude_seen else None
        return self.ranking.find_best(self.vectors.rows[ids], count, cells=self._cells_of(ids), seen=seen)

    def similar(self, column: Hashable, count: int = 10) -> list[Neighbor]:
        """Return the columns with the most similar vectors, by cosine."""
        return self._column_vectors.nearest(to_label(column), count)

    def score(self, row: Hashable, columns: Sequence[Hashable] | None = None, *, kind: str = "pmi") -> Floats:
        """Return the scores of a row with some columns, or with all of them.

        Parameters
        ----------
        row
            The label of a row.
        columns
            Labels; by default all columns, in the order of `column_vocabulary`.
        kind : {"pmi", "log_count", "ranking"}
            The estimated PMI, the logarithm of the estimated count (of log(1 + x) if the vectors were trained with
            `transform="log"`), or what `recommend` ranks by.
        """
        if kind not in KINDS:
            raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        vocabulary = self._columns.vocabulary
        row_id = self.vectors.find_row(to_label(row))
        ids = np.arange(len(vocabulary))
        if columns is not None:
            ids = np.array([vocabulary.id(to_label(label), kind="columns") for label in columns], np.int64)
        if kind == "ranking":
            return np.asarray(self.score_rows(np.array([row_id]))[0, ids])

        # PMI = log(x D / (x_i* x_*j)), so log x = PMI + log x_i* + log x_*j - log D.
        scores = self._columns.values[ids] @ self.vectors.rows[row_id] + np.float32(self.vectors.shift)
        if kind == "log_count":
            row_sums = self.vectors.row_sums
            assert row_sums is not None
            with np.errstate(divide="ignore"):  # a column without counts: -inf
                scores = scores + np.log(row_sums[row_id]) + np.log(self._sums[ids]) - np.log(self._total)
        return np.asarray(scores, np.float32)

    def score_rows(self, rows: NDArray[np.int64]) -> Floats:
        """Return the scores of some known rows, by number, with all columns, as `evaluate_ranking` takes them."""
        return self.ranking.score(self.vectors.rows[rows], self._cells_of(rows))

    def evaluate(self, held_out: Any, *, k: int = 20, **settings: Any) -> RankingReport:
        """Rank the columns that known rows lack and compare the first k with held-out cells of the same rows.

        `held_out` is a matrix, its folder, or what `swivel.import_counts` reads, with its `settings`, such as `fields`
        of a data frame. Unknown rows and columns, which cannot be ranked, are left out with a warning; `extend` adds
        them. Needs `matrix`.
        """
        if self.matrix is None:
            raise ConfigError(
                "matrix is needed to leave out the cells that were trained with: pass it", argument="matrix"
            )
        seen = self._seen
        table = open_table(held_out, **settings)
        row_ids = _find_known(self.vectors.vocabulary, table.rows, "row")
        column_ids = _find_known(self._columns.vocabulary, table.columns, "column")
        return evaluate_ranking(self.score_rows, _place_cells(table, row_ids, column_ids, seen.shape), seen, k=k)

    def fold_in(self, counts: Any) -> Floats:
        """Return vectors of new rows from their counts, a sparse matrix with the columns of the vectors."""
        return self._fixed.fold_in(counts)

    @cached_property
    def _fixed(self) -> FixedColumns:
        from swivel.training.fold_in import FixedColumns

        if "train" not in self.vectors.settings:
            raise ConfigError("these vectors have no settings to fold rows in with: load the folder of a training")
        config = recorded_config(TrainConfig, self.vectors.settings["train"])
        return FixedColumns(self._columns.values, self._sums, self._total, config)

    @cached_property
    def _seen(self) -> Any:
        if self.matrix is None:
            raise ConfigError(
                "matrix is needed to leave out what a known row has: pass matrix, or exclude_seen=False",
                argument="matrix",
            )
        if not isinstance(self.matrix, Matrix):
            return drop_zeros(self.matrix)
        # Counts of walks say who is near, the edges who is a neighbor.
        edges = self.matrix.edges
        return scipy.sparse.csr_array(self.matrix.to_scipy() if edges is None else edges)

    def _cells_of(self, rows: Any) -> Any:
        """Return the cells of some known rows, None if they do not matter."""
        return None if self.ranking.links is None else self._seen[rows]

    @cached_property
    def _excluded(self) -> Any:
        """What known rows have and, if rows and columns are the same things, the rows themselves."""
        seen = self._seen
        return seen + scipy.sparse.eye_array(*seen.shape, format="csr") if self.vectors.columns_per_row == 1 else seen

    @cached_property
    def _column_vectors(self) -> Vectors:
        return Vectors(self._columns)

    def _place_counts(self, row: Mapping[Any, float]) -> Any:
        """Return the counts of a new row, of shape (1, n_columns)."""
        row = row.to_dict() if hasattr(row, "to_dict") else row  # a Series of pandas
        is_counts = isinstance(row, Mapping) and all(isinstance(count, Real) for count in row.values())
        labels = list(map(to_label, row)) if is_counts else []
        if not is_counts or not all(isinstance(label, str) for label in labels):
            raise ConfigError(f"row must be a label, or counts by column such as {{'tea': 1}}, got {row!r}")
        ids = _find_known(self._columns.vocabulary, labels, "column")
        values = np.array(list(row.values()), np.float64)[ids >= 0]
        columns = ids[ids >= 0]
        shape = 1, len(self._columns.vocabulary)
        return drop_zeros(scipy.sparse.csr_array((values, (np.zeros_like(columns), columns)), shape=shape))

    def _describe(self, ids: NDArray[np.intp], scores: Floats, counts: Any) -> list[Recommendation]:
        """Return the recommendations of a row with these counts."""
        columns = ids[ids >= 0]
        seen = counts.indices
        unit = self._column_vectors.unit_vectors
        cosines = unit[columns] @ unit[seen].T
        # A stable order, so that equal cosines give the same reasons everywhere.
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :REASONS]

        names = self._columns.vocabulary.tokens
        recommendations = []
        for column, score, best in zip(columns.tolist(), scores.tolist(), order, strict=False):
            because_of = tuple(names[each] for each in seen[best])
            recommendations.append(Recommendation(names[column], score, because_of))
        return recommendations


def _place_cells(
    table: Matrix, row_ids: NDArray[np.int64], column_ids: NDArray[np.int64], shape: tuple[int, int]
) -> scipy.sparse.csr_array:
    """Return the cells of a table with other ids of its rows and columns; those with the id -1 are left out."""
    cells = scipy.sparse.coo_array(table.to_scipy())
    rows, columns = row_ids[cells.coords[0]], column_ids[cells.coords[1]]
    is_known = (rows >= 0) & (columns >= 0)
    return scipy.sparse.csr_array((cells.data[is_known], (rows[is_known], columns[is_known])), shape=shape)


def _find_known(vocabulary: Vocabulary, labels: Sequence[Any], kind: str) -> NDArray[np.int64]:
    """Return the ids of labels, -1 for those that are unknown, of which a warning tells; an error if all are."""
    ids = np.array([vocabulary.ids.get(label, -1) for label in labels], np.int64)
    unknown = [label for label, id in zip(labels, ids.tolist(), strict=True) if id < 0]
    if unknown and len(unknown) == len(labels):
        vocabulary.id(unknown[0], kind=f"{kind}s")
    if unknown:
        _warn_of(unknown, f"unknown {kind}", "left out")
    return ids


def _warn_of(labels: Sequence[str], kind: str, what: str) -> None:
    """Warn of labels in one line that shows the first of them."""
    shown = ", ".join(map(repr, labels[:SHOWN_LABELS])) + (", ..." if len(labels) > SHOWN_LABELS else "")
    warnings.warn(f"{plural(len(labels), kind)} {what}: {shown}", SwivelWarning, stacklevel=4)


def _append(table: VectorTable, vocabulary: Vocabulary) -> VectorTable:
    """Return a table with zeros for the labels at the end of the vocabulary that it lacks."""
    assert table.sums is not None
    missing = len(vocabulary) - len(table.values)
    return VectorTable(vocabulary, np.pad(table.values, ((0, missing), (0, 0))), np.pad(table.sums, (0, missing)))


def _fold_again(vectors: Vectors, counts: Any, is_folded: NDArray[np.bool_]) -> VectorTable:
    """Return the rows with some of them folded into the columns, from the counts of all rows."""
    known = Recommender(vectors, counts)
    rows, columns = vectors.row_table, vectors.column_table
    assert rows.sums is not None and columns is not None and columns.sums is not None
    chosen = scipy.sparse.csr_array(counts)[is_folded]
    trained_on = chosen.log1p() if known._fixed.config.transform == "log" else chosen

    values, sums = rows.values.copy(), rows.sums.copy()
    values[is_folded] = known.fold_in(chosen)
    sums[is_folded] = trained_on @ (columns.sums > 0)  # other columns have no vectors yet
    return VectorTable(rows.vocabulary, values, sums)


def _warn_of_lonely(vectors: Vectors, ids: NDArray[np.intp]) -> None:
    """Warn of rows without cells with known columns."""
    assert vectors.row_sums is not None
    lonely = [vectors.vocabulary[number] for number in ids.tolist() if vectors.row_sums[number] == 0]
    if lonely:
        _warn_of(lonely, "new label", "without cells with known ones")


def _join(vocabulary: Vocabulary, others: Vocabulary) -> Vocabulary:
    """Return a vocabulary with the labels of another one that it lacks at its end."""
    new = [number for number, label in enumerate(others) if label not in vocabulary]
    counts = np.concatenate([vocabulary.counts, others.counts[new]])
    return Vocabulary([*vocabulary, *(others[number] for number in new)], counts)
