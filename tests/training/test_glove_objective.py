"""The GloVe objective in the training loop, compared with a direct implementation."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from step_contract import HAS_GPU
from swivel.config import TrainConfig, result_settings, stage_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.errors import ConfigError
from swivel.pipeline.train import train as train_vectors
from swivel.runtime.progress import SilentProgress, Task
from swivel.storage import fingerprint
from swivel.training import plan as planning
from swivel.training.checkpoint import CheckpointStore
from swivel.training.loop import ORDER, TrainingResult, train_matrix
from swivel.training.plan import choose_zeros, describe_load
from swivel.vectors import load

CONFIG = stage_config(
    TrainConfig,
    "glove",
    dim=12,
    block_size=21,
    epochs=30,
    learning_rate=0.1,
    backend="cpu",
    zeros="all",
    checkpoint_minutes=0,
)
SAMPLED = replace(CONFIG, zeros="sampled", common=0.1)


class Signalling(SilentProgress):
    """Sends SIGINT to this process after a number of rounds."""

    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.left -= 1 if note else 0
        if note and self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def train(matrix: Matrix, config: TrainConfig, folder: Path, progress: Any = None) -> TrainingResult:
    trained = train_matrix(matrix, config, folder=folder, threads=2, progress=progress or SilentProgress())
    assert trained is not None
    return trained


def bits(trained: TrainingResult) -> tuple[bytes, bytes, tuple[object, ...]]:
    return trained.rows.tobytes(), trained.columns.tobytes(), trained.history


def counts_of(matrix: Matrix) -> NDArray[np.float64]:
    """Return all counts of a matrix with one block."""
    cells = matrix.cells(0, 0)
    x = np.zeros(matrix.shape)
    x[cells.positions >> 16, cells.positions & 0xFFFF] = cells.counts
    return x


class DirectGlove:
    """GloVe with separate biases, Adagrad, and all observed cells in one step."""

    def __init__(self, x: NDArray[np.float64], config: TrainConfig) -> None:
        self.x, self.rate = x, config.learning_rate
        draw = [
            np.random.default_rng((config.seed, 0, side, 0)).standard_normal((len(x), config.dim), np.float32)
            for side in (0, 1)
        ]
        vectors = [(v / np.float32(np.sqrt(config.dim))).astype(float) * (x.sum(1) > 0)[:, None] for v in draw]
        self.parameters = [*vectors, np.zeros(len(x)), np.zeros(len(x))]
        self.accumulators = [np.full(p.shape, float(np.float32(config.initial_accumulator))) for p in self.parameters]

    def step(self, rate: float) -> float:
        w, c, b, b2 = self.parameters
        seen = self.x > 0
        weight = np.where(seen, np.minimum(1, (self.x / 100) ** 0.75), 0)
        distance = w @ c.T + b[:, None] + b2 - np.log(np.where(seen, self.x, 1))
        pull = weight * distance
        gradients = [pull @ c, pull.T @ w, pull.sum(1), pull.sum(0)]

        for parameter, accumulator, gradient in zip(self.parameters, self.accumulators, gradients, strict=True):
            accumulator += (gradient / len(self.x)) ** 2
            parameter -= rate * gradient / len(self.x) / np.sqrt(accumulator)
        return float((0.5 * weight * distance**2).sum() / seen.sum())


def test_training_equals_a_direct_implementation_of_glove(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, block_size=62, backend="reference", epochs=20)
    direct = DirectGlove(counts_of(planted), config)
    losses = [direct.step(config.learning_rate * (1 - n / 20)) for n in range(20)]
    trained = train(planted, config, tmp_path)
    np.testing.assert_allclose([loss.mean for loss in trained.history], losses, rtol=1e-6)
    np.testing.assert_allclose(trained.rows, direct.parameters[0], atol=1e-5)
    np.testing.assert_allclose(trained.columns, direct.parameters[1], atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, SAMPLED], ids=["all cells", "observed cells"])
def test_groups_are_found_for_three_seeds(
    planted: Matrix, config: TrainConfig, share_of_own_group: Callable[[np.ndarray], float], tmp_path: Path
) -> None:
    for seed in (1, 2, 3):
        trained = train(planted, replace(config, seed=seed), tmp_path / str(seed))
        assert share_of_own_group(trained.rows + trained.columns) > 0.9


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("zeros", ["all", "sampled"])
def test_sampling_of_zeros_does_not_change_the_result(
    planted: Matrix, backend: str, zeros: str, tmp_path: Path
) -> None:
    config = replace(SAMPLED, epochs=5)
    truth = train(planted, replace(config, backend="reference", zeros="all"), tmp_path / "truth")
    trained = train(planted, replace(config, backend=backend, device="cpu", zeros=zeros), tmp_path / "ours")
    np.testing.assert_allclose(trained.rows, truth.rows, rtol=1e-3, atol=1e-4)
    for loss, true_loss in zip(trained.history, truth.history, strict=True):
        assert loss.mean == loss.mean_observed == pytest.approx(true_loss.mean, rel=1e-4)
        assert (loss.unobserved, loss.unobserved_cells) == (0, 0)


def test_triton_gives_the_result_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    if not HAS_GPU:
        monkeypatch.setattr(planning, "choose_backend", lambda c: (c.backend, "cpu"))
    matrix = build_small(tmp_path / "matrix")
    config = replace(CONFIG, dim=3, block_size=7, epochs=2, backend="triton", dtype="float32", common=0.4)

    for zeros in ("all", "sampled"):
        ours = train(matrix, replace(config, zeros=zeros), tmp_path / zeros)
        theirs = train(matrix, replace(config, zeros=zeros, backend="cpu", device="cpu"), tmp_path / f"{zeros}-cpu")
        np.testing.assert_allclose(ours.rows, theirs.rows, rtol=1e-3, atol=1e-4)
        assert ours.history[-1].mean == pytest.approx(theirs.history[-1].mean, rel=1e-4)
        assert ours.history[-1].unobserved == 0


def build_small(path: Path) -> Matrix:
    x = np.triu(np.random.default_rng(12).poisson(2, (7, 7)))
    x = x + np.triu(x, 1).T
    spec = MatrixSpec(rows=Vocabulary([f"w{n}" for n in range(7)]), symmetric=True)
    with MatrixBuilder(path, spec, memory_bytes=1 << 20) as builder:
        filled = np.nonzero(x)
        builder.add(filled[0], filled[1], x[filled])
        return builder.finish()


@pytest.mark.parametrize("config", [CONFIG, SAMPLED], ids=["all cells", "observed cells"])
@pytest.mark.parametrize("after", [1, 4, 9])
def test_interrupted_and_resumed_equals_uninterrupted(
    planted: Matrix, config: TrainConfig, after: int, tmp_path: Path
) -> None:
    config = replace(config, epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train(planted, config, tmp_path / "stopped", Signalling(after))
    assert bits(train(planted, config, tmp_path / "stopped")) == bits(train(planted, config, tmp_path / "whole"))


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
def test_ones_are_constant_and_biases_are_learned(planted: Matrix, backend: str, tmp_path: Path) -> None:
    config = replace(CONFIG, backend=backend, device="cpu", learning_rate=0.5, weight_decay=1e-2)
    with pytest.raises(KeyboardInterrupt):
        train(planted, config, tmp_path, Signalling(60))
    identity = fingerprint({"matrix": planted.fingerprint, "config": result_settings(config), "order": ORDER})
    saved = CheckpointStore(tmp_path, identity).load()

    assert saved is not None

    rows, columns = saved.arrays["rows"], saved.arrays["columns"]

    assert rows.shape == columns.shape == (62, 14)
    assert np.all(rows[:, 13] == 1)
    assert np.all(columns[:, 12] == 1)
    assert np.abs(rows[:, 12]).max() > 0.5
    assert np.abs(columns[:, 13]).max() > 0.5


def test_biases_are_no_part_of_the_result_and_words_without_counts_have_vectors_of_zeros(
    planted: Matrix, tmp_path: Path
) -> None:
    trained = train(planted, replace(CONFIG, epochs=2), tmp_path)
    for vectors in (trained.rows, trained.columns):
        assert vectors.shape == (62, 12)
        assert np.all(vectors[60:] == 0)
        assert np.all(np.abs(vectors[:60]).sum(1) > 0)


def test_device_load_includes_the_biases(planted: Matrix) -> None:
    assert describe_load(planted, CONFIG, (3, 3), "cpu").dim == 14
    assert describe_load(planted, replace(CONFIG, objective="swivel"), (3, 3), "cpu").dim == 12


def test_almost_no_zeros_are_sampled(planted: Matrix) -> None:
    zeros = choose_zeros(planted, replace(CONFIG, zeros="auto", common=0.1), "cpu", (2, 2))
    panels = list(zeros.panels(1000, 1000, (1,)))
    assert [(panel.start, panel.stop) for panel in panels] == [(0, 100), (100, 1000)]
    assert panels[1].chosen is not None
    assert len(panels[1].chosen) == 101


def test_recipe_gives_the_sum_of_both_sides_and_no_scores(planted: Matrix, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dim": 12, "epochs": 3, "block_size": 21, "backend": "cpu"}
    vectors = train_vectors(planted, tmp_path / "kept", recipe="glove", **settings)
    config = stage_config(TrainConfig, "glove", **settings)
    trained = train(planted, config, tmp_path / "alone")

    np.testing.assert_array_equal(vectors.vectors, trained.rows + trained.columns)
    np.testing.assert_array_equal(load(tmp_path / "kept").rows, trained.rows)

    with pytest.raises(ConfigError, match="no scores"):
        vectors.score("w0", "w1")


def test_recipe_has_the_settings_of_the_glove_paper() -> None:
    config = stage_config(TrainConfig, "glove")
    assert (config.epochs, config.weight_decay, config.confidence_most, config.confidence_base) == (100, 0, 1, 0)
    assert config.confidence_scale * 100**config.confidence_power == pytest.approx(1)


@pytest.mark.parametrize("setting", [{"shift": 1.0}, {"unseen": 0.5}])
def test_settings_without_effect_on_glove_are_rejected(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="have no effect with objective='glove'"):
        TrainConfig(objective="glove", **setting)  # type: ignore[arg-type]


def test_glove_has_no_weight_decay_by_sums() -> None:
    with pytest.raises(ConfigError, match=r"needs decay_power=0, got 0\.5"):
        TrainConfig(objective="glove", decay_power=0.5)
