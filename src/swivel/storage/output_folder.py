"""Where commands put their results: a folder, with a test whether its result is already there, or memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swivel.errors import FolderExists, clear_errors
from swivel.runtime.options import RunOptions
from swivel.storage.checksums import limit_threads
from swivel.storage.lock import hold_folder, refuse_locked, sweep_folder
from swivel.storage.manifest import MANIFEST, read_manifest
from swivel.storage.overlap import refuse_foreign, refuse_overlap
from swivel.storage.temporary import scratch_folder


def check_output(out: str | Path | None, inputs: Iterable[Path | None], options: RunOptions) -> Path | None:
    """Return the output folder of a command that reads `inputs`, none of which it may replace; None: memory."""
    limit_threads(options.thread_count)
    if out is None:
        return None
    path = Path(out)
    refuse_overlap([path], inputs)
    refuse_locked(path)
    return path


def has_result(
    path: Path, stage: str, provenance: Mapping[str, Any], options: RunOptions, *, is_comparable: bool = True
) -> bool:
    """Return whether an output folder holds the result of exactly these inputs and settings.

    Raises FolderExists if it holds another result, or any and the inputs, read only once, cannot be compared.
    """
    if options.overwrite:
        return False
    if not (path / MANIFEST).exists():
        refuse_foreign(path, stage)  # before anything is computed
        return False

    # A process that was killed after the manifest could not remove its lock and its scratch files.
    sweep_folder(path)
    manifest = read_manifest(path)
    if manifest.stage != stage:
        raise FolderExists(f"{path}: already holds {manifest.stage}; choose another folder or pass overwrite=True")

    if not is_comparable:
        raise FolderExists(
            f"{path}: finished already, and text in memory or from a pipe cannot be compared with what the folder "
            "was made from; choose another folder or pass overwrite=True"
        )
    if provenance["inputs"] and {"config": manifest.config, "inputs": manifest.inputs} == provenance:
        options.progress.message(f"{path}: finished already, nothing to do")
        return True

    # Which settings differ is more help than that some do.
    differing = [
        f"{part}.{name}"
        for part, values in provenance["config"].items()
        for name, value in values.items()
        if value != manifest.config.get(part, {}).get(name)
    ]
    what = f"with other settings ({', '.join(differing)})" if differing else "from other inputs"
    raise FolderExists(f"{path}: finished already {what}; choose another folder or pass overwrite=True")


@contextmanager
def open_work_folder(path: Path | None) -> Iterator[Path]:
    """Yield a folder to work in: the output folder `path`, locked, or a scratch folder for a result in memory."""
    if path is not None:
        with hold_folder(path):
            yield path
        return
    # A result in memory still needs disk while it is computed.
    temporary = Path(tempfile.gettempdir())
    with clear_errors(temporary):
        temporary.stat()
    with scratch_folder(temporary) as scratch, hold_folder(scratch):
        yield scratch
