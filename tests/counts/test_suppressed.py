"""Counts with missing cells: suppressed ones are at most limit - 1, sums are those of all cells, sites are added up."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from click.testing import CliRunner

import swivel
from import_sources import write_text
from message_recorder import MessageRecorder
from swivel.cli import cli
from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import ConfigError, CountsError, SwivelError, VocabularyError
from swivel.pipeline.info import describe_folder
from swivel.runtime.options import RunOptions
from swivel.training.fold_in import fold_in

LABELS = [f"code{number}" for number in range(12)]
LIMIT = 11
PAIRS = "a,b,<11\na,c,12\nb,c,*\nb,d,15\nd,a,-1\nc,d,\n"


def make_counts(seed: int, size: int = 12) -> np.ndarray[Any, Any]:
    """Return symmetric counts of codes that occur together, with and without small ones."""
    rng = np.random.default_rng(seed)
    half = np.triu(rng.poisson(rng.gamma(1.0, 15.0, (size, size))))
    return half + half.T


def drop_small(counts: np.ndarray[Any, Any], limit: int = LIMIT) -> np.ndarray[Any, Any]:
    return np.where(counts < limit, 0, counts)


def import_site(counts: np.ndarray[Any, Any], labels: list[str] = LABELS, **settings: Any) -> Matrix:
    return swivel.import_counts(scipy.sparse.csr_array(counts), row_labels=labels, sides="mirrored", **settings)


def to_dense(matrix: Matrix, labels: list[str] = LABELS) -> np.ndarray[Any, Any]:
    ids = np.array([matrix.rows.ids[label] for label in labels])
    return np.asarray(matrix.to_scipy().toarray()[np.ix_(ids, ids)])


def sums_of(matrix: Matrix) -> dict[str, float]:
    return dict(zip(matrix.rows.tokens, matrix.row_sums.tolist(), strict=True))


def test_a_suppressed_matrix_knows_its_bound_wherever_it_is(tmp_path: Path) -> None:
    counts = drop_small(make_counts(1))
    matrix = import_site(counts, suppressed_below=LIMIT)
    stored = import_site(counts, out=tmp_path / "matrix", suppressed_below=LIMIT)
    matrix.save(tmp_path / "saved")
    copies = [stored, swivel.open_matrix(tmp_path / "saved"), pickle.loads(pickle.dumps(stored)), stored.to_memory()]
    for each in [matrix, matrix.reblocked(2, 2), *copies]:
        assert (each.absent_bound, each.suppressed_below) == (10.0, 11.0)
        assert each.transformed("log").absent_bound == math.log(11)
        assert each.fingerprint == matrix.fingerprint
    complete = import_site(counts)
    assert (complete.absent_bound, complete.suppressed_below) == (0.0, None)
    assert complete.fingerprint != matrix.fingerprint


@pytest.mark.parametrize(("unit", "bound"), [(1, 10.0), (4, 10.75), (10, 10.9)])
def test_the_bound_is_the_largest_count_below_the_limit(unit: int, bound: float) -> None:
    matrix = swivel.import_counts([("a", "x", 20), ("a", "y", 12 + 1 / unit)], suppressed_below=LIMIT)
    assert matrix.unit == unit
    assert matrix.absent_bound == bound


@pytest.mark.parametrize(
    ("recipe", "settings", "unseen"),
    [
        ("fast", {}, 10.0),
        ("default", {}, 10.0),
        ("graph", {}, 10.0),
        ("fast", {"unseen": 20.0}, 20.0),
        ("fast", {"transform": "log"}, math.log(11)),
        ("table", {}, math.log(11)),
    ],
)
def test_training_reads_an_absent_cell_as_the_bound(recipe: str, settings: Any, unseen: float) -> None:
    matrix = import_site(drop_small(make_counts(1)), suppressed_below=LIMIT)
    vectors = swivel.train(matrix, recipe=recipe, dim=4, epochs=1, **settings)
    assert vectors.settings["train"]["unseen"] == pytest.approx(unseen, rel=1e-8)


def test_the_bound_changes_the_vectors_as_the_same_unseen_does() -> None:
    counts = drop_small(make_counts(1))
    known = swivel.train(import_site(counts, suppressed_below=LIMIT), recipe="fast", dim=4, epochs=2)
    same = swivel.train(import_site(counts), recipe="fast", dim=4, epochs=2, unseen=10)
    zeros = swivel.train(import_site(counts), recipe="fast", dim=4, epochs=2)
    assert np.array_equal(known.rows, same.rows)
    assert not np.allclose(known.rows, zeros.rows)


def test_own_sums_are_those_of_training_and_of_fold_in() -> None:
    counts = make_counts(2)
    sums = counts.sum(axis=1)
    matrix = import_site(
        drop_small(counts), suppressed_below=LIMIT, row_sums=dict(zip(LABELS, sums.tolist(), strict=True))
    )
    assert sums_of(matrix) == dict(zip(LABELS, sums.tolist(), strict=True))
    assert matrix.total == counts.sum()

    vectors = swivel.train(matrix, recipe="fast", dim=4, epochs=1)
    assert vectors.row_sums is not None and np.array_equal(vectors.row_sums, matrix.row_sums)
    columns = vectors.column_table
    assert columns is not None and columns.sums is not None
    new = {LABELS[0]: 30.0, LABELS[1]: 12.0}
    row = np.array([[new.get(label, 0.0) for label in columns.vocabulary]])
    config = TrainConfig(**vectors.settings["train"])
    expected = fold_in(row, columns.values, columns.sums, float(counts.sum()), config)
    found = swivel.Recommender(vectors, matrix).fold_in(scipy.sparse.csr_array(row))
    assert np.array_equal(found, expected)


def test_the_total_of_persons_is_that_of_the_scores() -> None:
    # 100 persons; 50 have a, 40 have b, 30 have both: PMI is log(30 x 100 / (50 x 40)).
    matrix = swivel.import_counts(
        [("a", "b", 30), ("a", "c", 40), ("b", "c", 12)],
        sides="undirected",
        row_sums={"a": 50, "b": 40, "c": 45},
        total=100,
    )
    assert matrix.total == 100
    vectors = swivel.train(matrix, recipe="fast", dim=2, epochs=1, block_size=4)
    recommender = swivel.Recommender(vectors, matrix)
    difference = recommender.score("a", ["b"], kind="log_count") - recommender.score("a", ["b"])
    assert difference == pytest.approx(math.log(50 * 40 / 100), rel=1e-5)


@pytest.mark.parametrize("kind", ["file", "csv", "series", "sequence", "positions"])
def test_sums_are_read_from_files_mappings_and_sequences(kind: str, tmp_path: Path) -> None:
    counts = make_counts(3)
    sums = counts.sum(axis=1).tolist()
    lines = [f"{label}\t{number}" for label, number in zip(LABELS, sums, strict=True)]
    sources: dict[str, Any] = {
        "file": write_text(tmp_path / "sums.tsv", "code\tpatients\n" + "\n".join(lines) + "\n"),
        "csv": write_text(tmp_path / "sums.csv", "\n".join(lines).replace("\t", ",") + "\n"),
        "series": pd.Series(sums, index=LABELS),
        "sequence": sums,
        "positions": dict(enumerate(sums)),
    }
    matrix = import_site(drop_small(counts), row_sums=sources[kind], suppressed_below=LIMIT)
    assert sums_of(matrix) == dict(zip(LABELS, sums, strict=True))


@pytest.mark.parametrize("sides", ["apart", "same"])
def test_rows_and_columns_have_sums_of_their_own(sides: str) -> None:
    counts = np.random.default_rng(5).poisson(9.0, (8, 8)) + np.eye(8, dtype=int)
    labels = [f"l{number}" for number in range(8)]
    row_sums, column_sums = ((counts + 2).sum(axis=axis) for axis in (1, 0))
    matrix = swivel.import_counts(
        [(labels[i], labels[j], int(counts[i, j])) for i, j in np.argwhere(counts).tolist()],
        sides=sides,
        row_sums=dict(zip(labels, row_sums.tolist(), strict=True)),
        column_sums=dict(zip(labels, column_sums.tolist(), strict=True)),
    )
    for vocabulary, found, expected in (
        (matrix.rows, matrix.row_sums, row_sums),
        (matrix.columns, matrix.column_sums, column_sums),
    ):
        assert {label: found[vocabulary.ids[label]] for label in labels} == dict(zip(labels, expected, strict=True))
    assert matrix.count("l0", "l1") == counts[0, 1]
    order = row_sums + column_sums if sides == "same" else row_sums
    assert list(matrix.rows.tokens) == [labels[n] for n in np.argsort(-order, kind="stable")]


FOUR = {"a": 30, "b": 30, "c": 30, "d": 30}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "line 1: the count '<11' is not a number; pass suppressed_below=11, for example, if it marks"),
    ({"suppressed_below": 5}, "line 1: the count '<11' may be above the limit suppressed_below, which is 5"),
    ({"suppressed_below": 0}, "suppressed_below must be a positive number"),
    ({"suppressed_below": 11, "row_sums": FOUR}, "row_sums need column_sums, too; or pass sides='mirrored'"),
    ({"suppressed_below": 11, "total": 5}, "total has no effect without row_sums"),
    ({"suppressed_below": 11, "column_sums": FOUR}, "column_sums has no effect without row_sums"),
    ({"sides": "undirected", "row_sums": FOUR, "column_sums": FOUR}, "symmetric, .*: omit column_sums"),
    ({"sides": "undirected", "row_sums": {**FOUR, "b": 3}}, "the sum 3 of row 'b' is smaller than .* cell, 15"),
    ({"sides": "undirected", "row_sums": {"a": 30}}, "row_sums has no sum of '[bcd]'"),
    ({"sides": "undirected", "row_sums": {**FOUR, "b": -3}}, "row_sums: the sum of 'b' is -3; sums must be finite"),
    ({"sides": "undirected", "row_sums": {"a": "many"}}, "row_sums must be numbers by label, or a file"),
    ({"sides": "undirected", "row_sums": "nowhere.tsv"}, "nowhere.tsv: no such file of sums"),
    ({"sides": "undirected", "row_sums": FOUR, "total": 0}, "total must be a positive number up to 1e30, got 0"),
    ({"sides": "undirected", "row_sums": FOUR, "total": "60"}, "total must be a positive number .*, got '60'"),
    ({"sides": "undirected", "row_sums": FOUR, "total": 29}, "the sum 30 of row 'a' is larger than the total, 29"),
    ({"sides": "undirected", "row_sums": {**FOUR, "b": 14}, "total": 50}, "the sum 14 of row 'b' .* largest cell, 15"),
    ({"sides": "undirected", "row_sums": {**FOUR, "b": 3e18}}, "sums up to 3e.18 in units of 1/1 are too large"),
    (
        {"row_sums": FOUR, "column_sums": {**FOUR, "d": 25}, "sides": "apart"},
        "the row sums add up to 120, the column sums to 115; pass total",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_does_not_fit_together_is_refused_in_one_line(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = write_text(tmp_path / "pairs.csv", PAIRS)
    limit = {"suppressed_below": 11} if "sides" in settings else {}
    with pytest.raises(SwivelError, match=message) as refused:
        swivel.import_counts(file, tmp_path / "matrix", **{**limit, **settings})
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == [file]


def test_the_total_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"sides": "undirected", "row_sums": FOUR, "suppressed_below": 11}
    file = write_text(tmp_path / "pairs.csv", PAIRS)
    total: Any = np.int64(60)
    imported = swivel.import_counts(file, tmp_path / "matrix", total=total, **settings)
    assert imported.total == 60
    assert swivel.import_counts(file, tmp_path / "matrix", total=60, **settings).fingerprint == imported.fingerprint


def test_an_unknown_recipe_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match=r"recipe must be one of paper, .*, got 'best'"):
        swivel.train(import_site(drop_small(make_counts(1)), suppressed_below=LIMIT), recipe="best")


@pytest.mark.parametrize("text", ["a\t1\na\t2\n", "a\n", "a\tmany\n", "a\t1\t2\n", ""])
def test_files_of_sums_are_refused_with_their_line(text: str, tmp_path: Path) -> None:
    sums = write_text(tmp_path / "sums.tsv", text)
    with pytest.raises(CountsError, match=r"sums\.tsv(, line [12])?: "):
        import_site(make_counts(1), row_sums=sums)


def test_marked_cells_are_read_as_the_mean_of_what_they_may_be(tmp_path: Path) -> None:
    recorder = MessageRecorder()
    options = RunOptions(progress=recorder)
    file = write_text(tmp_path / "pairs.csv", PAIRS)
    matrix = swivel.import_counts(file, tmp_path / "m", suppressed_below=11, sides="undirected", options=options)
    # sqrt(1 x 10) = 3.16
    expected = [0.0] * 4 + [3.0] * 4 + [12.0, 15.0]
    assert sorted(to_dense(matrix, ["a", "b", "c", "d"])[np.triu_indices(4)].tolist()) == expected
    assert any("4 marked cells read as 3; cells that are not in the source have 0" in text for text in recorder.lines)
    facts = json.loads((tmp_path / "m" / "manifest.json").read_text())["facts"]
    assert facts["marked_cells"] == 4
    assert (matrix.absent_bound, matrix.suppressed_below) == (0.0, None)


@pytest.mark.parametrize(("limit", "count"), [(1, 0.5), (2, 1.0), (5, 2.0), (6, 2.0), (11, 3.0), (101, 10.0)])
def test_a_mark_is_a_count_between_1_and_its_limit(limit: float, count: float) -> None:
    assert swivel.import_counts([("a", "x", 200), ("b", "x", "*")], suppressed_below=limit).count("b", "x") == count


def test_marks_may_be_more_than_the_own_sum_of_their_row() -> None:
    triples = [("a", "b", 20), ("a", "c", "*"), ("b", "c", "*")]
    matrix = swivel.import_counts(triples, sides="undirected", suppressed_below=11, row_sums={"a": 21, "b": 21, "c": 2})
    assert sums_of(matrix) == {"a": 21.0, "b": 21.0, "c": 2.0}


def test_marks_are_known_in_every_kind_of_source(tmp_path: Path) -> None:
    triples = [("a", "x", 20), ("b", "x", "<11"), ("b", "y", 30), ("a", "y", None)]
    frame = pd.DataFrame(triples, columns=["code", "site", "count"])
    numbers = frame.assign(count=[20.0, -1.0, 30.0, math.nan])
    crosstab = write_text(tmp_path / "wide.csv", ",x,y\na,20,\nb,*,30\n")
    # An empty cell of a crosstab may be 0.
    sources: list[tuple[Any, dict[str, Any], int]] = [
        (triples, {}, 2),
        (frame, {}, 2),
        (numbers, {}, 2),
        (pa.table({"code": list("abba"), "site": list("xxyy"), "count": [20, -1, 30, None]}), {}, 2),
        (crosstab, {"format": "crosstab"}, 1),
        (pd.DataFrame({"x": [20, -1], "y": [math.nan, 30]}, index=["a", "b"]), {"format": "crosstab"}, 1),
        (pd.DataFrame({"x": [20, "*"], "y": [None, 30]}, index=["a", "b"]), {"format": "crosstab"}, 1),
    ]
    for source, settings, marks in sources:
        recorder = MessageRecorder()
        options = RunOptions(progress=recorder)
        matrix = swivel.import_counts(source, suppressed_below=11, options=options, **settings)
        assert (matrix.count("a", "x"), matrix.count("b", "x"), matrix.count("b", "y")) == (20.0, 3.0, 30.0)
        assert matrix.count("a", "y") == (3.0 if marks == 2 else 0.0)
        assert any(f"{marks} marked cell{'s' * (marks > 1)} read as 3" in text for text in recorder.lines)


def test_noisy_counts_are_read_unless_they_are_negative() -> None:
    noisy = [("a", "x", 20.7), ("a", "y", 0.0), ("b", "x", 13.25)]
    matrix = swivel.import_counts(noisy, suppressed_below=LIMIT)
    assert matrix.cell_count == 2
    assert matrix.count("a", "x") == pytest.approx(20.7)
    with pytest.raises(
        CountsError, match=r"item 4: the count -0\.5 is negative; counts must be finite and not negative"
    ):
        swivel.import_counts([*noisy, ("b", "y", -0.5)], suppressed_below=LIMIT)


@pytest.mark.parametrize("settings", [{"suppressed_below": 11}, {"row_sums": {"a": 5}}])
def test_counts_that_are_made_here_have_no_missing_cells(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has no effect on baskets, whose counts are all there"):
        swivel.import_counts([["a", "b"]], format="baskets", **settings)
    with pytest.raises(ConfigError, match="has no effect on walks, whose counts are all there"):
        swivel.walk_counts([("a", "b")], **settings)


def test_pooled_complete_sites_are_the_counts_of_the_union() -> None:
    sites = [make_counts(seed) for seed in (1, 2, 3)]
    union = import_site(sum(sites[1:], sites[0]))
    pooled = swivel.add(*map(import_site, sites))
    assert pooled.fingerprint == union.fingerprint
    own = [import_site(site, row_sums=site.sum(axis=1).tolist()) for site in sites]
    assert np.array_equal(swivel.add(*own).row_sums, union.row_sums)


def test_pooled_suppressed_sites_bound_every_absent_cell_and_keep_the_sums() -> None:
    limits = (11, 6)
    names = LABELS[:9], LABELS[4:]  # codes 4 to 8 are in both
    counts = [make_counts(seed, len(labels)) for seed, labels in enumerate(names)]
    sites = [
        import_site(drop_small(each, limit), labels, suppressed_below=limit, row_sums=each.sum(axis=1).tolist())
        for each, labels, limit in zip(counts, names, limits, strict=True)
    ]
    pooled = swivel.add(*sites)

    union, seen = np.zeros((12, 12)), np.zeros((12, 12))
    for each, first, limit in zip(counts, (0, 4), limits, strict=True):
        part = slice(first, first + len(each))
        union[part, part] += each
        seen[part, part] += drop_small(each, limit)
    assert np.array_equal(to_dense(pooled), seen)
    assert (union[seen == 0] <= pooled.absent_bound).all()
    assert (pooled.absent_bound, pooled.suppressed_below) == (15.0, 16.0)
    assert sums_of(pooled) == dict(zip(LABELS, union.sum(axis=1).tolist(), strict=True))
    assert pooled.total == union.sum()
    assert swivel.train(pooled, recipe="fast", dim=4, epochs=1).settings["train"]["unseen"] == 15.0


def test_a_pooled_matrix_says_what_each_site_contributed(tmp_path: Path) -> None:
    first = import_site(drop_small(make_counts(1)), suppressed_below=LIMIT)
    second = import_site(make_counts(2))
    third = import_site(drop_small(make_counts(3), 6), suppressed_below=6)
    expected = [
        {"rows": 12, "columns": 12, "cells": each.cell_count, "total": each.total} for each in (first, second, third)
    ]
    expected[0]["suppressed_below"] = 11.0
    expected[2]["suppressed_below"] = 6.0
    pooled = swivel.add(swivel.add(first, second, out=tmp_path / "two"), third, out=tmp_path / "three")
    assert pooled.config["sum"]["sites"] == expected
    assert pooled.suppressed_below == 16.0
    again = swivel.add(swivel.open_matrix(tmp_path / "two"), third, out=tmp_path / "three")
    assert again.fingerprint == pooled.fingerprint


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "11"])
def test_a_wrong_limit_of_exported_counts_is_refused(limit: Any, tmp_path: Path) -> None:
    matrix = swivel.import_counts([("tea", "milk", 20)])
    with pytest.raises(ConfigError, match="suppress_below must be a positive number up to 1e30, got"):
        swivel.export_counts(matrix, tmp_path / "counts.tsv", suppress_below=limit)


def test_info_lists_every_site_by_name(tmp_path: Path) -> None:
    file = write_text(tmp_path / "pairs.csv", PAIRS)
    swivel.import_counts(file, tmp_path / "north", suppressed_below=11, sides="undirected")
    for name, limit in (("east", 6), ("south/matrix", 11)):
        import_site(drop_small(make_counts(1), limit), suppressed_below=limit).save(tmp_path / name)
    swivel.add(tmp_path / "north", tmp_path / "east", tmp_path / "south", out=tmp_path / "pooled")
    sites = describe_folder(tmp_path / "pooled")["settings"]["sum"]
    assert [site["name"] for site in sites.values()] == ["north", "east", "south"]
    limits = [(site.get("suppressed_below"), site.get("marked_below")) for site in sites.values()]
    assert limits == [(None, 11), (6, None), (11, None)]


def test_a_header_above_marked_counts_is_known(tmp_path: Path) -> None:
    file = write_text(tmp_path / "pairs.csv", "code,other,patients\n" + PAIRS)
    with pytest.warns(swivel.errors.SwivelWarning, match="is taken for a header"):
        matrix = swivel.import_counts(file, suppressed_below=11, sides="undirected")
    assert sorted(matrix.rows.tokens) == list("abcd")
    # A mark on the first line is a count.
    assert swivel.import_counts(write_text(file, PAIRS), suppressed_below=11, sides="undirected").total == matrix.total


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
@pytest.mark.parametrize("sides", ["mirrored", "same", "apart"])
def test_exported_counts_are_imported_without_the_small_ones(sides: str, suffix: str, tmp_path: Path) -> None:
    counts = make_counts(7)
    labels = [f"code {number}, or so" for number in range(12)]
    given = counts if sides == "mirrored" else np.triu(counts) + 1
    matrix = swivel.import_counts(
        scipy.sparse.csr_array(given),
        row_labels=labels,
        column_labels=None if sides != "apart" else labels,
        sides=sides,
    )
    file = tmp_path / f"counts.{suffix}"
    written = swivel.export_counts(matrix, file, suppress_below=LIMIT)
    assert written == len(file.read_text().splitlines())
    again = swivel.import_counts(
        file, sides={"mirrored": "undirected"}.get(sides, sides), suppressed_below=LIMIT, separator=None
    )
    for i, j in np.ndindex(12, 12):
        if labels[i] in again.rows and labels[j] in again.columns:
            assert again.count(labels[i], labels[j]) == drop_small(given)[i, j]
    assert again.total == drop_small(given).sum()


def test_a_label_with_a_tab_needs_commas(tmp_path: Path) -> None:
    matrix = swivel.import_counts([("a\tb", "x", 20)])
    with pytest.raises(VocabularyError, match=r"has a tab or a line end; write to a file that ends in \.csv"):
        swivel.export_counts(matrix, tmp_path / "counts.tsv")
    swivel.export_counts(matrix, tmp_path / "counts.csv")
    assert swivel.import_counts(tmp_path / "counts.csv").count("a\tb", "x") == 20


def test_the_command_line_suppresses_imports_and_says_so(tmp_path: Path) -> None:
    def call(*arguments: object) -> str:
        result = CliRunner().invoke(cli, list(map(str, arguments)))
        assert result.exit_code == 0, result.output
        return result.output

    counts, matrix = tmp_path / "counts.tsv", tmp_path / "matrix"
    swivel.import_counts([("a", "b", 20), ("a", "c", 3), ("b", "c", 14)], matrix, sides="undirected")
    said = call("export", matrix, counts, "--format", "triples", "--suppress-below", 11)
    assert "2 counts; counts below 11 were left out" in said
    assert f"import {counts} --suppressed-below 11 --sides undirected -o matrix" in said

    sums = write_text(tmp_path / "sums.tsv", "a\t23\nb\t34\nc\t17\n")
    known = ("--suppressed-below", 11, "--sides", "undirected", "--row-sums", sums)
    said = call("import", counts, *known, "-o", tmp_path / "again")
    assert "4 cells observed, the others have at most 10" in said
    said = call("info", tmp_path / "again")
    assert "suppressed_below" in said and "own_sums" in said

    for arguments, message in (
        (
            ("export", matrix, tmp_path / "v.kv", "--suppress-below", 11),
            "suppress_below is for the counts of a matrix",
        ),
        (("export", matrix, counts, "--format", "triples", "--side", "rows"), "'--side' has no effect on counts"),
        (("export", matrix, counts, "--format", "triples"), "exists already"),
    ):
        result = CliRunner().invoke(cli, list(map(str, arguments)))
        assert result.exit_code != 0
        assert message in (result.output or str(result.exception))


def test_sums_without_use_are_a_warning() -> None:
    matrix = swivel.import_counts([("a", "x", 20), ("b", "y", 30)], row_sums=FOUR, column_sums={"x": 60, "y": 60})
    with pytest.warns(swivel.errors.SwivelWarning, match="pass transform='none' to train with them"):
        swivel.train(matrix, recipe="table", dim=2, epochs=1)
