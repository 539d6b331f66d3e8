"""Halves of sets: one to tune on, one to report.

Receives a test set, hands on a half of it. Similarity and categories: odd lines (the first, the third...) are for
tuning, even ones for the report. Analogies: by pairs of words. Every pair, in either order, falls into one of the
halves by its checksum; a question belongs to the half that both of its pairs (a, b) and (c, d) are in, and to none
where they are parted. So no pair of a reported question occurs in any question of the tuning half.
"""

from __future__ import annotations

import zlib

from swivel.errors import ConfigError
from swivel.evaluation.config import HALVES
from swivel.evaluation.datasets import AnalogySet, CategorySet, FourWords, SimilaritySet, TestSet, group_questions


def split_set(test_set: TestSet, half: str) -> TestSet:
    """Return the half of a set named `tune` or `report`.

    >>> split_set(SimilaritySet("p", (("a", "b"), ("c", "d"), ("e", "f")), (1, 2, 3)), "tune").pairs
    (('a', 'b'), ('e', 'f'))
    """
    if half not in HALVES:
        raise ConfigError(f"half must be one of {', '.join(HALVES)}, got {half!r}")
    if isinstance(test_set, AnalogySet):
        return _split_analogies(test_set, half)
    lines = slice(HALVES.index(half), None, len(HALVES))
    if isinstance(test_set, CategorySet):
        return CategorySet(test_set.name, test_set.words[lines], test_set.categories[lines])
    return SimilaritySet(test_set.name, test_set.pairs[lines], test_set.scores[lines])


def half_of_question(words: FourWords) -> str | None:
    """Return the half that a question belongs to; None where its two pairs are in different ones."""
    a, b, c, d = words
    first, second = half_of_pair(a, b), half_of_pair(c, d)
    return first if first == second else None


def half_of_pair(first: str, second: str) -> str:
    """Return the half of a pair of words, the same in either order, on every machine.

    >>> half_of_pair("man", "king") == half_of_pair("king", "man")
    True
    """
    return HALVES[zlib.crc32(" ".join(sorted((first, second))).encode()) % 2]


def _split_analogies(questions: AnalogySet, half: str) -> AnalogySet:
    names = [section.section for section in questions.sections]
    kept = [(names[number], words) for number, words in questions.rows if half_of_question(words) == half]
    return group_questions(questions.name, kept)
