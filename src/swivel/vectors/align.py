"""Orthogonal alignment of two models by the words that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.vectors.search import Floats

if TYPE_CHECKING:
    from swivel.vectors.vectors import Vectors

_CHUNK_ROWS = 16_384


def find_rotation(source: Floats, target: Floats) -> NDArray[np.float64]:
    """Return the orthogonal matrix R that minimizes the distance of `source @ R` from `target`, both (n, d).

    >>> quarter = np.array([[0, 1], [-1, 0]], np.float32)
    >>> words = np.array([[1, 0], [0, 2], [3, 4]], np.float32)
    >>> find_rotation(words, words @ quarter).round(6).tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    if source.shape != target.shape:
        raise ConfigError(f"source and target must have the same shape, got {source.shape} and {target.shape}")

    product = np.zeros((source.shape[1], source.shape[1]))
    for start in range(0, len(source), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        product += source[piece].astype(np.float64).T @ target[piece].astype(np.float64)

    u, _, v_transposed = np.linalg.svd(product)
    # Orthogonal Procrustes: R = U V' of the SVD U S V'. Longer rows weigh more. + 0.0 turns -0.0 into 0.0.
    return np.asarray(u @ v_transposed) + 0.0


def shared_words(a: Vocabulary, b: Vocabulary) -> list[str]:
    """Return the words of both vocabularies, ordered by the larger of their two ranks (most frequent first).

    >>> shared_words(Vocabulary(["the", "of", "king"]), Vocabulary(["of", "a", "king", "the"]))
    ['of', 'king', 'the']
    """
    both = [(max(number, b.ids[word]), number, word) for number, word in enumerate(a.tokens) if word in b]
    return [word for _, _, word in sorted(both)]


def fit_rotation(source: Vectors, target: Vectors, words: Sequence[str] | int | None) -> NDArray[np.float64]:
    """Return the rotation of one model to another, fitted to words, the N most frequent shared ones, or all shared."""
    if source.dim != target.dim:
        raise ConfigError(
            f"cannot align vectors of {source.dim} and {target.dim} dimensions: train both with the same dim"
        )
    if isinstance(words, (str, bool)) or (isinstance(words, int) and words < 1):
        raise ConfigError(f"words must be a list of words or a positive number of most frequent words, got {words!r}")

    if words is None or isinstance(words, int):
        words = shared_words(source.vocabulary, target.vocabulary)[:words]
    source_rows = source.unit_vectors[source.find_rows(words)]
    target_rows = target.unit_vectors[target.find_rows(words)]
    if len(words) < source.dim:
        raise ConfigError(
            f"{len(words):,} words do not determine a rotation in {source.dim} dimensions: use more words"
        )
    return find_rotation(source_rows, target_rows)
