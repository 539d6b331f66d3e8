"""One contract for every backend: a step equals that of the reference, up to the rounding of its dtype.

This file tests the host backends with blocks of many shapes, and properties of all backends. `test_triton.py` has the
cases of Triton, and `test_step_on_gpu.py` those that need a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from step_contract import (
    ARRAYS,
    OBJECTIVES,
    SAMPLED,
    ZEROS,
    Block,
    Maker,
    check_contract,
    check_loss,
    each_kind_and_zeros,
    make_block,
    run_step,
)
from swivel.config import TrainConfig
from swivel.training.backends import BackendSettings, ParameterBlock, ZeroSampling
from swivel.training.backends import cpu_kernels as kernels
from swivel.training.objective import find_unit_offsets
from swivel.training.objective_numba import exp2, log

SHAPES = [(1, 1), (1, 7), (41, 401), (401, 41), (1271, 300)]
# Every shape with every dimension, with all zeros and with sampled ones; the other samplings at one dimension.
CASES = [
    *((shape, dim, zeros) for shape in SHAPES for dim in (1, 50, 300) for zeros in ("all", "sampled")),
    *((shape, 50, zeros) for shape in SHAPES for zeros in ("two tiers", "nothing common")),
]
HOST = ["cpu float32", "cpu bfloat16", "torch float32", "torch bfloat16"]
on_the_host = pytest.mark.parametrize("kind", HOST)
EVERYWHERE = [*HOST, "triton float32"]
everywhere = pytest.mark.parametrize("kind", EVERYWHERE)
each_zeros_everywhere = each_kind_and_zeros(EVERYWHERE)


@on_the_host
@pytest.mark.parametrize(("shape", "dim", "zeros"), CASES, ids=str)
def test_step_matches_the_reference(make: Maker, kind: str, shape: tuple[int, int], dim: int, zeros: str) -> None:
    if dim == 1 and kind.endswith("bfloat16"):
        # Measured over six blocks of 41 x 401: a single row whose gradient cancels dominates the error of the
        # baseline and of the backend, and either can be several times the other.
        pytest.skip("one dimension is too few to compare errors in bfloat16")
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZEROS[zeros])
    check_contract(make, kind, make_block(shape, dim, settings.config), settings)


@on_the_host
@pytest.mark.parametrize("mirrored", [False, True], ids=["as stored", "mirrored"])
@pytest.mark.parametrize("zeros", [ZeroSampling(), SAMPLED], ids=["all", "sampled"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_step_matches_the_reference_for_every_objective_and_orientation(
    make: Maker, kind: str, objective: TrainConfig, zeros: ZeroSampling, mirrored: bool
) -> None:
    settings = BackendSettings(objective, zeros)
    check_contract(make, kind, make_block((41, 401), 50, objective, mirrored=mirrored), settings)


@on_the_host
@pytest.mark.parametrize("zeros", [ZeroSampling(), SAMPLED], ids=["all", "sampled"])
def test_tall_blocks_are_computed_in_pieces(make: Maker, kind: str, zeros: ZeroSampling) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), zeros)
    check_contract(make, kind, make_block((2100, 37), 20, settings.config), settings)


@on_the_host
@pytest.mark.parametrize("shape", [(41, 401), (401, 41)], ids=str)
def test_samples_of_a_few_rows_match_the_reference(make: Maker, kind: str, shape: tuple[int, int]) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), replace(SAMPLED, rows=7))
    check_contract(make, kind, make_block(shape, 50, settings.config), settings)


@each_zeros_everywhere
@pytest.mark.parametrize("mirrored", [False, True], ids=["as stored", "mirrored"])
def test_weight_decay_is_larger_for_larger_sums(make: Maker, kind: str, zeros: ZeroSampling, mirrored: bool) -> None:
    objective = TrainConfig(shift=-1.0)
    block = make_block((41, 60), 20, objective, mirrored=mirrored)
    unit = find_unit_offsets(float(block.x.sum()), objective)
    settings = BackendSettings(replace(objective, weight_decay=0.05, decay_power=0.5), zeros, unit_offsets=unit)
    check_contract(make, kind, block, settings)


@on_the_host
@pytest.mark.parametrize("mirrored", [False, True], ids=["as stored", "mirrored"])
def test_gradients_have_the_weight_decay_of_each_vector(make: Maker, mirrored: bool) -> None:
    """With and without decay, the gradients of a step differ by decay times the vectors."""
    block = make_block((41, 60), 20, TrainConfig(), mirrored=mirrored)
    unit = find_unit_offsets(float(block.x.sum()), TrainConfig())
    results = []
    for decay in (0.0, 0.05):
        backend = make(
            BackendSettings(TrainConfig(weight_decay=decay, decay_power=0.5), ZeroSampling(), unit_offsets=unit)
        )
        block.hand_over(backend)
        results.append(backend.gradients(block.step(), *block.sides))
    none, some = results
    pairs = zip(none[1:], some[1:], strict=True)
    for (without, with_), side, axis in zip(pairs, block.sides, (1, 0), strict=True):
        decays = 0.05 * np.sqrt(block.x.sum(axis))
        np.testing.assert_allclose(with_ - without, decays[:, None] * side.vectors, rtol=1e-2, atol=1e-4)


@each_zeros_everywhere
def test_accumulators_decay_before_the_square_is_added(make: Maker, kind: str, zeros: ZeroSampling) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4, accumulator_decay=0.5), zeros)
    check_contract(make, kind, make_block((11, 12), 20, settings.config), settings)


@everywhere
def test_vectors_without_gradients_stay_finite_when_accumulators_decay(make: Maker) -> None:
    settings = BackendSettings(TrainConfig(accumulator_decay=1e-30), ZeroSampling())
    block = make_block((41, 60), 10, settings.config)
    backend = make(settings)
    for _ in range(3):
        after, _ = run_step(backend, block)
    assert all(np.isfinite(after[name]).all() for name in ARRAYS)


@on_the_host
@pytest.mark.parametrize("shape", [(2, 1 << 16), (1 << 16, 2)], ids=str)
def test_positions_can_use_all_16_bits(make: Maker, kind: str, shape: tuple[int, int]) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_block(shape, 2, settings.config), settings)


@each_zeros_everywhere
@pytest.mark.parametrize("density", [0.0, 50.0], ids=["last cells alone", "every cell"])
def test_blocks_with_all_or_almost_no_cells_observed(
    make: Maker, kind: str, zeros: ZeroSampling, density: float
) -> None:
    settings = BackendSettings(TrainConfig(), zeros)
    check_contract(make, kind, make_block((8, 9), 5, settings.config, density=density), settings)


@everywhere
def test_mirrored_block_gives_the_same_step(make: Maker) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    backend = make(settings)
    stored, loss = run_step(backend, make_block((41, 60), 10, settings.config))
    mirrored, mirrored_loss = run_step(backend, make_block((41, 60), 10, settings.config, mirrored=True))
    for name in ARRAYS:
        np.testing.assert_allclose(mirrored[name], stored[name], rtol=1e-3, atol=1e-4)
    check_loss(mirrored_loss, loss, 1e-2)


@everywhere
def test_rows_and_columns_without_counts_do_not_change(make: Maker) -> None:
    settings = BackendSettings(TrainConfig(), ZeroSampling())
    block = make_block((41, 60), 10, settings.config)
    after, loss = run_step(make(settings), block)
    assert np.abs(after["rows"][41 // 2]).max() < 1e-20
    assert np.abs(after["columns"][60 // 3]).max() < 1e-20
    assert np.isfinite(loss.mean)


@each_zeros_everywhere
@pytest.mark.parametrize("cell", [(0, 0), (0, -1), (-1, 0), (-1, -1), (5, -2)])
def test_every_observed_cell_has_weight_one_for_any_sample(
    make: Maker, kind: str, zeros: ZeroSampling, cell: tuple[int, int]
) -> None:
    """The gradient of the only observed cell is far larger than that of all zeros, so a wrong weight shows."""
    settings = BackendSettings(TrainConfig(), zeros)
    x = np.zeros((9, 14) if "triton" in kind else (41, 60))
    x[cell] = 1e6
    rng = np.random.default_rng(3)
    sides = [ParameterBlock(rng.normal(0, 0.3, (n, 4)), np.ones(n), np.zeros(n)) for n in x.shape]
    block = Block(x, (sides[0], sides[1]))
    w, c = sides[0].vectors[cell[0]], sides[1].vectors[cell[1]]
    confidence = 0.1 + 0.25 * 1e3
    distance = w @ c - np.log(1e6)

    backend = make(settings)
    for seed in range(2 if "triton" in kind else 5):
        block.hand_over(backend)
        loss = backend.run([block.step(seed=(seed,))], lambda: False)()[0]
        pull = confidence * distance * c / x.shape[1]
        change = backend.fetch()[0].state[cell[0]] - 1
        assert change == pytest.approx((pull**2).mean(), rel=0.05)
        assert loss.observed_cells == 1
        assert loss.observed == pytest.approx(0.5 * confidence * distance**2, rel=1e-2)


@everywhere
def test_fetch_returns_the_parameters_that_hold_got(make: Maker) -> None:
    backend = make(BackendSettings(TrainConfig(), ZeroSampling()))
    rng = np.random.default_rng(4)
    sides = [
        ParameterBlock(
            rng.normal(size=(n, 3)).astype(np.float32),
            rng.normal(size=n).astype(np.float32),
            np.arange(n, dtype=np.float32),
        )
        for n in (9, 5)
    ]

    truth = [(side.vectors.copy(), side.state.copy()) for side in sides]
    backend.hold(sides[0], sides[1], ([0, 3, 6, 9], [0, 3, 5]))
    for side, (vectors, accumulators) in zip(backend.fetch(), truth, strict=True):
        np.testing.assert_array_equal(side.vectors, vectors)
        np.testing.assert_array_equal(side.state, accumulators)


@everywhere
def test_description_has_the_name_and_the_dtype(make: Maker, kind: str) -> None:
    backend = make(BackendSettings(TrainConfig(), ZeroSampling()))
    assert backend.name in backend.describe()
    assert kind.split()[1] in backend.describe()


def test_exp_and_log_of_the_kernels_have_the_documented_accuracy() -> None:
    exponents = np.linspace(-125, 126, 4001, dtype=np.float32)
    powers = np.array([exp2(y) for y in exponents], float)
    assert np.abs(powers / np.exp2(exponents.astype(float)) - 1).max() < 2e-7

    numbers = np.exp2(np.linspace(-2, 2, 4001)).astype(np.float32)
    logs = np.array([log(x) for x in numbers], float)
    assert np.abs(logs - np.log(numbers.astype(float))).max() < 2e-7

    wide = np.exp2(np.linspace(-120, 120, 4001)).astype(np.float32)
    truth = np.log(wide.astype(float))
    logs = np.array([log(x) for x in wide], float)
    assert np.abs((logs - truth) / np.maximum(1, np.abs(truth))).max() < 2e-7


@everywhere
def test_confidence_of_a_tiny_count_with_a_high_power_is_its_base(make: Maker) -> None:
    """x^a can be smaller than any float32; f(x) must then be its base, not the value of an invalid exponent."""
    objective = TrainConfig(confidence_power=10.0)
    settings = BackendSettings(objective, ZeroSampling())
    sides = [ParameterBlock(np.ones((1, 1)), np.ones(1), np.zeros(1)) for _ in range(2)]
    _, loss = run_step(make(settings), Block(np.array([[2.0**-15]]), (sides[0], sides[1])))
    assert loss.observed == pytest.approx(0.5 * 0.1 * (1 + 15 * np.log(2)) ** 2, rel=1e-2)


@everywhere
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("array", ["vectors", "state"])
@pytest.mark.parametrize("side", [0, 1])
def test_one_value_that_is_not_finite_is_detected(make: Maker, value: float, array: str, side: int) -> None:
    backend = make(BackendSettings(TrainConfig(), ZeroSampling()))
    ones = np.ones((5, 4), np.float32)
    rows, columns = (ParameterBlock(ones.copy(), ones[:, 0].copy(), ones[:, 0].copy()) for _ in range(2))
    backend.hold(rows, columns, ([0, 3, 5], [0, 3, 5]))
    assert backend.is_finite()

    changed = {"vectors": ones[:2].copy(), "state": ones[:2, 0].copy()}
    changed[array].flat[-1] = value
    backend.set_block(side, 1, ParameterBlock(**changed, offsets=ones[:2, 0]))
    assert not backend.is_finite()


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((40, 50)).astype(np.float32) * 10.0 ** rng.integers(-40, 38, (40, 50))
    # Numbers halfway between two of bfloat16, which go to the even one, and their neighbors.
    halfway = (rng.integers(0, 1 << 14, (3, 50), dtype=np.uint32) << np.uint32(16)) + np.uint32(0x8000)
    halfway += np.array([[0], [1], [-1]]).astype(np.uint32)
    numbers = np.concatenate([numbers, halfway.view(np.float32)]).astype(np.float32)

    rounded = np.empty(numbers.shape, np.uint16)
    kernels.convert_rows(numbers, rounded)
    expected = torch.from_numpy(numbers).to(torch.bfloat16)
    np.testing.assert_array_equal(rounded, expected.view(torch.uint16).numpy())

    widened = np.empty_like(numbers)
    kernels.convert_rows(rounded, widened)
    np.testing.assert_array_equal(widened, expected.float().numpy())
