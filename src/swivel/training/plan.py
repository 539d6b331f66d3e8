"""What is chosen for a run, once: blocks, epochs, backend, device, dtype, and the order of blocks.

Receives a matrix and a configuration, hands on a plan, which is written down before the first step so that a resumed
run never chooses again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.errors import DamagedFolder, TrainingError
from swivel.runtime.estimates import ResourceEstimate
from swivel.training.backends import BackendConfig, ZeroSampling, choose_backend, choose_dtype
from swivel.training.backends.base import DeviceLoad, ObservedCells, StoredCells
from swivel.training.backends.select import choose_groups
from swivel.training.objective import Objective
from swivel.training.schedule import (
    block_starts,
    choose_block_count,
    default_block_size,
    default_epochs,
    is_sorted_enough,
    largest_block,
)

MOST_EPOCHS = 100  # with end="converged"
# Share of features whose zeros are all taken, where the configuration leaves it open. A GPU would rather compute
# more cells in tiles than gather the observed ones between the others one by one.
COMMON, COMMON_ELSEWHERE = {"cpu": 0.05}, 0.1
NEXT_TO_NONE = 1e-9  # share of zeros that is sampled where they do not count: a column or two
# Of all vectors and accumulators: those that are trained, those that a checkpoint or the end gathers, and room to put
# rows and columns together. Measured: 3.0 times as much at 98,695 rows and columns, d = 50 and 150, on CPU cores.
COPIES = 3
LOADED_LATER = 256 << 20  # address space of kernels and BLAS buffers that are not there yet when a run is planned
WORTH_SAMPLING = 64  # blocks of a round: with fewer, handing over a sampled step's launches takes a GPU's host longer


class BlockedMatrix(Protocol):
    """What the loop needs of a matrix."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def row_blocks(self) -> int:
        """Number of row blocks."""

    @property
    def column_blocks(self) -> int:
        """Number of column blocks."""

    @property
    def row_sums(self) -> NDArray[np.float64]:
        """Sum of each row."""

    @property
    def column_sums(self) -> NDArray[np.float64]:
        """Sum of each column."""

    @property
    def total(self) -> float:
        """Sum of all counts."""

    @property
    def fingerprint(self) -> str:
        """Digest of the content."""

    @property
    def stored(self) -> StoredCells:
        """All observed cells."""

    def cells(self, i: int, j: int) -> ObservedCells:
        """Observed cells of a block."""

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int) -> BlockedMatrix:
        """The same matrix in other blocks."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What was chosen for a run, once."""

    row_blocks: int
    column_blocks: int
    epochs: int
    backend: str
    device: str
    dtype: str
    groups: tuple[int, int] | None = None  # blocks of rows and of columns that are trained together; None: all
    ranks: int = 1  # processes between which the order lets column blocks rotate


def make_plan(matrix: BlockedMatrix, config: TrainConfig, min_block_size: int = 1) -> TrainingPlan:
    """Choose block size, epochs, backend and dtype, where the configuration leaves them open."""
    rows, columns = matrix.shape
    backend, device = choose_backend(config)
    if config.block_size is None:
        largest = config.largest_block or largest_block(device)
        size = default_block_size(rows, columns, largest, min_block_size)
        row_blocks = choose_block_count(rows, size, matrix.row_blocks)
        column_blocks = choose_block_count(columns, size, matrix.column_blocks)
    else:
        row_blocks, column_blocks = math.ceil(rows / config.block_size), math.ceil(columns / config.block_size)
    most = MOST_EPOCHS if config.end == "converged" else default_epochs(row_blocks, column_blocks)
    epochs = config.epochs or most
    dtype = choose_dtype(config, backend, device, cells=float(rows) * columns * epochs)
    load = describe_load(matrix, config, (row_blocks, column_blocks), device)
    groups = choose_groups(backend, load, BackendConfig(device, dtype, memory=config.device_memory))
    return TrainingPlan(row_blocks, column_blocks, epochs, backend, device, dtype, groups)


def describe_load(matrix: BlockedMatrix, config: TrainConfig, blocks: tuple[int, int], device: str) -> DeviceLoad:
    """Return what a run asks of a device."""
    row_starts, column_starts = (block_starts(size, count) for size, count in zip(matrix.shape, blocks, strict=True))
    stored = matrix.stored
    is_halved = stored.symmetric and blocks[0] == blocks[1]
    cells = int(stored.offsets[-1]) * (1 if is_halved or not stored.symmetric else 2)
    dim = config.dim + Objective.from_config(config).extra_dims
    return DeviceLoad((row_starts, column_starts), dim, choose_zeros(matrix, config, device, blocks), cells, is_halved)


def choose_zeros(matrix: BlockedMatrix, config: TrainConfig, device: str, blocks: tuple[int, int]) -> ZeroSampling:
    """Return which zeros are computed: all, too, where sampling is asked for but nothing is sorted by frequency."""
    sums = matrix.row_sums, matrix.column_sums
    common = config.common or COMMON.get(device, COMMON_ELSEWHERE)
    if not wants_sample(config, device, blocks) or not all(is_sorted_enough(side, common) for side in sums):
        return ZeroSampling()
    if not Objective.from_config(config).pushes:
        return ZeroSampling(common, common, NEXT_TO_NONE)
    return ZeroSampling(common, max(config.middle, common), config.share)


def wants_sample(config: TrainConfig, device: str, blocks: tuple[int, int]) -> bool:
    """Return whether zeros are to be sampled: on a GPU that pays only where a round has many blocks."""
    if config.zeros != "auto":
        return config.zeros == "sampled"
    return not device.startswith("cuda") or min(blocks) >= WORTH_SAMPLING


def estimate_needs(
    matrix: BlockedMatrix, config: TrainConfig, plan: TrainingPlan, threads: int, saved: int = 0
) -> ResourceEstimate:
    """Return what a run takes of this machine: checkpoints, vectors and, in other blocks, cells on disk; memory.

    `saved` are the bytes of checkpoints that are there and are written over.
    """
    rows, columns = matrix.shape
    dim, size = config.dim + Objective.from_config(config).extra_dims, 8 if plan.backend == "reference" else 4
    vectors = size * dim * (rows + columns)
    block_rows, block_columns = math.ceil(rows / plan.row_blocks), math.ceil(columns / plan.column_blocks)
    step = size * (min(block_rows, 1024) * block_columns + 4 * dim * (block_rows + block_columns))
    stays = (plan.row_blocks, plan.column_blocks) == (matrix.row_blocks, matrix.column_blocks)
    moved = 0 if stays or plan.backend == "triton" else 16 * int(matrix.stored.offsets[-1])
    return ResourceEstimate(
        "training",
        # Two checkpoints with accumulators; the result; cells in other blocks.
        disk_bytes=max(4 * vectors - saved, 0) + vectors + size * dim * rows + moved,
        memory_bytes=COPIES * 2 * vectors + threads * step,
        mapped_bytes=moved + LOADED_LATER,
        advice="lower --dim, or count with a smaller vocabulary",
    )


def check_plan(plan: TrainingPlan, config: TrainConfig, folder: Path) -> None:
    """Raise TrainingError where a run that was begun elsewhere cannot go on here."""
    try:
        choose_backend(replace(config, backend=plan.backend, device=plan.device))
    except TrainingError as error:
        raise TrainingError(
            f"{folder}: this run was begun on {plan.device!r} ({plan.backend}), which cannot be used here; go on where "
            f"it can, or remove the folder to start again ({error})"
        ) from error


def read_plan(saved: dict[str, Any], folder: Path) -> TrainingPlan:
    """Return a plan as it was written down."""
    try:
        groups = saved.get("groups")
        if groups is not None:
            row_group, column_group = groups
            groups = int(row_group), int(column_group)
        plan = TrainingPlan(**{**saved, "groups": groups})
        counts = plan.row_blocks, plan.column_blocks, plan.epochs, plan.ranks, *(plan.groups or ())
        if not all(type(count) is int and count > 0 for count in counts):
            raise ValueError(f"numbers of blocks, epochs and ranks: {counts}")
        if not all(isinstance(name, str) for name in (plan.backend, plan.device, plan.dtype)):
            raise ValueError("backend, device and dtype are names")
        return plan
    except (TypeError, ValueError, OverflowError) as error:
        raise DamagedFolder(
            f"{folder}: a run that another version of Swivel began; remove it to start again"
        ) from error
