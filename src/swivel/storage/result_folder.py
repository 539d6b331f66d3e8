"""Folders of results: a folder of the user's or a temporary one, and whether its result is already there."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from swivel.errors import FolderExists, FolderLocked, StorageError, clear_errors
from swivel.runtime.options import RunOptions
from swivel.storage import MANIFEST, read_manifest, remove_tree, sweep_folder
from swivel.storage.lock import LOCK, lock_folder
from swivel.storage.overlap import refuse_overlap

# In place of the fingerprint of a source that can be read only once.
TEXT_IN_MEMORY, STANDARD_INPUT, PIPE = "iterable", "standard input", "pipe"
READ_ONCE = {TEXT_IN_MEMORY, STANDARD_INPUT, PIPE}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """The folder that a result is written to."""

    path: Path
    is_temporary: bool

    def keep(self, result: Result) -> Result:
        """Return a result that reads from the folder; a temporary folder is removed together with the result."""
        if self.is_temporary:
            weakref.finalize(result, remove_tree, self.path)
        return result


@contextmanager
def folder_or_temporary(out: str | Path | None, inputs: Iterable[Path | None]) -> Iterator[ResultFolder]:
    """Yield the folder `out`, or a temporary one, which is removed if the block raises.

    Raises ConfigError if the result would replace one of the inputs.
    """
    if out is not None:
        refuse_overlap([Path(out)], inputs)
        yield ResultFolder(Path(out), is_temporary=False)
        return

    with clear_errors("the temporary folder"):
        path = Path(tempfile.mkdtemp(prefix="swivel-"))
    try:
        yield ResultFolder(path, is_temporary=True)
    except BaseException:
        remove_tree(path)
        raise


def refuse_locked(path: Path) -> None:
    """Raise FolderLocked if another process is writing to a folder; call this before inputs are read."""
    if (path / LOCK).exists():
        try:
            with lock_folder(path):
                pass  # A killed process left the file.
        except FolderLocked:
            raise
        except StorageError:
            pass  # A finished folder may be read-only.


def is_done(path: Path, stage: str, provenance: Mapping[str, Any], options: RunOptions) -> bool:
    """Return whether a folder holds the result of exactly these inputs and settings.

    Raises FolderExists if it holds another result, or one whose inputs cannot be compared because they are not known.
    """
    if options.overwrite or not (path / MANIFEST).exists():
        return False

    sweep_folder(path)
    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise FolderExists(f"{path}: already holds {manifest.stage}; choose another folder or pass overwrite=True")

    # These have no fingerprint, so the folder may be the result of another text.
    if READ_ONCE & set(provenance["inputs"].values()):
        raise FolderExists(
            f"{path}: finished already, and text in memory or from a pipe cannot be compared with what the folder was "
            "made from; choose another folder or pass overwrite=True"
        )
    if provenance["inputs"] and {"config": manifest.config, "inputs": manifest.inputs} == provenance:
        options.progress.message(f"{path}: finished already, nothing to do")
        return True

    differing = [
        f"{part}.{name}"
        for part, values in provenance["config"].items()
        for name, value in values.items()
        if value != manifest.config.get(part, {}).get(name)
    ]
    what = f"with other settings ({', '.join(differing)})" if differing else "from other inputs"
    raise FolderExists(f"{path}: finished already {what}; choose another folder or pass overwrite=True")
