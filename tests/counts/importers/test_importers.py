"""import_counts: every format and object gives the same matrix."""

from __future__ import annotations

import datetime
import gzip
import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import scipy.io
import scipy.sparse
from click.testing import CliRunner

import swivel
from import_sources import (
    EXPECTED,
    FILES,
    TRIPLES,
    TSV,
    counts_of,
    dense,
    glove_records,
    table,
    write_text,
)
from swivel.cli import cli
from swivel.cli.flags import translate
from swivel.corpus.vocabulary import to_label
from swivel.counts.importers.context import UnitFinder
from swivel.errors import ConfigError, CountsError, FolderExists, SwivelWarning

OBJECTS: dict[str, Callable[[], Any]] = {
    "triples": lambda: TRIPLES,
    "generator": lambda: (list(triple) for triple in TRIPLES),
    "numbers for labels": lambda: [(r, int(c) if c.isdecimal() else c, x) for r, c, x in TRIPLES],
    "pandas": lambda: table().to_pandas().set_index(np.arange(6) / 2),
    "pandas categories": lambda: table().to_pandas().astype({"row": "category"}),
    "polars": lambda: polars.from_arrow(table()),
    "pyarrow table": table,
    "pyarrow batch": lambda: table().to_batches()[0],
    "pyarrow reader": lambda: table().to_reader(),
    "pyarrow dictionary": lambda: table().set_column(0, "row", table()["row"].dictionary_encode()),
    "pyarrow bytes": lambda: table().set_column(0, "row", table()["row"].cast(pa.binary())),
}


@pytest.mark.parametrize("name", FILES)
def test_every_file_gives_the_same_matrix(name: str, tmp_path: Path) -> None:
    matrix = swivel.import_counts(FILES[name](tmp_path / name), tmp_path / "matrix")
    assert counts_of(matrix) == EXPECTED


@pytest.mark.parametrize("name", OBJECTS)
def test_every_object_gives_the_same_matrix(name: str) -> None:
    assert counts_of(swivel.import_counts(OBJECTS[name]())) == EXPECTED


def test_labels_are_sorted_by_descending_sum_and_then_by_name(tmp_path: Path) -> None:
    matrix = swivel.import_counts(TRIPLES)
    assert matrix.rows.tokens == ("tea", "12", "café au lait", "🍵")
    assert matrix.columns.tokens == ("milk", "7", "sugar")
    assert matrix.rows.counts.tolist() == [8, 4, 3, 1]
    assert matrix.row_sums.tolist() == [8, 4, 3, 1]

    tied = swivel.import_counts([("tea", "sugar", 1), ("ale", "milk", 1)])
    assert tied.rows.tokens == ("ale", "tea")
    assert tied.columns.tokens == ("milk", "sugar")


def test_the_order_of_lines_does_not_change_the_matrix(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    digests = set()

    for number in range(3):
        lines = TSV.splitlines(keepends=True)
        rng.shuffle(lines)
        file = write_text(tmp_path / f"{number}.tsv", "".join(lines))
        digests.add(swivel.import_counts(file).fingerprint)

    assert len(digests) == 1


@pytest.mark.parametrize("memory", ["200kB", "1MB", "1GiB"])
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_and_threads_do_not_change_the_matrix(memory: str, threads: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    counts = rng.poisson(0.4, (300, 200)) * rng.integers(1, 9, (300, 200))
    matrix = swivel.import_counts(
        scipy.sparse.coo_array(counts), options=swivel.RunOptions(memory=memory, threads=threads)
    )
    assert (dense(matrix) == counts).all()
    assert (matrix.row_sums == np.sort(counts.sum(1))[::-1]).all()


@pytest.mark.parametrize("largest", [3, 2**40])
def test_large_matrices_are_divided_into_shards_correctly(largest: int) -> None:
    rng = np.random.default_rng(6)
    rows = rng.integers(0, 2_500, 9_000)
    columns = rng.integers(0, 1_300, 9_000)
    counts = rng.integers(1, largest, 9_000)
    expected = scipy.sparse.coo_array((counts.astype(float), (rows, columns)), shape=(2_500, 1_300))
    matrix = swivel.import_counts(expected, options=swivel.RunOptions(memory="1MB", threads=2))
    assert (dense(matrix) == expected.toarray()).all()
    matrix.verify()


def test_several_files_are_read_as_one_table(tmp_path: Path) -> None:
    one = write_text(tmp_path / "1.tsv", "a\tx\t1\n")
    two = write_text(tmp_path / "2.tsv", "a\tx\t2\nb\ty\t1\n")
    assert counts_of(swivel.import_counts([one, str(two)])) == {("a", "x"): 3, ("b", "y"): 1}
    assert counts_of(swivel.import_counts(str(tmp_path / "*.tsv"))) == {("a", "x"): 3, ("b", "y"): 1}


def test_without_a_third_field_every_count_is_one(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.tsv", "a\tx\na\tx\nb\ty\n")
    assert counts_of(swivel.import_counts(file)) == {("a", "x"): 2, ("b", "y"): 1}


def test_zero_counts_and_labels_without_counts_are_omitted() -> None:
    matrix = swivel.import_counts([("a", "x", 1), ("b", "y", 0), ("a", "y", 2)])
    assert matrix.rows.tokens == ("a",)
    assert matrix.columns.tokens == ("y", "x")


def test_fields_are_chosen_by_name_or_position(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.csv", "day,page,user,n\n1,x,a,2\n2,x,a,3\n")
    for fields in ("user,page,n", "3,2,4"):
        assert counts_of(swivel.import_counts(file, header=True, fields=fields)) == {("a", "x"): 5}
    frame = pandas.DataFrame({"day": [1], "page": ["x"], "user": ["a"]})
    assert counts_of(swivel.import_counts(frame, fields="user,page")) == {("a", "x"): 1}
    assert counts_of(swivel.import_counts(pa.Table.from_pandas(frame), fields="user,day")) == {("a", "1"): 1}


HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "a count": ("user\titem\trating\nann\ttea\t1\nbob\tjam\t2\n", {}),
    "a field that is not read": ("user_id,item_id,time\n1,x,9\n2,y,8\n", {"fields": "1,2"}),
    "ids": ("user item\n1 5\n2 7\n", {}),
    "quotation marks": ('"user","item, or not",n\n"a, b",x,1\n', {}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_text_above_numbers_is_taken_for_a_header_with_a_warning(name: str, tmp_path: Path) -> None:
    text, settings = HEADERS[name]
    file = write_text(tmp_path / ("a.csv" if "," in text else "a.txt"), text)
    with pytest.warns(
        SwivelWarning, match=r"a\.\w+: the first line \(user.*\) is taken for a header; pass header=True"
    ):
        found = counts_of(swivel.import_counts(file, **settings))
    assert found == counts_of(swivel.import_counts(file, header=True, **settings))
    assert not any("user" in label or "item" in label for cell in found for label in cell)


def test_names_in_the_first_line_are_found_and_other_lines_are_data(tmp_path: Path) -> None:
    named = write_text(tmp_path / "named.csv", "day,page,user\nmonday,x,ann\n")
    assert counts_of(swivel.import_counts(named, fields="user,page")) == {("ann", "x"): 1}
    with pytest.raises(ConfigError, match="no field 'user'"):
        swivel.import_counts(named, fields="user,page", header=False)

    # Texts alone, a number in the first line, or one line: nothing says that it is a header.
    for text, cells in (("user\titem\nann\ttea\n", 2), ("user\t7\n1\t2\n", 2), ("user\titem\n", 1)):
        assert len(counts_of(swivel.import_counts(write_text(tmp_path / "a.tsv", text)))) == cells
    file = write_text(tmp_path / "b.tsv", "tea\tmilk\n1\t2\n")
    assert counts_of(swivel.import_counts(file, header=False)) == {("tea", "milk"): 1, ("1", "2"): 1}


def test_the_command_says_which_line_it_takes_for_a_header(tmp_path: Path) -> None:
    file = write_text(tmp_path / "ml.tsv", "user\titem\trating\n1\t5\t3\n2\t5\t1\n")
    command = [sys.executable, "-m", "swivel", "import", str(file), "--fields", "1,2", "-o", str(tmp_path / "matrix")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"warning: {file}: the first line (user, item, rating) is taken for a header; pass --header" in done.stderr
    assert "--no-header if not" in done.stderr
    assert swivel.open_matrix(tmp_path / "matrix").rows.tokens == ("1", "2")

    done = subprocess.run([*command, "--no-header", "--overwrite"], capture_output=True, text=True, check=True)
    assert "warning" not in done.stderr
    assert "user" in swivel.open_matrix(tmp_path / "matrix").rows


CROSSTAB = "gene,liver,skin,lung\nbrca1,1,,2\ntp53,0,3,1.5\n"
CROSSTAB_CELLS = {("brca1", "liver"): 1, ("brca1", "lung"): 2, ("tp53", "skin"): 3, ("tp53", "lung"): 1.5}


@pytest.mark.parametrize("text", [CROSSTAB, CROSSTAB.removeprefix("gene"), CROSSTAB.replace("skin", '"skin"')])
def test_crosstabs_have_a_column_per_label(text: str, tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.csv", text)
    assert counts_of(swivel.import_counts(file, format="crosstab")) == CROSSTAB_CELLS
    tabbed = write_text(tmp_path / "a.tsv.gz", gzip.compress(text.replace(",", "\t").replace('"', "").encode()))
    assert counts_of(swivel.import_counts(tabbed, format="crosstab")) == CROSSTAB_CELLS


def test_the_command_imports_a_crosstab_and_says_how(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.csv", CROSSTAB)
    arguments = ["import", str(file), "-o", str(tmp_path / "matrix")]
    refused = CliRunner().invoke(cli, arguments)
    assert isinstance(refused.exception, ConfigError)
    assert translate(str(refused.exception), refused.exception.arguments, cli.commands["import"]).endswith(
        "4 fields; pass those of the row, the column and the count, such as --fields 1,2,3; "
        "or --format crosstab for a table with a column per label"
    )
    CliRunner().invoke(cli, [*arguments, "--format", "crosstab"], catch_exceptions=False)
    assert counts_of(swivel.open_matrix(tmp_path / "matrix")) == CROSSTAB_CELLS


def test_crosstabs_of_pandas_and_polars() -> None:
    frame = pandas.DataFrame({"gene": ["brca1", "tp53"], "liver": [1, 0], "skin": [np.nan, 3], "lung": [2, 1.5]})
    for wide in (frame, frame.set_index("gene"), polars.from_pandas(frame)):
        assert counts_of(swivel.import_counts(wide, format="crosstab")) == CROSSTAB_CELLS

    events = pandas.DataFrame({"user": [7, 7, 8], "page": [1, 2, 2], "n": [1, 2, 3]})
    pivot = events.pivot_table(index="user", columns="page", values="n")
    assert counts_of(swivel.import_counts(pivot, format="crosstab")) == counts_of(swivel.import_counts(events))
    with pytest.raises(ConfigError, match="pass format='crosstab' if each column is a label"):
        swivel.import_counts(frame.set_index("gene").fillna(0))


def test_bad_crosstabs_are_refused_with_their_place(tmp_path: Path) -> None:
    for text, message in (
        ("g,a,a\nx,1,2\n", r"a\.csv, line 1, column 3: .*a.* occurs twice"),
        ("g,a,b\nx,1,two\n", r"a\.csv, line 2: the count 'two' is not a number"),
        ("g,a,b\nx,1\n", r"a\.csv, line 2: 2 fields, but the first line has 3"),
        ("g,a,b\nx,1,-1\n", r"a\.csv, line 2: the count -1 is negative"),
        ("g,a,b\n", "there are no counts"),
    ):
        with pytest.raises(CountsError, match=message):
            swivel.import_counts(write_text(tmp_path / "a.csv", text), format="crosstab")
    with pytest.raises(CountsError, match=r"the table, column 3: .* occurs twice"):
        swivel.import_counts(pandas.DataFrame([["x", 1, 2]], columns=["g", "a", "a"]), format="crosstab")
    with pytest.raises(ConfigError, match="crosstab is for files and for tables of pandas and polars"):
        swivel.import_counts(TRIPLES, format="crosstab")


IDS: dict[str, list[Any]] = {
    "196": [196, np.int64(196), 196.0, "196"],
    "('ann', 7)": [("ann", 7), ("ann", np.int64(7))],
    "2024-05-01": [datetime.date(2024, 5, 1)],
    "2024-05-01 00:00:00": [np.datetime64("2024-05-01"), pandas.Timestamp("2024-05-01")],
    "2024-05-01 12:00:00": [
        datetime.datetime(2024, 5, 1, 12),
        np.datetime64("2024-05-01T12:00:00.000000000"),
        pandas.Timestamp("2024-05-01 12:00"),
    ],
    "00000000-0000-0000-0000-000000000007": [uuid.UUID(int=7)],
}


@pytest.mark.parametrize("label", IDS)
def test_ids_of_any_kind_are_labels(label: str) -> None:
    for value in IDS[label]:
        column = pandas.Series([value])
        assert to_label(value) == label
        for source in ([(value, "x", 1)], pandas.DataFrame({"id": column, "to": "x", "n": 1})):
            assert counts_of(swivel.import_counts(source)) == {(label, "x"): 1}
        assert swivel.import_counts([[value, "x"]], format="baskets").count(label, "x") == 1


@pytest.mark.parametrize("value", [None, 1.5, float("nan"), True, pandas.NaT, pandas.NA, ["a"], ("a", ["b"])])
def test_what_is_missing_or_no_id_is_refused(value: Any) -> None:
    with pytest.raises(CountsError, match="item 1: labels must be strings or integers, got"):
        swivel.import_counts([(value, "x", 1)])


def test_quotation_marks_in_csv_hold_commas_and_line_ends(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.csv", 'plain,x,1\n"a, ""b""","line\nend",2\n\nlast,x,3\n')
    expected = {("plain", "x"): 1, ('a, "b"', "line\nend"): 2, ("last", "x"): 3}
    assert counts_of(swivel.import_counts(file)) == expected


def test_edges_count_in_both_directions_and_loops_once(tmp_path: Path) -> None:
    file = write_text(tmp_path / "graph.txt", "# from to\na b\nb  c\nb a\nc c\n")
    matrix = swivel.import_counts(file, format="edges")
    expected = {("a", "b"): 2, ("b", "a"): 2, ("b", "c"): 1, ("c", "b"): 1, ("c", "c"): 1}
    assert (counts_of(matrix), matrix.is_symmetric) == (expected, True)
    assert matrix.rows.counts.tolist() == matrix.row_sums.tolist() == [3, 2, 2]


def test_sides_same_shares_the_vocabulary_and_keeps_the_direction() -> None:
    matrix = swivel.import_counts([("a", "b", 2), ("b", "c", 1)], sides="same")
    assert (matrix.columns_per_row, matrix.is_symmetric) == (1, False)
    assert counts_of(matrix) == {("a", "b"): 2, ("b", "c"): 1}


def test_mirrored_counts_are_checked() -> None:
    matrix = swivel.import_counts([("a", "b", 2), ("b", "a", 2)], sides="mirrored")
    assert (counts_of(matrix), matrix.rows.counts.tolist()) == ({("a", "b"): 2, ("b", "a"): 2}, [2, 2])
    with pytest.raises(CountsError, match="not symmetric"):
        swivel.import_counts([("a", "b", 2), ("b", "a", 1)], sides="mirrored")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_sparse_matrices_keep_their_shape(kind: str, tmp_path: Path) -> None:
    counts = np.array([[0, 2, 0], [0, 0, 0.5], [0, 0, 0], [1, 0, 0]])
    held = scipy.sparse.coo_array(counts).asformat(kind)

    for compressed in (True, False):
        scipy.sparse.save_npz(tmp_path / "a.npz", held, compressed=compressed)
        assert (dense(swivel.import_counts(tmp_path / "a.npz")) == counts).all()

    assert (dense(swivel.import_counts(held)) == counts).all()
    assert (dense(swivel.import_counts(counts)) == counts).all()
    assert swivel.import_counts(held, drop_empty=True).rows.tokens == ("0", "3", "1")


@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
def test_matrix_market_files_are_read(field: str, tmp_path: Path) -> None:
    counts = np.array([[0, 2, 0], [4, 0, 1]])
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.coo_array(counts), field=field, comment="a comment")
    packed = write_text(tmp_path / "b.mtx.gz", gzip.compress((tmp_path / "a.mtx").read_bytes()))
    for file in (tmp_path / "a.mtx", packed):
        assert (dense(swivel.import_counts(file)) == (counts > 0 if field == "pattern" else counts)).all()


def test_symmetric_matrix_market_files_make_symmetric_matrices(tmp_path: Path) -> None:
    counts = np.array([[1, 2, 0], [2, 0, 3], [0, 3, 0]])
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.coo_array(counts), symmetry="symmetric")
    matrix = swivel.import_counts(tmp_path / "a.mtx")
    assert matrix.is_symmetric
    assert (dense(matrix) == counts).all()
    with pytest.raises(CountsError, match="omit sides"):
        swivel.import_counts(tmp_path / "a.mtx", sides="apart")


def test_row_and_column_labels_come_from_lists_or_files(tmp_path: Path) -> None:
    genes = write_text(tmp_path / "genes.tsv", "g1\tGene One\ng2\tGene Two\n")
    matrix = swivel.import_counts(np.array([[0, 2], [3, 0]]), row_labels=str(genes), column_labels=["x", "y"])
    assert counts_of(matrix) == {("g1", "y"): 2, ("g2", "x"): 3}


def test_glove_records_are_read_with_their_vocabulary(tmp_path: Path) -> None:
    write_text(tmp_path / "vocab.txt", "the 10\nof 7\nodd-word 1\n")
    file = write_text(tmp_path / "cooccurrence.bin", glove_records((1, 2, 1 / 3), (2, 1, 1 / 3), (1, 2, 0.5)))
    matrix = swivel.import_counts(file)
    assert counts_of(matrix) == pytest.approx({("the", "of"): 1 / 3 + 0.5, ("of", "the"): 1 / 3})
    assert (matrix.unit, matrix.columns_per_row, len(matrix.rows)) == (2_520, 1, 3)
    assert swivel.import_counts(file, sides="apart").columns_per_row == 0


def count_together(baskets: list[list[str]]) -> dict[tuple[str, str], float]:
    counts: dict[tuple[str, str], float] = {}
    for basket in baskets:
        for one in set(basket):
            for other in set(basket) - {one}:
                counts[one, other] = counts.get((one, other), 0) + 1
    return counts


def make_baskets() -> list[list[str]]:
    rng = np.random.default_rng(9)
    return [[f"i{item}" for item in rng.integers(0, 30, rng.integers(0, 12))] for _ in range(200)]


@pytest.mark.parametrize("separator", ["\t", ", ", ";", " "])
def test_items_of_a_basket_count_once_per_pair(separator: str, tmp_path: Path) -> None:
    baskets = make_baskets()
    file = write_text(tmp_path / "a.baskets", "".join(separator.join(basket) + "\n" for basket in baskets))
    for source in (file, baskets):
        matrix = swivel.import_counts(source, format="baskets")
        assert (counts_of(matrix), matrix.is_symmetric) == (count_together(baskets), True)


def test_header_and_comments_of_baskets_are_skipped(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.txt", "items\n# remark\na,b,,\n1,2\n")
    matrix = swivel.import_counts(file, format="baskets", header=True, comment="#", separator="comma")
    assert counts_of(matrix) == {("a", "b"): 1, ("b", "a"): 1, ("1", "2"): 1, ("2", "1"): 1}
    assert counts_of(swivel.import_counts([[1, 2]], format="baskets")) == {("1", "2"): 1, ("2", "1"): 1}


@pytest.mark.parametrize(
    ("counts", "unit"),
    [([1, 3e15], 1), ([0.25], 4), ([0.1, 7], 10), ([1 / 7, 1.5], 2_520), ([0.125], 1_000), ([0.01, 3], 100)],
)
def test_counts_share_the_smallest_unit_that_fits(counts: list[float], unit: int) -> None:
    finder = UnitFinder()
    finder.look_at(np.array(counts))
    finder.look_at(np.empty(0))
    assert finder.choose_unit() == unit


@pytest.mark.parametrize("scale", [1e-12, 1e-6, np.pi, 1e6 * np.pi])
def test_weights_without_a_common_unit_keep_five_digits(scale: float) -> None:
    rng = np.random.default_rng(4)
    weights = rng.random((20, 10)) * scale + scale / 100
    assert np.allclose(dense(swivel.import_counts(weights)), weights, rtol=1e-5, atol=0)


def test_weights_too_far_apart_for_any_unit_are_refused() -> None:
    with pytest.raises(CountsError, match="counts from 1e-15 to 1e\\+15 are too far apart"):
        swivel.import_counts([("a", "b", 1e-15), ("a", "c", 1e15)])


@pytest.mark.parametrize("count", ["1e20", "18446744073709551615", "1e308"])
def test_counts_beyond_the_largest_sum_are_refused_with_their_file(count: str, tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.tsv", f"a\tb\t{count}\na\tc\t{count}\n")
    with pytest.raises(CountsError, match=r"a\.tsv: counts up to 1\S+ add up to \S+, more than the largest exact sum"):
        swivel.import_counts(file)


def test_finished_folder_is_opened_again_and_others_are_refused(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.tsv", TSV)
    first = swivel.import_counts(file, tmp_path / "matrix")
    manifest = (tmp_path / "matrix" / "manifest.json").stat().st_mtime_ns
    assert swivel.import_counts(file, tmp_path / "matrix").fingerprint == first.fingerprint
    assert (tmp_path / "matrix" / "manifest.json").stat().st_mtime_ns == manifest
    with pytest.raises(FolderExists, match=r"with other settings \(import.sides\)"):
        swivel.import_counts(file, tmp_path / "matrix", sides="same")

    with pytest.raises(FolderExists):
        swivel.import_counts(TRIPLES, tmp_path / "matrix")

    again = swivel.import_counts(TRIPLES, tmp_path / "matrix", overwrite=True)
    assert counts_of(again) == EXPECTED


def test_the_same_object_is_finished_already_and_others_are_refused(tmp_path: Path) -> None:
    frame = pandas.DataFrame(TRIPLES, columns=["row", "column", "count"])
    cells = {(row, column): number for row, column, number in TRIPLES}
    sparse = scipy.sparse.csr_array(np.arange(12.0).reshape(3, 4))
    makers: list[Any] = [lambda: list(TRIPLES), lambda: dict(cells), lambda: frame.copy(), sparse.copy, sparse.toarray]
    makers.append(lambda: pa.Table.from_pandas(frame))

    for number, make in enumerate(makers):
        out = tmp_path / str(number)
        swivel.import_counts(make(), out)
        written = (out / "manifest.json").stat().st_mtime_ns
        swivel.import_counts(make(), out)
        assert (out / "manifest.json").stat().st_mtime_ns == written
        for other in makers[:number]:
            with pytest.raises(FolderExists, match="from other inputs"):
                swivel.import_counts(other(), out)
    changed = frame.assign(count=frame["count"] + 1)
    with pytest.raises(FolderExists, match="from other inputs"):
        swivel.import_counts(changed, tmp_path / "2")
    with pytest.raises(FolderExists, match="from an iterator or a pipe cannot be compared"):
        swivel.import_counts(iter(TRIPLES), tmp_path / "0")


def test_an_object_is_imported_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("swivel.storage.arrays.create_array", None)
    matrix = swivel.import_counts(TRIPLES)
    assert counts_of(matrix) == EXPECTED
    assert matrix.path is None
    assert list(tmp_path.iterdir()) == []


def test_command_line_imports_and_prints_the_result(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.csv", "u,p,n\na,x,2\na,x,3\n")
    out = tmp_path / "matrix"
    arguments = ["import", str(file), "-o", str(out), "--header", "--fields", "u,p,n", "--json", "--quiet"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    expected = {"matrix": str(out), "rows": 1, "columns": 1, "cells": 1, "total": 5.0}
    assert (done.exit_code, json.loads(done.stdout)) == (0, expected)


def test_command_line_reads_standard_input(tmp_path: Path) -> None:
    arguments = ["import", "-", "--format", "edges", "-o", str(tmp_path / "matrix")]
    done = CliRunner().invoke(cli, arguments, input="a b\nb c\n", catch_exceptions=False)
    assert f"{tmp_path / 'matrix'}: 3 x 3, 4 cells observed" in done.output


def test_a_dictionary_of_pairs_keeps_its_counts() -> None:
    pairs = Counter([("a", "b"), ("a", "b"), ("a", "c")])
    assert counts_of(swivel.import_counts(pairs)) == {("a", "b"): 2, ("a", "c"): 1}
    for wrong in ({"ab": 2}, {("a", "b", 3): 1}, {("a",): 1}, {5: 1}):
        with pytest.raises(CountsError, match="item 1: expected a row"):
            swivel.import_counts(wrong)


def test_a_pandas_matrix_is_not_read_as_triples() -> None:
    frame = pandas.DataFrame([[1, 2, 3], [4, 5, 6]], index=["r1", "r2"], columns=list("xyz"))
    with pytest.raises(ConfigError, match="labels in its index and numbers in all columns"):
        swivel.import_counts(frame)
    matrix = swivel.import_counts(frame.to_numpy(), row_labels=frame.index, column_labels=frame.columns)
    assert (matrix.count("r2", "x"), matrix.shape) == (4, (2, 3))
    triples = pandas.DataFrame({"u": [1, 2], "p": [3, 4]}, index=["a", "b"])
    for fields in ("u,p", ["u", "p"], ("u", "p")):
        assert swivel.import_counts(triples, fields=fields).count("2", "4") == 1


def test_lazy_frames_and_huge_integers_are_refused() -> None:
    with pytest.raises(ConfigError, match="a LazyFrame has no rows yet"):
        swivel.import_counts(polars.LazyFrame({"u": ["a"], "p": ["b"]}))
    with pytest.raises(CountsError, match="item 1: the count inf is not finite"):
        swivel.import_counts([("a", "b", 10**400)])


def test_another_glove_vocabulary_is_another_source(tmp_path: Path) -> None:
    file = write_text(tmp_path / "cooccurrence.bin", glove_records((1, 2, 1.5), (2, 1, 1.5)))
    write_text(tmp_path / "vocab.txt", "the 3\nof 2\n")
    swivel.import_counts(file, tmp_path / "matrix")
    write_text(tmp_path / "vocab.txt", "the 3\nand 2\n")
    with pytest.raises(FolderExists, match="from other inputs"):
        swivel.import_counts(file, tmp_path / "matrix")
