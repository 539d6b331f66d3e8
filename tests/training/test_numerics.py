"""Extreme numbers: every backend compared with the float64 reference, and the training loop on unusual matrices.

The kernels clip the loss (not the gradient) of an unobserved cell at a multiple of log 2, given by `CUT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from step_contract import (
    ARRAYS,
    GPU_FACTOR,
    HAS_GPU,
    Block,
    Maker,
    distance,
    each_kind_and_zeros,
    run_baseline,
    run_reference,
    run_step,
    split_kind,
    zero_weights,
)
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.counts.importers import import_counts
from swivel.errors import CountsError, Diverged
from swivel.training.backends import BackendSettings, ParameterBlock, ZeroSampling
from swivel.training.objective import column_offsets, confidence, row_offsets
from training_runs import allow_interpreter, train

KINDS = ["reference float64", "cpu float32", "cpu bfloat16", "torch float32", "triton float32"]
CUT = {"cpu": 30 * math.log(2), "triton": 60 * math.log(2)}
ALLOWED = {"float64": 0.0, "float32": 4e-6, "bfloat16": 1e-2}  # in addition to twice the error of the baseline
LOSS_ALLOWED = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 5e-2}


@pytest.fixture(autouse=True)
def interpreter_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_interpreter(monkeypatch)


def some_counts(shape: tuple[int, int]) -> NDArray[np.float64]:
    rng = np.random.default_rng((3, *shape))
    return np.where(rng.random(shape) < 0.5, rng.lognormal(0, 1, shape), 0.0) + np.eye(*shape)


Number = TypeVar("Number", np.int64, np.float64)


def with_cells(counts: NDArray[Number], cells: dict[tuple[int, int], float]) -> NDArray[Number]:
    for cell, count in cells.items():
        counts[cell] = count
    return counts


def without_some(counts: NDArray[Number]) -> NDArray[Number]:
    counts[3] = 0
    counts[:, 5] = 0
    return counts


COUNTS: dict[str, Callable[[], NDArray[np.float64]]] = {
    "all tiny": lambda: 1e-30 * some_counts((9, 12)),
    "all huge": lambda: 1e30 * some_counts((9, 12)),
    "tiny and huge": lambda: with_cells(some_counts((9, 12)), {(0, 0): 1e30, (1, 1): 1e-30, (2, 3): 1e-30}),
    "empty row and column": lambda: without_some(some_counts((9, 12))),
    "one cell": lambda: with_cells(np.zeros((9, 12)), {(2, 7): 3.0}),
    "one row": lambda: some_counts((1, 12)),
    "one column": lambda: some_counts((9, 1)),
    "one by one": lambda: np.ones((1, 1)),
    "identical rows": lambda: np.tile(1 + some_counts((1, 12)), (9, 1)),
    "nothing unobserved": lambda: 1 + some_counts((9, 12)),
}


def make_block(counts: NDArray[np.float64], dim: int) -> Block:
    x = counts.astype(np.float32).astype(np.float64)
    rng = np.random.default_rng(dim)
    sums, sides = (x.sum(1), x.sum(0)), []
    offsets = row_offsets(sums[0], x.sum(), TrainConfig()), column_offsets(sums[1])

    for total, offset in zip(sums, offsets, strict=True):
        vectors = rng.standard_normal((len(total), dim), np.float32) / np.float32(np.sqrt(dim))
        vectors[total <= 0] = 0
        sides.append(ParameterBlock(vectors, np.full(len(vectors), 1e-6, np.float32), offset.astype(np.float32)))
    return Block(x, (sides[0], sides[1]))


def log_error(block: Block) -> float:
    """Return the relative error that the log of the CPU kernel causes in the largest gradient of a cell.

    The log has a relative error of 2e-7, and a value of 69 for a count of 1e30. Subtracting a target of about that size
    makes the error visible on CPUs without fused multiply-add.
    """
    rows, columns = block.sides
    i, j = np.nonzero(block.x)
    logs = np.log(block.x[i, j])
    products = (rows.vectors[i].astype(float) * columns.vectors[j]).sum(1)
    distances = np.abs(products - logs - rows.offsets[i].astype(float) - columns.offsets[j])
    strongest = np.argmax(confidence(block.x[i, j], TrainConfig()) * distances)
    return float(2e-7 * np.abs(logs[strongest]) / distances[strongest])


def cut_loss(block: Block, settings: BackendSettings, most: float) -> float:
    """Return the reference loss of the unobserved cells, each clipped at `most`."""
    rows, columns = block.sides
    products = rows.vectors.astype(float) @ columns.vectors.astype(float).T
    margins = np.maximum(products - (rows.offsets.astype(float)[:, None] + columns.offsets), -1e30)
    losses = np.minimum(np.logaddexp(0, margins), most) * zero_weights(block, settings)
    return float(losses[block.x == 0].sum())


@pytest.mark.parametrize("dim", [1, 5])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@each_kind_and_zeros(KINDS)
def test_extreme_step_equals_that_of_the_reference(
    make: Maker, kind: str, counts: Callable[[], NDArray[np.float64]], dim: int, zeros: ZeroSampling
) -> None:
    if kind.startswith("triton"):
        pytest.importorskip("triton")
    (name, device, dtype), settings = split_kind(kind), BackendSettings(TrainConfig(weight_decay=1e-4), zeros)
    block = make_block(counts(), dim)
    truth, true_loss = run_reference(block, settings)
    got, loss = run_step(make(settings), block)
    baseline = run_baseline(block, settings, dtype, device)
    of_log = log_error(block) if name == "cpu" else 0.0
    for array in ARRAYS:
        allowed = 2 * distance(baseline[array], truth[array]) + ALLOWED[dtype] * (GPU_FACTOR if device == "cuda" else 1)
        allowed += (2 if "accumulators" in array else 1) * of_log  # an accumulator is a sum of squares
        assert distance(got[array], truth[array]) <= allowed, array
    tolerance = LOSS_ALLOWED[dtype]

    assert loss.observed_cells == true_loss.observed_cells
    assert loss.observed == pytest.approx(true_loss.observed, rel=tolerance)

    unobserved = cut_loss(block, settings, CUT.get(name, math.inf))

    assert loss.unobserved == pytest.approx(unobserved, rel=tolerance, abs=tolerance * max(block.x.size, 1))


def build(path: Path, counts: NDArray[Any], unit: int = 1) -> Matrix:
    rows, columns = np.nonzero(counts)
    names = [Vocabulary([f"{side}{n}" for n in range(size)]) for side, size in zip("rc", counts.shape, strict=True)]
    with MatrixBuilder(path, MatrixSpec(rows=names[0], columns=names[1], unit=unit), memory_bytes=1 << 20) as builder:
        builder.add(rows, columns, counts[rows, columns])
        return builder.finish()


def whole_counts(shape: tuple[int, int]) -> NDArray[np.int64]:
    rng = np.random.default_rng((5, *shape))
    return rng.poisson(1.0, shape).astype(np.int64) + np.eye(*shape, dtype=np.int64)


MATRICES: dict[str, Callable[[], tuple[NDArray[np.int64], int]]] = {
    "smallest counts": lambda: (whole_counts((20, 30)), 1 << 60),
    "largest counts": lambda: (whole_counts((20, 30)) << 50, 1),
    "one huge count": lambda: (with_cells(whole_counts((90, 90)), {(18, 1): 1 << 60}), 1),
    "empty rows and columns": lambda: (without_some(whole_counts((20, 30))), 1),
    "one row": lambda: (1 + whole_counts((1, 30)), 1),
    "one column": lambda: (1 + whole_counts((30, 1)), 1),
    "one by one": lambda: (np.full((1, 1), 7), 1),
    "identical rows": lambda: (np.tile(1 + whole_counts((1, 30)), (20, 1)), 1),
}
CONFIG = TrainConfig(dim=4, block_size=16, epochs=3, dtype="float32", device="cpu", checkpoint_minutes=0)


@pytest.mark.parametrize("changes", [{}, {"dim": 1}, {"block_size": 4096}], ids=["", "dim 1", "k above the matrix"])
@pytest.mark.parametrize("counts", MATRICES.values(), ids=MATRICES)
def test_unusual_matrices_give_the_same_result_on_every_backend(
    counts: Callable[[], tuple[NDArray[np.int64], int]], changes: dict[str, Any], tmp_path: Path
) -> None:
    matrix = build(tmp_path / "matrix", *counts())
    config = replace(CONFIG, **changes)
    truth = train(matrix, replace(config, backend="reference"), tmp_path / "reference")
    for backend in ("cpu", "torch"):
        got = train(matrix, replace(config, backend=backend), tmp_path / backend)
        for side, true_side in ((got.rows, truth.rows), (got.columns, truth.columns)):
            np.testing.assert_allclose(side, true_side, rtol=2e-3, atol=2e-4, err_msg=backend)
        losses = [loss.mean_observed for loss in got.history]
        np.testing.assert_allclose(losses, [loss.mean_observed for loss in truth.history], rtol=1e-3)

    assert (truth.rows[matrix.row_sums <= 0] == 0).all()
    assert truth.history[-1].mean_observed <= truth.history[0].mean_observed


@pytest.mark.parametrize("counts", [MATRICES["largest counts"], MATRICES["one row"]], ids=["largest", "one row"])
def test_unusual_matrices_give_the_same_result_in_triton(
    counts: Callable[[], tuple[NDArray[np.int64], int]], tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    matrix, config = build(tmp_path / "matrix", *counts()), replace(CONFIG, dim=1, block_size=4096, epochs=2)
    truth = train(matrix, replace(config, backend="reference"), tmp_path / "reference")
    device = "cuda" if HAS_GPU else "cpu"
    got = train(matrix, replace(config, backend="triton", device=device), tmp_path / "triton")
    np.testing.assert_allclose(got.rows, truth.rows, rtol=2e-3, atol=2e-4)


def test_counts_without_a_common_unit_are_rejected_before_training() -> None:
    with pytest.raises(CountsError, match=r"counts from 1e-30 to 1e-30 are too small .*; scale them"):
        import_counts([("a", "b", 1e-30), ("b", "b", 1e-30)])
    with pytest.raises(CountsError, match=r"add up to 1e\+30, more than the largest exact sum .*scale them"):
        import_counts([("a", "b", 1e30), ("b", "b", 1.0)])
    with pytest.raises(CountsError, match=r"counts from 1e-10 to 1e\+12 are too far apart"):
        import_counts([("a", "b", 1e12), ("b", "b", 1e-10)])


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(
    "changes", [{"weight_decay": 1e30}, {"confidence_scale": 1e30}], ids=["weight_decay", "confidence"]
)
def test_overflowing_accumulators_are_detected_within_an_epoch(
    planted: Matrix, backend: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = replace(CONFIG, backend=backend, epochs=6, **changes)
    with pytest.raises(Diverged, match=r"not finite by step \d+ of 96 \(epoch 1\)") as caught:
        train(planted, config, tmp_path)
    advice = "lower weight_decay (now 1e+30)" if "weight_decay" in changes else "or raise weight_decay"
    assert advice in str(caught.value)


def test_no_checkpoint_is_written_after_divergence(planted: Matrix, tmp_path: Path) -> None:
    """The parameters are finite, but both checkpoints would be overwritten before the epoch ends."""
    config = replace(CONFIG, backend="cpu", learning_rate=1e6, epochs=6, checkpoint_minutes=1e-9)
    with pytest.raises(Diverged, match=r"far above its initial value by step (4|8|12) of 96 \(epoch 1\)"):
        train(planted, config, tmp_path)


def test_huge_count_outside_the_sample_does_not_raise_diverged(tmp_path: Path) -> None:
    """The initial loss is sampled from 32 of the 49 stored blocks; the huge count is in another block."""
    names, few = Vocabulary([f"w{n}" for n in range(7000)]), np.arange(0, 7000, 35)
    with MatrixBuilder(tmp_path / "matrix", MatrixSpec(rows=names, columns=names), memory_bytes=1 << 20) as builder:
        builder.add(few, few, np.ones_like(few))
        builder.add([0], [6], [1 << 60])
        matrix = builder.finish()

    assert matrix.row_blocks * matrix.column_blocks == 49

    config = replace(CONFIG, backend="cpu", dim=1, block_size=None, epochs=1)

    assert len(train(matrix, config, tmp_path / "run").history) == 1
