"""Two models in one space: the rotation that brings the words they share closest together.

Receives arrays and vocabularies, hands on a rotation and lists of shared words. It changes no model, knows no file, and
loads nothing heavier than numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.vectors.search import Floats

_CHUNK_ROWS = 16_384


def find_rotation(source: Floats, target: Floats) -> NDArray[np.float64]:
    """Return the orthogonal matrix R that makes source @ R closest to target (orthogonal Procrustes).

    `source` and `target` are (n, d), row by row of the same words; each row counts by its length.

    >>> quarter = np.array([[0, 1], [-1, 0]], np.float32)
    >>> words = np.array([[1, 0], [0, 2], [3, 4]], np.float32)
    >>> find_rotation(words, words @ quarter).round(6).tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    if source.shape != target.shape:
        raise ConfigError(f"two lists of vectors must have the same shape, got {source.shape} and {target.shape}")
    product = np.zeros((source.shape[1], source.shape[1]))
    for start in range(0, len(source), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        product += source[piece].astype(np.float64).T @ target[piece].astype(np.float64)
    left, _, right = np.linalg.svd(product)
    # + 0.0: no -0 among the zeros
    return np.asarray(left @ right) + 0.0


def shared_words(a: Vocabulary, b: Vocabulary) -> list[str]:
    """Return the words of both, commonest first: by the worse of their two ranks.

    >>> shared_words(Vocabulary(["the", "of", "king"]), Vocabulary(["of", "a", "king", "the"]))
    ['of', 'king', 'the']
    """
    both = [(max(number, b.ids[word]), number, word) for number, word in enumerate(a.tokens) if word in b]
    return [word for _, _, word in sorted(both)]


def choose_anchors(a: Vocabulary, b: Vocabulary, words: Sequence[str] | int | None) -> list[str]:
    """Return the words that an alignment leans on: those given, or the N commonest of the shared ones, or all."""
    if isinstance(words, (str, bool)) or (isinstance(words, int) and words < 1):
        raise ConfigError(f"words must be a list of words, or how many of the commonest, got {words!r}")
    if words is None or isinstance(words, int):
        return shared_words(a, b)[:words]
    for word in words:
        a.id(word), b.id(word)  # UnknownToken for what one of them lacks
    return list(words)
