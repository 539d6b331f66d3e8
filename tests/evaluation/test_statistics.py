"""Confidence intervals and paired comparisons."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.stats import spearmanr

from swivel.errors import EvaluationError
from swivel.evaluation import (
    AnalogySet,
    EvaluationConfig,
    Report,
    SetResult,
    SimilaritySet,
    compare_reports,
    summarize_answers,
    summarize_pairs,
)
from swivel.evaluation.bootstrap import (
    Interval,
    _resample,
    draw_correlations,
    draw_share_differences,
    percentile_interval,
    share_interval,
    two_sided_p,
)
from swivel.evaluation.results import DIFFERENCE_HEADER, Difference, tabulate_differences


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 9), st.integers(0, 2)), min_size=2, max_size=30))
def test_resampled_correlations_are_spearmans_of_the_items_drawn(rows: list[tuple[int, int, int]]) -> None:
    first, second, target = np.array(rows, float).T
    drawn = draw_correlations([first, second], target, draws=20, seed=3)
    order = np.argsort(first, kind="stable")  # draw_correlations sorts the items by the first column
    counts = np.concatenate(list(_resample(len(rows), 20, 3))).astype(int)

    for number, times in enumerate(counts):
        items = np.repeat(order, times)
        for column, rhos in zip((first, second), drawn, strict=True):
            x, y = column[items], target[items]
            if len(set(x)) == 1 or len(set(y)) == 1:
                assert np.isnan(rhos[number])
            else:
                assert rhos[number] == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_resampling_draws_all_items_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.evaluation.bootstrap._MAX_CELLS", 64)
    chunks = list(_resample(10, 2_000, 5))
    counts = np.concatenate(chunks)
    assert (len(counts), {len(chunk) for chunk in chunks[:-1]}) == (2_000, {6})
    assert set(counts.sum(axis=1)) == {10}
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.1)
    np.testing.assert_allclose(counts.var(axis=0), 0.9, atol=0.1)  # binomial with n = 10 and p = 1 / 10


def test_the_interval_of_a_correlation_covers_the_truth_in_about_95_percent() -> None:
    rng = np.random.default_rng(6)
    truth = 6 / np.pi * np.arcsin(0.6 / 2)  # Spearman's rho of normal values with correlation 0.6
    hits = 0

    for _ in range(150):
        x, y = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 120).T
        interval = correlation_interval(x, y, draws=400)
        assert interval is not None
        hits += interval[0] <= truth <= interval[1]
    assert 0.87 < hits / 150 < 0.99


def correlation_interval(x: ArrayLike, y: ArrayLike, *, draws: int = 10_000) -> Interval | None:
    return percentile_interval(draw_correlations([x], y, draws=draws)[0])


def test_intervals_depend_only_on_the_seed_and_are_none_if_undefined() -> None:
    x = np.random.default_rng(1).standard_normal(30)

    assert correlation_interval(x, x**3 + 1, draws=50) == (1, 1)
    assert correlation_interval(x, np.sin(9 * x), draws=50) == correlation_interval(x, np.sin(9 * x), draws=50)
    assert correlation_interval(x, np.ones(30), draws=50) is None
    assert correlation_interval([1.0], [2.0]) is None
    assert correlation_interval([], []) is None
    assert correlation_interval(x, x, draws=0) is None
    assert share_interval(0, 0) is None
    assert share_interval(3, 9, draws=0) is None
    assert percentile_interval(np.array([np.nan, 2.0])) == (2.0, 2.0)


def test_an_interval_has_the_middle_95_percent() -> None:
    assert percentile_interval(np.linspace(0, 1, 1_001)) == pytest.approx((0.025, 0.975))


def test_the_interval_of_a_fraction_equals_that_of_resampled_items() -> None:
    is_right = np.arange(80) < 24
    drawn = np.concatenate(list(_resample(80, 10_000, 2))) @ is_right / 80
    expected = np.quantile(drawn, [0.025, 0.975])
    found = share_interval(24, 80)
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=0.0126)


def test_differences_of_fractions_equal_those_of_resampled_items() -> None:
    rng = np.random.default_rng(3)
    first = rng.random(90) < 0.6
    second = rng.random(90) < 0.5
    drawn = draw_share_differences(first, second)
    expected = np.concatenate(list(_resample(90, 10_000, 2))) @ (first.astype(float) - second) / 90
    assert drawn.mean() == pytest.approx(first.mean() - second.mean(), abs=0.005)
    assert drawn.std() == pytest.approx(expected.std(), rel=0.05)


def test_p_values_are_uniform_without_a_difference_and_small_with_one() -> None:
    rng = np.random.default_rng(9)
    p_values = []

    for _ in range(200):
        first, second = rng.random((2, 400)) < 0.5
        p_values.append(two_sided_p(draw_share_differences(first, second, draws=400)))

    assert 0.01 < np.mean(np.array(p_values) < 0.05) < 0.1
    assert two_sided_p(draw_share_differences(np.ones(50, bool), np.arange(50) < 30)) == pytest.approx(2 / 10_001)
    assert two_sided_p(np.zeros(100)) == 1
    assert two_sided_p(np.empty(0)) == 1


PAIRS = SimilaritySet("pairs", tuple((f"a{n}", f"b{n}") for n in range(60)), tuple(float(n % 13) for n in range(60)))
ASKED = AnalogySet("asked", tuple((f"a{n}", "b", "c", "d") for n in range(40)), ("s",) * 40)


def make_report(seed: int, noise: float, *, known: int = 60, rules: EvaluationConfig | None = None) -> Report:
    rng = np.random.default_rng(seed)
    cosines = np.array(PAIRS.scores) + noise * rng.standard_normal(60)
    cosines[known:] = np.nan
    is_known = np.arange(40) < known
    is_right = is_known & (rng.random(40) > noise / 10)
    rules = rules or EvaluationConfig()
    answers = summarize_answers(ASKED, is_right, is_known, rules)
    values = np.where(is_known, is_right, np.nan)
    kinds = SetResult("categories", "kinds", 0.5, None, 40, 40, 0.5, 0.5, values=values, items=("w",) * 40)
    return Report((summarize_pairs(PAIRS, cosines), answers, kinds), rules)


def test_reports_are_compared_on_the_items_that_count_in_both() -> None:
    good = make_report(1, 1.0, known=30)
    poor = make_report(2, 8.0)
    pairs, asked, kinds = compare_reports(good, poor)

    assert [each.items for each in (pairs, asked, kinds)] == [30, 40, 30]

    first, second = (report["pairs"] for report in (good, poor))

    assert pairs.first == first.figure
    assert pairs.second == pytest.approx(spearmanr(second.values[:30], second.scores[:30]).statistic)
    assert pairs.difference is not None and pairs.interval is not None and pairs.p_value is not None
    assert pairs.interval[0] < pairs.difference < pairs.interval[1]
    assert pairs.interval[0] > 0 and pairs.p_value < 0.05
    assert (asked.first, asked.second) == (good["asked"].figure, poor["asked"].figure)

    mirrored = compare_reports(poor, good)[1]

    assert mirrored.difference == pytest.approx(-(asked.difference or 0))
    assert compare_reports(good, poor) == compare_reports(good, poor) != compare_reports(good, poor, seed=2)


def test_a_report_does_not_differ_from_itself() -> None:
    for each in compare_reports(make_report(1, 3.0), make_report(1, 3.0), draws=100):
        assert (each.difference, each.interval, each.p_value) == (0, (0, 0), 1)


def test_with_the_rule_skip_questions_known_to_both_are_compared() -> None:
    skip = EvaluationConfig(unknown="skip")
    reports = make_report(1, 2.0, known=25, rules=skip), make_report(2, 2.0, known=33, rules=skip)
    assert compare_reports(*reports, draws=10)[1].items == 25


def test_sets_without_known_items_have_no_difference() -> None:
    pairs, asked, kinds = compare_reports(make_report(1, 1.0, known=0), make_report(2, 1.0), draws=10)
    assert pairs == Difference("pairs", "similarity", None, None, None, None, None, 0)
    assert asked == Difference("asked", "analogies", None, None, None, None, None, 0)
    assert tabulate_differences([kinds]) == [("kinds", "-", "-", "-", "-", "-", "0")]


def test_comparisons_are_converted_to_rows_and_json() -> None:
    first = make_report(1, 1.0)
    second = make_report(2, 6.0)
    comparisons = compare_reports(first, second, draws=200)
    rows = tabulate_differences(comparisons)

    assert all(len(row) == len(DIFFERENCE_HEADER) for row in rows)
    assert rows[0][0] == "pairs" and rows[0][3].startswith("+0.")

    plain = json.loads(json.dumps([each.to_dict() for each in comparisons], allow_nan=False))

    assert plain[0]["interval"] == list(comparisons[0].interval or ())
    assert compare_reports(first, second, draws=0)[0].interval is None


def test_comparing_reports_of_different_items_raises_an_error() -> None:
    report = make_report(1, 1.0)

    with pytest.raises(EvaluationError, match="no set in common: pairs, asked, kinds and other"):
        compare_reports(report, Report((summarize_pairs(SimilaritySet("other", (), ()), []),), EvaluationConfig()))

    half = SimilaritySet("pairs", PAIRS.pairs[::2], PAIRS.scores[::2])

    with pytest.raises(EvaluationError, match="pairs: the two reports have different items"):
        compare_reports(report, Report((summarize_pairs(half, np.zeros(30)),), EvaluationConfig()))

    other = SimilaritySet("pairs", PAIRS.pairs, PAIRS.scores[::-1])

    with pytest.raises(EvaluationError, match="pairs: the two reports have different items"):
        compare_reports(report, Report((summarize_pairs(other, np.zeros(60)),), EvaluationConfig()))
