"""Accuracy of analogies by the frequency of their words.

The frequency of a question is the mean count of its four words. Buckets depend on the questions and counts only, not on
the answers, so that the buckets of two models contain the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import EvaluationError
from swivel.evaluation.bootstrap import Doubles, draw_share_differences, percentile_interval, share_interval
from swivel.evaluation.datasets import FourWords
from swivel.evaluation.results import SetResult

AT_LEAST = 100
_STEPS = 8  # buckets per factor of ten, before buckets with too few questions are merged

Counts = Mapping[str, float] | Vocabulary


class Point(NamedTuple):
    """A bucket of questions as a point of a curve; questions with an unknown word count as wrong."""

    x: float  # mean of the log10 frequencies of its questions
    y: float  # their accuracy, or the difference of two accuracies
    low: float  # 95 % interval of y
    high: float
    questions: int

    @property
    def verdict(self) -> int:
        """Sign of a significant difference: 1 if the whole interval is above 0, -1 if it is below, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def bucket_by_frequency(result: SetResult, counts: Counts, *, at_least: int = AT_LEAST) -> tuple[Point, ...]:
    """Return the accuracy by frequency, rare to frequent, in buckets of `at_least` questions or more.

    Questions with a word that has no count are left out. If fewer than `at_least` remain, there is no bucket.

    >>> from swivel.evaluation import AnalogySet, summarize_answers
    >>> questions = AnalogySet("q", (("a", "b", "c", "d"), ("e", "f", "g", "h")), ("s", "s"))
    >>> result = summarize_answers(questions, np.array([True, False]), np.array([True, True]))
    >>> counts = dict.fromkeys("abcd", 1000) | dict.fromkeys("efgh", 10)
    >>> [(point.x, point.y) for point in bucket_by_frequency(result, counts, at_least=1)]
    [(1.0, 0.0), (3.0, 1.0)]
    """
    return _make_points(result, None, counts, at_least)


def compare_buckets(first: SetResult, second: SetResult, counts: Counts) -> tuple[Point, ...]:
    """Return, in the same buckets, the accuracy of `first` minus that of `second`, with paired 95 % intervals."""
    if first.items != second.items:
        raise EvaluationError(f"{first.name} and {second.name} do not have the same questions in the same order")
    return _make_points(first, second, counts, AT_LEAST)


def _make_points(first: SetResult, second: SetResult | None, counts: Counts, at_least: int) -> tuple[Point, ...]:
    """Merge steps of the scale from rare to frequent until each bucket is large enough; the rest joins the last one."""
    logs = _log_frequencies(first.items, counts)
    steps = np.floor(logs * _STEPS)
    different = np.unique(steps[~np.isnan(steps)]).tolist()

    # A step starts a new bucket once the current one has enough questions.
    edges: list[float] = []
    for step in different:
        if not edges or ((steps >= edges[-1]) & (steps < step)).sum() >= at_least:
            edges.append(step)

    # A last bucket that is too small joins the one before.
    if edges and (steps >= edges[-1]).sum() < at_least:
        edges.pop()
    if edges:
        edges.append(different[-1] + 1)

    points = []
    for start, stop in pairwise(edges):
        is_member = (steps >= start) & (steps < stop)
        is_right = first.is_right[is_member]
        figure = float(is_right.mean())
        interval = share_interval(int(is_right.sum()), len(is_right))
        if second is not None:
            others = second.is_right[is_member]
            figure -= float(others.mean())
            interval = percentile_interval(draw_share_differences(is_right, others))

        low, high = interval or (figure, figure)
        points.append(Point(float(logs[is_member].mean()), figure, low, high, len(is_right)))
    return tuple(points)


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
