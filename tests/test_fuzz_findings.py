"""What the fuzzer found, as small as it can be: each input failed once, in the way that stands beside it."""

from __future__ import annotations

import io
import sys
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # `fuzz` is beside the package, not in it

from fuzz.guard import SPLIT, execute  # noqa: E402
from fuzz.of_folders import CHECKPOINT, MATRIX, VECTORS, seed_checkpoint, seed_matrix, seed_vectors  # noqa: E402
from fuzz.targets import TARGETS  # noqa: E402


def npy(header: bytes, values: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n" + values


def packed(method: int) -> bytes:
    """Return an archive of arrays, packed in some way and then damaged."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("vectors", "words", "format"):
            archive.writestr(f"{name}.npy", bytes(99))
    return file.getvalue().replace(b"\x09\x04\x05\x00\x5d", b"\x09\x04\x05\x00\xff")  # LZMA's own header


def twice(name: str) -> bytes:
    """Return an Arrow file with two columns of a name."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array([[1.0]]), pa.array(["b"])], [name, "vector", name])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


UNENDED = npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,", bytes(24))
FLAGS = npy(b"{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }", b"1")
NUMBER = npy(b"{'descr': '<i8', 'fortran_order': False, 'shape': (), }", bytes(8))
INFINITE = b'{"vectors":{"dtype":"F32","shape":[Infinity,1],"data_offsets":[0,4]}}'
PLAN = b'{"row_blocks": %s, "column_blocks": 1, "epochs": 1, "groups": %s, "backend": "cpu", '
PLAN += b'"device": "cpu", "dtype": "float32"}'
NO_UNIT = b'{"shape": [2, 2], "row_blocks": 1, "column_blocks": 1, "symmetric": false, "unit": 0, "column_parts": [], '
NO_UNIT += b'"total_units": 1}'
DEEP = b"[" * 100_000
FINDINGS = [
    ("packed", b"\x00:\x97", "UnicodeError: the codec idna leaves nothing out"),
    ("memory", b"9" * 400, "OverflowError: infinity as an integer"),
    ("settings", b'\x03{"rate": 1' + b"0" * 400 + b"}", "OverflowError: math.isfinite of a long integer"),
    ("vocabulary", b"\0a\t" + b"9" * 20 + b"\n", "OverflowError: a count of more than 64 bits"),
    ("vocabulary", b"a\t9999999999999999912\n", "OverflowError: 19 digits, and more than 63 bits"),
    ("vocabulary", b"\0a\t" + b"9" * 5000 + b"\n", "ValueError: more digits than Python reads"),
    ("import-csv", b'\5"a\nb",c,1\n', "a message of two lines: a name of a field with a line end"),
    ("import-objects", b'\2[[["x"], "y"]]', "TypeError: a list as an item of a basket"),
    ("import-objects", b'\0[[["x"], "y", 1]]', "TypeError: a list as a label"),
    ("import-npz-members", UNENDED, "TokenError: numpy evaluates the header"),
    (
        "vectors-safetensors",
        len(INFINITE).to_bytes(8, "little") + INFINITE,
        "OverflowError: infinitely many rows",
    ),
    ("manifest", b'{"format": 2, "parts": {}, "x": ' + DEEP, "RecursionError"),
    (
        "manifest",
        b'{"format": 2, "stage": [], "config": 1, "inputs": 1, "facts": 1, "parts": {}}',
        "no stage, no facts",
    ),
    (
        "manifest",
        b'{"format":2,"stage":"vectors","config":{},"inputs":{},"facts":{},"parts":{"../a":{"bytes":0,"sha256":""}}}',
        "a part outside the folder",
    ),
    *(
        (
            "manifest",
            b'{"format":2,"stage":"vectors","config":{},"inputs":{},"facts":{},"parts":{"%s":{"bytes":4,"sha256":""}}}'
            % part,
            f"a part that is {what}",
        )
        for part, what in ((b"", "the folder"), (b"..", "the folder above"))
    ),
    (
        "manifest",
        b'{"format":2,"stage":"vectors","config":{},"inputs":{},"facts":{},"parts":{"a":{"bytes":-1,"sha256":""}}}',
        "a part of less than nothing",
    ),
    ("manifest", b'{"format": "a\\nb"}', "a message of two lines: the format"),
    ("manifest", b'{"format": 2, "parts": {}, "a\\nb": 1}', "a message of two lines: a field"),
    ("vectors-npz", packed(zipfile.ZIP_LZMA), "LZMAError"),
    ("import-npz", packed(zipfile.ZIP_LZMA), "LZMAError"),
    ("vectors-arrow", twice("word"), "KeyError: two columns of a name"),
    ("plan", PLAN % (b"1", b"[1e999, 1]"), "OverflowError: infinitely many groups"),
    ("plan", PLAN % (b'"1"', b"null"), "a number of blocks that is a text"),
]


@pytest.mark.parametrize(("name", "data", "was"), FINDINGS, ids=[f"{name}: {was}" for name, _, was in FINDINGS])
def test_what_was_found_is_mended(name: str, data: bytes, was: str, tmp_path: Path) -> None:
    found = execute(TARGETS[name], data, tmp_path)
    assert found is None, found.report


def replaced(seed: bytes, names: tuple[str, ...], part: str, new: bytes) -> bytes:
    files = seed.split(SPLIT)
    files[names.index(part)] = new
    return SPLIT.join(files)


SEALED = {
    "vectors-folder": (VECTORS, seed_vectors),
    "matrix-folder": (MATRIX, seed_matrix),
    "checkpoint": (CHECKPOINT, seed_checkpoint),
}


@pytest.mark.parametrize(
    ("name", "part", "new"),
    [
        ("vectors-folder", "row_sums.npy", UNENDED),
        ("vectors-folder", "row_sums.npy", b"PK\3\4"),
        ("vectors-folder", "vectors.safetensors", (8 + len(DEEP)).to_bytes(8, "little") + b'{"rows":' + DEEP),
        ("vectors-folder", "facts", b'{"shift": 1' + b"0" * 400 + b', "columns_per_row": 0}'),
        ("matrix-folder", "offsets.npy", UNENDED),
        ("matrix-folder", "rows.txt", b"milk 8\n"),
        ("matrix-folder", "row_sums.npy", FLAGS),
        ("matrix-folder", "facts", NO_UNIT),
        ("checkpoint", "done.npy", NUMBER),
        ("checkpoint", "rows.npy", UNENDED),
        ("checkpoint", "facts", b'{"epochs": "1", "saved": 0, "loss": {}, "history": []}'),
        ("checkpoint", "facts", b'{"epochs": 1, "saved": 0, "loss": {"observed": null}, "history": []}'),
    ],
)
def test_sealed_folders_of_wrong_content_are_refused(name: str, part: str, new: bytes, tmp_path: Path) -> None:
    names, make = SEALED[name]
    (tmp_path / "made").mkdir()
    seed = next(iter(make(tmp_path / "made")))
    found = execute(TARGETS[name], replaced(seed, names, part, new), tmp_path)
    assert found is None, found.report


def test_an_expression_takes_time_in_proportion_to_its_length(tmp_path: Path) -> None:
    started = time.process_time()  # of this process alone, however busy the machine is
    assert execute(TARGETS["expression"], b"a" + b" " * 100_000 + b"b", tmp_path) is None
    assert time.process_time() - started < 20  # It was a minute: every space was tried as the first one.
