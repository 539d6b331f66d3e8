"""Sets of texts are read, downloaded and scored: planted answers, and the errors of damaged files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from swivel.cli.main import cli
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, EvaluationError, MissingExtra
from swivel.evaluation import evaluate_texts
from swivel.evaluation.datasets import TEXT_SOURCES, CategorySet, SimilaritySet, fetch_sets
from swivel.evaluation.text_sets import PLAIN_MEAN, TextReport, TextResult, read_text_sets, score_texts
from swivel.vectors import Vectors, VectorTable

PAIRS = "5\tking and and\tqueen\n\tking\tno score\r\n3.5\tking\tqueen queen pear\tignored\n0\tking\tpear\n"


@pytest.fixture
def vectors() -> Vectors:
    """Three words with a meaning, and a frequent one without."""
    values = np.array([[3, 3, 3], [1, 0, 0], [0.9, 0.1, 0], [0, 0, 1]], np.float32)
    return Vectors(VectorTable(Vocabulary(["and", "king", "queen", "pear"], [10_000, 20, 10, 10]), values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "pairs.tsv").write_bytes(PAIRS.encode())
    lines = [f"{label} and and {word}\n" for label, word in (("royal", "king"), ("royal", "queen"), ("fruit", "pear"))]
    (folder / "kinds.txt").write_text("".join(lines * 60))
    (folder / "notes.md").write_text("not a set")
    return folder


def test_pairs_and_labels_are_read_by_their_first_line(folder: Path) -> None:
    kinds, pairs = read_text_sets(folder)
    texts = (("king and and", "queen"), ("king", "queen queen pear"), ("king", "pear"))
    assert pairs == SimilaritySet("pairs", texts, (5.0, 3.5, 0.0))
    assert isinstance(kinds, CategorySet)
    assert (kinds.items[2], kinds.categories[:3], len(kinds.items)) == (
        "and and pear",
        ("royal", "royal", "fruit"),
        180,
    )

    (folder / "tab.txt").write_bytes("né\tdu caf\xe9\n".encode("latin-1"))
    assert read_text_sets([folder / "tab.txt"]) == (CategorySet("tab", ("du café",), ("né",)),)


def test_weights_find_what_a_frequent_word_hides(vectors: Vectors, folder: Path) -> None:
    report = evaluate_texts(vectors, folder, progress=False)
    kinds, pairs = report.results

    assert (pairs.name, pairs.measure, pairs.encode, pairs.items) == ("pairs", "rho", 1.0, 3)
    assert pairs.plain_mean is not None and pairs.plain_mean < 1
    assert (kinds.measure, kinds.encode, kinds.items) == ("accuracy", 1.0, 180)
    assert [row[0] for row in report.table()] == ["kinds", "pairs"]
    assert report._repr_html_().count("<tr>") >= 2


def test_several_sets_have_a_mean(vectors: Vectors, folder: Path) -> None:
    (folder / "reverse.tsv").write_text("0\tking\tqueen\n5\tking\tpear\n")
    report = evaluate_texts(str(save(vectors, folder.parent)), folder, progress=False)
    assert report.table()[-1] == ("mean", "rho", "0.000", report.table()[-1][3], "5")
    assert len(evaluate_texts(vectors, folder / "kinds.txt", progress=False).table()) == 1


def save(vectors: Vectors, folder: Path) -> Path:
    vectors.save(folder / "vectors")
    return folder / "vectors"


def test_a_label_with_few_texts_has_no_accuracy(vectors: Vectors) -> None:
    assert score_texts(vectors, CategorySet("few", ("king", "pear") * 4, ("a", "b") * 4)) is None
    assert score_texts(vectors, CategorySet("one", ("king", "pear") * 9, ("a", "a") * 9), PLAIN_MEAN) is None


def test_sets_without_a_figure_are_not_part_of_the_mean(vectors: Vectors) -> None:
    figures = [TextResult("one", "rho", None, 0.5, 3), TextResult("two", "rho", 0.8, 0.7, 9)]
    assert TextReport(tuple(figures)).table()[-1] == ("mean", "rho", "0.800", "0.600", "12")
    assert TextReport(()).table() == []
    assert TextReport((figures[0], figures[0])).table()[-1][2] == "-"


def test_few_texts_that_differ_clearly_are_classified() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((24, 8)).astype(np.float32)
    values[:12, 0] += 20
    values[12:, 0] -= 20
    vectors = Vectors(VectorTable(Vocabulary([f"w{n}" for n in range(24)]), values))
    texts = CategorySet("few", tuple(vectors.vocabulary.tokens), ("a",) * 12 + ("b",) * 12)
    accuracy = score_texts(vectors, texts, PLAIN_MEAN)
    assert accuracy is not None and accuracy > 0.9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"set\.tsv: the file is empty; expected score, text and text"),
        ("1\ta\tb\n2\ta\n", r"set\.tsv, line 2: expected score, text and text, got '2\\ta'"),
        ("\n1\ta\tb\nhigh\ta\tb\n", r"set\.tsv, line 3: expected a number as the score, got 'high'"),
        ("1\ta\tb\nnan\ta\tb\n", r"set\.tsv, line 2: expected a number as the score, got 'nan'"),
        ("a label\nword\n", r"set\.tsv, line 2: expected score, .* or label and text, .*, got 'word'"),
    ],
)
def test_files_that_are_no_sets_of_texts_raise_errors(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "set.tsv").write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read_text_sets(tmp_path)


def test_missing_files_and_empty_folders_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no sets of texts found"):
        read_text_sets(tmp_path)
    with pytest.raises(EvaluationError, match="no such file"):
        read_text_sets(tmp_path / "missing.tsv")


def test_labels_without_scikit_learn_raise_an_error(vectors: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    with pytest.raises(MissingExtra, match=r"sets of labels need scikit-learn: pip install .*\[evaluate\]"):
        score_texts(vectors, CategorySet("l", ("king",), ("a",)))


# Download


def test_the_table_of_sources_has_23_sets_of_pairs_and_three_of_labels() -> None:
    files = [source.file for source in TEXT_SOURCES]
    assert len(set(files)) == len(files) == 26
    assert files[0] == "sts2012_msrpar.tsv" and files[-3:] == ["trec.txt", "customer_reviews.txt", "subjectivity.txt"]
    assert all(re.fullmatch("[0-9a-f]{64}", source.sha256) and len(source.commit) == 40 for source in TEXT_SOURCES)
    commit = "e1d3375f5b3bc24f21aa4e46f96eb379e9fc1081"
    path = f"brmson/dataset-sts/{commit}/data/sts/semeval-sts/2012/MSRpar.test.tsv"
    assert TEXT_SOURCES[0].url() == f"https://raw.githubusercontent.com/{path}"


def test_the_error_without_a_network_names_published_and_stored_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: Vectors
) -> None:
    monkeypatch.setenv("SWIVEL_DATA", str(tmp_path / "cache"))
    with pytest.raises(EvaluationError) as caught:
        fetch_sets(TEXT_SOURCES[-4:], host="http://127.0.0.1:9", title="the sets of texts")
    text = str(caught.value)
    assert text.startswith("the sets of texts are not in the cache and cannot be downloaded (ConnectionError): pass a")
    assert "question-question.test.tsv (as sts2016_question_question.tsv) from github.com/brmson/dataset-sts" in text
    assert "subj.all" not in text  # which is in another repository

    def fail(sources: object, *, progress: object, title: str) -> None:
        raise EvaluationError(f"no network for {title}")

    monkeypatch.setattr("swivel.evaluation.datasets.fetch_sets", fail)
    with pytest.raises(EvaluationError, match="no network for the sets of texts"):
        evaluate_texts(vectors, progress=False)


# Command line


def show(*arguments: object) -> str:
    ended = CliRunner().invoke(cli, ["evaluate", *map(str, arguments), "--quiet"], prog_name="swivel")
    if ended.exception is not None:
        raise ended.exception
    return ended.stdout


def test_the_command_shows_encode_beside_the_plain_mean(vectors: Vectors, folder: Path) -> None:
    saved = save(vectors, folder.parent)
    assert show(saved, "--texts", folder / "kinds.txt", folder / "pairs.tsv").splitlines()[0].split() == (
        ["set", "measure", "encode", "plain", "mean", "items"]
    )
    found = json.loads(show(saved, "--texts", "--data", folder, "--json"))["sets"]
    assert [(each["name"], each["encode"]) for each in found] == [("kinds", 1.0), ("pairs", 1.0)]
    assert "| pairs | rho | 1.000 |" in show(saved, "--texts", folder, "--markdown")


@pytest.mark.parametrize("unused", [["--draws", "10"], ["--against", "other"], ["-k", "3"], ["--sections"]])
def test_options_for_words_have_no_effect_on_texts(unused: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"'{unused[0]}' has no effect with --texts; leave it out"):
        show("vectors", "--texts", *unused)
    with pytest.raises(ConfigError, match="'--texts' has no effect with --held-out; leave it out"):
        show("vectors", "--texts", "--held-out", "cells.tsv")
