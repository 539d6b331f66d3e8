"""Folder locks: held by the operating system, and not by the existence of a lock file."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from swivel.errors import FolderExists, FolderLocked, StorageError
from swivel.runtime.options import RunOptions
from swivel.storage import lock as lock_module
from swivel.storage.files import create_folder
from swivel.storage.lock import LOCK, FolderLock, hold_folder, lock_file, refuse_locked, scratch_folder, sweep_folder
from swivel.storage.manifest import open_folder
from swivel.storage.output_folder import check_output

HOLDER = """
import sys
from swivel.storage.files import create_folder
with create_folder(sys.argv[1], "example"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
        if holder.poll() is None:
            holder.communicate()


def take(folder: Path) -> None:
    with create_folder(folder, "example"):
        assert json.loads((folder / LOCK).read_text()) == {"pid": os.getpid(), "host": socket.gethostname()}
    assert not (folder / LOCK).exists()


def test_lock_refuses_a_second_process_and_names_the_first(tmp_path: Path) -> None:
    with other_process(tmp_path) as holder:
        with pytest.raises(
            FolderLocked, match=f"process {holder.pid} on {socket.gethostname()} is writing to it; wait"
        ):
            take(tmp_path)
        assert (tmp_path / LOCK).exists()
    take(tmp_path)


def test_lock_file_of_a_killed_process_has_no_effect(tmp_path: Path) -> None:
    with other_process(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / LOCK).exists()
    take(tmp_path)


def test_process_cannot_take_its_own_lock_twice(tmp_path: Path) -> None:
    with create_folder(tmp_path, "example"):
        with pytest.raises(FolderLocked, match=f"process {os.getpid()} on"):
            take(tmp_path)
        assert (tmp_path / LOCK).exists()
    take(tmp_path)


def test_lock_that_is_held_cannot_be_acquired_again(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()

    with pytest.raises(FolderLocked):
        lock.acquire()

    lock.release()
    lock.release()
    take(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"pid": 1}',
        json.dumps({"pid": os.getpid(), "host": socket.gethostname()}),
        json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}),
        json.dumps({"pid": os.getpid(), "host": "another.example"}),
    ],
    ids=["nothing", "half", "no host", "a process of the same number", "a dead process", "another host"],
)
def test_leftover_lock_file_has_no_effect_whatever_its_content(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    take(tmp_path)


@pytest.mark.parametrize("content", ["[]", "x" * 10_000, '{"packages": []}'])
def test_a_lock_of_another_tool_is_refused_and_not_touched(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    with pytest.raises(FolderExists, match="lock: not written by Swivel, which locks folders by a file of this name"):
        take(tmp_path)
    assert (tmp_path / LOCK).read_text() == content


def test_nothing_is_written_through_a_lock_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for target, content in (("victim", ""), ("letter", '{"pid": 1}'), ("new", None)):
        if content is not None:
            (tmp_path / target).write_text(content)
        (tmp_path / "folder" / LOCK).symlink_to(tmp_path / target)
        with pytest.raises(StorageError, match="lock: a link, through which nothing is written; remove it"):
            take(tmp_path / "folder")
        assert (tmp_path / target).exists() == (content is not None)
        assert content is None or (tmp_path / target).read_text() == content
        (tmp_path / "folder" / LOCK).unlink()


def test_a_lock_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(StorageError, match="lock: not a regular file"):
        take(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "host": "y"}'])
def test_lock_without_a_readable_holder_still_locks(tmp_path: Path, content: str) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    (tmp_path / LOCK).write_text(content)
    with pytest.raises(FolderLocked, match="another process is writing to it"):
        take(tmp_path)
    lock.release()


def test_file_that_is_removed_between_opening_and_locking_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[int] = []

    def lock_late(handle: int) -> bool:
        if not locked:  # The holder releases the lock now, and another process creates a new file.
            (tmp_path / LOCK).unlink()
            (tmp_path / "other").write_text("")
            (tmp_path / "other").rename(tmp_path / LOCK)
        elif len(locked) == 1:  # The holder releases the lock again; no new file is created.
            (tmp_path / LOCK).unlink()
        locked.append(handle)
        return lock_file(handle)

    monkeypatch.setattr(lock_module, "lock_file", lock_late)
    take(tmp_path)

    assert len(locked) == 4  # The last call tests whether the file system supports locks.


def test_released_lock_is_free_while_a_child_process_has_its_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = FolderLock(tmp_path)
    holder.acquire()
    assert holder._handle is not None

    def release_and_lock(handle: int) -> bool:
        holder.release()  # after another process has opened the file
        return lock_file(handle)

    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[holder._handle]) as child:
        monkeypatch.setattr(lock_module, "lock_file", release_and_lock)
        take(tmp_path)
        assert child.poll() is None


def test_lock_is_held_until_its_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise another process may lock the file just before it is removed, and a third one may lock a new file."""
    removed: list[Path] = []
    remove_file = lock_module.remove_file

    def remove_while_another_tries(path: Path) -> None:
        with pytest.raises(FolderLocked):
            FolderLock(tmp_path).acquire()
        removed.append(path)
        remove_file(path)

    monkeypatch.setattr(lock_module, "remove_file", remove_while_another_tries)
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    assert removed == [tmp_path / LOCK]


def test_acquiring_gives_up_if_the_lock_file_keeps_disappearing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderLock, "_is_at_path", lambda self, handle: False)
    with pytest.raises(FolderLocked, match="other processes keep taking its lock; try again"):
        take(tmp_path)


def test_lock_of_the_next_holder_is_not_removed(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    second = FolderLock(tmp_path)
    first.acquire()
    (tmp_path / LOCK).unlink()  # as a user might do
    second.acquire()
    first.release()

    with pytest.raises(FolderLocked):
        take(tmp_path)

    second.release()


def test_file_systems_without_locks_are_written_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, is_held: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock_module, "_set_lock", refuse)
    take(tmp_path)


def test_lock_that_fails_for_another_reason_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int, is_held: bool) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(lock_module, "_set_lock", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        take(tmp_path)


def test_holder_of_a_folder_may_create_its_content(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        with create_folder(tmp_path, "example") as writer:
            writer.finish(config={}, inputs={}, facts={})
        assert (tmp_path / LOCK).exists()
    assert not (tmp_path / LOCK).exists()
    assert open_folder(tmp_path, "example").manifest.stage == "example"


def test_held_folder_refuses_other_writers(tmp_path: Path) -> None:
    refused: list[str] = []

    def try_to_write() -> None:
        for enter in (hold_folder(tmp_path), create_folder(tmp_path, "example")):
            with pytest.raises(FolderLocked) as caught, enter:
                pass
            refused.append(str(caught.value))

    with hold_folder(tmp_path):
        with pytest.raises(FolderLocked), hold_folder(tmp_path):
            pass
        thread = threading.Thread(target=try_to_write)  # not called by the holder
        thread.start()
        thread.join()
    assert (
        refused
        == [f"{tmp_path}: process {os.getpid()} on {socket.gethostname()} is writing to it; wait until it finishes"] * 2
    )


def test_folder_can_be_locked_again_after_it_was_held(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        pass
    with create_folder(tmp_path, "example"), pytest.raises(FolderLocked):
        take(tmp_path)


def test_new_folder_is_removed_if_it_is_empty_after_it_was_held(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="oops"), hold_folder(tmp_path / "new" / "inner"):
        raise ValueError("oops")
    assert not (tmp_path / "new").exists()


SCRATCHES = [f"scratch-{lock_module._name_machine()}-{os.getpid()}-abcdefgh", "scratch-00000000-1-ijklmnop"]


def leave_scratch(folder: Path) -> None:
    for name in SCRATCHES:  # a reused process id of this host, and a process of another host
        (folder / name).mkdir()
        (folder / name / "runs").write_text("x")


def test_scratch_folders_of_dead_processes_are_removed_even_if_their_id_is_reused(tmp_path: Path) -> None:
    leave_scratch(tmp_path)
    with hold_folder(tmp_path), scratch_folder(tmp_path) as own, create_folder(tmp_path, "example"):
        assert {file.name for file in tmp_path.iterdir()} == {LOCK, own.name}


def test_scratch_folders_in_the_temporary_folder_belong_to_results_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder(tmp_path) as own, create_folder(tmp_path, "example") as folder:
        folder.finish(config={}, inputs={}, facts={})
        assert own.exists()


def test_scratch_folders_are_kept_on_file_systems_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_scratch(tmp_path)

    def refuse(handle: int, is_held: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock_module, "_set_lock", refuse)
    with hold_folder(tmp_path):
        assert {file.name for file in tmp_path.iterdir()} == {LOCK, *SCRATCHES}


def test_leftovers_of_a_killed_process_in_a_complete_folder_are_removed(tmp_path: Path) -> None:
    with create_folder(tmp_path / "done", "example") as folder:
        folder.finish(config={}, inputs={}, facts={})
    (tmp_path / "done" / "scratch-00000000-2-abcdefgh").mkdir()
    (tmp_path / "done" / "lock").write_text('{"pid": 1}')
    sweep_folder(tmp_path / "done")
    assert [file.name for file in (tmp_path / "done").iterdir()] == ["manifest.json"]


def test_folder_that_is_being_written_is_not_swept(tmp_path: Path) -> None:
    with hold_folder(tmp_path), scratch_folder(tmp_path) as scratch:
        thread = threading.Thread(
            target=sweep_folder, args=(tmp_path,)
        )  # a thread has its own context, as another writer
        thread.start()
        thread.join(30)
        assert scratch.exists()


def test_refused_writer_leaves_the_folder_of_the_other_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    other = FolderLock(out)
    assert check_output(out, [], RunOptions()) == out
    out.mkdir()  # Another process was faster.
    other.acquire()
    (out / "theirs").touch()
    with pytest.raises(FolderLocked):
        refuse_locked(out)
    assert (out / "theirs").exists()
    other.release()


def test_lock_of_a_killed_process_refuses_nobody(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text('{"pid": 1, "host": "there"}')
    refuse_locked(tmp_path)
    assert (tmp_path / LOCK).exists(), "it says that parts beside it are those of an interrupted command"
    take(tmp_path)
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("begin", [hold_folder, lambda path: create_folder(path, "matrix")])
def test_what_a_killed_process_left_is_recognized_after_an_interrupted_command(
    tmp_path: Path, begin: Callable[[Path], AbstractContextManager[object]]
) -> None:
    (tmp_path / LOCK).write_text('{"pid": 1, "host": "there"}')
    (tmp_path / "rows.txt").write_text("one\n")
    with pytest.raises(KeyboardInterrupt), begin(tmp_path):
        raise KeyboardInterrupt
    with create_folder(tmp_path, "matrix") as folder:
        folder.write_lines("rows.txt", ["two"])
        folder.finish(config={}, inputs={}, facts={})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["manifest.json", "rows.txt"]
