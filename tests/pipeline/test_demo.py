"""The bundled matrix, its packing, and the demonstration on it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from message_recorder import MessageRecorder
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, open_matrix
from swivel.errors import DamagedFolder, FolderExists
from swivel.evaluation.datasets import read_bundled
from swivel.pipeline import demo as sample
from swivel.pipeline.demo import (
    CELLS,
    UNIT,
    WORDS,
    open_sample,
    run_demo,
    unpack_cells,
)
from swivel.runtime.options import RunOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from make_sample import pack_cells

DATA = files("swivel") / "data"
# Half a quarter octave, either way.
ROUNDING = 2 ** (1 / 8) - 1

counts = st.one_of(st.just(0.0), st.floats(0.1, 1e12))
tables = st.integers(1, 12).flatmap(lambda size: arrays.arrays(np.float64, (size, size), elements=counts))


# Packing


@settings(max_examples=20)  # a call of lzma takes a tenth of a second
@given(tables)
def test_no_observed_cell_is_lost_and_counts_are_rounded_a_little(table: np.ndarray) -> None:
    table = np.triu(table) + np.triu(table, 1).T
    rows, columns, unpacked = unpack_cells(pack_cells(table), len(table))
    assert list(zip(rows, columns, strict=True)) == list(zip(*np.nonzero(np.triu(table)), strict=True))
    np.testing.assert_allclose(unpacked, table[rows, columns], rtol=ROUNDING)


@settings(max_examples=20)  # a call of lzma takes a tenth of a second
@given(tables)
def test_packing_what_was_unpacked_changes_nothing(table: np.ndarray) -> None:
    packed = pack_cells(np.triu(table) + np.triu(table, 1).T)
    rows, columns, unpacked = unpack_cells(packed, len(table))
    again = np.zeros_like(table)
    again[rows, columns] = again[columns, rows] = unpacked
    assert pack_cells(again) == packed


def test_cells_that_do_not_fit_the_words_are_refused() -> None:
    with pytest.raises(DamagedFolder, match=r"sample-cells\.xz: not what sample-words\.txt says; install"):
        unpack_cells(pack_cells(np.ones((9, 9))), 8)


# What is bundled


def test_bundled_files_are_small() -> None:
    assert sum(len((DATA / name).read_bytes()) for name in (WORDS, CELLS, "pairs.txt")) <= 8_000_000


def test_bundled_words_are_common_english() -> None:
    words = Vocabulary.from_lines((DATA / WORDS).read_text(encoding="utf-8").splitlines())
    assert 5000 <= len(words) <= 6000
    assert words.tokens[:6] == ("the", "of", "and", "in", "to", "a")
    assert (np.diff(words.counts) <= 0).all()
    assert len(words.ids) == len(words)


def test_words_of_all_pairs_are_known() -> None:
    words = Vocabulary.from_lines((DATA / WORDS).read_text(encoding="utf-8").splitlines())
    asked = read_bundled()
    assert {"capitals", "plurals", "comparatives", "genders"} <= set(asked.sections)
    assert [word for question in asked.questions for word in question if word not in words] == []
    assert len(set(asked.questions)) == asked.size
    assert min(Counter(asked.sections).values()) >= 10 * 9


def test_words_of_the_demonstration_are_known() -> None:
    words = Vocabulary.from_lines((DATA / WORDS).read_text(encoding="utf-8").splitlines())
    assert all(word in words for word in [*sample.SHOWN, *(word for words in sample.QUESTIONS for word in words)])


# The demonstration


def test_folder_of_another_matrix_is_refused(planted: Matrix) -> None:
    with pytest.raises(FolderExists, match="finished already from other inputs"):
        open_sample(planted.path)


def test_short_demo_answers_half_of_the_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, because it takes ten seconds: processes that share the tests would each train."""
    for name, value in {"dim": 64, "epochs": 4}.items():
        monkeypatch.setitem(sample.SETTINGS, name, value)
    heard = MessageRecorder()
    demo = run_demo(tmp_path, RunOptions(progress=heard))
    assert heard.lines[0] == "unpacking the bundled matrix of 5,632 English words"
    check_matrix(open_matrix(tmp_path / "matrix"))
    check_answers(demo, share=0.5, least=0.15)  # measured: .62; .33
    check_nothing_is_done_again(demo, tmp_path)


@pytest.mark.slow
def test_demo_answers_most_questions() -> None:
    demo = run_demo(None, RunOptions())
    check_answers(demo, share=0.64, least=0.4)  # measured: .81; .57 to 1
    assert demo["analogies"]["man is to king as woman"] == "queen"
    assert demo["analogies"]["italy is to rome as greece"] == "athens"


def check_matrix(matrix: Matrix) -> None:
    rows, columns, counts = unpack_cells((DATA / CELLS).read_bytes(), len(matrix.rows))
    assert matrix.is_symmetric
    assert matrix.cell_count == 2 * len(rows) - int((rows == columns).sum())
    for cell in np.random.default_rng(3).integers(len(rows), size=20).tolist():
        row, column = matrix.rows[rows[cell]], matrix.rows[columns[cell]]
        assert matrix.count(row, column) == matrix.count(column, row)
        assert matrix.count(row, column) == pytest.approx(counts[cell], abs=1 / UNIT)


def check_answers(demo: Mapping[str, Any], share: float, least: float) -> None:
    """Check the share of right answers, of all sections together and of each."""
    assert demo["analogies"]["large is to larger as small"] == "smaller"
    assert list(demo["neighbors"]) == list(sample.SHOWN)
    assert "red" in [neighbor.token for neighbor in demo["neighbors"]["blue"]]
    assert {"five", "six", "eight"} <= {neighbor.token for neighbor in demo["neighbors"]["seven"]}
    _, right, asked = zip(*demo["sections"], strict=True)
    assert sum(asked) == read_bundled().size
    assert sum(right) / sum(asked) > share, demo["sections"]
    assert all(correct / total > least for _, correct, total in demo["sections"]), demo["sections"]
    data = json.loads(json.dumps(demo))
    assert (data["words"], len(data["sections"])) == (5632, len(set(read_bundled().sections)))


def check_nothing_is_done_again(demo: Mapping[str, Any], folder: Path) -> None:
    heard = MessageRecorder()
    again = run_demo(folder, RunOptions(progress=heard))
    assert heard.lines == [f"{folder / name}: finished already, nothing to do" for name in ("matrix", "vectors")]
    assert (again["neighbors"], again["analogies"], again["sections"]) == (
        demo["neighbors"],
        demo["analogies"],
        demo["sections"],
    )
