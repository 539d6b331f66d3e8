"""Reading test sets from files, errors in them, and their halves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from swivel.errors import ConfigError, EvaluationError
from swivel.evaluation import AnalogySet, CategorySet, SimilaritySet, read_set
from swivel.evaluation.datasets import find_sets, half_of_pair, split_set


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "Tiger\tcat\t7.35\nsun\tmoon\t1\n",
        "tiger cat 7.35\r\nsun moon 1\r\n",
        "tiger  cat 7.35\rsun moon 1",
        "\ufefftiger\tcat\t7.35\n\n  sun\tmoon\t1.0  \n\n",
    ],
)
def test_pairs_are_read_with_any_separators_and_line_ends(tmp_path: Path, text: str) -> None:
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
    questions = read_set(write(tmp_path / "q.txt", text))
    assert isinstance(questions, AnalogySet)
    assert set(zip(questions.questions, questions.sections, strict=True)) == {
        (("oslo", "norway", "rome", "italy"), "capital"),
        (("oslo", "norway", "paris", "france"), "capital"),
        (("big", "bigger", "old", "older"), "gram"),
    }
    lines = [line.lower() for line in text.split("\n") if line and not line.startswith(":")]
    assert list(questions.questions) == [tuple(line.split()[:4]) for line in lines]


def test_words_and_their_categories_are_read(tmp_path: Path) -> None:
    words = read_set(write(tmp_path / "kinds.tsv", "Apple\tFruit\r\nred wine\tdrink\n"))
    assert words == CategorySet("kinds", ("apple", "red wine"), ("Fruit", "drink"))


def test_questions_without_sections_are_one_section(tmp_path: Path) -> None:
    questions = read_set(write(tmp_path / "q.txt", "a b c d\ne f g h\n"))
    assert isinstance(questions, AnalogySet)
    assert questions.sections == ("q", "q")


def test_a_file_of_bats_asks_every_line_about_every_other_and_keeps_all_answers(tmp_path: Path) -> None:
    file = write(tmp_path / "L01 [hypernyms - animals].txt", "Ape\tprimate/animal/\nbee\tinsect\n")
    section = "L01 [hypernyms - animals]"
    assert read_set(file) == AnalogySet(
        "bats",
        (("ape", "primate", "bee", "insect"), ("bee", "insect", "ape", "primate")),
        (section, section),
        (("insect",), ("primate", "animal")),
    )

    write(file, "ape\tprimate\nbee\t//\n")
    with pytest.raises(EvaluationError, match=r"line 2: expected a word and its answers, with a tab between them, got"):
        read_set(file)


def test_a_section_of_bats_in_two_files_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    name = "L01 [hypernyms - animals].txt"
    both = [write(folder / name, "ape\tprimate\nbee\tinsect\n") for folder in (tmp_path, tmp_path / "copy")]
    with pytest.raises(EvaluationError, match=r"the set 'L01 .*' was already read from"):
        find_sets(both)


def test_a_half_of_bats_keeps_the_answers_of_its_questions(tmp_path: Path) -> None:
    file = write(tmp_path / "L01 [hypernyms - animals].txt", "".join(f"w{n}\ta{n}/b{n}\n" for n in range(20)))
    whole = read_set(file)
    half = split_set(whole, "tune")
    assert isinstance(half, AnalogySet) and 0 < half.size < whole.size
    assert half.answers == tuple((f"a{c[1:]}", f"b{c[1:]}") for _, _, c, _ in half.questions)


def test_case_is_kept_when_asked_and_labels_may_hold_spaces(tmp_path: Path) -> None:
    pairs = read_set(write(tmp_path / "p.tsv", "Red wine\tOslo\t3\n"), lowercase=False)
    assert isinstance(pairs, SimilaritySet) and pairs.pairs == (("Red wine", "Oslo"),)


def test_a_next_line_character_does_not_end_a_line(tmp_path: Path) -> None:
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
        ("a b\n", "line 1: expected word1 word2 score, or .* separated by a tab, got 'a b'"),
        ("a\tb\nc\n", "line 2: expected word and category, separated by a tab, got 'c'"),
        (": s\n", "line 1: the file has sections but no questions"),
        ("\n \n", "p.txt: the file is empty; expected"),
    ],
)
def test_malformed_lines_raise_errors_with_the_line_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        read_set(write(tmp_path / "p.txt", text))


def test_invalid_utf8_raises_an_error_with_the_line_number(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"a b 1\nc \xff 2\n")
    with pytest.raises(EvaluationError, match=r"p\.txt, line 2: not valid UTF-8 \(byte 0xff\)"):
        read_set(tmp_path / "p.txt")


def test_missing_files_and_folders_without_sets_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="none: no such file"):
        find_sets(tmp_path / "none")
    with pytest.raises(EvaluationError, match="no test sets"):
        find_sets(tmp_path)
    with pytest.raises(EvaluationError, match="no files: no test sets"):
        find_sets([])


def test_sets_have_the_order_of_the_paper_and_then_of_their_names(tmp_path: Path) -> None:
    for name in ("zoo", "men", "ape", "ws353_similarity", "google_analogies"):
        write(tmp_path / f"{name}.tsv", "a\tb\t1\n")
    write(tmp_path / "README.md", "not read")
    names = [each.name for each in find_sets(tmp_path)[0]]
    assert names == ["ws353_similarity", "men", "google_analogies", "ape", "zoo"]


def test_two_sets_of_one_name_raise_an_error_but_a_file_listed_twice_is_read_once(tmp_path: Path) -> None:
    men, bruni = (write(tmp_path / name, "a\tb\t1\n") for name in ("men.tsv", "bruni_men.txt"))
    with pytest.raises(EvaluationError, match=r"bruni_men\.txt: the set 'men' was already read from .*men\.tsv"):
        find_sets([men, bruni])
    assert len(find_sets([men, men])[0]) == 1


def test_odd_lines_are_for_tuning_and_even_ones_for_the_report() -> None:
    pairs = SimilaritySet("p", (("a", "b"), ("c", "d"), ("e", "f")), (1, 2, 3))
    assert split_set(pairs, "tune") == SimilaritySet("p", (("a", "b"), ("e", "f")), (1, 3))
    assert split_set(pairs, "report") == SimilaritySet("p", (("c", "d"),), (2,))
    kinds = CategorySet("k", ("a", "b", "c"), ("x", "y", "x"))
    assert split_set(kinds, "report") == CategorySet("k", ("b",), ("y",))
    assert split_set(SimilaritySet("one", (("a", "b"),), (1,)), "report").size == 0


def test_no_pair_of_a_reported_question_occurs_in_tuning() -> None:
    rng = np.random.default_rng(4)
    pairs = [(f"a{n}", f"b{n}") for n in range(40)]
    rows = [(*pairs[i][:: 1 - 2 * (i % 2)], *pairs[j][:: 1 - 2 * (j % 2)]) for i, j in rng.integers(0, 40, (600, 2))]
    rows += [(b, a, d, c) for a, b, c, d in rows]
    whole = AnalogySet("q", tuple(rows), ("odd", "even") * 600)
    tune, report = (split_set(whole, half) for half in ("tune", "report"))
    assert isinstance(tune, AnalogySet) and isinstance(report, AnalogySet)

    def pairs_of(half: AnalogySet) -> set[frozenset[str]]:
        return {frozenset(pair) for a, b, c, d in half.questions for pair in ((a, b), (c, d))}

    assert not pairs_of(tune) & pairs_of(report)
    assert min(tune.size, report.size) > 100
    kept = [*tune.questions, *report.questions]
    parted = [(a, b, c, d) for a, b, c, d in rows if half_of_pair(a, b) != half_of_pair(d, c)]
    assert sorted(kept + parted) == sorted(rows)
    kept_rows = [row for row in zip(whole.questions, whole.sections, strict=True) if row[0] in set(tune.questions)]
    assert kept_rows == list(zip(tune.questions, tune.sections, strict=True))


def test_halves_are_the_same_on_every_machine_and_in_either_order() -> None:
    pairs = [("man", "king"), ("big", "bigger"), ("oslo", "norway"), ("city", "city's")]
    expected = ["report", "tune", "report", "tune"]
    assert [half_of_pair(*pair) for pair in pairs] == [half_of_pair(*pair[::-1]) for pair in pairs] == expected


def test_an_unknown_half_raises_an_error() -> None:
    with pytest.raises(ConfigError, match="half must be one of tune, report, got 'test'"):
        split_set(SimilaritySet("p", (), ()), "test")
