"""Recommending columns: arrays against naive float64 references, known and new rows, and the commands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastapi.encoders
import numpy as np
import pandas
import pytest
import scipy.sparse
from click.testing import CliRunner
from fastapi.testclient import TestClient

import swivel
from planted import make_table
from swivel.cli import cli
from swivel.counts import open_matrix
from swivel.errors import ConfigError, SwivelWarning, UnknownToken
from swivel.estimator import SwivelEmbedding
from swivel.pipeline.train import fit_sparse
from swivel.recommender import ColumnRanking, Recommendation, Recommender, default_popularity, find_links
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.training.table_settings import choose_popularity
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
    return Recommender(swivel.train(table, dim=8, backend="cpu", dtype="float32"), table, links=False)


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
    with pytest.raises(ConfigError, match="row must be a label, or counts by column"):
        alone.recommend({None: 1})
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


def test_transposed_the_rows_of_a_column_are_recommended(recommender: Recommender) -> None:
    seen = {row for row, column, _ in make_cells() if column == "c2"}
    found = recommender.T.recommend("c2", 3)
    assert {group_of(each.label) for each in found} == {2} and not seen & {each.label for each in found}
    assert all(set(each.because_of) <= seen for each in found)
    # A new column, from the rows that have it.
    found = recommender.T.recommend({"r1": 2, "r5": 1}, 4)
    assert {group_of(each.label) for each in found} == {1} and not {"r1", "r5"} & {each.label for each in found}

    assert {group_of(each.token) for each in recommender.T.similar("r7", 3)} == {3}
    assert recommender.T.score("c2", ["r3"]) == pytest.approx(recommender.score("r3", ["c2"]), abs=1e-5)
    assert recommender.T.T is recommender
    # The popularity of rows follows from the transposed table, that which was given holds for both.
    sums = recommender.vectors.row_sums
    assert sums is not None
    assert recommender.T.ranking.popularity == choose_popularity(32, len(make_cells()), sums)
    assert Recommender(recommender.vectors, recommender.matrix, popularity=0.2).T.ranking.popularity == 0.2
    vectors = recommender.vectors
    assert [each.token for each in vectors.T.nearest("c2", 3)] == [each.token for each in recommender.similar("c2", 3)]
    words = swivel.train(swivel.count(["red wine and white wine"] * 9, min_count=1), dim=2, epochs=1, subwords="none")
    with pytest.raises(ConfigError, match="rows and columns are the same things"):
        _ = words.T


def test_new_rows_and_columns_are_added_and_kept(
    recommender: Recommender, table: swivel.Matrix, tmp_path: Path
) -> None:
    cells = [("r1", "new column", 2), ("r5", "new column", 1), ("new row", "c1", 1), ("new row", "c5", 2)]
    extended = recommender.extend([*cells, ("new row", "new column", 1)])
    rows, columns = (vectors.vocabulary.tokens for vectors in (extended.vectors, extended.vectors.T))
    assert (rows[:-1], rows[-1]) == (table.rows.tokens, "new row")
    assert (columns[:-1], columns[-1]) == (table.columns.tokens, "new column")

    # Rows with new cells know the new column, and other vectors are unchanged.
    trained = recommender.vectors
    is_unchanged = [label not in ("r1", "r5") for label in rows[:-1]]
    assert ((extended.vectors.rows[:-1] == trained.rows).all(axis=1) == is_unchanged).all()
    assert (extended.vectors.T.rows[:-1] == trained.T.rows).all()
    known = {column: count for row, column, count in make_cells() if row == "r1"}
    for label, counts in (("new row", {"c1": 1, "c5": 2, "new column": 1}), ("r1", known | {"new column": 2})):
        expected = {each.label: each.score for each in extended.recommend(counts, 10)}
        found = {each.label: each.score for each in extended.recommend(label, 10)}
        assert found == pytest.approx(expected, abs=1e-4)
    liked_by = [each.label for each in extended.T.recommend("new column", 5)]
    assert {group_of(label) for label in liked_by} == {1}

    # log(1 + x), as the recipe `table` trains, is summed.
    sums = extended.vectors.row_sums, extended.vectors.column_sums
    assert sums[0] is not None and sums[1] is not None
    assert sums[0][-1] == sums[1][-1] == pytest.approx(np.log(2) + np.log(3) + np.log(2))
    before, after = trained.row_sums, extended.vectors.row_sums
    assert before is not None and after is not None
    number = rows.index("r1")
    assert after[number] == pytest.approx(before[number] + np.log(3))
    # Who has the columns of a group is recommended the new one, except if it has it.
    labels = {row: [each.label for each in extended.recommend(row, 9)] for row in ("r9", "r1", "r2")}
    assert "new column" in labels["r9"] and "new column" not in labels["r1"]

    extended.vectors.save(tmp_path / "extended")
    loaded = Recommender(tmp_path / "extended")
    assert loaded.matrix is None
    again = loaded.recommend("r9", 9, exclude_seen=False)
    assert [each.label for each in again] == [each.label for each in extended.recommend("r9", 9, exclude_seen=False)]
    with pytest.warns(SwivelWarning) as caught:
        lonely = extended.extend([("lonely", "unheard of", 1), ("r1", "c2", 1)])
    names = "'lonely'", "'unheard of'"
    assert [str(each.message) for each in caught] == [
        f"1 new label without cells with known ones: {name}" for name in names
    ]
    assert not lonely.vectors["lonely"].any()


def test_rows_that_were_held_out_are_evaluated_after_they_were_added() -> None:
    frame = pandas.DataFrame(make_cells(), columns=["row", "column", "count"])
    train, rest = swivel.split_table(frame, by="row")
    known, held_out = swivel.split_table(rest, seed=1)
    matrix = swivel.import_counts(train)
    recommender = Recommender(swivel.train(matrix, dim=8, backend="cpu", dtype="float32"), matrix)
    with pytest.raises(UnknownToken, match=r"is not in the vocabulary of .* rows"):
        recommender.evaluate(held_out)
    assert recommender.extend(known).evaluate(held_out, k=5).recall > 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::swivel.errors.SwivelWarning")  # A rare column may have no cells that are known.
def test_rows_and_columns_that_are_folded_in_rank_at_most_3_percent_below_trained_ones() -> None:
    matrix = swivel.import_counts(make_table(1, rows=1_200, columns=300))
    train, test = map(to_cells, swivel.split_table(matrix, seed=1))

    recalls = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        trained = fit_cells(train, seed)
        for side, names in enumerate((matrix.rows.tokens, matrix.columns.tokens)):
            new = {*rng.choice(names, len(names) // 10, replace=False)}
            is_new = train.iloc[:, side].isin(new)
            extended = fit_cells(train[~is_new], seed).extend(train[is_new])
            held_out = test if side else test[test.row.isin(new)]
            recalls.append([each.evaluate(held_out).recall for each in (trained, extended)])
            if side:
                who = test[test.column.isin(new)][["column", "row", "count"]]
                recalls.append([each.T.evaluate(who).recall for each in (trained, extended)])

    # New rows, all rows with new columns, and the rows of new columns.
    for kind in range(3):
        known, folded = np.mean(recalls[kind::3], axis=0)
        assert folded > 0.97 * known


def to_cells(matrix: swivel.Matrix) -> pandas.DataFrame:
    cells = scipy.sparse.coo_array(matrix.to_scipy())
    row, column = (np.array(names)[ids] for names, ids in zip((matrix.rows, matrix.columns), cells.coords, strict=True))
    return pandas.DataFrame({"row": row, "column": column, "count": cells.data})


def fit_cells(cells: pandas.DataFrame, seed: int) -> Recommender:
    matrix = swivel.import_counts(cells)
    return Recommender(swivel.train(matrix, dim=16, seed=seed), matrix)


def test_unknown_columns_are_left_out_with_one_warning_that_names_them(recommender: Recommender) -> None:
    expected = recommender.recommend({"c1": 2, "c5": 1})
    unknown = {f"x{number}": 1 for number in range(7)}
    counts = {"c1": 2, **unknown, "c5": 1}
    message = "^7 unknown columns left out: 'x0', 'x1', 'x2', 'x3', 'x4', ...$"
    with pytest.warns(SwivelWarning, match=message):
        assert recommender.recommend(counts) == expected
    frame = pandas.DataFrame([("new", column, count) for column, count in counts.items()])
    with pytest.warns(SwivelWarning, match=r"^7 unknown columns left out: 'x\d'"):
        found = recommender.recommend_table(frame)["new"]
    assert [each.label for each in found] == [each.label for each in expected]
    with pytest.warns(SwivelWarning, match="^1 unknown row left out: 'nobody'$"):
        recommender.evaluate([("nobody", "c1", 1), ("r0", "c1", 1)])
    for everything in (unknown, {"c0x": 1}):
        with pytest.raises(UnknownToken, match="is not in the vocabulary of 32 columns"):
            recommender.recommend(everything)


def test_the_command_warns_of_unknown_columns_like_python(folders: Path) -> None:
    words = ["recommend", str(folders / "vectors"), "--for", str(folders / "new.tsv")]
    done = subprocess.run([sys.executable, "-m", "swivel", *words], capture_output=True, text=True, check=True)
    assert "warning: 1 unknown column left out: 'unknown'" in done.stderr


def test_recommendations_are_objects_with_names_that_unpack_like_tuples(recommender: Recommender) -> None:
    found = recommender.recommend("r0", 2)
    first: Any = found[0]  # mypy knows iteration by `__iter__` alone.
    label, score, because_of = first
    assert (label, score, because_of) == tuple(first) == (found[0].label, found[0].score, found[0].because_of)
    assert (found[0][0], found[0][-1]) == (label, because_of)

    expected = [{"label": each.label, "score": each.score, "because_of": list(each.because_of)} for each in found]
    assert json.loads(json.dumps(fastapi.encoders.jsonable_encoder(found))) == expected
    app = fastapi.FastAPI()
    app.add_api_route("/{row}", lambda row: recommender.recommend(row, 2), response_model=list[Recommendation])
    app.add_api_route("/any/{row}", lambda row: recommender.recommend(row, 2))
    with TestClient(app) as client:
        assert client.get("/r0").json() == client.get("/any/r0").json() == expected
    assert pandas.DataFrame(found).columns.tolist() == ["label", "score", "because_of"]


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


@pytest.mark.filterwarnings("default::swivel.errors.SwivelWarning")  # One of the new columns is unknown.
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


def test_command_recommends_rows_for_known_and_new_columns(folders: Path) -> None:
    vectors, recommender = str(folders / "vectors"), Recommender(folders / "vectors")
    found = call("recommend", vectors, "c1", "--side", "columns", "-n", "3")
    assert [each["label"] for each in found["c1"]] == [each.label for each in recommender.T.recommend("c1", 3)]
    (folders / "items.tsv").write_text("r1\tnew\t2\nr5\tnew\t1\n")
    found = call("recommend", vectors, "--for", str(folders / "items.tsv"), "--side", "columns", "-n", "3")
    assert [each["label"] for each in found["new"]] == [
        each.label for each in recommender.T.recommend({"r1": 2, "r5": 1}, 3)
    ]
    shown = CliRunner().invoke(cli, ["recommend", vectors, "c1", "--side", "columns", "--quiet"])
    assert shown.stdout.splitlines()[1].split()[0] == "row"


def test_commands_find_similar_rows_and_columns(folders: Path) -> None:
    vectors = folders / "vectors"
    for verb in ("similar", "nearest"):
        rows = call(verb, str(vectors), "r1", "-n", "3")
        assert {group_of(each["token"]) for each in rows["r1"]} == {1}
        columns = call(verb, str(vectors), "c1", "--side", "columns", "-n", "3")
        assert [each["token"] for each in columns["c1"]] == [
            each.token for each in Recommender(vectors).similar("c1", 3)
        ]
    with pytest.raises(UnknownToken, match=r"'c1' is the label of a column, not of a row; swap them with .T"):
        call("similar", str(vectors), "c1")


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
    (tmp_path / "new.tsv").write_text("new\tc1\t1\nnew\tc5\t2\n")
    expected = call("recommend", str(folders / "vectors"), "--for", str(tmp_path / "new.tsv"))
    for fields in (["--header", "--fields", "who,what,times"], ["--fields", "who,what,times"]):
        assert call("recommend", str(folders / "vectors"), "--for", str(tmp_path / "new.csv"), *fields) == expected

    cells = (folders / "held.tsv").read_text()
    (tmp_path / "held.tsv").write_text(f"who\twhat\ttimes\n{cells}")
    words = ["evaluate", str(folders / "vectors"), "--held-out"]
    report = call(*words, str(folders / "held.tsv"))
    assert call(*words, str(tmp_path / "held.tsv"), "--header") == report

    pandas.read_csv(tmp_path / "held.tsv", sep="\t").pivot_table("times", "who", "what", fill_value=0).to_csv(
        tmp_path / "crosstab.csv"
    )
    assert call(*words, str(tmp_path / "crosstab.csv"), "--format", "crosstab") == report


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


def test_links_are_the_ridge_regression_of_a_column_on_the_others() -> None:
    table = scipy.sparse.csr_array((np.random.default_rng(3).random((60, 8)) < 0.4) * 3.0)
    dense = (table.toarray() > 0).astype(float)
    expected = np.zeros((8, 8))
    for column in range(8):
        others = np.delete(np.arange(8), column)
        products = dense[:, others].T @ dense[:, others] + dense.sum() / 8 * np.eye(7)
        expected[others, column] = np.linalg.solve(products, dense[:, others].T @ dense[:, column])
    np.testing.assert_allclose(find_links(table).toarray(), expected, atol=1e-5)


def test_a_column_keeps_its_largest_links(monkeypatch: pytest.MonkeyPatch) -> None:
    table = scipy.sparse.csr_array((np.random.default_rng(3).random((60, 8)) < 0.4).astype(float))
    all_links = np.abs(find_links(table).toarray())
    monkeypatch.setattr("swivel.recommender.LINKS_PER_COLUMN", 3)
    monkeypatch.setattr("swivel.recommender._COLUMNS_PER_PIECE", 3)
    few_links = np.abs(find_links(table).toarray())
    np.testing.assert_array_equal((few_links > 0).sum(axis=0), 3)
    np.testing.assert_allclose(np.sort(few_links, axis=0)[-3:], np.sort(all_links, axis=0)[-3:])


def make_pairs() -> swivel.Matrix:
    """Return a table in which every column has a partner, which is in the same rows but for the last pairs."""
    rng = np.random.default_rng(1)
    pairs = rng.random((300, 20)) < 0.15
    cells = [(f"r{row}", f"{side}{pair}", 1) for row, pair in np.argwhere(pairs).tolist() for side in "ab"]
    return swivel.import_counts([*cells, ("new", "a3", 1), ("new", "a7", 1)])


def test_links_know_pairs_that_vectors_of_one_dimension_do_not() -> None:
    matrix = make_pairs()
    vectors = swivel.train(matrix, recipe="table", dim=1)
    linked, plain = swivel.Recommender(vectors, matrix), swivel.Recommender(vectors, matrix, links=False)
    assert {each.label for each in linked.recommend("new", 2)} == {"b3", "b7"}
    assert {each.label for each in plain.recommend("new", 2)} != {"b3", "b7"}

    # All ways to ask have the same scores, for known rows and for new ones.
    best = linked.recommend("new", 2)
    ids, scores = linked.recommend_known(["new"], 2)
    assert [each.score for each in best] == pytest.approx(scores[0].tolist())
    ranking = linked.score("new", [each.label for each in best], kind="ranking")
    assert ranking.tolist() == pytest.approx(scores[0].tolist())
    assert linked.recommend({"a3": 1, "a7": 1}, 2)[0].label in ("b3", "b7")
    new_ids, _ = linked.recommend_each(matrix.to_scipy()[[matrix.rows.id("new")]], 2)
    assert set(new_ids[0].tolist()) == set(ids[0].tolist())


def test_links_are_followed_for_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make_pairs()
    linked = swivel.Recommender(swivel.train(matrix, recipe="table", dim=1), matrix)
    expected, scores = linked.recommend_known(count=3)
    sizes = []

    def follow(ranking: ColumnRanking, cells: Any) -> Any:
        sizes.append(cells.shape[0])
        return follow_links(ranking, cells)

    follow_links = ColumnRanking._follow_links
    monkeypatch.setattr(ColumnRanking, "_follow_links", follow)
    monkeypatch.setattr(search, "_MAX_SCORES", 1)
    monkeypatch.setattr(search, "_MIN_QUERIES", 100)
    ids, in_parts = linked.recommend_known(count=3)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(in_parts, scores, rtol=1e-5)
    assert max(sizes) == 100
    assert sum(sizes) == matrix.shape[0]


def test_cells_with_the_count_zero_are_recommended_for_known_rows() -> None:
    counts = scipy.sparse.csr_array(np.kron(np.eye(3), np.ones((6, 4))))
    vectors = fit_sparse(counts, options=RunOptions(progress=SILENT), dim=2)
    plain = swivel.Recommender(vectors, counts)
    counts = counts.copy()
    counts.data[0] = 0.0
    assert [each.label for each in swivel.Recommender(vectors, counts).recommend("0", 1)] == ["0"]
    assert "0" not in [each.label for each in plain.recommend("0", 8)]


def test_data_frames_of_many_columns_are_read_with_fields() -> None:
    frame = pandas.DataFrame(make_cells(), columns=["who", "what", "count"])
    frame["day"] = np.arange(len(frame)) % 7
    known, later = swivel.split_table(frame, by="time", times="day")
    fields = "who,what,count"
    matrix = swivel.import_counts(known, fields=fields)
    recommender = Recommender(swivel.train(matrix, dim=8, backend="cpu", dtype="float32"), matrix)
    few = later[["who", "what", "count"]]
    assert recommender.evaluate(later, fields=fields) == recommender.evaluate(few)
    assert recommender.recommend_table(later, 2, fields=fields) == recommender.recommend_table(few, 2)
    assert (
        recommender.extend(later, fields=fields).vectors.rows.tolist() == recommender.extend(few).vectors.rows.tolist()
    )
    with pytest.raises(ConfigError, match="fields is for tables that are imported, not for a matrix: omit it"):
        recommender.evaluate(matrix, fields=fields)


def test_links_are_for_known_tables_of_few_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make_pairs()
    vectors = swivel.train(matrix, recipe="table", dim=2)
    assert swivel.Recommender(vectors, matrix).ranking.links is not None
    assert swivel.Recommender(vectors).ranking.links is None  # The matrix is not known.
    assert swivel.Recommender(swivel.train(matrix, recipe="default", dim=2), matrix).ranking.links is None
    with pytest.raises(swivel.SwivelError, match="links are found in matrix: pass it"):
        swivel.Recommender(vectors, links=True)

    monkeypatch.setattr("swivel.recommender.MAX_LINKED_COLUMNS", 39)
    assert swivel.Recommender(vectors, matrix).ranking.links is None
    assert swivel.Recommender(vectors, matrix, links=True).ranking.links is not None
