"""Targets that are somebody's counts: every format that `swivel import` takes, from files and from memory."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from fuzz.guard import SPLIT, Target, option, parts, put
from fuzz.of_text import JSON_WORDS, NUMBERS
from swivel.counts.importers.context import ImportContext, refuse_bad_counts
from swivel.counts.importers.import_config import FORMATS, IN_MEMORY, ImportConfig
from swivel.counts.importers.importer import find_source, import_counts
from swivel.counts.importers.matrix_readers import read_label_file
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

MEMORY = 1 << 22
TRIPLES = "tea\tmilk\t2\ncafé au lait\tmilk\t3.5\ntea\tmilk\t1e2\n".encode()
TEXT_CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"header": True},
    {"comment": "#"},
    {"separator": "space"},
    {"fields": "2,1"},
    {"header": True, "fields": "tea,milk,3"},
    {"separator": "semicolon", "comment": "%"},
    {"format": "crosstab"},
    {"format": "crosstab", "separator": "comma"},
)
BASKET_CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"separator": "comma"},
    {"largest_basket": 3},
    {"header": True, "comment": "#"},
)
NPZ = ("format", "shape", "data", "row", "col", "indices", "indptr")
NPY_WORDS: tuple[bytes, ...] = (
    b"'<f8'",
    b"'|O'",
    b"'<U4'",
    b"'|V0'",
    b"(3,)",
    b"()",
    b"(1, 2)",
    b"True",
    b"'descr'",
    b"\x93NUMPY\x01\x00",
)
NPY_WORDS += (b"'>i8'", b"'<m8[Y]'", b"[('a', '<i8')]", b"\x93NUMPY\x02\x00", b"(-1,)", b"(4294967296, 4294967296)")


def drain(source: Any, **given: Any) -> int:
    """Read a source to its end, holding every chunk against what readers promise; return its cells."""
    config, cells = ImportConfig(**given), 0
    found = find_source(source, config)
    reading = ImportContext(
        config, config.sides or FORMATS.get(found.format, IN_MEMORY).sides, MEMORY, SILENT.begin("", None, "")
    )
    for chunk in found.read(reading):
        if isinstance(chunk, tuple):
            items, lengths = chunk  # of baskets
            assert lengths.sum() == items.size
            continue
        counts = np.ones(chunk.rows.size) if chunk.counts is None else chunk.counts
        assert chunk.rows.size == chunk.columns.size == counts.size
        assert counts.dtype == np.float64
        refuse_bad_counts(counts, chunk.place)
        for ids, table in ((chunk.rows, reading.rows), (chunk.columns, reading.columns)):
            assert ids.min(initial=0) >= 0
            assert not table or ids.max(initial=0) < len(table)  # the table is empty if ids are positions of a matrix
        cells += counts.size
    reading.settle(cells)
    return cells


def file_reader(name: str, configs: tuple[dict[str, Any], ...] = ({},)) -> Callable[[bytes, Path], None]:
    """Return the function that reads a file of this name, in one of several ways."""

    def read(data: bytes, folder: Path) -> None:
        which, data = option(data, len(configs)) if len(configs) > 1 else (0, data)
        drain(put(folder, name, data), **configs[which])

    return read


def read_npz_members(data: bytes, folder: Path) -> None:
    """The arrays of an .npz, which is whole: damage gets as far as they are."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, member in zip(NPZ, parts(data, len(NPZ)), strict=True):
            if member:
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member)
    drain(put(folder, "counts.npz", file.getvalue()))


def seed_npz(folder: Path) -> Iterable[bytes]:
    counts = scipy.sparse.coo_array(np.arange(6.0).reshape(2, 3))
    for kind in ("csr", "csc", "coo"):
        for compressed in (True, False):
            file = io.BytesIO()
            scipy.sparse.save_npz(file, counts.asformat(kind), compressed=compressed)
            yield file.getvalue()


def seed_npz_members(folder: Path) -> Iterable[bytes]:
    for data in list(seed_npz(folder))[::2]:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            there = set(archive.namelist())
            yield SPLIT.join(archive.read(f"{name}.npy") if f"{name}.npy" in there else b"" for name in NPZ)


def read_glove(data: bytes, folder: Path) -> None:
    """GloVe's records, and the words beside them."""
    words, records = parts(data, 2)
    put(folder, "vocab.txt", words)
    drain(put(folder, "cooccurrence.bin", records))


def seed_glove(folder: Path) -> Iterable[bytes]:
    kind = np.dtype([("row", "<i4"), ("column", "<i4"), ("count", "<f8")])
    yield b"the 3\nof 2\n" + SPLIT + np.array([(1, 2, 1.5), (2, 2, 1.0)], kind).tobytes()


def read_labels(data: bytes, folder: Path) -> None:
    """A file of labels is a list of texts, the last one not empty."""
    found = read_label_file(put(folder, "labels.txt", data))
    assert not found or found[-1]


def read_objects(data: bytes, folder: Path) -> None:
    """Triples, tables of counts and baskets that are in memory, made of whatever JSON can say."""
    which, data = option(data, 4)
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(given, (str, list)) and (isinstance(given, str) or all(isinstance(item, str) for item in given)):
        return  # names of files, which are not to be looked for
    if which == 1 and isinstance(given, list):
        given = {tuple(item[:2]) if isinstance(item, list) else item: 1 for item in given if is_hashable(item)}
    drain(given, **({}, {}, {"format": "baskets"}, {"format": "edges"})[which])


def is_hashable(item: Any) -> bool:
    """Return whether an item can be a key."""
    return not isinstance(item, dict) and not (
        isinstance(item, list) and any(isinstance(each, (list, dict)) for each in item)
    )


def read_whole(data: bytes, folder: Path) -> None:
    """Triples all the way to a matrix, whose marginals are the sums of its counts."""
    which, data = option(data, 3)
    file = put(folder, ("a.tsv", "a.edges", "a.baskets")[which], data)
    matrix = import_counts(file, folder / "matrix", options=RunOptions(threads=1, memory="64MiB", overwrite=True))
    counts = matrix.to_scipy()
    assert counts.shape == (len(matrix.rows), len(matrix.columns))
    assert np.allclose(np.asarray(counts.sum(axis=1)).ravel(), matrix.row_sums)
    assert np.isclose(counts.sum(), matrix.total)


def seed_arrow(folder: Path, names: tuple[str, ...]) -> Iterable[bytes]:
    import pyarrow as pa
    import pyarrow.parquet

    plain = pa.table({"row": ["tea", "é"], "column": ["milk", "x"], "count": [2, 3]})
    coded = pa.table({"row": pa.array(["a", "b"]).dictionary_encode(), "column": [1, 2], "count": [0.5, 2.0]})
    for table in (plain, coded):
        if "parquet" in names:
            for settings in ({"compression": "none"}, {"compression": "snappy", "use_dictionary": False}):
                pa.parquet.write_table(table, folder / "a.parquet", row_group_size=1, **settings)
                yield (folder / "a.parquet").read_bytes()
            continue
        for make in (pa.ipc.new_file, pa.ipc.new_stream):
            sink = pa.BufferOutputStream()
            with make(sink, table.schema) as writer:
                writer.write_table(table)
            yield sink.getvalue().to_pybytes()


def seed_market(folder: Path) -> Iterable[bytes]:
    for counts in (np.arange(6.0).reshape(2, 3), np.array([[1, 2], [2, 0]])):
        file = io.BytesIO()
        scipy.io.mmwrite(file, scipy.sparse.coo_array(counts))
        yield file.getvalue()
    yield b"%%MatrixMarket matrix coordinate pattern general\n% x\n2 2 1\n1 2\n"


def options_of(count: int, *texts: bytes) -> Callable[[Path], Iterable[bytes]]:
    """Return every text with every choice before it."""
    return lambda _: [bytes([which]) + text for which in range(count) for text in texts]


OBJECTS = (
    b'[["tea", "milk", 2], ["tea", 7, 1.5]]',
    b'[["a", "b"], ["b", "c"]]',
    b'[{"a": 1}, [["x"], "y", 1], [true, null, "1"], ["a", 1e400, 3]]',
)
CSV = TRIPLES.replace(b"\t", b",")
TARGETS = [
    Target(
        "import-triples",
        file_reader("a.tsv", TEXT_CONFIGS),
        options_of(7, TRIPLES, b"\xef\xbb\xbf# a\r\na b 1\r\n"),
        500,
        words=NUMBERS,
    ),
    Target(
        "import-csv",
        file_reader("a.csv", TEXT_CONFIGS),
        options_of(7, CSV, b'"tea, hot",milk,2\n"a ""b""\nc",d,1\n'),
        400,
        words=NUMBERS,
    ),
    Target("import-edges", file_reader("a.edges", TEXT_CONFIGS[:4]), options_of(4, b"# graph\na b\nb c\n"), 300),
    Target(
        "import-baskets",
        file_reader("a.baskets", BASKET_CONFIGS),
        options_of(5, b"a,b,c\nb,c\n\n", b"a b\tc\nd\n"),
        300,
    ),
    Target("import-market", file_reader("a.mtx"), seed_market, 400, words=NUMBERS),
    Target("import-npz", file_reader("a.npz"), seed_npz, 100),
    Target("import-npz-members", read_npz_members, seed_npz_members, 100, words=NPY_WORDS),
    Target("import-glove", read_glove, seed_glove, 300),
    Target("import-labels", read_labels, lambda _: [b"the 3\nof\tx\nolive oil\n\n"], 300),
    Target(
        "import-parquet",
        file_reader("a.parquet"),
        lambda folder: seed_arrow(folder, ("parquet",)),
        60,
        needs=("pyarrow",),
    ),
    Target("import-arrow", file_reader("a.arrow"), lambda folder: seed_arrow(folder, ()), 60, needs=("pyarrow",)),
    Target("import-objects", read_objects, options_of(4, *OBJECTS), 300, names_file=False, words=JSON_WORDS),
    Target("import-whole", read_whole, options_of(3, TRIPLES, b"a b\nb c\n", b"# x\na b 1\nb c 2.5\n"), 10),
]
