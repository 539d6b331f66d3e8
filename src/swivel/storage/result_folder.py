"""Folders of results: a folder of the user's or a temporary one, and whether its result is already there."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from swivel.errors import FolderExists
from swivel.runtime.options import RunOptions
from swivel.storage import MANIFEST, read_manifest, remove_tree, sweep_folder

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
def folder_or_temporary(out: str | Path | None, *, can_resume: bool = True) -> Iterator[ResultFolder]:
    """Yield the folder `out`, or a temporary one.

    If the block raises, a temporary folder is removed. If the stage cannot resume, so is `out`, unless it existed.
    """
    path = Path(tempfile.mkdtemp(prefix="swivel-")) if out is None else Path(out)
    is_removed = out is None or not (can_resume or path.exists())

    try:
        yield ResultFolder(path, is_temporary=out is None)
    except BaseException:
        if is_removed:
            remove_tree(path)
        raise


def is_done(path: Path, stage: str, provenance: Mapping[str, Any], options: RunOptions) -> bool:
    """Return whether a folder holds the result of exactly these inputs and settings.

    Raises FolderExists if it holds another result, or one whose inputs cannot be compared because they are not known.
    """
    if options.overwrite or not (path / MANIFEST).exists():
        return False

    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise FolderExists(f"{path}: already holds {manifest.stage}; choose another folder or pass overwrite=True")

    # An iterable and standard input ("-") have no fingerprint, so the folder may be the result of another text.
    if provenance["inputs"].keys() & {"iterable", "-"}:
        raise FolderExists(
            f"{path}: finished already, and text in memory or from a pipe cannot be compared with what the folder was "
            "made from; choose another folder or pass overwrite=True"
        )
    if provenance["inputs"] and {"config": manifest.config, "inputs": manifest.inputs} == provenance:
        sweep_folder(path)
        options.progress.message(f"{path}: finished already, nothing to do")
        return True

    differing = [
        f"{stage}.{name}"
        for stage, values in provenance["config"].items()
        for name, value in values.items()
        if value != manifest.config.get(stage, {}).get(name)
    ]
    what = f"with other settings ({', '.join(differing)})" if differing else "from other inputs"
    raise FolderExists(f"{path}: finished already {what}; choose another folder or pass overwrite=True")
