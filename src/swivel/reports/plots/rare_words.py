"""Nearest neighbours of very rare words, method by method: a table.

Receives vectors by method, hands on a `RareWords`. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.vectors import Vectors

PAPER_WORDS = ("bootblack", "chigger", "decretal", "tuxedoes")  # Table 3 of the paper
RAREST = 0.2  # the share of the vocabulary, from its end, that words are picked from
SHORTEST = 5  # letters: shorter rare words are abbreviations and names of things


@dataclass(frozen=True, slots=True)
class RareWords:
    """For each word its count in the text, and for each method the nearest tokens (none: the word is unknown)."""

    words: tuple[str, ...]
    counts: tuple[int, ...]
    neighbours: Mapping[str, tuple[tuple[str, ...], ...]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "words": list(self.words),
            "counts": list(self.counts),
            "neighbours": {name: [list(found) for found in rows] for name, rows in self.neighbours.items()},
        }


def choose_rare_words(vocabulary: Vocabulary, *, count: int = 4) -> tuple[str, ...]:
    """Return the paper's rare words that the vocabulary has, and `count` of its rarest fifth, evenly spaced.

    Only words of letters without capitals are picked, so that something can be said of their neighbours.

    >>> choose_rare_words(Vocabulary(["the", "of", "chigger", "aardvark"]), count=1)
    ('chigger', 'aardvark')
    """
    known = tuple(word for word in PAPER_WORDS if word in vocabulary)
    rare = vocabulary.tokens[int(len(vocabulary) * (1 - RAREST)) :]
    likely = [word for word in rare if word not in known and word.isalpha() and word == word.lower()]
    likely = [word for word in likely if len(word) >= SHORTEST] or likely
    places = np.linspace(0, max(len(likely) - 1, 0), count).round().astype(int) if likely else np.empty(0, int)
    return known + tuple(likely[place] for place in np.unique(places))


def find_rare_neighbours(
    methods: Mapping[str, Vectors], words: Sequence[str], counts: Vocabulary, *, count: int = 6
) -> RareWords:
    """Return the nearest neighbours of words in the vectors of each method.

    Parameters
    ----------
    counts
        The vocabulary of the text, whose counts are shown beside the words.
    count
        How many neighbours of each.
    """
    neighbours = {
        name: tuple(
            tuple(found.token for found in vectors.nearest(word, count=count)) if word in vectors else ()
            for word in words
        )
        for name, vectors in methods.items()
    }
    return RareWords(tuple(words), tuple(int(counts.counts[counts.id(word)]) for word in words), neighbours)
