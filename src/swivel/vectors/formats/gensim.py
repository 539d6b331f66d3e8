"""gensim's KeyedVectors, in memory: its own files are pickles, which are neither written nor read here.

Receives `Vectors`, hands on `KeyedVectors`, and the other way round. In files the two meet in word2vec's formats.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from swivel.errors import StorageError, missing_extra
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import check_vectors, make_vectors

if TYPE_CHECKING:
    from gensim.models import KeyedVectors


def to_gensim(vectors: Vectors) -> KeyedVectors:
    """Return vectors as gensim's `KeyedVectors`, with counts where they are known; its `save` writes gensim's own file.

    >>> from swivel.vectors import Side
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> words = Vocabulary(["king", "queen", "pear"])
    >>> vectors = Vectors(Side(words, np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)))
    >>> to_gensim(vectors).most_similar("king", topn=1)[0][0]
    'queen'
    """
    try:
        from gensim.models import KeyedVectors
    except ImportError as error:
        raise missing_extra("KeyedVectors", "gensim", "export") from error
    check_vectors(vectors)
    keyed = KeyedVectors(vectors.dim)
    keyed.add_vectors(list(vectors.vocabulary), np.array(vectors.vectors))
    if vectors.vocabulary.counts.any():
        keyed.expandos["count"] = np.array(vectors.vocabulary.counts)  # `add_vectors` with extras fails in gensim 4.4
    return keyed


def from_gensim(keyed: KeyedVectors) -> Vectors:
    """Return gensim's `KeyedVectors` as vectors; keys must be texts."""
    wrong = next((key for key in keyed.index_to_key if not isinstance(key, str)), None)
    if wrong is not None:
        raise StorageError(f"KeyedVectors: the key {wrong!r} is no text")
    counts = keyed.expandos.get("count")
    numbers = None if counts is None else np.asarray(counts, np.int64)
    return make_vectors(Path("KeyedVectors"), keyed.index_to_key, np.array(keyed.vectors, np.float32), numbers)
