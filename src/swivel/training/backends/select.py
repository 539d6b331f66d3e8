"""Which backend and which operands: chosen by measuring, once, before the first step."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from swivel.config import TrainConfig
from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes, parse_bytes
from swivel.training.backends.base import Backend, DeviceLoad, StepSettings

# The three products of a step at k = 1,024, warmed, on one thread: cells a second in each dtype, a line each. It runs
# in a process of its own because a product may die of an illegal instruction: some virtual machines announce matrix
# units (AMX) that torch's library then cannot configure. What was printed before still counts.
_PROBE = """
import sys, time, torch
torch.set_num_threads(1)
k, d = 1024, 300
for name in sys.argv[1:]:
    w, c, g = (torch.randn(*shape).to(getattr(torch, name)) for shape in ((k, d), (k, d), (k, k)))
    def products():
        started = time.perf_counter()
        w @ c.T, g @ c, g.T @ w
        return time.perf_counter() - started
    products()
    print(name, k * k / min(products() for _ in range(5)), flush=True)
"""
_PROBE_SECONDS = 60


def measure_products(*dtypes: str) -> dict[str, float]:
    """Return cells a second of a step's three products on one thread, for the dtypes in which they run."""
    command = [sys.executable, "-c", _PROBE, *dtypes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return {}
    return {name: float(rate) for name, rate in map(str.split, done.stdout.splitlines())}


def choose_backend(config: TrainConfig) -> tuple[str, str]:
    """Return the names of the backend and of the device that a configuration asks for."""
    import torch

    device = config.device
    if device == "auto":
        device = "cpu" if config.backend in ("cpu", "reference") else _best_device()
    try:
        kind = torch.device(device).type
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        line = str(error).splitlines()[0]
        raise TrainingError(f"device {device!r} cannot be used: {line}; use --device auto or cpu") from error
    device = "cpu" if kind == "cpu" else device
    backend = config.backend
    if backend == "auto":
        backend = "cpu" if kind == "cpu" else "triton" if suits_triton(device) else "torch"
    if backend in ("cpu", "reference") and kind != "cpu":
        raise TrainingError(f"the {backend} backend runs on the CPU, not on {device!r}; use --backend torch")
    if backend == "triton" and not suits_triton(device):
        raise TrainingError(
            f"the triton backend needs an NVIDIA GPU of compute capability 8 or more and Triton 3.3 or newer, and "
            f"{device!r} {'is none' if has_triton() else 'lacks the second'}; use --backend auto"
        )
    return backend, device


def has_triton() -> bool:
    """Return whether a Triton is installed that is new enough: torch brings one with its CUDA builds."""
    if find_spec("triton") is None:
        return False
    try:
        found = version("triton")
    except PackageNotFoundError:  # one that came under another name
        return True
    return tuple(int(part) for part in found.split(".")[:2]) >= (3, 3)


def suits_triton(device: str) -> bool:
    """Return whether our kernels run on a device: NVIDIA's since Ampere; AMD's are left to plain torch."""
    import torch

    if torch.device(device).type != "cuda" or torch.version.hip is not None or not has_triton():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def describe_accelerator() -> str:
    """Say which accelerator there is, and how much of its memory is free."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"{torch.cuda.get_device_name()}, {format_bytes(free)} of {format_bytes(total)} free"
    return "Apple's (mps)" if torch.backends.mps.is_available() else "none: no CUDA device, everything runs on the CPU"


def _best_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def choose_dtype(config: TrainConfig, backend: str, device: str, cells: float) -> str:
    """Return the dtype of the products' operands for a run over so many cells.

    `auto` measures on a CPU, where the run is long enough (about half a minute) to pay for the measurement, and
    takes bfloat16 on CUDA.
    """
    if backend == "reference":
        return "float64"
    if config.dtype != "auto":
        if config.dtype != "float32" and device == "cpu" and not measure_products(config.dtype):
            raise TrainingError(f"{config.dtype} matrix products do not run on this machine; use --dtype float32")
        return config.dtype
    if device != "cpu":
        return "bfloat16" if suits_triton(device) else "float32"
    if cells < 3e9:
        return "float32"
    rates = measure_products("float32", "bfloat16")
    return "bfloat16" if rates.get("bfloat16", 0.0) > 1.15 * rates.get("float32", math.inf) else "float32"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """What a backend computes with."""

    device: str = "cpu"
    dtype: str = "float32"  # of the operands of matrix products
    threads: int = 1
    memory: str | None = None  # of the device, a text such as 20GiB; None: what is free
    groups: tuple[int, int] | None = None  # row blocks and column blocks that are trained together; None: all
    cells: int = 0  # observed ones that will be laid out, at most
    is_halved: bool = False  # whether only one mirror of them will be

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of the device to stay inside; None: what is free."""
        return None if self.memory is None else parse_bytes(self.memory)


def choose_groups(name: str, load: DeviceLoad, config: BackendConfig) -> tuple[int, int] | None:
    """Return how many row blocks and column blocks the order of blocks keeps together; None: all fit the device."""
    if name != "triton":
        return None
    from swivel.training.backends.triton import backend

    return backend.choose_groups(load, device=config.device, dtype=config.dtype, memory=config.memory_bytes)


def create_backend(name: str, settings: StepSettings, config: BackendConfig) -> Backend:
    """Return the backend of that name."""
    if name == "reference":
        from swivel.training.backends.reference import ReferenceBackend

        return ReferenceBackend(settings)
    if name == "cpu":
        from swivel.training.backends.cpu import CpuBackend

        return CpuBackend(settings, threads=config.threads, dtype=config.dtype)
    if name == "triton":
        from swivel.training.backends.triton.backend import DeviceOptions, TritonBackend

        place = DeviceOptions(config.memory_bytes, config.groups, config.cells, config.is_halved)
        return TritonBackend(settings, device=config.device, dtype=config.dtype, options=place)
    from swivel.training.backends.torch import TorchBackend

    return TorchBackend(settings, device=config.device, dtype=config.dtype, threads=config.threads)
