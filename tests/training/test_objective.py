"""The objective: loss, gradient against finite differences, and rows or columns without counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.training.objective import (
    NEVER,
    Loss,
    column_offsets,
    log_or_never,
    loss_and_gradient,
    observed_targets,
    row_offsets,
    update_parameters,
)

Array = NDArray[np.float64]
OBJECTIVES = {
    "paper": TrainConfig(),
    "power .75": TrainConfig(confidence_power=0.75),
    "no base": TrainConfig(confidence_base=0.0, confidence_scale=1.0, confidence_power=1.0),
    "constant": TrainConfig(confidence_base=1.0, confidence_scale=0.0),
    "shift": TrainConfig(shift=np.log(5)),
    "unseen .5": TrainConfig(unseen=0.5),
}


def make_counts(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Array:
    return np.where(rng.random(shape) < density, rng.lognormal(0, 2, shape), 0.0)


def make_offsets(x: Array, objective: TrainConfig) -> Array:
    return row_offsets(x.sum(1), x.sum(), objective)[:, None] + column_offsets(x.sum(0))


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_gradient_is_the_slope_of_the_loss(objective: TrainConfig, density: float) -> None:
    rng = np.random.default_rng(1)
    x = make_counts(rng, (7, 5), density)
    offsets = rng.normal(0, 2, x.shape)
    products = rng.normal(0, 3, x.shape)
    _, gradient = loss_and_gradient(products, x, offsets, objective)
    slopes = np.empty_like(products)
    h = 1e-5
    for cell in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = products.copy()
            moved[cell] += sign * h
            loss, _ = loss_and_gradient(moved, x, offsets, objective)
            ends.append(loss.observed + loss.unobserved)
        slopes[cell] = (ends[0] - ends[1]) / (2 * h)

    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-7)


def test_one_observed_cell_has_the_loss_of_the_formula() -> None:
    x = np.array([[4.0]])
    offsets = np.array([[-1.5]])
    products = np.array([[0.25]])
    loss, gradient = loss_and_gradient(products, x, offsets, TrainConfig())
    distance = 0.25 - (np.log(4) - 1.5)

    assert loss.observed == pytest.approx(0.5 * 0.6 * distance**2)
    assert gradient[0, 0] == pytest.approx(0.6 * distance)
    assert (loss.observed_cells, loss.unobserved, loss.unobserved_cells) == (1, 0, 0)


def test_one_unobserved_cell_has_the_loss_of_the_formula() -> None:
    loss, gradient = loss_and_gradient(
        np.array([[0.25]]), np.zeros((1, 1)), np.array([[-1.5]]), TrainConfig(unseen=0.5)
    )
    margin = 0.25 - (-1.5 + np.log(0.5))
    assert loss.unobserved == pytest.approx(np.log1p(np.exp(margin)))
    assert gradient[0, 0] == pytest.approx(1 / (1 + np.exp(-margin)))
    assert (loss.observed, loss.observed_cells, loss.unobserved_cells) == (0, 0, 1)


def test_targets_are_the_pointwise_mutual_information() -> None:
    x = np.array([[3.0, 1.0], [2.0, 4.0]])
    pmi = np.log(x * x.sum() / np.outer(x.sum(1), x.sum(0)))
    np.testing.assert_allclose(observed_targets(x, make_offsets(x, TrainConfig())), pmi)


def test_shift_is_subtracted_from_every_target() -> None:
    x = np.array([[3.0, 1.0], [2.0, 4.0]])
    difference = make_offsets(x, TrainConfig()) - make_offsets(x, TrainConfig(shift=0.7))
    np.testing.assert_allclose(difference, 0.7)


def test_row_and_column_without_counts_have_no_gradient_and_no_loss() -> None:
    rng = np.random.default_rng(2)
    x = make_counts(rng, (6, 8), 0.5)
    x[2] = 0
    x[:, 5] = 0
    objective = TrainConfig(shift=1.0, unseen=0.5)
    products = rng.normal(0, 50, x.shape)
    loss, gradient = loss_and_gradient(products, x, make_offsets(x, objective), objective)

    assert np.all(gradient[2] == 0)
    assert np.all(gradient[:, 5] == 0)
    assert np.isfinite(gradient).all()
    assert np.isfinite(loss.observed + loss.unobserved)

    alone, _ = loss_and_gradient(products[[2]], x[[2]], make_offsets(x, objective)[[2]], objective)

    assert alone == Loss(0, 0, 0, 8)


def test_loss_of_very_large_products_is_finite() -> None:
    x = np.array([[1.0, 0.0]])
    loss, gradient = loss_and_gradient(np.array([[1e6, 1e6]]), x, np.zeros((1, 2)), TrainConfig())
    assert loss.unobserved == pytest.approx(1e6)
    assert gradient[0, 1] == 1


def test_log_of_zero_is_minus_never() -> None:
    assert log_or_never(np.array([0.0, 1.0])).tolist() == [-NEVER, 0.0]


def test_means_are_sums_divided_by_cells() -> None:
    loss = Loss(observed=6, observed_cells=3, unobserved=4, unobserved_cells=8)
    assert (loss.mean_observed, loss.mean_unobserved) == (2, 0.5)
    assert loss.mean == pytest.approx(10 / 11)


def test_means_of_no_cells_are_zero() -> None:
    assert (Loss().mean, Loss().mean_observed, Loss().mean_unobserved) == (0, 0, 0)


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 4), max_size=5))
def test_losses_add_up_field_by_field(parts: list[tuple[int, int, int, int]]) -> None:
    total = sum((Loss(*part) for part in parts), Loss())
    expected = np.array(parts).reshape(-1, 4).sum(0)
    got = (total.observed, total.observed_cells, total.unobserved, total.unobserved_cells)
    np.testing.assert_array_equal(got, expected)


def test_loss_is_the_sum_over_parts_of_the_matrix() -> None:
    rng = np.random.default_rng(3)
    x = make_counts(rng, (9, 6), 0.4)
    offsets, products = make_offsets(x, TrainConfig()), rng.normal(size=x.shape)
    whole, _ = loss_and_gradient(products, x, offsets, TrainConfig())
    top, _ = loss_and_gradient(products[:4], x[:4], offsets[:4], TrainConfig())
    bottom, _ = loss_and_gradient(products[4:], x[4:], offsets[4:], TrainConfig())

    assert (top + bottom).mean == pytest.approx(whole.mean, rel=1e-14)
    assert (top + bottom).observed_cells == whole.observed_cells


def test_adagrad_adds_the_square_before_it_divides() -> None:
    vectors = np.array([[1.0, 2.0], [0.0, 4.0]])
    accumulators = np.array([0.0, 11.0])
    update_parameters(vectors, accumulators, np.array([[1.0, -7.0], [3.0, -3.0]]), 0.1)
    np.testing.assert_allclose(accumulators, [(1 + 49) / 2, 11 + 9])
    np.testing.assert_allclose(
        vectors, [[1 - 0.1 * 1 / 5, 2 + 0.1 * 7 / 5], [-0.3 / np.sqrt(20), 4 + 0.3 / np.sqrt(20)]]
    )


def test_adagrad_with_decaying_accumulators_is_rmsprop_with_another_learning_rate() -> None:
    rng = np.random.default_rng(5)
    vectors, accumulators = np.ones((2, 3)), np.full(2, 0.01)
    expected, mean_square = vectors.copy(), 0.1 * accumulators

    for _ in range(4):
        gradient = rng.normal(size=(2, 3))
        update_parameters(vectors, accumulators, gradient, 0.1, 0.9)
        mean_square = 0.9 * mean_square + 0.1 * (gradient**2).mean(1)
        expected -= 0.1 * np.sqrt(0.1) * gradient / np.sqrt(mean_square)[:, None]

    np.testing.assert_allclose(vectors, expected, rtol=1e-12)
