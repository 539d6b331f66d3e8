"""The command `swivel evaluate`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from swivel.cli import cli
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, EvaluationError, StorageError
from swivel.vectors import Vectors, VectorTable

WORDS = ["king", "man", "woman", "queen", "pear"]
SQUARE = np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1], [1, -1, 0]], np.float32)


def show(*arguments: object) -> Result:
    ended = CliRunner().invoke(cli, ["evaluate", *map(str, arguments), "--quiet"], prog_name="swivel")
    if ended.exception is not None:
        raise ended.exception
    return ended


@pytest.fixture
def square(tmp_path: Path) -> Path:
    """Vectors with known answers."""
    Vectors(VectorTable(Vocabulary(WORDS), SQUARE)).save(tmp_path / "square")
    return tmp_path / "square"


@pytest.fixture
def crooked(tmp_path: Path) -> Path:
    """Vectors in which 'pear' and 'queen' are swapped."""
    Vectors(VectorTable(Vocabulary([*WORDS[:3], "pear", "queen"]), SQUARE)).save(tmp_path / "crooked")
    return tmp_path / "crooked"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "near.tsv").write_text("king\tman\t9\nking\tqueen\t5\nman\twoman\t1\nman\tzebra\t4\n")
    (folder / "pairs.txt").write_text(": royal\nman king woman queen\n: other\nman king woman zebra\n")
    return folder


def test_the_table_has_figures_intervals_and_coverage(square: Path, data: Path) -> None:
    assert show(square, "--data", data).stdout.splitlines() == [
        "set     measure  figure  95 % interval  known only  all items  known  of  coverage",
        "near        rho   1.000  too few known       1.000      0.949      3   4     75.0%",
        "pairs  accuracy   0.500  too few known       1.000      0.500      1   2     50.0%",
    ]


def test_a_folder_and_files_may_be_combined(square: Path, data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("king man 3\nking queen 2\n")
    names = [line.split()[0] for line in show(square, own, "--data", data).stdout.splitlines()]
    assert names == ["set", "near", "own", "pairs"]
    assert [line.split()[0] for line in show(square, own).stdout.splitlines()] == ["set", "own"]


def test_rules_are_options(square: Path, data: Path) -> None:
    options = ["--unknown", "skip", "--unknown-pairs", "zero", "--method", "3cosmul", "--draws", "0", "--json"]
    plain = json.loads(show(square, data, *options, "--half", "report", "--top", "4").stdout)

    assert plain["rules"] == {
        "method": "3cosmul",
        "unknown": "skip",
        "unknown_pairs": "zero",
        "top": 4,
        "lowercase": True,
        "half": "report",
        "draws": 0,
    }

    near = plain["sets"][0]

    assert (near["known"], near["total"], near["figure"], near["interval"]) == (1, 2, 1.0, None)

    plain = json.loads(show(square, data, *options).stdout)

    assert [each["figure"] for each in plain["sets"]] == [pytest.approx(0.948683), 1.0]


def test_other_vectors_are_compared_item_by_item(square: Path, crooked: Path, data: Path) -> None:
    lines = show(square, "--data", data, "--against", crooked, "--against", square).stdout.splitlines()

    assert lines[3:6] == ["", f"against {crooked}:", ""]
    assert lines[6].split() == ["set", "first", "second", "difference", "95", "%", "interval", "p", "items"]
    assert lines[8].split() == ["pairs", "0.500", "0.000", "+0.500", "-", "-", "2"]
    assert f"against {square}:" in lines

    plain = json.loads(show(square, "--data", data, "--against", crooked, "--json").stdout)
    (comparisons,) = plain["against"].values()

    assert [(each["name"], each["items"]) for each in comparisons] == [("near", 3), ("pairs", 2)]


def test_vectors_of_other_tools_are_evaluated(square: Path, data: Path, tmp_path: Path) -> None:
    lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(WORDS, SQUARE, strict=True))
    (tmp_path / "other.txt").write_text("".join(lines))
    assert show(tmp_path / "other.txt", data).stdout == show(square, data).stdout
    (tmp_path / "other.txt").write_text("king 1 0\nking 0 1\n")
    with pytest.raises(StorageError, match=r"other\.txt, line 2: duplicate word 'king'"):
        show(square, data, "--against", tmp_path / "other.txt")


def test_tables_are_printed_as_markdown(square: Path, crooked: Path, data: Path) -> None:
    shown = show(square, data, "--markdown", "--sections", "--against", crooked).stdout
    header = "| set | measure | figure | 95 % interval | known only | all items | known | of | coverage |"
    assert shown.startswith(header + "\n| :-- | --: |")
    assert "| royal | accuracy | 1.000 | too few known | 1.000 | 1.000 | 1 | 1 | 100.0% |\n" in shown
    assert "| other | accuracy | - | none known | - | - | 0 | 1 | 0.0% |\n" in shown
    assert f"\nagainst {crooked}:\n\n| set | first | second |" in shown


def test_without_sets_those_of_the_paper_are_used(
    square: Path, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(sources: object, *, title: str, progress: object) -> None:
        raise EvaluationError(f"no network for {title}")

    monkeypatch.setattr("swivel.evaluation.scores.fetch_sets", fail)
    with pytest.raises(EvaluationError, match="no network for the paper's test sets"):
        show(square)
    with pytest.raises(EvaluationError, match="no network for SimVerb-3500, MTurk-771 and BATS"):
        show(square, "--suite", "untuned")
    show(square, data)


@pytest.mark.parametrize(
    ("flags", "unused"),
    [
        (["--held-out", "h.tsv", "set.tsv"], "FOLDER_OR_FILE has no effect with --held-out"),
        (["--held-out", "h.tsv", "--against", "other"], "'--against' has no effect with --held-out"),
        (["--held-out", "h.tsv", "--draws", "10"], "'--draws' has no effect with --held-out"),
        (["--held-out", "h.tsv", "--markdown"], "'--markdown' has no effect with --held-out"),
        (["--matrix", "m"], "'--matrix' has no effect without --held-out"),
        (["--texts", "--suite", "untuned"], "'--suite' has no effect with --texts"),
        (["set.tsv", "--suite", "untuned"], "suite has no effect with files or folders"),
        (["-k", "20"], "'-k' has no effect without --held-out"),
    ],
)
def test_flags_without_effect_are_errors(flags: list[str], unused: str, square: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(unused)):
        show(square, *flags)
