"""Save and resume, exactly: parameters, Adagrad's accumulators, and where in the schedule a run is.

Two slots take turns, so that a checkpoint being written never endangers the last good one. The plan of a run (what
was chosen by measuring) is written before its first step, so that a resumed run never chooses again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import DamagedFolder, StorageError
from swivel.objective import Loss
from swivel.storage import create_folder, open_folder, remove_tree, write_file

STAGE = "checkpoint"
SLOTS = ("checkpoint-1", "checkpoint-2")
PLAN = "plan.json"
DONE = "done.npy"


@dataclass(frozen=True, slots=True)
class Place:
    """How far a run is, and the losses so far."""

    passes: int = 0  # complete passes
    saved: int = 0  # how many checkpoints came before
    loss: Loss = field(default_factory=Loss)  # of the pass that is under way
    history: tuple[Loss, ...] = ()  # of each complete pass
    seconds: float = 0.0  # spent training


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state."""

    place: Place
    done: NDArray[np.bool_]  # (row blocks, column blocks): those trained in the pass that is under way
    arrays: Mapping[str, NDArray[np.float32]]


def save_plan(folder: Path, identity: str, plan: Mapping[str, Any]) -> None:
    """Write down what was chosen for a run."""
    write_file(folder / PLAN, json.dumps({"identity": identity, "plan": dict(plan)}, indent=1).encode())


def load_plan(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return what was chosen for the run of that identity, or None where it has not begun."""
    try:
        saved = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return dict(saved["plan"]) if saved["identity"] == identity else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{folder / PLAN}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFolder(f"{folder / PLAN}: not a plan ({error}); remove {folder} to start again") from error


def save_checkpoint(
    folder: Path, identity: str, place: Place, done: NDArray[np.bool_], arrays: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write a checkpoint over the older of the two."""
    slot = folder / SLOTS[place.saved % len(SLOTS)]
    with create_folder(slot, STAGE, overwrite=True) as writer:
        for name, array in arrays.items():
            writer.write_array(f"{name}.npy", array)
        writer.write_array(DONE, done)
        writer.finish(config={}, inputs={"run": identity}, facts=asdict(place))


def load_checkpoint(folder: Path, identity: str) -> Checkpoint | None:
    """Return the newest whole checkpoint of the run of that identity; a damaged one costs one interval."""
    found: list[Checkpoint] = []
    for name in SLOTS:
        try:
            slot = open_folder(folder / name, STAGE)
            if slot.manifest.inputs.get("run") != identity:
                continue
            slot.verify()
            arrays = {Path(part).stem: slot.array(part) for part in slot.manifest.parts if part != DONE}
            checkpoint = Checkpoint(place_from(slot.manifest.facts), np.array(slot.array(DONE)), arrays)
            _check_arrays(checkpoint)
            found.append(checkpoint)
        except (StorageError, OSError, KeyError, TypeError, ValueError):  # The last three: not what was written.
            continue
    return max(found, key=lambda checkpoint: checkpoint.place.saved, default=None)


def place_from(facts: Mapping[str, Any]) -> Place:
    """Return a place as `dataclasses.asdict` wrote it down."""
    fields = dict(facts)
    fields["loss"] = Loss(**fields["loss"])
    fields["history"] = tuple(Loss(**loss) for loss in fields["history"])
    place = Place(**fields)
    numbers = [place.seconds, *(value for loss in (place.loss, *place.history) for value in astuple(loss))]
    if not all(type(count) is int and count >= 0 for count in (place.passes, place.saved)):
        raise ValueError(f"{place.passes!r} passes after {place.saved!r} checkpoints")
    if not all(type(number) in (int, float) for number in numbers):
        raise ValueError("losses that are no numbers")
    return place


def _check_arrays(checkpoint: Checkpoint) -> None:
    if checkpoint.done.dtype != np.bool_ or checkpoint.done.ndim != 2:
        raise ValueError(f"blocks that are done as {checkpoint.done.dtype} of {checkpoint.done.ndim} dimensions")
    if not all(array.dtype == np.float32 for array in checkpoint.arrays.values()):
        raise ValueError("parameters that are not float32")


def remove_checkpoints(folder: Path) -> None:
    """Remove the plan and both checkpoints of a run that has ended."""
    for name in (*SLOTS, PLAN):
        remove_tree(folder / name)
