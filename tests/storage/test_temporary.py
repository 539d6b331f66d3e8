"""Temporary names: unique, short enough, removed when their process is dead; and the permissions of what is written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from swivel.errors import FolderExists, StorageError
from swivel.storage.files import (
    build_folder,
    create_file,
    create_folder,
    create_pair,
    place_folder,
    write_arrays,
    write_file,
)
from swivel.storage.lock import find_leftovers, hold_folder, is_temporary, scratch_folder, sweep_folder, temporary_path


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(folder: Path, *, pid: int | None = None, machine: str | None = None) -> str:
    """Leave a temporary file of another process in a folder, and return its name."""
    own = temporary_path(folder / "table.txt").name
    stem, middle, part = own.rsplit(".", 2)
    own_machine, own_pid, random = middle.split("-")
    name = f"{stem}.{machine or own_machine}-{pid or own_pid}-{random}.{part}"
    (folder / name).write_text("half")
    return name


@pytest.mark.parametrize("name", ["v", "vectors.txt", "n" * 250, "n" * 251, "n" * 255, "é" * 127, "語" * 85])
def test_temporary_names_differ_and_are_at_most_255_bytes_long(tmp_path: Path, name: str) -> None:
    paths = [temporary_path(tmp_path / name) for _ in range(100)]
    assert len(set(paths)) == 100
    assert all(len(os.fsencode(path.name)) <= max(len(os.fsencode(name)), 80) for path in paths)
    assert all(path.parent == tmp_path and path.name.endswith(".part") and is_temporary(path.name) for path in paths)

    write_file(tmp_path / name, b"x")
    assert names(tmp_path) == [name]


def test_a_name_that_is_too_long_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"n{256}: File name too long"):
        write_file(tmp_path / ("n" * 256), b"x")
    with pytest.raises(StorageError, match=r"n{256}: File name too long"), build_folder(tmp_path / ("n" * 256)):
        pass


def test_ordinary_names_are_not_temporary() -> None:
    names = ["lock", "scratch-of-user", "table.part", "a-1-b.part", "manifest.json", "2026-11-16-x.txt"]
    names += ["notes.20240131-1530-draft", "notes.20240131-1530-draft.part", "notes.20240131-1530-deadbeef"]
    names += [
        "scratch-20240101-1530-ideas",
        "scratch-20240101-1530-deadbeef.part",
        "notes.20240131-\u0661-deadbeef.part",
    ]
    assert [name for name in names if is_temporary(name)] == []


def test_scratch_folders_and_parts_of_any_name_are_temporary(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as scratch:
        assert is_temporary(scratch.name)
    for name in ("v", "two\nlines", os.fsdecode(b"\xff\xfe")):
        assert is_temporary(temporary_path(tmp_path / name).name)


def test_the_last_writer_of_a_file_to_finish_provides_it(tmp_path: Path) -> None:
    with create_file(tmp_path / "file") as slow:
        slow.write(b"slow " * 1000)
        with create_file(tmp_path / "file") as quick:
            quick.write(b"quick")
        assert (tmp_path / "file").read_bytes() == b"quick"
        slow.write(b"end")
    assert (tmp_path / "file").read_bytes() == b"slow " * 1000 + b"end"
    assert names(tmp_path) == ["file"]


def test_the_last_writer_of_two_files_to_finish_provides_both(tmp_path: Path) -> None:
    with create_pair(tmp_path / "matrix", tmp_path / "words") as slow:
        for file in slow:
            file.write(b"slow")
        with create_pair(tmp_path / "matrix", tmp_path / "words") as quick:
            for file in quick:
                file.write(b"quick")
    assert {(tmp_path / name).read_bytes() for name in names(tmp_path)} == {b"slow"}
    assert names(tmp_path) == ["matrix", "words"]


def test_two_files_are_never_of_different_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matrix", "words"):
        write_file(tmp_path / name, b"old")
    seen = []
    replace = Path.replace

    def look(path: Path, target: Path) -> Path:
        seen.append({file.name: file.read_bytes() for file in tmp_path.iterdir() if not is_temporary(file.name)})
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", look)
    with create_pair(tmp_path / "matrix", tmp_path / "words") as pair:
        for file in pair:
            file.write(b"new")
    assert seen == [{"words": b"old"}, {"words": b"new"}]


def test_the_last_writer_of_a_folder_to_finish_provides_it(tmp_path: Path) -> None:
    with build_folder(tmp_path / "model") as slow:
        write_file(slow / "cells", b"slow")
        with build_folder(tmp_path / "model") as quick:
            write_file(quick / "cells", b"quick")
    assert (tmp_path / "model" / "cells").read_bytes() == b"slow"
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["cells"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(FolderExists, match="model: exists already"), build_folder(tmp_path / "model") as folder:
        write_file(folder / "cells", b"new")
        write_file(tmp_path / "model" / "notes", b"mine")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["notes"]


def test_errors_name_the_result_and_not_the_temporary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, target: Path) -> Path:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(StorageError, match=rf"^{tmp_path}/file: Input/output error$"):
        write_file(tmp_path / "file", b"x")
    message = rf"^{tmp_path}/new/file: Input/output error$"
    with pytest.raises(StorageError, match=message), build_folder(tmp_path / "new") as folder:
        write_file(folder / "file", b"x")
    assert names(tmp_path) == []


def test_leftovers_of_dead_processes_are_removed_by_the_next_writer_in_the_folder(tmp_path: Path) -> None:
    leave(tmp_path, pid=dead_process())
    kept = [leave(tmp_path, pid=os.getppid()), leave(tmp_path, machine="00000000")]
    write_file(tmp_path / "other.txt", b"x")
    assert names(tmp_path) == sorted([*kept, "other.txt"])


def test_leftovers_of_other_machines_are_removed_after_a_day_with_the_lock_of_the_folder(tmp_path: Path) -> None:
    leave(tmp_path, pid=dead_process())
    abandoned, recent = leave(tmp_path, machine="00000000"), leave(tmp_path, machine="11111111")
    for name, hours in ((abandoned, 25), (recent, 23)):
        changed = time.time() - hours * 60 * 60
        os.utime(tmp_path / name, (changed, changed))

    # A report is written without the lock, also by another machine or container.
    kept = [leave(tmp_path, pid=os.getppid()), leave(tmp_path, machine="22222222"), recent]
    with hold_folder(tmp_path):
        assert names(tmp_path) == sorted(["lock", *kept])


def test_sweeping_a_complete_folder_removes_everything_but_its_files(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example") as folder:
        folder.write_lines("part", ["x"])
        folder.finish(config={}, inputs={}, facts={})
    leave(tmp_path, pid=dead_process())
    write_file(tmp_path / "checkpoint-1" / "rows.npy", b"x")
    write_file(tmp_path / "notes.txt", b"mine")
    sweep_folder(tmp_path, "checkpoint-1", "checkpoint-2")
    assert names(tmp_path) == ["manifest.json", "notes.txt", "part"]
    assert find_leftovers(tmp_path, is_locked=True) == []


@pytest.fixture(params=[0o022, 0o007, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_everything_that_is_written_follows_the_umask(tmp_path: Path, umask: int) -> None:
    home = tmp_path / "home"
    write_file(home / "file", b"x")
    write_arrays(home / "arrays.npz", {"n": np.arange(3)})
    with create_folder(home / "result", "example") as folder:
        folder.write_lines("lines", ["x"])
        folder.write_array("array.npy", np.arange(3))
        folder.write_tensors("tensors.safetensors", {"a": np.ones((2, 2), np.float32)})
        assert (home / "result" / "lock").stat().st_mode & 0o777 == 0o666 & ~umask
        folder.finish(config={}, inputs={}, facts={})
    for build in (build_folder, place_folder):
        with build(home / build.__name__) as path:
            write_file(path / "inside" / "file", b"x")

    for path in (home, *home.rglob("*")):
        expected = 0o777 if path.is_dir() else 0o666
        assert path.stat().st_mode & 0o777 == expected & ~umask, path.relative_to(home)
