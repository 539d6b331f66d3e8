"""Models with n-grams in fastText's binary format, which fastText and gensim's `load_facebook_vectors` read.

fastText's vector of an unknown word is the mean of the buckets of its n-grams; that of a known word is the mean of
these and of a vector of its own. Swivel's guess for a word with n n-grams is m + S / sqrt(n), where m is the mean of
all words and S the sum of the z of its n-grams. Buckets of c z + m, and of m where no n-gram is known, give
m + c S / n: the same for words with c^2 n-grams. For others the parts of m and S differ, and n-grams may share a
bucket, so the direction of a guess is nearly the same, and its length is not (`benchmarks/guessing.py`). The own
vectors of known words make up for their n-grams, so that these keep their vectors up to rounding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swivel.errors import ConfigError
from swivel.storage import create_file
from swivel.vectors import Subwords, Vectors
from swivel.vectors.formats.validate import refuse_labels
from swivel.vectors.search import Floats
from swivel.vectors.subwords import find_sorted, hash_ngrams, sum_rows

MAGIC = struct.pack("<i", 793_712_314)
NOT_READ = "a fastText model; use the .vec file that fastText writes next to it"
BUCKETS = 2_000_000  # fastText's default; fewer would mix the n-grams, because most of those of a new word are unknown
_VERSION = 12
_WHITE = " \t\n\r\v\f\0"
_CHUNK_ROWS = 8_192


def write_fasttext(vectors: Vectors, path: Path) -> None:
    """Write words and n-grams as a fastText model; raise ConfigError if there are no n-grams."""
    if vectors.subwords is None:
        raise ConfigError("these vectors have no n-grams to write: train with subwords='ngrams', or use fasttext")
    refuse_labels(vectors.vocabulary, _WHITE, "fasttext-bin")
    buckets = _Buckets(vectors.subwords, vectors)

    with create_file(path) as file:
        file.write(MAGIC + struct.pack("<i", _VERSION) + _make_header(vectors, vectors.subwords))
        counts = np.maximum(vectors.vocabulary.counts, 1)  # gensim leaves out words without occurrences
        file.write(struct.pack("<3i2q", len(vectors), len(vectors), 0, counts.sum(), -1))
        for word, count in zip(vectors.vocabulary, counts.tolist(), strict=True):
            file.write(word.encode() + b"\0" + struct.pack("<qb", count, 0))

        file.write(struct.pack("<?2q", False, len(vectors) + BUCKETS, vectors.dim))
        for rows in buckets.own_vectors(vectors):
            file.write(rows.astype("<f4").data)
        for rows in buckets.rows():
            file.write(rows.astype("<f4").data)
        file.write(struct.pack("<?2q", False, 0, vectors.dim))  # no output vectors, which only training needs


def _make_header(vectors: Vectors, subwords: Subwords) -> bytes:
    # The settings of a training have no effect on its vectors: window, epochs, min_count, negatives, word n-grams, loss
    # (negative sampling), model (skip-gram); and at the end the update rate of the learning rate, and the sampling.
    training = 1, 1, 1, 5, 1, 2, 2
    return struct.pack("<12id", vectors.dim, *training, BUCKETS, subwords.min_n, subwords.max_n, 100, 1e-4)


class _Buckets:
    """The buckets of n-grams: the mean of all words, plus the sum of the n-grams in a bucket."""

    def __init__(self, subwords: Subwords, vectors: Vectors) -> None:
        self._subwords = subwords
        _, starts = hash_ngrams(vectors.vocabulary.tokens, subwords.min_n, subwords.max_n)
        scale = np.sqrt(np.median(np.maximum(np.diff(starts), 1)))

        self._numbers, places = np.unique(subwords.ngrams % np.uint32(BUCKETS), return_inverse=True)
        self._sums = np.zeros((len(self._numbers), vectors.dim), np.float32)
        np.add.at(self._sums, places, np.float32(scale) * subwords.table[:-1])

    def rows(self) -> Iterator[Floats]:
        """Yield the vectors of all buckets, a part at a time."""
        for start in range(0, BUCKETS, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, BUCKETS)
            first, last = np.searchsorted(self._numbers, (start, stop))
            rows = np.tile(self._subwords.table[-1], (stop - start, 1))
            rows[self._numbers[first:last] - start] += self._sums[first:last]
            yield rows

    def own_vectors(self, vectors: Vectors) -> Iterator[Floats]:
        """Yield the vectors of words that have the right mean with their n-grams, a part at a time."""
        subwords = self._subwords
        for start in range(0, len(vectors), _CHUNK_ROWS):
            words = vectors.vocabulary.tokens[start : start + _CHUNK_ROWS]
            hashes, starts = hash_ngrams(words, subwords.min_n, subwords.max_n)
            sums = sum_rows(self._sums, find_sorted(self._numbers, hashes % np.uint32(BUCKETS)), starts)
            numbers = np.diff(starts).astype(np.float32)[:, None]
            yield (numbers + 1) * vectors.vectors[start : start + _CHUNK_ROWS] - numbers * subwords.table[-1] - sums
