"""import_counts: malformed sources are refused with file and place, and leave no partial result."""

from __future__ import annotations

import errno
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse

import swivel
from import_sources import FILES, TRIPLES, TSV, glove_records, table, write_parquet, write_text
from swivel.corpus.sources import digest_sources
from swivel.counts.importers.context import CellSpill, ImportChunk
from swivel.errors import ConfigError, CountsError, FolderExists, MemoryBudgetError, MissingExtra, StorageError
from swivel.runtime.options import RunOptions

REFUSED_TEXT = {
    "a\tx\t-1\n": "a.tsv, line 1: the count -1 is negative",
    "a\tx\t1\nb\tx\tnan\n": "a.tsv, line 2: the count nan is not finite",
    "a\tx\t1\n\nb\tx\tinf\n": "a.tsv, line 3: the count inf is not finite",
    "a\tx\tcount\n": "line 1: the count 'count' is not a number; pass header if the first line is a header",
    "a\tx\t1\na\tx\t1_0\n": "line 2: the count '1_0' is not a number",
    "a\tx\t1\na\tx\n": "line 2: 2 fields, but the first line has 3",
    "a\tx\t1\n\tx\t1\n": "line 2: the label is empty",
    "a\n": "1 field, but a row and a column are needed",
    b"a\tx\t1\n\xff\tx\t1\n": "line 2: a label is not valid UTF-8 .byte 0xff",
    "": "a.tsv: there are no counts",
    "a\tx\t0\n": "there are no counts",
}


@pytest.mark.parametrize("text", REFUSED_TEXT)
def test_bad_text_is_refused_with_its_line(text: str | bytes, tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.tsv", text)
    with pytest.raises((CountsError, ConfigError), match=REFUSED_TEXT[text]):
        swivel.import_counts(file, tmp_path / "matrix")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"a,x,1\n', "line 1: not CSV"),
        ('"a",x,1\n"b",x\n', "line 2: 2 fields, but the first line has 3"),
        (b'"a",x,1\n"\xff",x,1\n', "line 2: not valid UTF-8 .byte 0xff"),
    ],
)
def test_bad_csv_is_refused_with_its_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CountsError, match=message):
        swivel.import_counts(write_text(tmp_path / "a.csv", text))


def test_lines_after_a_header_have_their_number(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.tsv", "row\tcolumn\tcount\na\tx\t1\nb\tx\t-2\n")
    with pytest.raises(CountsError, match="line 3: the count -2 is negative"):
        swivel.import_counts(file, header=True)


def test_very_long_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.corpus.streams.MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(CountsError, match="line 1: longer than 1,048,576 bytes"):
        swivel.import_counts(write_text(tmp_path / "a.tsv", b"x" * (3 << 20)))


def bad_table(**columns: Any) -> pa.Table:
    return pa.table({"row": ["a", "b"], "column": ["x", "y"], "count": [1, 2]} | columns)


BAD_TABLES = {
    "row 2: the count -1 is negative": bad_table(count=[1, -1]),
    "row 2: the count nan is not finite": bad_table(count=[1, float("nan")]),
    "row 2: the count is missing": bad_table(count=[1, None]),
    "row 2: the label is missing": bad_table(row=["a", None]),
    "row 1: labels must be strings or integers, got double": bad_table(row=[1.5, 2]),
    "row 1: counts must be numbers, got string": bad_table(count=["1", "2"]),
    "row 2: the label is empty": bad_table(row=["a", ""]),
    "row 2: a label is not valid UTF-8": bad_table(row=pa.array([b"a", b"\xff"])),
}


@pytest.mark.parametrize("message", BAD_TABLES)
def test_bad_rows_of_tables_are_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(CountsError, match=f"the table, {message}"):
        swivel.import_counts(BAD_TABLES[message])
    pa.parquet.write_table(BAD_TABLES[message], tmp_path / "a.parquet")
    with pytest.raises(CountsError, match=f"a.parquet, {message}"):
        swivel.import_counts(tmp_path / "a.parquet", tmp_path / "matrix")
    assert not (tmp_path / "matrix").exists()


def test_text_columns_with_invalid_utf8_are_refused(tmp_path: Path) -> None:
    rows = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff"))
    pa.parquet.write_table(bad_table(row=rows), tmp_path / "a.parquet")
    with pytest.raises(CountsError, match=r"a.parquet, row 2: a label is not valid UTF-8 \(byte 0xff"):
        swivel.import_counts(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.npz", "a.tsv.gz"])
def test_truncated_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    if name == "a.npz":
        scipy.sparse.save_npz(tmp_path / name, scipy.sparse.coo_array(np.eye(50)))
    else:
        FILES[name](tmp_path / name)

    whole = (tmp_path / name).read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        write_text(tmp_path / name, whole[: int(len(whole) * share)])
        with pytest.raises(swivel.SwivelError, match=name):
            swivel.import_counts(tmp_path / name, tmp_path / "matrix")
        assert not (tmp_path / "matrix").exists()


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    names = ["a", "a", "n"]
    pa.parquet.write_table(pa.table([["r"], ["c"], [1]], names=names), tmp_path / "a.parquet")
    with pytest.raises(CountsError, match="several columns are named 'a'"):
        swivel.import_counts(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("triples", "message"),
    [
        ([("a", "x", 1), ("a",)], "item 2: expected a row, a column and a count"),
        ([("a", "x", 1), 7], "item 2: expected a row, a column and a count, got 7"),
        ([("a", "x", "1")], "item 1: the count '1' is not a number"),
        ([("a", "x", True)], "item 1: the count True is not a number"),
        ([("a", 1.5, 1)], "item 1: labels must be strings or integers, got float 1.5"),
        ([("a", "x", 1), ("a", None, 1)], "item 2: labels must be strings or integers, got NoneType None"),
        ([("a", "\ud800", 1)], "has a lone surrogate"),
        (7, "expected a path, a table, a matrix or triples to iterate over, got int"),
    ],
)
def test_bad_objects_are_refused(triples: Any, message: str) -> None:
    with pytest.raises(CountsError, match=message):
        swivel.import_counts(triples)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.array([[1, -1]]), "the matrix, row 0, column 1: the count -1 is negative"),
        (np.array([[1, np.inf]]), "row 0, column 1: the count inf is not finite"),
        (np.array([1, 2]), "expected two dimensions, got 1"),
        (np.array([["a"]]), "counts must be numbers"),
        (scipy.sparse.csr_array((2**20, 10**9)) + 0, "there are no counts"),
        (
            scipy.sparse.coo_array(([1], ([0], [0])), shape=(1, 10**9)),
            "1,000,000,000 columns for only 1 counts",
        ),
    ],
)
def test_bad_matrices_are_refused(matrix: Any, message: str) -> None:
    with pytest.raises(CountsError, match=message):
        swivel.import_counts(matrix)


def test_indices_out_of_range_are_refused() -> None:
    held = scipy.sparse.csr_array(np.eye(3))
    held.indices[1] = 7
    with pytest.raises(CountsError, match="stored value 1: column 7 in a matrix of 3 columns"):
        swivel.import_counts(held)


def test_labels_that_do_not_match_are_refused() -> None:
    for labels, message in [
        (["a"], "2 rows, but 1 labels for them"),
        (["a", "a"], "label 2: 'a' occurs twice"),
        (["a", ""], "label 2: the label is empty"),
    ]:
        with pytest.raises(CountsError, match=message):
            swivel.import_counts(np.eye(2), row_labels=labels)

    with pytest.raises(ConfigError, match="row_labels and column_labels are for matrices"):
        swivel.import_counts(TRIPLES, row_labels=["a"])

    with pytest.raises(CountsError, match="2 rows and 3 columns cannot be the same things"):
        swivel.import_counts(np.ones((2, 3)), sides="same")


def save_npz(path: Path, **arrays: Any) -> Path:
    good = {"format": np.array(b"csr"), "shape": [2, 2], "data": [1.0, 2], "indices": [0, 1], "indptr": [0, 1, 2]}
    kept: dict[str, Any] = {name: np.asarray(value) for name, value in (good | arrays).items() if value is not None}
    np.savez(path, **kept)
    return path


BAD_NPZ: dict[str, dict[str, Any]] = {
    "unsupported matrix format 'dia'; save it as csr": {"format": np.array(b"dia"), "offsets": [0], "data": [[1.0, 2]]},
    "damaged .*'int' object": {"format": np.array(3, np.int64)},
    "damaged .*Object arrays cannot be loaded": {"data": np.array([None, {}], object)},
    "counts must be numbers, got <U1": {"data": ["a", "b"]},
    "damaged .*indptr is not a file in the archive": {"indptr": None},
    "damaged .*repeats may not contain negative values": {"indptr": [0, 2, 1]},
    "damaged .*index pointer size 4 should be 3": {"indptr": [0, 1, 1, 2]},
    "stored value 1: column 5 in a matrix of 2": {"indices": [0, 5]},
    "stored value 0: column -1 in a matrix of 2": {"indices": [-1, 1]},
    "stored value 0: column -1 in a matrix": {"indices": np.array([2**64 - 1, 0], np.uint64)},
    "damaged .*shape must have length": {"shape": [1, 2, 3]},
    "damaged .*elements cannot be negative": {"shape": [-1, 2]},
    "the count -2 is negative": {"data": [1.0, -2]},
    "damaged .*must have the same length": {"format": np.array("coo"), "row": [0, 1], "col": [0, 1, 1]},
    "1,000,000,000,000 rows for only 2 counts": {
        "format": np.array("coo"),
        "row": [0, 1],
        "col": [0, 1],
        "shape": [10**12, 2],
    },
}


@pytest.mark.parametrize("message", BAD_NPZ)
def test_bad_npz_files_are_refused_by_name(message: str, tmp_path: Path) -> None:
    file = save_npz(tmp_path / "a.npz", **BAD_NPZ[message])
    with pytest.raises(CountsError, match=f"a.npz.*{message}"):
        swivel.import_counts(file, tmp_path / "matrix")
    assert not (tmp_path / "matrix").exists()


def test_npz_arrays_with_implausible_sizes_are_refused(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "a.npz")
    data = file.read_bytes()
    write_text(file, data.replace(b"'shape': (2,)", b"'shape': (9,)"))
    with pytest.raises(CountsError, match=r"a.npz: .*(claims|CRC)"):
        swivel.import_counts(file)

    rows = np.zeros(200_001, np.int64)
    rows[-1] = 1
    np.savez_compressed(file, format="csr", shape=[200_000, 1], data=[1.0], indices=[0], indptr=rows)
    with pytest.raises(MemoryBudgetError, match=r"reading the matrix needs .* of memory; pass a larger memory"):
        swivel.import_counts(file, options=swivel.RunOptions(memory="1MB"))


HEAD = "%%MatrixMarket matrix coordinate real general\n"
BAD_MARKET = {
    "hello\n": "line 1: expected '%%MatrixMarket matrix coordinate'",
    "%%MatrixMarket matrix array real general\n": "line 1: expected",
    "%%MatrixMarket matrix coordinate complex general\n": "got complex general",
    HEAD: "ends before the first entry",
    HEAD + "%\n2 two 1\n": "line 3: expected rows, columns and entries",
    HEAD + "2 2 1\n1 1\n": "line 3: 2 fields, but real matrices have 3",
    HEAD + "2 2 1\n1 x 1\n": "line 3: the index 'x' is not a number",
    HEAD + "2 2 1\n1 3 1\n": "line 3: index 3 is not in 1 to 2",
    HEAD + "2 2 1\n0 1 1\n": "line 3: index 0 is not in 1 to 2",
    HEAD + "2 2 1\n1.5 1 1\n": "line 3: index 1.5",
    HEAD + "2 2 1\n1 1 -2\n": "line 3: the count -2 is negative",
    HEAD + "2 2 9\n1 1 1\n": "announces 9 entries, but there are 1",
    HEAD + "999999999999 2 1\n1 1 1\n": "999,999,999,999 rows for only 1 counts",
}


@pytest.mark.parametrize("text", BAD_MARKET)
def test_bad_matrix_market_files_are_refused_with_their_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(CountsError, match=BAD_MARKET[text]):
        swivel.import_counts(write_text(tmp_path / "a.mtx", text))


@pytest.mark.parametrize(
    ("records", "vocabulary", "message"),
    [
        (glove_records((1, 3, 1.0)), "a 1\nb 2\n", "record 1: word 3 in a vocabulary of 2"),
        (glove_records((0, 1, 1.0)), "a 1\nb 2\n", "record 1: word 0 in a vocabulary of 2"),
        (glove_records((1, 1, -1.0)), "a 1\n", "record 1: the count -1 is negative"),
        (glove_records((1, 1, 1.0))[:-1], "a 1\n", "15 bytes are not a multiple of 16"),
        (glove_records((1, 1, 1.0)), b"\xff 1\n", "vocab.txt, line 1: not valid UTF-8 .byte 0xff"),
        (glove_records((1, 1, 1.0)), None, "vocab.txt does not exist"),
    ],
)
def test_bad_glove_files_are_refused(records: bytes, vocabulary: Any, message: str, tmp_path: Path) -> None:
    if vocabulary is not None:
        write_text(tmp_path / "vocab.txt", vocabulary)
    with pytest.raises(CountsError, match=message):
        swivel.import_counts(write_text(tmp_path / "cooccurrence.bin", records))


def test_bad_baskets_are_refused(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.baskets", b"a,b\na,\xff\n")
    with pytest.raises(CountsError, match="line 2: a label is not valid UTF-8"):
        swivel.import_counts(file)

    with pytest.raises(CountsError, match="basket 2: a basket of 4 items makes 6 pairs"):
        swivel.import_counts([["a"], list("abcd")], format="baskets", largest_basket=3)

    with pytest.raises(CountsError, match="basket 1: expected a list of items, got str"):
        swivel.import_counts(["ab", ["a"]], format="baskets")

    with pytest.raises(CountsError, match="the source: there are no baskets"):
        swivel.import_counts([[]], format="baskets")

    with pytest.raises(ConfigError, match="a pair of a basket counts in both orders: omit sides"):
        swivel.import_counts([["a"]], format="baskets", sides="apart")


def test_invalid_settings_are_refused(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.tsv", TSV)
    for settings, message in [
        ({"sides": "both"}, "sides must be one of apart"),
        ({"fields": "a"}, "fields must be two or three names"),
        ({"fields": "a,,b"}, "fields must be two or three names"),
        ({"fields": "user,page"}, "no field 'user'; it has 3 fields without names"),
        ({"fields": ["user", "page"]}, "no field 'user'"),
        ({"memory": "1 giant"}, "memory must be"),
        ({"color": 1}, "'color' is not a setting here; known are by, code, comment, "),
    ]:
        with pytest.raises(ConfigError, match=message):
            swivel.import_counts(file, **settings)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="no field 'user'; it has row, column, count"):
        swivel.import_counts(table(), fields="user,page")

    with pytest.raises(ConfigError, match="format npz is for files"):
        swivel.import_counts(TRIPLES, format="npz")


def test_more_than_three_fields_have_to_be_chosen(tmp_path: Path) -> None:
    file = write_text(tmp_path / "wide.csv", "user,tea,jam,ham\nann,1,2,3\n")
    with pytest.raises(ConfigError, match=r"wide\.csv: 4 fields; pass .* such as fields='1,2,3'; or format='crosstab'"):
        swivel.import_counts(file, header=True)
    with pytest.raises(ConfigError, match=r"4 fields; .* such as fields='1,2,3'"):
        swivel.import_counts(file)  # Without a warning of the header.
    with pytest.raises(ConfigError, match="the table: 4 fields"):
        swivel.import_counts(pa.table({"user": ["ann"], "tea": [1], "jam": [2], "ham": [3]}).to_pandas())


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path / "a.tsv", TSV)
    baskets = write_text(tmp_path / "a.baskets", "a b\n")

    for source, settings, message in [
        (text, {"largest_basket": 3}, "largest_basket applies to baskets and events, but .*a.tsv is read as triples"),
        (baskets, {"by": "1", "code": "2"}, "by applies to triples, parquet, arrow, but .* is read as baskets"),
        (baskets, {"fields": "1,2"}, "fields applies to triples, edges, parquet, arrow, but .* is read as baskets"),
        (table(), {"header": True}, "header applies to triples, edges, baskets, but the source is read as memory"),
        (np.eye(2), {"separator": "tab"}, "separator applies to"),
    ]:
        with pytest.raises(ConfigError, match=message):
            swivel.import_counts(source, **settings)  # type: ignore[arg-type]


def test_counts_that_are_not_mirrored_are_refused_with_their_file(tmp_path: Path) -> None:
    one_way = write_text(tmp_path / "a.tsv", "a\tb\t1\nb\ta\t1\na\tc\t1\n")
    with pytest.raises(
        CountsError, match=r"a.tsv: the counts are not mirrored: 'c' is a column of 'a' but never a row"
    ):
        swivel.import_counts(one_way, sides="mirrored")
    differing = write_text(tmp_path / "b.tsv", "a\tb\t1\nb\ta\t2\n")
    with pytest.raises(CountsError, match=r"b.tsv: the counts are not symmetric"):
        swivel.import_counts(differing, sides="mirrored")


def test_unknown_sources_are_refused(tmp_path: Path) -> None:
    other, good, matrix = (write_text(tmp_path / name, TSV) for name in ("a.xyz", "a.tsv", "a.npz"))
    for source, message in [
        (other, "unknown format"),
        ([good, matrix], "sources have several formats .npz, triples."),
        ([matrix, matrix], "second source, but format npz allows only one"),
        ([], "no source"),
    ]:
        with pytest.raises(ConfigError, match=message):
            swivel.import_counts(source)

    with pytest.raises(CountsError, match=r"no such file or folder$"):
        swivel.import_counts(tmp_path / "none.tsv")

    with pytest.raises(CountsError, match="npz must be an uncompressed file"):
        swivel.import_counts(write_text(tmp_path / "a.npz.gz", b""))

    with pytest.raises(CountsError, match="standard input: npz must be an uncompressed file"):
        swivel.import_counts("-", format="npz")

    with pytest.raises(StorageError, match=r"labels.txt: no such label file"):
        swivel.import_counts(np.eye(2), row_labels=tmp_path / "labels.txt")


def test_too_many_labels_for_the_memory_are_refused(tmp_path: Path) -> None:
    file = write_text(tmp_path / "a.tsv", "".join(f"row{n}\tx\t1\n" for n in range(5_000)))
    with pytest.raises(MemoryBudgetError, match=r"labels take .* more than half of the memory"):
        swivel.import_counts(file, options=swivel.RunOptions(memory="1MB"))


def test_ids_beyond_32_bits_are_refused() -> None:
    rows = np.array([0, 2**32])
    columns = np.array([0, 1])
    spill = CellSpill(None)
    with pytest.raises(CountsError, match="cell 1: more than 4,294,967,296 rows or columns"):
        spill.add(ImportChunk(rows, columns, None, lambda index: f"cell {index}"))


def test_errors_of_the_system_are_one_line_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error", "cooccurrence.bin")

    monkeypatch.setattr(np, "fromfile", fail)
    write_text(tmp_path / "vocab.txt", "a 1\n")
    with pytest.raises(StorageError, match=r"cooccurrence.bin: Input/output error"):
        swivel.import_counts(write_text(tmp_path / "cooccurrence.bin", glove_records((1, 1, 1.0))))


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"Parquet files need pyarrow: pip install 'swivel-embeddings\[parquet\]'"):
        swivel.import_counts(file)


def test_refused_import_keeps_the_result_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def digest_slowly(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        swivel.import_counts([("tea", "milk", 2)], out)  # Another process starts later and finishes first.
        return digest_sources(*arguments, **options)

    monkeypatch.setattr("swivel.corpus.sources.digest_sources", digest_slowly)
    with pytest.raises(FolderExists):
        swivel.import_counts([("tea", "sugar", 1)], out)
    assert swivel.open_matrix(out).count("tea", "milk") == 2


@pytest.mark.parametrize(
    "error", [zlib.error("Error -4 while decompressing data"), OSError(errno.ENOMEM, "no memory"), MemoryError()]
)
def test_an_archive_beyond_memory_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(np.eye(3)))

    def fail(*_: Any) -> bytes:
        raise error

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)
    with pytest.raises(MemoryBudgetError, match=r"a\.npz: there is not enough memory to decompress it"):
        swivel.import_counts(tmp_path / "a.npz")


@pytest.mark.parametrize("comment", ["\udcff", "#\ud800"])
def test_a_comment_that_no_file_has_is_refused(comment: str) -> None:
    with pytest.raises(ConfigError, match="comment must be text that UTF-8 can encode, got"):
        swivel.import_counts([("a", "b")], comment=comment)


def test_labels_of_few_columns_leave_their_memory_to_the_rows() -> None:
    """All labels may take half of the memory, and the message names their share."""
    triples = [(f"row {number:06}", f"column {number % 100}", 1) for number in range(20_000)]
    memory = 10 * 1024 * 1024
    assert swivel.import_counts(triples, options=RunOptions(memory=memory)).shape == (20_000, 100)
    with pytest.raises(MemoryBudgetError, match=r"labels take 5\.0 MiB, more than half of the memory of 10\.0 MiB"):
        swivel.import_counts(
            [*triples, *((f"more {n}", "x", 1) for n in range(20_000))], options=RunOptions(memory=memory)
        )


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1e-18, 5e-18], r"counts from 1e-18 to 5e-18 are too small for an exact sum .*; scale them"),
        ([1e-19, 1e-18], r"counts from 1e-19 to 1e-18 are too small"),
        ([1e-18, 1e6], r"counts from 1e-18 to 1e\+06 are too far apart for an exact sum"),
        ([1e-5, 1e16 + 2], r"are too far apart"),
    ],
)
def test_counts_without_an_exact_sum_are_refused_with_the_reason(counts: list[float], message: str) -> None:
    with pytest.raises(CountsError, match=message):
        swivel.import_counts([("a", str(number), count) for number, count in enumerate(counts)])
