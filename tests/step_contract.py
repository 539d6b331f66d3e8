"""The contract of a training step, for the tests of all backends: blocks, the reference, a baseline, the comparison.

The baseline is a dense step in plain torch, differentiated by autograd, in the backend's dtype. The distance of a
backend from the float64 reference may be at most twice that of the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts import BlockCells
from swivel.counts.block_layout import Layout
from swivel.counts.matrix_cells import MatrixCells
from swivel.counts.shards import make_piece
from swivel.training.backends import (
    Backend,
    BackendSettings,
    ParameterBlock,
    Step,
    ZeroSampling,
)
from swivel.training.objective import Loss, column_offsets, row_offsets
from swivel.training.training_plan import create_backend
from tolerances import usual_rounding

Maker = Callable[[BackendSettings], Backend]
HAS_GPU = torch.cuda.is_available()
SAMPLED = ZeroSampling(common=0.05, middle=0.3, share=0.0125)
ZEROS = {
    "all": ZeroSampling(),
    "sampled": SAMPLED,
    "two tiers": ZeroSampling(common=0.1, middle=0.1, share=0.1),
    "nothing common": ZeroSampling(common=1e-9, middle=0.5, share=1e-4),
}
OBJECTIVES = {
    "paper": TrainConfig(),
    "power .75": TrainConfig(confidence_power=0.75),
    "shift": TrainConfig(shift=float(np.log(5))),
    "unseen .5": TrainConfig(unseen=0.5),
}
ARRAYS = ("rows", "row accumulators", "columns", "column accumulators")
# The error of exp and log in the kernels is at most 2e-7 (tested for the CPU), which can be the whole error of a small
# block. An accumulator is a mean of squares, whose relative error is twice that of the gradient.
KERNEL_ERROR = {"rows": 2e-7, "columns": 2e-7, "row accumulators": 4e-7, "column accumulators": 4e-7}
# Half a unit in the last place of an operand, relative. Where one cell dominates a gradient, its rounding is that of
# the whole vector and, twice, of the mean of its squares; that of the products averages out over the dimensions.
OPERAND_ERROR = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-9}
# On a GPU, sums of many thousand terms are computed in another order than by torch, which matters in float32.
GPU_FACTOR = 4
CACHE_SIZE = 16  # blocks and their results, each several megabytes


@dataclass(frozen=True, eq=False)
class Block:
    """Counts of one block and its parameters, as host arrays."""

    x: NDArray[np.float64]
    sides: tuple[ParameterBlock, ParameterBlock]
    mirrored: bool = False

    def cells(self) -> BlockCells:
        x = self.x.T if self.mirrored else self.x
        i, j = np.nonzero(x)
        return BlockCells((i << 16 | j).astype(np.uint32), x[i, j].astype(np.float32), self.mirrored)

    @property
    def number(self) -> tuple[int, int]:
        """Number of the block; a mirrored block is below the diagonal."""
        return (1, 0) if self.mirrored else (0, 0)

    def hand_over(self, backend: Backend) -> None:
        """Give parameters and cells to a backend. A mirrored block is in a symmetric matrix of 2 x 2 blocks."""
        rows, columns = (side.map(np.array) for side in self.sides)  # The backend takes over what it gets.
        height, width = len(rows.vectors), len(columns.vectors)
        if self.mirrored:
            rows, columns = join(empty_like(columns), rows), join(columns, empty_like(rows))
            starts = [0, width, width + height]
            backend.hold(rows, columns, (starts, starts))
        else:
            backend.hold(rows, columns, ([0, height], [0, width]))
        take_blocks(backend, {self.number: self.cells()}, (1 + self.mirrored, 1 + self.mirrored))

    def step(self, *, rate: float = 0.1, seed: tuple[int, ...] = (1, 2, 3)) -> Step:
        return Step(self.number, rate, seed)


def empty_like(side: ParameterBlock) -> ParameterBlock:
    return side.map(np.zeros_like)


def join(first: ParameterBlock, second: ParameterBlock) -> ParameterBlock:
    return ParameterBlock(
        *(np.concatenate([getattr(side, name) for side in (first, second)]) for name in ("vectors", "state", "offsets"))
    )


def take_blocks(backend: Any, blocks: Mapping[tuple[int, int], BlockCells], shape: tuple[int, int]) -> None:
    """Give a backend a matrix of `shape` blocks that has cells in these blocks only."""
    # A layout stores integers: it gets the numbers of the cells, which are then replaced by the counts.
    counts = np.concatenate([np.zeros(1, np.float32), *(cells.counts for cells in blocks.values())])
    first = 1
    numbered = {}
    for block, cells in blocks.items():
        numbered[block] = replace(cells, counts=np.arange(first, first + len(cells.counts), dtype=np.float32))
        first += len(cells.counts)

    matrix: Any = store_blocks(numbered, shape)
    matrix.cells = lambda i, j: blocks[i, j]
    backend.take(matrix)
    if backend.builds_layout:
        laid_out = backend._feed.cells.counts
        laid_out.copy_(torch.from_numpy(counts).to(laid_out.device)[laid_out.long()])


def store_blocks(blocks: Mapping[tuple[int, int], BlockCells], shape: tuple[int, int]) -> MatrixCells:
    """Return the cells of these blocks, whose counts are integers, as they are stored."""
    positions, counts = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    lengths = np.zeros(shape, np.int64)
    is_symmetric = any(cells.mirrored for cells in blocks.values())

    for i, j in sorted((j, i) if cells.mirrored else (i, j) for (i, j), cells in blocks.items()):
        cells = blocks[i, j] if (i, j) in blocks else blocks[j, i]
        lengths[i, j] = len(cells.counts)
        positions = np.concatenate([positions, cells.positions])
        counts = np.concatenate([counts, cells.counts.astype(np.int64)])

    arrays = make_piece(lengths.ravel(), positions, counts)
    return MatrixCells(Layout(1 << 16, 1 << 16, *shape, is_symmetric), arrays, 1)


@lru_cache(CACHE_SIZE)
def make_block(
    shape: tuple[int, int],
    dim: int,
    objective: TrainConfig,
    *,
    mirrored: bool = False,
    density: float = 0.2,
    key: int = 0,
) -> Block:
    """Return a random block whose first rows and columns are the most frequent ones, as in a matrix."""
    rng = np.random.default_rng((7, *shape, dim, key))
    chance = density * np.sqrt(np.outer(*(np.linspace(2, 0.2, size) for size in shape)))
    counts = rng.lognormal(0, 2, shape).astype(np.float32).astype(np.float64)
    x = np.where(rng.random(shape) < chance, counts, 0.0)

    # An empty row and column, and cells in the last row and column.
    if min(shape) > 10:
        x[shape[0] // 2] = 0
        x[:, shape[1] // 3] = 0
        x[shape[0] // 3, -1] = x[-1, shape[1] // 2] = 2.5
    x[0, -1] = x[-1, -1] = 3.0

    offsets = row_offsets(x.sum(1), x.sum(), objective), column_offsets(x.sum(0))
    sums = x.sum(1), x.sum(0)
    sides = []
    for size, offset, total in zip(shape, offsets, sums, strict=True):
        vectors = rng.standard_normal((size, dim), np.float32) / np.float32(np.sqrt(dim))
        vectors[total <= 0] = 0
        accumulators = np.full(size, 1e-6, np.float32)
        sides.append(ParameterBlock(vectors, accumulators, offset.astype(np.float32)))

    return Block(x, (sides[0], sides[1]), mirrored)


def split_kind(kind: str) -> tuple[str, str, str]:
    """Return backend, device and dtype of a kind such as `torch-on-cuda float32`.

    The Triton kernels run on a GPU if there is one, else in the interpreter.
    """
    name, dtype = kind.split()
    name, _, device = name.partition("-on-")
    return name, device or ("cuda" if name == "triton" and HAS_GPU else "cpu"), dtype


def each_kind_and_zeros(kinds: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrize a test with all zeros and with sampled ones, which the triton backend does not have."""
    cases = [pytest.param(kind, ZEROS["all"], id=f"all {kind}") for kind in kinds]
    cases += [pytest.param(kind, SAMPLED, id=f"sampled {kind}") for kind in kinds if not kind.startswith("triton")]
    return pytest.mark.parametrize(("kind", "zeros"), cases)


def create(kind: str, settings: BackendSettings, threads: int = 2) -> Backend:
    name, device, dtype = split_kind(kind)
    return create_backend(name, replace(settings, device=device, dtype=dtype, threads=threads))


def parameters_of(backend: Backend) -> dict[str, NDArray[np.float64]]:
    fetched = [array for side in backend.fetch() for array in (side.vectors, side.state)]
    return dict(zip(ARRAYS, (np.array(array, float) for array in fetched), strict=True))


def run_step(backend: Backend, block: Block) -> tuple[dict[str, NDArray[np.float64]], Loss]:
    block.hand_over(backend)
    loss = backend.run([block.step()], lambda: False)()[0]
    arrays = parameters_of(backend)
    height, width = block.x.shape
    return {name: array[-height:] if "row" in name else array[:width] for name, array in arrays.items()}, loss


@lru_cache(CACHE_SIZE)
def run_reference(block: Block, settings: BackendSettings) -> tuple[dict[str, NDArray[np.float64]], Loss]:
    backend = create_backend("reference", settings)
    return run_step(backend, block)


def zero_weights(block: Block, settings: BackendSettings, seed: tuple[int, ...] = (1, 2, 3)) -> NDArray[np.float32]:
    """Return the weight of each cell; observed cells have weight 1."""
    x = block.x.T if block.mirrored else block.x
    weights = np.zeros(x.shape, np.float32)
    height, width = x.shape
    for panel in settings.zeros.panels(height, width, seed):
        columns = np.arange(width) if panel.columns is None else panel.columns
        weights[panel.start : panel.stop, columns] = 1 if panel.weights is None else panel.weights
    weights[x > 0] = 1
    return weights.T if block.mirrored else weights


@lru_cache(CACHE_SIZE)
def run_baseline(block: Block, settings: BackendSettings, dtype: str, device: str) -> dict[str, NDArray[np.float64]]:
    """Run the step in plain torch: dense, autograd, products and their operands in `dtype`, the rest in float32."""
    operand_dtype = getattr(torch, dtype)
    objective = settings.config
    with torch.device(device):
        W, C = (torch.tensor(side.vectors, requires_grad=True) for side in block.sides)
        x = torch.tensor(block.x, dtype=torch.float32)
        offsets = torch.tensor(block.sides[0].offsets)[:, None] + torch.tensor(block.sides[1].offsets)

        # L_1 of observed cells, L_0 of the others.
        seen = x > 0
        counts = torch.where(seen, x, torch.ones(()))
        products = (W.to(operand_dtype) @ C.to(operand_dtype).T).float()
        confidence = objective.confidence_base + objective.confidence_scale * counts**objective.confidence_power
        distance = torch.where(seen, products - offsets - torch.log(counts), torch.zeros(()))
        hinge = torch.nn.functional.softplus(products - offsets - float(np.log(objective.unseen)))
        loss = torch.where(seen, 0.5 * confidence * distance**2, hinge) * torch.tensor(zero_weights(block, settings))
        loss.sum().backward()  # type: ignore[no-untyped-call]

        # Adagrad.
        results = []
        sums = torch.tensor(block.x.sum(1)), torch.tensor(block.x.sum(0))
        for vectors, side, other, side_sums in ((W, block.sides[0], C, sums[0]), (C, block.sides[1], W, sums[1])):
            assert vectors.grad is not None
            decays = settings.config.weight_decay * side_sums.float() ** settings.config.decay_power
            gradient = vectors.grad / len(other) + decays[:, None] * vectors.detach()
            accumulators = settings.config.accumulator_decay * torch.tensor(side.state) + (gradient**2).mean(1)
            results += [vectors.detach() - 0.1 * gradient / accumulators.sqrt()[:, None], accumulators]

    return {name: array.cpu().numpy().astype(float) for name, array in zip(ARRAYS, results, strict=True)}


def distance(array: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Return the root mean square of the difference, relative to that of the truth."""
    return float(np.linalg.norm(array - truth) / np.linalg.norm(truth))


def check_contract(make: Maker, kind: str, blocks: Block | Sequence[Block], settings: BackendSettings) -> None:
    """Run a step of each block and compare the error over all blocks with that of the baseline."""
    _, device, dtype = split_kind(kind)
    backend = make(settings)
    errors: dict[str, list[float]] = {array: [] for array in ARRAYS}
    baseline_errors: dict[str, list[float]] = {array: [] for array in ARRAYS}

    blocks = [blocks] if isinstance(blocks, Block) else blocks
    for block in blocks:
        truth, true_loss = run_reference(block, settings)
        actual, loss = run_step(backend, block)
        baseline = run_baseline(block, settings, dtype, device)
        for array in ARRAYS:
            errors[array].append(distance(actual[array], truth[array]))
            baseline_errors[array].append(distance(baseline[array], truth[array]))
        check_loss(loss, true_loss, 1e-5 if dtype == "float32" else 2e-2)

    factor = GPU_FACTOR if device == "cuda" else 1
    longest = max(max(block.x.shape) for block in blocks)
    for array in ARRAYS:
        # On some CPUs the products of the baseline round less than products of other shapes.
        rounding = usual_rounding(longest) * (2 if "accumulators" in array else 1)
        allowed = 2 * np.linalg.norm(baseline_errors[array]) + factor * KERNEL_ERROR[array] + rounding
        if "accumulators" in array:
            allowed += 2 * OPERAND_ERROR[dtype]
        assert np.linalg.norm(errors[array]) <= allowed, array


def check_loss(loss: Loss, truth: Loss, tolerance: float) -> None:
    assert loss.observed_cells == truth.observed_cells
    assert loss.unobserved_cells == pytest.approx(truth.unobserved_cells, rel=1e-6)

    # A sum of squares: if a few cells happen to fit, only the rounding of the distance is left of it.
    rounding = tolerance / 10 * np.sqrt(truth.observed) + tolerance**2 * truth.observed_cells
    assert loss.observed == pytest.approx(truth.observed, rel=tolerance, abs=rounding)

    # The loss of observed cells as zeros is added and subtracted, so the rounding is relative to all of them.
    assert loss.unobserved == pytest.approx(truth.unobserved, rel=tolerance, abs=tolerance * truth.observed_cells)
