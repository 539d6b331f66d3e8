"""Methods that `Vectors` has under the names of gensim's `KeyedVectors`, with the same arguments and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.vectors import search
from swivel.vectors.search import Floats, Query

if TYPE_CHECKING:
    from swivel.vectors.vectors import Neighbor


class GensimNames:
    """Base class of `Vectors`, whose methods these are; none has a state or a search of its own."""

    vocabulary: Vocabulary

    @property
    def index_to_key(self) -> Sequence[str]:
        """The tokens in the order of the rows."""
        return self.vocabulary.tokens

    @property
    def key_to_index(self) -> Mapping[str, int]:
        """The row of each token."""
        return self.vocabulary.ids

    @property
    def vector_size(self: Any) -> int:
        """Number of dimensions of a vector."""
        return int(self.dim)

    def get_vector(self: Any, key: str, norm: bool = False) -> Floats:
        """Return the vector of a token, scaled to length 1 with `norm`."""
        return np.asarray(self.vector([key]) if norm else self[key])

    def most_similar(
        self: Any,
        positive: Query | None = None,
        negative: Query | None = None,
        topn: int = 10,
        *,
        restrict_vocab: int | None = None,
    ) -> list[Neighbor]:
        """Return the result of `nearest`, called as in gensim: `most_similar(["king", "woman"], ["man"], topn=3)`."""
        positive, negative = (() if query is None else query for query in (positive, negative))
        return list(self.nearest(positive, topn, minus=negative, restrict_vocab=restrict_vocab))

    def most_similar_cosmul(
        self: Any,
        positive: Query | None = None,
        negative: Query | None = None,
        topn: int = 10,
        restrict_vocab: int | None = None,
    ) -> list[Neighbor]:
        """Return the tokens with the highest 3CosMul scores (`analogy`), of any number of tokens and vectors."""
        search.check_count(topn)
        added, subtracted = (search.as_terms(() if query is None else query) for query in (positive, negative))
        if not added:
            raise ConfigError("positive must have a token or a vector", argument="positive")

        sides = ([self.unit_vectors @ term for term in self._list_terms(terms)] for terms in (added, subtracted))
        own = self.find_rows(term for term in added + subtracted if isinstance(term, str))
        return list(self._name_best(search.score_products(*sides), own, topn, restrict_vocab))

    def similar_by_word(self: Any, word: str, topn: int = 10, restrict_vocab: int | None = None) -> list[Neighbor]:
        """Return the tokens nearest to a token."""
        return list(self.nearest([word], topn, restrict_vocab=restrict_vocab))

    def similar_by_vector(
        self: Any, vector: Floats, topn: int = 10, restrict_vocab: int | None = None
    ) -> list[Neighbor]:
        """Return the tokens nearest to a vector."""
        return list(self.nearest(vector, topn, restrict_vocab=restrict_vocab))

    def distance(self: Any, a: Query, b: Query) -> float:
        """Return the cosine distance, 1 - `similarity`."""
        return 1 - float(self.similarity(a, b))

    def doesnt_match(self: Any, words: Iterable[str]) -> str:
        """Return the word that is least similar to the sum of all words.

        >>> from swivel.vectors import Vectors, VectorTable
        >>> words = Vocabulary(["king", "queen", "pear"])
        >>> vectors = Vectors(VectorTable(words, np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)))
        >>> vectors.doesnt_match(["king", "pear", "queen"])
        'pear'
        """
        tokens = search.as_tokens(words)
        if tokens is None or len(tokens) < 2:
            raise ConfigError(f"words must be a list of two words or more, got {words!r}")

        unit = self.unit_vectors[self.find_rows(tokens)]
        return str(tokens[int(np.argmin(unit @ unit.sum(axis=0)))])

    def n_similarity(self: Any, words: Iterable[str], other_words: Iterable[str]) -> float:
        """Return the cosine of the sums of two lists of tokens, whose vectors are not scaled."""
        return float(self.similarity(*(np.atleast_2d(self[tokens]).sum(axis=0) for tokens in (words, other_words))))

    def rank(self: Any, key: str, other: str) -> int:
        """Return the place of a token among the neighbors of `key`, from 1."""
        scores = self.unit_vectors @ self.get_vector(key, norm=True) * self.certainty
        is_closer = (scores > scores[self.find_row(other)]) & ~self.is_zero
        is_closer[self.find_row(key)] = False
        return 1 + int(np.count_nonzero(is_closer))
