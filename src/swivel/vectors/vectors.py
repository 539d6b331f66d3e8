"""The class `Vectors`: vectors, nearest neighbors, analogies and scores of a trained model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.storage import FolderWriter, create_folder
from swivel.vectors.align import choose_anchors, find_rotation
from swivel.vectors.folder import STAGE, Contents, VectorTable, read_contents, write_contents
from swivel.vectors.search import Floats, best_ids, best_rows, check_search, scale_to_unit, score_3cosmul

METHODS = ("3cosadd", "3cosmul")
QUERIES_PER_BATCH = 1_024
Query = str | Sequence[str] | NDArray[Any]


class Neighbor(NamedTuple):
    """A token and its similarity to the query: a cosine, unless the method says otherwise."""

    token: str
    similarity: float


class Expression(NamedTuple):
    """Word arithmetic: the tokens to add and the tokens to subtract."""

    plus: tuple[str, ...]
    minus: tuple[str, ...]


class Vectors:
    """One vector per row of a count matrix, with the trained model.

    Parameters
    ----------
    rows
        The trained rows: vocabulary, vectors w, marginals.
    columns
        The trained columns: vocabulary, vectors c, marginals. Without them `score` is not available.
    vectors : ndarray of shape (n_rows, dim), optional
        The vectors that users get, from `combine_vectors`; by default the row vectors.
    shift
        The constant log s that training subtracted from its targets; `score` adds it again.
    columns_per_row
        Number of columns of each row, stored next to each other; 0 if rows and columns are different things.

    >>> words = Vocabulary(["king", "queen", "pear"])
    >>> vectors = Vectors(VectorTable(words, np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)))
    >>> vectors.nearest("king", count=1)[0].token
    'queen'
    """

    def __init__(
        self,
        rows: VectorTable,
        columns: VectorTable | None = None,
        *,
        vectors: Floats | None = None,
        shift: float = 0.0,
        columns_per_row: int = 0,
    ) -> None:
        is_rows = vectors is None or vectors is rows.values
        rows = _freeze_table(rows)
        columns = None if columns is None else _freeze_table(columns)
        combined = rows.values if vectors is None or is_rows else _freeze(vectors)

        self._contents = Contents(rows, columns, combined, float(shift), int(columns_per_row))
        self._checks: dict[str, Callable[[], None]] = {}  # checksum tests of the tensors not verified yet

        self.vocabulary: Vocabulary = rows.vocabulary
        self.column_vocabulary: Vocabulary | None = None if columns is None else columns.vocabulary
        self.row_sums = rows.sums
        self.column_sums = None if columns is None else columns.sums
        self.shift = self._contents.shift
        self.columns_per_row = self._contents.columns_per_row

        self.path: Path | None = None  # the folder the vectors were loaded from
        self.source: Path | None = None  # the same, or the file of another tool

    def _check(self, *tensors: str) -> None:
        """Verify the checksum of each tensor before its first use; raise DamagedFolder if one differs."""
        for name in tensors:
            if name in self._checks:
                self._checks[name]()
                self._checks.pop(name, None)  # Not `del`: another thread may have verified it too.

    @property
    def contents(self) -> Contents:
        """Everything that a folder of vectors contains."""
        self._check("rows", "columns", "vectors")
        return self._contents

    @property
    def rows(self) -> Floats:
        """The trained row vectors w, of shape (n_rows, d)."""
        self._check("rows")
        return self._contents.rows.values

    @property
    def columns(self) -> Floats | None:
        """The trained column vectors c, of shape (n_columns, d), or None."""
        self._check("columns")
        return None if self._contents.columns is None else self._contents.columns.values

    @property
    def vectors(self) -> Floats:
        """The vectors that users get, of shape (n_rows, dim), one per token."""
        self._check("rows" if self._contents.vectors is self._contents.rows.values else "vectors")
        return self._contents.vectors

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return int(self._contents.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __contains__(self, token: object) -> bool:
        return token in self.vocabulary

    def __iter__(self) -> Iterator[str]:
        return iter(self.vocabulary)

    def __getitem__(self, token: str) -> Floats:
        """Return the vector of a token; an UnknownToken error suggests similar spellings."""
        return np.asarray(self.vectors[self.vocabulary.id(token)])

    def __repr__(self) -> str:
        vocabulary = self.column_vocabulary
        columns = "no columns" if vocabulary is None else f"{len(vocabulary):,} columns"
        return f"<Vectors of {len(self):,} tokens, {self.dim} dimensions, {columns}>"

    @cached_property
    def unit_vectors(self) -> Floats:
        """The vectors scaled to length 1, computed once; vectors of zeros stay zero."""
        check_search(self.vectors)
        unit = scale_to_unit(self.vectors)
        is_finite = np.isfinite(unit).all(axis=1)
        if not is_finite.all():
            token = self.vocabulary[int(np.argmin(is_finite))]
            raise ConfigError(f"the vector of {token!r} is not finite: train again with a lower learning rate")

        return _freeze(unit)

    @cached_property
    def is_zero(self) -> NDArray[np.bool_]:
        """Whether each vector is all zeros: its token has no co-occurrences, and searches never return it."""
        return np.logical_not(self.unit_vectors.any(axis=1))

    @cached_property
    def _has_zeros(self) -> bool:
        return bool(self.is_zero.any())

    @cached_property
    def _zero_columns(self) -> NDArray[np.bool_]:
        return np.logical_not(self._need_columns().values.any(axis=1))

    def vector(self, query: Query, *, minus: str | Sequence[str] = ()) -> Floats:
        """Return the vector of word arithmetic, a sum of unit vectors, of shape (dim,).

        Parameters
        ----------
        query
            A token, several tokens to add, or a vector, which is used without scaling.
        minus
            Tokens to subtract.
        """
        plus = _as_tokens(query)
        if plus is None:
            total = self._check_vector(query)
        else:
            total = self.unit_vectors[self._ids(plus)].sum(axis=0)

        return np.asarray(total - self.unit_vectors[self._ids(_need_tokens(minus))].sum(axis=0))

    def nearest(
        self, query: Query, *, minus: str | Sequence[str] = (), count: int = 10, among: str = "rows"
    ) -> list[Neighbor]:
        """Return the tokens nearest to a token, a sum of tokens or a vector, nearest first.

        Parameters
        ----------
        query
            A token, several tokens to add, or a vector. Tokens of the query are never returned. A vector of
            zeros has no neighbors.
        minus
            Tokens to subtract.
        count
            Maximum number of results.
        among : {"rows", "columns"}
            With "columns", `query` must be one row token; the results are the columns with the highest `score`,
            which is returned as their `similarity`.

        >>> words = Vocabulary(["king", "man", "woman", "queen"])
        >>> table = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], np.float32)
        >>> Vectors(VectorTable(words, table)).nearest(["king", "woman"], minus=["man"])[0].token
        'queen'
        """
        _check_count(count)
        if among == "columns":
            return self._nearest_columns(query, minus, count)
        if among != "rows":
            raise ConfigError(f"among must be 'rows' or 'columns', got {among!r}")

        direction = scale_to_unit(self.vector(query, minus=minus)[None])[0]
        own = self._ids([*(_as_tokens(query) or ()), *_need_tokens(minus)])
        if not direction.any():
            return []
        return self._best_rows(self.unit_vectors @ direction, own, count)

    def nearest_each(self, queries: Iterable[Query], *, count: int = 10) -> list[list[Neighbor]]:
        """Return the result of `nearest` for each of many queries, much faster than one call per query.

        Each query is a token, several tokens to add, or a vector; an array of shape (n, dim) is n queries.

        >>> words = Vocabulary(["king", "queen", "pear"])
        >>> vectors = Vectors(VectorTable(words, np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)))
        >>> [found[0].token for found in vectors.nearest_each(["king", "pear"])]
        ['queen', 'queen']
        """
        _check_count(count)
        answers: list[list[Neighbor]] = []
        asked = list(queries)

        for start in range(0, len(asked), QUERIES_PER_BATCH):
            batch = asked[start : start + QUERIES_PER_BATCH]
            directions = scale_to_unit(np.stack([self._direction(query) for query in batch]))
            excluded = [self._ids(_as_tokens(query) or ()) for query in batch]
            best = best_rows(self.unit_vectors, directions, count, excluded=excluded, is_zero=self.is_zero)

            for ids, scores, direction in zip(best.ids, best.scores, directions, strict=True):
                answers.append(self._name_rows(ids, scores) if direction.any() else [])

        return answers

    def analogy(self, a: str, b: str, c: str, *, method: str = "3cosadd", count: int = 10) -> list[Neighbor]:
        """Return the answers to "a is to b as c is to ?", best first; a, b and c are never returned.

        Method `3cosadd` ranks by the cosine with b - a + c. Method `3cosmul` ranks by cos(b) cos(c) / (cos(a) + 0.001)
        with each cosine mapped to [0, 1] (Levy and Goldberg, 2014), and returns that score as `similarity`.
        """
        if method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if method == "3cosadd":
            return self.nearest([b, c], minus=[a], count=count)

        _check_count(count)
        ids = self._ids([a, b, c])
        return self._best_rows(score_3cosmul(self.unit_vectors, *self.unit_vectors[ids]), ids, count)

    def similarity(self, a: Query, b: Query) -> float:
        """Return the cosine of two tokens, sums of tokens or vectors; 0 if one is all zeros."""
        first, second = scale_to_unit(np.stack([self.vector(a), self.vector(b)])).astype(np.float64)
        return float(np.clip(first @ second, -1, 1))

    def score(self, row: str, column: str) -> float:
        """Return the model's estimate of the PMI of a row and a column, w . c + shift.

        If a word has several columns, such as left and right context, `column` may be the label of one of them or the
        word itself. For the word, the result is the PMI with all its columns taken together.
        """
        columns = self._need_columns()
        row_id = self.vocabulary.id(row)

        is_word = self.columns_per_row > 1 and column not in columns.vocabulary and column in self.vocabulary
        if not is_word:
            column_id = columns.vocabulary.id(column)
            return float(self._score_columns(row_id, slice(column_id, column_id + 1))[0])

        first = self.vocabulary.id(column) * self.columns_per_row
        parts = slice(first, first + self.columns_per_row)

        weights = np.ones(self.columns_per_row) if columns.sums is None else columns.sums[parts]
        return _pool_scores(self._score_columns(row_id, parts), weights)

    def align(self, other: Vectors, *, words: Sequence[str] | int | None = None) -> Vectors:
        """Return these vectors rotated so that the words shared with `other` are as close as possible to its vectors.

        The rotation changes no length and no cosine between two of these vectors, and no score.

        Parameters
        ----------
        other
            Vectors with the same number of dimensions.
        words
            The words used to fit the rotation: a list, or the number of most frequent shared words. By default all
            shared words, each scaled to length 1.
        """
        if self.dim != other.dim:
            raise ConfigError(
                f"cannot align vectors of {self.dim} and {other.dim} dimensions: train both with the same dim"
            )

        anchors = choose_anchors(self.vocabulary, other.vocabulary, words)
        if len(anchors) < self.dim:
            raise ConfigError(
                f"{len(anchors):,} words do not determine a rotation in {self.dim} dimensions: use more words"
            )

        source = self.unit_vectors[self._ids(anchors)]
        target = other.unit_vectors[other._ids(anchors)]
        rotated = (self.vectors @ find_rotation(source, target)).astype(np.float32)

        model = self.contents
        return Vectors(
            model.rows, model.columns, vectors=rotated, shift=model.shift, columns_per_row=model.columns_per_row
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that `Vectors.load` can read; an existing folder is replaced only with `overwrite`."""
        with create_folder(path, STAGE, overwrite=overwrite) as folder:
            folder.finish(config={}, inputs={}, facts=write_vectors(folder, self))

    @classmethod
    def load(cls, path: str | Path) -> Vectors:
        """Open a folder of vectors; arrays are memory-mapped and verified before their first use."""
        stored, checks = read_contents(path)
        vectors = None if stored.vectors is stored.rows.values else stored.vectors

        loaded = cls(
            stored.rows, stored.columns, vectors=vectors, shift=stored.shift, columns_per_row=stored.columns_per_row
        )

        loaded.path = loaded.source = Path(path)
        loaded._checks = checks
        return loaded

    def _check_vector(self, query: Query) -> Floats:
        try:
            vector = np.array(query, np.float32)
        except ValueError as error:
            raise ConfigError(f"a query must be a token, several tokens or a vector: {error}") from error
        if vector.shape != (self.dim,):
            raise ConfigError(f"a query vector must have shape ({self.dim},), got {vector.shape}")
        if not np.isfinite(vector).all():
            raise ConfigError("a query vector must be finite")
        return vector

    def _direction(self, query: Query) -> Floats:
        """Return the result of `vector`, with a shortcut for one token."""
        if isinstance(query, str):
            return np.asarray(self.unit_vectors[self.vocabulary.id(query)])
        return self.vector(query)

    def _ids(self, tokens: Sequence[str]) -> list[int]:
        return [self.vocabulary.id(token) for token in tokens]

    def _best_rows(self, scores: Floats, own: Sequence[int], count: int) -> list[Neighbor]:
        if self._has_zeros:
            scores[self.is_zero] = -np.inf
        scores[own] = -np.inf
        ids = best_ids(scores, count)
        return self._name_rows(ids, scores[ids])

    def _name_rows(self, ids: NDArray[np.intp], scores: Floats) -> list[Neighbor]:
        tokens = self.vocabulary.tokens
        pairs = zip(ids.tolist(), scores.tolist(), strict=True)
        return [Neighbor(tokens[row], score) for row, score in pairs if score > -np.inf]

    def _nearest_columns(self, query: Query, minus: str | Sequence[str], count: int) -> list[Neighbor]:
        columns = self._need_columns()
        tokens = _as_tokens(query)
        if tokens is None or len(tokens) != 1 or len(minus) > 0:
            raise ConfigError("among='columns' needs one row token as query: a sum of tokens has no score")

        row_id = self.vocabulary.id(tokens[0])
        if not self.rows[row_id].any():
            return []

        scores = self._score_columns(row_id, slice(None))
        scores[self._zero_columns] = -np.inf
        return [Neighbor(columns.vocabulary[i], float(scores[i])) for i in best_ids(scores, count).tolist()]

    def _score_columns(self, row_id: int, which: slice) -> Floats:
        return np.asarray(self._need_columns().values[which] @ self.rows[row_id] + np.float32(self.shift))

    def _need_columns(self) -> VectorTable:
        if self._contents.columns is None:
            raise ConfigError(
                "these vectors have no columns and therefore no scores: load a folder written by swivel train "
                "(objective glove has no columns)"
            )
        self._check("columns")
        return self._contents.columns


load = Vectors.load


def write_vectors(folder: FolderWriter, vectors: Vectors) -> dict[str, Any]:
    """Write the files of `vectors` into a folder and return the facts for its manifest."""
    return write_contents(folder, vectors.contents)


def _freeze(array: NDArray[Any]) -> Floats:
    """Return a read-only float32 array; copies only if the dtype or the memory layout requires it."""
    frozen = np.ascontiguousarray(array, np.float32).view()
    frozen.flags.writeable = False
    return frozen


def _freeze_table(table: VectorTable) -> VectorTable:
    sums = None if table.sums is None else np.asarray(table.sums, np.float64)
    return VectorTable(table.vocabulary, _freeze(table.values), sums)


def _as_tokens(query: Query) -> tuple[str, ...] | None:
    """Return the tokens of a query, or None if it is a vector."""
    if isinstance(query, str):
        return (query,)
    if not isinstance(query, np.ndarray) and all(isinstance(token, str) for token in query):
        return tuple(query)
    return None


def _need_tokens(words: str | Sequence[str]) -> tuple[str, ...]:
    tokens = _as_tokens(words)
    if tokens is None:
        raise ConfigError(f"minus must be tokens, got {words!r}: subtract a vector from the query instead")
    return tokens


def _pool_scores(scores: Floats, weights: NDArray[np.float64]) -> float:
    """Return the PMI with several columns together: the log of the mean of exp(PMI), weighted by the column sums.

    Each column p estimates log(x_ip |D| / (x_i* x_*p)). Summing x_ip and x_*p over p gives this mean.
    """
    if weights.sum() == 0:
        weights = np.ones(len(scores))

    highest = float(scores.max())  # subtracted before exp to avoid overflow
    return highest + float(np.log(np.average(np.exp(scores.astype(np.float64) - highest), weights=weights)))


def _check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ConfigError(f"count must be a positive integer, got {count!r}")


def parse_expression(text: str) -> Expression:
    """Parse text such as `king - man + woman`.

    A sign needs spaces around it, so that tokens may contain hyphens and spaces.

    >>> parse_expression("vice-president - man + woman")
    Expression(plus=('vice-president', 'woman'), minus=('man',))
    """
    # The lookarounds keep this linear in the length of the text, even for long runs of spaces.
    first, *pieces = re.split(r"(?<!\S)([+-])(?!\S)", text.strip())
    signs = pieces[::2]
    tokens = [token.strip() for token in pieces[1::2]]

    # An expression may begin with a sign; otherwise its first token is added.
    if first or not signs:
        signs.insert(0, "+")
        tokens.insert(0, first.strip())
    if "" in tokens:
        raise ConfigError(
            f"{text!r} is not an expression: write tokens with + or - between spaces, such as king - man + woman"
        )

    plus = tuple(token for sign, token in zip(signs, tokens, strict=True) if sign == "+")
    minus = tuple(token for sign, token in zip(signs, tokens, strict=True) if sign == "-")
    return Expression(plus, minus)
