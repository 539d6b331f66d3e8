"""Splits of test sets into a half for tuning and a half for reporting.

Similarity and categories are split by line: odd lines are for tuning, even lines for the report. Analogies are split by
pairs of words: the checksum of a pair, in either order, assigns it to a half. A question belongs to a half if both its
pairs (a, b) and (c, d) do, and to none otherwise, so that no pair of a reported question occurs in the tuning half.
"""

from __future__ import annotations

import zlib

from swivel.errors import ConfigError
from swivel.evaluation.config import HALVES
from swivel.evaluation.datasets import AnalogySet, CategorySet, FourWords, SimilaritySet, TestSet, group_questions


def split_set(test_set: TestSet, half: str) -> TestSet:
    """Return the half of a set with the name `tune` or `report`.

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
    """Return the half of a question, or None if its two pairs are in different halves."""
    a, b, c, d = words
    first = half_of_pair(a, b)
    second = half_of_pair(c, d)
    return first if first == second else None


def half_of_pair(first: str, second: str) -> str:
    """Return the half of a pair of words; it depends neither on their order nor on the machine.

    >>> half_of_pair("man", "king") == half_of_pair("king", "man")
    True
    """
    return HALVES[zlib.crc32(" ".join(sorted((first, second))).encode()) % 2]


def _split_analogies(questions: AnalogySet, half: str) -> AnalogySet:
    names = [section.section for section in questions.sections]
    kept = [(names[number], words) for number, words in questions.rows if half_of_question(words) == half]
    return group_questions(questions.name, kept)
