"""Random and damaged input: readers return cells or raise one clear error that names the file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import swivel
from import_sources import (
    FILES,
    counts_of,
    glove_records,
    write_text,
)
from swivel.errors import SwivelError

sys.path.insert(0, str(Path(__file__).parent.parent.parent.parent))  # `fuzz` is next to the package, not in it
from fuzz.of_importers import drain

FUZZ = settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))


def check(file: Path, **given: str | bool | int) -> None:
    """Read a file; an error must be a SwivelError of one line that names the file."""
    try:
        drain(file, **given)
    except SwivelError as error:
        assert file.name in str(error)
        assert "\n" not in str(error)


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[float, str, bytes]]:
    """Changes of a file: position (as a fraction of its length), kind, new bytes."""
    kinds = st.sampled_from(["replace", "insert", "delete", "truncate"])
    return draw(st.lists(st.tuples(st.floats(0, 1), kinds, st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))


def damage(data: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    for share, kind, new in changes:
        place = int(share * len(data))
        if kind == "truncate":
            data = data[:place]
        else:
            skipped = {"replace": len(new), "insert": 0, "delete": len(new)}[kind]
            data = data[:place] + (b"" if kind == "delete" else new) + data[place + skipped :]

    return data


def make_good(folder: Path, name: str) -> Path:
    """Write a valid file in the format of its name."""
    counts = scipy.sparse.coo_array(np.arange(12.0).reshape(3, 4))
    if name.endswith(".npz"):
        scipy.sparse.save_npz(folder / name, counts.asformat(name[:3]), compressed="raw" not in name)
    elif name.endswith(".mtx"):
        scipy.io.mmwrite(folder / name, counts)
    elif name.endswith(".bin"):
        write_text(folder / "vocab.txt", "the 3\nof 2\n")
        write_text(folder / name, glove_records((1, 2, 1.5), (2, 1, 1.5), (2, 2, 1.0)))
    elif name.endswith(".baskets"):
        write_text(folder / name, "a,b,c\nb,c\n")
    elif name.endswith(".edges"):
        write_text(folder / name, "# graph\na b\nb c 2\n".replace(" 2", ""))
    else:
        FILES[name](folder / name)

    return folder / name


GOOD = ["a.tsv", "quoted.csv", "a.tsv.gz", "a.tsv.zst", "a.parquet", "a.arrow", "stream.arrow", "a.feather", "a.edges"]
GOOD += ["a.baskets", "a.mtx", "csr.npz", "csc-raw.npz", "coo-raw.npz", "cooccurrence.bin"]


@pytest.mark.parametrize("name", GOOD)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    file = make_good(tmp_path, name)
    good = file.read_bytes()
    drain(file)

    @FUZZ
    @given(damages())
    def fuzz(changes: list[tuple[float, str, bytes]]) -> None:
        check(write_text(file, damage(good, changes)))

    fuzz()


@pytest.mark.parametrize("name", GOOD)
def test_random_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    file = make_good(tmp_path, name)

    @FUZZ
    @given(st.binary(max_size=200))
    @example(b"ARROW1\0\0")
    @example(b"\xff\xff\xff\xff\xff\xff\xff\x7f")
    @example(b"PAR1\xff\xff\xff\x7fPAR1")
    def fuzz(data: bytes) -> None:
        check(write_text(file, data))

    fuzz()


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.edges", "a.baskets", "a.mtx"])
def test_strange_text_is_read_or_refused(name: str, tmp_path: Path) -> None:
    letters = st.sampled_from(
        ["a", "\t", ",", " ", "\n", "\r", '"', "1", "-", ".", "e", "#", "%", "\0", "é", "\x85", ";"]
    )

    @FUZZ
    @given(st.lists(letters, max_size=40).map("".join), st.booleans())
    @example("a,b\n\r", False)
    @example('"a\r",b\n', False)
    @example('a,"b', True)
    @example("\r ", False)
    @example("\t\n\v\n \t", False)
    def fuzz(text: str, header: bool) -> None:
        file = write_text(tmp_path / name, text)
        check(file, header=header)
        check(file, header=header, comment="#")

    fuzz()


LABELS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@settings(max_examples=8, derandomize=True)
@given(st.lists(st.tuples(LABELS, LABELS, st.integers(1, 2**40)), min_size=1, max_size=30))
def test_any_label_is_kept_and_equal_cells_are_summed(triples: list[tuple[str, str, int]]) -> None:
    expected: dict[tuple[str, str], int] = {}
    for row, column, count in triples:
        expected[row, column] = expected.get((row, column), 0) + count
    assert counts_of(swivel.import_counts(triples)) == expected
