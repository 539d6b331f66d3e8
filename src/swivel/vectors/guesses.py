"""Guesses for words that were never seen: their n-grams, corrected by the known words that are spelled most alike.

The n-grams of a regression say what words with the same stem or ending have in common. What they miss for `computable`
they probably miss for `uncomputable`, too. The guess is therefore g + sum_k s_k^3 r_k / (0.1 + sum_k s_k^3): g is the
guess of the n-grams, k are the known words whose n-grams are most similar, r_k is the vector of such a word minus the
guess of its n-grams, and s_k is the cosine of the two words' n-grams, weighted by inverse document frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.runtime.estimates import check_memory
from swivel.vectors.search import Floats
from swivel.vectors.subwords import Guess, Subwords, count_ngrams, find_sorted, hash_ngrams

if TYPE_CHECKING:
    import scipy.sparse

# Chosen on half of the words that were left out of a training on 16 MB of text (experiments/notes.md).
_NEIGHBORS = 4
_POWER = 3
_DOUBT = 0.1
_MAX_WORDS = 200  # N-grams of more words, such as "ing>", say little and would take most of the time.
_CHUNK_WORDS = 4_096
_BYTES_PER_NGRAM = 64  # of each word, while the index is made. Measured: 58 with 98,304 English words


class Guesser:
    """Guesses the vectors of words from their spelling, that of known words, and n-grams fitted to these."""

    def __init__(self, vectors: Floats, words: Sequence[str], subwords: Subwords | None) -> None:
        import scipy.sparse

        if subwords is None:
            raise ConfigError("these vectors have no n-grams to guess words from: train with subwords='ngrams'")
        check_memory("guessing words", _BYTES_PER_NGRAM * count_ngrams(words, subwords.min_n, subwords.max_n))
        self._vectors = vectors
        self._words = words
        self._subwords = subwords

        # Words without counts, and vectors that are not finite, say nothing about others.
        is_used: NDArray[np.bool_] = np.asarray(vectors.any(axis=1) & np.isfinite(vectors).all(axis=1))
        hashes, starts = hash_ngrams(words, subwords.min_n, subwords.max_n)
        owners = np.repeat(np.arange(len(words), dtype=np.int32), np.diff(starts))
        hashes, owners = hashes[is_used[owners]], owners[is_used[owners]]
        self._ngrams, places = np.unique(hashes, return_inverse=True)
        ones = np.ones(len(owners), np.float32)
        table = scipy.sparse.csr_array((ones, (places, owners)), (len(self._ngrams), len(words)))
        counts = np.diff(table.indptr)  # of words with an n-gram

        # Inverse document frequency log(N / n); an n-gram of too many words gets the weight 0 and is dropped below.
        self._highest = np.log(max(int(is_used.sum()), 2))
        weights = np.where(counts > _MAX_WORDS, 0.0, self._highest - np.log(np.maximum(counts, 1)))
        self._weights = np.asarray(np.maximum(weights, 0.0), np.float32)
        table.data *= np.repeat(self._weights, counts)
        # Columns of length 1: a product with another unit vector is a cosine.
        lengths = np.sqrt(np.bincount(table.indices, np.square(table.data), len(words)))
        table.data /= np.asarray(np.maximum(lengths, 1e-9), np.float32)[table.indices]
        table.eliminate_zeros()
        self._table = table  # (n-gram, word)

    def guess(self, words: Sequence[str]) -> Floats:
        """Return one vector per word, of shape (n_words, dim)."""
        if isinstance(words, str):
            raise ConfigError(f"words must be a list of words, got the text {words!r}")
        words = list(words)
        return self._correct(words, self._subwords.guess(words))

    def guess_word(self, word: str) -> Guess:
        """Return the vector of a word with its expected cosine."""
        by_ngrams = self._subwords.guess([word])
        expected = float(self._subwords.estimate_cosines(by_ngrams)[0])
        return Guess(word, self._correct([word], by_ngrams)[0], expected)

    def _correct(self, words: Sequence[str], guesses: Floats) -> Floats:
        """Return guesses of n-grams, corrected by what they miss for words that are spelled alike."""
        import scipy.sparse

        corrected = np.array(guesses)
        for start in range(0, len(words), _CHUNK_WORDS):
            piece = words[start : start + _CHUNK_WORDS]
            askers, neighbors, similarities = self._find_neighbors(piece)
            neighbor_ids, places = np.unique(neighbors, return_inverse=True)
            neighbor_words = [self._words[number] for number in neighbor_ids.tolist()]
            missed = self._vectors[neighbor_ids] - self._subwords.guess(neighbor_words)

            # The correction sum_k s_k^3 r_k / (0.1 + sum_k s_k^3), as a sparse matrix of shares times the residuals r.
            weights = similarities**_POWER
            sums = np.bincount(askers, weights, len(piece))
            shares = np.asarray(weights / (_DOUBT + sums[askers]), np.float32)
            shape = len(piece), len(neighbor_ids)
            correction = scipy.sparse.csr_array((shares, (askers, places)), shape) @ missed
            corrected[start : start + len(piece)] += np.asarray(correction, np.float32)
        return corrected

    def _find_neighbors(self, words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return pairs of a word and a known word that is spelled most like it, by number, and their similarities."""
        similar = self._compare(words)
        askers: list[int] = []
        neighbors: list[int] = []
        similarities: list[float] = []
        for number, word in enumerate(words):
            row = slice(similar.indptr[number], similar.indptr[number + 1])
            values, ids = similar.data[row], similar.indices[row]
            # One more than needed, because the word itself may be known.
            order = np.argsort(-values, kind="stable")[: _NEIGHBORS + 1].tolist()
            best = [place for place in order if self._words[ids[place]] != word][:_NEIGHBORS]
            askers += [number] * len(best)
            neighbors += ids[best].tolist()
            similarities += values[best].tolist()
        return np.array(askers, np.int64), np.array(neighbors, np.int64), np.array(similarities, np.float64)

    def _compare(self, words: Sequence[str]) -> scipy.sparse.csr_array:
        """Return the cosines of words (rows) with all known words that share an n-gram with them."""
        import scipy.sparse

        hashes, starts = hash_ngrams(words, self._subwords.min_n, self._subwords.max_n)
        places = find_sorted(self._ngrams, hashes)
        is_known = places >= 0
        weights = np.full(len(hashes), self._highest)  # of n-grams that no known word has
        weights[is_known] = self._weights[places[is_known]]

        owners = np.repeat(np.arange(len(words)), np.diff(starts))
        lengths = np.sqrt(np.bincount(owners, weights**2, len(words)))
        shares = np.asarray(weights / np.maximum(lengths, 1e-9)[owners], np.float32)[is_known]
        cells = scipy.sparse.csr_array((shares, (owners[is_known], places[is_known])), (len(words), len(self._ngrams)))
        return cells @ self._table
