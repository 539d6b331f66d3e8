"""Folding rows in: each row minimizes the objective, independent of the other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import swivel
from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import CountsError, TrainingError
from swivel.training import fold_in as fold_in_module
from swivel.training.fold_in import fold_in
from swivel.training.objective import column_offsets, loss_and_gradient, row_offsets

COLUMNS, DIM = 41, 5


class Table:
    """Columns like those of a training, and counts of new rows."""

    def __init__(self, seed: int, rows: int = 6, columns: int = COLUMNS, density: float = 0.3) -> None:
        rng = np.random.default_rng(seed)
        self.columns = rng.normal(0, 0.7, (columns, DIM)).astype(np.float32)
        self.column_sums = rng.integers(1, 400, columns).astype(np.float64)
        self.total = float(self.column_sums.sum())
        self.counts = rng.integers(1, 30, (rows, columns)) * (rng.random((rows, columns)) < density)

    def fold(self, config: TrainConfig, counts: Any = None, **options: Any) -> np.ndarray:
        counts = self.counts if counts is None else counts
        return fold_in(counts, self.columns, self.column_sums, self.total, config, **{"device": "cpu", **options})

    def loss(self, vector: np.ndarray, row: int, config: TrainConfig) -> tuple[float, np.ndarray]:
        """Return the loss and the gradient of a row, from the reference implementation."""
        x = self.counts[row].astype(np.float64)
        offsets = row_offsets(x.sum(keepdims=True), self.total, config) + column_offsets(self.column_sums)
        loss, slopes = loss_and_gradient(self.columns.astype(np.float64) @ vector, x, offsets, config)
        decay = max(config.weight_decay * x.sum() ** config.decay_power, 5e-5) * len(x)
        return loss.observed + loss.unobserved + decay / 2 * vector @ vector, slopes @ self.columns + decay * vector


CONFIGS = [
    TrainConfig(dim=DIM, weight_decay=1e-4),
    TrainConfig(dim=DIM, weight_decay=0.0),
    TrainConfig(dim=DIM, weight_decay=0.05, shift=1.5, unseen=0.2),
    TrainConfig(dim=DIM, weight_decay=0.02, decay_power=0.5),
    TrainConfig(dim=DIM, weight_decay=1e-3, confidence_base=0.5, confidence_power=1.0),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_reference_gradient_is_zero_at_the_solution(config: TrainConfig) -> None:
    table = Table(3)
    for row, vector in enumerate(table.fold(config).astype(np.float64)):
        _, at_zero = table.loss(np.zeros(DIM), row, config)
        _, gradient = table.loss(vector, row, config)
        assert np.linalg.norm(gradient) < 1e-6 * np.linalg.norm(at_zero)  # vectors are rounded to float32


@pytest.mark.parametrize("config", CONFIGS)
def test_solution_equals_that_of_scipy(config: TrainConfig) -> None:
    table = Table(4)
    best = scipy.optimize.minimize(
        table.loss, np.ones(DIM), args=(2, config), jac=True, method="BFGS", options={"gtol": 1e-7}
    )
    np.testing.assert_allclose(table.fold(config)[2], best.x, atol=1e-4)


def loss_of_the_paper(vector: np.ndarray, table: Table, x: np.ndarray, config: TrainConfig) -> float:
    """Return the loss of a row as the equations of docs/algorithm.md say it, without any function of Swivel."""
    x = np.log1p(x) if config.transform == "log" else x.astype(np.float64)
    counts = np.where(x > 0, x, config.unseen)
    pmi = np.log(counts * table.total / (x.sum() * table.column_sums)) - config.shift
    distances = table.columns.astype(np.float64) @ vector - pmi

    confidence = config.confidence_base + config.confidence_scale * x**config.confidence_power
    losses = np.where(x > 0, confidence * distances**2 / 2, np.logaddexp(0, distances))
    decay = max(config.weight_decay * x.sum() ** config.decay_power, 5e-5)
    return float(losses.sum() + len(x) * decay / 2 * vector @ vector)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    density=st.floats(0.1, 1),
    changes=st.fixed_dictionaries(
        {
            "weight_decay": st.floats(1e-4, 0.1),
            "decay_power": st.floats(0, 1),
            "shift": st.floats(-1, 3),
            "unseen": st.floats(0.01, 2),
            "confidence_base": st.floats(0.01, 1),
            "confidence_scale": st.floats(0, 1),
            "confidence_power": st.floats(0, 1),
            "transform": st.sampled_from(["none", "log"]),
        }
    ),
)
def test_folded_rows_minimize_the_equations(seed: int, density: float, changes: dict[str, Any]) -> None:
    table, config = Table(seed, rows=1, density=density), TrainConfig(dim=DIM, **changes)
    folded = table.fold(config)[0].astype(np.float64)
    if not table.counts.any():
        assert not folded.any()
        return

    arguments = table, table.counts[0], config
    best = scipy.optimize.minimize(loss_of_the_paper, np.zeros(DIM), args=arguments, method="BFGS")
    assert loss_of_the_paper(folded, *arguments) <= best.fun + 1e-6 * abs(best.fun)
    np.testing.assert_allclose(folded, best.x, atol=2e-3)


@settings(max_examples=25)
@given(st.integers(0, 2**20), st.integers(1, 9), st.integers(1, 60), st.floats(0, 1), st.floats(0, 0.1))
def test_gradient_is_zero_for_any_table(seed: int, rows: int, columns: int, density: float, decay: float) -> None:
    table, config = Table(seed, rows, columns, density), TrainConfig(dim=DIM, weight_decay=decay)
    for row, vector in enumerate(table.fold(config).astype(np.float64)):
        if table.counts[row].any():
            _, at_zero = table.loss(np.zeros(DIM), row, config)
            _, gradient = table.loss(vector, row, config)
            assert np.linalg.norm(gradient) <= 3e-5 * np.linalg.norm(at_zero) + 1e-6


def test_other_rows_and_the_batch_size_do_not_change_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    table, config = Table(5, rows=40), CONFIGS[0]
    together = table.fold(config)
    monkeypatch.setattr(fold_in_module, "BATCH_BYTES", fold_in_module.ARRAYS_PER_CELL * COLUMNS * 8 * 4)
    np.testing.assert_allclose(table.fold(config), together, rtol=3e-7, atol=1e-9)
    alone = np.concatenate([table.fold(config, table.counts[n : n + 1]) for n in range(40)])
    np.testing.assert_allclose(alone, together, rtol=3e-7, atol=1e-9)


def test_the_same_rows_give_the_same_bits() -> None:
    table = Table(6)
    assert table.fold(CONFIGS[0]).tobytes() == table.fold(CONFIGS[0]).tobytes()


@pytest.mark.parametrize("form", ["csr_matrix", "csr_array", "coo_matrix", "csc_array"])
def test_sparse_counts_give_the_dense_result_and_are_not_modified(form: str) -> None:
    table = Table(7)
    counts = getattr(scipy.sparse, form)(table.counts)
    before = counts.toarray()
    np.testing.assert_array_equal(table.fold(CONFIGS[0], counts), table.fold(CONFIGS[0]))
    np.testing.assert_array_equal(counts.toarray(), before)


def test_duplicate_cells_are_summed() -> None:
    table = Table(8)
    rows, columns = np.nonzero(table.counts)
    halves = table.counts[rows, columns] / 2
    places = np.tile(rows, 2), np.tile(columns, 2)
    twice = scipy.sparse.coo_array((np.tile(halves, 2), places), table.counts.shape)
    np.testing.assert_array_equal(table.fold(CONFIGS[0], twice), table.fold(CONFIGS[0]))


def test_a_row_without_counts_is_zero() -> None:
    table = Table(9)
    table.counts[1] = 0
    vectors = table.fold(CONFIGS[0])
    assert vectors.dtype == np.float32 and not vectors[1].any() and vectors[0].any()
    assert table.fold(CONFIGS[0], np.zeros((0, COLUMNS))).shape == (0, DIM)


def test_columns_without_training_counts_are_ignored() -> None:
    table = Table(10)
    table.column_sums[3] = 0
    table.columns[3] = 0
    expected = table.counts.copy()
    expected[:, 3] = 0
    table.counts[:, 3] = 1000
    np.testing.assert_array_equal(table.fold(CONFIGS[0]), table.fold(CONFIGS[0], expected))


@pytest.mark.parametrize("size", [1e-9, 1e12])
def test_one_count_of_any_size_gives_a_finite_vector(size: float) -> None:
    counts = np.zeros((1, COLUMNS))
    counts[0, 7] = size
    vector = Table(11).fold(CONFIGS[1], counts)
    assert np.isfinite(vector).all() and vector.any()


def test_folded_rows_are_near_the_trained_ones(
    planted: Matrix, share_of_own_group: Callable[[np.ndarray], float]
) -> None:
    config = TrainConfig(dim=8, weight_decay=1e-2, device="cpu")
    trained = swivel.train(planted, recipe="fast", combine="rows", dim=8, weight_decay=1e-2, device="cpu")
    counts = planted.to_scipy()
    assert trained.columns is not None

    folded = fold_in(counts, trained.columns, planted.column_sums, planted.total, config, device="cpu")
    assert share_of_own_group(folded) > 0.9

    with_counts = planted.row_sums > 0
    cosines = (folded * trained.rows).sum(1)[with_counts]
    cosines /= (np.linalg.norm(folded, axis=1) * np.linalg.norm(trained.rows, axis=1))[with_counts]
    assert cosines.mean() > 0.95


def test_float32_is_close_to_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(12)
    expected = table.fold(CONFIGS[0])
    monkeypatch.setattr(fold_in_module, "_choose_dtype", lambda device: torch.float32)
    np.testing.assert_allclose(table.fold(CONFIGS[0]), expected, atol=1e-3)


def test_only_apple_gpus_use_float32() -> None:
    assert fold_in_module._choose_dtype("mps:0") == torch.float32
    assert fold_in_module._choose_dtype("cuda") == fold_in_module._choose_dtype("cpu") == torch.float64


class LargeTable(Table):
    """A table with more columns than are sampled, whose counts follow from planted vectors."""

    def __init__(self, seed: int, rows: int = 48) -> None:
        super().__init__(seed, rows=1, columns=3000)
        rng = np.random.default_rng(seed)
        self.columns = rng.normal(0, 0.8, (3000, DIM)).astype(np.float32)
        self.column_sums = np.sort(1e6 / (10 + np.arange(3000)) * rng.uniform(0.5, 2, 3000))
        self.total = float(self.column_sums.sum())
        shares = np.exp(rng.normal(0, 0.8, (rows, DIM)) @ self.columns.T) * self.column_sums
        sizes = np.geomspace(2, 20_000, rows)[:, None]
        self.counts = rng.poisson(sizes * shares / shares.sum(1, keepdims=True))


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_in_module, "SAMPLE_COLUMNS", 500)


def find_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(1) / norms)


@pytest.mark.parametrize("config", CONFIGS)
def test_sampled_columns_give_nearly_the_exact_minimum(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    table = LargeTable(20)
    assert table.counts.sum(1).min() < 5
    exact = table.fold(config)
    monkeypatch.setattr(fold_in_module, "SAMPLE_COLUMNS", 500)
    sampled = table.fold(config)

    assert sampled.dtype == np.float32
    assert (sampled != exact).any()
    assert find_cosines(exact, sampled).min() > 0.98
    np.testing.assert_allclose(np.linalg.norm(sampled, axis=1), np.linalg.norm(exact, axis=1), rtol=0.2)


def test_correction_removes_most_of_the_error_of_the_sample(
    small_sample: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LargeTable(21)
    corrected = table.fold(CONFIGS[0])
    monkeypatch.setattr(fold_in_module, "SAMPLE_STEPS", [(50, 500)])
    sampled = table.fold(CONFIGS[0])
    monkeypatch.setattr(fold_in_module, "SAMPLE_COLUMNS", 3000)
    exact = table.fold(CONFIGS[0])

    errors = [np.median(np.linalg.norm(vectors - exact, axis=1)) for vectors in (sampled, corrected)]
    assert errors[1] < errors[0] / 4


@pytest.mark.usefixtures("small_sample")
def test_sampled_rows_do_not_depend_on_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LargeTable(22)
    together = table.fold(CONFIGS[0])
    alone = np.concatenate([table.fold(CONFIGS[0], table.counts[n : n + 1]) for n in range(len(together))])
    np.testing.assert_allclose(alone, together, atol=1e-3)

    monkeypatch.setattr(fold_in_module, "BATCH_BYTES", fold_in_module.ARRAYS_PER_CELL * 500 * 4 * 5)
    monkeypatch.setattr(fold_in_module, "PIECE", 700)
    np.testing.assert_allclose(table.fold(CONFIGS[0]), together, atol=1e-3)


@pytest.mark.usefixtures("small_sample")
def test_sampled_rows_have_the_same_bits_twice_and_another_sample_with_another_seed() -> None:
    table = LargeTable(23)
    first = table.fold(CONFIGS[0])
    assert first.tobytes() == table.fold(CONFIGS[0]).tobytes()
    assert first.tobytes() != table.fold(replace(CONFIGS[0], seed=2)).tobytes()


@pytest.mark.usefixtures("small_sample")
def test_sampled_rows_without_counts_are_zero_and_columns_without_counts_are_ignored() -> None:
    table = LargeTable(24)
    table.column_sums[:600] = 0
    table.columns[:600] = 0
    table.counts[5] = 0
    expected = table.counts.copy()
    expected[:, :600] = 0
    vectors = table.fold(CONFIGS[0])
    assert not vectors[5].any()
    np.testing.assert_array_equal(vectors, table.fold(CONFIGS[0], expected))


@pytest.mark.usefixtures("small_sample")
@pytest.mark.parametrize("size", [1e-9, 1e12])
def test_sampled_row_with_one_count_of_any_size_is_finite(size: float) -> None:
    counts = np.zeros((1, 3000))
    counts[0, 7] = size
    vector = LargeTable(25).fold(CONFIGS[1], counts)
    assert np.isfinite(vector).all() and vector.any()


@pytest.mark.usefixtures("small_sample")
def test_weights_of_the_sample_estimate_sums_over_all_columns() -> None:
    sums = np.random.default_rng(26).permutation(1e6 / (10 + np.arange(3000.0)))
    ids, weights = fold_in_module._sample_columns(sums, 1)
    assert len(ids) == len(set(ids.tolist())) == 500
    assert set(np.argsort(-sums)[:10].tolist()) <= set(ids[weights == 1].tolist())
    np.testing.assert_allclose((weights * sums[ids]).sum(), sums.sum(), rtol=0.1)
    estimates = [fold_in_module._sample_columns(sums, seed)[1].sum() for seed in range(40)]
    np.testing.assert_allclose(np.mean(estimates), 3000, rtol=0.05)


@pytest.mark.usefixtures("small_sample")
def test_few_columns_with_large_sums_are_the_whole_sample() -> None:
    sums = np.where(np.arange(3000) % 300 == 7, 1e14, 0.0)
    ids, weights = fold_in_module._sample_columns(sums, 1)  # Warnings are errors.
    assert ids.tolist() == list(range(7, 3000, 300))
    assert (weights == 1).all()


@pytest.mark.gpu
def test_a_gpu_finds_the_same_vectors() -> None:
    table = Table(13, rows=200)
    np.testing.assert_allclose(table.fold(CONFIGS[0], device="cuda"), table.fold(CONFIGS[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.ones((2, 3)), r"counts must have shape \(rows, 41\) to match the columns, got \(2, 3\)"),
        (np.ones(COLUMNS), r"got \(41,\)"),
        (np.full((1, COLUMNS), -1.0), "row 0, column 0: count -1; counts must be finite and >= 0"),
        (np.full((1, COLUMNS), np.nan), "row 0, column 0: count nan"),
        (np.full((1, COLUMNS), np.inf), "row 0, column 0: count inf"),
    ],
)
def test_error_names_invalid_counts(counts: np.ndarray, message: str) -> None:
    with pytest.raises(CountsError, match=message):
        Table(14).fold(CONFIGS[0], counts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column_sums": np.ones(3)}, r"got \(41, 5\) and \(3,\)"),
        ({"columns": np.ones(COLUMNS)}, r"columns must be \(n, dim\)"),
        ({"columns": np.full((COLUMNS, DIM), np.nan)}, "must be finite"),
        ({"column_sums": np.full(COLUMNS, np.inf)}, "must be finite"),
        ({"total": 0.0}, r"total must be positive and finite \(the sum of all training counts\), got 0"),
        ({"total": np.nan}, "got nan"),
    ],
)
def test_error_names_invalid_columns(change: dict[str, Any], message: str) -> None:
    table = Table(15)
    for name, value in change.items():
        setattr(table, name, value)
    with pytest.raises(CountsError, match=message):
        table.fold(CONFIGS[0])


def test_error_names_a_missing_device() -> None:
    with pytest.raises(TrainingError, match="device 'nonsense' cannot be used"):
        Table(17).fold(CONFIGS[0], device="nonsense")
