"""Recall, NDCG and MAP of rankings against a naive reference, and splits of tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

from swivel.errors import ConfigError
from swivel.evaluation import evaluate_ranking, split_table


def make_table(rows: int = 30, columns: int = 25) -> scipy.sparse.csr_array:
    return scipy.sparse.random_array((rows, columns), density=0.4, format="csr", rng=np.random.default_rng(1))


@pytest.mark.parametrize("k", [1, 3, 25])
def test_metrics_are_those_of_a_naive_reference(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.evaluation.table_ranking._SCORES_PER_CHUNK", 100)
    seen, held = split_table(make_table(), 0.4)
    scores = np.random.default_rng(2).normal(size=seen.shape)

    recalls, gains, precisions = [], [], []
    for row in range(seen.shape[0]):
        wanted = set(held[[row]].indices.tolist())
        if not wanted:
            continue
        known = set(seen[[row]].indices.tolist())
        ranked = [column for column in np.argsort(-scores[row]).tolist() if column not in known][:k]
        hits = [column in wanted for column in ranked]
        recalls.append(sum(hits) / len(wanted))
        best = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(wanted))))
        gains.append(sum(hit / math.log2(rank + 2) for rank, hit in enumerate(hits)) / best)
        precision = sum(sum(hits[: rank + 1]) / (rank + 1) for rank, hit in enumerate(hits) if hit)
        precisions.append(precision / min(k, len(wanted)))

    report = evaluate_ranking(lambda rows: scores[rows], held, seen, k=k)
    assert (report.rows, report.cells, report.k) == (len(recalls), held.nnz, k)
    assert report.recall == pytest.approx(np.mean(recalls))
    assert report.ndcg == pytest.approx(np.mean(gains))
    assert report.map == pytest.approx(np.mean(precisions))


def test_cells_that_were_seen_are_neither_hits_nor_misses_and_explicit_zeros_were_not_seen() -> None:
    seen, held = split_table(make_table(), 0.4)
    scores = np.random.default_rng(2).normal(size=seen.shape)
    with_zeros = scipy.sparse.csr_array(seen + held)
    with_zeros.data[np.isin(with_zeros.data, held.data)] = 0

    for k in (3, 25):
        expected = evaluate_ranking(lambda rows: scores[rows], held, seen, k=k)
        assert evaluate_ranking(lambda rows: scores[rows], held + seen, seen, k=k) == expected
        assert evaluate_ranking(lambda rows: scores[rows], held, with_zeros, k=k) == expected
    assert with_zeros.nnz == seen.nnz + held.nnz


def test_ranking_by_popularity_finds_common_columns_only() -> None:
    rng = np.random.default_rng(3)
    table = scipy.sparse.csr_array(rng.random((200, 30)) < np.linspace(0.02, 0.6, 30))
    seen, held = split_table(table.astype(float), 0.3)
    popularity = np.asarray(seen.astype(bool).sum(axis=0)).ravel()
    report = evaluate_ranking(lambda rows: np.tile(popularity, (len(rows), 1)), held, seen, k=5)
    assert report.by_popularity["common"] > 0.5 > report.by_popularity["rare"]
    assert list(report.by_popularity) == ["rare", "middle", "common"]


@pytest.mark.parametrize("by", ["cell", "row", "time"])
def test_splits_are_parts_of_the_table(by: str) -> None:
    table = make_table(200)
    times = table.copy()
    train, held = split_table(table, 0.25, by=by, times=times)
    assert (train + held != table).nnz == 0 and train.multiply(held).nnz == 0
    assert held.nnz == pytest.approx(0.25 * table.nnz, rel=0.25)

    if by == "row":
        assert not (np.diff(train.indptr) * np.diff(held.indptr)).any()
    if by == "time":
        assert held.data.min() > train.data.max()


def test_wrong_arguments_are_refused() -> None:
    table = make_table()
    with pytest.raises(ConfigError, match="by must be cell, row or time, got 'year'"):
        split_table(table, by="year")
    with pytest.raises(ConfigError, match="share must be between 0 and 1, got 1"):
        split_table(table, 1)
    with pytest.raises(ConfigError, match="times is needed to hold out the latest cells"):
        split_table(table, by="time")
    with pytest.raises(ConfigError, match="k must be a positive integer, got 0"):
        evaluate_ranking(lambda rows: table[rows].toarray(), table, table, k=0)
    with pytest.raises(ConfigError, match="the same shape"):
        evaluate_ranking(lambda rows: table[rows].toarray(), table, table[:3])
    for held_out in (0 * table, table):
        with pytest.raises(ConfigError, match="held_out has no cells that are not in seen"):
            evaluate_ranking(lambda rows: table[rows].toarray(), held_out, table)
