"""Accuracy by frequency: buckets are those of the definition, and figures show the given values."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from experiments.frequency import (
    Point,
    bucket_by_frequency,
    compare_buckets,
    main,
    make_curves,
    plot_differences,
    plot_frequency,
    split_name,
    spread_labels,
)
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, EvaluationError
from swivel.evaluation import AnalogySet, SetResult, summarize_answers
from swivel.reports.plots import COLORS
from swivel.vectors import Vectors, VectorTable


def curve(*heights: float, spread: float = 0.05) -> list[Point]:
    return [Point(2.0 + n, y, y - spread, y + spread, 100) for n, y in enumerate(heights)]


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_curves_are_drawn_with_their_values_and_names() -> None:
    figure = plot_frequency({"ours": curve(0.3, 0.6), "other": curve(0.2, 0.59)})
    axes = figure.axes[0]
    drawn = {tuple(np.asarray(line.get_ydata())): line for line in axes.lines}

    assert set(drawn) == {(0.3, 0.6), (0.2, 0.59)}
    assert drawn[0.3, 0.6].get_linewidth() > drawn[0.2, 0.59].get_linewidth()
    assert axes.lines[-1] is drawn[0.3, 0.6]  # drawn last: on top
    assert texts_of(figure) == ["ours", "other"]
    assert [text.get_color() for text in axes.texts] == list(COLORS[:2])
    assert len(axes.collections) == 2  # the bands
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "300", "1 k"]


@pytest.mark.parametrize("curves", [{}, {"ours": []}, {"ours": curve(0.5), "other": []}])
def test_curves_without_points_are_an_error(curves: dict[str, list[Point]]) -> None:
    with pytest.raises(ConfigError, match="too few analogies to draw against frequency"):
        plot_frequency(curves)
    with pytest.raises(ConfigError, match="too few analogies"):
        plot_differences(curves, "ours")


def test_differences_are_marked_above_below_or_open() -> None:
    figure = plot_differences({"other": curve(0.2, 0.01, -0.2, 0.3)}, "ours")
    axes = figure.axes[0]
    marks = {tuple(np.asarray(line.get_ydata())): line for line in axes.lines[1:]}
    assert set(marks) == {(0.2, 0.3), (0.01,), (-0.2,)}
    assert same_color(marks[0.2, 0.3].get_markerfacecolor(), COLORS[0])
    assert same_color(marks[0.01,].get_markerfacecolor(), "white")
    assert same_color(marks[-0.2,].get_markerfacecolor(), COLORS[1])
    assert axes.get_title("left") == "ours − other\nabove in 2, below in 1 of 4"


def test_there_is_a_panel_for_every_other_method() -> None:
    figure = plot_differences({f"m{n}": curve(0.1) for n in range(5)}, "ours")
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left").split("\n")[0] for axes in visible] == [f"ours − m{n}" for n in range(5)]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0.1, 10))
def test_spread_labels_keep_their_order_and_their_distance(heights: list[float], min_distance: float) -> None:
    placed = spread_labels(heights, min_distance)
    order = np.argsort(heights, kind="stable")
    assert (np.diff(np.array(placed)[order]) >= min_distance - 1e-5).all()


def test_labels_that_are_far_apart_do_not_move() -> None:
    assert spread_labels([9.0, 1.0, 5.0], 2.0) == [9.0, 1.0, 5.0]


def answered(name: str, words: str, is_right: list[bool], copies: int = 100) -> SetResult:
    """Return the result of a set that repeats one question about four words."""
    a, b, c, d = list(words)
    right = np.array(is_right * copies)
    questions = AnalogySet(name, ((a, b, c, d),) * len(right), ("s",) * len(right))
    return summarize_answers(questions, right, np.ones(len(right), bool))


def test_curves_join_all_analogy_sets() -> None:
    counts = dict.fromkeys("abcd", 100) | dict.fromkeys("efgh", 10_000)
    ours = [answered("one", "abcd", [True]), answered("two", "efgh", [True, False])]
    other = [answered("one", "abcd", [False]), answered("two", "efgh", [True, False])]
    curves, gaps = make_curves({"ours": ours, "other": other}, counts)
    assert list(curves) == ["ours", "other"]
    assert [(point.x, point.y, point.questions) for point in curves["ours"]] == [(2.0, 1.0, 100), (4.0, 0.5, 200)]
    assert list(gaps) == ["other"]
    assert [(point.y, point.verdict) for point in gaps["other"]] == [(1.0, 1), (0.0, 0)]


@pytest.mark.parametrize("counts", [{}, {"a": 1}])
def test_there_are_no_curves_for_too_few_questions(counts: dict[str, int]) -> None:
    assert make_curves({"ours": [answered("one", "abcd", [True])]}, counts) == ({}, {})
    assert make_curves({"ours": []}, counts) == ({}, {})


def test_plot_frequency_draws_a_curve_for_each_vectors(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    words = Vocabulary("abcdefgh", [800, 700, 600, 500, 40, 30, 20, 10])
    Vectors(VectorTable(words, rng.normal(size=(8, 3)).astype(np.float32))).save(tmp_path / "one" / "vectors")
    (tmp_path / "two.txt").write_text("".join(f"{word} {n} {n * n}\n" for n, word in enumerate(words, 1)))
    (tmp_path / "sets").mkdir()
    lines = ["a b c d", "d c b a"] * 60 + ["e f g h", "h g f e"] * 60
    (tmp_path / "sets" / "own.txt").write_text("\n".join(lines) + "\n")
    paths = [str(tmp_path / "one" / "vectors"), f"second={tmp_path / 'two.txt'}"]

    for extra in ([], ["--differences"]):
        file = tmp_path / f"frequency{len(extra)}.svg"
        command = [*paths, "--data", str(tmp_path / "sets"), "-o", str(file), *extra]
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, done.stdout) == (0, f"{file}\n")
        assert file.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.txt", "--differences"], "--differences compares the first VECTORS with others: name two or more"),
        (["a.txt", "deep/a.txt"], "several VECTORS are called 'a': give each a name of its own, as NAME=VECTORS"),
        (["a.txt"], "text files do not say how frequent words are: name a folder of Swivel's, too"),
    ],
)
def test_vectors_without_curves_are_an_error(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("word 1 2\n")
    done = CliRunner().invoke(main, [*arguments, "-o", "x.png"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == message


def test_curves_without_a_right_answer_are_drawn() -> None:
    counts = dict.fromkeys("abcd", 100)
    curves, _ = make_curves({"ours": [answered("one", "abcd", [False])]}, counts)
    assert plot_frequency(curves).axes[0].get_ylim() == (0, 1)


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("ours=work/vectors", "ours", "work/vectors"),
        ("work/vectors", "work", "work/vectors"),
        ("vectors", "vectors", "vectors"),
        ("deep/a=b/x.txt", "x", "deep/a=b/x.txt"),
        ("glove.txt", "glove", "glove.txt"),
    ],
)
def test_vectors_have_a_given_name_or_that_of_their_path(text: str, name: str, path: str) -> None:
    assert split_name(text) == (name, path)


def make_answers(seed: int, chance: float) -> SetResult:
    rng = np.random.default_rng(seed)
    words = tuple((f"w{a}", f"w{b}", f"w{c}", f"w{d}") for a, b, c, d in rng.integers(0, 200, (900, 4)))
    is_right = np.random.default_rng([seed, 1]).random(900) < chance
    return summarize_answers(AnalogySet("q", words, ("s",) * 900), is_right, np.ones(900, bool))


COUNTS = {f"w{n}": 10 ** (n / 40) for n in range(190)}  # ten of the words have no count


def test_buckets_are_large_enough_and_contain_every_question_with_counts_once() -> None:
    result = make_answers(1, 0.5)
    points = bucket_by_frequency(result, COUNTS)
    logs = [np.log10(np.mean([COUNTS[w] for w in words])) for words in result.items if set(words) <= set(COUNTS)]

    assert len(points) > 3
    assert min(point.questions for point in points) >= 100
    assert sum(point.questions for point in points) == len(logs) < 900

    # Buckets follow each other on the scale of frequencies, and end at an eighth of a factor of ten.
    ends = np.cumsum([point.questions for point in points])
    for point, inside in zip(points, np.split(np.sort(logs), ends[:-1]), strict=True):
        assert point.x == pytest.approx(np.mean(inside))
        assert point.low < point.y < point.high
    for first, second in pairwise(np.split(np.floor(8 * np.sort(logs)), ends[:-1])):
        assert first[-1] < second[0]

    right = sum(point.y * point.questions for point in points)
    asked = [set(words) <= set(COUNTS) for words in result.items]

    assert right == pytest.approx(result.is_right[asked].sum())


def test_buckets_do_not_depend_on_answers_and_can_be_compared() -> None:
    good = make_answers(1, 0.9)
    poor = make_answers(1, 0.2)
    first = bucket_by_frequency(good, COUNTS)
    second = bucket_by_frequency(poor, COUNTS)
    difference = compare_buckets(good, poor, COUNTS)

    for one, other, both in zip(first, second, difference, strict=True):
        assert (one.x, one.questions) == (other.x, other.questions) == (both.x, both.questions)
        assert both.y == pytest.approx(one.y - other.y)
        assert 0.4 < both.low < both.y < both.high < 0.95


def test_counts_may_be_those_of_a_vocabulary() -> None:
    vocabulary = Vocabulary(COUNTS, [round(count * 100) for count in COUNTS.values()])
    whole = {token: float(count) for token, count in zip(vocabulary, vocabulary.counts, strict=True)}
    result = make_answers(2, 0.5)
    assert bucket_by_frequency(result, vocabulary) == bucket_by_frequency(result, whole)


def test_too_few_questions_give_no_bucket() -> None:
    result = make_answers(3, 0.5)
    assert bucket_by_frequency(result, {}) == ()
    assert bucket_by_frequency(result, COUNTS, at_least=901) == ()
    assert len(bucket_by_frequency(result, COUNTS, at_least=700)) == 1


def test_comparing_buckets_of_different_questions_raises_an_error() -> None:
    with pytest.raises(EvaluationError, match="q and q do not have the same questions in the same order"):
        compare_buckets(make_answers(1, 0.5), make_answers(2, 0.5), COUNTS)
