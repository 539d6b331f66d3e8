"""Numbers in text: what Python reads as a number and other programs do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.importers import import_counts
from swivel.errors import SwivelError
from swivel.evaluation.datasets import read_set
from swivel.runtime.numbers import is_integer, parse_float
from swivel.runtime.resources import parse_bytes
from swivel.vectors.formats import load

ODD = ["1_0", "١٢", "１２"]  # an underscore, Arabic digits, full-width digits


@pytest.mark.parametrize("text", ODD)
def test_only_plain_digits_are_numbers(text: str) -> None:
    assert not is_integer(text)
    with pytest.raises(ValueError, match="could not convert"):
        parse_float(text)
    with pytest.raises(SwivelError, match="memory must be a number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["10", "007"])
def test_plain_digits_are_numbers(text: str) -> None:
    assert is_integer(text)
    assert parse_float(text) == int(text)
    assert parse_float(text.encode()) == int(text)


def read_projector(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    (file.parent / "metadata.tsv").write_text("a\nb\n")
    load(file.parent)


READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "vectors": ("v.vec", "2 2\na 1 NUMBER\nb 3 4\n", load),
    "projector": ("vectors.tsv", "1\tNUMBER\n3\t4\n", read_projector),
    "counts": ("c.tsv", "a\tb\tNUMBER\n", lambda file: import_counts(file, file.parent / "matrix")),
    "Matrix Market": (
        "c.mtx",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 NUMBER\n",
        lambda file: import_counts(file, file.parent / "matrix"),
    ),
    "index": (
        "c.mtx",
        "%%MatrixMarket matrix coordinate real general\n12 12 1\nNUMBER 2 1\n",
        lambda file: import_counts(file, file.parent / "matrix"),
    ),
    "similarity": ("s.txt", "a\tb\tNUMBER\nb\tc\t1\n", read_set),
    "vocabulary": ("v.txt", "a\tNUMBER\n", lambda file: Vocabulary.from_text(file.read_text(encoding="utf-8"))),
}


@pytest.mark.parametrize("number", ODD)
@pytest.mark.parametrize("reader", READERS)
def test_files_with_other_numbers_are_refused(tmp_path: Path, reader: str, number: str) -> None:
    name, text, read = READERS[reader]
    file = tmp_path / "folder" / name
    file.parent.mkdir()
    file.write_text(text.replace("NUMBER", number), encoding="utf-8")
    with pytest.raises(SwivelError):
        read(file)

    file.write_text(text.replace("NUMBER", "1"), encoding="utf-8")
    read(file)
