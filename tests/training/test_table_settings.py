"""Settings that follow from a table, and the transformation of its counts."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest

import swivel
from message_recorder import MessageRecorder
from swivel.config import TrainConfig
from swivel.counts.transform import transform_counts
from swivel.reports.run_summary import find_fit, read_objective, summarize_run
from swivel.storage import read_manifest
from swivel.training.fold_in import fold_in
from swivel.training.table_settings import choose_table_settings, choose_weight_decay, is_table


def make_table(rows: int = 40, columns: int = 25, scale: float = 1.0) -> swivel.Matrix:
    """Return a table in which rows and columns of one of five groups occur together."""
    rng = np.random.default_rng(1)
    cells = [
        (f"r{i}", f"c{j}", scale * int(rng.integers(1, 9)))
        for i in range(rows)
        for j in range(columns)
        if i % 5 == j % 5 or rng.random() < 0.05
    ]
    return swivel.import_counts(cells)


def test_weight_decay_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(2)
    cells = rng.random((30, 20)) < 0.3
    cells[0] = cells[:, 0] = True
    sums = cells.sum(axis=1).astype(float), cells.sum(axis=0).astype(float)
    count = int(cells.sum())

    # The mean PMI over the observed cells, cell by cell.
    i, j = np.nonzero(cells)
    information = float(np.log(count / (sums[0][i] * sums[1][j])).mean())
    expected = 1.5 * 1.2 * cells.mean() * math.sqrt(information) * (30 / count + 20 / count) ** 0.25
    assert choose_weight_decay(*sums, count) == pytest.approx(expected)


def test_weight_decay_ignores_empty_rows_and_the_scale_of_counts() -> None:
    sums = np.array([4.0, 3, 2]), np.array([3.0, 3, 2, 1])
    expected = choose_weight_decay(*sums, 7)
    assert choose_weight_decay(np.append(sums[0], 0), np.append(sums[1], [0, 0]), 7) == pytest.approx(expected)
    assert choose_weight_decay(10 * sums[0], 10 * sums[1], 7) == pytest.approx(expected)


def test_unseen_follows_the_mean_count() -> None:
    one, ten = (choose_table_settings(make_table(scale=scale)) for scale in (1, 10))
    assert ten["unseen"] == pytest.approx(10 * one["unseen"])
    assert (one["block_size"], one["epochs"]) == (512, 40)


def test_large_tables_have_the_blocks_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.training.table_settings.MAX_SIZE", 30)
    monkeypatch.setattr("swivel.training.table_settings.FEW_CELLS", 100)
    assert set(choose_table_settings(make_table())) == {"weight_decay", "unseen"}


def test_all_zeros_of_small_tables_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_table_settings(make_table())["zeros"] == "all"
    monkeypatch.setattr("swivel.training.table_settings.FEW_CELLS", 40 * 25 - 1)
    assert "zeros" not in choose_table_settings(make_table())


@pytest.mark.parametrize(("block_size", "epochs"), [(25, 40), (4, 34), (1, 10)])
def test_vectors_of_small_and_large_tables_have_as_many_updates(
    block_size: int, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swivel.training.table_settings.BLOCK_SIZE", block_size)
    assert choose_table_settings(make_table())["epochs"] == epochs  # of 40 x 25


def test_recipe_table_is_chosen_for_tables_alone_and_a_line_says_so() -> None:
    table = make_table()
    text = swivel.count(["a b c", "b c d"], min_count=1)
    assert is_table(table) and not is_table(text)

    for matrix, is_said in ((table, True), (text, False)):
        recorder = MessageRecorder()
        vectors = swivel.train(matrix, dim=4, epochs=1, progress=recorder)
        said = [line for line in recorder.lines if "recipe table" in line]
        assert len(said) == is_said
        assert vectors.path is not None
        config = read_manifest(vectors.path).config["train"]
        assert (config["transform"] == "log") == is_said


def test_given_settings_override_those_of_the_table() -> None:
    vectors = swivel.train(make_table(), dim=4, epochs=2, weight_decay=0.5, unseen=0.25)
    assert vectors.path is not None
    config = read_manifest(vectors.path).config["train"]
    assert (config["weight_decay"], config["unseen"], config["epochs"], config["block_size"]) == (0.5, 0.25, 2, 512)


def test_transform_trains_on_the_logarithms_of_the_counts() -> None:
    table = make_table(scale=100)
    damped = [
        (row, column, float(np.log1p(table.count(row, column))))
        for row in table.rows
        for column in table.columns
        if table.count(row, column)
    ]
    one = swivel.train(table, dim=4, epochs=3, recipe="fast", transform="log", zeros="all")
    two = swivel.train(swivel.import_counts(damped), dim=4, epochs=3, recipe="fast", zeros="all")

    assert one.row_sums is not None and two.row_sums is not None
    order = [two.vocabulary.id(row) for row in one.vocabulary]
    np.testing.assert_allclose(one.row_sums, two.row_sums[order], rtol=1e-5)


def test_transform_writes_nothing_but_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    vectors = swivel.train(table, tmp_path / "vectors", dim=4, epochs=1)
    assert vectors.path is not None
    assert read_manifest(vectors.path).inputs == {"matrix": table.fingerprint}

    recorder = MessageRecorder()
    swivel.train(table, tmp_path / "vectors", dim=4, epochs=1, progress=recorder)
    assert any("finished already, nothing to do" in line for line in recorder.lines)


def test_fit_of_a_table_is_that_of_the_logarithms() -> None:
    table = make_table(scale=100)
    vectors = swivel.train(table, dim=4, epochs=1, recipe="fast", transform="log", zeros="all")
    assert vectors.path is not None
    manifest = read_manifest(vectors.path)
    buckets = summarize_run(vectors, table).fit
    assert buckets == find_fit(vectors, transform_counts(table, "log"), read_objective(manifest))
    assert buckets != find_fit(vectors, table, read_objective(manifest))


def test_fold_in_transforms_the_counts_of_new_rows() -> None:
    rng = np.random.default_rng(3)
    columns = rng.normal(size=(6, 2))
    counts = rng.integers(0, 50, (4, 6)).astype(float)
    sums, total = np.full(6, 20.0), 120.0
    raw = fold_in(np.log1p(counts), columns, sums, total, TrainConfig(dim=2))
    assert fold_in(counts, columns, sums, total, TrainConfig(dim=2, transform="log")) == pytest.approx(raw)
