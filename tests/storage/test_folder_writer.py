"""Result folders: manifest written last, overwriting, failures, damage and scratch folders."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from swivel.config import TrainConfig
from swivel.errors import DamagedFolder, FolderExists, StorageError, UnfinishedFolder
from swivel.storage import files
from swivel.storage import manifest as manifests
from swivel.storage.arrays import ArrayAppender, create_array
from swivel.storage.files import create_folder, flush, write_file
from swivel.storage.lock import LOCK, remove_file, remove_tree, scratch_folder
from swivel.storage.manifest import MANIFEST, fingerprint, open_array, open_folder
from swivel.storage.output_folder import open_work_folder


def make_folder(path: Path, *, overwrite: bool = False, value: int = 1) -> Path:
    with create_folder(path, "example", overwrite=overwrite) as folder:
        folder.write_array("numbers.npy", np.full(4, value))
        folder.write_lines("words.txt", ["one", "two"])
        folder.finish(config={"config_field": value}, inputs={"from": "abc"}, facts={"size": 4})
    return path


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_written_parts_and_manifest_are_read_back(tmp_path: Path) -> None:
    folder = open_folder(make_folder(tmp_path / "new"), "example")
    assert folder.array("numbers.npy").tolist() == [1, 1, 1, 1]
    assert folder.lines("words.txt") == ["one", "two"]

    manifest = folder.manifest
    assert (manifest.stage, manifest.config, manifest.inputs, manifest.facts) == (
        "example",
        {"config_field": 1},
        {"from": "abc"},
        {"size": 4},
    )
    assert names(folder.path) == [MANIFEST, "numbers.npy", "words.txt"]
    folder.verify()


def test_config_dataclasses_are_stored_as_their_fields(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example") as folder:
        folder.finish(config=TrainConfig(dim=7), inputs={}, facts={})
    assert open_folder(tmp_path, "example").manifest.config["dim"] == 7


def test_tensors_are_stored_as_one_part(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example") as folder:
        folder.write_tensors("all.safetensors", {"a": np.arange(6.0).reshape(2, 3).T})
        folder.finish(config={}, inputs={}, facts={})
    open_folder(tmp_path, "example").verify()
    np.testing.assert_array_equal(load_file(tmp_path / "all.safetensors")["a"], np.arange(6.0).reshape(2, 3).T)


def test_tensor_files_have_the_same_bytes_as_with_the_library(tmp_path: Path) -> None:
    tensors = {name: np.random.default_rng(1).random((3, size), np.float32) for size, name in enumerate("zab", 2)}
    with create_folder(tmp_path, "example") as folder:
        folder.write_tensors("ours.safetensors", tensors)
    save_file(tensors, tmp_path / "theirs.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_tensors_that_cannot_be_written_raise_a_storage_error(tmp_path: Path) -> None:
    with create_folder(tmp_path / "new", "example") as folder:
        remove_tree(tmp_path / "new")
        with pytest.raises(StorageError, match=r"all\.safetensors: "):
            folder.write_tensors("all.safetensors", {"a": np.arange(3)})


def test_empty_arrays_keep_their_shape_and_dtype(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example") as folder:
        folder.write_array("none.npy", np.empty((0, 3), np.float32))
        folder.finish(config={}, inputs={}, facts={})
    loaded = open_folder(tmp_path, "example").array("none.npy")
    assert loaded.shape == (0, 3)
    assert loaded.dtype == np.float32


def test_arrays_are_mapped_read_only(tmp_path: Path) -> None:
    array = open_folder(make_folder(tmp_path), "example").array("numbers.npy")
    assert isinstance(array, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5


def test_complete_folder_is_refused_unless_overwrite_is_true(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with pytest.raises(FolderExists, match=r"finished already; choose another folder or pass overwrite=True"):
        make_folder(tmp_path)
    assert open_folder(tmp_path, "example").manifest.config == {"config_field": 1}
    make_folder(tmp_path, overwrite=True, value=2)
    assert open_folder(tmp_path, "example").array("numbers.npy").tolist() == [2, 2, 2, 2]


def test_overwriting_removes_the_old_parts_and_nothing_else(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "notes.txt").write_text("unrelated")
    with create_folder(tmp_path, "example", overwrite=True) as folder:
        folder.write_lines("new.txt", ["new"])
        assert names(tmp_path) == [LOCK, "new.txt", "notes.txt"]
        folder.finish(config={}, inputs={}, facts={})

    assert names(tmp_path) == [MANIFEST, "new.txt", "notes.txt"]


def test_overwriting_a_damaged_manifest_works(tmp_path: Path) -> None:
    (make_folder(tmp_path) / MANIFEST).write_text("{")
    make_folder(tmp_path, overwrite=True, value=3)
    assert open_folder(tmp_path, "example").manifest.config == {"config_field": 3}


def test_overwriting_that_fails_before_the_first_part_loses_nothing(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with pytest.raises(RuntimeError), create_folder(tmp_path, "example", overwrite=True):
        raise RuntimeError
    open_folder(tmp_path, "example").verify()


def test_overwriting_that_fails_halfway_leaves_an_incomplete_folder(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with pytest.raises(RuntimeError), create_folder(tmp_path, "example", overwrite=True) as folder:
        folder.write_array("numbers.npy", np.arange(3))
        raise RuntimeError
    with pytest.raises(StorageError, match=r"no manifest\.json"):
        open_folder(tmp_path, "example")


def test_incomplete_folder_may_be_written_again(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example") as folder:
        folder.write_array("row_sums.npy", np.arange(100))
    with pytest.raises(UnfinishedFolder, match=r"no manifest\.json, because the stage that writes it was interrupted"):
        open_folder(tmp_path, "example")
    make_folder(tmp_path)
    open_folder(tmp_path, "example").verify()


def test_failed_block_leaves_no_lock_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path) -> None:
        assert path.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), create_folder(tmp_path, "example") as folder:
        folder.write_array("whole.npy", np.arange(3))
        monkeypatch.setattr(files, "flush", interrupt)
        folder.write_array("half.npy", np.arange(3))
    assert names(tmp_path) == []


def test_folder_of_a_run_is_refused_with_the_folders_it_contains(tmp_path: Path) -> None:
    make_folder(tmp_path / "run" / "matrix")
    with pytest.raises(StorageError, match=r"run: this is the folder of a run; pass \S*matrix$"):
        open_folder(tmp_path / "run", "matrix")


def test_failed_block_removes_an_empty_folder_only_if_it_is_new(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for name in ("old", "new"):
        with pytest.raises(ValueError, match="no"), create_folder(tmp_path / name, "matrix"):
            raise ValueError("no")
    assert names(tmp_path) == ["old"]


def test_folder_is_incomplete_if_its_manifest_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.flush

    def fail(path: Path) -> None:
        if (path / MANIFEST).exists():
            raise OSError(5, "Input/output error", str(path))
        real(path)

    monkeypatch.setattr(files, "flush", fail)
    with (
        pytest.raises(StorageError, match="Input/output error"),
        create_folder(tmp_path / "new", "example") as folder,
    ):
        folder.write_lines("part", ["x"])
        folder.finish(config={}, inputs={}, facts={})
    assert not (tmp_path / "new").exists()


def test_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "file", b"old")

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "flush", fail)
    with pytest.raises(StorageError, match=r"file: No space left on device"):
        write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_files_are_opened_for_writing_to_flush_them_and_folders_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    opened: list[tuple[str, int]] = []

    def refuse(path: Path, flags: int) -> int:
        opened.append((path.name, flags))
        raise PermissionError(13, "Permission denied", str(path))

    flush(tmp_path / "file")
    flush(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        flush(tmp_path)
        with pytest.raises(PermissionError):
            flush(tmp_path / "file")

    assert opened == [(tmp_path.name, os.O_RDONLY), ("file", os.O_RDWR), ("file", os.O_RDONLY)]


def test_a_failed_flush_of_a_folder_is_an_error_unless_it_is_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> Callable[[int], None]:
        def sync(handle: int) -> None:
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                raise OSError(number, os.strerror(number))

        return sync

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    make_folder(tmp_path / "one")
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))

    with pytest.raises(StorageError, match="two: Input/output error"):
        make_folder(tmp_path / "two")


def test_manifest_is_written_after_every_part_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(files, "flush", lambda path: flushed.append(re.sub(r"\.[\w-]+\.part$", ".part", path.name)))
    make_folder(tmp_path / "new")
    assert flushed == ["numbers.npy.part", "words.txt.part", "new", "manifest.json.part", "new"]


def damage_missing(path: Path) -> None:
    (path / "words.txt").unlink()


def damage_size(path: Path) -> None:
    (path / "words.txt").write_text("one\n")


def damage_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:-9])


def damage_list(path: Path) -> None:
    (path / MANIFEST).write_text("[]")


def damage_fields(path: Path) -> None:
    (path / MANIFEST).write_text((path / MANIFEST).read_text().replace('"facts"', '"fiction"'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            damage_missing,
            r"words\.txt: missing; create the folder again with overwrite=True, or restore",
        ),
        (damage_size, r"words\.txt: 4 bytes, but the manifest says 8"),
        (damage_manifest, r"manifest\.json: not a manifest .*; create the folder again with overwrite=True"),
        (damage_list, r"manifest\.json: not a manifest"),
        (damage_fields, r"manifest\.json: not a manifest"),
    ],
)
def test_damage_is_found_on_opening(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(make_folder(tmp_path))
    with pytest.raises(DamagedFolder, match=message):
        open_folder(tmp_path, "example")


def test_changed_byte_is_found_on_verifying(tmp_path: Path) -> None:
    (make_folder(tmp_path) / "words.txt").write_text("one\ntoo\n")
    folder = open_folder(tmp_path, "example")
    with pytest.raises(DamagedFolder, match=r"words\.txt: checksum differs from the manifest"):
        folder.verify()


def test_text_that_is_not_utf8_raises_damaged_folder(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example") as writer:
        writer.write_array("words.txt", np.arange(3))  # begins with a byte that no UTF-8 has
        writer.finish(config={}, inputs={}, facts={})
    with pytest.raises(DamagedFolder, match=r"words\.txt: not valid UTF-8"):
        open_folder(tmp_path, "example").lines("words.txt")


@pytest.mark.parametrize(
    "replace",
    [
        lambda folder: make_folder(folder, overwrite=True, value=2),
        lambda folder: [file.unlink() for file in folder.iterdir()],
        lambda folder: shutil.rmtree(folder),
    ],
)
def test_folder_that_another_process_replaces_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Path], object]
) -> None:
    folder = open_folder(make_folder(tmp_path / "open"), "example")
    replace(folder.path)
    message = "open: another process replaces this folder; try again when it has finished"
    with pytest.raises(StorageError, match=message):
        folder.check("numbers.npy")

    # The same while the folder is opened, after the manifest was read.
    make_folder(tmp_path / "new", value=1)
    read = manifests.read_manifest

    def read_before(path: Path) -> manifests.Manifest:
        monkeypatch.undo()
        manifest = read(path)
        remove_file(path / next(iter(manifest.parts)))
        remove_file(path / MANIFEST)
        return manifest

    monkeypatch.setattr(manifests, "read_manifest", read_before)
    with pytest.raises(StorageError, match="new: another process replaces this folder"):
        open_folder(tmp_path / "new", "example")


def test_part_that_is_not_in_the_manifest_raises_damaged_folder(tmp_path: Path) -> None:
    folder = open_folder(make_folder(tmp_path), "example")
    with pytest.raises(DamagedFolder, match=r"lists no part other\.npy"):
        folder.array("other.npy")


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00"])
def test_file_that_is_not_an_array_raises_damaged_folder(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DamagedFolder, match=r"x\.npy: not a \.npy file"):
        open_array(tmp_path / "x.npy")


def test_wrong_stage_and_missing_folder_have_clear_messages(tmp_path: Path) -> None:
    make_folder(tmp_path / "new")
    with pytest.raises(StorageError, match="new: a folder with a example, not with a matrix"):
        open_folder(tmp_path / "new", "matrix")
    with pytest.raises(StorageError, match="nowhere: no such folder"):
        open_folder(tmp_path / "nowhere", "matrix")
    with pytest.raises(StorageError, match=r"array\.npy: no such file"):
        open_array(tmp_path / "array.npy")


def test_manifest_that_cannot_be_read_raises_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises(StorageError, match=r"manifest\.json: Is a directory"):
        open_folder(tmp_path, "example")


def test_later_format_is_refused_even_with_unknown_fields(tmp_path: Path) -> None:
    file = make_folder(tmp_path) / MANIFEST
    fields = {**json.loads(file.read_text()), "format": 3, "library": "9.0", "novelty": True}
    file.write_text(json.dumps(fields))

    message = r"format 3 is not supported, .* reads format 2; .* \(9\.0\)"
    with pytest.raises(StorageError, match=message) as caught:
        open_folder(tmp_path, "example")
    assert not isinstance(caught.value, DamagedFolder)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: make_folder(path),
        lambda path: write_file(path, b""),
        lambda path: create_array(path, np.int64, (3,)),
        lambda path: ArrayAppender(path, np.int64),
        lambda path: scratch_folder(path).__enter__(),
    ],
    ids=["folder", "file", "array", "appender", "scratch"],
)
def test_path_that_cannot_be_written_is_a_one_line_error(tmp_path: Path, write: Callable[[Path], object]) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"Not a directory|File exists") as caught:
        write(tmp_path / "file" / "below")
    assert "\n" not in str(caught.value)


def test_new_parts_are_removed_when_the_block_fails(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    write_file(tmp_path / "old" / "notes.txt", b"mine")
    for folder in (tmp_path / "old", tmp_path / "new"):
        with pytest.raises(RuntimeError), create_folder(folder, "example") as writer:
            writer.write_lines("words.txt", ["one"])
            raise RuntimeError
    assert names(tmp_path) == ["old"]
    assert names(tmp_path / "old") == ["notes.txt"]


def test_complete_folder_is_kept_when_the_block_fails_later(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), create_folder(tmp_path, "example") as writer:
        writer.write_lines("words.txt", ["one"])
        writer.finish(config={}, inputs={}, facts={})
        raise RuntimeError
    assert names(tmp_path) == [MANIFEST, "words.txt"]


def test_missing_folder_for_temporary_files_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with (
        pytest.raises(StorageError, match=r"^/no/such/folder.*: no such file or folder$"),
        open_work_folder(None),
    ):
        pass


def test_scratch_folder_is_removed_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch_folder(tmp_path / "new") as scratch:
        (scratch / "file").write_text("x")
        raise RuntimeError
    assert names(tmp_path / "new") == []


def test_only_scratch_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as own:
        of_dead_process = own.name.replace(f"-{os.getpid()}-", f"-{dead_process()}-")
        of_live_process = own.name.replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
        for name in (of_dead_process, of_live_process, "scratch-of-user"):
            (tmp_path / name).mkdir()
        with scratch_folder(tmp_path) as another:
            assert names(tmp_path) == sorted([own.name, another.name, of_live_process, "scratch-of-user"])


def test_removing_a_missing_file_or_folder_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nowhere")
    remove_file(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("x")
    remove_tree(tmp_path / "file")
    remove_tree(tmp_path / "folder")

    assert names(tmp_path) == []


def test_removing_a_link_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove_tree(tmp_path / "link")
    assert names(tmp_path) == ["folder"]


def test_fingerprint_depends_on_values_and_not_on_their_order() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})
    assert fingerprint(TrainConfig(dim=3)) == fingerprint(TrainConfig(dim=3)) != fingerprint(TrainConfig(dim=4))


def test_a_folder_that_is_removed_loses_its_manifest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    for name in ("a.npy", MANIFEST):
        (folder / name).write_text("{}")
    monkeypatch.setattr(shutil, "rmtree", lambda *arguments, **keywords: None)  # The process is killed here.
    remove_tree(folder)
    assert [file.name for file in folder.iterdir()] == ["a.npy"]
