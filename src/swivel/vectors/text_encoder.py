"""Vectors of whole texts: a weighted mean of word vectors, without what all texts have in common.

A word with the share p of all tokens has the weight a / (a + p), the smooth inverse frequency of Arora, Liang and Ma
(2017). They remove the first singular vector of a set of texts from every text. Here it is that of random texts, whose
words are drawn by their frequency: it is known before any text, and a text has the same vector in every batch, up to
rounding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig, recorded_config
from swivel.corpus.normalization import normalize
from swivel.corpus.sources import refuse_table
from swivel.errors import ConfigError
from swivel.runtime.parallel import map_in_order
from swivel.runtime.resources import check_memory
from swivel.vectors.combine import SVD_ROWS
from swivel.vectors.search import LABEL_BYTES, Floats
from swivel.vectors.subwords import sum_rows

if TYPE_CHECKING:
    from swivel.corpus.text_numbers import NumberedTexts
    from swivel.vectors.vectors import Vectors

SMOOTHING = 1e-3
TEXTS_PER_BATCH = 8_192
_SAMPLE_TEXTS = 20  # of a batch, to see whether it has spaces
_TEXT_WORDS = 10  # of the random texts whose common component is removed
_CHUNK_ROWS = 8_192
LABELS_OF_MODEL = 3  # times the memory of a label, for the tokenizer of a model: two dictionaries and their JSON
_QUICK_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


class TextEncoder:
    """Computes vectors of texts from the vectors of their words; the arguments are those of `Vectors.encode`."""

    def __init__(self, vectors: Vectors, smoothing: float, components: int, guess: bool) -> None:
        from swivel.corpus.text_numbers import TextNumbering  # imports numba

        self._vectors = vectors
        self._subwords = vectors.subwords if guess else None
        config = find_tokenizer(vectors)
        self._tokenizer = config.tokenizer
        self._numbering = TextNumbering(vectors.vocabulary.tokens, config)
        self.weights = weigh_words(vectors.vocabulary.counts, smoothing)
        self.common = find_common_components(vectors, self.weights, components)

    def encode(
        self,
        texts: Iterable[str | Sequence[str] | None],
        *,
        tokenizer: Callable[[str], Iterable[str]] | str | None = None,
        threads: int,
    ) -> Floats:
        """Return one vector per text, of shape (n_texts, dim); zeros for a text without known words."""
        if isinstance(texts, str):
            raise ConfigError(f"texts must be a list of strings, got the text {texts!r}: pass [text]")
        refuse_table(texts)
        from swivel.corpus.segmentation import split_texts

        remaining = iter(texts if tokenizer is None else split_texts(texts, tokenizer))
        batches = iter(lambda: list(islice(remaining, TEXTS_PER_BATCH)), [])
        if tokenizer is None:
            batches = map(self._check_batch, batches)
        numbered = map(self._numbering.number, batches)
        parts = list(map_in_order(self._encode_batch, numbered, threads=threads))
        return np.concatenate(parts) if parts else np.zeros((0, self._vectors.dim), np.float32)

    def _check_batch(self, batch: list[Any]) -> list[Any]:
        """Return a batch; raise ConfigError if the texts need another tokenizer, or if that was a function."""
        from swivel.corpus.segmentation import is_function_name, refuse_unspaced

        texts = [text for text in batch[:_SAMPLE_TEXTS] if isinstance(text, str)]
        hint = "pass lists of tokens, or tokenizer"
        if texts and is_function_name(self._tokenizer):
            raise ConfigError(
                f"the text of the training was split by {self._tokenizer!r}: {hint}", argument="tokenizer"
            )
        if self._tokenizer == "words":
            refuse_unspaced("\n".join(texts), f"{hint}, such as 'icu'")
        return batch

    def _encode_batch(self, texts: NumberedTexts) -> Floats:
        vectors = self._vectors.vectors
        starts = np.concatenate([[0], texts.ends])
        is_known = texts.numbers < len(vectors)
        totals = sum_rows(vectors, np.where(is_known, texts.numbers, -1), starts, self.weights)
        words = np.diff(starts)
        if self._subwords is None:
            words = np.diff(np.concatenate([[0], np.cumsum(is_known)])[starts])
        elif texts.unknown:
            # A word that was never seen has the weight 1; an uncertain guess is shorter.
            guesses = self._subwords.guess(texts.unknown)
            totals += sum_rows(guesses, np.where(is_known, -1, texts.numbers - len(vectors)), starts)
        means = totals / np.maximum(words, 1).astype(np.float32)[:, None]
        return np.asarray(means - (means @ self.common.T) @ self.common)


def bake_weights(vectors: Vectors) -> Floats:
    """Return word vectors whose plain mean is the vector of a text, and a row of zeros for unknown words."""
    check_memory("weighing word vectors", vectors.vectors.nbytes + LABELS_OF_MODEL * LABEL_BYTES * len(vectors))
    weights = weigh_words(vectors.vocabulary.counts, SMOOTHING)
    common = find_common_components(vectors, weights, 1)
    table = np.zeros((len(vectors) + 1, vectors.dim), np.float32)
    weighted = table[:-1]
    np.multiply(vectors.vectors, weights[:, None], out=weighted)
    # In chunks, because the products are as large as the vectors.
    shares = weighted @ common.T
    for start in range(0, len(weighted), _CHUNK_ROWS):
        weighted[start : start + _CHUNK_ROWS] -= shares[start : start + _CHUNK_ROWS] @ common
    return table


def weigh_words(counts: NDArray[np.int64], smoothing: float) -> Floats:
    """Return the weight a / (a + p) of each word, where p is its share of all tokens; ones without counts.

    >>> weigh_words(np.array([3, 1]), 0.25).tolist()
    [0.25, 0.5]
    """
    if not smoothing > 0:
        raise ConfigError(f"smoothing must be a positive number, got {smoothing!r}", argument="smoothing")
    total = counts.sum()
    if total == 0 or np.isinf(smoothing):
        return np.ones(len(counts), np.float32)
    return np.asarray(smoothing / (smoothing + counts / total), np.float32)


def find_common_components(vectors: Vectors, weights: Floats, components: int) -> Floats:
    """Return the first singular vectors of random texts, of shape (components, dim); none without counts."""
    if isinstance(components, bool) or not isinstance(components, (int, np.integer)) or components < 0:
        raise ConfigError(f"components must be an integer of 0 or more, got {components!r}", argument="components")
    counts = vectors.vocabulary.counts
    if not components or not counts.any():
        return np.zeros((0, vectors.dim), np.float32)

    # The mean of n words with the weighted vectors y, drawn with the probabilities p, has the second moment
    # E[yy'] / n + (1 - 1/n) E[y] E[y]'.
    moment = np.zeros((vectors.dim, vectors.dim))
    mean = np.zeros(vectors.dim)
    shares = counts / counts.sum()
    common = min(SVD_ROWS, len(counts))  # The others are too rare to matter.
    for start in range(0, common, _CHUNK_ROWS):
        piece = slice(start, min(start + _CHUNK_ROWS, common))
        chunk = vectors.vectors[piece].astype(np.float64) * weights[piece, None]
        moment += (chunk.T * shares[piece]) @ chunk
        mean += shares[piece] @ chunk

    moment = moment / _TEXT_WORDS + (1 - 1 / _TEXT_WORDS) * np.outer(mean, mean)
    _, axes = np.linalg.eigh(moment)  # ascending eigenvalues
    return np.ascontiguousarray(axes[:, ::-1][:, :components].T, np.float32)


def find_tokenizer(vectors: Vectors) -> CorpusConfig:
    """Return how the text of the training was split, or for vectors of other tools, how their labels look."""
    if "corpus" in vectors.settings:
        return recorded_config(CorpusConfig, vectors.settings["corpus"])

    # Capital letters in labels mean that the text was not lower-cased, punctuation that it was split at white space.
    labels = vectors.vocabulary.tokens
    is_lower = all(label == label.lower() for label in labels)
    is_normal = all(normalize(label, "NFC") == label for label in labels)
    return CorpusConfig(
        tokenizer="words" if are_words(labels) else "whitespace",
        lowercase=is_lower,
        normalization="NFC" if is_normal else "none",
    )


def are_words(labels: Sequence[str]) -> bool:
    """Return whether Swivel's tokenizer keeps each of some different labels as one word."""
    # A regular expression decides the common case ten times as fast.
    rest = [label for label in labels if not _QUICK_WORD.fullmatch(label)]
    if not rest:
        return True

    from swivel.corpus.text_numbers import TextNumbering  # imports numba

    texts = TextNumbering(rest, CorpusConfig(lowercase=False)).number(rest)
    ids = np.arange(len(rest))
    return np.array_equal(texts.numbers, ids) and np.array_equal(texts.ends, ids + 1)
