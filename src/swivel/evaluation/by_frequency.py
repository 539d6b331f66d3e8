"""Accuracy of analogies by the frequency of their words.

The frequency of a question is the mean count of its four words. Buckets depend on the questions and counts only, not on
the answers, so that the buckets of two models contain the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import EvaluationError
from swivel.evaluation.analogies import AnalogyResult
from swivel.evaluation.bootstrap import (
    DRAWS,
    SEED,
    Doubles,
    Interval,
    draw_share_differences,
    percentile_interval,
    share_interval,
)
from swivel.evaluation.datasets import FourWords

AT_LEAST = 100
_STEPS = 8  # buckets per factor of ten, before buckets with too few questions are merged

Counts = Mapping[str, float] | Vocabulary


@dataclass(frozen=True, slots=True)
class Bucket:
    """Questions whose log10 mean frequency is at least `low` and below `high`.

    Attributes
    ----------
    mean_log10
        Mean of the log10 frequencies of its questions.
    figure
        Their accuracy, or the difference of two accuracies. Questions with an unknown word count as wrong.
    interval
        The 95 % interval of `figure`.
    """

    low: float
    high: float
    mean_log10: float
    questions: int
    figure: float
    interval: Interval | None


def bucket_by_frequency(result: AnalogyResult, counts: Counts, *, at_least: int = AT_LEAST) -> tuple[Bucket, ...]:
    """Return the accuracy by frequency, rare to frequent, in buckets of `at_least` questions or more.

    Questions with a word that has no count are left out. If fewer than `at_least` remain, there is no bucket.

    >>> from swivel.evaluation import AnalogySet, Questions, summarise_answers
    >>> questions = AnalogySet("q", (Questions("s", (("a", "b", "c", "d"), ("e", "f", "g", "h"))),))
    >>> result = summarise_answers(questions, np.array([True, False]), np.array([True, True]))
    >>> counts = dict.fromkeys("abcd", 1000) | dict.fromkeys("efgh", 10)
    >>> [(bucket.mean_log10, bucket.figure) for bucket in bucket_by_frequency(result, counts, at_least=1)]
    [(1.0, 0.0), (3.0, 1.0)]
    """
    buckets = []
    for members in _group_questions(result.questions, counts, at_least):
        is_right = result.is_right[members.indices]
        interval = share_interval(int(is_right.sum()), len(is_right))
        buckets.append(members.to_bucket(float(is_right.mean()), interval))

    return tuple(buckets)


def compare_buckets(
    first: AnalogyResult, second: AnalogyResult, counts: Counts, *, at_least: int = AT_LEAST, draws: int = DRAWS
) -> tuple[Bucket, ...]:
    """Return, in the same buckets, the accuracy of `first` minus that of `second`, with paired 95 % intervals."""
    if first.questions != second.questions:
        raise EvaluationError(f"{first.name} and {second.name} do not have the same questions in the same order")

    buckets = []
    for members in _group_questions(first.questions, counts, at_least):
        one = first.is_right[members.indices]
        other = second.is_right[members.indices]
        differences = draw_share_differences(one, other, draws=draws, seed=SEED)
        buckets.append(members.to_bucket(float(one.mean() - other.mean()), percentile_interval(differences)))

    return tuple(buckets)


@dataclass(frozen=True, slots=True)
class _Members:
    """The questions of a bucket, as indices, and its bounds."""

    indices: NDArray[np.intp]
    low: float
    high: float
    mean_log10: float

    def to_bucket(self, figure: float, interval: Interval | None) -> Bucket:
        return Bucket(self.low, self.high, self.mean_log10, len(self.indices), figure, interval)


def _group_questions(questions: tuple[FourWords, ...], counts: Counts, at_least: int) -> list[_Members]:
    """Merge steps of the scale from rare to frequent until each bucket is large enough; the rest joins the last one."""
    logs = _log_frequencies(questions, counts)
    steps = np.floor(logs * _STEPS)

    # A step starts a new bucket once the current one has enough questions.
    edges: list[float] = []
    for step in np.unique(steps[~np.isnan(steps)]):
        if not edges or (steps[steps < step] >= edges[-1]).sum() >= at_least:
            edges.append(float(step))

    # A last bucket that is too small joins the one before.
    if edges and (steps >= edges[-1]).sum() < at_least:
        edges.pop()

    return [_members(logs, steps, low, high) for low, high in pairwise([*edges, np.inf])]


def _members(logs: Doubles, steps: Doubles, low: float, high: float) -> _Members:
    indices = np.flatnonzero((steps >= low) & (steps < high))
    highest = float(steps[indices].max()) + 1 if high == np.inf else high
    return _Members(indices, low / _STEPS, highest / _STEPS, float(logs[indices].mean()))


def _log_frequencies(questions: tuple[FourWords, ...], counts: Counts) -> Doubles:
    """Return the log10 of the mean count of each question's words; NaN if a word has no count."""
    if isinstance(counts, Vocabulary):
        counts = dict(zip(counts, counts.counts.tolist(), strict=True))
    rows = [[counts.get(word, 0) for word in words] for words in questions]
    table = np.array(rows, np.float64).reshape(-1, 4)

    logs = np.full(len(table), np.nan)
    has_counts = (table > 0).all(axis=1)
    logs[has_counts] = np.log10(table[has_counts].mean(axis=1))
    return logs
