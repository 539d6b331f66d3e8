"""Baselines of tables find planted groups, and the settings that are best on validation cells are chosen."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import scipy.sparse

from experiments.table_methods import (
    BASELINES,
    choose_fit,
    split_in_three,
    why_left_out,
)
from swivel.evaluation import evaluate_ranking


def make_groups(rows: int = 120, columns: int = 40, groups: int = 4) -> scipy.sparse.csr_array:
    """Return a table in which rows have three of four columns of their own group."""
    rng = np.random.default_rng(1)
    is_own = np.arange(rows)[:, None] % groups == np.arange(columns) % groups
    return scipy.sparse.csr_array((is_own & (rng.random((rows, columns)) < 0.75)).astype(float))


@pytest.mark.parametrize(("name", "tried"), [("svd", 7), ("ease", 4), ("item2vec", 6)])
def test_a_baseline_finds_the_columns_of_a_group_and_popularity_does_not(
    name: str, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.table_methods.ITEM_EPOCHS", 100)  # The table is small.
    split = split_in_three(make_groups())
    chosen = choose_fit(BASELINES[name](split.train, 4), split, k=5)
    common = choose_fit(BASELINES["popularity"](split.train, 4), split, k=5)
    assert chosen.report.recall > 0.7 > 2 * common.report.recall
    assert (chosen.tried, common.tried) == (tried, 1)
    assert chosen.cpu_seconds > 0 and chosen.settings


@pytest.mark.heavy
def test_als_finds_the_columns_of_a_group() -> None:
    pytest.importorskip("implicit")
    split = split_in_three(make_groups())
    assert choose_fit(BASELINES["als"](split.train, 4), split, k=5).report.recall > 0.7


def test_the_best_fit_on_validation_cells_is_reported_on_test_cells() -> None:
    split = split_in_three(make_groups())
    good = (split.train + split.validation + split.test).toarray()
    bad = np.random.default_rng(2).random(good.shape)
    chosen = choose_fit([("bad", lambda rows: bad[rows]), ("good", lambda rows: good[rows])], split, k=10)
    assert (chosen.settings, chosen.tried) == ("good", 2)
    expected = evaluate_ranking(lambda rows: good[rows], split.test, split.train + split.validation, k=10)
    assert chosen.report == expected
    np.testing.assert_array_equal(chosen.report.per_row, expected.per_row)


def test_a_split_has_every_cell_once() -> None:
    table = make_groups()
    split = split_in_three(table)
    assert (split.train + split.validation + split.test != table).nnz == 0
    assert split.train.nnz + split.validation.nnz + split.test.nnz == table.nnz
    assert split.train.nnz == pytest.approx(0.6 * table.nnz, rel=0.15)


def test_methods_that_cannot_run_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_left_out("svd", 10**9) is None
    assert why_left_out("ease", 100) is None and why_left_out("ease", 10**5) == "more than 8,000 columns"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert why_left_out("als", 10) == "the package implicit is not installed"
    assert why_left_out("item2vec", 10) == "the package gensim is not installed"


@pytest.mark.parametrize("table", [np.ones((4, 1)), np.ones((5, 6))], ids=["one column", "no positive PMI"])
def test_a_table_without_positive_pmi_has_an_svd_of_zeros(table: np.ndarray) -> None:
    ((settings, scores),) = BASELINES["svd"](scipy.sparse.csr_array(table), 3)
    assert settings == "no positive PMI"
    assert not scores(np.arange(2)).any() and scores(np.arange(2)).shape == (2, table.shape[1])
