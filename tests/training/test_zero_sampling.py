"""Sampled zeros are unbiased, and every observed cell is computed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.counts import BlockCells
from swivel.training.backends import BackendSettings, ParameterBlock
from swivel.training.backends.base import Sides
from swivel.training.backends.reference import ReferenceBackend
from swivel.training.objective import column_offsets, row_offsets
from swivel.training.zero_sampling import ZeroSampling

SAMPLED = ZeroSampling(common=0.1, middle=0.4, share=0.05)
shares = st.floats(1e-4, 1.0)
sizes = st.integers(1, 80)
shared = st.none() | st.integers(1, 40)  # rows that share a sample


def weights_of(zeros: ZeroSampling, shape: tuple[int, int], seed: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the weight of each zero of a block in one step."""
    weights = np.full(shape, np.nan)
    for panel in zeros.panels(*shape, seed):
        weights[panel.start : panel.stop] = 0
        columns = np.arange(shape[1]) if panel.columns is None else panel.columns
        weights[panel.start : panel.stop, columns] = 1 if panel.weights is None else panel.weights
    return weights


@given(shares, shares, shares, shared, sizes, sizes, st.integers(0, 2**32))
def test_every_row_is_in_exactly_one_panel(
    common: float, middle: float, share: float, together: int | None, rows: int, columns: int, seed: int
) -> None:
    panels = list(ZeroSampling(common, middle, share, together).panels(rows, columns, (seed,)))
    assert [row for panel in panels for row in range(panel.start, panel.stop)] == list(range(rows))


@given(shares, shares, shares, shared, sizes, sizes, st.integers(0, 2**32))
def test_chosen_columns_are_distinct_ascending_and_weighted(
    common: float, middle: float, share: float, together: int | None, rows: int, columns: int, seed: int
) -> None:
    for panel in ZeroSampling(common, middle, share, together).panels(rows, columns, (seed,)):
        if panel.columns is None:
            assert panel.weights is None
            continue
        assert panel.weights is not None
        assert len(panel.weights) == len(panel.columns) < columns
        assert np.all(np.diff(panel.columns) > 0)
        assert 0 <= panel.columns[0] <= panel.columns[-1] < columns
        assert panel.weights.dtype == np.float32


@given(shares, shares, shares, shared, sizes, sizes, st.integers(0, 2**32))
def test_zeros_of_common_rows_and_columns_always_have_weight_one(
    common: float, middle: float, share: float, together: int | None, rows: int, columns: int, seed: int
) -> None:
    weights = weights_of(ZeroSampling(common, middle, share, together), (rows, columns), (seed,))
    assert np.all(weights[: round(rows * common)] == 1)
    assert np.all(weights[:, : round(columns * common)] == 1)


@given(shares, shares, shares, shared, sizes, sizes, st.integers(0, 2**32))
def test_weights_of_a_row_sum_to_the_number_of_columns_of_each_tier(
    common: float, middle: float, share: float, together: int | None, rows: int, columns: int, seed: int
) -> None:
    """The sampled columns of a tier have weight size / sampled each, so they sum to the size of the tier."""
    weights = weights_of(ZeroSampling(common, middle, share, together), (rows, columns), (seed,))
    edges = [0, round(columns * common), round(columns * max(common, middle)), columns]
    for start, stop in pairwise(edges):
        np.testing.assert_allclose(weights[:, start:stop].sum(1), stop - start, rtol=1e-6)


@pytest.mark.parametrize("together", [None, 4])
def test_every_zero_has_an_expected_weight_of_one(together: int | None) -> None:
    shape, seeds = (30, 40), 4000
    total, squares = np.zeros(shape), np.zeros(shape)
    for seed in range(seeds):
        weights = weights_of(replace(SAMPLED, rows=together), shape, (seed,))
        total += weights
        squares += weights**2

    mean = total / seeds
    error = np.sqrt((squares / seeds - mean**2) / seeds)
    assert squares.max() > 2 * seeds, "nothing was sampled"
    assert np.all(np.abs(mean - 1) <= 5 * error + 1e-6)


def test_samples_of_a_few_rows_cover_the_columns_evenly() -> None:
    """The sum of the weights of a column over the rows of a block varies less: in most steps, some rows sample it."""
    zeros, shape = ZeroSampling(common=0.05, middle=0.3, share=0.0125), (400, 300)
    together, apart = (
        np.array([weights_of(each, shape, (seed,)).mean(0) for seed in range(200)]).std(0).mean()
        for each in (zeros, replace(zeros, rows=10))
    )
    assert apart < 0.3 * together


def test_rarer_tiers_are_sampled_less_densely() -> None:
    weights = weights_of(ZeroSampling(common=0.05, middle=0.3, share=0.0125), (1000, 1000), (1,))
    heaviest = [[weights[r, c].max() for c in (slice(50, 300), slice(300, None))] for r in (100, 900)]
    assert heaviest[0][0] < heaviest[0][1] < heaviest[1][1]
    assert (weights > 0).mean() < 0.25


def test_the_sample_depends_on_the_seed_alone() -> None:
    first, again, other = (weights_of(SAMPLED, (50, 60), seed) for seed in ((1, 2), (1, 2), (1, 3)))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_all_zeros_are_one_panel_without_weights() -> None:
    panels = list(ZeroSampling().panels(7, 5, (1,)))
    assert [(panel.start, panel.stop, panel.columns, panel.weights) for panel in panels] == [(0, 7, None, None)]


@pytest.fixture(scope="module")
def block() -> tuple[BlockCells, Sides]:
    rng = np.random.default_rng(5)
    x = np.where(rng.random((24, 30)) < 0.2, rng.lognormal(0, 1, (24, 30)), 0.0)
    i, j = np.nonzero(x)
    offsets = row_offsets(x.sum(1), x.sum(), TrainConfig()), column_offsets(x.sum(0))
    sides = [ParameterBlock(rng.normal(0, 0.5, (n, 4)), None, o) for n, o in zip(x.shape, offsets, strict=True)]
    cells = BlockCells((i << 16 | j).astype(np.uint32), x[i, j].astype(np.float32), mirrored=False)
    return cells, (sides[0], sides[1])


def test_expected_gradient_and_loss_are_the_full_ones(block: tuple[BlockCells, Sides]) -> None:
    seeds = 400
    full_loss, *full = ReferenceBackend(BackendSettings(TrainConfig(), ZeroSampling())).add_gradients(*block, (0,))
    sampled = ReferenceBackend(BackendSettings(TrainConfig(), SAMPLED))
    results = [sampled.add_gradients(*block, (seed,)) for seed in range(seeds)]

    for side in (0, 1):
        samples = np.array([gradients[side] for _, *gradients in results])
        error = samples.std(0) / np.sqrt(seeds)
        assert error.max() > 1e-3, "nothing was sampled"
        z = (samples.mean(0) - full[side]) / np.maximum(error, 1e-9)
        assert np.abs(z).max() < 5
        assert np.sqrt((z**2).mean()) < 1.5

    unobserved = np.array([loss.unobserved for loss, *_ in results])
    assert unobserved.mean() == pytest.approx(full_loss.unobserved, abs=5 * unobserved.std() / np.sqrt(seeds))
    assert {loss.observed_cells for loss, *_ in results} == {full_loss.observed_cells}
    for loss, *_ in results:
        assert loss.observed == pytest.approx(full_loss.observed, rel=1e-12)
