"""Locks of folders: held by the system, never by a file that was left behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swivel import storage
from swivel.errors import FolderLocked, StorageError
from swivel.storage import LOCK, FolderLock, create_folder, hold_folder, open_folder, scratch_folder, sweep_folder
from swivel.storage import lock as locking
from swivel.storage import processes as locks

HOLDER = """
import sys
from swivel.storage import create_folder
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
        with pytest.raises(FolderLocked, match=f"process {holder.pid} on {socket.gethostname()} is writing it; wait"):
            take(tmp_path)
        assert (tmp_path / LOCK).exists()
    take(tmp_path)


def test_lock_of_a_killed_process_is_left_behind_and_does_not_count(tmp_path: Path) -> None:
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


def test_lock_object_that_is_held_cannot_be_taken_again(tmp_path: Path) -> None:
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
        "[]",
        '{"pid": 1}',
        json.dumps({"pid": os.getpid(), "host": socket.gethostname()}),
        json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}),
        json.dumps({"pid": os.getpid(), "host": "another.example"}),
        "x" * 10_000,
    ],
    ids=[
        "nothing",
        "half",
        "list",
        "no host",
        "a process of the same number",
        "a dead process",
        "another host",
        "long",
    ],
)
def test_file_that_was_left_behind_does_not_count_whatever_it_says(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    take(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "host": "y"}'])
def test_holder_that_has_not_signed_yet_keeps_its_lock(tmp_path: Path, content: str) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    (tmp_path / LOCK).write_text(content)
    with pytest.raises(FolderLocked, match="another process is writing it"):
        take(tmp_path)
    lock.release()


def test_file_that_goes_between_opening_and_locking_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[int] = []

    def lock_late(handle: int) -> bool:
        if not locked:  # Its holder gives it back just now, and then somebody else makes a new one.
            (tmp_path / LOCK).unlink()
            (tmp_path / "other").write_text("")
            (tmp_path / "other").rename(tmp_path / LOCK)
        elif len(locked) == 1:  # once more, and nobody makes one
            (tmp_path / LOCK).unlink()
        locked.append(handle)
        return locks.lock_file(handle)

    monkeypatch.setattr(locking, "lock_file", lock_late)
    take(tmp_path)
    assert len(locked) == 4  # the last time to see whether the lock holds


def test_lock_that_always_goes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderLock, "_is_at_path", lambda self, handle: False)
    with pytest.raises(FolderLocked, match="other processes keep taking its lock; try again"):
        take(tmp_path)


def test_lock_of_the_next_holder_is_not_removed(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    (tmp_path / LOCK).unlink()  # by hand
    second.acquire()
    first.release()
    with pytest.raises(FolderLocked):
        take(tmp_path)
    second.release()


def test_file_systems_without_locks_are_written_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, is_held: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "_set_lock", refuse)
    take(tmp_path)


def test_lock_that_fails_for_another_reason_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int, is_held: bool) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(locks, "_set_lock", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        take(tmp_path)


def test_who_holds_a_folder_may_create_it(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        with create_folder(tmp_path, "example") as writer:
            writer.finish(config={}, inputs={}, facts={})
        assert (tmp_path / LOCK).exists()
    assert not (tmp_path / LOCK).exists()
    assert open_folder(tmp_path, "example").manifest.stage == "example"


def test_folder_that_is_held_refuses_everybody_else(tmp_path: Path) -> None:
    refused: list[str] = []

    def intrude() -> None:
        for enter in (hold_folder(tmp_path), create_folder(tmp_path, "example")):
            with pytest.raises(FolderLocked) as caught, enter:
                pass
            refused.append(str(caught.value))

    with hold_folder(tmp_path):
        with pytest.raises(FolderLocked), hold_folder(tmp_path):
            pass
        thread = threading.Thread(target=intrude)  # of this process, and not called by who holds it
        thread.start()
        thread.join()
    assert refused == [f"{tmp_path}: process {os.getpid()} on {socket.gethostname()} is writing it; wait for it"] * 2


def test_folder_that_was_held_is_locked_by_whoever_creates_it_next(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        pass
    with create_folder(tmp_path, "example"), pytest.raises(FolderLocked):
        take(tmp_path)


def test_folder_that_was_made_to_be_held_is_gone_when_nothing_is_in_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="oops"), hold_folder(tmp_path / "new"):
        raise ValueError("oops")
    assert not (tmp_path / "new").exists()


SCRATCHES = [f"scratch-{storage.fingerprint(socket.gethostname())[:8]}-{os.getpid()}-x", "scratch-00000000-1-y"]


def leave_scratch(folder: Path) -> None:
    for name in SCRATCHES:  # a process whose number somebody else has now; one of a host that may be gone
        (folder / name).mkdir()
        (folder / name / "runs").write_text("x")


def test_scratch_of_the_dead_goes_whoever_has_their_number_now(tmp_path: Path) -> None:
    leave_scratch(tmp_path)
    with hold_folder(tmp_path), storage.scratch_folder(tmp_path) as mine, create_folder(tmp_path, "example"):
        assert {file.name for file in tmp_path.iterdir()} == {LOCK, mine.name}


def test_scratch_stays_where_a_file_system_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_scratch(tmp_path)

    def refuse(handle: int, is_held: bool) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "_set_lock", refuse)
    with hold_folder(tmp_path):
        assert {file.name for file in tmp_path.iterdir()} == {LOCK, *SCRATCHES}


def test_what_a_killed_process_left_in_a_finished_folder_goes(tmp_path: Path) -> None:
    with create_folder(tmp_path / "done", "example") as folder:
        folder.finish(config={}, inputs={}, facts={})
    (tmp_path / "done" / "scratch-1-2-x").mkdir()
    (tmp_path / "done" / "lock").write_text("{}")
    sweep_folder(tmp_path / "done")
    assert [file.name for file in (tmp_path / "done").iterdir()] == ["manifest.json"]


def test_what_somebody_is_writing_is_not_swept(tmp_path: Path) -> None:
    with hold_folder(tmp_path), scratch_folder(tmp_path) as scratch:
        thread = threading.Thread(target=sweep_folder, args=(tmp_path,))  # another, as far as the lock goes
        thread.start()
        thread.join(30)
        assert scratch.exists()
