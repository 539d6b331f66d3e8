"""Settings that follow from a table, and the transformation of its counts."""

from __future__ import annotations

import math
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import swivel
from message_recorder import MessageRecorder
from swivel.config import TrainConfig, stage_config
from swivel.errors import ConfigError
from swivel.pipeline.train import resolve_configs
from swivel.storage.manifest import read_manifest
from swivel.training import table_settings
from swivel.training.fold_in import fold_in
from swivel.training.table_settings import (
    choose_block_size,
    choose_popularity,
    choose_table_settings,
    choose_weight_decay,
    drop_empty,
    find_mean_decay,
    find_singular_values,
    find_weight_decay,
    is_table,
    read_rows,
)


def table_config(dim: int, **settings: Any) -> TrainConfig:
    return stage_config(TrainConfig, "table", dim=dim, **settings)


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


def make_size(rows: int, columns: int, cells: int) -> Any:
    """Return what settings are chosen from, without a table."""
    sums = {"row_sums": np.ones(rows), "column_sums": np.ones(columns)}
    return SimpleNamespace(shape=(rows, columns), cell_count=cells, total=float(cells), absent_bound=0.0, **sums)


def make_cells(rows: int = 300, columns: int = 200, *, groups: int = 1, share: float = 0.05) -> scipy.sparse.coo_array:
    """Return random cells; with several groups, only rows and columns of the same group have cells."""
    rng = np.random.default_rng(2)
    is_same = np.arange(rows)[:, None] % groups == np.arange(columns) % groups
    return scipy.sparse.coo_array((rng.random((rows, columns)) < share * groups * is_same).astype(float))


def test_memory_for_choosing_the_weight_decay_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make_table(600, 400)
    estimates: list[int] = []
    monkeypatch.setattr(table_settings, "check_memory", lambda _, size: estimates.append(size))
    choose_weight_decay(matrix, table_config(4))  # Imports take memory the first time.

    tracemalloc.start()
    choose_weight_decay(matrix, table_config(4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.5 * estimates[0] < peak < estimates[0]


def test_singular_values_are_close_to_those_of_the_dense_matrix() -> None:
    table = make_cells(groups=4)
    found = find_singular_values(table.tocsr(), 8, np.random.default_rng(1))
    np.testing.assert_allclose(found, np.linalg.svd(table.toarray(), compute_uv=False)[:8], rtol=0.1)


def test_singular_values_are_as_many_as_the_matrix_has() -> None:
    table = np.random.default_rng(2).normal(size=(5, 3))
    found = find_singular_values(scipy.sparse.csr_array(table), 8, np.random.default_rng(1))
    np.testing.assert_allclose(found, np.linalg.svd(table, compute_uv=False), rtol=1e-6)


def test_weight_decay_of_independent_cells_is_their_noise() -> None:
    table = drop_empty(make_cells(1000, 600))
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    targets = table.toarray() * (np.log(table.sum() / (rows[:, None] * columns)) + 4)
    # In the vectors w sqrt(decay), the decay of all rows is the same; in the table, it is proportional to a root.
    targets /= np.sqrt(np.sqrt(rows)[:, None] * np.sqrt(columns))
    middle = np.linalg.svd(targets, compute_uv=False)[64]
    assert find_weight_decay(table, table_config(32)) == pytest.approx(
        0.77 * 1.2 * middle / math.sqrt(1000 * 600), rel=0.1
    )


def test_the_mean_decay_is_the_weight_decay_if_it_is_the_same_for_all() -> None:
    table, config = drop_empty(make_cells()), table_config(16, decay_power=0.0)
    assert find_weight_decay(table, config) == find_mean_decay(table, config)


def test_the_more_structure_a_table_has_the_less_decay_it_needs() -> None:
    tables = [drop_empty(make_cells(1000, 600, groups=groups)) for groups in (1, 4, 20, 40)]
    none, leading, little, much = (find_weight_decay(table, table_config(16)) for table in tables)
    assert leading == pytest.approx(none, rel=0.01)  # A few dimensions of structure do not count.
    assert [little, much] == pytest.approx([0.75 * none] * 2, rel=0.03)  # the smallest factor


def test_the_weight_decay_does_not_depend_on_the_dimensions_and_the_learning_rate_falls_with_them() -> None:
    table = drop_empty(make_cells(1000, 600, groups=20))
    assert len({find_weight_decay(table, table_config(dim)) for dim in (16, 64, 300, 1_024)}) == 1
    matrix = make_table()
    rates = [resolve_configs(matrix, "table", {"dim": dim})[0].learning_rate for dim in (16, 64, 256, 1_024)]
    assert rates == [0.5, 0.5, 0.25, 0.125]
    assert resolve_configs(matrix, "table", {"dim": 256, "learning_rate": 0.3})[0].learning_rate == 0.3


def test_weight_decay_ignores_empty_rows_and_the_scale_of_counts() -> None:
    table, config = make_cells(), table_config(16)
    mean, setting = find_mean_decay(drop_empty(table), config), find_weight_decay(drop_empty(table), config)
    wider = drop_empty(scipy.sparse.coo_array((10 * table.data, table.coords), shape=(310, 230)))
    assert find_mean_decay(wider, config) == pytest.approx(mean)
    assert find_weight_decay(wider, config) == pytest.approx(setting / math.sqrt(10))  # times the root of the sums


def test_weight_decay_of_large_tables_is_that_of_some_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = make_cells(2000, 300)
    matrix = swivel.import_counts([(f"r{i}", f"c{j}", 1) for i, j in zip(*cells.coords, strict=True)])
    exact = choose_weight_decay(matrix, table_config(16))
    monkeypatch.setattr("swivel.training.table_settings.MAX_SPECTRUM_CELLS", cells.nnz // 4)
    assert read_rows(matrix, 4).shape[0] == 500
    assert choose_weight_decay(matrix, table_config(16)) == pytest.approx(exact, rel=0.15)
    assert choose_weight_decay(matrix, table_config(16)) != exact


def test_unseen_follows_the_mean_count() -> None:
    one, ten = (choose_table_settings(make_table(scale=scale)) for scale in (1, 10))
    table = make_table()
    counts = [table.count(row, column) for row in table.rows for column in table.columns]
    mean = sum(counts) / sum(count > 0 for count in counts)
    assert one["unseen"] == pytest.approx(math.exp(-6) * mean, rel=1e-8)
    assert ten["unseen"] == pytest.approx(10 * one["unseen"])
    assert (one["block_size"], one["epochs"]) == (512, 24)


def test_large_tables_have_the_blocks_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.training.table_settings.MAX_SIZE", 30)
    monkeypatch.setattr("swivel.training.table_settings.FEW_CELLS", 100)
    settings = choose_table_settings(make_table())
    assert not {"block_size", "epochs"} & set(settings)


def test_all_zeros_of_small_tables_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_table_settings(make_table())["zeros"] == "all"
    monkeypatch.setattr("swivel.training.table_settings.FEW_CELLS", 40 * 25 - 1)
    assert choose_table_settings(make_table())["zeros"] == "auto"


def test_zeros_are_sampled_in_proportion_to_the_density(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.training.table_settings.FEW_CELLS", 100)
    table = make_table()
    density = table.cell_count / (40 * 25)
    found = {}
    for ratio in (0.25, 1, 4, 100):
        monkeypatch.setattr("swivel.training.table_settings.USUAL_DENSITY", density / ratio)
        settings = choose_table_settings(table)
        found[ratio] = settings["zeros_common"], settings["zeros_middle"], settings["zeros_share"]

    assert found[1] == (0.05, 0.2, 0.01)
    assert found[0.25] == pytest.approx((0.0125, 0.1, 0.0025))
    assert found[4] == found[100] == pytest.approx((0.2, 0.4, 0.04))


@pytest.mark.parametrize(("rows", "columns"), [(65_536, 30), (65_537, 30), (30, 65_536), (30, 65_537)])
def test_tables_above_65536_rows_or_columns_have_the_blocks_and_epochs_of_text(rows: int, columns: int) -> None:
    settings = choose_table_settings(make_size(rows, columns, 100_000))
    is_small = max(rows, columns) <= 65_536
    assert settings.get("epochs") == (24 if is_small else None)
    assert ("block_size" in settings) is is_small


def test_zeros_of_tables_above_two_million_cells_are_sampled() -> None:
    assert choose_table_settings(make_size(2_000, 1_000, 4_000))["zeros"] == "all"
    found = choose_table_settings(make_size(2_001, 1_000, 4_002))
    assert found["zeros"] == "auto"
    assert (found["zeros_common"], found["zeros_middle"], found["zeros_share"]) == (0.1, 0.282843, 0.02)


@pytest.mark.parametrize(
    ("rows", "cells", "step"),
    [(50_000, 10_000_000, 1), (50_001, 10_000_000, 2), (50_000, 10_000_001, 2), (10_000, 35_000_000, 4)],
)
def test_rows_are_left_out_above_50000_rows_or_ten_million_cells(
    rows: int, cells: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def read(matrix: swivel.Matrix, step: int) -> scipy.sparse.coo_array:
        steps.append(step)
        return drop_empty(make_cells())

    monkeypatch.setattr(table_settings, "read_rows", read)
    choose_weight_decay(make_size(rows, 1_000, cells), table_config(16))
    assert steps == [step]


@pytest.mark.parametrize(
    ("shape", "density", "expected"),
    [((6_000, 3_600), 0.03, 512), ((20_000, 12_000), 4e-4, 6_000), ((60_000, 50_000), 4e-4, 8_192), ((9, 9), 0.5, 512)],
)
def test_blocks_of_sparse_tables_are_larger(shape: tuple[int, int], density: float, expected: int) -> None:
    assert choose_block_size(*shape, density) == expected


def test_popularity_grows_with_the_cells_of_a_row_and_stays_in_its_range() -> None:
    sums = np.ones(1_000)
    values = [choose_popularity(1_000, cells, sums) for cells in (10, 1_000, 10_000, 100_000, 10_000_000)]
    assert values == sorted(values) and (values[0], values[-1]) == (0.0, 1.0)


def test_popularity_is_more_if_few_columns_have_most_cells() -> None:
    sums = np.ones(1_000)
    even = choose_popularity(1_000, 5_000, sums)
    sums[:10] = 100
    assert choose_popularity(1_000, 5_000, sums) == pytest.approx(even + 1_010 / 1_990 - 20 / 1_000, abs=0.011)


def test_vectors_of_a_table_have_the_popularity_of_their_ranking() -> None:
    table = make_table()
    vectors = swivel.train(table, dim=4, epochs=1)
    expected = choose_popularity(table.shape[0], table.cell_count, table.column_sums)
    assert vectors.settings["ranking"] == {"popularity": expected}
    assert swivel.Recommender(vectors, table).ranking.popularity == expected
    assert "ranking" not in swivel.train(table, dim=4, epochs=1, recipe="fast").settings


def test_recipe_table_is_chosen_for_tables_alone_and_a_line_says_so() -> None:
    table = make_table()
    text = swivel.count(["a b c", "b c d"], min_count=1)
    assert is_table(table) and not is_table(text)

    for matrix, is_said in ((table, True), (text, False)):
        recorder = MessageRecorder()
        vectors = swivel.train(matrix, dim=4, epochs=1, progress=recorder)
        said = [line for line in recorder.lines if "recipe table" in line]
        assert len(said) == is_said
        config = vectors.settings["train"]
        assert (config["transform"] == "log") == is_said


def test_given_settings_override_those_of_the_table() -> None:
    vectors = swivel.train(make_table(), dim=4, epochs=2, weight_decay=0.5, unseen=0.25)
    config = vectors.settings["train"]
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


def test_fold_in_transforms_the_counts_of_new_rows() -> None:
    rng = np.random.default_rng(3)
    columns = rng.normal(size=(6, 2))
    counts = rng.integers(0, 50, (4, 6)).astype(float)
    sums, total = np.full(6, 20.0), 120.0
    raw = fold_in(np.log1p(counts), columns, sums, total, TrainConfig(dim=2))
    assert fold_in(counts, columns, sums, total, TrainConfig(dim=2, transform="log")) == pytest.approx(raw)


def test_chance_decides_little_in_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    full = scipy.sparse.coo_array(1 + np.random.default_rng(3).poisson(5, (60, 40)))
    decay = find_weight_decay(full, table_config(8))
    monkeypatch.setattr(table_settings, "MIN_UNOBSERVED", 1.0)
    assert find_weight_decay(full, table_config(8)) == pytest.approx(10 * decay)


def test_the_weight_decay_follows_from_the_shift_that_is_given() -> None:
    table = scipy.sparse.coo_array(np.random.default_rng(3).poisson(0.3, (60, 40)))
    decays = [find_weight_decay(drop_empty(table), table_config(8, shift=shift)) for shift in (-4.0, 0.0)]
    assert decays[1] < decays[0] / 2


def test_settings_are_checked_before_the_weight_decay_is_computed() -> None:
    table = np.random.default_rng(3).poisson(0.3, (60, 40))
    with pytest.raises(ConfigError, match="dim"):
        swivel.SwivelEmbedding(0).fit(table)
