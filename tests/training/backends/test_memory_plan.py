"""Data larger than the device: the order of blocks, memory estimates, and whole runs with a memory limit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import DamagedFolder, TrainingError
from swivel.training import training_plan as planning
from swivel.training.backends import BackendSettings, ZeroSampling
from swivel.training.loop import TrainingResult, train_matrix
from swivel.training.schedule import block_starts, group_starts, rounds_in_groups
from swivel.training.training_plan import TrainingPlan

pytest.importorskip("triton")
from streaming_runs import DIM, PlainLauncher, each_kind, make_needs
from swivel.training.backends.triton import backend as triton_backend
from swivel.training.backends.triton.memory_plan import Banks, DeviceMemoryEstimate, arrange, choose_order
from training_runs import RunRecorder

blocks = st.integers(1, 12)
seeds = st.tuples(st.integers(0, 2**32), st.integers(0, 9))


# The order of blocks.


@given(blocks, blocks, blocks, blocks, seeds)
def test_every_block_comes_once_and_no_two_of_a_round_share_parameters(
    rows: int, columns: int, row_group: int, column_group: int, seed: tuple[int, int]
) -> None:
    rounds = rounds_in_groups(rows, columns, row_group, column_group, seed)
    assert sorted(block for round in rounds for block in round) == [(i, j) for i in range(rows) for j in range(columns)]
    for round in rounds:
        assert len({i for i, _ in round}) == len({j for _, j in round}) == len(round)


@given(blocks, blocks, blocks, blocks, seeds)
def test_the_number_of_loaded_groups_is_minimal(
    rows: int, columns: int, row_group: int, column_group: int, seed: tuple[int, int]
) -> None:
    sides = group_starts(rows, row_group), group_starts(columns, column_group)
    loads, held = 0, [-1, -1]
    for block in (block for round in rounds_in_groups(rows, columns, row_group, column_group, seed) for block in round):
        for side in (0, 1):
            group = int(np.searchsorted(sides[side], block[side], side="right"))
            loads += group != held[side]
            held[side] = group

    # Two loads for the first pair of groups; every further pair differs from the previous one in at least one group.
    pairs = (len(sides[0]) - 1) * (len(sides[1]) - 1)
    assert loads == pairs + 1


@given(blocks, blocks)
def test_groups_have_at_most_the_requested_size_and_are_as_few_as_possible(count: int, group: int) -> None:
    sizes = np.diff(group_starts(count, group))
    assert sizes.sum() == count
    assert len(sizes) == -(-count // group)
    assert sizes.max() <= group
    assert sizes.max() - sizes.min() <= 1


def test_epochs_differ_in_their_order_of_groups() -> None:
    orders = {str(rounds_in_groups(8, 8, 4, 2, (1, 1, number))) for number in range(20)}
    assert len(orders) == 20
    assert rounds_in_groups(8, 8, 4, 2, (1, 1)) == rounds_in_groups(8, 8, 4, 2, (1, 1))


def test_fewer_blocks_move_with_the_smaller_number_of_groups_outside() -> None:
    for groups, outside in (((6, 2), 0), ((2, 6), 1)):
        first = [block[outside] // 6 for round in rounds_in_groups(12, 12, *groups, (3,)) for block in round]
        assert int(np.count_nonzero(np.diff(first))) == 1


# Estimates and choices.


def min_bytes(kind: str, groups: tuple[int, int] | None, banks: tuple[int, int] = (1, 1)) -> int:
    return make_needs(kind).min_bytes(groups, banks)


@each_kind
def test_order_is_in_groups_only_if_not_all_parameters_fit(kind: str) -> None:
    needs, enough = make_needs(kind), min_bytes(kind, None)
    assert choose_order(needs, math.inf) is None
    assert choose_order(needs, enough) is None
    groups = choose_order(needs, enough - 1)
    assert groups is not None
    assert min(arrange(needs, groups, enough - 1), key=lambda side: side.banks).banks >= 1


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.02, 1.2))
@settings(max_examples=40)
def test_chosen_groups_fit(rows: int, columns: int, share: float) -> None:
    starts = block_starts(300 * rows + 1, rows), block_starts(200 * columns, columns)
    job = BackendSettings(TrainConfig(), ZeroSampling(), cells=10**7, dtype="bfloat16")
    needs = DeviceMemoryEstimate(job, starts, 50)
    memory = int(share * needs.min_bytes(None, (1, 1)))
    smallest = needs.min_bytes((1, 1), (1, 1))
    if memory < smallest:
        with pytest.raises(TrainingError, match=r"one row block and one column block need .*; raise device_memory"):
            choose_order(needs, memory)
    else:
        groups = choose_order(needs, memory)
        assert (groups is None) == (share >= 1)
        chosen = arrange(needs, groups, memory)
        assert needs.min_bytes(groups, (chosen[0].banks, chosen[1].banks)) <= memory


def test_more_memory_never_makes_groups_that_move_more() -> None:
    starts = block_starts(97 * 4096, 97)
    settings = BackendSettings(TrainConfig(), ZeroSampling(), cells=10**9, is_halved=True, dtype="bfloat16")
    needs = DeviceMemoryEstimate(settings, (starts, starts), 300)
    whole = needs.min_bytes(None, (1, 1))
    chosen = [choose_order(needs, int(share * whole)) for share in (0.3, 0.5, 0.7, 0.9, 1.0)]
    assert chosen[-1] is None
    loads = [-(-97 // g[0]) * -(-97 // g[1]) for g in chosen if g is not None]
    assert loads == sorted(loads, reverse=True)
    assert all(min(g) >= 4 for g in chosen if g is not None)  # large enough for launches that fill a device


def test_a_run_never_changes_its_order_to_save_memory() -> None:
    needs = make_needs("symmetric")
    for groups, what in ((None, "all blocks"), ((2, 2), "groups of 2 x 2 blocks")):
        too_little = min_bytes("symmetric", groups) - 1
        with pytest.raises(TrainingError, match=rf"this run trains {what} together, which needs .*; free some"):
            arrange(needs, groups, too_little)


def test_groups_get_a_bank_each_or_two_or_one() -> None:
    needs = make_needs("symmetric")
    banks_of_sides = [
        [side.banks for side in arrange(needs, (1, 2), min_bytes("symmetric", (1, 2), banks))]
        for banks in ((4, 2), (3, 2), (2, 2), (1, 1))
    ]
    assert banks_of_sides == [[4, 2], [2, 2], [2, 2], [1, 1]]


def test_banks_are_consecutive() -> None:
    needs = make_needs("rectangular")
    rows, columns = needs.banks((2, 2), (2, 1))
    slots = [rows.slot(block, bank) for bank in (0, 1) for block in rows.blocks(0)]
    slots += [columns.slot(block, 0) for block in columns.blocks(0)]
    assert slots == list(range(rows.slots + columns.slots)) == list(range(6))
    assert [rows.group_of(block) for block in range(5)] == [0, 0, 1, 1, 2]
    assert Banks((0, 2, 4, 5), 3, 0).is_whole


# Whole runs.


CONFIG = TrainConfig(dim=DIM, block_size=21, epochs=3, backend="triton", device="cpu", checkpoint_minutes=0)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the triton backend be chosen on a CPU, with steps that use no kernels."""
    monkeypatch.setattr(planning, "choose_backend", lambda config: ("triton", "cpu"))
    monkeypatch.setattr(planning, "choose_dtype", lambda *_, **__: "float32")
    monkeypatch.setattr(triton_backend, "StepLauncher", PlainLauncher)


def train(matrix: Matrix, folder: Path, memory: int | None, progress: RunRecorder | None = None) -> TrainingResult:
    config = replace(CONFIG, device_memory=None if memory is None else str(memory))
    trained = train_matrix(matrix, config, folder=folder, threads=1, progress=progress or RunRecorder())
    assert trained is not None
    return trained


def bits_of(trained: TrainingResult) -> tuple[bytes, bytes, Any, Any]:
    return trained.rows.tobytes(), trained.columns.tobytes(), trained.history, trained.plan


def memory_of(matrix: Matrix, groups: tuple[int, int]) -> int:
    settings = planning.backend_settings(matrix, CONFIG, TrainingPlan(3, 3, 1, "triton", "cpu", "float32"))
    starts = block_starts(matrix.shape[0], 3), block_starts(matrix.shape[1], 3)
    return DeviceMemoryEstimate(settings, starts, CONFIG.dim).min_bytes(groups, (1, 1))


@pytest.mark.usefixtures("on_cpu")
def test_training_with_a_memory_limit_is_planned_once_and_resumed_exactly(planted: Matrix, tmp_path: Path) -> None:
    memory = memory_of(planted, (1, 1))
    progress = RunRecorder()
    whole = train(planted, tmp_path / "whole", memory, progress)
    assert whole.plan.groups is not None
    assert "parameters swapped between device and host memory" in progress.lines[-1]

    for number, later in enumerate((memory, None)):
        with pytest.raises(KeyboardInterrupt):
            train(planted, tmp_path / str(number), memory, RunRecorder(4))
        again = RunRecorder()
        assert bits_of(train(planted, tmp_path / str(number), later, again)) == bits_of(whole)
        assert any(line.startswith("resuming after") for line in again.lines)
        assert ("parameters swapped" in again.lines[-1]) is (later is not None)


@pytest.mark.usefixtures("on_cpu")
def test_training_without_a_memory_limit_keeps_everything_on_the_device(planted: Matrix, tmp_path: Path) -> None:
    progress = RunRecorder()
    assert train(planted, tmp_path, None, progress).plan.groups is None
    assert progress.lines[-1].endswith("float32 products, float32 parameters")


@pytest.mark.usefixtures("on_cpu")
def test_too_little_memory_is_refused_before_anything_is_trained(planted: Matrix, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="one row block and one column block need"):
        train(planted, tmp_path, memory_of(planted, (1, 1)) - 1)


def test_plan_with_invalid_groups_is_damaged(tmp_path: Path) -> None:
    saved = {"row_blocks": 2, "column_blocks": 3, "epochs": 1, "backend": "triton", "device": "cpu", "dtype": "float32"}
    assert planning.read_plan({**saved, "groups": [1, 2]}, tmp_path).groups == (1, 2)
    assert planning.read_plan(saved, tmp_path).groups is None
    for groups in ([1], 5, ["a", "b"]):
        with pytest.raises(DamagedFolder, match="another version of Swivel"):
            planning.read_plan({**saved, "groups": groups}, tmp_path)
