"""`swivel info`: facts about a folder, or about this machine."""

from __future__ import annotations

import platform
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from swivel._version import __version__
from swivel.config import TrainConfig
from swivel.corpus.sources import SOURCES
from swivel.errors import StorageError
from swivel.runtime.resources import count_cores, format_bytes, free_memory
from swivel.storage.manifest import MANIFEST, Folder, open_folder, read_manifest
from swivel.training.checkpoint import SLOTS, read_progress, saved_bytes
from swivel.training.training_plan import choose_backend, describe_accelerator

MAX_NAMES = 10  # of input files


def describe_folder(path: Path, *, verify: bool = False, verbose: bool = False) -> dict[str, Any]:
    """Return the facts of a folder, finished or not, or those of the folders of a run; hashes if `verbose`."""
    if path.is_file():
        raise StorageError(f"{path}: a file, not a folder that Swivel wrote")
    if not (path / MANIFEST).exists():
        manifests = (MANIFEST, *(f"{slot}/{MANIFEST}" for slot in SLOTS))
        inside = [name for name in ("matrix", "vectors") if any((path / name / file).exists() for file in manifests)]
        if inside:
            return {name: describe_folder(path / name, verify=verify, verbose=verbose) for name in inside}
        if (unfinished := _describe_unfinished(path)) is not None:
            return unfinished

    manifest = read_manifest(path)
    # Opening checks the size of every part.
    folder: Folder = open_folder(path, manifest.stage)
    if verify:
        folder.verify()
    # Digests are for programs: a line each, and often hundreds of them.
    hidden = () if verbose else (SOURCES, "tensors")  # digests
    settings = dict(manifest.config)
    if "sum" in settings:
        settings["sum"] = {f"matrix {number}": site for number, site in enumerate(settings["sum"]["sites"], 1)}
    return {
        "folder": str(path),
        "holds": manifest.stage,
        "size": format_bytes(sum(part.bytes for part in manifest.parts.values())),
        "written": format_time(path / MANIFEST),
        "inputs": dict(manifest.inputs) if verbose else shorten_list([*manifest.inputs]),
        "parts": {
            name: format_bytes(part.bytes) + (f", sha256 {part.sha256}" if verbose else "")
            for name, part in manifest.parts.items()
        },
        "facts": {name: value for name, value in manifest.facts.items() if name not in hidden},
        "settings": settings,
        "made by": f"swivel-embeddings {manifest.library}",
        **({"checksums": "all as written"} if verify else {}),
    }


def _describe_unfinished(path: Path) -> dict[str, Any] | None:
    """Return the facts of a training run that has not ended; None if it has saved nothing."""
    progress = read_progress(path)
    if progress is None:
        return None
    return {
        "folder": str(path),
        "holds": "unfinished training; run the same command again to resume",
        "size": format_bytes(saved_bytes(path)),
        **progress,
        "saved": format_time(progress["saved"] / MANIFEST),
    }


def format_time(file: Path) -> str:
    """Return when a file was written."""
    return f"{datetime.fromtimestamp(file.stat().st_mtime):%Y-%m-%d %H:%M}"


def shorten_list(names: list[str]) -> list[str]:
    """Return the first names of a long list, and how many more there are.

    >>> shorten_list([str(n) for n in range(12)])[-2:]
    ['9', 'and 2 more']
    """
    return names if len(names) <= MAX_NAMES else [*names[:MAX_NAMES], f"and {len(names) - MAX_NAMES:,} more"]


def describe_machine() -> dict[str, Any]:
    """Return versions, cores, memory, and the backend and device that training would use."""
    backend, device = choose_backend(TrainConfig())
    return {
        "swivel-embeddings": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": count_cores(),
        "free memory": format_bytes(free_memory()),
        "backend": backend,
        "device": device,
        "accelerator": describe_accelerator(),
        "libraries": library_versions("numpy", "scipy", "numba", "torch", "triton"),
    }


def library_versions(*names: str) -> dict[str, str]:
    """Return the installed versions of libraries."""
    installed = {name: next(iter(distributions(name=name)), None) for name in names}
    return {name: library.version if library else "not installed" for name, library in installed.items()}
