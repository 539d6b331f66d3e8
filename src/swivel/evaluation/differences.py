"""Differences between two reports on the same items.

Similarity is compared on the pairs that count in both reports; analogies on all questions or, with the rule `skip`, on
those known to both; categories on the words known to both. Both models are resampled together, item by item, so that
items that are difficult for both do not blur the difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from swivel.errors import EvaluationError
from swivel.evaluation.bootstrap import (
    DRAWS,
    SEED,
    Doubles,
    Interval,
    draw_correlations,
    draw_share_differences,
    percentile_interval,
    rank_correlation,
    two_sided_p,
)
from swivel.evaluation.results import (
    MIN_KNOWN,
    AnalogyResult,
    CategoryResult,
    Flags,
    Report,
    Result,
    Row,
    SimilarityResult,
    draw_figure,
    draw_interval,
)

DIFFERENCE_HEADER = ("set", "first", "second", "difference", "95 % interval", "p", "items")


@dataclass(frozen=True, slots=True)
class Difference:
    """Figures of two models on the same items, and the significance of first minus second; None if undefined."""

    name: str
    kind: str
    first: float | None
    second: float | None
    difference: float | None
    interval: Interval | None  # 95 % interval of the difference
    p_value: float | None  # of a two-sided paired bootstrap test
    items: int

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self) | {"interval": None if self.interval is None else list(self.interval)}


def compare_reports(a: Report, b: Report, *, seed: int = SEED, draws: int = DRAWS) -> tuple[Difference, ...]:
    """Compare the sets that two reports have in common, in the order of the first report.

    Raises
    ------
    EvaluationError
        If they have no set in common, or if a set has different items in the two reports.
    """
    others = {result.name: result for result in b.results}
    common = [(result, others[result.name]) for result in a.results if result.name in others]
    if not common:
        raise EvaluationError(
            f"the reports have no set in common: {', '.join(r.name for r in a.results)} and {', '.join(others)}"
        )

    # If one report counts unknown questions as wrong, both do: the items must be the same.
    counts_unknown = "wrong" in (a.rules.unknown, b.rules.unknown)
    return tuple(_compare(*pair, counts_unknown, draws, seed) for pair in common)


def _compare(first: Result, second: Result, counts_unknown: bool, draws: int, seed: int) -> Difference:
    if first.items == second.items:
        match first, second:
            case SimilarityResult() as one, SimilarityResult() as other if np.array_equal(one.scores, other.scores):
                return _compare_similarity(one, other, draws, seed)
            case AnalogyResult() as one, AnalogyResult() as other if counts_unknown and one.known and other.known:
                return _compare_shares(one, one.is_right, other.is_right, draws, seed)
            case (AnalogyResult() | CategoryResult()) as one, (AnalogyResult() | CategoryResult()) as other:
                both = one.is_known & other.is_known
                return _compare_shares(one, one.is_right[both], other.is_right[both], draws, seed)
    raise EvaluationError(f"{first.name}: the two reports have different items; evaluate both on the same set")


def _compare_similarity(first: SimilarityResult, second: SimilarityResult, draws: int, seed: int) -> Difference:
    # A pair that one model does not know says nothing about the difference.
    both = ~np.isnan(first.cosines) & ~np.isnan(second.cosines)
    columns = [first.cosines[both], second.cosines[both]]
    scores = first.scores[both]

    one, other = (rank_correlation(column, scores) for column in columns)
    differences = draw_correlations(columns, scores, draws=draws, seed=seed)
    return _conclude(first, one, other, differences[0] - differences[1], len(scores))


def _compare_shares(result: Result, first: Flags, second: Flags, draws: int, seed: int) -> Difference:
    if len(first) == 0:
        return _conclude(result, None, None, np.empty(0), 0)

    differences = draw_share_differences(first, second, draws=draws, seed=seed)
    return _conclude(result, float(first.mean()), float(second.mean()), differences, len(first))


def _conclude(
    result: Result, first: float | None, second: float | None, differences: Doubles, items: int
) -> Difference:
    """Return the comparison of two figures, given resampled differences."""
    difference = interval = p_value = None
    if first is not None and second is not None:
        difference = first - second
        interval = percentile_interval(differences)
    if interval is not None:
        p_value = two_sided_p(differences)
    return Difference(result.name, result.kind, first, second, difference, interval, p_value, items)


def tabulate_differences(differences: Iterable[Difference]) -> list[Row]:
    """Return one row of text per set, with the columns of `DIFFERENCE_HEADER`."""
    rows: list[Row] = []
    for each in differences:
        figures = (draw_figure(each.first), draw_figure(each.second))
        difference = "-" if each.difference is None else f"{each.difference:+.3f}"
        has_interval = each.items >= MIN_KNOWN and each.p_value is not None
        interval = draw_interval(each.interval if has_interval else None)
        p_value = f"{each.p_value:.4f}" if has_interval else "-"
        rows.append((each.name, *figures, difference, interval, p_value, f"{each.items:,}"))
    return rows
