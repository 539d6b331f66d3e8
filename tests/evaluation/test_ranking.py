"""Recall, NDCG and MAP of rankings against a naive reference, and splits of tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import scipy.sparse

import swivel
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
    with pytest.raises(ConfigError, match="by must be one of cell, row, time, got 'year'"):
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
        with pytest.raises(ConfigError, match="held_out has only cells that were trained with, which are never ranked"):
            evaluate_ranking(lambda rows: table[rows].toarray(), held_out, table)


def make_frame() -> pandas.DataFrame:
    """Return 600 lines of 30 x 20 cells, some of them repeated; time 599 is the first line."""
    users, items = np.random.default_rng(4).integers(0, (30, 20), (600, 2)).T
    return pandas.DataFrame({"user": users, "item": items, "count": 1, "time": np.arange(600)[::-1]})


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("by", ["cell", "row", "time"])
def test_a_data_frame_is_split_into_two_data_frames(library: str, by: str) -> None:
    whole = make_frame()
    frame: Any = whole if library == "pandas" else polars.from_pandas(whole)
    parts = split_table(frame, 0.25, by=by, times="time", fields=["user", "item", "count"])
    assert all(type(part) is type(frame) for part in parts)
    train, held = parts if library == "pandas" else [part.to_pandas() for part in parts]

    assert sorted([*train.time, *held.time]) == list(range(600))
    assert len(held) == pytest.approx(150, rel=0.35)
    keys = {"cell": ["user", "item"], "row": ["user"], "time": ["time"]}[by]
    assert not {*train[keys].itertuples(index=False)} & {*held[keys].itertuples(index=False)}
    if by == "time":
        assert (len(held), held.time.min()) == (150, 450)


def test_the_columns_of_a_data_frame_may_have_numbers() -> None:
    frame = make_frame()
    numbered = frame.set_axis(range(4), axis=1)
    expected = split_table(frame, by="time", times="time", seed=1)
    for part, named in zip(split_table(numbered, by="time", times=3, seed=1), expected, strict=True):
        assert part.set_axis(frame.columns, axis=1).equals(named)


def test_both_parts_of_a_data_frame_are_what_import_and_evaluate_take() -> None:
    frame = make_frame()[["user", "item", "count"]]
    train, held = swivel.split_table(frame)
    matrix = swivel.import_counts(train)
    recommender = swivel.Recommender(swivel.train(matrix, dim=2, epochs=1), matrix)
    cells = held.drop_duplicates(["user", "item"])
    assert recommender.evaluate(held, k=5).cells == len(cells)


def test_times_may_be_dates_or_texts_and_must_not_be_missing() -> None:
    frame = make_frame().assign(day=lambda frame: pandas.Timestamp("2024-01-01") + pandas.to_timedelta(frame.time, "D"))
    expected = split_table(frame, by="time", times="time")[1]
    for column in (frame.day, frame.day.dt.date, frame.day.astype(str)):
        assert split_table(frame.assign(day=column), by="time", times="day")[1].equals(expected.assign(day=column))

    for missing in (frame.assign(day=frame.day.where(frame.time > 5)), frame.assign(day=None)):
        with pytest.raises(ConfigError, match="times has values that are missing"):
            split_table(missing, by="time", times="day")
    with pytest.raises(ConfigError, match="their times are equal"):
        split_table(frame.assign(day=3), by="time", times="day")
    with pytest.raises(ConfigError, match="times must be one of the columns user, item, count, time, day, got 'when'"):
        split_table(frame, by="time", times="when")
    with pytest.raises(ConfigError, match="5 fields; pass those of the row, the column and the count"):
        split_table(frame)


def test_a_matrix_its_folder_and_a_file_are_split_into_matrices(tmp_path: Path) -> None:
    frame = make_frame()[["user", "item", "count"]]
    matrix = swivel.import_counts(frame, tmp_path / "matrix")
    frame.to_csv(tmp_path / "table.tsv", sep="\t", header=False, index=False)
    for table in (matrix, tmp_path / "matrix", str(tmp_path / "table.tsv")):
        train, held = split_table(table)
        assert isinstance(train, swivel.Matrix) and isinstance(held, swivel.Matrix)
        assert {*train.rows} == {*held.rows} == {*matrix.rows}
        assert train.total + held.total == matrix.total
        assert all(
            train.count(row, column) * held.count(row, column) == 0 for row in train.rows for column in held.columns
        )

    with pytest.raises(ConfigError, match="fields is for data frames"):
        split_table(matrix, fields="1,2")
    with pytest.raises(ConfigError, match=r"times must be a sparse matrix .*; with a data frame it is the name"):
        split_table(matrix, by="time", times="day")
    with pytest.raises(ConfigError, match="rows and columns are the same things"):
        split_table(swivel.count(["a b a c"] * 9, min_count=1))
