"""The contract of a step, for the test files of all backends: blocks, the reference, the yardstick, the comparison.

The yardstick is a step written down in plain torch, dense and differentiated by autograd, in the backend's dtype: a
backend's distance from the float64 reference may be at most twice the yardstick's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swivel.training.backends import (
    Backend,
    BackendConfig,
    ParameterBlock,
    Step,
    StepSettings,
    ZeroSampling,
    create_backend,
)
from swivel.training.objective import Loss, Objective, column_offsets, row_offsets

Maker = Callable[[StepSettings], Backend]
HAS_GPU = torch.cuda.is_available()
SAMPLED = ZeroSampling(common=0.05, middle=0.3, share=0.0125)
ZEROS = {
    "all": ZeroSampling(),
    "sampled": SAMPLED,
    "two levels": ZeroSampling(common=0.1, middle=0.1, share=0.1),
    "nothing common": ZeroSampling(common=1e-9, middle=0.5, share=1e-4),
}
OBJECTIVES = {
    "paper": Objective(),
    "power .75": Objective(confidence_power=0.75),
    "shift": Objective(shift=float(np.log(5))),
    "unseen .5": Objective(unseen=0.5),
    "capped": Objective(confidence_most=0.5),
    # x_max of 10: the cap is reached by a tenth of the counts that blocks are made with.
    "glove": Objective(0.0, 10**-0.75, 0.75, 0.0, unseen=np.inf, confidence_most=1.0, has_biases=True),
}
ARRAYS = ("rows", "row accumulators", "columns", "column accumulators")
# The kernels' own exp and log are right to 2e-7 (the CPU's are tested), which can be the whole error of a small block;
# an accumulator holds squares, whose relative error is twice the gradient's.
KERNEL_ERROR = {"rows": 2e-7, "columns": 2e-7, "row accumulators": 4e-7, "column accumulators": 4e-7}
# On a GPU the zero of every column that was taken is added first, with its weight, which is a hundred and more where
# few are taken, and taken off again where the cell turns out to be observed: the rounding is that of the weight.
TAKING_BACK = 10
# Also there, sums of many thousands are made in another order than torch's: in float32 that is the rest of the error.
ON_GPU = 4
KEEP = 16  # blocks and their results, each some megabytes


@dataclass(frozen=True)
class Cells:
    positions: NDArray[np.uint32]
    counts: NDArray[np.float32]
    mirrored: bool = False


@dataclass(frozen=True, eq=False)
class Block:
    """Counts of one block and its sides, as host arrays."""

    x: NDArray[np.float64]
    sides: tuple[ParameterBlock, ParameterBlock]
    mirrored: bool = False

    def cells(self) -> Cells:
        x = self.x.T if self.mirrored else self.x
        i, j = np.nonzero(x)
        return Cells((i << 16 | j).astype(np.uint32), x[i, j].astype(np.float32), self.mirrored)

    @property
    def number(self) -> tuple[int, int]:
        """A mirrored block lies below the diagonal."""
        return (1, 0) if self.mirrored else (0, 0)

    def hand_over(self, backend: Backend) -> None:
        """As the only block of its number that is not empty."""
        starts = [[0] * block + [0, len(side.vectors)] for side, block in zip(self.sides, self.number, strict=True)]
        backend.hold(*self.sides, (starts[0], starts[1]))

    def step(self, *, rate: float = 0.1, seed: tuple[int, ...] = (1, 2, 3)) -> Step:
        return Step(self.number, self.cells, rate, seed)


@lru_cache(KEEP)
def make_block(
    shape: tuple[int, int],
    dim: int,
    objective: Objective,
    *,
    mirrored: bool = False,
    density: float = 0.2,
    key: int = 0,
) -> Block:
    rng = np.random.default_rng((7, *shape, dim, key))
    # Common rows and columns first, as in a block of a matrix.
    chance = density * np.sqrt(np.outer(*(np.linspace(2, 0.2, size) for size in shape)))
    counts = rng.lognormal(0, 2, shape).astype(np.float32).astype(np.float64)
    x = np.where(rng.random(shape) < chance, counts, 0.0)
    if min(shape) > 10:
        x[shape[0] // 2], x[:, shape[1] // 3] = 0, 0
        x[shape[0] // 3, -1] = x[-1, shape[1] // 2] = 2.5
    x[0, -1] = x[-1, -1] = 3.0
    offsets = row_offsets(x.sum(1), x.sum(), objective), column_offsets(x.sum(0), objective)
    sums = x.sum(1), x.sum(0)
    sides = []
    for size, offset, total in zip(shape, offsets, sums, strict=True):
        vectors = rng.standard_normal((size, dim), np.float32) / np.float32(np.sqrt(dim))
        vectors[total <= 0] = 0
        accumulators = np.full((size, dim), 1e-6, np.float32)
        sides.append(ParameterBlock(vectors, accumulators, offset.astype(np.float32)))
    return Block(x, (sides[0], sides[1]), mirrored)


def split_kind(kind: str) -> tuple[str, str, str]:
    """Return backend, device and dtype of a kind such as `torch-on-cuda float32`.

    Triton's kernels run on the GPU where there is one, and in its interpreter where there is none.
    """
    name, dtype = kind.split()
    name, _, device = name.partition("-on-")
    return name, device or ("cuda" if name == "triton" and HAS_GPU else "cpu"), dtype


def create(kind: str, settings: StepSettings, threads: int = 2) -> Backend:
    name, device, dtype = split_kind(kind)
    return create_backend(name, settings, BackendConfig(device, dtype, threads))


def parameters_of(backend: Backend) -> dict[str, NDArray[np.float64]]:
    fetched = [array for side in backend.fetch() for array in (side.vectors, side.accumulators)]
    return dict(zip(ARRAYS, (np.array(array, float) for array in fetched), strict=True))


def run_step(backend: Backend, block: Block) -> tuple[dict[str, NDArray[np.float64]], Loss]:
    block.hand_over(backend)
    loss = backend.run([block.step()], lambda: False).losses()[0]
    return parameters_of(backend), loss


@lru_cache(KEEP)
def run_reference(block: Block, settings: StepSettings) -> tuple[dict[str, NDArray[np.float64]], Loss]:
    backend = create_backend("reference", settings, BackendConfig(dtype="float64"))
    return run_step(backend, block)


def zero_weights(block: Block, settings: StepSettings, seed: tuple[int, ...] = (1, 2, 3)) -> NDArray[np.float32]:
    """How often each cell counts, observed ones once."""
    x = block.x.T if block.mirrored else block.x
    weights = np.zeros(x.shape, np.float32)
    height, width = x.shape
    for band in settings.zeros.bands(height, width, seed):
        columns = np.arange(width) if band.chosen is None else band.chosen
        weights[band.start : band.stop, columns] = 1 if band.weights is None else band.weights
    weights[x > 0] = 1
    return weights.T if block.mirrored else weights


@lru_cache(KEEP)
def run_yardstick(block: Block, settings: StepSettings, dtype: str, device: str) -> dict[str, NDArray[np.float64]]:
    """The step in plain torch: dense, autograd, products and their operands in `dtype`, the rest in float32."""
    kind, objective = getattr(torch, dtype), settings.objective
    with torch.device(device):
        W, C = (torch.tensor(side.vectors, requires_grad=True) for side in block.sides)
        x = torch.tensor(block.x, dtype=torch.float32)
        offsets = torch.tensor(block.sides[0].offsets)[:, None] + torch.tensor(block.sides[1].offsets)
        seen = x > 0
        counts = torch.where(seen, x, torch.ones(()))
        products = (W.to(kind) @ C.to(kind).T).float()
        confidence = objective.confidence_base + objective.confidence_scale * counts**objective.confidence_power
        confidence = confidence.clamp(max=objective.confidence_most)
        distance = torch.where(seen, products - offsets - torch.log(counts), torch.zeros(()))
        hinge = torch.nn.functional.softplus(products - offsets - float(np.log(objective.unseen)))
        loss = torch.where(seen, 0.5 * confidence * distance**2, hinge) * torch.tensor(zero_weights(block, settings))
        loss.sum().backward()  # type: ignore[no-untyped-call]
        found = []
        for vectors, side, other in ((W, block.sides[0], C), (C, block.sides[1], W)):
            assert vectors.grad is not None
            gradient = vectors.grad / len(other) + settings.weight_decay * vectors.detach()
            accumulators = torch.tensor(side.accumulators) + gradient**2
            found += [vectors.detach() - 0.1 * gradient / accumulators.sqrt(), accumulators]
    return {name: array.cpu().numpy().astype(float) for name, array in zip(ARRAYS, found, strict=True)}


def distance(array: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Root mean square of the difference, relative to the root mean square of the truth."""
    return float(np.linalg.norm(array - truth) / np.linalg.norm(truth))


def check_contract(make: Maker, kind: str, blocks: Block | Sequence[Block], settings: StepSettings) -> None:
    """Run a step of each block; the errors that are compared are those of all of them together."""
    name, device, dtype = split_kind(kind)
    backend = make(settings)
    errors: dict[str, list[float]] = {array: [] for array in ARRAYS}
    yardsticks: dict[str, list[float]] = {array: [] for array in ARRAYS}
    for block in [blocks] if isinstance(blocks, Block) else blocks:
        truth, true_loss = run_reference(block, settings)
        got, loss = run_step(backend, block)
        yardstick = run_yardstick(block, settings, dtype, device)
        for array in ARRAYS:
            errors[array].append(distance(got[array], truth[array]))
            yardsticks[array].append(distance(yardstick[array], truth[array]))
        check_loss(loss, true_loss, 1e-5 if dtype == "float32" else 2e-2)
    takes_back = name == "triton" and settings.zeros != ZeroSampling()
    for array in ARRAYS:
        allowed = KERNEL_ERROR[array] * (TAKING_BACK if takes_back else ON_GPU if device == "cuda" else 1)
        assert np.linalg.norm(errors[array]) <= 2 * np.linalg.norm(yardsticks[array]) + allowed, array


def check_loss(loss: Loss, truth: Loss, tolerance: float) -> None:
    assert loss.observed_cells == truth.observed_cells
    assert loss.unobserved_cells == pytest.approx(truth.unobserved_cells, rel=1e-6)
    # A square: where a few cells happen to fit, it is the rounding of the distance that is left of it.
    rounding = tolerance / 10 * np.sqrt(truth.observed) + tolerance**2 * truth.observed_cells
    assert loss.observed == pytest.approx(truth.observed, rel=tolerance, abs=rounding)
    # What the hinge adds for observed cells is taken off again, so its rounding is relative to all of them.
    assert loss.unobserved == pytest.approx(truth.unobserved, rel=tolerance, abs=tolerance * truth.observed_cells)
