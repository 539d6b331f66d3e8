"""One contract for every backend: a step is the reference's, to within the rounding of its dtype.

The yardstick is a step written down in plain torch, dense and differentiated by autograd, in the backend's dtype: a
backend's distance from the float64 reference may be at most twice the yardstick's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from swivel.backends import Backend, BackendMeans, Side, Step, StepSettings, Zeros, create_backend, kernels
from swivel.backends.choice import measure_products
from swivel.objective import Loss, Objective, column_offsets, row_offsets

SAMPLED = Zeros(common=0.05, middle=0.3, share=0.0125)
ZEROS = {
    "all": Zeros(),
    "sampled": SAMPLED,
    "two levels": Zeros(common=0.1, middle=0.1, share=0.1),
    "nothing common": Zeros(common=1e-9, middle=0.5, share=1e-4),
}
OBJECTIVES = {
    "paper": Objective(),
    "power .75": Objective(confidence_power=0.75),
    "shift": Objective(shift=float(np.log(5))),
    "unseen .5": Objective(unseen=0.5),
}
SHAPES = [(1, 1), (1, 7), (41, 401), (401, 41), (1271, 300)]
ARRAYS = ("rows", "row accumulators", "columns", "column accumulators")
# Every shape with every dimension and both kinds of zeros; other ways to sample at one dimension.
CASES = [
    *((shape, dim, zeros) for shape in SHAPES for dim in (1, 50, 300) for zeros in ("all", "sampled")),
    *((shape, 50, zeros) for shape in SHAPES for zeros in ("two levels", "nothing common")),
]
# The CPU kernels' own exp and log are right to 2e-7 (tested below), which can be the whole error of a small block; an
# accumulator holds squares, whose relative error is twice the gradient's.
KERNEL_ERROR = {"rows": 2e-7, "columns": 2e-7, "row accumulators": 4e-7, "column accumulators": 4e-7}


@dataclass(frozen=True)
class Cells:
    positions: NDArray[np.uint32]
    counts: NDArray[np.float32]
    mirrored: bool = False


@dataclass(frozen=True, eq=False)
class Block:
    """Counts of one block and its sides, as host arrays."""

    x: NDArray[np.float64]
    sides: tuple[Side, Side]
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


@cache
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
    offsets = row_offsets(x.sum(1), x.sum(), objective), column_offsets(x.sum(0))
    sums = x.sum(1), x.sum(0)
    sides = []
    for size, offset, total in zip(shape, offsets, sums, strict=True):
        vectors = rng.standard_normal((size, dim), np.float32) / np.float32(np.sqrt(dim))
        vectors[total <= 0] = 0
        accumulators = np.full((size, dim), 1e-6, np.float32)
        sides.append(Side(vectors, accumulators, offset.astype(np.float32)))
    return Block(x, (sides[0], sides[1]), mirrored)


def run_step(backend: Backend, block: Block) -> tuple[dict[str, NDArray[np.float64]], Loss]:
    block.hand_over(backend)
    loss = backend.run([block.step()], lambda: False).losses()[0]
    fetched = [array for side in backend.fetch() for array in (side.vectors, side.accumulators)]
    return dict(zip(ARRAYS, (np.array(array, float) for array in fetched), strict=True)), loss


@cache
def run_reference(block: Block, settings: StepSettings) -> tuple[dict[str, NDArray[np.float64]], Loss]:
    backend = create_backend("reference", settings, BackendMeans(dtype="float64"))
    return run_step(backend, block)


def zero_weights(block: Block, settings: StepSettings, seed: tuple[int, ...] = (1, 2, 3)) -> NDArray[np.float32]:
    """How often each cell counts, observed ones once."""
    x = block.x.T if block.mirrored else block.x
    weights = np.zeros(x.shape, np.float32)
    for band in settings.zeros.bands(*x.shape, seed):
        columns = np.arange(x.shape[1]) if band.chosen is None else band.chosen
        weights[band.start : band.stop, columns] = 1 if band.weights is None else band.weights
    weights[x > 0] = 1
    return weights.T if block.mirrored else weights


@cache
def run_yardstick(block: Block, settings: StepSettings, dtype: str) -> dict[str, NDArray[np.float64]]:
    """The step in plain torch: dense, autograd, operands of the products in `dtype`, the rest in float32."""
    kind, objective = getattr(torch, dtype), settings.objective
    W, C = (torch.tensor(side.vectors, requires_grad=True) for side in block.sides)
    x = torch.tensor(block.x, dtype=torch.float32)
    offsets = torch.tensor(block.sides[0].offsets)[:, None] + torch.tensor(block.sides[1].offsets)
    seen = x > 0
    counts = torch.where(seen, x, torch.ones(()))
    products = (W.to(kind) @ C.to(kind).T).float()
    confidence = objective.confidence_base + objective.confidence_scale * counts**objective.confidence_power
    distance = torch.where(seen, products - offsets - torch.log(counts), torch.zeros(()))
    hinge = torch.nn.functional.softplus(products - offsets - float(np.log(objective.unseen)))
    loss = torch.where(seen, 0.5 * confidence * distance**2, hinge) * torch.tensor(zero_weights(block, settings))
    loss.sum().backward()
    found = []
    for vectors, side, other in ((W, block.sides[0], C), (C, block.sides[1], W)):
        assert vectors.grad is not None
        gradient = vectors.grad / len(other) + settings.decay * vectors.detach()
        accumulators = torch.tensor(side.accumulators) + gradient**2
        found += [vectors.detach() - 0.1 * gradient / accumulators.sqrt(), accumulators]
    return {name: array.numpy().astype(float) for name, array in zip(ARRAYS, found, strict=True)}


def distance(array: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Root mean square of the difference, relative to the root mean square of the truth."""
    return float(np.linalg.norm(array - truth) / np.linalg.norm(truth))


@pytest.fixture(scope="session")
def has_bfloat16() -> bool:
    """Whether bfloat16 products run here: asked in a process of its own, for they may kill the one that tries."""
    return "bfloat16" in measure_products("bfloat16")


Maker = Callable[[StepSettings], Backend]


KINDS = ["cpu float32", "cpu bfloat16", "torch float32", "torch bfloat16", "triton float32", "triton float16"]
ON_A_GPU = ["torch-on-cuda float32", "triton-on-cuda float32", "triton-on-cuda float16", "triton-on-cuda bfloat16"]


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.gpu) for kind in ON_A_GPU)])
def kind(request: pytest.FixtureRequest) -> str:
    name, dtype = request.param.split()
    if dtype == "bfloat16" and "cuda" not in name and not request.getfixturevalue("has_bfloat16"):
        pytest.skip("bfloat16 products do not run on this machine")
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Iterator[Maker]:
    made: list[Backend] = []

    def make_backend(settings: StepSettings) -> Backend:
        name, dtype = kind.split()
        name, _, device = name.partition("-on-")
        made.append(create_backend(name, settings, BackendMeans(device or "cpu", dtype, threads=2)))
        return made[-1]

    yield make_backend
    for backend in made:
        backend.close()


def check_contract(make: Maker, kind: str, block: Block, settings: StepSettings) -> None:
    dtype = kind.split()[1]
    truth, true_loss = run_reference(block, settings)
    got, loss = run_step(make(settings), block)
    yardstick = run_yardstick(block, settings, dtype)
    for name in ARRAYS:
        allowed = 2 * distance(yardstick[name], truth[name]) + KERNEL_ERROR[name]
        assert distance(got[name], truth[name]) <= allowed, name
    check_loss(loss, true_loss, 1e-5 if dtype == "float32" else 2e-2)


def check_loss(loss: Loss, truth: Loss, tolerance: float) -> None:
    assert loss.observed_cells == truth.observed_cells
    assert loss.unobserved_cells == pytest.approx(truth.unobserved_cells, rel=1e-6)
    assert loss.observed == pytest.approx(truth.observed, rel=tolerance)
    # What the hinge adds for observed cells is taken off again, so its rounding is relative to all of them.
    assert loss.unobserved == pytest.approx(truth.unobserved, rel=tolerance, abs=tolerance * truth.observed_cells)


@pytest.mark.parametrize(("shape", "dim", "zeros"), CASES, ids=str)
def test_step_is_the_references(make: Maker, kind: str, shape: tuple[int, int], dim: int, zeros: str) -> None:
    if dim == 1 and kind.endswith("bfloat16"):
        # Measured over six blocks of 41 x 401: the row whose gradient happens to cancel is then the whole error, of the
        # yardstick as of the backend, and either may be several times the other's.
        pytest.skip("one number says nothing about bfloat16")
    settings = StepSettings(Objective(), ZEROS[zeros], decay=1e-4)
    check_contract(make, kind, make_block(shape, dim, settings.objective), settings)


@pytest.mark.parametrize("mirrored", [False, True], ids=["as stored", "mirrored"])
@pytest.mark.parametrize("zeros", [Zeros(), SAMPLED], ids=["all", "sampled"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_step_is_the_references_for_every_objective_and_either_way_round(
    make: Maker, kind: str, objective: Objective, zeros: Zeros, mirrored: bool
) -> None:
    settings = StepSettings(objective, zeros, decay=0.0)
    check_contract(make, kind, make_block((41, 401), 50, objective, mirrored=mirrored), settings)


@pytest.mark.parametrize("zeros", [Zeros(), SAMPLED], ids=["all", "sampled"])
def test_blocks_taller_than_one_product_are_done_in_pieces(make: Maker, kind: str, zeros: Zeros) -> None:
    settings = StepSettings(Objective(), zeros, decay=1e-4)
    check_contract(make, kind, make_block((2100, 37), 20, settings.objective), settings)


@pytest.mark.parametrize("shape", [(2, 1 << 16), (1 << 16, 2)], ids=str)
def test_positions_may_use_all_of_their_bits(make: Maker, kind: str, shape: tuple[int, int]) -> None:
    settings = StepSettings(Objective(), Zeros(), decay=1e-4)
    check_contract(make, kind, make_block(shape, 2, settings.objective), settings)


@pytest.mark.parametrize("density", [0.0, 50.0], ids=["last cells alone", "every cell"])
@pytest.mark.parametrize("zeros", [Zeros(), SAMPLED], ids=["all", "sampled"])
def test_blocks_of_one_kind_of_cell_only(make: Maker, kind: str, zeros: Zeros, density: float) -> None:
    settings = StepSettings(Objective(), zeros, decay=0.0)
    check_contract(make, kind, make_block((8, 9), 5, settings.objective, density=density), settings)


def test_mirrored_block_is_the_same_step(make: Maker) -> None:
    settings = StepSettings(Objective(), Zeros(), decay=1e-4)
    backend = make(settings)
    there, loss = run_step(backend, make_block((41, 60), 10, settings.objective))
    back, mirrored_loss = run_step(backend, make_block((41, 60), 10, settings.objective, mirrored=True))
    for name in ARRAYS:
        np.testing.assert_allclose(back[name], there[name], rtol=1e-3, atol=1e-4)
    check_loss(mirrored_loss, loss, 1e-2)


def test_rows_and_columns_without_counts_stay_where_they_are(make: Maker) -> None:
    settings = StepSettings(Objective(), Zeros(), decay=0.0)
    block = make_block((41, 60), 10, settings.objective)
    after, loss = run_step(make(settings), block)
    assert np.abs(after["rows"][41 // 2]).max() < 1e-20
    assert np.abs(after["columns"][60 // 3]).max() < 1e-20
    assert np.isfinite(loss.mean)


@pytest.mark.parametrize("cell", [(0, 0), (0, 59), (40, 0), (40, 59), (20, 58)])
@pytest.mark.parametrize("zeros", [Zeros(), SAMPLED], ids=["all", "sampled"])
def test_every_observed_cell_counts_once_whatever_is_sampled(make: Maker, zeros: Zeros, cell: tuple[int, int]) -> None:
    """The one observed cell pulls far more than all zeros: every seed must see it with its own weight."""
    settings = StepSettings(Objective(), zeros, decay=0.0)
    x = np.zeros((41, 60))
    x[cell] = 1e6
    rng = np.random.default_rng(3)
    sides = [Side(rng.normal(0, 0.3, (n, 4)), np.ones((n, 4)), np.zeros(n)) for n in x.shape]
    block = Block(x, (sides[0], sides[1]))
    w, c = sides[0].vectors[cell[0]], sides[1].vectors[cell[1]]
    confidence, distance = 0.1 + 0.25 * 1e3, w @ c - np.log(1e6)
    backend = make(settings)
    for seed in range(5):
        block.hand_over(backend)
        loss = backend.run([block.step(seed=(seed,))], lambda: False).losses()[0]
        pull = confidence * distance * c / 60
        change = backend.fetch()[0].accumulators[cell[0]] - 1
        np.testing.assert_allclose(change, pull**2, rtol=0.05, atol=1e-2 * (pull**2).max())
        assert loss.observed_cells == 1
        assert loss.observed == pytest.approx(0.5 * confidence * distance**2, rel=1e-2)


def test_holding_copies_and_fetching_gives_it_back(make: Maker) -> None:
    backend = make(StepSettings(Objective(), Zeros(), decay=0.0))
    rng = np.random.default_rng(4)
    sides = [Side(*(rng.normal(size=(n, 3)).astype(np.float32) for _ in range(2)), np.arange(n)) for n in (9, 5)]
    truth = [(side.vectors.copy(), side.accumulators.copy()) for side in sides]
    backend.hold(sides[0], sides[1], ([0, 3, 6, 9], [0, 3, 5]))
    for side in sides:
        side.vectors[:] = side.accumulators[:] = 0
    for side, (vectors, accumulators) in zip(backend.fetch(), truth, strict=True):
        np.testing.assert_array_equal(side.vectors, vectors)
        np.testing.assert_array_equal(side.accumulators, accumulators)


def test_backends_say_what_they_are(make: Maker, kind: str) -> None:
    backend = make(StepSettings(Objective(), Zeros(), decay=0.0))
    assert backend.name in backend.describe()
    assert kind.split()[1] in backend.describe()


def test_kernels_own_exp_and_log_are_as_exact_as_they_say() -> None:
    exponents = np.linspace(-125, 126, 4001, dtype=np.float32)
    powers = np.array([kernels._exp2(y) for y in exponents], float)
    assert np.abs(powers / np.exp2(exponents.astype(float)) - 1).max() < 2e-7
    numbers = np.exp2(np.linspace(-2, 2, 4001)).astype(np.float32)
    logs = np.array([kernels._log(x) for x in numbers], float)
    assert np.abs(logs - np.log(numbers.astype(float))).max() < 2e-7
    wide = np.exp2(np.linspace(-120, 120, 4001)).astype(np.float32)
    truth = np.log(wide.astype(float))
    assert (
        np.abs((np.array([kernels._log(x) for x in wide], float) - truth) / np.maximum(1, np.abs(truth))).max() < 2e-7
    )


def test_confidence_of_a_tiny_count_with_a_high_power_is_its_base(make: Maker) -> None:
    """A count to a power may be smaller than any float32: f is then its base, not what its bits happen to mean."""
    objective = Objective(confidence_power=12.0)
    settings = StepSettings(objective, Zeros(), decay=0.0)
    sides = [Side(np.ones((1, 1)), np.ones((1, 1)), np.zeros(1)) for _ in range(2)]
    _, loss = run_step(make(settings), Block(np.array([[2.0**-12]]), (sides[0], sides[1])))
    assert loss.observed == pytest.approx(0.5 * 0.1 * (1 + 12 * np.log(2)) ** 2, rel=1e-2)
