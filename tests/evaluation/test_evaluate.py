"""Similarity, analogies, categories and the report."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr

from message_recorder import MessageRecorder
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, EvaluationError, MissingExtra
from swivel.evaluation import AnalogySet, CategorySet, EvaluationConfig, SimilaritySet, evaluate, read_set
from swivel.evaluation.bootstrap import rank_correlation
from swivel.evaluation.datasets import find_sets
from swivel.evaluation.results import TABLE_HEADER, draw_markdown
from swivel.evaluation.scores import answer_questions, score_analogies, score_categories, score_similarity
from swivel.vectors import Vectors, VectorTable


def make_vectors(table: NDArray[np.float32], words: list[str] | None = None) -> Vectors:
    tokens = [f"w{n}" for n in range(len(table))] if words is None else words
    return Vectors(VectorTable(Vocabulary(tokens), table))


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_files_of_a_folder_that_are_not_test_sets_are_skipped_with_a_message(tmp_path: Path) -> None:
    write(tmp_path / "pairs.tsv", "w0\tw1\t1\n")
    write(tmp_path / "SOURCES.tsv", "one\ttwo\tthree\tfour\tfive\tsix\n")
    write(tmp_path / "empty.txt", "")
    recorder = MessageRecorder()
    report = evaluate(make_vectors(np.ones((2, 2), np.float32)), str(tmp_path), progress=recorder)

    assert report.left_out == ("SOURCES.tsv", "empty.txt")
    assert recorder.lines == ["SOURCES.tsv: skipped, not a test set", "empty.txt: skipped, not a test set"]
    with pytest.raises(EvaluationError, match=r"SOURCES\.tsv, line 1: expected"):
        find_sets([tmp_path / "SOURCES.tsv"])

    write(tmp_path / "men.txt", "w0 w1\nw0 w2 3\n")

    with pytest.raises(EvaluationError, match=r"men\.txt, line 1: expected"):
        find_sets(tmp_path)


@given(st.lists(st.tuples(st.integers(-4, 4), st.floats(-2, 2, width=16)), min_size=2, max_size=40))
def test_rank_correlation_is_spearmans_rho(pairs: list[tuple[int, float]]) -> None:
    x, y = (list(values) for values in zip(*pairs, strict=True))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert rank_correlation(x, y) is None
    else:
        assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_similarity_is_measured_on_the_known_pairs_only() -> None:
    table = np.array([[1, 0], [1, 1], [0, 1], [0, 0]], np.float32)
    vectors = make_vectors(table, ["a", "b", "c", "zero"])
    pairs = SimilaritySet("p", (("a", "b"), ("a", "c"), ("a", "new"), ("a", "a"), ("a", "zero")), (8, 1, 9, 10, 2))
    result = score_similarity(vectors, pairs)
    expected = spearmanr([0.5**0.5, 0, 1, 0], [8, 1, 10, 2]).statistic

    assert (result.known, result.total) == (4, 5)
    assert result.figure == pytest.approx(expected)

    np.testing.assert_allclose(result.values, [0.5**0.5, 0, np.nan, 1, 0], atol=1e-7)

    assert (result.scores.tolist(), result.items) == ([8, 1, 9, 10, 2], pairs.pairs)


@pytest.mark.parametrize(("unknown_pairs", "cosine"), [("zero", 0.0), ("mean", 0.5**0.5)])
def test_unknown_pairs_may_count_as_zero_or_use_the_mean_vector(unknown_pairs: str, cosine: float) -> None:
    vectors = make_vectors(np.array([[2, 0], [0, 2], [4, 4], [0, 9]], np.float32), ["a", "b", "c", "rare"])
    pairs = SimilaritySet("p", (("a", "b"), ("a", "c"), ("a", "new"), ("rare", "b")), (1, 8, 9, 3))
    result = score_similarity(vectors, pairs, EvaluationConfig(unknown_pairs=unknown_pairs, top=3))
    # The mean of the three words that count is (2, 2).
    expected = [0, 0.5**0.5, cosine, cosine]
    np.testing.assert_allclose(result.values, expected, atol=1e-7)

    assert (result.known, result.total) == (2, 4)
    assert result.figure == pytest.approx(spearmanr(np.round(expected, 6), [1, 8, 9, 3]).statistic)


def test_fewer_than_two_known_pairs_have_no_rho() -> None:
    vectors = make_vectors(np.eye(2, dtype=np.float32), ["a", "b"])
    assert score_similarity(vectors, SimilaritySet("p", (("a", "b"), ("a", "x")), (1, 2))).figure is None
    for unknown_pairs in ("skip", "zero", "mean"):
        unknown = score_similarity(
            vectors, SimilaritySet("p", (("y", "x"),) * 3, (1, 2, 3)), EvaluationConfig(unknown_pairs=unknown_pairs)
        )
        assert (unknown.figure, unknown.interval, unknown.known, unknown.total) == (None, None, 0, 3)


def answer_naively(table: NDArray[np.float32], question: list[int], method: str) -> int:
    lengths = np.linalg.norm(table.astype(float), axis=1, keepdims=True)
    unit = np.divide(table, lengths, out=np.zeros(table.shape), where=lengths > 0)
    best = -np.inf
    answer = -1

    for n in range(len(table)):
        to_a, to_b, to_c = (float(unit[n] @ unit[i]) for i in question)
        score = to_b - to_a + to_c
        if method == "3cosmul":
            score = ((to_b + 1) / 2) * ((to_c + 1) / 2) / ((to_a + 1) / 2 + 0.001)
        if n not in question and lengths[n] > 0 and score > best:
            best = score
            answer = n

    return answer


@pytest.mark.parametrize("method", ["3cosadd", "3cosmul"])
@pytest.mark.parametrize("seed", range(3))
def test_answers_equal_a_naive_loop(method: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small tiles and chunks that do not divide the numbers of words and questions.
    monkeypatch.setattr("swivel.evaluation.scores._MIN_CHUNK", 7)
    monkeypatch.setattr("swivel.evaluation.scores._TILE", 16)
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((53, 6)).astype(np.float32)
    table[[0, 20, 21, 52]] = 0
    questions = rng.integers(0, 53, (60, 3))
    expected = [answer_naively(table, question, method) for question in questions.tolist()]

    assert answer_questions(make_vectors(table), questions, method).tolist() == expected


def test_answers_do_not_depend_on_threads_tiles_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    # Multiples of 1/2, so that sums are exact in any order.
    vectors = make_vectors(rng.choice([-0.5, 0.5], (120, 4)).astype(np.float32))
    questions = rng.integers(0, 120, (80, 3))
    expected = answer_questions(vectors, questions).tolist()

    for name, value in (("count_cores", lambda: 5), ("_TABLE", 700), ("_MIN_CHUNK", 11), ("_TILE", 1)):
        monkeypatch.setattr(f"swivel.evaluation.scores.{name}", value)
        assert answer_questions(vectors, questions).tolist() == expected


def test_answers_may_be_limited_to_the_first_words() -> None:
    table = np.random.default_rng(8).standard_normal((40, 5)).astype(np.float32)
    questions = np.random.default_rng(9).integers(0, 12, (30, 3))
    expected = answer_questions(make_vectors(table[:12]), questions).tolist()
    assert answer_questions(make_vectors(table), questions, top=12).tolist() == expected
    assert answer_questions(make_vectors(table), questions).tolist() != expected


def test_progress_adds_up_to_the_number_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.evaluation.scores._TILE", 3)
    done: list[float] = []
    answer_questions(make_vectors(np.eye(10, dtype=np.float32)), np.array([[0, 1, 2]] * 6), advance=done.append)
    assert sum(done) == pytest.approx(6)


def test_ties_are_resolved_by_id_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.evaluation.scores._TILE", 2)
    table = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1]], np.float32)
    assert answer_questions(make_vectors(table), np.array([[0, 1, 3], [0, 0, 0], [0, 1, 2]])).tolist() == [4, 1, 3]


def test_a_question_without_candidates_has_no_answer() -> None:
    table = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.float32)
    assert answer_questions(make_vectors(table), np.array([[0, 1, 2]])).tolist() == [-1]


WORDS = ["man", "king", "woman", "queen", "big", "bigger", "old", "older"]
PLANTED = np.array(
    [
        [1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0, 1],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ],
    np.float32,
)
QUESTIONS = AnalogySet(
    "planted",
    (
        ("man", "king", "woman", "queen"),
        ("man", "king", "prince", "princess"),
        ("big", "bigger", "old", "older"),
        ("big", "bigger", "old", "queen"),
        ("x", "y", "z", "a"),
    ),
    ("royal", "royal", "gram", "gram", "strange"),
)


@pytest.mark.parametrize("method", ["3cosadd", "3cosmul"])
def test_questions_with_unknown_words_are_wrong_or_skipped(method: str) -> None:
    vectors = make_vectors(PLANTED, WORDS)
    wrong = score_analogies(vectors, QUESTIONS, EvaluationConfig(method=method))

    assert (wrong.figure, wrong.correct, wrong.known, wrong.total) == (2 / 5, 2, 3, 5)
    assert [(section.name, section.figure) for section in wrong.sections] == [
        ("royal", 0.5),
        ("gram", 0.5),
        ("strange", None),
    ]
    assert wrong.is_right.tolist() == [True, False, True, False, False]
    assert wrong.is_known.tolist() == [True, False, True, True, False]

    skipped = score_analogies(vectors, QUESTIONS, EvaluationConfig(method=method, unknown="skip"))

    assert (skipped.figure, skipped.known) == (2 / 3, 3)
    assert [section.figure for section in skipped.sections] == [1.0, 0.5, None]


def test_every_right_answer_counts_and_one_known_is_enough() -> None:
    answers = (("queen",), ("princess", "unheard"), ("older", "queen"), ("unheard",), ("a",))
    asked = dataclasses.replace(QUESTIONS, answers=answers)
    result = score_analogies(make_vectors(PLANTED, WORDS), asked)
    assert result.is_right.tolist() == [True, False, True, False, False]

    # The vectors answer the first and the fourth question with "queen" and "older".
    swapped = dataclasses.replace(QUESTIONS, answers=(("nobody", "queen"), *answers[1:3], ("bigger", "older"), ("a",)))
    result = score_analogies(make_vectors(PLANTED, WORDS), swapped)
    assert result.is_right.tolist() == [True, False, True, True, False]
    assert result.is_known.tolist() == [True, False, True, True, False]


def test_a_suite_is_one_of_those_that_are_known_and_has_no_effect_on_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="suite must be one of paper, untuned, got 'all'"):
        evaluate(make_vectors(PLANTED, WORDS), suite="all")
    with pytest.raises(ConfigError, match="suite has no effect with files or folders of sets"):
        evaluate(make_vectors(PLANTED, WORDS), tmp_path, suite="untuned")


def test_words_after_the_first_top_words_are_unknown() -> None:
    few = score_analogies(make_vectors(PLANTED, WORDS), QUESTIONS, EvaluationConfig(top=4))
    assert (few.correct, few.known, few.total) == (1, 1, 5)


def test_answers_have_the_order_of_the_file_for_any_order_of_sections(tmp_path: Path) -> None:
    lines = ["man king woman queen x", "big bigger old queen y", "a b c d x", "big bigger old older y"]
    questions = read_set(write(tmp_path / "mixed.txt", "\n".join(lines)))

    assert isinstance(questions, AnalogySet)

    result = score_analogies(make_vectors(PLANTED, WORDS), questions)

    assert result.items == tuple(tuple(line.split()[:4]) for line in lines)
    assert result.is_right.tolist() == [True, False, False, True]
    assert [(each.name, each.correct, each.known, each.total) for each in result.sections] == [
        ("x", 1, 1, 2),
        ("y", 1, 2, 2),
    ]


KINDS = CategorySet(
    "kinds",
    ("apple", "pear", "plum", "oak", "elm", "newword", "car", "bus", "odd"),
    ("fruit", "fruit", "fruit", "tree", "tree", "tree", "car", "car", "fruit"),
)


def test_purity_is_the_fraction_of_words_in_a_cluster_of_their_category() -> None:
    table = np.array(
        [[9, 1, 0], [9, 0, 1], [8, 1, 1], [0, 9, 0], [1, 9, 0], [0, 1, 9], [0, 0, 9], [1, 9, 1]], np.float32
    )
    vectors = make_vectors(table, ["apple", "pear", "plum", "oak", "elm", "car", "bus", "odd"])
    result = score_categories(vectors, KINDS)

    # "odd" is a fruit in the cluster of trees.
    assert (result.figure, result.known, result.total) == (7 / 8, 8, 9)
    assert result.is_right.tolist() == [True] * 5 + [False] + [True] * 2 + [False]
    assert result.is_known.tolist() == [True] * 5 + [False] + [True] * 3
    assert result.interval is not None and result.interval[0] < 7 / 8 <= result.interval[1]


def test_words_of_fewer_than_two_categories_have_no_purity() -> None:
    vectors = make_vectors(np.eye(3, dtype=np.float32), ["apple", "pear", "x"])
    assert score_categories(vectors, KINDS).figure is None
    same = make_vectors(np.ones((3, 2), np.float32), ["apple", "oak", "bus"])
    assert score_categories(same, KINDS).figure == 1 / 3  # equal vectors: one cluster


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(MissingExtra, match=r"sets of categories need scikit-learn: pip install .*\[evaluate\]"):
        score_categories(make_vectors(np.eye(2, dtype=np.float32), ["apple", "oak"]), KINDS)


def write_planted(folder: Path) -> None:
    write(folder / "planted.txt", ": royal\nman king woman queen\n: gram\nbig bigger old older\nx y z a\n")
    write(folder / "men.tsv", "man\tking\t9\nman\twoman\t1\nking\tqueen\t5\n")
    write(folder / "strange.txt", "x y z a\n")
    write(folder / "kinds.tsv", "man\tperson\nking\tperson\nbig\tsize\nbigger\tsize\n")


def test_the_report_is_converted_to_a_table_and_json(tmp_path: Path) -> None:
    write_planted(tmp_path)
    recorder = MessageRecorder()
    report = evaluate(make_vectors(PLANTED, WORDS), tmp_path, progress=recorder)

    assert [result.name for result in report.results] == ["men", "kinds", "planted", "strange"]
    assert report["planted"].kind == "analogies"
    assert recorder.lines == ["strange: no item is in the vocabulary"]
    assert report.table() == [
        ("men", "rho", "1.000", "too few known", "1.000", "1.000", "3", "3", "100.0%"),
        ("kinds", "purity", "1.000", "too few known", "1.000", "1.000", "4", "4", "100.0%"),
        ("planted", "accuracy", "0.667", "too few known", "1.000", "0.667", "2", "3", "66.7%"),
        ("strange", "accuracy", "-", "none known", "-", "-", "0", "1", "0.0%"),
    ]
    gram = ("  gram", "accuracy", "0.500", "too few known", "1.000", "0.500", "1", "2", "50.0%")
    assert report.table(sections=True)[4] == gram
    assert all(len(row) == len(TABLE_HEADER) for row in report.table(sections=True))

    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))

    assert plain["rules"] == {
        "method": "3cosadd",
        "unknown": "wrong",
        "unknown_pairs": "skip",
        "top": None,
        "lowercase": True,
        "half": None,
        "draws": 10_000,
    }
    assert [each["kind"] for each in plain["sets"]] == ["similarity", "categories", "analogies", "analogies"]
    assert plain["sets"][2]["sections"][0] == {
        "name": "royal",
        "kind": "section",
        "measure": "accuracy",
        "figure": 1.0,
        "interval": [1.0, 1.0],
        "known_only": 1.0,
        "all_items": 1.0,
        "known": 1,
        "total": 1,
        "correct": 1,
    }
    assert (plain["sets"][3]["figure"], plain["sets"][3]["interval"]) == (None, None)


def test_the_table_is_converted_to_markdown(tmp_path: Path) -> None:
    write(tmp_path / "a|b.tsv", "man\tking\t9\nman\twoman\t1\nking\tqueen\t5\n")
    write(tmp_path / "q.txt", ": royal\nman king woman queen\n")
    report = evaluate(make_vectors(PLANTED, WORDS), tmp_path, draws=0)

    assert draw_markdown(TABLE_HEADER, report.table(sections=True)).splitlines() == [
        "| set | measure | figure | 95 % interval | known only | all items | known | of | coverage |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| a\\|b | rho | 1.000 | too few known | 1.000 | 1.000 | 3 | 3 | 100.0% |",
        "| q | accuracy | 1.000 | too few known | 1.000 | 1.000 | 1 | 1 | 100.0% |",
        "| royal | accuracy | 1.000 | too few known | 1.000 | 1.000 | 1 | 1 | 100.0% |",
    ]


def test_intervals_are_shown_from_ten_known_items_on(tmp_path: Path) -> None:
    known = ["man king woman queen"] * 9
    for lines, interval in ((known, "too few known"), ([*known, known[0]], "0.004 .. 0.017")):
        write(tmp_path / "q.txt", "\n".join([*lines, *["x y z a"] * 990]))
        (row,) = evaluate(make_vectors(PLANTED, WORDS), tmp_path).table()
        share = len(lines) / (len(lines) + 990)
        assert row[2:6] == (f"{share:.3f}", interval, "1.000", f"{share:.3f}")
        assert row[6:] == (str(len(lines)), f"{len(lines) + 990:,}", f"{share:.1%}")


def test_both_rules_for_unknown_items_are_in_the_result() -> None:
    pairs = SimilaritySet("p", (("man", "king"), ("man", "woman"), ("man", "x"), ("king", "queen")), (9, 1, 4, 5))
    vectors = make_vectors(PLANTED, WORDS)
    skipped = score_similarity(vectors, pairs)
    zeros = score_similarity(vectors, pairs, EvaluationConfig(unknown_pairs="zero"))
    assert (skipped.known_only, skipped.all_items) == (skipped.figure, zeros.figure)
    assert (zeros.known_only, zeros.all_items) == (None, zeros.figure)
    assert skipped.figure != zeros.figure

    words = CategorySet("k", ("man", "king", "big", "bigger", "x"), ("person", "person", "size", "size", "size"))
    categories = score_categories(vectors, words)
    assert (categories.known_only, categories.all_items) == (1.0, 0.8)


def test_the_report_is_shown_as_an_escaped_html_table(tmp_path: Path) -> None:
    write(tmp_path / "<i>.tsv", "man\tking\t9\nman\twoman\t1\nking\tqueen\t5\n")
    table = evaluate(make_vectors(PLANTED, WORDS), tmp_path, draws=0)._repr_html_()
    assert "<th>measure</th><th>figure</th>" in table
    assert "<tr><td>&lt;i&gt;</td><td>rho</td><td>1.000</td><td>too few known</td>" in table


def test_without_a_source_the_papers_sets_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    men = write(tmp_path / "bruni_men.txt", "man king 9\nman woman 1\n")
    monkeypatch.setattr("swivel.evaluation.scores.fetch_sets", lambda sources, *, title, progress: (men,))
    assert evaluate(make_vectors(PLANTED, WORDS))["men"].known == 2


def test_files_and_rules_may_be_passed(tmp_path: Path) -> None:
    write_planted(tmp_path)
    report = evaluate(
        make_vectors(PLANTED, WORDS), [tmp_path / "planted.txt"], method="3cosmul", unknown="skip", lowercase=False
    )
    assert [result.name for result in report.results] == ["planted"]
    assert report["planted"].kind == "analogies" and report["planted"].figure == 1.0


def test_a_set_that_was_not_evaluated_raises_an_error(tmp_path: Path) -> None:
    write_planted(tmp_path)
    with pytest.raises(
        EvaluationError, match="no set 'rare_words' was evaluated; the sets are men, kinds, planted, strange"
    ):
        evaluate(make_vectors(PLANTED, WORDS), tmp_path)["rare_words"]


def test_vectors_without_any_known_item_raise_an_error(tmp_path: Path) -> None:
    write_planted(tmp_path)
    with pytest.raises(EvaluationError, match="no item of men, kinds, planted, strange is in the vocabulary"):
        evaluate(make_vectors(np.eye(2, dtype=np.float32), ["Mann", "Frau"]), tmp_path)


def test_a_half_without_items_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="this half of one has no items to evaluate"):
        evaluate(make_vectors(PLANTED, WORDS), write(tmp_path / "one.tsv", "man\tking\t9\n"), half="report")


def test_invalid_rules_raise_errors_before_anything_is_read(tmp_path: Path) -> None:
    vectors = make_vectors(PLANTED, WORDS)

    with pytest.raises(ConfigError, match="method must be one of 3cosadd, 3cosmul, got 'add'"):
        evaluate(vectors, tmp_path, method="add")
    with pytest.raises(ConfigError, match="unknown must be one of wrong, skip, got 'drop'"):
        evaluate(vectors, tmp_path, unknown="drop")
    with pytest.raises(ConfigError, match="top must be a positive integer, got 0"):
        evaluate(vectors, tmp_path, rules=EvaluationConfig(half="tune"), top=0)
    with pytest.raises(ConfigError, match="'metod' is not a setting here; did you mean method"):
        evaluate(vectors, tmp_path, metod="3cosmul")


def test_a_single_result_is_a_table_in_a_notebook(tmp_path: Path) -> None:
    write(tmp_path / "pairs.tsv", "man\tking\t9\nman\twoman\t1\nking\tqueen\t5\n")
    table = evaluate(make_vectors(PLANTED, WORDS), tmp_path, draws=0)["pairs"]._repr_html_()
    assert table.startswith("<table>")
    assert "<td>pairs</td>" in table
