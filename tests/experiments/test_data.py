"""Tables of the results, from the files that are published."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import swivel
from experiments import data
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

PUBLISHED = {
    "side effects": "D1\tS1\tC1\tLLT\tC2\tAche\nD1\tS1\tC1\tPT\tC3\tPain\nD2\tS2\tC1\tPT\tC3\tPain\n",
    "genes": "go_id\tname\tdomain\ttax\ttype\tsize\tgene_ids\tsymbols\nGO:1\tx\ty\t9606\tdirect\t2\t18|43\tA|B\n",
    "citeulike t": "2 7 9\n1 9\n",
    "citeulike tags": "2 7 9\n1 9\n",
    "ingredients": "# ingredient id\tcompound id\n3\t5\n",
    "yahoo music": "64\t51296\t5.0\n",
}
PAIRS = {
    "side effects": [("D1", "Pain"), ("D2", "Pain")],
    "genes": [("18", "GO:1"), ("43", "GO:1")],
    "citeulike t": [("0", "7"), ("0", "9"), ("1", "9")],
    "citeulike tags": [("7", "0"), ("9", "0"), ("9", "1")],
    "ingredients": [("3", "5")],
    "yahoo music": [("64", "51296")],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_pairs_of_published_files(name: str) -> None:
    assert list(data.READERS[name](PUBLISHED[name].splitlines())) == PAIRS[name]


def test_rows_and_columns_with_few_cells_are_left_out_until_none_is() -> None:
    """Without row b, column z has one cell; without z, row c has one; then x and y have two each."""
    pairs = ["ax", "ay", "bz", "cz", "cx", "dx", "dy", "dx"]
    assert data.select_dense_part(map(tuple, pairs), 2) == [("a", "x"), ("a", "y"), ("d", "x"), ("d", "y")]  # type: ignore[arg-type]


def test_a_prepared_table_can_be_imported(tmp_path: Path) -> None:
    rows = "".join(f"D{drug}\tS\tC\tPT\tC\tTerm {term}\n" for drug in range(6) for term in range(5 + drug % 2))
    published = tmp_path / "meddra.tsv.gz"
    published.write_bytes(gzip.compress(rows.encode()))
    matrix = swivel.import_counts(
        data.prepare_table("side effects", published, tmp_path), options=RunOptions(progress=SILENT)
    )
    assert (len(matrix.rows), len(matrix.columns), matrix.cell_count) == (6, 5, 30)  # Term 5 has three drugs


def test_every_table_has_a_source_with_a_commit_and_a_checksum() -> None:
    assert [source.name for source in data.SOURCES] == list(data.READERS)
    assert all(len(source.commit) == 40 and len(source.sha256) == 64 for source in data.SOURCES)
