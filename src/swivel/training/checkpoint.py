"""Save and resume, exactly: parameters, Adagrad's accumulators, and where in the schedule a run is.

Two slots take turns, so that a checkpoint being written never endangers the last good one, and a damaged one costs one
interval. The plan of a run (what was chosen by measuring) is written before its first step, so that a resumed run never
chooses again; each checkpoint has it, too.
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
    """How far a run is, and the losses so far."""

    epochs: int = 0  # complete epochs
    saved: int = 0  # how many checkpoints came before
    loss: Loss = field(default_factory=Loss)  # of the epoch that is under way
    history: tuple[Loss, ...] = ()  # of each complete pass
    seconds: float = 0.0  # spent training


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state."""

    place: TrainingState
    done: NDArray[np.bool_]  # (row blocks, column blocks): those trained in the epoch that is under way
    arrays: Mapping[str, NDArray[np.float32]]
    plan: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """The newest whole checkpoint of a run, where there is one, and why others were passed over before it."""

    checkpoint: Checkpoint | None = None
    slot: str = ""
    passed_over: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say which checkpoint is taken and why, for people; nothing where none was passed over."""
        if not self.passed_over:
            return ""
        taken = f"{self.slot} is taken" if self.checkpoint else "no checkpoint is left, all begins again"
        return f"{'; '.join(self.passed_over)}: {taken}"


def save_plan(folder: Path, identity: str, plan: Mapping[str, Any]) -> None:
    """Write down what was chosen for a run."""
    write_file(folder / PLAN, seal({"identity": identity, "plan": dict(plan)}))


def load_plan(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return what was chosen for the run of that identity, or None where it has not begun."""
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
    slot = folder / SLOTS[checkpoint.place.saved % len(SLOTS)]
    with create_folder(slot, STAGE, overwrite=True) as writer:
        for name, array in checkpoint.arrays.items():
            writer.write_array(f"{name}.npy", array)
        writer.write_array(DONE, checkpoint.done)
        config = {"plan": dict(checkpoint.plan)}
        writer.finish(config=config, inputs={"run": identity}, facts=asdict(checkpoint.place))


def saved_bytes(folder: Path) -> int:
    """Return what both checkpoints take already: they are written over."""
    with clear_errors(folder):
        return sum(file.stat().st_size for slot in SLOTS for file in (folder / slot).glob("*.npy"))


def find_checkpoint(folder: Path, identity: str, blocks: tuple[int, ...] | None = None) -> FoundCheckpoint:
    """Return the newest whole checkpoint of the run of that identity, of so many blocks where that is said.

    A damaged one costs one interval.
    """
    slots, passed_over = _open_slots(folder, identity)
    for _, slot in slots:
        try:
            checkpoint = _read_checkpoint(slot)
            if blocks is not None and checkpoint.done.shape != blocks:
                raise DamagedFolder(f"{slot.path}: of {checkpoint.done.shape} blocks, and the run has {blocks}")
            return FoundCheckpoint(checkpoint, slot.path.name, tuple(passed_over))
        except (StorageError, OSError) as error:
            passed_over.append(_without_remedy(error))
    return FoundCheckpoint(passed_over=tuple(passed_over))


def _find_plan(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the plan that the newest checkpoint of a run has; its arrays are not read."""
    slots, _ = _open_slots(folder, identity)
    plans = [slot.manifest.config.get("plan") for _, slot in slots]
    return next((plan for plan in plans if isinstance(plan, dict) and plan), None)


def _open_slots(folder: Path, identity: str) -> tuple[list[tuple[TrainingState, Folder]], list[str]]:
    """Return the checkpoints of a run that have a manifest, the newest first, and what is wrong with the others."""
    found: list[tuple[TrainingState, Folder]] = []
    passed_over: list[str] = []
    for name in SLOTS:
        if not (folder / name).exists():
            continue
        try:
            slot = open_folder(folder / name, STAGE)
            if slot.manifest.inputs.get("run") == identity:
                found.append((_read_place(slot), slot))
        except (StorageError, OSError) as error:
            passed_over.append(_without_remedy(error))
    return sorted(found, key=lambda each: -each[0].saved), passed_over


def _without_remedy(error: Exception) -> str:
    return str(error).partition(";")[0]  # How to mend it is no matter: there is another.


def _read_place(slot: Folder) -> TrainingState:
    try:
        return place_from(slot.manifest.facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # of an older version, or written by hand
        raise DamagedFolder(f"{slot.path}: does not say how far the run was ({error})") from error


def _read_checkpoint(slot: Folder) -> Checkpoint:
    slot.verify()
    arrays = {Path(part).stem: slot.array(part) for part in slot.manifest.parts if part != DONE}
    checkpoint = Checkpoint(_read_place(slot), np.array(slot.array(DONE)), arrays, slot.manifest.config.get("plan", {}))
    try:
        _check_arrays(checkpoint)
    except ValueError as error:
        raise DamagedFolder(f"{slot.path}: {error}") from error
    return checkpoint


def place_from(facts: Mapping[str, Any]) -> TrainingState:
    """Return a place as `dataclasses.asdict` wrote it down."""
    fields = dict(facts)
    fields["loss"] = Loss(**fields["loss"])
    fields["history"] = tuple(Loss(**loss) for loss in fields["history"])
    place = TrainingState(**fields)
    numbers = [place.seconds, *(value for loss in (place.loss, *place.history) for value in astuple(loss))]
    if not all(type(count) is int and count >= 0 for count in (place.epochs, place.saved)):
        raise ValueError(f"{place.epochs!r} epochs after {place.saved!r} checkpoints")
    if not all(type(number) in (int, float) for number in numbers):
        raise ValueError("losses that are no numbers")
    return place


def _check_arrays(checkpoint: Checkpoint) -> None:
    if checkpoint.done.dtype != np.bool_ or checkpoint.done.ndim != 2:
        raise ValueError(f"blocks that are done as {checkpoint.done.dtype} of {checkpoint.done.ndim} dimensions")
    if not all(array.dtype in (np.float32, np.float64) for array in checkpoint.arrays.values()):
        raise ValueError("parameters that are neither float32 nor float64")


def remove_checkpoints(folder: Path) -> None:
    """Remove the plan and both checkpoints of a run that has ended."""
    for name in (*SLOTS, PLAN):
        remove_tree(folder / name)


@dataclass(slots=True)
class CheckpointStore:
    """Saves the state of a run at intervals."""

    folder: Path
    identity: str
    minutes: float
    progress: Progress
    last: float = 0.0

    def find_plan(self) -> dict[str, Any] | None:
        """Return the plan of the run; where its file is damaged or gone, that of a checkpoint."""
        damage = ""
        try:
            plan = load_plan(self.folder, self.identity)
        except DamagedFolder as error:
            plan, damage = None, str(error)
        if plan is None:
            plan = _find_plan(self.folder, self.identity)
        if damage:
            taken = "that of a checkpoint is taken" if plan else "there is no checkpoint either, all begins again"
            self.progress.message(f"{damage}: {taken}")
        return plan or None

    def keep_plan(self, plan: Mapping[str, Any]) -> None:
        """Write a plan down."""
        save_plan(self.folder, self.identity, plan)

    def is_due(self) -> bool:
        """Return whether an interval has passed."""
        return self.minutes > 0 and time.monotonic() - self.last >= 60 * self.minutes

    def save(self, checkpoint: Checkpoint) -> TrainingState:
        """Write a checkpoint; return the place from which the run goes on."""
        save_checkpoint(self.folder, self.identity, checkpoint)
        self.last = time.monotonic()
        return replace(checkpoint.place, saved=checkpoint.place.saved + 1)

    def load(self, blocks: tuple[int, ...]) -> Checkpoint | None:
        """Return the newest whole checkpoint of so many blocks, and say which that is where one was passed over."""
        found = find_checkpoint(self.folder, self.identity, blocks)
        if found.passed_over:
            self.progress.message(found.describe())
        return found.checkpoint
