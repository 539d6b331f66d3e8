"""`Vectors`: what users ask questions of.

Receives a trained model's sides, hands on vectors, neighbours, analogies and scores. It trains nothing.
"""

from __future__ import annotations

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
from swivel.vectors.search import Floats, Pairs, best_ids, best_rows, scale_to_unit, score_3cosmul

METHODS = ("3cosadd", "3cosmul")
QUERIES_AT_A_TIME = 1_024
Query = str | Sequence[str] | NDArray[Any]


class Neighbour(NamedTuple):
    """An answer: a token, and how near it is (a cosine, unless the question says otherwise)."""

    token: str
    similarity: float


class Vectors:
    """One vector for each row of a table of counts, and the model behind them.

    Parameters
    ----------
    rows
        The trained rows: vocabulary, w, marginals.
    columns
        The trained columns, c; without them there are no scores.
    vectors
        What users get, from `combine_vectors`; the rows themselves by default.
    shift
        The log s that training took off its targets; scores add it again.
    columns_per_row
        Columns that belong to each row, side by side; 0 where rows and columns are different things.

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
        rows = _freeze_side(rows)
        columns = None if columns is None else _freeze_side(columns)
        combined = rows.values if vectors is None or is_rows else _freeze(vectors)
        self._contents = Contents(rows, columns, combined, float(shift), int(columns_per_row))
        self._checks: dict[str, Callable[[], None]] = {}  # of tensors that were not read yet
        self.vocabulary: Vocabulary = rows.vocabulary
        self.column_vocabulary: Vocabulary | None = None if columns is None else columns.vocabulary
        self.row_sums = rows.sums
        self.column_sums = None if columns is None else columns.sums
        self.shift = self._contents.shift
        self.columns_per_row = self._contents.columns_per_row
        self.path: Path | None = None  # the folder that they were loaded from

    def _check(self, *tensors: str) -> None:
        """Compare tensors' checksums before they are first used; raise DamagedFolder where one differs."""
        for name in tensors:
            if name in self._checks:
                self._checks[name]()
                self._checks.pop(name, None)  # Another thread may have checked it, too.

    @property
    def contents(self) -> Contents:
        """All that a folder of vectors holds."""
        self._check("rows", "columns", "vectors")
        return self._contents

    @property
    def rows(self) -> Floats:
        """The trained rows, w."""
        self._check("rows")
        return self._contents.rows.values

    @property
    def columns(self) -> Floats | None:
        """The trained columns, c, where there are any."""
        self._check("columns")
        return None if self._contents.columns is None else self._contents.columns.values

    @property
    def vectors(self) -> Floats:
        """What users get: one vector a token."""
        self._check("rows" if self._contents.vectors is self._contents.rows.values else "vectors")
        return self._contents.vectors

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return int(self._contents.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __contains__(self, token: object) -> bool:
        return token in self.vocabulary

    def __iter__(self) -> Iterator[str]:
        return iter(self.vocabulary)

    def __getitem__(self, token: str) -> Floats:
        """Return a token's vector, or raise UnknownToken with close spellings."""
        return np.asarray(self.vectors[self.vocabulary.id(token)])

    def __repr__(self) -> str:
        vocabulary = self.column_vocabulary
        columns = "no columns" if vocabulary is None else f"{len(vocabulary):,} columns"
        return f"<Vectors of {len(self):,} tokens, {self.dim} dimensions, {columns}>"

    @cached_property
    def unit_vectors(self) -> Floats:
        """The vectors with length 1, computed once; a vector of zeros stays one."""
        unit = scale_to_unit(self.vectors)
        finite = np.isfinite(unit).all(axis=1)
        if not finite.all():
            token = self.vocabulary[int(np.argmin(finite))]
            raise ConfigError(f"the vector of {token!r} is not finite: train again with a lower rate")
        return _freeze(unit)

    @cached_property
    def is_zero(self) -> NDArray[np.bool_]:
        """Whether each vector is all zeros: its token never co-occurred, and is nobody's neighbour."""
        return np.logical_not(self.unit_vectors.any(axis=1))

    @cached_property
    def _has_zeros(self) -> bool:
        return bool(self.is_zero.any())

    @cached_property
    def _zero_columns(self) -> NDArray[np.bool_]:
        return np.logical_not(self._need_columns().values.any(axis=1))

    def vector(self, query: Query, *, minus: str | Sequence[str] = ()) -> Floats:
        """Return arithmetic on words as a vector: the sum of the words' vectors, each of length 1.

        `query` is a token, several tokens that are added, or a vector, taken as it is; `minus` is taken away.
        """
        plus = _as_tokens(query)
        if plus is None:
            total = self._check_vector(query)
        else:
            total = self.unit_vectors[self._ids(plus)].sum(axis=0)
        return np.asarray(total - self.unit_vectors[self._ids(_need_tokens(minus))].sum(axis=0))

    def nearest(
        self, query: Query, *, minus: str | Sequence[str] = (), count: int = 10, among: str = "rows"
    ) -> list[Neighbour]:
        """Return the tokens nearest to a token, to a sum of tokens or to a vector, nearest first.

        The query's own tokens are no answers. A query without direction (all zeros) has no neighbours.
        With `among="columns"`, `query` is one row token and the answers are the columns it goes with most strongly:
        their `similarity` is the `score`.

        >>> words = Vocabulary(["king", "man", "woman", "queen"])
        >>> table = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], np.float32)
        >>> Vectors(VectorTable(words, table)).nearest(["king", "woman"], minus=["man"])[0].token
        'queen'
        """
        _check_count(count)
        if among == "columns":
            return self._nearest_columns(query, minus, count)
        if among != "rows":
            raise ConfigError(f"among must be rows or columns, got {among!r}")
        direction = scale_to_unit(self.vector(query, minus=minus)[None])[0]
        own = self._ids([*(_as_tokens(query) or ()), *_need_tokens(minus)])
        return self._best_rows(self.unit_vectors @ direction, own, count) if direction.any() else []

    def nearest_each(self, queries: Iterable[Query], *, count: int = 10) -> list[list[Neighbour]]:
        """Return what `nearest` returns for each of many queries, much faster than one by one.

        Each query is a token, several tokens that are added, or a vector; an array (n, dim) is n vectors.

        >>> words = Vocabulary(["king", "queen", "pear"])
        >>> vectors = Vectors(VectorTable(words, np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)))
        >>> [found[0].token for found in vectors.nearest_each(["king", "pear"])]
        ['queen', 'queen']
        """
        _check_count(count)
        answers: list[list[Neighbour]] = []
        for asked in _split(list(queries), QUERIES_AT_A_TIME):
            directions = scale_to_unit(np.stack([self._direction(query) for query in asked]))
            own = [self._ids(_as_tokens(query) or ()) for query in asked]
            numbers = np.repeat(np.arange(len(own)), [len(ids) for ids in own])
            excluded = Pairs(numbers, np.array([row for ids in own for row in ids], np.intp))
            best = best_rows(self.unit_vectors, directions, count, excluded=excluded, is_zero=self.is_zero)
            answers += [
                self._name_rows(ids, scores) if direction.any() else []
                for ids, scores, direction in zip(best.ids, best.scores, directions, strict=True)
            ]
        return answers

    def analogy(self, a: str, b: str, c: str, *, method: str = "3cosadd", count: int = 10) -> list[Neighbour]:
        """Answer "a is to b as c is to ?"; a, b and c are no answers.

        `3cosadd` ranks by the cosine with b - a + c; `3cosmul` by cos(b) cos(c) / (cos(a) + 0.001), each cosine
        moved to 0 .. 1 (Levy and Goldberg, 2014): its `similarity` is that score.
        """
        if method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if method == "3cosadd":
            return self.nearest([b, c], minus=[a], count=count)
        _check_count(count)
        ids = self._ids([a, b, c])
        return self._best_rows(score_3cosmul(self.unit_vectors, *self.unit_vectors[ids]), ids, count)

    def similarity(self, a: Query, b: Query) -> float:
        """Return the cosine between two tokens (or sums, or vectors); 0 where one is all zeros."""
        first, second = scale_to_unit(np.stack([self.vector(a), self.vector(b)])).astype(np.float64)
        return float(np.clip(first @ second, -1, 1))

    def score(self, row: str, column: str) -> float:
        """Return the model's own output: the estimated PMI of a row and a column, w . c + shift.

        Where a word has several columns (left and right, say), `column` may be one of them by its label, or the word:
        then the estimate is that of its columns counted together.
        """
        columns, row_id = self._need_columns(), self.vocabulary.id(row)
        is_word = self.columns_per_row > 1 and column not in columns.vocabulary and column in self.vocabulary
        if not is_word:
            column_id = columns.vocabulary.id(column)
            return float(self._score_columns(row_id, slice(column_id, column_id + 1))[0])
        first = self.vocabulary.id(column) * self.columns_per_row
        parts = slice(first, first + self.columns_per_row)
        weights = np.ones(self.columns_per_row) if columns.sums is None else columns.sums[parts]
        return _pool_scores(self._score_columns(row_id, parts), weights)

    def align(self, other: Vectors, *, words: Sequence[str] | int | None = None) -> Vectors:
        """Return these vectors rotated so that the words shared with `other` lie as close to its own as can be.

        A rotation changes no length and no cosine between two of these vectors; scores stay, too. `words` are those
        to lean on: a list, or how many of the commonest; by default all shared ones, each of length 1.
        """
        if self.dim != other.dim:
            raise ConfigError(f"vectors of {self.dim} and of {other.dim} dimensions share no space; train them alike")
        anchors = choose_anchors(self.vocabulary, other.vocabulary, words)
        if len(anchors) < self.dim:
            raise ConfigError(f"{len(anchors):,} words do not fix a rotation in {self.dim} dimensions: take more words")
        own, its = self.unit_vectors[self._ids(anchors)], other.unit_vectors[other._ids(anchors)]
        rotated = (self.vectors @ find_rotation(own, its)).astype(np.float32)
        return self._with_vectors(rotated)

    def _with_vectors(self, vectors: Floats) -> Vectors:
        rows, columns = self.contents.rows, self.contents.columns
        return Vectors(rows, columns, vectors=vectors, shift=self.shift, columns_per_row=self.columns_per_row)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that `load` reads."""
        with create_folder(path, STAGE, overwrite=overwrite) as folder:
            folder.finish(config={}, inputs={}, facts=write_vectors(folder, self))

    @classmethod
    def load(cls, path: str | Path) -> Vectors:
        """Open a folder of vectors, memory-mapped."""
        opened = read_contents(path)
        read = opened.contents
        vectors = None if read.vectors is read.rows.values else read.vectors
        loaded = cls(read.rows, read.columns, vectors=vectors, shift=read.shift, columns_per_row=read.columns_per_row)
        loaded.path = Path(path)
        loaded._checks = dict(opened.checks)
        return loaded

    def _check_vector(self, query: Query) -> Floats:
        try:
            vector = np.array(query, np.float32)
        except ValueError as error:
            raise ConfigError(f"a query is a token, several tokens or a vector: {error}") from error
        if vector.shape != (self.dim,):
            raise ConfigError(f"a query vector must have shape ({self.dim},), got {vector.shape}")
        if not np.isfinite(vector).all():
            raise ConfigError("a query vector must be finite")
        return vector

    def _direction(self, query: Query) -> Floats:
        """Return what `vector` returns, faster for one token."""
        return (
            np.asarray(self.unit_vectors[self.vocabulary.id(query)]) if isinstance(query, str) else self.vector(query)
        )

    def _ids(self, tokens: Sequence[str]) -> list[int]:
        return [self.vocabulary.id(token) for token in tokens]

    def _best_rows(self, scores: Floats, own: Sequence[int], count: int) -> list[Neighbour]:
        if self._has_zeros:
            scores[self.is_zero] = -np.inf
        scores[own] = -np.inf
        ids = best_ids(scores, count)
        return self._name_rows(ids, scores[ids])

    def _name_rows(self, ids: NDArray[np.intp], scores: Floats) -> list[Neighbour]:
        tokens, pairs = self.vocabulary.tokens, zip(ids.tolist(), scores.tolist(), strict=True)
        return [Neighbour(tokens[row], score) for row, score in pairs if score > -np.inf]

    def _nearest_columns(self, query: Query, minus: str | Sequence[str], count: int) -> list[Neighbour]:
        columns, tokens = self._need_columns(), _as_tokens(query)
        if tokens is None or len(tokens) != 1 or len(minus) > 0:
            raise ConfigError("among=columns takes one token of the rows: a sum of words has no score")
        row_id = self.vocabulary.id(tokens[0])
        if not self.rows[row_id].any():
            return []
        scores = self._score_columns(row_id, slice(None))
        scores[self._zero_columns] = -np.inf
        return [Neighbour(columns.vocabulary[i], float(scores[i])) for i in best_ids(scores, count).tolist()]

    def _score_columns(self, row_id: int, which: slice) -> Floats:
        return np.asarray(self._need_columns().values[which] @ self.rows[row_id] + np.float32(self.shift))

    def _need_columns(self) -> VectorTable:
        if self._contents.columns is None:
            raise ConfigError(
                "these vectors have no columns, so no scores: open the folder that training wrote "
                "(objective glove has none)"
            )
        self._check("columns")
        return self._contents.columns


def load(path: str | Path) -> Vectors:
    """Open a folder of vectors, memory-mapped; numpy is all it needs."""
    return Vectors.load(path)


def write_vectors(folder: FolderWriter, vectors: Vectors) -> dict[str, Any]:
    """Write the parts of `vectors` into a folder; return the facts that its manifest must hold for `load`."""
    return write_contents(folder, vectors.contents)


def _freeze(array: NDArray[Any]) -> Floats:
    """Return a read-only float32 view, a copy only where it must be one."""
    frozen = np.ascontiguousarray(array, np.float32).view()
    frozen.flags.writeable = False
    return frozen


def _freeze_side(side: VectorTable) -> VectorTable:
    sums = None if side.sums is None else np.asarray(side.sums, np.float64)
    return VectorTable(side.vocabulary, _freeze(side.values), sums)


def _as_tokens(query: Query) -> tuple[str, ...] | None:
    """Return a query's tokens, or None where it is a vector."""
    if isinstance(query, str):
        return (query,)
    if not isinstance(query, np.ndarray) and all(isinstance(token, str) for token in query):
        return tuple(query)
    return None


def _split(queries: list[Query], size: int) -> Iterator[list[Query]]:
    for start in range(0, len(queries), size):
        yield queries[start : start + size]


def _need_tokens(words: str | Sequence[str]) -> tuple[str, ...]:
    tokens = _as_tokens(words)
    if tokens is None:
        raise ConfigError(f"minus takes tokens, got {words!r}: take a vector away before asking")
    return tokens


def _pool_scores(scores: Floats, weights: NDArray[np.float64]) -> float:
    """Return the PMI with several columns together: log of the mean of exp(PMI), weighted by the columns' sums.

    Each estimates log(x_ip |D| / (x_i* x_*p)); adding up the x_ip and the x_*p gives that.
    """
    if weights.sum() == 0:
        weights = np.ones(len(scores))
    highest = float(scores.max())
    return highest + float(np.log(np.average(np.exp(scores.astype(np.float64) - highest), weights=weights)))


def _check_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ConfigError(f"count must be a positive integer, got {count!r}")
