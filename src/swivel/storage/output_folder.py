"""Where commands put their results: a folder, with a test whether its result is already there, or memory.

Inputs and outputs are kept apart: what Swivel wrote is recognized, and an output that would replace something else, or
an input, is refused.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swivel.errors import ConfigError, FolderExists, StorageError, clear_errors
from swivel.runtime.options import RunOptions
from swivel.storage.lock import (
    LOCK,
    LOCK_MARK,
    hold_folder,
    is_scratch,
    is_temporary,
    refuse_locked,
    refuse_special,
    scratch_folder,
    sweep_folder,
)
from swivel.storage.manifest import MANIFEST, limit_threads, read_manifest

# Files that Swivel writes, with bytes near their start by which they differ from files of other tools.
_FOLDER_MARKS = {
    MANIFEST: b'{\n "stage": ',
    f"checkpoint-1/{MANIFEST}": b'{\n "stage": ',
    f"checkpoint-2/{MANIFEST}": b'{\n "stage": ',
    "tuning.json": b'{\n "identity": ',
}
_FILE_MARKS = {LOCK: LOCK_MARK, "report.html": b"<title>Swivel: "}
_LABELS = ("rows.txt", "columns.txt", "row_sums.npy", "column_sums.npy")
# What a command writes in the folder of a result, besides temporary names.
OUTPUTS = {
    "matrix": (
        *_LABELS,
        *("offsets.npy", "positions.npy", "counts.npy", "large_cells.npy", "large_counts.npy"),
        *("edge_starts.npy", "edge_ends.npy", "edge_weights.npy"),
    ),
    "vectors": (*_LABELS, "vectors.safetensors", "ngrams.npy", "tuning.json", "checkpoint-1", "checkpoint-2"),
    "report": ("report.html",),
}
_PROBE_BYTES = 512


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
            f"{path}: finished already, and what comes from an iterator or a pipe cannot be compared with what the "
            "folder was made from; choose another folder or pass overwrite=True"
        )
    is_same = (manifest.config, manifest.inputs) == (provenance["config"], provenance["inputs"])
    if is_same:
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


def is_own_folder(folder: Path) -> bool:
    """Return whether a folder holds the result of a Swivel command, finished or not."""
    try:
        has_scratch = any(is_scratch(file.name) for file in folder.iterdir())
    except OSError:
        return False

    # Names alone do not tell: other tools have a manifest.json or a lock, too.
    has_mark = any(_has_mark(folder / name, mark) for name, mark in _FOLDER_MARKS.items())
    return has_mark or has_scratch or is_temporary(folder.name)


def is_own_file(file: Path) -> bool:
    """Return whether Swivel wrote a file beside its result folders: a lock, a report, or a part of a file."""
    is_marked = file.name in _FILE_MARKS and _has_mark(file, _FILE_MARKS[file.name])
    return is_marked or is_temporary(file.name)


def refuse_links(paths: Iterable[Path]) -> None:
    """Raise StorageError for an output that is a link: a received folder could make it point anywhere."""
    for path in paths:
        if path.is_symlink():
            raise StorageError(f"{path}: a link, through which nothing is written; choose another folder, or remove it")


def refuse_foreign(folder: Path, stage: str) -> None:
    """Raise FolderExists for a file in the place of an output of a stage that Swivel did not write."""
    # Parts have no mark: they are those of an interrupted command if something else of it is there.
    has_own = is_own_folder(folder) or is_own_file(folder / LOCK)
    files = [folder / name for name in OUTPUTS.get(stage, ())]
    refuse_links(files)
    for file in files:
        if not file.exists() or file.is_dir():  # Training recognizes the folders of its checkpoints.
            continue
        mark = _FOLDER_MARKS.get(file.name) or _FILE_MARKS.get(file.name)
        if not (_has_mark(file, mark) if mark else has_own):
            raise FolderExists(
                f"{file}: not written by Swivel, and would be replaced; choose another folder, or pass overwrite=True"
            )


def _has_mark(file: Path, mark: bytes) -> bool:
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            return mark in opened.read(_PROBE_BYTES)
    except OSError:
        return False


def refuse_overlap(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Raise ConfigError if an output is an input, one of its files, or a folder that contains one.

    Files and folders are compared by device and inode, because they may have several names. None stands for an input
    that is not a file.
    """
    output_ids = {identify(output): output for output in outputs}
    output_ids.pop(None, None)  # An output that does not exist yet replaces nothing.
    if not output_ids:
        return

    compared: set[Path] = set()  # files that are read, and the folders above them
    for path in (each for each in inputs if each is not None):
        for file in _list_parts(path):
            # A folder that contains an input must not be an output, either.
            for place in (file, *file.parents):
                if place in compared:
                    break
                compared.add(place)

                output = output_ids.get(identify(place))
                if output is not None:
                    raise ConfigError(f"{output}: the output would replace the input {path}; choose another output")


def refuse_run(folder: Path) -> None:
    """Raise FolderExists if a folder is that of a run: its results are in folders inside, which are opened first."""
    for inside in (folder / "matrix", folder / "vectors"):
        if is_own_folder(inside):
            raise FolderExists(f"{folder}: the folder of a run, with a result in {inside}; choose another folder")


def check_output_file(path: Path, inputs: Iterable[Path | None], *, overwrite: bool) -> None:
    """Raise an error if a file cannot be written: it would replace an input, exists already, or has no folder."""
    if path.is_dir():
        raise StorageError(f"{path} is a folder: pass the path of a file")
    refuse_overlap([path], inputs)
    refuse_special(path)
    if path.exists() and not overwrite:
        raise FolderExists(f"{path}: exists already; choose another file or pass overwrite=True")
    if not path.parent.is_dir():
        raise StorageError(f"{path.parent}: no such folder; create it first")


def check_format(path: Path, formats: Iterable[str], what: str) -> str:
    """Return the format of a file from the suffix of its name, or raise ConfigError if it is none of the formats."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in formats:
        raise ConfigError(f"{path}: {what} are written as {', '.join('.' + name for name in formats)}")
    return kind


def identify(path: Path) -> tuple[int, int] | None:
    """Return what all names of a file or folder have in common, its device and inode; None if it does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _list_parts(path: Path) -> list[Path]:
    """Return a file, or a folder and its files: the parts of a result, or all of them."""
    path = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links.

    with clear_errors(path):
        if not path.is_dir():
            return [path]
        try:
            names = [MANIFEST, *read_manifest(path).parts]
        except StorageError:
            names = [file.name for file in path.iterdir()]

    return [path, *(path / name for name in names)]
