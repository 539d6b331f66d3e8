"""The training plan: number of blocks and epochs, backend, device, dtype and order of blocks.

A plan is made once from a matrix and a configuration. Every checkpoint has it, so that a resumed run uses the same one.
What a plan chooses from is here, too: the backends, the test of a device, and the measurement of bfloat16 products.
"""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import ConfigError, DamagedFolder, TrainingError
from swivel.runtime.resources import ResourceEstimate, explain_device, format_bytes, parse_bytes
from swivel.training.backends import Backend, BackendSettings, ZeroSampling
from swivel.training.checkpoint import saved_bytes
from swivel.training.objective import find_unit_offsets
from swivel.training.schedule import (
    MAX_BLOCK_SIZE_ON_CPU,
    MAX_BLOCK_SIZE_ON_GPU,
    block_starts,
    choose_block_count,
    default_block_size,
    default_epochs,
    is_sorted_enough,
)

MAX_EPOCHS = 100  # with stop="converged"
WARM_SPEEDUP = 3  # a warm start needs a third of the epochs
# Observed cells that are not in the sample are gathered one by one. Above this density that takes a CPU longer than
# computing all cells in tiles: 1.0 times as long at .36, 1.5 at .64, 2.2 at .88 (10 MB of text, recipe fast, d = 300).
MAX_SAMPLED_DENSITY = 1 / 3
SAMPLED_COST = 1.9  # time of a cell of a sample against one of all cells: 18.6 % of them took 35 % of the time
# Copies of all vectors and accumulators in memory: those being trained and those gathered for a checkpoint or the
# result. One process on CPU cores has one copy, in which it trains.
COPIES = 2
BYTES_PER_BLOCK = 256  # of the orders of two epochs. Measured: 225 at 1,000 x 1,000 blocks
# Kernels and BLAS buffers that are not loaded yet when a run is planned: their memory, if they have to be compiled, and
# as much address space again.
LOADED_LATER = 128 << 20

# Module below `swivel.training.backends`, and class; a module is imported when its backend is created.
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


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Blocks, epochs, backend, device and dtype of a run, chosen before its first step."""

    row_blocks: int
    column_blocks: int
    epochs: int
    backend: str
    device: str
    dtype: str
    groups: tuple[int, int] | None = None  # row and column blocks that are on the device at a time; None: all
    ranks: int = 1  # processes that the order of blocks is made for


def make_plan(
    matrix: Matrix, config: TrainConfig, min_block_size: int = 1, processes: int = 1, is_warm: bool = False
) -> TrainingPlan:
    """Return a plan, choosing what the configuration leaves open: block size, epochs, backend, dtype and ranks.

    `processes` run the training loop together; `is_warm` says whether training starts from existing vectors.
    """
    rows, columns = matrix.shape
    backend, device = choose_backend(config)

    if config.block_size is None:
        largest = config.largest_block or (MAX_BLOCK_SIZE_ON_CPU if device == "cpu" else MAX_BLOCK_SIZE_ON_GPU)
        size = default_block_size(rows, columns, largest, min_block_size)
        row_blocks = choose_block_count(rows, size, matrix.row_blocks)
        column_blocks = choose_block_count(columns, size, matrix.column_blocks)
    else:
        row_blocks = math.ceil(rows / config.block_size)
        column_blocks = math.ceil(columns / config.block_size)

    if config.epochs:
        epochs = config.epochs
    elif config.stop == "converged":
        epochs = MAX_EPOCHS
    else:
        epochs = default_epochs(row_blocks, column_blocks, config.updates_per_vector)
        if is_warm:
            epochs = max(1, epochs // WARM_SPEEDUP)

    ranks = config.ranks or processes
    if ranks > max(row_blocks, processes):
        raise ConfigError(
            f"ranks must be at most {row_blocks:,}, the number of row blocks, got {ranks:,}; "
            "use fewer ranks, or a smaller block_size",
            argument=("ranks", "block_size"),
        )

    plan = TrainingPlan(row_blocks, column_blocks, epochs, backend, device, dtype="float32", ranks=ranks)
    settings = backend_settings(matrix, config, plan)
    block_size = math.ceil(columns / column_blocks)
    # A run that samples zeros takes as long as one that computes this share of all cells.
    share = SAMPLED_COST * settings.zeros.computed_share(math.ceil(rows / row_blocks), block_size)
    cells = float(rows) * columns * epochs * min(share, 1.0)
    dtype = choose_dtype(config, backend, device, cells=cells, block_size=block_size)
    if backend != "triton":
        return replace(plan, dtype=dtype)

    from swivel.training.backends.triton.memory_plan import choose_groups

    starts = block_starts(rows, row_blocks), block_starts(columns, column_blocks)
    return replace(plan, dtype=dtype, groups=choose_groups(replace(settings, dtype=dtype), starts, config.dim))


def backend_settings(matrix: Matrix, config: TrainConfig, plan: TrainingPlan, threads: int = 1) -> BackendSettings:
    """Return the settings of a run's backend."""
    blocks = plan.row_blocks, plan.column_blocks

    # A symmetric matrix stores half of its cells. The device needs both halves unless its blocks are symmetric, too.
    is_halved = matrix.is_symmetric and plan.row_blocks == plan.column_blocks
    cells = matrix.stored_cell_count
    if matrix.is_symmetric and not is_halved:
        cells *= 2

    return BackendSettings(
        config=config,
        zeros=choose_zeros(matrix, config, plan.device, blocks),
        unit_offsets=find_unit_offsets(matrix.total, config),
        cells=cells,
        is_halved=is_halved,
        groups=plan.groups,
        device=plan.device,
        dtype=plan.dtype,
        threads=threads,
        memory=None if config.device_memory is None else parse_bytes(config.device_memory, "device_memory"),
    )


def choose_zeros(matrix: Matrix, config: TrainConfig, device: str, blocks: tuple[int, int]) -> ZeroSampling:
    """Return which zeros are computed: all of them, or a sample if rows and columns are sorted by frequency."""
    common = config.zeros_common
    is_wanted = config.zeros == "sampled" or (
        config.zeros == "auto" and is_sample_faster(matrix, config, device, blocks)
    )
    if not is_wanted or not all(is_sorted_enough(sums, common) for sums in (matrix.row_sums, matrix.column_sums)):
        return ZeroSampling()
    return ZeroSampling(common, max(config.zeros_middle, common), config.zeros_share, config.sample_rows)


def is_sample_faster(matrix: Matrix, config: TrainConfig, device: str, blocks: tuple[int, int]) -> bool:
    """Return whether a sample of the zeros takes less time than all: not on CUDA, and not of a dense matrix."""
    if device.startswith("cuda"):
        return False
    rows, columns = matrix.shape
    is_dense = matrix.cell_count > MAX_SAMPLED_DENSITY * rows * columns
    return not is_dense and (config.sample_rows is not None or min(blocks) >= 2)


def estimate_needs(
    matrix: Matrix,
    config: TrainConfig,
    plan: TrainingPlan,
    threads: int,
    folder: Path | None = None,
    other_memory: tuple[int, int] = (0, 0),
    *,
    in_place: bool = True,
) -> ResourceEstimate:
    """Return the disk space and memory that a run needs.

    `other_memory` is bytes that other steps of the job need: while vectors are trained, and when they are trained.
    Existing checkpoints in `folder` will be overwritten. Without a folder nothing is written. `in_place` is whether the
    executor hands the initial parameters to the backend and returns the backend's own.
    """
    other_during, other_after = other_memory
    rows, columns = matrix.shape
    dim = config.dim
    item_bytes = 8 if plan.backend == "reference" else 4
    parameters = item_bytes * (dim + 1) * (rows + columns)
    vectors, combined = 4 * dim * (rows + columns), 4 * dim * rows

    # A step of one thread: tiles of at most 1024 rows, and vectors and gradients of one block.
    block_rows = math.ceil(rows / plan.row_blocks)
    block_columns = math.ceil(columns / plan.column_blocks)
    step = item_bytes * (min(block_rows, 1024) * block_columns + 4 * dim * (block_rows + block_columns))

    orders = BYTES_PER_BLOCK * plan.row_blocks * plan.column_blocks

    # A matrix with other blocks is copied to the scratch folder; Triton builds its layout on the device.
    has_same_blocks = (plan.row_blocks, plan.column_blocks) == (matrix.row_blocks, matrix.column_blocks)
    reblocked = 0
    if not has_same_blocks and plan.backend != "triton":
        reblocked = 16 * matrix.stored_cell_count

    copies = 1 if plan.backend == "cpu" and in_place else COPIES
    training = copies * parameters + threads * step + orders + other_during
    # Rows, columns, and the vectors that are made from both. With a folder, they are on disk while n-grams are fitted.
    afterwards = vectors + combined
    is_on_disk = copies == 1 and folder is not None
    afterwards = max(afterwards, other_after) if is_on_disk else afterwards + other_after

    # On disk: two checkpoints, the result, rows, columns and vectors until it is written, and the re-blocked cells.
    disk = max(2 * parameters - saved_bytes(folder), 0) + 2 * (vectors + combined) + reblocked
    return ResourceEstimate(
        "training",
        disk_bytes=reblocked if folder is None else disk,
        memory_bytes=max(training, afterwards) + LOADED_LATER,
        mapped_bytes=reblocked + LOADED_LATER + (vectors + combined if is_on_disk else 0),
        advice="lower dim, or count with a smaller vocabulary",
    )


def resume_plan(saved: dict[str, Any], config: TrainConfig, processes: int, folder: Path | None) -> TrainingPlan:
    """Return the plan of a checkpoint; raise TrainingError if this machine does not have its backend or device."""
    plan = read_plan(saved, folder)
    try:
        choose_backend(replace(config, backend=plan.backend, device=plan.device))
    except TrainingError as error:
        raise TrainingError(
            f"{folder}: this run started on {plan.device!r} ({plan.backend}), which is not available here; resume it "
            f"on a machine that has it, or remove the folder to start again ({error})"
        ) from error

    # One process can follow the order made for any number of ranks; several ranks need their own.
    if config.ranks is None and processes > 1:
        plan = replace(plan, ranks=processes)
    return plan


def read_plan(saved: dict[str, Any], folder: Path | None) -> TrainingPlan:
    """Return a plan from its saved form; `folder` is named in the error if it is not valid."""
    try:
        groups = saved.get("groups")
        if groups is not None:
            row_group, column_group = groups
            groups = int(row_group), int(column_group)
        plan = TrainingPlan(**{**saved, "groups": groups})

        counts = plan.row_blocks, plan.column_blocks, plan.epochs, plan.ranks, *(plan.groups or ())
        if not all(type(count) is int and count > 0 for count in counts):
            raise ValueError(f"blocks, epochs and ranks must be positive integers, got {counts}")
        if not all(isinstance(name, str) for name in (plan.backend, plan.device, plan.dtype)):
            raise ValueError("backend, device and dtype must be strings")
        return plan
    except (TypeError, ValueError, OverflowError) as error:
        raise DamagedFolder(
            f"{folder}: the plan was written by another version of Swivel; remove the folder to start again"
        ) from error


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
        why = explain_device(error)
        raise TrainingError(f"device {device!r} cannot be used: {why}; pass device='auto' or device='cpu'") from error

    if kind == "cpu":
        device = "cpu"

    backend = config.backend
    if backend == "auto":
        accelerated = "triton" if suits_triton(device) and config.zeros != "sampled" else "torch"
        return ("cpu" if device == "cpu" else accelerated), device

    if backend in ("cpu", "reference") and device != "cpu":
        raise TrainingError(f"the {backend} backend runs on the CPU, not on {device!r}; pass backend='torch'")
    if backend == "triton" and not suits_triton(device):
        raise TrainingError(
            "the triton backend needs Triton 3.4 or newer, and an NVIDIA GPU of compute capability 8.0 or higher "
            f"instead of {device!r}; pass backend='auto'"
        )
    if backend == "triton" and config.zeros == "sampled":
        raise TrainingError(
            "the triton backend computes all unobserved cells; pass zeros='all' or backend='auto'", argument="zeros"
        )

    return backend, device


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
    """Return the backend `name`, one of `BACKENDS`."""
    module, kind = BACKENDS[name]
    backend: Backend = getattr(import_module(f"swivel.training.backends.{module}"), kind)(settings)
    return backend
