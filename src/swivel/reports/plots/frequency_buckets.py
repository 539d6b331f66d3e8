"""Curves of accuracy against frequency, from the answers of several methods to the same questions.

`evaluation.by_frequency` defines the buckets and `plots.frequency` draws the curves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from swivel.evaluation import AnalogyResult
from swivel.evaluation.by_frequency import Bucket, Counts, bucket_by_frequency, compare_buckets
from swivel.reports.plots.frequency import Curve, Point


def join_analogies(results: Sequence[AnalogyResult]) -> AnalogyResult:
    """Return the results of several analogy sets as one result, as the paper does with Google's and MSR's."""
    return dataclasses.replace(
        results[0],
        name=" + ".join(result.name for result in results),
        is_right=np.concatenate([result.is_right for result in results]),
        is_known=np.concatenate([result.is_known for result in results]),
        questions=tuple(question for result in results for question in result.questions),
    )


def make_curves(methods: Mapping[str, Sequence[AnalogyResult]], counts: Counts) -> tuple[tuple[Curve, ...], ...]:
    """Return one curve of accuracy per method, and the differences of the first method from each other one.

    All methods must have answered the same questions. Both tuples are empty if there are too few questions.
    """
    joined = {name: join_analogies(results) for name, results in methods.items() if results}
    curves = [_curve(name, bucket_by_frequency(result, counts)) for name, result in joined.items()]
    if not curves or not curves[0].points:
        return (), ()

    (_, first), *others = joined.items()
    differences = [_curve(name, compare_buckets(first, result, counts)) for name, result in others]
    return tuple(curves), tuple(differences)


def _curve(name: str, buckets: Iterable[Bucket]) -> Curve:
    return Curve(name, tuple(_point(bucket) for bucket in buckets))


def _point(bucket: Bucket) -> Point:
    low, high = bucket.interval or (bucket.figure, bucket.figure)
    return Point(bucket.mean_log10, bucket.figure, low, high, bucket.questions)
