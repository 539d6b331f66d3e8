"""Selection of the backend, the device and the dtype of a run, before its first step."""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from swivel.config import TrainConfig
from swivel.errors import ConfigError, TrainingError
from swivel.runtime.resources import format_bytes
from swivel.training.backends.base import Backend, BackendSettings

# Module below this package, and class; a module is imported when its backend is created.
BACKENDS = {
    "reference": ("reference", "ReferenceBackend"),
    "cpu": ("cpu", "CpuBackend"),
    "triton": ("triton.backend", "TritonBackend"),
    "torch": ("torch", "TorchBackend"),
}

# Prints the speed of a step's three products on one thread, with the conversion of float32 operands and results, after
# a warm-up: one line per dtype, in cells per second. It runs in a separate process because a product can be killed by
# an illegal instruction: some virtual machines report matrix units (AMX) that torch's library then cannot configure.
# Lines printed before that still count.
_PROBE = """
import sys, time, torch
torch.set_num_threads(1)
k, d = map(int, sys.argv[1:3])
w, c, g = (torch.randn(*shape) for shape in ((k, d), (k, d), (k, k)))
for name in sys.argv[3:]:
    kind = getattr(torch, name)
    def products():
        started = time.perf_counter()
        W, C = w.to(kind), c.to(kind)
        (W @ C.T).float()
        G = g.to(kind)
        (G @ C).float(), (G.T @ W).float()
        return time.perf_counter() - started
    products()
    print(name, k * k / min(products() for _ in range(5)), flush=True)
"""
_PROBE_SECONDS = 60
MIN_MEASURED_CELLS = 3e9  # shorter runs on a CPU use float32 without measuring; cells of vectors with
USUAL_DIM = 300  # so many dimensions


def measure_products(*dtypes: str, block_size: int = 1024, dim: int = 300) -> dict[str, float]:
    """Return the speed of a step's three matrix products on one thread, in cells per second, for each dtype.

    With few dimensions, converting the gradient of a block takes longer than faster products save. Dtypes whose
    products do not run on this machine are left out.
    """
    command = [sys.executable, "-c", _PROBE, str(block_size), str(dim), *dtypes]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return {}

    lines = [line.split() for line in result.stdout.splitlines()]
    return {name: float(speed) for name, speed in lines}


def lacks_bfloat16() -> bool:
    """Return whether this CPU certainly has no instructions for bfloat16, so that its products are slow."""
    import torch

    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return not any(getattr(torch.cpu, check, lambda: True)() for check in checks)


def _read_value(device: str) -> float:
    """Return a number that is stored on a device; torch raises an error where there is none, or no values (meta)."""
    import torch

    return torch.ones(1, device=device).item()


def choose_backend(config: TrainConfig) -> tuple[str, str]:
    """Return the names of the backend and of the device for a configuration.

    Raises TrainingError if the device does not exist, or if the backend cannot run on it.
    """
    import torch

    device = config.device
    if device == "auto":
        device = "cpu" if config.backend in ("cpu", "reference") else _best_device()
    try:
        kind = torch.device(device).type
        _read_value(device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        line = str(error).splitlines()[0]
        raise TrainingError(f"device {device!r} cannot be used: {line}; pass device='auto' or device='cpu'") from error

    if kind == "cpu":
        device = "cpu"

    backend = config.backend
    if backend == "auto":
        accelerated = "triton" if suits_triton(device) and not _samples_for_some_rows(config) else "torch"
        return ("cpu" if device == "cpu" else accelerated), device

    if backend in ("cpu", "reference") and device != "cpu":
        raise TrainingError(f"the {backend} backend runs on the CPU, not on {device!r}; pass backend='torch'")
    if backend == "triton" and not suits_triton(device):
        raise TrainingError(
            "the triton backend needs Triton 3.4 or newer, and an NVIDIA GPU of compute capability 8.0 or higher "
            f"instead of {device!r}; pass backend='auto'"
        )
    if backend == "triton" and _samples_for_some_rows(config):
        raise TrainingError(
            "the triton backend does not support sample_rows; pass zeros='all' or backend='auto'",
            argument="sample_rows",
        )

    return backend, device


def _samples_for_some_rows(config: TrainConfig) -> bool:
    """Return whether some rows of a block have a sample of zeros of their own, which the Triton kernels lack."""
    return config.zeros == "sampled" and config.sample_rows is not None


def has_triton() -> bool:
    """Return whether Triton 3.4 or newer is installed; CUDA builds of torch include Triton."""
    if find_spec("triton") is None:
        return False
    try:
        installed = version("triton")
    except PackageNotFoundError:  # Installed under another distribution name.
        return True
    return tuple(int(part) for part in installed.split(".")[:2]) >= (3, 4)


def suits_triton(device: str) -> bool:
    """Return whether the Triton kernels run on a device: NVIDIA GPUs since Ampere. AMD GPUs use the torch backend."""
    import torch

    if torch.device(device).type != "cuda" or torch.version.hip is not None or not has_triton():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def describe_accelerator() -> str:
    """Return the name of the accelerator and its free memory, or a message that there is none."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"{torch.cuda.get_device_name()}, {format_bytes(free)} of {format_bytes(total)} free"

    if torch.backends.mps.is_available():
        return "Apple GPU (mps)"
    return "none: no CUDA device, everything runs on the CPU"


def _best_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def choose_dtype(config: TrainConfig, backend: str, device: str, cells: float, block_size: int = 1024) -> str:
    """Return the dtype of the matrix products' operands for a run that takes as long as `cells` cells, all computed.

    `auto` is bfloat16 on CUDA. On a CPU that has instructions for bfloat16 it measures both dtypes, if the run is long
    enough (about half a minute) to justify the measurement. Raises TrainingError if the products of the requested dtype
    do not run on this machine.
    """
    if backend == "reference":
        return "float64"

    if config.dtype != "auto":
        if config.dtype != "float32" and device == "cpu" and not measure_products(config.dtype):
            raise TrainingError(f"{config.dtype} matrix products do not run on this machine; pass dtype='float32'")
        return config.dtype

    if device != "cpu":
        return "bfloat16" if suits_triton(device) else "float32"
    if cells * config.dim / USUAL_DIM < MIN_MEASURED_CELLS or lacks_bfloat16():
        return "float32"

    speeds = measure_products("float32", "bfloat16", block_size=block_size, dim=config.dim)
    is_faster = speeds.get("bfloat16", 0.0) > 1.15 * speeds.get("float32", math.inf)
    return "bfloat16" if is_faster else "float32"


def create_backend(name: str, settings: BackendSettings) -> Backend:
    """Return the backend `name`, one of `BACKENDS`; raise ConfigError for any other name."""
    if name not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}", argument="backend")

    module, kind = BACKENDS[name]
    backend: Backend = getattr(import_module(f"swivel.training.backends.{module}"), kind)(settings)
    return backend
