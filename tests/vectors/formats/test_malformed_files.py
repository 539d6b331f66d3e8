"""Malformed and hostile files raise a one-line error with the location, without large allocations."""

from __future__ import annotations

import io
import json
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import StorageError, SwivelError
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats import FORMATS, export, load

FLOATS = np.array([1, 2], np.float32).tobytes()
MAX_BYTES = 20_000_000  # allocated by a reader (without pyarrow's pools); far less than the sizes in the headers


def make(labels: list[str], dim: int = 2) -> Vectors:
    values = np.random.default_rng(1).standard_normal((len(labels), dim)).astype(np.float32)
    return Vectors(VectorTable(Vocabulary(labels, range(len(labels), 0, -1)), values))


def refuse(path: Path, message: str, format: str | None = None) -> None:
    """Check that loading a path raises a one-line error with its name and allocates little memory."""
    tracemalloc.start()

    try:
        with pytest.raises(StorageError, match=message) as caught:
            load(path, format=format)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "v.bin: the file is empty"),
        (b"hello world\n", "line 1: expected the number of words and the number of dimensions"),
        (b"1" * 80 + b" 2\n", "line 1: expected the number of words and the number of dimensions"),
        (b"1000000000000 300\nking " + FLOATS, r"line 1: 1,000,000,000,000 words of 300 dimensions need 1,202,0"),
        (b"1 999999999999999\nking " + FLOATS, r"line 1: 1 words of 999,999,999,999,999 dimensions need 3,999,"),
        (b"0 2\n", "line 1: 0 words of 2 dimensions; both must be positive"),
        (b"2 0\na b ", "line 1: 2 words of 0 dimensions; both must be positive"),
        (b"2 2\nking " + FLOATS + b"\nqueen " + FLOATS[:-1], "word 2: the file ends in or after 'queen', but should"),
        (b"2 2\nlongest " + FLOATS + b"\nxxxxxxx", "word 1: the file ends in or after 'longest', but should have 2"),
        (b"1 2\n" + b"x" * 20, "word 0: the file ends in or after the first line, but should have 1"),
        (b"1 2\nking " + FLOATS + b"\nqueen " + FLOATS, "v.bin: 15 extra bytes after the last of 1 words"),
        (b"1 2\nk\xff " + FLOATS, r"word 1: not valid UTF-8 \(byte 0xff\)"),
        (b"2 2\nking " + FLOATS + b"k\xff " + FLOATS, r"word 2: not valid UTF-8 \(byte 0xff\)"),
        (b"2 2\nking " + FLOATS + b"\nking " + FLOATS, "word 2: duplicate word 'king'"),
        (b"2 2\nking " + FLOATS + b"\n " + FLOATS, "word 2: the word is empty"),
        (b"1 1\nking " + np.float32(np.nan).tobytes(), r"word 1 \('king'\): the vector has a value that is not a f"),
        (
            b"2 1\na " + FLOATS[:4] + b"b " + np.float32(np.inf).tobytes(),
            r"word 2 \('b'\): the vector has a value that is not a f",
        ),
    ],
)
def test_malformed_word2vec_binary_files_raise_errors_with_the_location(
    tmp_path: Path, data: bytes, message: str
) -> None:
    (tmp_path / "v.bin").write_bytes(data)
    refuse(tmp_path / "v.bin", message, "word2vec")


def test_a_value_that_is_not_finite_is_found_after_the_first_chunk(tmp_path: Path) -> None:
    words = [str(number) for number in range(9_000)]
    values = np.ones((9_000, 1), np.float32)
    export(Vectors(VectorTable(Vocabulary(words), values)), tmp_path / "v.bin")
    data = (tmp_path / "v.bin").read_bytes()
    place = data.index(b"\n8700 ") + 6
    (tmp_path / "v.bin").write_bytes(data[:place] + np.float32(-np.inf).tobytes() + data[place + 4 :])
    refuse(tmp_path / "v.bin", r"word 8,701 \('8700'\): the vector has a value that is not a f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1000000000000 300\nking 1 2\n", "line 2: expected a word and 300 numbers, got 2"),
        ("1 999999999999999\nking 1 2\n", "line 2: expected a word and 999999999999999 numbers, got 2"),
        ("9" * 5000 + " 1\nking 1 2\n", "line 2: expected a word and 1 numbers, got more"),
    ],
)
def test_sizes_in_the_first_line_of_a_text_allocate_nothing(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    refuse(tmp_path / "v.txt", message)


def npy(shape: str, descr: str = "<f4", data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy("(1000000000000, 300)"), r"v.npy: not an npy file .the header says shape .* only 0 bytes"),
        (npy("(-1, 300)"), "not an npy file .the header does not describe an array of numbers or strings"),
        (npy("(2, 1)", "<f4000"), "not an npy file"),
        (npy("(2, 1)", "<f0"), "not an npy file"),
        (npy("(2,)", data=bytes(8)), r"expected a matrix of floats, got float32 of shape \(2,\)"),
        (npy("(1, 1)", "<i4", b"1234"), r"expected a matrix of floats, got int32"),
        (npy("(1, 1)", "|O", b"12345678"), "the array contains Python objects, and pickles are not loaded"),
        (npy("(0, 3)"), "v.npy: 2 words, but 0 vectors"),
        (npy("(3, 1)", "<f4", b"0" * 12), "v.npy: 2 words, but 3 vectors"),
        (
            npy("(2, 1)", "<f4", np.array([1, np.nan], np.float32).tobytes()),
            r"word 2 \('b'\): the vector has a value that is not a f",
        ),
        (
            npy("(2, 1)", "<f8", np.array([1, 1e300], np.float64).tobytes()),
            r"word 2 \('b'\): the vector has a value that is not a f",
        ),
        (npy("(" * 150), "not an npy file"),
        (b"\x93NUMPY\x07\x00", "not an npy file"),
        (b"\x93NUMPY", "not an npy file"),
    ],
)
def test_malformed_npy_files_raise_errors(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "v.vocabulary.txt").write_text("a\nb\n")
    (tmp_path / "v.npy").write_bytes(data)
    refuse(tmp_path / "v.npy", message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (None, r"v\.vocabulary\.txt: no such file or folder; an \.npy file needs this file with one word per line"),
        (b"a\nk\xff\n", r"v\.vocabulary\.txt, line 2: not valid UTF-8 \(byte 0xff\)"),
        (b"a\nb\tx\n", r"v\.vocabulary\.txt, line 2: expected a word, or a word, a tab and a count"),
        (b"a\nb\t1\t2\n", r"v\.vocabulary\.txt, line 2: expected a word, or a word, a tab and a count"),
        (b"a\n\\frac\n", r"v\.vocabulary\.txt, line 2: .* has a backslash that is not an escape: write \\\\"),
        (b"a\na\n", r"v\.npy, word 2: duplicate word 'a'"),
        (b"a\n", r"v\.npy: 1 words, but 2 vectors"),
    ],
)
def test_malformed_vocabulary_files_raise_errors_with_the_line(
    tmp_path: Path, words: bytes | None, message: str
) -> None:
    np.save(tmp_path / "v.npy", np.ones((2, 2), np.float32))
    if words is not None:
        (tmp_path / "v.vocabulary.txt").write_bytes(words)
    with pytest.raises(StorageError, match=message):
        load(tmp_path / "v.npy")


def npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


WORDS_A = npy("(1,)", "<U1", "a".encode("utf-32-le"))
ONE = npy("(1, 1)", "<f4", np.float32(1).tobytes())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            npz(vectors=npy("(1000000000000, 300)"), words=WORDS_A),
            r"'vectors\.npy' should have 1,200,000,000,000,000 bytes but has fewer",
        ),
        (npz(vectors=ONE, words=npy("(1000000000000,)", "<U9")), r"'words\.npy' should have 36,000,000,000,000 bytes"),
        (npz(vectors=ONE, words=npy("(1000000000000,)", "<U0")), "not an npz file"),
        (npz(vectors=ONE), "no array called 'words'; there are 'vectors'"),
        (npz(words=WORDS_A), "no array called 'vectors'; there are 'words'"),
        (
            npz(vectors=npy("(1, 1)", "|O", b"12345678"), words=WORDS_A),
            "the array contains Python objects, and pickles are not loaded",
        ),
        (npz(vectors=ONE, words=npy("(1,)", "<i8", b"12345678")), "expected 'words' to be a 1-D array of"),
        (npz(vectors=ONE, words=npy("(1,)", "<U1", b"\x00\xd8\x00\x00")), "word 1: .* contains half a surrogate pair"),
        (npz(vectors=ONE, words=npy("(1,)", "<U1", b"\xff\xff\xff\x7f")), "'words' contains an invalid code point"),
        (
            npz(vectors=ONE, words=WORDS_A, counts=npy("(1,)", "<f4", b"1234")),
            "expected the counts to be one integer per word",
        ),
        (
            npz(vectors=ONE, words=WORDS_A, counts=npy("(1,)", "<i1", b"\xff")),
            "expected the counts to be one integer per word",
        ),
        (
            npz(vectors=ONE, words=WORDS_A, counts=npy("(1,)", "<u8", b"\xff" * 8)),
            "expected the counts to be one integer",
        ),
        (npz(vectors=ONE[:-2], words=WORDS_A), r"'vectors\.npy' should have 4 bytes"),
        (npz(vectors=npy("(1,)", "<f4", b"1234"), words=WORDS_A), "expected a matrix of floats"),
        (npz(vectors=ONE, words=WORDS_A)[:-30], "not an npz file"),
        (npz(vectors=npy("(0, 3)"), words=npy("(0,)", "<U1")), "the file has no vectors"),
    ],
)
def test_malformed_npz_files_raise_errors(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "v.npz").write_bytes(data)
    refuse(tmp_path / "v.npz", message)


def tensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[int], stop: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, stop]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff" * 7 + b"\x7f{}", "not a safetensors file .a header of"),
        (b"", "not a safetensors file .a header of 0 bytes"),
        (tensors({"vectors": entry([10**12, 300], 4)}, b"1234"), "not a safetensors file .shape .1000000000000, 300."),
        (tensors({"vectors": entry([-1, -1], 4)}, b"1234"), "not a safetensors file .shape"),
        (tensors({"vectors": entry([1, 1], 4)}, b"123"), "tensors of 4 bytes in a data section of 3 bytes"),
        (tensors({"vectors": 1}), "not a safetensors file"),
        (
            tensors({"vectors": entry([1, 1], 4), "x": entry([1, 1], 4)}, b"1234"),
            "a tensor at bytes 0 to 4, expected at 4",
        ),
        (tensors({"vectors": entry([1, 1], 4)}, b"12345678"), "tensors of 4 bytes in a data section of 8 bytes"),
        (tensors(b"[" * 100_000), "not a safetensors file"),
        (tensors([1]), "not a safetensors file"),
        (tensors({"__metadata__": {"words": 1}}), "metadata that is not text"),
        (tensors({"vectors": entry([1, 1], 4)}, b"1234"), "no list in the metadata called 'words'; there are none"),
        (tensors({"__metadata__": {"words": "[]"}, "x": entry([1], 4)}, b"1234"), "no tensor called 'vectors'"),
        (tensors({"__metadata__": {"words": "{}"}, "vectors": entry([1, 1], 4)}, b"1234"), "not a JSON list of words"),
        (
            tensors({"__metadata__": {"words": "[" * 9**5}, "vectors": entry([1, 1], 4)}, b"1234"),
            "not a JSON list of words",
        ),
        (
            tensors({"__metadata__": {"words": '["\\ud800"]'}, "vectors": entry([1, 1], 4)}, b"1234"),
            "word 1: .* contains half a surrogate pair",
        ),
        (tensors({"__metadata__": {"words": "[]"}, "vectors": entry([1, 1], 4)}, b"1234"), "0 words, but 1 vectors"),
        (
            tensors({"__metadata__": {"words": '["a"]', "counts": "[1.5]"}, "vectors": entry([1, 1], 4)}, b"1234"),
            "'counts' in the metadata is not a JSON list of numbers",
        ),
        (
            tensors({"__metadata__": {"words": '["a"]', "counts": "[-1]"}, "vectors": entry([1, 1], 4)}, b"1234"),
            "expected the counts to be one integer per word, 0 or more",
        ),
    ],
)
def test_malformed_safetensors_files_raise_errors(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "v.safetensors").write_bytes(data)
    refuse(tmp_path / "v.safetensors", message, "safetensors")


def test_malformed_tables_raise_errors(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import feather

    good = {"word": ["a", "b"], "vector": pa.array([[1.0], [2.0]], pa.list_(pa.float32()))}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"word": ["a"]}, "no column called 'vector'; there are 'word'"),
        ({"vector": good["vector"]}, "no column called 'word'"),
        (good | {"word": [1, 2]}, "the column 'word' has type int64, expected text"),
        (good | {"word": ["a", None]}, "word 2: the word is null"),
        (good | {"word": ["a", "a"]}, "word 2: duplicate word 'a'"),
        (good | {"vector": [1.0, 2.0]}, "the column 'vector' has type double, expected lists of floats"),
        (
            good | {"vector": [[1.0], [2.0, 3.0]]},
            "near word 2: the vector is null, contains null, or has another length",
        ),
        (good | {"vector": [[1.0], None]}, "near word [12]: the vector is null"),
        (good | {"vector": [[1.0], [None]]}, "the vector is null, contains null, or has another length"),
        (good | {"vector": pa.array([[], []], pa.list_(pa.float32()))}, "the vector is null, contains null"),
        (good | {"vector": [[1.0], [float("inf")]]}, r"word 2 \('b'\): the vector has a value that is not a f"),
        (good | {"vector": [[1.0], [1e300]]}, r"word 2 \('b'\): the vector has a value that is not a f"),
        (good | {"count": [1, None]}, "the column 'count' must contain one integer per word"),
        (good | {"count": [1, -1]}, "expected the counts to be one"),
        (good | {"count": pa.array([1, 2**64 - 1], pa.uint64())}, "not an Arrow file .Integer value"),
        (
            {"word": pa.array([], pa.string()), "vector": pa.array([], pa.list_(pa.float32()))},
            "the file has no vectors",
        ),
    ]
    for columns, message in cases:
        feather.write_feather(pa.table(columns), str(tmp_path / "v.arrow"), compression="uncompressed")
        refuse(tmp_path / "v.arrow", message)
    uneven = pa.table(good | {"vector": [[1.0], [2.0, 3.0]]})
    feather.write_feather(uneven, str(tmp_path / "v.arrow"), chunksize=1)
    refuse(tmp_path / "v.arrow", r"vectors of different lengths, \[1, 2\]")


@pytest.mark.parametrize("name", ["v.parquet", "v.arrow"])
def test_truncated_tables_and_labels_that_are_not_utf8_raise_errors(tmp_path: Path, name: str) -> None:
    import pyarrow as pa
    from pyarrow import feather, parquet

    export(make(["a", "b"]), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    refuse(tmp_path / name, r"not an? (Parquet|Arrow) file \(")
    broken = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    table = pa.table({"word": broken, "vector": [[1.0], [2.0]]})
    if name == "v.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        feather.write_feather(table, str(tmp_path / name))
    refuse(tmp_path / name, "not an? .*UTF8")


@pytest.mark.parametrize(
    ("part", "data", "message"),
    [
        (
            "vectors.tsv",
            b"1\t2\n3\n",
            r"vectors\.tsv: not a table .* columns changed from 2 to 1 at row 2",
        ),
        (
            "vectors.tsv",
            b"1\t2\nx\t1\n",
            r"vectors\.tsv: not a table .*convert string 'x' to float32 at row 1",
        ),
        ("vectors.tsv", b"1\t2\n1\tnan\n", r"word 2 \('queen'\): the vector has a value that is not a f"),
        ("vectors.tsv", b"1\t2\n1\t1e39\n", r"word 2 \('queen'\): the vector has a value that is not a f"),
        ("vectors.tsv", b"", r"metadata\.tsv: 3 lines, but 0 vectors"),
        ("vectors.tsv", b"1\t2\n\n", r"vectors\.tsv: not a table .*number of columns changed from 2 to 1"),
        ("metadata.tsv", b"king\n", r"metadata\.tsv: 1 lines, but 2 vectors"),
        ("metadata.tsv", b"king\nk\xff\n", r"metadata\.tsv, line 2: not valid UTF-8 \(byte 0xff\)"),
        (
            "metadata.tsv",
            b"word\tcount\nking\t1\nqueen\tx\n",
            r"metadata\.tsv, line 3: expected a word, a tab and a count",
        ),
        ("metadata.tsv", None, r"metadata\.tsv: no such file"),
    ],
)
def test_malformed_projector_folders_raise_errors_with_the_line(
    tmp_path: Path, part: str, data: bytes | None, message: str
) -> None:
    export(make(["king", "queen"]), tmp_path / "p", format="projector")
    if data is None:
        (tmp_path / "p" / part).unlink()
    else:
        (tmp_path / "p" / part).write_bytes(data)
    with pytest.raises(StorageError, match=message):
        load(tmp_path / "p")


def test_any_header_of_projector_metadata_is_skipped(tmp_path: Path) -> None:
    export(make(["king", "queen"]), tmp_path / "p", format="projector")
    (tmp_path / "p" / "metadata.tsv").write_text("Name\tGenre\nking\tx\nqueen\ty\n")
    assert load(tmp_path / "p").vocabulary.tokens == ("king", "queen")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (b"{", r"tokenizer\.json: not JSON"),
        (b"[" * 100_000, r"tokenizer\.json: not JSON"),
        (b"[]", r"tokenizer\.json: not a tokenizer with a vocabulary \(list indices"),
        (b"{}", r"tokenizer\.json: not a tokenizer with a vocabulary"),
        (
            b'{"model": {"vocab": {"a": 1000000000000}}}',
            "'a' has the id 1000000000000, which is used twice or not below 1",
        ),
        (b'{"model": {"vocab": {"a": 0, "b": 0}}}', "'b' has the id 0, which is used twice"),
        (b'{"model": {"vocab": [["a", 0.1], ["b", 0.2]], "unk_id": 7}}', "the id of the unknown token is 7"),
        (b'{"model": {"vocab": {"a": 0}}}', "1 tokens, but 3 vectors"),
        (b'{"model": {"vocab": {"a": 0, "\\ud800": 1, "b": 2}}}', "not a tokenizer with a vocabulary"),
        (None, "no such file"),
    ],
)
def test_malformed_static_embeddings_raise_errors(tmp_path: Path, tokenizer: bytes | None, message: str) -> None:
    export(make(["a", "b"]), tmp_path / "m", format="model2vec")
    if tokenizer is None:
        (tmp_path / "m" / "tokenizer.json").unlink()
    else:
        (tmp_path / "m" / "tokenizer.json").write_bytes(tokenizer)
    with pytest.raises(StorageError, match=message):
        load(tmp_path / "m", format="model2vec")


def test_other_kinds_of_static_embeddings_are_read_or_raise_errors(tmp_path: Path) -> None:
    export(make(["a", "b"]), tmp_path / "m", format="model2vec")
    unigram = {"model": {"vocab": [["a", 0], ["<unk>", 0], ["b", 0]], "unk_id": 1}, "added_tokens": None}
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(unigram))
    assert load(tmp_path / "m").vocabulary.tokens == (
        "a",
        "<unk>",
        "b",
    )  # the vector of <unk> is not zero, so it is kept
    (tmp_path / "m" / "model.safetensors").write_bytes(tensors({"weights": entry([1], 4)}, b"1234"))
    with pytest.raises(StorageError, match="no float matrix called 'embeddings'"):
        load(tmp_path / "m")


@pytest.mark.parametrize("name", ["word2vec", "npy", "npz", "safetensors", "parquet", "arrow", "word2vec-text"])
def test_a_missing_file_raises_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        load(tmp_path / "nowhere", format=name)


def _export_bytes(name: str, folder: Path) -> bytes:
    path = folder / name
    export(make(["king", "queen", "olive", "tree"], dim=3), path, format=name)
    return path.read_bytes()


@pytest.mark.parametrize(
    "name", ["word2vec", "word2vec-text", "glove", "npz", "safetensors", "parquet", "arrow", "npy"]
)
def test_damaged_files_are_read_or_raise_a_swivel_error(tmp_path: Path, name: str) -> None:
    original = _export_bytes(name, tmp_path)
    rng = np.random.default_rng(5)
    file = tmp_path / name

    for _ in range(60):
        data = bytearray(original)
        for place in rng.integers(0, len(data), int(rng.integers(1, 4))):
            data[place] = int(rng.integers(0, 256))
        file.write_bytes(data if rng.random() < 0.7 else data[: int(rng.integers(0, len(data)))])
        _read_or_refuse(file, name)


def _read_or_refuse(file: Path, name: str | None) -> None:
    try:
        vectors = load(file, format=name)
    except SwivelError as error:
        assert re.search(re.escape(file.name), str(error))
        assert "\n" not in str(error)
    else:
        assert np.isfinite(vectors.vectors).all()


READERS = [name for name in FORMATS if not FORMATS[name].is_folder]


@given(st.binary(max_size=200), st.sampled_from([None, *sorted(READERS)]))
@example(b"1 1\n\n\n\n", "word2vec")
@example(b"PAR1PAR1", "parquet")
@example(b"PK\x05\x06" + bytes(18), "npz")
@settings(max_examples=300)
def test_random_bytes_raise_a_one_line_error(tmp_path_factory: Any, data: bytes, name: str | None) -> None:
    file = tmp_path_factory.getbasetemp() / "rubbish"
    file.write_bytes(data)
    _read_or_refuse(file, name)
