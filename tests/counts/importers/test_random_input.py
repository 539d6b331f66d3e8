"""Random and damaged input: readers return cells or raise one clear error that names the file."""

from __future__ import annotations

import math
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
    float_list,
    glove_records,
    int_list,
    message,
    shard,
    varint,
    write_tensorflow,
    write_text,
)
from import_sources import example as serialize_example
from swivel.counts.importers.protobuf import WireError, parse_example
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


SHARD = shard([0, 2], [1, 0], [(0, 0, 1.5), (1, 1, 2.0)])


@FUZZ
@given(st.one_of(damages().map(lambda changes: damage(SHARD, changes)), st.binary(max_size=60)))
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(shard([0, -1], [5], [(1, 0, 1.0)]))
@example(shard([0], [1], [(0, 9, 1.0)]))
@example(shard([0], [1], [(0, 0, math.nan)]))
@example(serialize_example({"global_row": float_list([1.0])}))
def test_damaged_shards_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = write_tensorflow(tmp_path_factory.getbasetemp() / "shards", {"000-000": data})
    check(folder)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (SHARD[:-1], "byte 0: a field of"),
        (b"\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (b"\x80" * 10, "a number of more than 64 bits"),
        (b"\x80", "a number without an end"),
        (b"\x10\x01", "field 2 of type 0 in an example"),
        (message(1, message(1, message(2, b""))), "a feature without a name"),
        (message(1, message(1, message(1, b"\xff"))), "the name of a feature is not UTF-8"),
        (message(1, message(1, message(3, b""))), "field 3 of type 2 in the entry of a feature"),
        (serialize_example({"a": message(4, b"")}), "field 4 of type 2 in a feature"),
        (serialize_example({"a": message(3, message(2, b""))}), "field 2 of type 2 in a list"),
        (serialize_example({"a": message(2, message(1, b"abc"))}), "3 bytes are not a whole number of floats"),
        (serialize_example({"a": message(3, message(1, b"\x80"))}), "packed numbers without an end"),
        (
            serialize_example({"a": message(3, message(1, b"\x80" * 10 + b"\1"))}),
            "a packed number of more than 64 bits",
        ),
        (serialize_example({"a": int_list([1])}) * 2, "the feature 'a' occurs twice"),
    ],
)
def test_malformed_messages_are_refused_with_their_byte(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse_example(data)


@FUZZ
@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.floats(width=32, allow_nan=False)))
def test_messages_survive_a_round_trip(numbers: list[int], floats: list[float]) -> None:
    unpacked = message(3, b"".join(b"\x08" + varint(number % (1 << 64)) for number in numbers))
    data = serialize_example({"i": int_list(numbers), "f": float_list(floats), "u": unpacked, "b": message(1, b"")})
    features = parse_example(data)
    assert features["i"].tolist() == features["u"].tolist() == numbers
    assert features["f"].tolist() == floats
    assert "b" not in features


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({}, "no feature 'sparse_local_row'; it has none"),
        ({"sparse_local_row": float_list([1])}, "the feature 'sparse_local_row' is float32"),
    ],
)
def test_shards_without_their_features_are_refused(features: dict[str, bytes], reason: str, tmp_path: Path) -> None:
    folder = write_tensorflow(tmp_path / "swivel", {"000-000": serialize_example(features)})
    with pytest.raises(swivel.SwivelError, match=reason):
        swivel.import_counts(folder, tmp_path / "matrix")
    assert not (tmp_path / "matrix").exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (shard([0], [0], [(1, 0, 1.0)]), "cell 1: row 1 in a shard of 1 rows"),
        (shard([7], [0], [(0, 0, 1.0)]), "cell 1: row 7 in a vocabulary of 3"),
        (shard([0], [0], [(0, 0, -1.0)]), "cell 1: the count -1 is negative"),
    ],
)
def test_shards_beyond_their_ranges_are_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(swivel.SwivelError, match=reason):
        swivel.import_counts(write_tensorflow(tmp_path / "swivel", {"000-000": data}))


def test_incomplete_tensorflow_folders_are_refused(tmp_path: Path) -> None:
    for shards, reason, settings_given in [
        ({}, "no files shard", {}),
        ({"000-000": SHARD}, "the two vocabularies differ", {"sides": "same"}),
        (
            {"000-000": bytes(1 << 20)},
            "a shard of 1.0 MiB needs 16.0 MiB",
            {"options": swivel.RunOptions(memory="4MB")},
        ),
    ]:
        with pytest.raises(swivel.SwivelError, match=reason):
            swivel.import_counts(write_tensorflow(tmp_path / "swivel", shards), **settings_given)  # type: ignore[arg-type]

    folder = write_tensorflow(tmp_path / "swivel", {"000-000": SHARD})
    write_text(folder / "row_vocab.txt", b"a\n\xff\nc\n")
    with pytest.raises(swivel.SwivelError, match=r"row_vocab.txt, line 2: not valid UTF-8"):
        swivel.import_counts(folder)


LABELS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@settings(max_examples=8, derandomize=True)
@given(st.lists(st.tuples(LABELS, LABELS, st.integers(1, 2**40)), min_size=1, max_size=30))
def test_any_label_is_kept_and_equal_cells_are_summed(triples: list[tuple[str, str, int]]) -> None:
    expected: dict[tuple[str, str], int] = {}
    for row, column, count in triples:
        expected[row, column] = expected.get((row, column), 0) + count
    assert counts_of(swivel.import_counts(triples)) == expected
