"""Describe the machine and the library versions of an experiment, without names of hosts, users or folders."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from swivel._version import __version__
from swivel.runtime.resources import count_cores

_LIBRARIES = ("numpy", "scipy", "numba", "torch", "gensim", "matplotlib", "scikit-learn")


def describe_machine(threads: int | None) -> dict[str, Any]:
    """Return the processor, the cores in use, the operating system, and the versions of Python and the libraries."""
    return {
        "processor": name_processor(),
        "cores": threads or count_cores(),
        "system": f"{platform.system()} on {platform.machine()}",
        "swivel-embeddings": __version__,
        "python": platform.python_version(),
        **{name: _version_of(name) for name in _LIBRARIES},
    }


def name_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model name of the processor, or the best description that the system has."""
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown processor"


def _version_of(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
