"""Test sets, Spearman's rho, analogies and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr

import swivel.evaluation
from swivel.errors import ConfigError, EvaluationError
from swivel.evaluation import (
    TABLE_HEADER,
    AnalogyResult,
    AnalogySet,
    SimilarityResult,
    SimilaritySet,
    evaluate,
    find_sets,
    rank_correlation,
    read_set,
    score_analogies,
    score_similarity,
)
from swivel.evaluation.analogies import answer_questions
from swivel.evaluation.datasets import PAPER_ORDER, Questions
from swivel.progress import SilentProgress
from swivel.vectors import Side, Vectors
from swivel.vocabulary import Vocabulary

REAL_SETS = Path(__file__).resolve().parents[2] / "shared" / "data" / "eval"


def make_vectors(table: NDArray[np.float32], words: list[str] | None = None) -> Vectors:
    tokens = [f"w{n}" for n in range(len(table))] if words is None else words
    return Vectors(Side(Vocabulary(tokens), table))


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


class Heard(SilentProgress):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_every_public_name_is_exported() -> None:
    assert all(hasattr(swivel.evaluation, name) for name in swivel.evaluation.__all__)


@pytest.mark.parametrize(
    "text",
    [
        "Tiger\tcat\t7.35\nsun\tmoon\t1\n",
        "tiger cat 7.35\r\nsun moon 1\r\n",
        "tiger  cat 7.35\rsun moon 1",
        "\ufefftiger\tcat\t7.35\n\n  sun\tmoon\t1.0  \n\n",
    ],
)
def test_pairs_are_read_whatever_separates_words_and_lines(tmp_path: Path, text: str) -> None:
    pairs = read_set(write(tmp_path / "pairs.txt", text))
    assert pairs == SimilaritySet("pairs", (("tiger", "cat"), ("sun", "moon")), (7.35, 1.0))


@pytest.mark.parametrize(
    "text",
    [
        "Oslo\tNorway\tRome\tItaly\tcapital\nbig\tbigger\told\tolder\tgram\noslo\tnorway\tparis\tfrance\tcapital\n",
        ": capital\nOslo Norway Rome Italy\nOslo Norway Paris France\n: gram\nbig bigger old older\n",
        ":\tcapital\r\noslo norway rome italy\r\noslo norway paris france\r\n: gram\r\nbig bigger old older\r\n",
    ],
)
def test_questions_are_read_with_their_sections(tmp_path: Path, text: str) -> None:
    capitals = (("oslo", "norway", "rome", "italy"), ("oslo", "norway", "paris", "france"))
    expected = (Questions("capital", capitals), Questions("gram", (("big", "bigger", "old", "older"),)))
    questions = read_set(write(tmp_path / "q.txt", text))
    assert questions == AnalogySet("q", expected)


def test_questions_without_sections_are_one_section(tmp_path: Path) -> None:
    questions = read_set(write(tmp_path / "q.txt", "a b c d\ne f g h\n"))
    assert isinstance(questions, AnalogySet)
    assert [(section.section, len(section.words)) for section in questions.sections] == [("q", 2)]


def test_case_is_kept_when_asked_and_labels_may_hold_spaces(tmp_path: Path) -> None:
    pairs = read_set(write(tmp_path / "p.tsv", "Red wine\tOslo\t3\n"), lowercase=False)
    assert isinstance(pairs, SimilaritySet) and pairs.pairs == (("Red wine", "Oslo"),)


def test_a_next_line_character_ends_no_line(tmp_path: Path) -> None:
    pairs = read_set(write(tmp_path / "p.tsv", "a\x85b\tc\t3\n"))
    assert isinstance(pairs, SimilaritySet) and pairs.pairs == (("a\x85b", "c"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b 1\na b\n", "p.txt, line 2: expected word1 word2 score, got 'a b'"),
        ("a b 1\n\nc d x\n", "p.txt, line 3: expected a number as the score, got 'x'"),
        ("a b nan\n", "line 1: expected a number as the score, got 'nan'"),
        ("a\t\t1\n", "line 1: expected word1 word2 score"),
        ("a b c d\na b c\n", "line 2: expected a b c d, got 'a b c'"),
        (": s\na b c\n", "line 2: expected a b c d, got 'a b c'"),
        ("a b c d s\na b c d\n", "line 2: expected a b c d section, got 'a b c d'"),
        ("a\n", "line 1: expected word1 word2 score, or a b c d .*, got 'a'"),
        (": s\n", "line 1: sections without questions"),
        ("\n \n", "p.txt: empty; expected"),
    ],
)
def test_a_malformed_line_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        read_set(write(tmp_path / "p.txt", text))


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"a b 1\nc \xff 2\n")
    with pytest.raises(EvaluationError, match=r"p\.txt, line 2: not valid UTF-8 \(byte 0xff\)"):
        read_set(tmp_path / "p.txt")


def test_missing_files_and_folders_without_sets_are_told(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="none: No such file"):
        find_sets(tmp_path / "none")
    with pytest.raises(EvaluationError, match="no test sets"):
        find_sets(tmp_path)
    with pytest.raises(EvaluationError, match="no files: no test sets"):
        find_sets([])


def test_sets_come_in_the_papers_order_then_by_name(tmp_path: Path) -> None:
    for name in ("zoo", "men", "ape", "ws353_similarity", "google_analogies"):
        write(tmp_path / f"{name}.tsv", "a\tb\t1\n")
    write(tmp_path / "README.md", "not read")
    names = [each.name for each in find_sets(tmp_path).sets]
    assert names == ["ws353_similarity", "men", "google_analogies", "ape", "zoo"]


def test_a_file_that_is_no_set_is_left_out_of_a_folder_and_said(tmp_path: Path) -> None:
    write(tmp_path / "pairs.tsv", "w0\tw1\t1\n")
    write(tmp_path / "SOURCES.tsv", "one\ttwo\tthree\tfour\tfive\tsix\n")
    write(tmp_path / "empty.txt", "")
    heard = Heard()
    report = evaluate(make_vectors(np.ones((2, 2), np.float32)), str(tmp_path), progress=heard)
    assert report.left_out == ("SOURCES.tsv", "empty.txt")
    assert heard.lines == ["SOURCES.tsv: left out, not a test set", "empty.txt: left out, not a test set"]
    with pytest.raises(EvaluationError, match=r"SOURCES\.tsv, line 1: expected"):
        find_sets([tmp_path / "SOURCES.tsv"])


@settings(deadline=None)
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
    assert (result.known, result.total, result.rho) == (4, 5, pytest.approx(expected))


def test_fewer_than_two_known_pairs_have_no_rho() -> None:
    vectors = make_vectors(np.eye(2, dtype=np.float32), ["a", "b"])
    assert score_similarity(vectors, SimilaritySet("p", (("a", "b"), ("a", "x")), (1, 2))).rho is None
    assert score_similarity(vectors, SimilaritySet("p", (("y", "x"),), (1,))) == SimilarityResult("p", None, 0, 1)


def answer_naively(table: NDArray[np.float32], question: list[int], method: str) -> int:
    lengths = np.linalg.norm(table.astype(float), axis=1, keepdims=True)
    unit = np.divide(table, lengths, out=np.zeros(table.shape), where=lengths > 0)
    best, answer = -np.inf, -1
    for n in range(len(table)):
        to_a, to_b, to_c = (float(unit[n] @ unit[i]) for i in question)
        score = to_b - to_a + to_c
        if method == "3cosmul":
            score = ((to_b + 1) / 2) * ((to_c + 1) / 2) / ((to_a + 1) / 2 + 0.001)
        if n not in question and lengths[n] > 0 and score > best:
            best, answer = score, n
    return answer


@pytest.mark.parametrize("method", ["3cosadd", "3cosmul"])
@pytest.mark.parametrize("seed", range(3))
def test_answers_equal_a_naive_loop(method: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small tiles and batches, so that sizes divide nothing.
    monkeypatch.setattr("swivel.evaluation.analogies._TILE", 16)
    monkeypatch.setattr("swivel.evaluation.analogies._BATCH", 7)
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((53, 6)).astype(np.float32)
    table[[0, 20, 21, 52]] = 0
    questions = rng.integers(0, 53, (60, 3))
    expected = [answer_naively(table, question, method) for question in questions.tolist()]
    assert answer_questions(make_vectors(table), questions, method).tolist() == expected


def test_equal_answers_go_by_id_across_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.evaluation.analogies._TILE", 2)
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
        Questions("royal", (("man", "king", "woman", "queen"), ("man", "king", "prince", "princess"))),
        Questions("gram", (("big", "bigger", "old", "older"), ("big", "bigger", "old", "queen"))),
        Questions("strange", (("x", "y", "z", "a"),)),
    ),
)


@pytest.mark.parametrize("method", ["3cosadd", "3cosmul"])
def test_unknown_words_make_a_question_wrong_or_are_skipped(method: str) -> None:
    vectors = make_vectors(PLANTED, WORDS)
    wrong = score_analogies(vectors, QUESTIONS, method=method)
    assert (wrong.accuracy, wrong.correct, wrong.known, wrong.total) == (2 / 5, 2, 3, 5)
    assert [(section.name, section.accuracy) for section in wrong.sections] == [
        ("royal", 0.5),
        ("gram", 0.5),
        ("strange", 0.0),
    ]
    skipped = score_analogies(vectors, QUESTIONS, method=method, unknown="skip")
    assert (skipped.accuracy, skipped.known) == (2 / 3, 3)
    assert [section.accuracy for section in skipped.sections] == [1.0, 0.5, None]


def test_many_questions_are_answered_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.evaluation.analogies._QUESTIONS", 2)
    assert score_analogies(make_vectors(PLANTED, WORDS), QUESTIONS).correct == 2


def write_planted(folder: Path) -> None:
    write(folder / "planted.txt", ": royal\nman king woman queen\n: gram\nbig bigger old older\nx y z a\n")
    write(folder / "men.tsv", "man\tking\t9\nman\twoman\t1\nking\tqueen\t5\n")
    write(folder / "strange.tsv", "x\ty\t9\n")


def test_the_report_has_the_figures_as_values_and_as_a_table(tmp_path: Path) -> None:
    write_planted(tmp_path)
    heard = Heard()
    report = evaluate(make_vectors(PLANTED, WORDS), tmp_path, progress=heard)
    assert [result.name for result in report.results] == ["men", "planted", "strange"]
    assert report["men"] == SimilarityResult("men", pytest.approx(1.0), 3, 3)
    assert isinstance(report["planted"], AnalogyResult)
    assert heard.lines == ["strange: none of its items is in the vocabulary"]
    assert report.table() == [
        ("men", "rho", "1.000", "3", "3"),
        ("planted", "accuracy", "0.667", "2", "3"),
        ("strange", "rho", "-", "0", "1"),
    ]
    assert report.table(sections=True)[3] == ("  gram", "accuracy", "0.500", "1", "2")
    assert all(len(row) == len(TABLE_HEADER) for row in report.table(sections=True))
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (plain["method"], plain["unknown"]) == ("3cosadd", "wrong")
    assert [each["kind"] for each in plain["sets"]] == ["similarity", "analogies", "similarity"]
    assert plain["sets"][1]["sections"][0] == {
        "name": "royal",
        "accuracy": 1.0,
        "correct": 1,
        "known": 1,
        "total": 1,
    }


def test_files_may_be_named_and_other_rules_asked_for(tmp_path: Path) -> None:
    write_planted(tmp_path)
    report = evaluate(
        make_vectors(PLANTED, WORDS), [tmp_path / "planted.txt"], method="3cosmul", unknown="skip", lowercase=False
    )
    assert [result.name for result in report.results] == ["planted"]
    assert isinstance(report["planted"], AnalogyResult) and report["planted"].accuracy == 1.0


def test_a_set_that_was_not_evaluated_is_told(tmp_path: Path) -> None:
    write_planted(tmp_path)
    with pytest.raises(EvaluationError, match="no set 'rare_words' was evaluated; there are men, planted, strange"):
        evaluate(make_vectors(PLANTED, WORDS), tmp_path)["rare_words"]


def test_vectors_that_know_nothing_of_any_set_are_told(tmp_path: Path) -> None:
    write_planted(tmp_path)
    with pytest.raises(EvaluationError, match="no item of men, planted, strange is in the vocabulary"):
        evaluate(make_vectors(np.eye(2, dtype=np.float32), ["Mann", "Frau"]), tmp_path)


def test_rules_that_there_are_not_are_told_before_anything_is_read(tmp_path: Path) -> None:
    vectors = make_vectors(PLANTED, WORDS)
    with pytest.raises(ConfigError, match="method must be one of 3cosadd, 3cosmul, got 'add'"):
        evaluate(vectors, tmp_path, method="add")
    with pytest.raises(ConfigError, match="unknown must be one of wrong, skip, got 'drop'"):
        score_analogies(vectors, QUESTIONS, unknown="drop")


@pytest.mark.skipif(not REAL_SETS.is_dir(), reason="the paper's eight sets are not here")
def test_the_papers_eight_sets_have_all_their_rows() -> None:
    sets = find_sets(REAL_SETS).sets
    sizes = [len(each.pairs) if isinstance(each, SimilaritySet) else each.size for each in sets]
    assert [each.name for each in sets] == list(PAPER_ORDER)
    assert sizes == [203, 252, 3000, 287, 2034, 999, 19544, 8000]
    sections = {each.name: len(each.sections) for each in sets if isinstance(each, AnalogySet)}
    assert sections == {"google_analogies": 14, "msr_analogies": 16}
