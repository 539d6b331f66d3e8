"""`swivel info`: facts about a folder, or about this machine."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from swivel._version import __version__
from swivel.errors import StorageError
from swivel.runtime.resources import count_cores, format_bytes, free_memory
from swivel.storage import MANIFEST, Folder, open_folder, read_manifest

_LIBRARIES = ("numpy", "scipy", "numba", "torch", "triton", "safetensors")


def describe_folder(path: Path, *, verify: bool = False) -> dict[str, Any]:
    """Return the facts of a finished folder, or those of the folders of a run."""
    if path.is_file():
        raise StorageError(f"{path}: a file, not a folder that Swivel wrote")
    inside = [name for name in ("matrix", "vectors") if (path / name / MANIFEST).exists()]
    if not (path / MANIFEST).exists() and inside:
        return {name: describe_folder(path / name, verify=verify) for name in inside}
    manifest = read_manifest(path)
    folder: Folder = open_folder(path, manifest.stage)
    if verify:
        folder.verify()
    facts = dict(manifest.facts)
    return {
        "folder": str(path),
        "holds": manifest.stage,
        "size": format_bytes(sum(part.bytes for part in manifest.parts.values())),
        "parts": {name: format_bytes(part.bytes) for name, part in manifest.parts.items()},
        "facts": facts,
        "settings": dict(manifest.config),
        "made by": f"swivel-embeddings {manifest.library}",
        **({"checksums": "all as written"} if verify else {}),
    }


def describe_machine() -> dict[str, Any]:
    """Return versions, cores, memory, and the backend and device that training would use."""
    from swivel.config import TrainConfig
    from swivel.training.backends import choose_backend, describe_accelerator

    backend, device = choose_backend(TrainConfig())
    accelerator = describe_accelerator()
    return {
        "swivel-embeddings": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": count_cores(),
        "free memory": format_bytes(free_memory()),
        "backend": backend,
        "device": device,
        "accelerator": accelerator,
        "libraries": {name: _version_of(name) for name in _LIBRARIES},
    }


def _version_of(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
