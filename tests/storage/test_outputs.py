"""Atomic creation of files and folders for other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from swivel.errors import FolderExists, StorageError
from swivel.storage import files
from swivel.storage.files import build_folder, create_file, place_folder, write_arrays


def test_a_file_is_renamed_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    with create_file(target) as file:
        file.write(b"one ")
        file.write(b"two")
        assert not target.exists()

    assert target.read_bytes() == b"one two"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_failed_block_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), create_file(tmp_path / "file") as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_arrays_are_written_to_one_npz_file(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"n": np.arange(3)})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert arrays["n"].tolist() == [0, 1, 2]


def test_a_folder_is_renamed_when_the_block_ends(tmp_path: Path) -> None:
    with build_folder(tmp_path / "new") as folder:
        (folder / "inside").write_bytes(b"x")
        assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "inside"]


def test_a_failed_block_removes_the_folder_and_a_folder_with_other_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt), build_folder(tmp_path / "new") as folder:
        (folder / "inside").write_bytes(b"x")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "other").write_bytes(b"x")
    with pytest.raises(FolderExists, match="taken: exists already, with other files"), build_folder(tmp_path / "taken"):
        pass

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", fail)
    with pytest.raises(StorageError, match="No space left on device"), build_folder(tmp_path / "new"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_first_of_several_writers_of_a_folder_provides_it(tmp_path: Path) -> None:
    with place_folder(tmp_path / "group") as slow:
        (slow / "cells").write_bytes(b"slow")
        with place_folder(tmp_path / "group") as quick:
            (quick / "cells").write_bytes(b"quick")
    assert [(path.name, (path / "cells").read_bytes()) for path in tmp_path.iterdir()] == [("group", b"quick")]


def test_a_failed_block_leaves_no_placed_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), place_folder(tmp_path / "group") as folder:
        (folder / "cells").write_bytes(b"half")
        raise KeyboardInterrupt
    with pytest.raises(StorageError, match="nowhere"), place_folder(tmp_path / "nowhere" / "group"):
        pass

    (tmp_path / "taken").write_bytes(b"a file")
    with pytest.raises(StorageError, match="taken"), place_folder(tmp_path / "taken"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_folder_in_another_format_may_replace_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with build_folder(tmp_path / "new") as folder:
        (folder / "part").write_text("x")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["part"]
