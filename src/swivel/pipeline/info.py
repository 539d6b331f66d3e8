"""`swivel info`: facts about a folder, or about this machine."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from swivel._version import __version__
from swivel.corpus.digests import SOURCES
from swivel.errors import StorageError
from swivel.runtime.resources import count_cores, format_bytes, free_memory
from swivel.storage import MANIFEST, Folder, open_folder, read_manifest


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
    return {
        "folder": str(path),
        "holds": manifest.stage,
        "size": format_bytes(sum(part.bytes for part in manifest.parts.values())),
        "parts": {name: format_bytes(part.bytes) for name, part in manifest.parts.items()},
        "facts": {name: value for name, value in manifest.facts.items() if name != SOURCES},
        "settings": dict(manifest.config),
        "made by": f"swivel-embeddings {manifest.library}",
        **({"checksums": "all as written"} if verify else {}),
    }


def describe_machine() -> dict[str, Any]:
    """Return versions, cores, memory, and the backend and device that training would use."""
    from swivel.config import TrainConfig
    from swivel.training.backends import choose_backend, describe_accelerator

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
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def name_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model name of the processor, or the best description that the system has."""
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown processor"
