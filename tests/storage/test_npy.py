"""Array files: the same bytes as NumPy's, and clear errors when the disk is full."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from swivel.errors import StorageError
from swivel.storage.arrays import ArrayAppender, create_array, random_reads, read_ahead
from swivel.storage.files import create_folder
from swivel.storage.manifest import open_array


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3).T, np.arange(9)[::2], np.array([True, False]), np.array(5)],
    ids=["Fortran order", "strided", "bool", "scalar"],
)
def test_arrays_of_any_layout_have_the_same_bytes_as_with_numpy(tmp_path: Path, array: np.ndarray) -> None:
    with create_folder(tmp_path, "example") as folder:
        folder.write_array("x.npy", array)
    np.save(tmp_path / "y.npy", np.asarray(array, order="C"))
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()


FULL = OSError(28, "No space left on device")


def test_full_disk_is_a_one_line_error_before_an_array_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int, start: int, size: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    with pytest.raises(StorageError, match=r"x\.npy: No space left on device"):
        create_array(tmp_path / "x.npy", np.int64, (1000,))
    assert (tmp_path / "x.npy").stat().st_size == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_is_a_one_line_error_while_a_part_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode: real(Path("/dev/full"), "wb"))
    with (
        create_folder(tmp_path, "example") as folder,
        pytest.raises(StorageError, match=r"x\.npy: No space left on device"),
    ):
        folder.write_array("x.npy", np.arange(100_000))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no posix_fallocate")
def test_disk_space_of_a_mapped_array_is_allocated(tmp_path: Path) -> None:
    array = create_array(tmp_path / "x.npy", np.int64, (1 << 17,))
    assert (tmp_path / "x.npy").stat().st_blocks * 512 >= array.nbytes
    assert not array.any()
    array[-1] = 7
    assert np.load(tmp_path / "x.npy")[-1] == 7


def test_file_systems_without_fallocate_get_a_sparse_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, start: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    assert create_array(tmp_path / "x.npy", np.int64, (2, 3)).shape == (2, 3)

    monkeypatch.delattr(os, "posix_fallocate")
    assert create_array(tmp_path / "x.npy", np.int64, (2, 3)).shape == (2, 3)


def test_appended_arrays_form_one_file_of_any_length(tmp_path: Path) -> None:
    appender = ArrayAppender(tmp_path / "x.npy", np.uint32)
    pieces = [np.arange(5), np.arange(0), np.arange(7)[::2]]
    for piece in pieces:
        appender.append(piece)
    appender.close()
    appender.close()
    loaded = open_array(tmp_path / "x.npy")

    assert loaded.dtype == np.uint32
    np.testing.assert_array_equal(loaded, np.concatenate(pieces))


def test_arrays_of_python_objects_are_refused(tmp_path: Path) -> None:
    with (
        create_folder(tmp_path, "example") as folder,
        pytest.raises(ValueError, match="must not contain Python objects"),
    ):
        folder.write_array("x.npy", np.array([object()]))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(mmap, "MADV_RANDOM"), reason="the system takes no advice")
def test_read_ahead_asks_for_the_pages_of_some_elements_only() -> None:
    asked: list[tuple[int, ...]] = []
    pages = SimpleNamespace(madvise=lambda *advice: asked.append(advice))
    array: Any = SimpleNamespace(_mmap=pages, offset=128, itemsize=4)
    read_ahead(array, 5_000, 5_000)
    assert not asked
    read_ahead(array, 5_000, 6_000)

    (_, start, length) = asked[-1]
    assert start % mmap.PAGESIZE == 0
    assert start <= 128 + 4 * 5_000
    assert start + length == 128 + 4 * 6_000
    assert asked[0] == (mmap.MADV_RANDOM,)


@pytest.mark.skipif(not hasattr(mmap, "MADV_RANDOM"), reason="the system takes no advice")
def test_random_reads_end_with_the_block() -> None:
    asked: list[int] = []
    array: Any = SimpleNamespace(base=SimpleNamespace(_mmap=SimpleNamespace(madvise=asked.append)))  # a view
    with random_reads(array):
        assert asked == [mmap.MADV_RANDOM]
    assert asked == [mmap.MADV_RANDOM, mmap.MADV_NORMAL]


def test_arrays_in_memory_need_no_advice() -> None:
    with random_reads(np.arange(3)):
        read_ahead(np.arange(3), 0, 3)
