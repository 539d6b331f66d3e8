"""Tests of checksums: files and arrays have the same ones, in pieces if they are large, and old ones still count."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swivel.errors import DamagedFolder
from swivel.runtime.options import RunOptions
from swivel.storage import manifest
from swivel.storage.files import create_folder
from swivel.storage.manifest import MANIFEST, digest_array, digest_file, open_folder
from swivel.storage.object_digest import digest_object
from swivel.storage.output_folder import check_output

PIECE = 1000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces small, and read a piece in several parts."""
    monkeypatch.setattr(manifest, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(manifest, "_READ_BYTES", 300)


def make_bytes(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", [0, 1, 299, PIECE])
def test_the_checksum_of_a_small_file_is_its_digest(size: int, tmp_path: Path) -> None:
    data = make_bytes(size)
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()
    assert digest_array(np.frombuffer(data, np.uint8)) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [PIECE + 1, 2 * PIECE, 5 * PIECE + 7])
def test_the_checksum_of_a_large_file_is_the_digest_of_the_digests_of_its_pieces(size: int, tmp_path: Path) -> None:
    data = make_bytes(size)
    pieces = [hashlib.sha256(data[start : start + PIECE]).digest() for start in range(0, size, PIECE)]
    expected = "16MiB:" + hashlib.sha256(b"".join(pieces)).hexdigest()

    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == expected
    assert digest_array(np.frombuffer(data, np.uint8)) == expected


def test_run_options_limit_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def note(function: Any, items: Any, *, threads: int) -> Any:
        used.append(threads)
        return map(function, items)

    monkeypatch.setattr(manifest, "map_in_order", note)
    monkeypatch.setattr(manifest, "count_cores", lambda: 64)
    monkeypatch.setattr(manifest, "_limit", 8)
    for threads in (1, 3, 50):
        check_output(tmp_path / "new", [], RunOptions(threads=threads))
        digest_array(np.zeros(3 * PIECE, np.uint8))
    assert used == [1, 3, 8]


def test_pieces_have_16_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the small pieces
    data = make_bytes((1 << 24) + 1)
    pieces = [hashlib.sha256(piece).digest() for piece in (data[: 1 << 24], data[1 << 24 :])]
    expected = "16MiB:" + hashlib.sha256(b"".join(pieces)).hexdigest()  # docs/file-formats.md
    assert digest_array(np.frombuffer(data, np.uint8)) == expected
    assert digest_array(np.frombuffer(data[:-1], np.uint8)) == hashlib.sha256(data[:-1]).hexdigest()


def test_an_array_of_any_layout_has_the_checksum_of_its_values() -> None:
    values = np.arange(800, dtype=np.float32).reshape(20, 40)
    assert digest_array(values.T) == digest_array(np.ascontiguousarray(values.T)) != digest_array(values)


def write_folder(path: Path) -> None:
    with create_folder(path, "example") as folder:
        folder.write_array("numbers.npy", np.arange(2000))
        folder.finish(config={}, inputs={}, facts={})


def test_damage_is_found_by_checksums_of_pieces(tmp_path: Path) -> None:
    write_folder(tmp_path / "folder")
    file = tmp_path / "folder/numbers.npy"
    recorded = json.loads((tmp_path / "folder" / MANIFEST).read_text())["parts"]["numbers.npy"]["sha256"]
    assert recorded.startswith("16MiB:")
    open_folder(tmp_path / "folder", "example").verify()

    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedFolder, match="checksum differs from the manifest"):
        open_folder(tmp_path / "folder", "example").verify()


def test_a_digest_of_an_array_takes_no_memory_and_is_that_of_its_values() -> None:
    array = np.arange(1 << 20)
    tracemalloc.start()
    try:
        digest = digest_object(array)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < array.nbytes / 8
    assert digest == digest_object(np.repeat(array, 2)[::2]) != digest_object(array[::-1])
