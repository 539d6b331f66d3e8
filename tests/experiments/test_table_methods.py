"""Baselines of tables find planted groups, and the settings that are best on validation cells are chosen."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse

from experiments.table_methods import (
    BASELINES,
    Axis,
    Method,
    choose_fit,
    split_in_three,
    why_left_out,
)
from swivel.errors import ConfigError
from swivel.evaluation.table_ranking import Scores


def make_groups(rows: int = 120, columns: int = 40, groups: int = 4) -> scipy.sparse.csr_array:
    """Return a table in which rows have three of four columns of their own group."""
    rng = np.random.default_rng(1)
    is_own = np.arange(rows)[:, None] % groups == np.arange(columns) % groups
    return scipy.sparse.csr_array((is_own & (rng.random((rows, columns)) < 0.75)).astype(float))


@pytest.mark.parametrize("name", ["svd", "ease", "item2vec", "ials"])
def test_a_baseline_finds_the_columns_of_a_group_and_popularity_does_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.table_methods.ITEM_EPOCHS", 100)  # The table is small.
    split = split_in_three(make_groups())
    chosen = choose_fit(BASELINES[name], split, 4, k=5)
    common = choose_fit(BASELINES["popularity"], split, 4, k=5)
    assert chosen.report.recall > 0.7 > 2 * common.report.recall
    assert chosen.tried > 2 and common.tried == 1
    assert chosen.cpu_seconds > 0 and chosen.settings


@pytest.mark.heavy
def test_als_finds_the_columns_of_a_group() -> None:
    pytest.importorskip("implicit")
    split = split_in_three(make_groups())
    assert choose_fit(BASELINES["als"], split, 4, k=5).report.recall > 0.7


def test_ials_minimizes_its_loss() -> None:
    table = make_groups(30, 12, 2)
    scores = BASELINES["ials"].prepare(table, 12)(zeros=0.2, decay=0.05)(np.arange(30))
    dense, frequencies = (
        table.toarray(),
        [table.toarray().sum(1 - side) + 0.2 * table.shape[1 - side] for side in (0, 1)],
    )

    # With enough dimensions, the smallest sum of squared norms of both sides is twice a nuclear norm of the scores.
    def loss(scores: np.ndarray) -> float:
        roots = [np.sqrt(frequency) for frequency in frequencies]
        norm = np.linalg.svd(roots[0][:, None] * scores * roots[1], compute_uv=False).sum()
        return float((dense * (scores - 1) ** 2 + 0.2 * scores**2).sum() + 2 * 0.05 * norm)

    assert min(loss(scores * factor) for factor in (0.97, 1.03)) > loss(scores)
    assert loss(scores) < loss(0 * scores)


def make_method(scores: Callable[[float, float], float], good: np.ndarray, **axes: Axis) -> Method:
    """Return a method whose scores are right in a share of the rows, which depends on two settings."""
    noise = np.random.default_rng(2).random(good.shape)

    def fit(first: float, second: float) -> Scores:
        count = int(len(good) * scores(first, second))
        mixed = np.concatenate([good[:count], noise[count:]])
        return lambda rows: mixed[rows]

    return Method(lambda train, dim: fit, axes)


def test_the_best_fit_on_validation_cells_is_inside_what_was_tried_and_reported_on_test_cells() -> None:
    split = split_in_three(make_groups())
    good = (split.train + split.validation + split.test).toarray()
    axes = {"first": Axis.geometric(1, 2), "second": Axis.listed(0, 1)}
    peak = make_method(lambda first, second: 0.5 + 0.3 * second - 0.1 * abs(math.log2(first) - 3), good, **axes)
    chosen = choose_fit(peak, split, 4, k=10)
    assert chosen.settings == "first 8 second 1"
    assert chosen.tried == 10  # 1/2, 1 and 2 without second; 1, 2, 4, 8 and 16 with it; 4 and 8 without it

    rising = make_method(lambda first, second: 1 - 1 / (10 + math.log2(first)), good, **axes)
    with pytest.raises(ConfigError, match="not inside the 6 that were tried"):
        choose_fit(rising, split, 4, k=10, trials=6)


def test_a_split_has_every_cell_once() -> None:
    table = make_groups()
    split = split_in_three(table)
    assert (split.train + split.validation + split.test != table).nnz == 0
    assert split.train.nnz + split.validation.nnz + split.test.nnz == table.nnz
    assert split.train.nnz == pytest.approx(0.6 * table.nnz, rel=0.15)


def test_methods_that_cannot_run_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_left_out("svd", 10**9) is None
    assert why_left_out("ease", 100) is None and why_left_out("ease", 10**5) == "more than 10,000 columns"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert why_left_out("als", 10) == "the package implicit is not installed"
    assert why_left_out("item2vec", 10) == "the package gensim is not installed"


@pytest.mark.parametrize("table", [np.ones((4, 1)), np.ones((5, 6))], ids=["one column", "no positive PMI"])
def test_a_table_without_positive_pmi_has_an_svd_of_zeros(table: np.ndarray) -> None:
    scores = BASELINES["svd"].prepare(scipy.sparse.csr_array(table), 3)(power=1)
    assert not scores(np.arange(2)).any() and scores(np.arange(2)).shape == (2, table.shape[1])
