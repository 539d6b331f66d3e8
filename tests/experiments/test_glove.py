"""GloVe: one step per cell as in float64, and planted groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import swivel
from experiments.glove import GloveConfig, train_epoch, train_glove
from swivel.counts import Matrix


def step_in_float64(
    i: int, j: int, count: float, parameters: np.ndarray, squares: np.ndarray, config: GloveConfig
) -> float:
    """Take the step of one cell, as in section 4.2 of the paper of GloVe, and return its loss."""
    w, c = parameters[0, i, :-1].copy(), parameters[1, j, :-1].copy()
    error = w @ c + parameters[0, i, -1] + parameters[1, j, -1] - np.log(count)
    weight = min(1.0, (count / config.x_max) ** config.alpha)
    for side, row, gradient in ((0, i, np.append(c, 1)), (1, j, np.append(w, 1))):
        scaled = config.learning_rate * weight * error * gradient
        parameters[side, row] -= scaled / np.sqrt(squares[side, row])
        squares[side, row] += scaled**2
    return float(0.5 * weight * error**2)


def test_an_epoch_is_one_step_per_cell_in_their_order() -> None:
    rng = np.random.default_rng(4)
    config = GloveConfig(dim=5, x_max=10.0, learning_rate=0.3)
    rows, columns = rng.integers(0, 6, (2, 40)).astype(np.int32)
    counts = rng.uniform(0.1, 30, 40)
    parameters, squares = rng.normal(size=(2, 6, 6)), rng.uniform(0.5, 2, (2, 6, 6))
    kept = parameters.astype(np.float32), squares.astype(np.float32)

    weights = np.minimum(1, (counts / 10) ** 0.75).astype(np.float32)
    loss = train_epoch(rows, columns, np.log(counts).astype(np.float32), weights, *kept, config.learning_rate, 1)

    cells = zip(rows, columns, counts, strict=True)
    expected = sum(step_in_float64(i, j, count, parameters, squares, config) for i, j, count in cells)
    assert loss == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(kept[0], parameters, atol=1e-4)
    np.testing.assert_allclose(kept[1], squares, rtol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_words_of_a_group_are_near_each_other(
    planted: Matrix, share_of_own_group: Callable[[np.ndarray], float], threads: int
) -> None:
    values, losses = train_glove(planted, GloveConfig(dim=8, epochs=60, x_max=10.0), threads=threads)
    assert losses[-1] < 0.5 * losses[0]
    assert share_of_own_group(values) > 0.9


def test_the_same_seed_gives_the_same_vectors_on_one_thread() -> None:
    matrix = swivel.count(["a b c a b", "b c a"], recipe="fast", min_count=1, progress=False)
    one, again, other = (train_glove(matrix, GloveConfig(dim=3, epochs=2, seed=seed))[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_the_defaults_are_those_of_the_paper() -> None:
    config = GloveConfig()
    assert (config.dim, config.epochs, config.x_max, config.alpha, config.learning_rate) == (300, 100, 100, 0.75, 0.05)


def test_with_sums_the_target_is_pmi() -> None:
    # Counts that are products of sums have PMI 0, which vectors near 0 and no biases fit.
    sums = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    products = np.outer(sums, sums) / sums.sum() * 15
    matrix = swivel.import_counts(products, sides="mirrored", progress=False)
    config = GloveConfig(dim=2, epochs=1)
    ranked = matrix.row_sums.astype(np.float32)
    assert train_glove(matrix, config, sums=ranked)[1][0] < 0.05 < train_glove(matrix, config)[1][0]
