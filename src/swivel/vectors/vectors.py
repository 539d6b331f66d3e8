"""The class `Vectors`: vectors, nearest neighbors, analogies and scores of a trained model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, UnknownToken
from swivel.runtime.display import draw_html
from swivel.runtime.options import RunOptions
from swivel.storage.files import create_folder
from swivel.storage.output_folder import refuse_run
from swivel.vectors import search, vector_table
from swivel.vectors.folder import STAGE, read_vectors, write_vectors
from swivel.vectors.gensim_names import GensimNames
from swivel.vectors.search import Floats, Query, as_tokens, scale_to_unit
from swivel.vectors.subwords import Guess, Guesser, Subwords, fit_subwords, rate_certainty, spelling_of
from swivel.vectors.text_encoder import SMOOTHING, TextEncoder
from swivel.vectors.vector_table import VectorTable

METHODS = ("3cosadd", "3cosmul")
QUERIES_PER_BATCH = 1_024
NO_NEIGHBORS = "{!r} has no neighbors: it has no co-occurrences, so its vector is zero"


class Neighbor(NamedTuple):
    """A token and its similarity to the query: a cosine, or what the method says."""

    token: str
    similarity: float


class Vectors(GensimNames):
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
    subwords
        Vectors of n-grams, for guesses of words that are not in the vocabulary.
    settings
        Settings of the stages that led to the vectors, as in a manifest: "corpus" and "count", to read texts as then,
        "train" and "vectors", to fold in rows, "ranking", to recommend.
    facts
        What is known of the training: "matrix" (its fingerprint), "plan", "losses", "training_seconds",
        "total", the sum of all counts if it was imported, and "trained_rows", the number of rows before `extend` added
        more.

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
        subwords: Subwords | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._rows = rows.freeze()
        self._columns = None if columns is None else columns.freeze()
        self._vectors = self._rows.values
        if vectors is not None and vectors is not rows.values:
            self._vectors = vector_table.freeze_array(vectors)
        self._subwords = subwords
        self.shift = float(shift)
        self.columns_per_row = int(columns_per_row)
        self.settings = dict(settings or {})
        self.facts = dict(facts or {})
        vector_table.check_tables(self._rows, self._columns, self._vectors, self.columns_per_row, subwords)

        self.vocabulary: Vocabulary = rows.vocabulary
        self.column_vocabulary: Vocabulary | None = None if columns is None else columns.vocabulary
        self.row_sums = self._rows.sums
        self.column_sums = None if self._columns is None else self._columns.sums

        self.path: Path | None = None  # the folder the vectors were loaded from
        self.source: Path | None = None  # the same, or the file of another tool
        self._checks: dict[str, Callable[[], None]] = {}  # checksum tests of the tensors not verified yet
        self._encoders: dict[tuple[float, int, bool], TextEncoder] = {}  # by their settings

    def trust(self) -> None:
        """Skip the checksums of the folder, because this process has just written it."""
        self._checks.clear()

    def _check(self, *tensors: str) -> None:
        """Verify the checksum of each tensor before its first use; raise DamagedFolder if one differs."""
        for name in tensors:
            if name in self._checks:
                self._checks[name]()
                self._checks.pop(name, None)  # Not `del`: another thread may have verified it too.

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the content: that of the files of a folder, or of the labels, rows and columns in memory."""
        return vector_table.fingerprint_vectors(self.row_table, self.column_table)

    @property
    def row_table(self) -> VectorTable:
        """The trained rows: vocabulary, vectors w, marginals."""
        self._check("rows")
        return self._rows

    @property
    def column_table(self) -> VectorTable | None:
        """The trained columns: vocabulary, vectors c, marginals; or None."""
        self._check("columns")
        return self._columns

    @property
    def rows(self) -> Floats:
        """The trained row vectors w, of shape (n_rows, d)."""
        return self.row_table.values

    @property
    def columns(self) -> Floats | None:
        """The trained column vectors c, of shape (n_columns, d), or None."""
        columns = self.column_table
        return None if columns is None else columns.values

    @property
    def vectors(self) -> Floats:
        """The vectors that users get, of shape (n_rows, dim), one per token."""
        self._check("rows" if self._vectors is self._rows.values else "vectors")
        return self._vectors

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return int(self._vectors.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of tokens and dimensions."""
        return len(self), self.dim

    def __len__(self) -> int:
        return len(self.vocabulary)

    def __contains__(self, token: object) -> bool:
        return isinstance(token, str) and self.vocabulary.find(token) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.vocabulary)

    def __getitem__(self, token: str | Iterable[str]) -> Floats:
        """Return the vector of a token, a read-only view, or a new array with one row per token of a list.

        An UnknownToken error suggests similar spellings.
        """
        if isinstance(token, str):
            return np.asarray(self.vectors[self.find_row(token)])

        tokens = as_tokens(token)
        if tokens is None:
            raise UnknownToken(
                f"an index must be a token or a list of tokens, such as '7', got {type(token).__name__}: the vector of "
                "row n is vectors.vectors[n], its token vectors.vocabulary[n]"
            )
        return np.asarray(self.vectors[self.find_rows(tokens)])

    def find_row(self, token: str) -> int:
        """Return the id of a row; an UnknownToken error says if a table has a column of that name."""
        number = self.vocabulary.find(token)
        if number is not None:
            return number

        labels = None if self.columns_per_row else self.column_vocabulary  # columns that are not parts of the rows
        if labels is not None and token in labels:
            raise UnknownToken(
                f"{token!r} is the label of a column, not of a row; swap them with .T "
                "(on the command line: side='columns')"
            )
        return self.vocabulary.id(token, kind="tokens" if labels is None else "labels")

    def find_rows(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of several rows."""
        return [self.find_row(token) for token in tokens]

    def get(self, token: str, default: Any = None, *, guess: bool = False) -> Any:
        """Return the vector of a token; if it is not in the vocabulary, a guess from its spelling, or `default`."""
        if token in self:
            return self[token]
        return self.guess(token).vector if guess and self.subwords is not None else default

    @property
    def subwords(self) -> Subwords | None:
        """The vectors of n-grams, or None."""
        self._check("subwords")
        return self._subwords

    def guess(self, word: str) -> Guess:
        """Return a vector from the spelling of any word, with its expected cosine with the vector it should have."""
        return self.guesser.guess_word(word)

    @cached_property
    def guesser(self) -> Guesser:
        """Guesses the vectors of many words; ConfigError if there are no n-grams."""
        return Guesser(self.vectors, self.vocabulary, self.subwords, spelling_of(self.settings))

    @cached_property
    def T(self) -> Vectors:  # noqa: N802 (as in NumPy and pandas)
        """The vectors of a table with rows and columns swapped: `vectors.T.nearest` finds neighbors of a column."""
        if self.columns_per_row:
            raise ConfigError("rows and columns are the same things: only vectors of a table can be transposed")
        facts = {"total": self.facts["total"]} if "total" in self.facts else {}
        return Vectors(self._need_columns(), self.row_table, shift=self.shift, settings=self.settings, facts=facts)

    def with_subwords(self) -> Vectors:
        """Return these vectors with n-grams fitted to them; raise ConfigError for fewer than 1,000 words."""
        return self.replace(subwords=fit_subwords(self.vectors, self.vocabulary.tokens, self.vocabulary.counts))

    def replace(self, **changes: Any) -> Vectors:
        """Return these vectors with some arguments of the class changed."""
        return Vectors(**{**self._to_arguments(), **changes})

    def _to_arguments(self) -> dict[str, Any]:
        """Return the arguments of the class that make these vectors."""
        vectors = None if self.vectors is self.rows else self.vectors
        names = ("shift", "columns_per_row", "subwords", "settings", "facts")
        others = {name: getattr(self, name) for name in names}
        return {"rows": self.row_table, "columns": self.column_table, "vectors": vectors, **others}

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the vectors, of shape (n_rows, dim): `np.asarray(vectors)` does not copy them."""
        return np.asarray(self.vectors, dtype) if copy is None else np.array(self.vectors, dtype, copy=copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Vectors, **self._to_arguments()), (), {"path": self.path, "source": self.source}

    def __deepcopy__(self, memo: Any) -> Vectors:
        """Return a copy that shares the arrays, because they are read-only."""
        return copy.copy(self)

    def __repr__(self) -> str:
        columns = "no columns" if self.column_vocabulary is None else f"{len(self.column_vocabulary):,} columns"
        return f"<Vectors of {len(self):,} tokens, {self.dim} dimensions, {columns}>"

    def _repr_html_(self) -> str:
        pairs = zip(self.vocabulary, self.vocabulary.counts, strict=True)
        return draw_html(repr(self)[1:-1], ("token", "count"), ((token, int(count) or "") for token, count in pairs))

    @cached_property
    def unit_vectors(self) -> Floats:
        """The vectors scaled to length 1, computed once; vectors of zeros stay zero."""
        search.check_search(self.vectors)
        unit = scale_to_unit(self.vectors)
        is_finite = np.isfinite(unit).all(axis=1)
        if not is_finite.all():
            token = self.vocabulary[int(np.argmin(is_finite))]
            raise ConfigError(f"the vector of {token!r} is not finite: train again with a lower learning rate")

        return vector_table.freeze_array(unit)

    @cached_property
    def is_zero(self) -> NDArray[np.bool_]:
        """Whether each vector is all zeros: its token has no co-occurrences, and searches never return it."""
        return np.logical_not(self.vectors.any(axis=1))

    @cached_property
    def certainty(self) -> Floats:
        """How certain each vector is: sqrt(n / (n + spelling / 4)) for a word with n occurrences, 1 without `spelling`.

        `nearest` multiplies the cosine of a candidate by it, because a rare word whose vector is mostly a guess from
        its spelling is near every word that is spelled like it.
        """
        counts = self.vocabulary.counts
        if self._subwords is None or not counts.any():
            return np.ones(len(self), np.float32)
        return rate_certainty(counts, spelling_of(self.settings))

    @cached_property
    def zero_columns(self) -> NDArray[np.intp]:
        """The ids of the columns that are all zeros, because they have no counts."""
        return np.flatnonzero(~self._need_columns().values.any(axis=1))

    def vector(self, query: Query, *, minus: Query = ()) -> Floats:
        """Return the vector of word arithmetic, a sum of unit vectors, as a new array of shape (dim,).

        Parameters
        ----------
        query
            A token, an expression such as "king - man + woman", a vector, or a list of tokens and vectors to add;
            vectors are used without scaling.
        minus
            Tokens or vectors to subtract.
        """
        return np.array(self._resolve(query, minus)[0])

    def _resolve(self, query: Query, minus: Query = ()) -> tuple[Floats, list[int], list[int]]:
        """Return the vector of a query, the ids of the tokens that it adds, and of those that it subtracts."""
        added, subtracted = search.read_query(query, minus, self.vocabulary)
        plus, less = (self.find_rows(term for term in terms if isinstance(term, str)) for terms in (added, subtracted))
        if len(added) == len(plus) == 1 and not subtracted:
            return np.asarray(self.unit_vectors[plus[0]]), plus, less  # the usual case, quickly

        total = self._list_terms(added).sum(axis=0) - self._list_terms(subtracted).sum(axis=0)
        return np.asarray(total), plus, less

    def _list_terms(self, terms: Iterable[search.Term]) -> Floats:
        """Return the vectors of tokens and vectors, of shape (n_terms, dim)."""
        # Unit vectors: a frequent word with a long vector must not dominate a sum.
        vectors = [
            self.unit_vectors[self.find_row(term)] if isinstance(term, str) else search.check_vector(term, self.dim)
            for term in terms
        ]
        return np.array(vectors, np.float32).reshape(-1, self.dim)

    def nearest(
        self,
        query: Query,
        count: int = 10,
        *,
        minus: Query = (),
        among: str = "rows",
        guess: bool = False,
        restrict_vocab: int | None = None,
    ) -> list[Neighbor]:
        """Return the tokens nearest to a token, a sum of tokens or a vector, nearest first.

        Their `similarity` is the cosine times `certainty`, which is below 1 for rare words of the recipe `default`. If
        tokens are subtracted, it is the cosine alone.

        Parameters
        ----------
        query
            A token, an expression such as "king - man + woman", a vector, or a list of tokens and vectors to add.
            Tokens of the query are never returned.
        count
            Maximum number of results.
        minus
            Tokens or vectors to subtract.
        among : {"rows", "columns"}
            With "columns", `query` must be one row token; the results are the columns with the highest `score`,
            which is returned as their `similarity`.
        guess
            If the query is one token that is not in the vocabulary, use the vector guessed from its spelling.
        restrict_vocab
            Return only some of the first rows, which are those of the most frequent tokens: so many; None for all.

        Raises
        ------
        UnknownToken
            If a token is not in the vocabulary.
        ConfigError
            If the query is a vector of zeros, as that of a word without co-occurrences.

        Examples
        --------
        >>> words = Vocabulary(["king", "man", "woman", "queen"])
        >>> table = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]], np.float32)
        >>> Vectors(VectorTable(words, table)).nearest("king - man + woman", 1)[0].token
        'queen'
        """
        search.check_count(count)
        if guess and isinstance(query, str) and query not in self and " " not in query:
            query = self.guess(query).vector
        if among == "columns":
            return self._nearest_columns(query, minus, count)
        if among != "rows":
            raise ConfigError(f"among must be 'rows' or 'columns', got {among!r}", argument="among")

        try:
            total, plus, less = self._resolve(query, minus)
        except UnknownToken as error:
            if self.subwords is None or not isinstance(query, str) or " " in query:
                raise
            raise UnknownToken(f"{error} (pass guess=True for a guess from its spelling)") from None
        direction = scale_to_unit(total[None])[0]
        if not direction.any():
            if len(plus) == 1 and not less:
                raise ConfigError(NO_NEIGHBORS.format(self.vocabulary[plus[0]]))
            raise ConfigError("the query has no neighbors: its vector is zero")
        scores = self.unit_vectors @ direction
        if not less:
            scores *= self.certainty
        return self._name_best(scores, plus + less, count, restrict_vocab)

    def _name_best(self, scores: Floats, own: Sequence[int], count: int, restrict_vocab: int | None) -> list[Neighbor]:
        """Return the tokens with the highest scores among the first rows; `scores` is changed."""
        if restrict_vocab is not None:
            search.check_count(restrict_vocab, "restrict_vocab")
            scores[restrict_vocab:] = -np.inf
        best = self.rank_rows(scores, own, count)
        return self._name_rows(best, scores[best])

    def nearest_each(self, queries: Iterable[Query], count: int = 10) -> list[list[Neighbor]]:
        """Return the result of `nearest` for each of many queries, much faster than one call per query.

        Each query is one of `nearest`; an array of shape (n, dim) is n queries. The result of a vector of zeros is [].

        >>> words = Vocabulary(["king", "queen", "pear"])
        >>> vectors = Vectors(VectorTable(words, np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)))
        >>> [neighbors[0].token for neighbors in vectors.nearest_each(["king", "pear"])]
        ['queen', 'queen']
        """
        if isinstance(queries, str):
            raise ConfigError(f"queries must be a list of queries, got {queries!r}; see nearest", argument="queries")
        search.check_count(count)
        count = min(count, len(self))
        biases = np.where(self.is_zero, -np.inf, 0).astype(np.float32)
        answers: list[list[Neighbor]] = []
        remaining = iter(queries)

        while batch := [self._resolve(query) for query in islice(remaining, QUERIES_PER_BATCH)]:
            directions = scale_to_unit(np.stack([total for total, _, _ in batch]))
            excluded = [plus + less for _, plus, less in batch]
            factors = [None if less else self.certainty for _, _, less in batch]
            best = search.best_rows(
                self.unit_vectors, directions, count, biases=biases, excluded=excluded, factors=factors
            )

            for ids, scores, direction in zip(*best, directions, strict=True):
                answers.append(self._name_rows(ids, scores) if direction.any() else [])

        return answers

    def analogy(
        self, a: str, b: str, c: str, *, method: str = "3cosadd", count: int = 10, restrict_vocab: int | None = None
    ) -> list[Neighbor]:
        """Return the answers to "a is to b as c is to ?", best first; a, b and c are never returned.

        Method `3cosadd` ranks by the cosine with b - a + c. Method `3cosmul` ranks by cos(b) cos(c) / (cos(a) + 0.001)
        with each cosine mapped to [0, 1] (Levy and Goldberg, 2014). The `similarity` is that score.
        `restrict_vocab` is that of `nearest`.
        """
        if method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {method!r}", argument="method")
        if method == "3cosadd":
            return self.nearest([b, c], minus=[a], count=count, restrict_vocab=restrict_vocab)
        return self.most_similar_cosmul([b, c], [a], count, restrict_vocab)

    def similarity(self, a: Query, b: Query) -> float:
        """Return the cosine of two tokens, expressions, sums of tokens or vectors; 0 if one is all zeros."""
        first, second = scale_to_unit(np.stack([self.vector(a), self.vector(b)])).astype(np.float64)
        return float(np.clip(first @ second, -1, 1))

    def encode(
        self,
        texts: Iterable[str | Sequence[str] | None],
        *,
        smoothing: float = SMOOTHING,
        components: int = 1,
        guess: bool = True,
        normalize: bool = False,
        tokenizer: Callable[[str], Iterable[str]] | str | None = None,
        threads: int | None = None,
    ) -> Floats:
        """Return one vector per text, of shape (n_texts, dim); zeros for a text without words.

        The vector is the mean of the word vectors with the weights a / (a + p), where a is `smoothing` and p the share
        of the word among all tokens; then the first `components` that all texts have in common are removed. With
        `smoothing=inf, components=0` it is the plain mean. Unknown words are guessed from their spelling, if there are
        n-grams, or left out. `normalize` scales each vector to length 1. A text is a string, which is split as the
        text of the training was, or by `tokenizer` (a function, `module:function` or "icu"), or a list of tokens.
        """
        settings = smoothing, components, guess
        if settings not in self._encoders:
            self._encoders[settings] = TextEncoder(self, *settings)
        threads = RunOptions(threads=threads).thread_count
        encoded = self._encoders[settings].encode(texts, tokenizer=tokenizer, threads=threads)
        return scale_to_unit(encoded) if normalize else encoded

    def score(self, row: str, column: str) -> float:
        """Return the model's estimate of the PMI of a row and a column, w . c + shift.

        If a word has several columns, such as left and right context, `column` may be the label of one of them or the
        word itself. For the word, the result is the PMI with all its columns taken together.
        """
        columns = self._need_columns()
        row_id = self.find_row(row)

        if self.columns_per_row < 2 or column in columns.vocabulary or column not in self.vocabulary:
            column_id = columns.vocabulary.id(column)
            return float(self._score_columns(row_id, slice(column_id, column_id + 1))[0])

        first = self.vocabulary.id(column) * self.columns_per_row
        parts = slice(first, first + self.columns_per_row)

        # Each column p estimates the PMI log(x_ip |D| / (x_i* x_*p)). Summing x_ip and x_*p over p gives the log of the
        # mean of exp(PMI), weighted by the column sums x_*p. The highest is subtracted, so that exp does not overflow.
        weights = np.ones(self.columns_per_row)
        if columns.sums is not None and columns.sums[parts].any():
            weights = columns.sums[parts]
        scores = self._score_columns(row_id, parts).astype(np.float64)
        return float(scores.max() + np.log(np.average(np.exp(scores - scores.max()), weights=weights)))

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
        anchors = vector_table.choose_anchors(self.vocabulary, other.vocabulary, words)
        rotation = vector_table.find_rotation(*(each.unit_vectors[each.find_rows(anchors)] for each in (self, other)))
        rotated = (self.vectors @ rotation).astype(np.float32)
        # The axes of "parts" can be recovered from the vectors; sums of rows and columns cannot.
        settings = dict(self.settings)
        if settings.get("vectors", {}).get("combine") != "parts":
            settings.pop("vectors", None)
        subwords = self.subwords
        if subwords is not None:
            subwords = dataclasses.replace(subwords, table=np.asarray(subwords.table @ rotation, np.float32))
        return self.replace(vectors=rotated, subwords=subwords, settings=settings)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that `Vectors.load` can read; an existing folder is replaced only with `overwrite`."""
        # Before a folder is replaced: what cannot be written must not cost the old one.
        for table in filter(None, (self._rows, self._columns)):
            vector_table.check_text(table.vocabulary)
        refuse_run(Path(path))
        with create_folder(path, STAGE, overwrite=overwrite) as folder:
            write_vectors(folder, self)

    @classmethod
    def load(cls, path: str | Path) -> Vectors:
        """Open a folder of vectors; arrays are memory-mapped and verified before their first use."""
        loaded, checks, fingerprint = read_vectors(cls, path)
        loaded._checks = checks
        loaded.fingerprint = fingerprint
        loaded.path = loaded.source = Path(path)
        return loaded

    def rank_rows(self, scores: Floats, own: Sequence[int], count: int) -> NDArray[np.intp]:
        """Return the ids of the highest scores, without the rows `own` and those of zeros; `scores` is changed."""
        scores[self.is_zero] = -np.inf
        scores[own] = -np.inf
        return search.best_ids(scores, count)

    def _name_rows(self, ids: NDArray[np.intp], scores: Floats) -> list[Neighbor]:
        tokens = self.vocabulary.tokens
        pairs = zip(ids.tolist(), scores.tolist(), strict=True)
        return [Neighbor(tokens[row], score) for row, score in pairs if score > -np.inf]

    def _nearest_columns(self, query: Query, minus: Query, count: int) -> list[Neighbor]:
        columns = self._need_columns()
        added, subtracted = search.read_query(query, minus, self.vocabulary)
        if len(added) != 1 or subtracted or not isinstance(added[0], str):
            raise ConfigError("among='columns' needs one row token as query: a sum of tokens has no score")

        row_id = self.find_row(added[0])
        if not self.rows[row_id].any():
            raise ConfigError(NO_NEIGHBORS.format(self.vocabulary[row_id]))

        scores = self._score_columns(row_id, slice(None))
        scores[self.zero_columns] = -np.inf
        return [Neighbor(columns.vocabulary[i], float(scores[i])) for i in search.best_ids(scores, count).tolist()]

    def _score_columns(self, row_id: int, which: slice) -> Floats:
        with np.errstate(invalid="ignore", over="ignore"):
            scores = np.asarray(self._need_columns().values[which] @ self.rows[row_id] + np.float32(self.shift))
        search.check_scores(scores)
        return scores

    def _need_columns(self) -> VectorTable:
        columns = self.column_table
        if columns is None:
            raise ConfigError(
                "these vectors have no columns and therefore no scores: load a folder written by swivel train"
            )
        return columns
