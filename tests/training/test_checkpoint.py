"""Checkpoints: saving and loading, and what happens with damaged ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from message_recorder import MessageRecorder
from swivel.errors import FolderExists, FolderLocked
from swivel.storage.lock import FolderLock
from swivel.storage.manifest import seal, unseal
from swivel.training.checkpoint import (
    SLOTS,
    Checkpoint,
    CheckpointStore,
    TrainingState,
    refuse_other_run,
    remove_checkpoints,
    saved_bytes,
    sweep_checkpoints,
)
from swivel.training.objective import Loss


def make_arrays(value: float) -> dict[str, NDArray[np.float32]]:
    return {"rows": np.full((3, 2), value, np.float32), "columns": np.full((4, 2), -value, np.float32)}


RUN, OTHER = {"matrix": "a"}, {"matrix": "b"}
PLAN = {"row_blocks": 3, "column_blocks": 2, "epochs": 9}
DONE = np.array([[True, False], [False, True], [True, True]])


def load(folder: Path, run: dict[str, str] = RUN) -> tuple[Checkpoint | None, str]:
    """Return the checkpoint that is found, and the message about those that were skipped."""
    messages = MessageRecorder()
    found = CheckpointStore(folder, run, progress=messages).load()
    return found, "".join(messages.lines)


def save(folder: Path, run: dict[str, str], state: TrainingState, arrays: dict[str, NDArray[np.float32]]) -> None:
    following = CheckpointStore(folder, run).save(state, DONE, arrays, PLAN)
    assert following.saved == state.saved + 1


def save_two(folder: Path) -> None:
    for saved in (0, 1):
        save(folder, RUN, TrainingState(epochs=saved, saved=saved), make_arrays(saved))


def value_of(folder: Path) -> float | None:
    found, _ = load(folder)
    return None if found is None else float(found[2]["rows"][0, 0])


def test_loaded_checkpoint_equals_the_saved_one(tmp_path: Path) -> None:
    state = TrainingState(2, 5, Loss(1.5, 2, 0.1, 7), (Loss(9, 1, 1 / 3, 4), Loss(8, 1, 2, 4)), 12.5)
    arrays = {"rows": np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)}
    save(tmp_path, RUN, state, arrays)
    found, message = load(tmp_path)

    assert found is not None
    assert message == ""
    assert found[3] == PLAN
    assert found[0] == state
    assert found[1].tolist() == DONE.tolist()
    assert {name: array.tobytes() for name, array in found[2].items()} == {"rows": arrays["rows"].tobytes()}


def test_checkpoint_with_other_blocks_is_skipped_with_a_message(tmp_path: Path) -> None:
    save(tmp_path, RUN, TrainingState(saved=0), make_arrays(0))
    CheckpointStore(tmp_path, RUN).save(TrainingState(saved=1), np.zeros((9, 9), np.bool_), make_arrays(1), PLAN)
    found, message = load(tmp_path)
    assert found is not None
    assert found[0].saved == 0
    assert re.fullmatch(
        r"\S+checkpoint-2: done.npy has \(9, 9\) blocks, and the plan has others: using checkpoint-1", message
    )


def test_new_folder_has_no_checkpoint_and_no_plan(tmp_path: Path) -> None:
    assert load(tmp_path / "new") == (None, "")


def test_newest_checkpoint_is_used(tmp_path: Path) -> None:
    for saved in range(5):
        save(tmp_path, RUN, TrainingState(saved=saved), make_arrays(saved))
        assert value_of(tmp_path) == saved
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(SLOTS)


@pytest.mark.parametrize("damage", ["byte", "shorter", "missing", "no manifest", "half a manifest", "other fields"])
def test_damaged_newest_checkpoint_falls_back_to_the_older_one(tmp_path: Path, damage: str) -> None:
    save_two(tmp_path)
    slot = tmp_path / SLOTS[1]
    part, manifest = slot / "rows.npy", slot / "manifest.json"
    data = part.read_bytes()
    if damage == "byte":
        part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "shorter":
        part.write_bytes(data[:-1])
    elif damage == "missing":
        part.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_bytes(manifest.read_bytes()[:40])
    else:
        fields = unseal(manifest.read_bytes())
        fields["facts"]["turns"] = fields["facts"].pop("epochs")
        manifest.write_bytes(seal(fields))

    assert value_of(tmp_path) == 0
    assert re.fullmatch(r".*checkpoint-2.*: using checkpoint-1", load(tmp_path)[1])


def test_two_damaged_checkpoints_are_reported(tmp_path: Path) -> None:
    save_two(tmp_path)
    for name in SLOTS:
        (tmp_path / name / "rows.npy").write_bytes(b"")
    found, message = load(tmp_path)
    assert found is None
    outcome = "no checkpoint is left, training starts from the beginning"
    assert re.fullmatch(rf"\S+-1/rows\.npy: 0 bytes, .*; \S+-2/rows\.npy: .*: {outcome}", message)


def test_every_changed_byte_of_a_manifest_is_detected(tmp_path: Path) -> None:
    save_two(tmp_path)
    manifest = tmp_path / SLOTS[1] / "manifest.json"
    data = manifest.read_bytes()
    for place in range(0, len(data) - 4, 7):  # The last four are brackets and line ends.
        manifest.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert value_of(tmp_path) == 0, place


def test_error_while_writing_keeps_the_older_checkpoint(tmp_path: Path) -> None:
    save_two(tmp_path)
    broken = {**make_arrays(2), "columns": np.array([object()])}
    with pytest.raises(ValueError, match="Python objects"):
        save(tmp_path, RUN, TrainingState(saved=2), broken)
    assert value_of(tmp_path) == 1


def test_checkpoints_of_another_run_are_ignored(tmp_path: Path) -> None:
    save_two(tmp_path)
    assert load(tmp_path, OTHER) == (None, "")
    save(tmp_path, OTHER, TrainingState(saved=0), make_arrays(7))
    assert value_of(tmp_path) == 1


def test_slot_that_another_process_writes_is_rejected(tmp_path: Path) -> None:
    save_two(tmp_path)
    lock = FolderLock(tmp_path / SLOTS[0])
    lock.acquire()
    with pytest.raises(FolderLocked):
        save(tmp_path, RUN, TrainingState(saved=2), make_arrays(2))
    lock.release()


def test_removing_checkpoints_keeps_other_files(tmp_path: Path) -> None:
    save_two(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    remove_checkpoints(tmp_path)
    remove_checkpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_folders_of_other_tools_are_no_checkpoints(tmp_path: Path) -> None:
    model = tmp_path / SLOTS[0] / "pytorch_model.bin"
    model.parent.mkdir()
    model.write_bytes(b"mine")
    save(tmp_path, RUN, TrainingState(saved=1), make_arrays(1))
    remove_checkpoints(tmp_path)
    sweep_checkpoints(tmp_path, RUN)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [model]
    with pytest.raises(FolderExists, match=r"checkpoint-1: is not a checkpoint that Swivel wrote; choose another"):
        refuse_other_run(tmp_path, RUN)


def test_only_the_checkpoints_of_the_finished_run_are_swept(tmp_path: Path) -> None:
    save(tmp_path, RUN, TrainingState(), {"rows": np.ones((2, 2), np.float32)})
    sweep_checkpoints(tmp_path, OTHER)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    sweep_checkpoints(tmp_path, RUN)
    sweep_checkpoints(tmp_path, RUN)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_checkpoint_that_could_not_be_removed_is_swept_by_the_next_call(
    tmp_path: Path, is_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, RUN, TrainingState(), {"rows": np.ones((2, 2), np.float32)})
    if is_begun:  # and ended by a signal after the manifest
        with monkeypatch.context() as failing:
            failing.setattr("swivel.storage.lock.shutil.rmtree", lambda *_, **__: None)
            remove_checkpoints(tmp_path)
    assert (tmp_path / SLOTS[0] / "manifest.json").exists() is not is_begun
    assert (tmp_path / SLOTS[0] / "rows.npy").exists()
    sweep_checkpoints(tmp_path, RUN)
    assert not list(tmp_path.iterdir())


def test_saved_bytes_is_the_size_of_the_checkpoints(tmp_path: Path) -> None:
    assert saved_bytes(tmp_path) == 0
    save(tmp_path, RUN, TrainingState(), {"rows": np.ones((30, 20), np.float32)})
    assert saved_bytes(tmp_path) >= 30 * 20 * 4
