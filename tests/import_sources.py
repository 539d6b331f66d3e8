"""Helpers of the tests of importers: the same counts in every format, and writers for read-only formats."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import zstandard

from swivel.counts import Matrix

Counts = Mapping[tuple[str, str], float]

# Different rows and columns, a repeated cell (tea with milk), unusual labels.
TRIPLES = [
    ("tea", "milk", 2),
    ("tea", "sugar", 1),
    ("café au lait", "milk", 3),
    ("tea", "milk", 5),
    ("🍵", "sugar", 1),
    ("12", "7", 4),
]
EXPECTED: Counts = {
    ("tea", "milk"): 7,
    ("tea", "sugar"): 1,
    ("café au lait", "milk"): 3,
    ("🍵", "sugar"): 1,
    ("12", "7"): 4,
}


TSV = "".join(f"{row}\t{column}\t{count}\n" for row, column, count in TRIPLES)


def table() -> pa.Table:
    rows, columns, counts = zip(*TRIPLES, strict=True)
    return pa.table({"row": rows, "column": columns, "count": counts})


def write_parquet(path: Path) -> Path:
    pa.parquet.write_table(table(), path, row_group_size=4)
    return path


def write_arrow(path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=4)
    return path


def write_stream(path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table())
    return path


def write_feather(path: Path) -> Path:
    pa.feather.write_feather(table(), path)
    return path


FILES: dict[str, Callable[[Path], Any]] = {
    "a.tsv": lambda path: write_text(path, TSV),
    "crlf.tsv": lambda path: write_text(path, "\ufeff" + TSV.replace("\n", "\r\n").removesuffix("\r\n")),
    "blank.txt": lambda path: write_text(path, TSV.replace("\n", "\n\n")),
    "a.csv": lambda path: write_text(path, TSV.replace("\t", ",")),
    "quoted.csv": lambda path: write_text(path, TSV.replace("\t", ",").replace("tea", '"tea"')),
    "a.tsv.gz": lambda path: write_text(path, gzip.compress(TSV.encode())),
    "a.tsv.bz2": lambda path: write_text(path, bz2.compress(TSV.encode())),
    "a.csv.xz": lambda path: write_text(path, lzma.compress(TSV.replace("\t", ",").encode())),
    "a.tsv.zst": lambda path: write_text(path, zstandard.compress(TSV.encode())),
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "stream.arrow": write_stream,
    "a.feather": write_feather,
}


def counts_of(matrix: Matrix) -> dict[tuple[str, str], float]:
    """Return every observed cell by its labels."""
    cells = matrix.to_scipy().tocoo()
    rows = matrix.rows.tokens
    columns = matrix.columns.tokens
    return {(rows[r], columns[c]): float(x) for r, c, x in zip(cells.row, cells.col, cells.data, strict=True)}


def write_text(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def glove_records(*records: tuple[int, int, float]) -> bytes:
    return b"".join(struct.pack("<iid", *record) for record in records)


def dense(matrix: Matrix) -> np.ndarray:
    """Return the dense matrix of an import without labels, in the original order of rows and columns."""
    rows = np.argsort([int(token) for token in matrix.rows])
    columns = np.argsort([int(token) for token in matrix.columns])
    return np.asarray(matrix.to_scipy().toarray()[np.ix_(rows, columns)])
