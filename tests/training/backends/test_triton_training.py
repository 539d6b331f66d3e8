"""Training with the triton backend equals the other backends, and a resumed run equals an uninterrupted one.

The tests run on a GPU if there is one, else a few tiny epochs in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from step_contract import HAS_GPU
from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.training import training_plan as planning
from swivel.training.loop import TrainingResult
from training_runs import RunRecorder, allow_interpreter, bits, train

pytest.importorskip("triton")
pytest.importorskip("numba")  # builds the matrix

from swivel.training.backends.triton.backend import TritonBackend
from swivel.training.backends.triton.parameter_swap import ParameterStore

CONFIG = TrainConfig(dim=4, block_size=21, epochs=2, backend="triton", dtype="float32", checkpoint_minutes=0)
ROUNDS = 3  # per epoch over 62 x 62 in blocks of 21


@pytest.fixture(autouse=True)
def interpreter_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_interpreter(monkeypatch)


@pytest.fixture(scope="module")
def whole(planted: Matrix, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_GPU:
            patch.setattr(planning, "choose_backend", lambda _: ("triton", "cpu"))
        return train(planted, CONFIG, tmp_path_factory.mktemp("whole"))


def test_vectors_equal_those_of_the_cpu_backend(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=1, weight_decay=1e-4)
    ours = train(planted, config, tmp_path / "triton")
    theirs = train(planted, replace(config, backend="cpu", device="cpu"), tmp_path / "cpu")
    assert ours.plan.backend == "triton"

    np.testing.assert_allclose(ours.rows, theirs.rows, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.columns, theirs.columns, rtol=1e-3, atol=1e-4)
    for loss, truth in zip(ours.history, theirs.history, strict=True):
        assert loss.mean == pytest.approx(truth.mean, rel=1e-4)
        assert loss.observed_cells == truth.observed_cells == planted.cell_count
        assert loss.unobserved_cells == pytest.approx(truth.unobserved_cells)


def test_history_is_complete_and_in_order(planted: Matrix, whole: TrainingResult, tmp_path: Path) -> None:
    notes = RunRecorder()
    again = train(planted, CONFIG, tmp_path, notes)
    assert bits(again) == bits(whole)
    assert [loss.observed_cells for loss in again.history] == [planted.cell_count] * 2
    assert again.history[1].mean < again.history[0].mean

    assert [note.partition(",")[0] for note in notes.notes] == ["epoch 1/2"] * ROUNDS + ["epoch 2/2"] * ROUNDS
    assert notes.lines[-1].startswith("training 62 x 62, 2 epochs over 3 x 3 blocks: triton on ")
    assert not any("re-blocking" in line for line in notes.lines), "blocks are laid out on the device"


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_resumed_run_equals_an_uninterrupted_one(
    planted: Matrix, whole: TrainingResult, after: int, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(planted, CONFIG, tmp_path, RunRecorder(after))
    again = RunRecorder()
    assert bits(train(planted, CONFIG, tmp_path, again)) == bits(whole)
    # The next rounds of the epoch have started when a round is reported.
    end_of_epoch = ROUNDS * -(-after // ROUNDS)
    done = 3 * min(after + TritonBackend.rounds_ahead, end_of_epoch)
    assert f"resuming after {done} of 18 steps" in again.lines


def test_parameters_leave_the_device_only_at_the_end(
    planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches: list[int] = []
    fetch = ParameterStore.fetch

    def note(store: ParameterStore, side: int) -> Any:
        fetches.append(side)
        return fetch(store, side)

    monkeypatch.setattr(ParameterStore, "fetch", note)
    train(planted, CONFIG, tmp_path)
    assert fetches == [0, 1]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_an_epoch_copies_only_losses_and_one_flag_from_the_device(planted: Matrix, tmp_path: Path) -> None:
    def count_copies(epochs: int) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            train(planted, replace(CONFIG, epochs=epochs), tmp_path / str(epochs))
        return sum("Memcpy DtoH" in event.name for event in profile.events() or ())

    count_copies(1)  # The first run compiles.
    assert count_copies(4) - count_copies(2) == 2 * (ROUNDS + 1)


def test_words_without_counts_have_vectors_of_zeros(planted: Matrix, whole: TrainingResult) -> None:
    for vectors in (whole.rows, whole.columns):
        assert np.all(vectors[60:] == 0)
        assert np.all(np.abs(vectors[:60]).sum(1) > 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_are_found_for_three_seeds(
    planted: Matrix, dtype: str, share_of_own_group: Callable[[np.ndarray], float], tmp_path: Path
) -> None:
    for seed in (1, 2, 3):
        config = replace(CONFIG, weight_decay=1e-4, dtype=dtype, dim=12, epochs=30, seed=seed)
        trained = train(planted, config, tmp_path / str(seed))
        assert share_of_own_group(trained.rows + trained.columns) > 0.95
