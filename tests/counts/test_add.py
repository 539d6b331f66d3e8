"""Adding matrices: exact sums by label for every kind of columns, and matrices that cannot be added."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import swivel
from message_recorder import MessageRecorder
from swivel.cli import cli
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.errors import ConfigError, CountsError, FolderExists, MemoryBudgetError, StorageError
from swivel.pipeline.add import add
from swivel.pipeline.count import count
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress, Task

CELL_FILES = ("offsets.npy", "positions.npy", "counts.npy", "row_sums.npy", "column_sums.npy", "rows.txt")
COLUMNS = ("symmetric", "directional", "bands", "directional-bands")


def make_text(seed: int, lines: int = 120, words: int = 60) -> list[str]:
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.geometric(0.08, (lines, 12)), words)
    return [" ".join(f"w{number}" for number in line) for line in ids]


def make_matrix(path: Path, table: dict[tuple[str, str], int], *, unit: int = 1) -> Matrix:
    rows, columns = (list(dict.fromkeys(labels)) for labels in zip(*table, strict=True))
    spec = MatrixSpec(
        rows=Vocabulary(rows, range(len(rows), 0, -1)),
        columns=Vocabulary(columns, range(len(columns), 0, -1)),
        unit=unit,
    )

    with MatrixBuilder(path, spec, memory_bytes=1 << 20) as builder:
        for (row, column), units in table.items():
            builder.add(rows.index(row), columns.index(column), units)
        return builder.finish()


def cells_of(matrix: Matrix) -> dict[tuple[str, str], float]:
    cells = matrix.to_scipy().tocoo()
    return {
        (matrix.rows[row], matrix.columns[column]): value
        for row, column, value in zip(*cells.coords, cells.data, strict=True)
    }


@pytest.mark.parametrize("columns", COLUMNS)
def test_halves_of_a_text_add_up_to_the_whole_bit_for_bit(columns: str, tmp_path: Path) -> None:
    text = make_text(1)
    whole = count(text, tmp_path / "whole", columns=columns, min_count=1, window=4)
    halves = [count(part, columns=columns, vocabulary=list(whole.rows), window=4) for part in (text[:50], text[50:])]
    total = add(*halves, out=tmp_path / "sum")
    for name in CELL_FILES:
        assert (tmp_path / "sum" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name

    assert total.columns == whole.columns
    assert total.fingerprint == whole.fingerprint
    assert total.is_symmetric == (columns in ("symmetric", "bands") and whole.is_symmetric)


@pytest.mark.parametrize("columns", COLUMNS)
def test_counts_of_equal_labels_are_summed_if_vocabularies_differ(columns: str) -> None:
    settings: dict[str, Any] = {"columns": columns, "window": 3}
    matrices = [count(make_text(seed, lines=40, words=30 + seed), min_count=seed, **settings) for seed in (2, 3, 4)]
    assert len({matrix.rows.tokens for matrix in matrices}) == 3
    expected: dict[tuple[str, str], float] = {}

    for matrix in matrices:
        for cell, value in cells_of(matrix).items():
            expected[cell] = expected.get(cell, 0.0) + value

    total = add(*matrices)
    cells = cells_of(total)
    assert cells.keys() == expected.keys()
    assert all(cells[cell] == pytest.approx(value) for cell, value in expected.items())
    assert total.total == pytest.approx(sum(matrix.total for matrix in matrices))
    assert total.columns_per_row == matrices[0].columns_per_row


def test_words_are_sorted_by_descending_summed_count_then_by_code_points() -> None:
    total = add(count(["b a", "b c"], min_count=1), count(["c d", "c a"], min_count=1))
    assert list(zip(total.rows.tokens, total.rows.counts.tolist(), strict=True)) == [
        ("c", 3),
        ("a", 2),
        ("b", 2),
        ("d", 1),
    ]


def test_rows_and_columns_of_tables_have_separate_vocabularies(tmp_path: Path) -> None:
    first = make_matrix(tmp_path / "a", {("tea", "hot"): 2, ("milk", "cold"): 1})
    second = make_matrix(tmp_path / "b", {("tea", "hot"): 3, ("hot", "tea"): 4})
    total = add(first, second)
    assert cells_of(total) == {("tea", "hot"): 5, ("milk", "cold"): 1, ("hot", "tea"): 4}
    assert total.columns_per_row == 0


def test_units_that_differ_are_summed_exactly(tmp_path: Path) -> None:
    first = make_matrix(tmp_path / "a", {("tea", "hot"): 1}, unit=4)
    second = make_matrix(tmp_path / "b", {("tea", "hot"): 1}, unit=6)
    total = add(first, second)
    assert (total.unit, total.count("tea", "hot")) == (12, 5 / 12)


def test_counts_above_32_bits_are_summed_exactly(tmp_path: Path) -> None:
    large = (1 << 33) + 1
    total = add(*(make_matrix(tmp_path / name, {("tea", "hot"): large, ("tea", "cold"): 1}) for name in "ab"))
    assert total.count("tea", "hot") == 2 * large


def test_little_memory_gives_the_same_files(tmp_path: Path) -> None:
    matrices = [count(make_text(seed), min_count=1, columns="symmetric") for seed in (5, 6)]
    add(*matrices, out=tmp_path / "much", options=RunOptions(memory="64MiB"))
    add(*matrices, out=tmp_path / "little", options=RunOptions(memory=100_000, threads=1))
    for name in CELL_FILES:
        assert (tmp_path / "much" / name).read_bytes() == (tmp_path / "little" / name).read_bytes(), name


def test_a_finished_sum_is_not_computed_again_and_other_terms_are_refused(tmp_path: Path) -> None:
    first, second = (count(make_text(seed), tmp_path / str(seed), min_count=1) for seed in (5, 6))
    total = add(tmp_path / "5", tmp_path / "6", out=tmp_path / "sum")
    before = (tmp_path / "sum" / "manifest.json").stat().st_mtime_ns
    again = add(first, second, out=tmp_path / "sum")
    assert (tmp_path / "sum" / "manifest.json").stat().st_mtime_ns == before
    assert again.fingerprint == total.fingerprint
    with pytest.raises(FolderExists, match="finished already from other inputs"):
        add(first, first, out=tmp_path / "sum")

    assert add(first, first, out=tmp_path / "sum", overwrite=True).total == 2 * first.total
    with pytest.raises(ConfigError, match="'overwite' is not a setting here"):
        add(first, first, overwite=True)


def test_a_sum_can_be_added_to_and_keeps_its_count_settings() -> None:
    first, second, third = (count(make_text(seed), min_count=1, window=3) for seed in (1, 2, 3))
    total = add(add(first, second), third)
    assert (total.config["count"], total.config["corpus"]) == (first.config["count"], first.config["corpus"])
    other = add(first, count(make_text(2), min_count=1, window=3, errors="replace"))
    assert "errors" not in other.config["corpus"] and other.config["corpus"]["tokenizer"] == "words"
    assert cells_of(total) == pytest.approx(cells_of(add(first, second, third)))
    with pytest.raises(CountsError, match="window_left is 3 in the first and 5 in the second"):
        add(total, count(make_text(1), min_count=1, window=5))


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (
            {"window": 3},
            {"window": 4},
            "window_left is 3 in the first and 4 in the second; count both with the same settings",
        ),
        ({"left": 2}, {"left": 3}, "window_left is 2 in the first and 3 in the second"),
        ({"weight": "harmonic"}, {"weight": "uniform"}, "weight is harmonic in the first and uniform in the second"),
        ({}, {"lowercase": False}, "lowercase is True in the first and False in the second"),
        ({}, {"phrases": "word2vec"}, "phrases is none in the first and word2vec in the second"),
        ({"oov": "drop"}, {"oov": "gap"}, "oov is drop in the first and gap in the second"),
        (
            {"columns": "symmetric"},
            {"columns": "directional"},
            "columns is symmetric in the first and directional in the",
        ),
        (
            {"columns": "bands", "near": 1},
            {"columns": "bands", "near": 2},
            "near is 1 in the first and 2 in the second",
        ),
    ],
)
def test_matrices_counted_differently_are_refused(one: dict[str, Any], other: dict[str, Any], reason: str) -> None:
    first, second = (count(["a b c d e a b"], min_count=1, **settings) for settings in (one, other))
    with pytest.raises(CountsError, match=reason):
        add(first, second)


def test_columns_of_different_kinds_are_refused(tmp_path: Path) -> None:
    edges = [("a", "b", 1), ("b", "c", 2)]
    table, directed, mirrored = (swivel.import_counts(edges, sides=sides) for sides in ("apart", "same", "undirected"))
    with pytest.raises(CountsError, match=r"the same rows and columns \(symmetric\): they cannot be added"):
        add(directed, mirrored)

    with pytest.raises(
        CountsError, match=r"has columns with their own labels, .* has the same labels for rows and columns"
    ):
        add(table, directed)

    with pytest.raises(CountsError, match=r"has 2 columns per row \(left, right\)"):
        add(table, count(["a b c"], min_count=1, columns="directional"))


def test_imported_baskets_are_added(tmp_path: Path) -> None:
    (tmp_path / "visits.baskets").write_text("tea milk sugar\nmilk tea\n")
    matrix = swivel.import_counts(tmp_path / "visits.baskets")
    assert add(matrix, matrix).total == 2 * matrix.total


def test_one_matrix_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="two or more matrices to add, got 1"):
        add(count(["a b"], min_count=1))


def test_units_too_different_are_refused(tmp_path: Path) -> None:
    first = make_matrix(tmp_path / "a", {("tea", "hot"): 1 << 50}, unit=(1 << 20) + 7)
    second = make_matrix(tmp_path / "b", {("tea", "hot"): 1 << 50}, unit=1 << 20)
    with pytest.raises(CountsError, match="too different for an exact sum"):
        add(first, second, out=tmp_path / "sum")
    assert not (tmp_path / "sum").exists()


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    matrix = count(["a b"], min_count=1)
    with pytest.raises(MemoryBudgetError, match="building a matrix needs"):
        add(matrix, matrix, options=RunOptions(memory=1_000))


def test_the_estimate_is_announced_and_checked_against_the_free_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (count([text], tmp_path / text[0], min_count=1) for text in ("a b a c", "b c b"))
    messages: list[str] = []
    monkeypatch.setattr(Progress, "message", lambda self, text: messages.append(text))
    add(one, two, out=tmp_path / "sum")
    assert "less than 1 MiB of memory and less than 1 MiB of disk for adding" in messages
    monkeypatch.setattr("swivel.runtime.resources.free_disk", lambda path: 8)
    with pytest.raises(StorageError, match=r"adding needs about .* of disk, but 8 B are free"):
        add(one, two, out=tmp_path / "more")

    assert not (tmp_path / "more").exists()


def test_progress_is_reported_in_cells() -> None:
    class Adding(Progress, Task):
        total = 0.0
        done = 0.0

        def begin(self, job: str, total: float | None, unit: str) -> Task:
            assert (job, unit) == ("adding", "cells")
            self.total = total or 0.0
            return self

        def advance(self, amount: float = 1, note: str = "") -> None:
            self.done += amount

    progress = Adding()
    matrix = count(make_text(1), min_count=1, columns="directional")
    add(matrix, matrix, options=RunOptions(progress=progress))
    assert progress.done == progress.total == 2 * matrix.cell_count


def test_the_command_adds_folders(tmp_path: Path) -> None:
    for seed in (5, 6):
        count(make_text(seed), tmp_path / str(seed), min_count=1)

    folders = [str(tmp_path / name) for name in ("5", "6")]
    done = CliRunner().invoke(cli, ["add", *folders, "-o", str(tmp_path / "sum"), "--quiet"])
    assert done.exit_code == 0, done.output
    total = swivel.open_matrix(tmp_path / "sum")
    assert f"{total.shape[0]:,} x {total.shape[1]:,}, {total.cell_count:,} cells observed" in done.output
    assert total.total == sum(swivel.open_matrix(folder).total for folder in folders)


def test_labels_beyond_memory_are_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (make_matrix(tmp_path / name, {("a", "x"): 1, ("b", "x"): 2}) for name in ("one", "other"))
    monkeypatch.setattr("swivel.counts.matrix_sum.check_memory", partial(refuse_memory, 1_000))
    with pytest.raises(MemoryBudgetError, match="adding matrices with 6 labels needs 1,800 bytes"):
        add(one, other, out=tmp_path / "sum")


def refuse_memory(free: int, what: str, memory_bytes: int) -> None:
    if memory_bytes > free:
        raise MemoryBudgetError(f"{what} needs {memory_bytes:,} bytes")


def test_sums_of_imported_counts_have_the_recipe_of_their_parts() -> None:
    pairs = [(f"c{i}", f"c{j}", float((i * j) % 7 + 1)) for i in range(9) for j in range(i + 1, 9)]
    cases: list[tuple[list[Any], dict[str, Any], str]] = [
        (pairs, {"sides": "undirected"}, "recipe graph: counts of pairs"),
        ([pair[:2] for pair in pairs], {"format": "edges"}, "recipe table: edges of a graph"),
    ]
    for source, settings, reason in cases:
        total = add(*(swivel.import_counts(part, **settings) for part in (source, source[:20])))
        recorder = MessageRecorder()
        vectors = swivel.train(total, dim=2, epochs=1, progress=recorder)
        assert any(reason in line for line in recorder.lines), recorder.lines
        assert vectors.subwords is None
