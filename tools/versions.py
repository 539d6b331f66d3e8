"""Print what decides the last bits of a result: versions of the numerical libraries, and which code they choose here.

`make versions` runs it, and so does continuous integration before its tests.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch

PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "torch", "triton", "scikit-learn", "ray", "pytest", "hypothesis")
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_CBWR",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "NUMBA_CPU_NAME",
)


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def describe_numpy() -> str:
    """Return numpy's BLAS and the instruction sets that it found beyond those it was compiled for."""
    config = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    found = config.get("SIMD Extensions", {}).get("found", [])
    return f"BLAS {blas['name']} {blas.get('version', '')}, SIMD {' '.join(found) or 'baseline'}"


def describe_torch() -> str:
    """Return what torch computes with."""
    libraries = [name for name in ("mkl", "mkldnn", "openmp") if getattr(torch.backends, name).is_available()]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{capability}, {torch.get_num_threads()} threads, {', '.join(libraries)}; {device}"


def main() -> None:
    print(f"Python {platform.python_version()} ({platform.python_compiler()})")
    print(", ".join(f"{package} {version_of(package)}" for package in PACKAGES))
    print(f"numpy: {describe_numpy()}")
    print(f"torch: {describe_torch()}")
    print("environment:", " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "-")


if __name__ == "__main__":
    main()
