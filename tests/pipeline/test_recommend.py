"""Recommending columns: arrays against naive float64 references, known and new rows, and the commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse
from click.testing import CliRunner

import swivel
from swivel.cli import cli
from swivel.counts import open_matrix
from swivel.errors import ConfigError, UnknownToken
from swivel.estimator import SwivelEmbedding
from swivel.recommender import ColumnRanking, Recommender, default_popularity
from swivel.vectors import search

GROUPS = 4


def make_cells(rows: int = 60, columns: int = 32) -> list[tuple[str, str, int]]:
    """Return cells of rows and columns of the same group; every row lacks a quarter of its group's columns."""
    return [
        (f"r{i}", f"c{j}", 1 + (i * j) % 3)
        for i in range(rows)
        for j in range(columns)
        if i % GROUPS == j % GROUPS and (i // GROUPS + j // GROUPS) % 4
    ]


@pytest.fixture(scope="module")
def table() -> swivel.Matrix:
    return swivel.import_counts(make_cells())


@pytest.fixture(scope="module")
def recommender(table: swivel.Matrix) -> Recommender:
    return Recommender(swivel.train(table, dim=8, backend="cpu", dtype="float32"), table)


def group_of(label: str) -> int:
    return int(label[1:]) % GROUPS


@pytest.mark.parametrize("popularity", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rows", [0, 1, 1_500])
def test_best_columns_are_those_of_a_naive_ranking(popularity: float, rows: int) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(rows, 5)).astype(np.float32)
    columns = rng.normal(size=(40, 5)).astype(np.float32)
    sums = rng.integers(0, 9, 40).astype(np.float64)
    seen = scipy.sparse.random_array((rows, 40), density=0.5, format="csr", rng=rng)
    is_hidden = np.arange(40) % 7 == 0

    ranking = ColumnRanking(columns, sums, 100, popularity)
    ids, scores = ranking.find_best(vectors, 10, seen=seen, is_hidden=is_hidden)
    assert ids.shape == scores.shape == (rows, 10)

    exact = vectors.astype(np.float64) @ columns.T.astype(np.float64) + popularity * np.log(np.maximum(sums, 1e-300))
    np.testing.assert_allclose(ranking.score(vectors)[:, sums > 0], exact[:, sums > 0], atol=1e-4)
    exact[:, is_hidden | (sums == 0)] = -np.inf
    exact[seen.nonzero()] = -np.inf
    for row in range(0, rows, 100):
        expected = [column for column in np.argsort(-exact[row]) if exact[row, column] > -np.inf][:10]
        assert ids[row].tolist() == expected + [-1] * (10 - len(expected))
        np.testing.assert_allclose(scores[row, : len(expected)], exact[row, expected], atol=1e-4)


@pytest.mark.parametrize("rows", [1, 300])
def test_more_columns_than_there_are_leave_empty_places(rows: int) -> None:
    ranking = ColumnRanking(np.eye(2, dtype=np.float32), np.array([1.0, 0.0]), 2)
    ids, scores = ranking.find_best(np.ones((rows, 2), np.float32), 3)
    assert ids.tolist() == [[0, -1, -1]] * rows and np.isneginf(scores[:, 1:]).all()


@pytest.mark.parametrize("count", [1, 20, 500])
@pytest.mark.parametrize("size", [500, 1_000, 4_099])
@pytest.mark.parametrize("inserted", [100, 1_000])
def test_many_rows_find_what_sorting_finds(
    count: int, size: int, inserted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MAX_SCORES", 100_000)
    monkeypatch.setattr(search, "_MAX_INSERTED", inserted)
    rng = np.random.default_rng(size + count)
    columns = rng.normal(size=(size, 6)).astype(np.float32)
    rows = rng.normal(size=(150, 6)).astype(np.float32)
    seen = scipy.sparse.random_array((150, size), density=0.1, format="csr", rng=rng)

    ids, scores = ColumnRanking(columns, np.ones(size), 150).find_best(rows, count, seen=seen)
    exact = rows @ columns.T
    exact[seen.nonzero()] = -np.inf
    expected = -np.sort(-exact, axis=1)[:, :count]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    is_left = np.isfinite(expected)
    np.testing.assert_allclose(np.take_along_axis(exact, ids, axis=1)[is_left], expected[is_left], atol=1e-5)
    assert ((ids >= 0) == is_left).all()
    distinct = np.minimum(is_left.sum(axis=1) + 1, count)  # those found, and -1 for the places that are empty
    assert all(len(set(found)) == places for found, places in zip(ids.tolist(), distinct, strict=True))


def test_equal_scores_are_sorted_by_id() -> None:
    columns = np.ones((1_000, 2), np.float32)
    columns[700:710] = 2
    ids, _ = ColumnRanking(columns, np.ones(1_000), 300).find_best(np.ones((300, 2), np.float32), 10)
    assert ids.tolist() == [list(range(700, 710))] * 300


@pytest.mark.parametrize("rows", [3, 300])
def test_of_equal_scores_at_the_end_the_smallest_ids_are_found(rows: int) -> None:
    scores = np.random.default_rng(2).integers(0, 9, 3_000).astype(np.float32)
    ids, _ = ColumnRanking(scores[:, None], np.ones(3_000), rows).find_best(np.ones((rows, 1), np.float32), 10)
    assert ids.tolist() == [np.lexsort((np.arange(3_000), -scores))[:10].tolist()] * rows


def test_popularity_grows_with_the_rows_per_column_and_stays_in_its_range() -> None:
    values = [default_popularity(rows, 100) for rows in (1, 50, 100, 200, 10_000)]
    assert values == sorted(values) and (values[0], values[2], values[-1]) == (0.0, 0.5, 1.0)


@pytest.mark.parametrize(("arguments", "message"), [({"popularity": float("nan")}, "popularity"), ({}, "count")])
def test_wrong_arguments_of_a_ranking_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message} must be"):
        ColumnRanking(np.eye(2, dtype=np.float32), np.ones(2), 2, **arguments).find_best(np.ones((1, 2), np.float32), 0)


def test_known_rows_get_the_columns_of_their_group_that_they_lack(recommender: Recommender) -> None:
    for row in ("r0", "r9", "r30"):
        seen = {column for label, column, _ in make_cells() if label == row}
        found = recommender.recommend(row, 2)
        assert {group_of(each.label) for each in found} == {group_of(row)}
        assert not seen & {each.label for each in found}
        assert all(set(each.because_of) <= seen and len(each.because_of) == 3 for each in found)
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_new_rows_are_folded_in_one_by_one_and_in_batches(recommender: Recommender) -> None:
    found = recommender.recommend({"c1": 2, "c5": 1}, 4)
    assert {group_of(each.label) for each in found} == {1} and not {"c1", "c5"} & {each.label for each in found}

    vocabulary = recommender.vectors.column_vocabulary
    assert vocabulary is not None
    counts = np.zeros((1, len(vocabulary)))
    counts[0, [vocabulary.id("c1"), vocabulary.id("c5")]] = [2, 1]
    ids, scores = recommender.recommend_each(scipy.sparse.csr_array(counts), 4)
    assert [vocabulary[column] for column in ids[0]] == [each.label for each in found]
    np.testing.assert_allclose(scores[0], [each.score for each in found], rtol=1e-5)


def test_known_rows_in_batches_are_those_one_by_one(recommender: Recommender) -> None:
    vocabulary = recommender.vectors.column_vocabulary
    assert vocabulary is not None
    for labels in (["r3", "r0"], None):
        ids, scores = recommender.recommend_known(labels, 4)
        for row, label in enumerate(labels or list(recommender.vectors.vocabulary)):
            expected = recommender.recommend(label, 4)
            assert [vocabulary[column] for column in ids[row]] == [each.label for each in expected]
            # A score near 0 is the difference of two that are not.
            np.testing.assert_allclose(scores[row], [each.score for each in expected], rtol=1e-5, atol=1e-6)

    alone = Recommender(recommender.vectors)
    assert alone.recommend_known(exclude_seen=False)[0].shape == (60, 10)
    with pytest.raises(ConfigError, match="pass matrix, or exclude_seen=False"):
        alone.recommend_known()


def test_columns_with_the_count_zero_are_recommended(recommender: Recommender) -> None:
    expected = recommender.recommend({"c1": 2}, 32)
    assert recommender.recommend({"c1": 2, "c5": 0}, 32) == expected
    assert "c5" in {each.label for each in expected}

    vocabulary = recommender.vectors.column_vocabulary
    assert vocabulary is not None
    cells = np.array([2.0, 0.0]), ([0, 0], [vocabulary.id("c1"), vocabulary.id("c5")])
    counts = scipy.sparse.csr_array(cells, shape=(1, len(vocabulary)))
    ids, _ = recommender.recommend_each(counts, 31)
    assert [vocabulary[column] for column in ids[0]] == [each.label for each in expected]
    assert counts.nnz == 2


def test_filter_and_seen_columns(recommender: Recommender) -> None:
    found = recommender.recommend("r0", 3, filter=lambda column: column in ("c1", "c2"))
    assert {each.label for each in found} == {"c1", "c2"}
    seen = {column for label, column, _ in make_cells() if label == "r0"}
    assert seen & {each.label for each in recommender.recommend("r0", 5, exclude_seen=False)}


def test_similar_columns_are_of_the_same_group(recommender: Recommender) -> None:
    assert {group_of(found.token) for found in recommender.similar("c2", 3)} == {2}
    assert recommender._column_vectors is recommender._column_vectors  # Unit vectors are computed once.


def test_scores_of_every_kind_are_those_of_float64(recommender: Recommender) -> None:
    vectors = recommender.vectors
    assert vectors.columns is not None and vectors.row_sums is not None and vectors.column_sums is not None
    row = vectors.vocabulary.id("r3")
    pmi = vectors.columns.astype(np.float64) @ vectors.rows[row].astype(np.float64) + vectors.shift
    counts = pmi + np.log(vectors.row_sums[row] * vectors.column_sums / vectors.column_sums.sum())
    ranking = pmi - vectors.shift + vectors.settings["ranking"]["popularity"] * np.log(vectors.column_sums)

    for kind, expected in (("pmi", pmi), ("log_count", counts), ("ranking", ranking)):
        np.testing.assert_allclose(recommender.score("r3", kind=kind), expected, atol=1e-4)
    assert recommender.score("r3", []).shape == recommender.score("r3", [], kind="ranking").shape == (0,)
    assert recommender.score("r3", ["c3"])[0] == pytest.approx(vectors.score("r3", "c3"), abs=1e-4)
    np.testing.assert_allclose(recommender.score_rows(np.array([row]))[0], ranking, atol=1e-4)


def test_what_is_missing_or_wrong_is_said(recommender: Recommender, table: swivel.Matrix) -> None:
    alone = Recommender(recommender.vectors)
    with pytest.raises(ConfigError, match="pass matrix, or exclude_seen=False"):
        alone.recommend("r1")
    with pytest.raises(ConfigError, match="matrix is needed"):
        alone.evaluate(table)
    assert alone.recommend("r1", exclude_seen=False)[0].because_of == ()
    with pytest.raises(ConfigError, match="kind must be one of pmi, log_count, ranking, got 'cosine'"):
        alone.score("r1", kind="cosine")
    with pytest.raises(UnknownToken):
        alone.recommend({"nothing": 1})
    assert alone.recommend(pandas.Series({"c1": 1})) == alone.recommend({"c1": 1})
    with pytest.raises(ConfigError, match=r"row must be a label, or counts by column such as .*, got \['c1'\]"):
        alone.recommend(["c1"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="matrix has other rows"):
        Recommender(recommender.vectors, swivel.import_counts([("a", "b", 1)]))
    with pytest.raises(ConfigError, match="have no columns"):
        Recommender(swivel.Vectors(recommender.vectors.row_table))
    copy = swivel.Vectors(recommender.vectors.row_table, recommender.vectors.column_table)
    with pytest.raises(ConfigError, match="no settings to fold rows in with"):
        Recommender(copy).recommend({"c1": 1})


def test_saved_vectors_fold_in_rows(recommender: Recommender, tmp_path: Path) -> None:
    recommender.vectors.save(tmp_path / "saved")
    counts = {"c1": 1.0, "c5": 2.0}
    assert Recommender(tmp_path / "saved").recommend(counts) == recommender.recommend(counts)


def test_estimator_recommends_for_rows_of_counts() -> None:
    counts = np.zeros((60, 32))
    for row, column, count in make_cells():
        counts[int(row[1:]), int(column[1:])] = count
    embedding = SwivelEmbedding(8, backend="cpu", dtype="float32").fit(counts)
    ids, scores = embedding.recommend(scipy.sparse.csr_array(counts[:8]), 2)

    assert (ids % GROUPS == np.arange(8)[:, None] % GROUPS).all()
    assert not np.take_along_axis(counts[:8], ids, axis=1).any()
    np.testing.assert_allclose(np.take_along_axis(embedding.score_columns(counts[:8]), ids, axis=1), scores, rtol=1e-4)
    assert np.take_along_axis(counts[:8], embedding.recommend(counts[:8], 2, exclude_seen=False)[0], axis=1).any()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    cells = make_cells()
    held = cells[::9]
    matrix = swivel.import_counts([cell for cell in cells if cell not in held], folder / "matrix")
    swivel.train(matrix, folder / "vectors", dim=8, backend="cpu", dtype="float32")
    (folder / "held.tsv").write_text("".join(f"{row}\t{column}\t{count}\n" for row, column, count in held))
    (folder / "new.tsv").write_text("new\tc1\t1\nnew\tc5\t2\nnew\tunknown\t3\n")
    return folder


def call(*words: str) -> Any:
    ended = CliRunner().invoke(cli, [*words, "--json", "--quiet"], catch_exceptions=False)
    return json.loads(ended.stdout)


def test_command_recommends_for_known_and_new_rows(folders: Path) -> None:
    found = call("recommend", str(folders / "vectors"), "r0", "r1", "--matrix", str(folders / "matrix"), "-n", "2")
    assert list(found) == ["r0", "r1"] and {group_of(each["label"]) for each in found["r1"]} == {1}

    found = call("recommend", str(folders / "vectors"), "--for", str(folders / "new.tsv"), "-n", "3")
    assert {group_of(each["label"]) for each in found["new"]} == {1}

    shown = CliRunner().invoke(
        cli, ["recommend", str(folders / "vectors"), "--for", str(folders / "new.tsv"), "--quiet"]
    )
    assert shown.stdout.startswith("new:\n") and "because of" in shown.stdout
    with pytest.raises(ConfigError, match="rows are missing"):
        call("recommend", str(folders / "vectors"))


def test_matrix_beside_the_vectors_is_used_and_without_it_the_flags_are_named(folders: Path, tmp_path: Path) -> None:
    named = call("recommend", str(folders / "vectors"), "r0", "--matrix", str(folders / "matrix"))
    assert call("recommend", str(folders / "vectors"), "r0") == named
    shutil.copytree(folders / "vectors", tmp_path / "vectors")
    with pytest.raises(ConfigError, match="pass --matrix, or --with-seen"):
        call("recommend", str(tmp_path / "vectors"), "r0")
    assert call("recommend", str(tmp_path / "vectors"), "r0", "--with-seen")["r0"]

    # A matrix with the same labels is not the one that the vectors were trained on.
    cells = open_matrix(folders / "matrix").to_scipy() * 2
    labels = open_matrix(folders / "matrix")
    swivel.import_counts(cells, tmp_path / "matrix", row_labels=labels.rows.tokens, column_labels=labels.columns.tokens)
    with pytest.raises(ConfigError, match="pass --matrix, or --with-seen"):
        call("recommend", str(tmp_path / "vectors"), "r0")


def test_wrong_rows_and_flags_without_effect_are_named(folders: Path) -> None:
    recommender = Recommender(folders / "vectors")
    with pytest.raises(ConfigError, match="row must be a label, or counts by column"):
        recommender.recommend(pandas.DataFrame({"c1": [1], "c2": [2]}))
    with pytest.raises(UnknownToken, match="'c1' is the label of a column, not of a row"):
        recommender.recommend("c1")
    with pytest.raises(ConfigError, match="'--header' has no effect without --for"):
        call("recommend", str(folders / "vectors"), "r0", "--header")


def test_tables_with_a_header_and_chosen_fields_are_read(folders: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("day,who,what,times\n1,new,c1,1\n2,new,c5,2\n")
    fields = ["--header", "--fields", "who,what,times"]
    found = call("recommend", str(folders / "vectors"), "--for", str(tmp_path / "new.csv"), *fields)
    assert found == call("recommend", str(folders / "vectors"), "--for", str(folders / "new.tsv"))

    cells = (folders / "held.tsv").read_text()
    (tmp_path / "held.tsv").write_text(f"who\twhat\ttimes\n{cells}")
    words = ["evaluate", str(folders / "vectors"), "--held-out"]
    assert call(*words, str(tmp_path / "held.tsv"), "--header") == call(*words, str(folders / "held.tsv"))


def test_command_evaluates_held_out_cells(folders: Path) -> None:
    words = ["evaluate", str(folders / "vectors"), "--held-out", str(folders / "held.tsv"), "-k", "5"]
    report = call(*words, "--matrix", str(folders / "matrix"))
    assert report["recall"] > 0.8 and report["k"] == 5 and report["cells"] == len(make_cells()[::9])

    shown = CliRunner().invoke(cli, [*words, "--matrix", str(folders / "matrix"), "--quiet"])
    assert "recall@5" in shown.stdout and "common columns" in shown.stdout


def test_labels_that_are_numbers_may_be_given_as_numbers_and_a_data_frame_is_evaluated() -> None:
    rng = np.random.default_rng(1)
    cells = sorted({(int(user), 100 + int(item)) for user, item in rng.integers(0, (30, 20), (300, 2))})
    frame = pandas.DataFrame(cells, columns=["user", "item"]).assign(count=1)
    matrix = swivel.import_counts(frame[::2])
    recommender = swivel.Recommender(swivel.train(matrix, dim=4), matrix)

    user, item = cells[0]
    assert recommender.recommend(user) == recommender.recommend(np.int64(user)) == recommender.recommend(str(user))
    assert recommender.recommend({item: 1}) == recommender.recommend({str(item): 1})
    assert recommender.similar(item) == recommender.similar(str(item))
    assert recommender.score(user, [item]).tolist() == recommender.score(str(user), [str(item)]).tolist()
    assert (recommender.recommend_known([user])[0] == recommender.recommend_known([str(user)])[0]).all()
    assert recommender.evaluate(frame[1::2]) == recommender.evaluate(swivel.import_counts(frame[1::2]))
    with pytest.raises(ConfigError):
        recommender.recommend(True)
