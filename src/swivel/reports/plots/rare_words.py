"""Table of the nearest neighbors of very rare words in the vectors of several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.vectors import Vectors

PAPER_WORDS = ("bootblack", "chigger", "decretal", "tuxedoes")  # Table 3 of the paper
RAREST = 0.2  # words are chosen from this share of the vocabulary, counted from its end
MIN_LETTERS = 5  # shorter rare words are mostly abbreviations and names


@dataclass(frozen=True, slots=True)
class RareWords:
    """Rare words with their counts in the text, and their nearest tokens by method (empty for an unknown word)."""

    words: tuple[str, ...]
    counts: tuple[int, ...]
    neighbors: Mapping[str, tuple[tuple[str, ...], ...]]


def choose_rare_words(vocabulary: Vocabulary, *, count: int = 4) -> tuple[str, ...]:
    """Return the paper's rare words that are in the vocabulary, and `count` words of its rarest fifth, evenly spaced.

    Only lower-case words of letters are chosen, so that a reader can judge their neighbors.

    >>> choose_rare_words(Vocabulary(["the", "of", "chigger", "aardvark"]), count=1)
    ('chigger', 'aardvark')
    """
    known = tuple(word for word in PAPER_WORDS if word in vocabulary)

    rare = vocabulary.tokens[int(len(vocabulary) * (1 - RAREST)) :]
    candidates = [word for word in rare if word not in known and is_plain_word(word)]
    candidates = [word for word in candidates if len(word) >= MIN_LETTERS] or candidates
    if not candidates:
        return known

    positions = np.linspace(0, len(candidates) - 1, count).round().astype(int)
    return known + tuple(candidates[position] for position in np.unique(positions))


def is_plain_word(word: str, min_letters: int = 1) -> bool:
    """Return whether a word has only lower-case letters, and at least `min_letters` of them."""
    return len(word) >= min_letters and word.isalpha() and word == word.lower()


def find_rare_neighbors(
    methods: Mapping[str, Vectors], words: Sequence[str], counts: Vocabulary, *, count: int = 6
) -> RareWords:
    """Return the `count` nearest neighbors of words in the vectors of each method.

    The words must be in `counts`, the vocabulary of the text, whose counts are shown beside them.
    """
    neighbors = {}
    for name, vectors in methods.items():
        known = [word for word in words if word in vectors]
        found = dict(zip(known, vectors.nearest_each(known, count=count), strict=True))
        neighbors[name] = tuple(tuple(neighbor.token for neighbor in found.get(word, ())) for word in words)

    word_counts = tuple(int(counts.counts[counts.id(word)]) for word in words)
    return RareWords(tuple(words), word_counts, neighbors)
