"""Table of the nearest neighbors of very rare words in the vectors of several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    neighbours: Mapping[str, tuple[tuple[str, ...], ...]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dictionaries, for JSON."""
        return {
            "words": list(self.words),
            "counts": list(self.counts),
            "neighbours": {name: [list(tokens) for tokens in rows] for name, rows in self.neighbours.items()},
        }


def choose_rare_words(vocabulary: Vocabulary, *, count: int = 4) -> tuple[str, ...]:
    """Return the paper's rare words that are in the vocabulary, and `count` words of its rarest fifth, evenly spaced.

    Only lower-case words of letters are chosen, so that a reader can judge their neighbors.

    >>> choose_rare_words(Vocabulary(["the", "of", "chigger", "aardvark"]), count=1)
    ('chigger', 'aardvark')
    """
    known = tuple(word for word in PAPER_WORDS if word in vocabulary)

    rare = vocabulary.tokens[int(len(vocabulary) * (1 - RAREST)) :]
    candidates = [word for word in rare if word not in known and word.isalpha() and word == word.lower()]
    candidates = [word for word in candidates if len(word) >= MIN_LETTERS] or candidates
    if not candidates:
        return known

    positions = np.linspace(0, len(candidates) - 1, count).round().astype(int)
    return known + tuple(candidates[position] for position in np.unique(positions))


def find_rare_neighbours(
    methods: Mapping[str, Vectors], words: Sequence[str], counts: Vocabulary, *, count: int = 6
) -> RareWords:
    """Return the nearest neighbors of words in the vectors of each method.

    Parameters
    ----------
    methods : mapping of str to Vectors
        The vectors by the name of their method.
    words : sequence of str
        Words of `counts`.
    counts : Vocabulary
        The vocabulary of the text, with the counts shown beside the words.
    count : int
        Number of neighbors per word.

    Returns
    -------
    RareWords
    """
    neighbours = {}
    for name, vectors in methods.items():
        rows = [vectors.nearest(word, count=count) if word in vectors else [] for word in words]
        neighbours[name] = tuple(tuple(neighbour.token for neighbour in row) for row in rows)

    word_counts = tuple(int(counts.counts[counts.id(word)]) for word in words)
    return RareWords(tuple(words), word_counts, neighbours)
