"""The contract of a training step on a GPU: every shape, dimension and dtype, three blocks of each."""

from __future__ import annotations

import numpy as np
import pytest

from step_contract import HAS_GPU, OBJECTIVES, Block, Maker, check_contract, each_kind_and_zeros, make_block, run_step
from swivel.config import TrainConfig
from swivel.training.backends import BackendSettings, ZeroSampling
from swivel.training.objective import find_unit_offsets

pytestmark = pytest.mark.gpu
if not HAS_GPU:
    pytest.skip("no CUDA device", allow_module_level=True)

SHAPES = [(1, 1), (1, 7), (41, 401), (401, 41), (1271, 300), (300, 1271), (64, 128), (128, 129)]
# Every shape in both orientations at the usual dimensions; other dimensions in one.
CASES = [
    *((shape, dim, mirrored) for shape in SHAPES for dim in (50, 300) for mirrored in (False, True)),
    *(((41, 401), dim, False) for dim in (64, 100, 1000, 1024)),
    *(((1271, 300), dim, True) for dim in (64, 100, 1000, 1024)),
]
TRITON = ["triton-on-cuda float32", "triton-on-cuda float16", "triton-on-cuda bfloat16"]
# The topmost mark varies fastest, so that a block and its reference are computed once for all dtypes.
on_triton = pytest.mark.parametrize("kind", TRITON)
on_both = each_kind_and_zeros(["torch-on-cuda float32", "torch-on-cuda bfloat16", *TRITON])


def make_blocks(shape: tuple[int, int], dim: int, objective: TrainConfig, *, mirrored: bool = False) -> list[Block]:
    """Return three blocks, or twelve if they have few rows: the error of a single row varies too much."""
    keys = range(3 if min(shape) > 8 else 12)
    return [make_block(shape, dim, objective, mirrored=mirrored, key=key) for key in keys]


@on_triton
@pytest.mark.parametrize(("shape", "dim", "mirrored"), CASES, ids=str)
def test_step_matches_the_reference(make: Maker, kind: str, shape: tuple[int, int], dim: int, mirrored: bool) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_blocks(shape, dim, settings.config, mirrored=mirrored), settings)


@on_triton
@pytest.mark.parametrize("dim", [1000, 1024])
def test_all_parts_of_a_long_vector_take_a_step_of_the_same_size(make: Maker, kind: str, dim: int) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    block, backend = make_block((1271, 300), dim, settings.config), make(settings)
    first, _ = run_step(backend, block)
    # Warps that share a vector could read its state after another one had changed it: in one run of thirty.
    for _ in range(100):
        again, _ = run_step(backend, block)
        for array, values in first.items():
            np.testing.assert_array_equal(again[array], values, err_msg=array)


@pytest.mark.parametrize("kind", ["triton-on-cuda float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_step_matches_the_reference_in_one_dimension(make: Maker, kind: str, shape: tuple[int, int]) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_blocks(shape, 1, settings.config), settings)


@on_both
@pytest.mark.parametrize("mirrored", [False, True], ids=["as stored", "mirrored"])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_step_matches_the_reference_for_every_objective_and_orientation(
    make: Maker, kind: str, objective: TrainConfig, zeros: ZeroSampling, mirrored: bool
) -> None:
    settings = BackendSettings(objective, zeros)
    check_contract(make, kind, make_blocks((41, 401), 50, objective, mirrored=mirrored), settings)


@on_both
@pytest.mark.parametrize("mirrored", [False, True], ids=["as stored", "mirrored"])
def test_weight_decay_is_larger_for_larger_sums(make: Maker, kind: str, zeros: ZeroSampling, mirrored: bool) -> None:
    config = TrainConfig(shift=-1.0, weight_decay=0.05, decay_power=0.5)
    block = make_block((41, 401), 50, config, mirrored=mirrored)
    unit = find_unit_offsets(float(block.x.sum()), config)
    settings = BackendSettings(config, zeros, unit_offsets=unit)
    check_contract(make, kind, block, settings)


@on_both
@pytest.mark.parametrize("shape", [(2, 1 << 16), (1 << 16, 2)], ids=str)
def test_positions_can_use_all_16_bits(make: Maker, kind: str, shape: tuple[int, int], zeros: ZeroSampling) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), zeros)
    check_contract(make, kind, make_block(shape, 50, settings.config), settings)


@on_triton
@pytest.mark.parametrize("shape", [(4096, 4096), (2500, 1801)], ids=str)
def test_blocks_of_the_usual_size(make: Maker, kind: str, shape: tuple[int, int]) -> None:
    settings = BackendSettings(TrainConfig(weight_decay=1e-4), ZeroSampling())
    check_contract(make, kind, make_block(shape, 300, settings.config, density=0.02), settings)
