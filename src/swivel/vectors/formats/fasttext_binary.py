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
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.runtime.resources import check_memory
from swivel.storage.files import create_file
from swivel.vectors import Subwords, Vectors
from swivel.vectors.formats.validate import refuse_labels
from swivel.vectors.search import Floats
from swivel.vectors.subwords import estimate_memory, find_sorted, hash_ngrams, sum_rows

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
    check_memory("writing a fastText model", estimate_memory(vectors.vocabulary.tokens, vectors.dim)[0])
    numbers, sums = _sum_buckets(vectors.subwords, vectors.vocabulary.tokens)

    with create_file(path) as file:
        file.write(MAGIC + struct.pack("<i", _VERSION) + _make_header(vectors, vectors.subwords))
        counts = np.maximum(vectors.vocabulary.counts, 1)  # gensim leaves out words without occurrences
        file.write(struct.pack("<3i2q", len(vectors), len(vectors), 0, counts.sum(), -1))
        for word, count in zip(vectors.vocabulary, counts.tolist(), strict=True):
            file.write(word.encode() + b"\0" + struct.pack("<qb", count, 0))

        file.write(struct.pack("<?2q", False, len(vectors) + BUCKETS, vectors.dim))
        for rows in _make_own_vectors(vectors, vectors.subwords, numbers, sums):
            file.write(rows.astype("<f4").data)
        for rows in _make_buckets(vectors.subwords, numbers, sums):
            file.write(rows.astype("<f4").data)
        file.write(struct.pack("<?2q", False, 0, vectors.dim))  # no output vectors, which only training needs


def _make_header(vectors: Vectors, subwords: Subwords) -> bytes:
    # The settings of a training have no effect on its vectors: window, epochs, min_count, negatives, word n-grams, loss
    # (negative sampling), model (skip-gram); and at the end the update rate of the learning rate, and the sampling.
    training = 1, 1, 1, 5, 1, 2, 2
    return struct.pack("<12id", vectors.dim, *training, BUCKETS, subwords.min_n, subwords.max_n, 100, 1e-4)


def _sum_buckets(subwords: Subwords, words: Sequence[str]) -> tuple[NDArray[np.uint32], Floats]:
    """Return the numbers of the buckets that have n-grams, ascending, and the sum c z of the n-grams of each."""
    _, starts = hash_ngrams(words, subwords.min_n, subwords.max_n)
    scale = np.float32(np.sqrt(np.median(np.maximum(np.diff(starts), 1))))
    numbers, places = np.unique(subwords.ngrams % np.uint32(BUCKETS), return_inverse=True)
    sums = np.zeros((len(numbers), subwords.table.shape[1]), np.float32)
    np.add.at(sums, places, scale * subwords.table[:-1])
    return numbers, sums


def _make_own_vectors(
    vectors: Vectors, subwords: Subwords, numbers: NDArray[np.uint32], sums: Floats
) -> Iterator[Floats]:
    """Yield the vectors of words that have the right mean with their n-grams, a part at a time."""
    for start in range(0, len(vectors), _CHUNK_ROWS):
        words = vectors.vocabulary.tokens[start : start + _CHUNK_ROWS]
        hashes, starts = hash_ngrams(words, subwords.min_n, subwords.max_n)
        of_words = sum_rows(sums, find_sorted(numbers, hashes % np.uint32(BUCKETS)), starts)
        counts = np.diff(starts).astype(np.float32)[:, None]
        yield (counts + 1) * vectors.vectors[start : start + _CHUNK_ROWS] - counts * subwords.table[-1] - of_words


def _make_buckets(subwords: Subwords, numbers: NDArray[np.uint32], sums: Floats) -> Iterator[Floats]:
    """Yield the vectors of all buckets, a part at a time: the mean of all words, plus the sum of a bucket."""
    for start in range(0, BUCKETS, _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, BUCKETS)
        first, last = np.searchsorted(numbers, (start, stop))
        rows = np.tile(subwords.table[-1], (stop - start, 1))
        rows[numbers[first:last] - start] += sums[first:last]
        yield rows
