"""Conversion to and from gensim's `KeyedVectors`, and the file that `KeyedVectors.load` reads.

That file is a pickle, which gensim writes and Swivel never reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from swivel.errors import StorageError, needs_extra
from swivel.runtime.resources import check_memory
from swivel.storage.files import create_file
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import check_vectors, make_vectors
from swivel.vectors.search import LABEL_BYTES

if TYPE_CHECKING:
    from gensim.models import KeyedVectors

PICKLE = "a pickle, which is never loaded; in gensim, call save_word2vec_format('NAME.bin', binary=True)"


def write_gensim(vectors: Vectors, path: Path) -> None:
    """Write one file for `gensim.models.KeyedVectors.load`."""
    keyed = to_gensim(vectors)
    keyed.lifecycle_events = None  # gensim would store the time and the machine, and equal vectors give other bytes
    with create_file(path) as file:
        keyed.save(file)


def to_gensim(vectors: Vectors) -> KeyedVectors:
    """Return the vectors as gensim `KeyedVectors`, with counts if they are known.

    >>> from swivel.vectors import VectorTable
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> words = Vocabulary(["king", "queen", "pear"])
    >>> vectors = Vectors(VectorTable(words, np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)))
    >>> to_gensim(vectors).most_similar("king", topn=1)[0][0]
    'queen'
    """
    with needs_extra("KeyedVectors", "gensim", "gensim"):
        from gensim.models import KeyedVectors

    check_vectors(vectors)
    check_memory("converting to KeyedVectors", 2 * vectors.vectors.nbytes + LABEL_BYTES * len(vectors))

    keyed = KeyedVectors(vectors.dim)
    keyed.add_vectors(list(vectors.vocabulary), vectors.vectors)  # makes copies
    if vectors.vocabulary.counts.any():
        keyed.expandos["count"] = np.array(vectors.vocabulary.counts)  # `add_vectors` with extras fails in gensim 4.4

    return keyed


def from_gensim(keyed: KeyedVectors) -> Vectors:
    """Return `Vectors` from gensim `KeyedVectors`; its keys must be strings."""
    for key in keyed.index_to_key:
        if not isinstance(key, str):
            raise StorageError(f"KeyedVectors: the key {key!r} is not a string")

    counts = keyed.expandos.get("count")
    if counts is not None:
        counts = np.asarray(counts, np.int64)
    return make_vectors(Path("KeyedVectors"), keyed.index_to_key, np.array(keyed.vectors, np.float32), counts)
