"""Checkpoints: parameters, state of the optimizer, plan and position in the schedule, saved and restored exactly.

Checkpoints alternate between two folders (slots), so that writing one never endangers the previous one, and a damaged
checkpoint costs one interval.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import DamagedFolder, FolderExists, StorageError, clear_errors
from swivel.runtime.progress import SILENT, Progress
from swivel.storage.files import create_folder
from swivel.storage.lock import LOCK, is_temporary, remove_tree, sweep_folder
from swivel.storage.manifest import MANIFEST, Folder, fingerprint, open_folder
from swivel.training.objective import Loss

STAGE = "checkpoint"
SLOTS = ("checkpoint-1", "checkpoint-2")
DONE = "done.npy"
# All files of a slot, also of one that is being written or removed. Folders with others are of other tools.
FILES = {MANIFEST, LOCK, DONE, "rows.npy", "rows_accumulators.npy", "columns.npy", "columns_accumulators.npy"}


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Position in the schedule, and the losses so far."""

    epochs: int = 0  # complete epochs
    saved: int = 0  # checkpoints written before
    loss: Loss = field(default_factory=Loss)  # of the current epoch
    history: tuple[Loss, ...] = ()  # of each complete epoch
    initial: float = 0.0  # mean loss of observed cells with the initial vectors; 0: not known yet
    seconds: float = 0.0  # spent training


# Everything that is needed to resume a run: the position in the schedule, which blocks (row block, column block) were
# trained in the current epoch, the parameters by name, and the plan as it was saved.
Checkpoint = tuple[TrainingState, NDArray[np.bool_], dict[str, NDArray[np.float32]], dict[str, Any]]


def saved_bytes(folder: Path | None) -> int:
    """Return the size of the existing checkpoints, which will be overwritten."""
    if folder is None:
        return 0
    with clear_errors(folder):
        return sum(file.stat().st_size for slot in SLOTS for file in (folder / slot).glob("*.npy"))


def remove_checkpoints(folder: Path) -> None:
    """Remove both checkpoints of a completed run."""
    for name in SLOTS:
        if _is_slot(folder / name):
            remove_tree(folder / name)


def _is_slot(path: Path) -> bool:
    """Return whether a folder is a checkpoint, or a part of one."""
    try:
        return all(file.name in FILES or is_temporary(file.name) for file in path.iterdir())
    except OSError:
        return False


def _open_slots(folder: Path, problems: list[str]) -> Iterator[Folder]:
    """Yield the checkpoints in a folder, of any run; append why others cannot be opened to `problems`."""
    for path in (folder / name for name in SLOTS):
        try:
            if path.exists():
                yield open_folder(path, STAGE)
        except (StorageError, OSError) as error:
            problems.append(_without_remedy(error))


def read_progress(folder: Path) -> dict[str, Any] | None:
    """Return the epochs and steps that the unfinished run in a folder has saved, and its settings; None without one."""
    newest = -1
    progress = None
    for slot in _open_slots(folder, []):
        with contextlib.suppress(StorageError, OSError, TypeError, ValueError, KeyError, AttributeError):  # damaged
            state, done = _read_state(slot), slot.array(DONE)
            epochs = int(slot.manifest.config["plan"]["epochs"])
            settings = slot.manifest.config["provenance"].get("config", {})
            if state.saved > newest:
                progress = {
                    "epochs": f"{state.epochs:,} of {epochs:,}",
                    "steps": f"{state.epochs * done.size + int(done.sum()):,} of {epochs * done.size:,}",
                    "saved": slot.path,
                    "settings": {"train": settings},
                }
                newest = state.saved
    return progress


def sweep_checkpoints(folder: Path, provenance: Mapping[str, Any]) -> None:
    """Remove what a process that was killed after the end of this run left of it.

    The checkpoints of another run are kept: it replaces the result when it is resumed.
    """
    run = fingerprint(provenance)
    finished = [slot.path.name for slot in _open_slots(folder, []) if slot.manifest.inputs.get("run") == run]
    # A slot without a manifest was partly removed: no run can resume from it.
    finished += [name for name in SLOTS if _is_slot(folder / name) and not (folder / name / MANIFEST).exists()]
    sweep_folder(folder, *finished)


def refuse_other_run(folder: Path, provenance: Mapping[str, Any]) -> None:
    """Raise FolderExists if a folder has checkpoints of another run only, or of another tool, which would be lost."""
    for path in (folder / name for name in SLOTS):
        if path.exists() and not _is_slot(path):
            raise FolderExists(
                f"{path}: is not a checkpoint that Swivel wrote; choose another folder, or pass overwrite=True"
            )
    manifests = [slot.manifest for slot in _open_slots(folder, [])]
    if not manifests or fingerprint(provenance) in [manifest.inputs.get("run") for manifest in manifests]:
        return

    what = "with other settings"
    other = manifests[0].config.get("provenance")
    if isinstance(other, dict):
        what = _describe_run(other, provenance)
    raise FolderExists(
        f"{folder}: holds an unfinished run {what}; use the same settings to resume it, choose another folder, or pass "
        "overwrite=True"
    )


def _describe_run(other: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    """Return how a saved run, with another provenance, differs from the one with this provenance."""
    if other.get("matrix") != provenance["matrix"]:
        return "of another matrix"
    if other.get("init") != provenance.get("init"):
        return "with another init" if other.get("init") else "without init"

    differing = []
    for name, value in provenance["config"].items():
        before = dict(other.get("config", {})).get(name)
        if before != value:
            differing.append(f"{name} {'unset' if before is None else before}")
    return f"with {', '.join(differing)}" if differing else "of another version of Swivel"


@dataclass(slots=True)
class CheckpointStore:
    """The checkpoints of one run, which has this provenance. Those of other runs are ignored."""

    folder: Path | None  # None: there are no checkpoints
    provenance: Mapping[str, Any]
    minutes: float = 0.0  # between two checkpoints; 0: none is due
    progress: Progress = SILENT
    last: float = 0.0  # time.monotonic() of the last checkpoint

    def is_due(self) -> bool:
        """Return whether the interval since the last checkpoint has passed."""
        return self.folder is not None and self.minutes > 0 and time.monotonic() - self.last >= 60 * self.minutes

    def save(
        self,
        state: TrainingState,
        done: NDArray[np.bool_],
        arrays: Mapping[str, NDArray[np.float32]],
        plan: Mapping[str, Any],
    ) -> TrainingState:
        """Write a checkpoint over the older of the two, and return the state to continue with, which counts it."""
        assert self.folder is not None
        with create_folder(self.folder / SLOTS[state.saved % len(SLOTS)], STAGE, overwrite=True) as writer:
            for name, array in arrays.items():
                writer.write_array(f"{name}.npy", array)
            writer.write_array(DONE, done)

            config = {"plan": dict(plan), "provenance": dict(self.provenance)}
            writer.finish(config=config, inputs={"run": fingerprint(self.provenance)}, facts=asdict(state))

        self.last = time.monotonic()
        return replace(state, saved=state.saved + 1)

    def load(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None; a message names damaged ones, which are skipped."""
        if self.folder is None:
            return None
        slots: list[tuple[TrainingState, Folder]] = []
        problems: list[str] = []
        for slot in _open_slots(self.folder, problems):
            if slot.manifest.inputs.get("run") == fingerprint(self.provenance):
                try:
                    slots.append((_read_state(slot), slot))
                except DamagedFolder as error:
                    problems.append(_without_remedy(error))

        checkpoint = None
        outcome = "no checkpoint is left, training starts from the beginning"

        for state, slot in sorted(slots, key=lambda each: -each[0].saved):
            try:
                checkpoint = _read_checkpoint(state, slot)
                outcome = f"using {slot.path.name}"
                break
            except (StorageError, OSError) as error:
                problems.append(_without_remedy(error))

        if problems:
            self.progress.message(f"{'; '.join(problems)}: {outcome}")
        return checkpoint


def _without_remedy(error: Exception) -> str:
    return str(error).partition(";")[0]  # The remedy after the semicolon is not needed: another checkpoint is used.


def _read_state(slot: Folder) -> TrainingState:
    """Return the training state in the manifest of a checkpoint."""
    try:
        fields = dict(slot.manifest.facts)
        fields["loss"] = Loss(**fields["loss"])
        fields["history"] = tuple(Loss(**loss) for loss in fields["history"])
        state = TrainingState(**fields)

        # The manifest is JSON: a value may have any type.
        if not all(type(count) is int and count >= 0 for count in (state.epochs, state.saved)):
            raise ValueError(f"{state.epochs!r} epochs after {state.saved!r} checkpoints")
        numbers = [state.seconds, state.initial]
        for loss in (state.loss, *state.history):
            numbers += astuple(loss)
        if not all(type(number) in (int, float) for number in numbers):
            raise ValueError("a loss is not a number")
        return state
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # from an older version, or edited by hand
        raise DamagedFolder(f"{slot.path}: the manifest has no valid training state ({error})") from error


def _read_checkpoint(state: TrainingState, slot: Folder) -> Checkpoint:
    slot.verify()
    plan = slot.manifest.config.get("plan")
    plan = plan if isinstance(plan, dict) else {}  # The manifest is JSON: a value may have any type.
    done = np.array(slot.array(DONE))
    arrays = {Path(part).stem: slot.array(part) for part in slot.manifest.parts if part != DONE}

    problem = ""
    if done.dtype != np.bool_ or done.ndim != 2:
        problem = f"{DONE} must be a boolean array of 2 dimensions, got {done.dtype} of {done.ndim}"
    elif not all(array.dtype in (np.float32, np.float64) for array in arrays.values()):
        problem = "parameters must be float32 or float64"
    elif done.shape != (plan.get("row_blocks"), plan.get("column_blocks")):
        problem = f"{DONE} has {done.shape} blocks, and the plan has others"
    if problem:
        raise DamagedFolder(f"{slot.path}: {problem}")
    return state, done, arrays, plan
