"""Checkpoints: parameters, Adagrad accumulators and the position in the schedule, saved and restored exactly.

Checkpoints alternate between two folders (slots), so that writing one never endangers the previous one, and a damaged
checkpoint costs one interval. The plan of a run (what was chosen by measuring) is written before the first step, so
that a resumed run uses the same plan; each checkpoint contains a copy of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import DamagedFolder, StorageError, clear_errors
from swivel.runtime.progress import Progress
from swivel.storage import Folder, create_folder, open_folder, remove_tree, seal, unseal, write_file
from swivel.training.objective import Loss

STAGE = "checkpoint"
SLOTS = ("checkpoint-1", "checkpoint-2")
PLAN = "plan.json"
DONE = "done.npy"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Position in the schedule, and the losses so far."""

    epochs: int = 0  # complete epochs
    saved: int = 0  # checkpoints written before
    loss: Loss = field(default_factory=Loss)  # of the current epoch
    history: tuple[Loss, ...] = ()  # of each complete epoch
    seconds: float = 0.0  # spent training


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that is needed to resume a run."""

    state: TrainingState
    done: NDArray[np.bool_]  # (row blocks, column blocks): those trained in the current epoch
    arrays: Mapping[str, NDArray[np.float32]]
    plan: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """The newest intact checkpoint of a run, if there is one, and the problems of those that were skipped."""

    checkpoint: Checkpoint | None = None
    slot: str = ""
    skipped: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return a message about the skipped checkpoints and the one that is used; empty if none was skipped."""
        if not self.skipped:
            return ""
        outcome = (
            f"using {self.slot}" if self.checkpoint else "no checkpoint is left, training starts from the beginning"
        )
        return f"{'; '.join(self.skipped)}: {outcome}"


def save_plan(folder: Path, identity: str, plan: Mapping[str, Any]) -> None:
    """Write the plan of the run with this identity."""
    write_file(folder / PLAN, seal({"identity": identity, "plan": dict(plan)}))


def load_plan(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the saved plan of the run with this identity, or None if there is none."""
    file = folder / PLAN
    with clear_errors(file):
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None

    try:
        saved = unseal(data)
        if saved.keys() != {"identity", "plan"}:
            raise ValueError(f"fields {', '.join(saved)}")
        return dict(saved["plan"]) if saved["identity"] == identity else None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFolder(f"{file}: not a plan ({error})") from error


def save_checkpoint(folder: Path, identity: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint over the older of the two."""
    slot = folder / SLOTS[checkpoint.state.saved % len(SLOTS)]
    with create_folder(slot, STAGE, overwrite=True) as writer:
        for name, array in checkpoint.arrays.items():
            writer.write_array(f"{name}.npy", array)
        writer.write_array(DONE, checkpoint.done)

        config = {"plan": dict(checkpoint.plan)}
        writer.finish(config=config, inputs={"run": identity}, facts=asdict(checkpoint.state))


def saved_bytes(folder: Path) -> int:
    """Return the size of the existing checkpoints, which will be overwritten."""
    with clear_errors(folder):
        return sum(file.stat().st_size for slot in SLOTS for file in (folder / slot).glob("*.npy"))


def find_checkpoint(folder: Path, identity: str, blocks: tuple[int, ...] | None = None) -> FoundCheckpoint:
    """Return the newest intact checkpoint of the run with this identity.

    Damaged checkpoints are skipped, and so are those with another number of blocks than `blocks`, if given.
    """
    slots, skipped = _open_slots(folder, identity)

    for _, slot in slots:
        try:
            checkpoint = _read_checkpoint(slot)
            if blocks is not None and checkpoint.done.shape != blocks:
                raise DamagedFolder(f"{slot.path}: has {checkpoint.done.shape} blocks, but the run has {blocks}")
            return FoundCheckpoint(checkpoint, slot.path.name, tuple(skipped))
        except (StorageError, OSError) as error:
            skipped.append(_without_remedy(error))

    return FoundCheckpoint(skipped=tuple(skipped))


def _find_plan(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the plan in the newest checkpoint of a run, without reading its arrays."""
    slots, _ = _open_slots(folder, identity)
    for _, slot in slots:
        plan = slot.manifest.config.get("plan")
        if isinstance(plan, dict) and plan:
            return plan
    return None


def _open_slots(folder: Path, identity: str) -> tuple[list[tuple[TrainingState, Folder]], list[str]]:
    """Return the checkpoints of a run that have a manifest, newest first, and the problems of the others."""
    slots: list[tuple[TrainingState, Folder]] = []
    skipped: list[str] = []

    for name in SLOTS:
        if not (folder / name).exists():
            continue
        try:
            slot = open_folder(folder / name, STAGE)
            if slot.manifest.inputs.get("run") == identity:
                slots.append((_read_state(slot), slot))
        except (StorageError, OSError) as error:
            skipped.append(_without_remedy(error))

    return sorted(slots, key=lambda each: -each[0].saved), skipped


def _without_remedy(error: Exception) -> str:
    return str(error).partition(";")[0]  # The remedy after the semicolon is not needed: another checkpoint is used.


def _read_state(slot: Folder) -> TrainingState:
    try:
        return state_from_dict(slot.manifest.facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # from an older version, or edited by hand
        raise DamagedFolder(f"{slot.path}: the manifest has no valid training state ({error})") from error


def _read_checkpoint(slot: Folder) -> Checkpoint:
    slot.verify()
    arrays = {Path(part).stem: slot.array(part) for part in slot.manifest.parts if part != DONE}
    checkpoint = Checkpoint(_read_state(slot), np.array(slot.array(DONE)), arrays, slot.manifest.config.get("plan", {}))

    try:
        _check_arrays(checkpoint)
    except ValueError as error:
        raise DamagedFolder(f"{slot.path}: {error}") from error
    return checkpoint


def state_from_dict(saved: Mapping[str, Any]) -> TrainingState:
    """Return a training state from the form that `dataclasses.asdict` gives it.

    Raises
    ------
    KeyError, TypeError, ValueError
        If `saved` is not such a form.
    """
    fields = dict(saved)
    fields["loss"] = Loss(**fields["loss"])
    fields["history"] = tuple(Loss(**loss) for loss in fields["history"])
    state = TrainingState(**fields)

    # The manifest is JSON: a value may have any type.
    if not all(type(count) is int and count >= 0 for count in (state.epochs, state.saved)):
        raise ValueError(f"{state.epochs!r} epochs after {state.saved!r} checkpoints")
    numbers = [state.seconds]
    for loss in (state.loss, *state.history):
        numbers += astuple(loss)
    if not all(type(number) in (int, float) for number in numbers):
        raise ValueError("a loss is not a number")
    return state


def _check_arrays(checkpoint: Checkpoint) -> None:
    done = checkpoint.done
    if done.dtype != np.bool_ or done.ndim != 2:
        raise ValueError(f"{DONE} must be a boolean array of 2 dimensions, got {done.dtype} of {done.ndim}")
    if not all(array.dtype in (np.float32, np.float64) for array in checkpoint.arrays.values()):
        raise ValueError("parameters must be float32 or float64")


def remove_checkpoints(folder: Path) -> None:
    """Remove the plan and both checkpoints of a completed run."""
    for name in (*SLOTS, PLAN):
        remove_tree(folder / name)


@dataclass(slots=True)
class CheckpointStore:
    """The plan and the checkpoints of one run, saved at intervals."""

    folder: Path
    identity: str
    minutes: float
    progress: Progress
    last: float = 0.0  # time.monotonic() of the last checkpoint

    def find_plan(self) -> dict[str, Any] | None:
        """Return the plan of the run, from a checkpoint if its file is damaged or missing."""
        damage = ""
        plan = None
        try:
            plan = load_plan(self.folder, self.identity)
        except DamagedFolder as error:
            damage = str(error)

        if plan is None:
            plan = _find_plan(self.folder, self.identity)
        if damage:
            outcome = (
                "using the plan in the checkpoint" if plan else "no checkpoint, training starts from the beginning"
            )
            self.progress.message(f"{damage}: {outcome}")
        return plan or None

    def save_plan(self, plan: Mapping[str, Any]) -> None:
        """Write the plan of the run."""
        save_plan(self.folder, self.identity, plan)

    def is_due(self) -> bool:
        """Return whether the interval since the last checkpoint has passed."""
        return self.minutes > 0 and time.monotonic() - self.last >= 60 * self.minutes

    def save(self, checkpoint: Checkpoint) -> TrainingState:
        """Write a checkpoint and return the state to continue with, which counts it."""
        save_checkpoint(self.folder, self.identity, checkpoint)
        self.last = time.monotonic()
        return replace(checkpoint.state, saved=checkpoint.state.saved + 1)

    def load(self, blocks: tuple[int, ...]) -> Checkpoint | None:
        """Return the newest intact checkpoint with this number of blocks; report those that were skipped."""
        found = find_checkpoint(self.folder, self.identity, blocks)
        if found.skipped:
            self.progress.message(found.describe())
        return found.checkpoint
