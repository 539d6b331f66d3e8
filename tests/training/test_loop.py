"""The training loop: planted groups are found, results are reproducible, and invalid input is rejected."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_recorder import MessageRecorder
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.errors import ConfigError, DamagedFolder, Diverged, TrainingError
from swivel.training import training_plan as planning
from swivel.training.backends.base import PendingLosses, Step
from swivel.training.checkpoint import CheckpointStore, TrainingState
from swivel.training.executor import LocalExecutor
from swivel.training.loop import run_provenance, train_matrix
from swivel.training.objective import Loss
from swivel.training.schedule import block_order, block_starts
from swivel.training.training_plan import TrainingPlan, choose_zeros, estimate_needs, make_plan
from swivel.training.zero_sampling import ZeroSampling
from training_runs import RunRecorder, bits, train

CONFIG = TrainConfig(dim=12, block_size=21, epochs=30, backend="cpu", checkpoint_minutes=0)
BOTH = (CONFIG, replace(CONFIG, zeros="sampled", zeros_common=0.1, zeros_middle=0.4, zeros_share=0.1))


@pytest.mark.parametrize("config", BOTH, ids=["all zeros", "sampled zeros"])
def test_groups_are_found_for_three_seeds(
    planted: Matrix, config: TrainConfig, share_of_own_group: Callable[[np.ndarray], float], tmp_path: Path
) -> None:
    for seed in (1, 2, 3):
        trained = train(planted, replace(config, seed=seed), tmp_path / str(seed))
        assert share_of_own_group(trained.rows + trained.columns) > 0.95


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_groups_are_found_by_every_backend(
    planted: Matrix, backend: str, share_of_own_group: Callable[[np.ndarray], float], tmp_path: Path
) -> None:
    trained = train(planted, replace(CONFIG, backend=backend, device="cpu"), tmp_path)
    assert share_of_own_group(trained.rows + trained.columns) > 0.95
    assert trained.plan.backend == backend


def test_backends_agree_on_the_loss(planted: Matrix, tmp_path: Path) -> None:
    losses = []
    for name in ("cpu", "torch", "reference"):
        config = replace(CONFIG, backend=name, device="cpu", epochs=5)
        losses.append(train(planted, config, tmp_path / name).history[-1].mean)
    np.testing.assert_allclose(losses, losses[-1], rtol=1e-3)


@pytest.mark.parametrize("config", BOTH, ids=["all zeros", "sampled zeros"])
def test_same_seed_gives_the_same_bits_with_any_number_of_threads(
    planted: Matrix, config: TrainConfig, tmp_path: Path
) -> None:
    runs = [train(planted, replace(config, epochs=4), tmp_path / str(n), threads=n) for n in (1, 2, 3)]
    assert bits(runs[0]) == bits(runs[1]) == bits(runs[2])


def test_another_seed_gives_other_vectors(planted: Matrix, tmp_path: Path) -> None:
    one, two = (train(planted, replace(CONFIG, epochs=2, seed=seed), tmp_path / str(seed)) for seed in (1, 2))
    assert not np.array_equal(one.rows, two.rows)


def test_loss_falls(planted: Matrix, tmp_path: Path) -> None:
    history = train(planted, CONFIG, tmp_path).history
    assert len(history) == CONFIG.epochs
    assert history[-1].mean < 0.5 * history[0].mean
    assert history[-1].mean_observed < 0.2 * history[0].mean_observed


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("block_size", [62, 21, 9])
def test_losses_of_every_epoch_are_complete_although_they_are_collected_late(
    planted: Matrix, backend: str, block_size: int, tmp_path: Path
) -> None:
    """Losses of a round are read after the next has started: none may be lost, doubled or added to another epoch."""
    config = replace(CONFIG, backend=backend, device="cpu", epochs=3, block_size=block_size)
    notes = RunRecorder()
    history = train(planted, config, tmp_path, progress=notes).history
    cells = [(loss.observed_cells, loss.unobserved_cells) for loss in history]
    assert cells == [(planted.cell_count, 62 * 62 - planted.cell_count)] * 3
    assert history[0].mean > history[1].mean > history[2].mean

    rounds = -(-62 // block_size)
    assert [note.partition(",")[0] for note in notes.notes] == [f"epoch {1 + n // rounds}/3" for n in range(3 * rounds)]
    assert notes.cells == pytest.approx(3 * 62 * 62)

    for number, loss in enumerate(history, 1):
        assert notes.notes[number * rounds - 1].startswith(f"epoch {number}/3, loss {loss.mean:.4f} ")


def test_sampled_zeros_end_close_to_all_zeros(planted: Matrix, tmp_path: Path) -> None:
    every, sampled = (train(planted, config, tmp_path / config.zeros) for config in BOTH)
    assert sampled.history[-1].mean == pytest.approx(every.history[-1].mean, rel=0.25)
    scores = [trained.rows[:60] @ trained.columns[:60].T for trained in (every, sampled)]
    assert np.corrcoef(scores[0].ravel(), scores[1].ravel())[0, 1] > 0.9


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
def test_words_without_counts_have_vectors_of_zeros(
    planted: Matrix, backend: str, weight_decay: float, tmp_path: Path
) -> None:
    config = replace(CONFIG, epochs=2, backend=backend, device="cpu", weight_decay=weight_decay)
    trained = train(planted, config, tmp_path)
    assert np.all(trained.rows[60:] == 0)
    assert np.all(trained.columns[60:] == 0)
    assert np.all(np.abs(trained.rows[:60]).sum(1) > 0)


@pytest.mark.parametrize("block_size", [1, 7, 62, 5000])
def test_any_block_size_trains_every_word(planted: Matrix, block_size: int, tmp_path: Path) -> None:
    config = replace(CONFIG, block_size=block_size, epochs=1)
    trained = train(planted, config, tmp_path)
    assert trained.plan.row_blocks == -(-62 // block_size)
    assert trained.rows.shape == trained.columns.shape == (62, 12)
    assert trained.history[0].observed_cells == planted.cell_count
    assert np.isfinite(trained.rows).all()


def test_training_changes_neither_the_matrix_nor_the_random_state_of_the_caller(
    planted: Matrix, tmp_path: Path
) -> None:
    before = planted.to_scipy().toarray()
    np.random.seed(3)  # noqa: NPY002
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    train(planted, replace(CONFIG, epochs=1), tmp_path)
    np.testing.assert_equal(np.random.get_state(legacy=False), state)  # noqa: NPY002
    np.testing.assert_array_equal(planted.to_scipy().toarray(), before)


def test_training_leaves_nothing_in_the_folder(planted: Matrix, tmp_path: Path) -> None:
    train(planted, replace(CONFIG, epochs=1), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_huge_learning_rate_raises_diverged(planted: Matrix, backend: str, tmp_path: Path) -> None:
    with pytest.raises(Diverged) as caught:
        train(planted, replace(CONFIG, backend=backend, device="cpu", learning_rate=1e30), tmp_path)
    assert str(caught.value) == (
        "the loss is not finite by step 6 of 270 (epoch 1): the vectors grew without bound; lower learning_rate "
        "(now 1e+30) or raise weight_decay. The last checkpoint, if any, is unchanged"
    )


def test_loss_that_grows_without_overflow_raises_diverged(planted: Matrix, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"the observed loss is [\d.e+]+, far above its initial value by step 9 of 270"):
        train(planted, replace(CONFIG, learning_rate=100.0), tmp_path)


def test_sparse_blocks_do_not_raise_diverged(tmp_path: Path) -> None:
    """The first rounds may have no observed cell: the loss of later rounds must not count as growth."""
    words = Vocabulary([f"w{n}" for n in range(256)])
    with MatrixBuilder(tmp_path / "matrix", MatrixSpec(rows=words, symmetric=True), memory_bytes=1 << 20) as builder:
        builder.add(np.arange(256), np.arange(256), np.ones(256, np.int64))
        matrix = builder.finish()
    for seed in range(5):
        config = replace(CONFIG, block_size=16, epochs=3, seed=seed)
        assert len(train(matrix, config, tmp_path / str(seed)).history) == 3


def test_unsorted_features_are_trained_with_all_zeros(tmp_path: Path) -> None:
    words = Vocabulary([f"w{n}" for n in range(64)])
    rows, columns = (side.ravel() for side in np.indices((64, 64)))
    with MatrixBuilder(tmp_path / "matrix", MatrixSpec(rows=words, columns=words), memory_bytes=1 << 20) as builder:
        builder.add(rows, columns, 1 + rows**2)
        matrix = builder.finish()
    messages = MessageRecorder()
    config = replace(BOTH[1], block_size=16, epochs=1)
    sampled = train(matrix, config, tmp_path / "sampled", progress=messages)
    whole = train(matrix, replace(config, zeros="all"), tmp_path / "all")

    assert any("sorted by falling frequency" in line for line in messages.lines)
    assert np.array_equal(sampled.rows, whole.rows)


def test_plan_of_another_version_is_rejected(planted: Matrix, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, run_provenance(planted, CONFIG, None))
    plan = asdict(make_plan(planted, CONFIG)) | {"color": "blue"}
    store.save(TrainingState(), np.zeros((3, 3), np.bool_), {}, plan)
    with pytest.raises(DamagedFolder, match="written by another version of Swivel"):
        train(planted, CONFIG, tmp_path)


def test_training_ends_when_the_loss_no_longer_falls(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, stop="converged", epochs=None, tolerance=0.05)
    trained = train(planted, config, tmp_path)
    means = [loss.mean for loss in trained.history]

    assert trained.plan.epochs == 100
    assert 2 <= len(means) < 100

    falls = [(before - now) / before for before, now in pairwise(means)]

    assert falls[-1] < 0.05
    assert all(fall >= 0.05 for fall in falls[:-1])


def test_training_until_convergence_runs_at_most_the_given_epochs(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, stop="converged", epochs=3, tolerance=1e-9)
    assert len(train(planted, config, tmp_path).history) == 3


@pytest.mark.parametrize(("shape", "total"), [((0, 0), 0.0), ((5, 5), 0.0)])
def test_matrix_without_counts_is_rejected(shape: tuple[int, int], total: float, tmp_path: Path) -> None:
    empty: Any = SimpleNamespace(shape=shape, total=total)
    with pytest.raises(TrainingError, match="the matrix has no counts: there is nothing to train on"):
        train_matrix(empty, CONFIG, folder=tmp_path, threads=1)


def test_saved_plan_is_not_made_again(planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, backend="auto", device="cpu", epochs=None, block_size=None, dim=2)
    plan = TrainingPlan(row_blocks=2, column_blocks=3, epochs=1, backend="reference", device="cpu", dtype="float64")
    monkeypatch.setattr("swivel.training.loop.make_plan", lambda *_: plan)
    first = train(planted, config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(planted, config, tmp_path, progress=RunRecorder(1))
    monkeypatch.undo()
    again = train(planted, config, tmp_path)

    assert again.plan == first.plan == plan
    assert bits(again) == bits(first)
    assert train(planted, replace(config, seed=2), tmp_path).plan != plan


def test_more_ranks_than_row_blocks_are_refused(planted: Matrix, tmp_path: Path) -> None:
    message = (
        "^ranks must be at most 3, the number of row blocks, got 1,000,000; use fewer ranks, or a smaller block_size$"
    )
    with pytest.raises(ConfigError, match=message):
        train(planted, replace(CONFIG, ranks=1_000_000), tmp_path / "many")
    assert list((tmp_path / "many").iterdir()) == []


def test_one_process_resumes_a_run_of_more_ranks_than_row_blocks(planted: Matrix, tmp_path: Path) -> None:
    class FourRanks(LocalExecutor):
        ranks = 4

    config = replace(CONFIG, epochs=1)
    whole = train_matrix(planted, config, folder=None, threads=1, executor=FourRanks())
    assert whole is not None
    assert whole.plan.ranks == 4 > whole.plan.row_blocks

    notes = RunRecorder(2)
    with pytest.raises(KeyboardInterrupt):
        train_matrix(planted, config, folder=tmp_path, threads=1, executor=FourRanks(), progress=notes)
    assert bits(train(planted, config, tmp_path)) == bits(whole)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_progress_of_a_resumed_run_begins_with_the_cells_that_are_done(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train(planted, config, tmp_path, progress=RunRecorder(2))
    resumed = RunRecorder()
    train(planted, config, tmp_path, progress=resumed)
    assert len(resumed.notes) < 4 * 3  # rounds
    assert resumed.cells == pytest.approx(4 * 62**2)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_a_signal_while_the_order_of_blocks_is_made_acts_at_once(
    planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it went on")

    monkeypatch.setattr("swivel.training.loop.rounds_without_conflict", interrupted)
    with pytest.raises(SystemExit) as caught:
        train(planted, CONFIG, tmp_path)
    assert caught.value.code == 128 + signal.SIGTERM


def test_the_estimate_grows_with_the_number_of_blocks(planted: Matrix) -> None:
    """With blocks of one row, the order of blocks takes more memory than everything else."""
    needs = []
    for block_size in (1, 62):
        config = replace(CONFIG, block_size=block_size)
        needs.append(estimate_needs(planted, config, make_plan(planted, config), threads=1).memory_bytes)
    assert needs[0] - needs[1] > 200 * 62 * 62


def test_the_estimate_names_the_memory_of_other_steps(planted: Matrix) -> None:
    plan = make_plan(planted, CONFIG)
    alone, during, after = (
        estimate_needs(planted, CONFIG, plan, threads=1, other_memory=other).memory_bytes
        for other in ((0, 0), (1 << 30, 0), (0, 1 << 40))
    )
    assert during == alone + (1 << 30)
    assert 1 << 40 < after < alone + (1 << 40)  # Training has ended by then.


def test_default_plan_follows_the_matrix(planted: Matrix) -> None:
    plan = make_plan(planted, TrainConfig(device="cpu"))
    assert plan == TrainingPlan(1, 1, 480, "cpu", "cpu", "float32")
    assert make_plan(planted, TrainConfig(device="cpu"), min_block_size=1024).row_blocks == 1


def test_executors_that_move_blocks_get_larger_ones(tmp_path: Path) -> None:
    spec = MatrixSpec(rows=Vocabulary([f"w{n}" for n in range(6_000)]), symmetric=True)
    with MatrixBuilder(tmp_path / "matrix", spec, memory_bytes=1 << 26) as builder:
        builder.add(np.arange(10), np.arange(10), np.ones(10, np.int64))
        matrix = builder.finish()
    plans = [make_plan(matrix, TrainConfig(device="cpu"), smallest) for smallest in (1, 1024)]

    assert [plan.row_blocks for plan in plans] == [24, 6]

    asked = make_plan(matrix, TrainConfig(device="cpu", block_size=100), 1024)

    assert asked.row_blocks == 60


def test_messages_describe_the_run(planted: Matrix, tmp_path: Path) -> None:
    messages = MessageRecorder()
    train_matrix(planted, replace(CONFIG, epochs=1), folder=tmp_path, threads=2, progress=messages)
    assert messages.lines == [
        "about 128.0 MiB of memory and less than 1 MiB of disk for training",
        "re-blocking the matrix from 1 x 1 to 3 x 3 blocks",
        "training 62 x 62, 1 epoch over 3 x 3 blocks: cpu, 2 threads, float32 products, float32 parameters",
    ]


sizes = st.integers(1, 300).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))


@given(sizes)
def test_block_order_holds_every_feature_once_block_by_block(size_and_blocks: tuple[int, int]) -> None:
    size, blocks = size_and_blocks
    order, starts = block_order(size, blocks), block_starts(size, blocks)
    assert sorted(order.tolist()) == list(range(size))
    assert (starts[0], starts[-1], len(starts)) == (0, size, blocks + 1)
    for block in range(blocks):
        features = order[starts[block] : starts[block + 1]]
        assert features.tolist() == list(range(block, size, blocks))


@given(sizes)
def test_block_sizes_differ_by_at_most_one(size_and_blocks: tuple[int, int]) -> None:
    lengths = np.diff(block_starts(*size_and_blocks))
    assert lengths.max() - lengths.min() <= 1


def matrix_of_density(density: float) -> Matrix:
    """Return what a choice of zeros reads of a matrix: 400 rows, half of whose counts are in the first 12."""
    sums = np.repeat([388.0, 12.0], [12, 388])
    sizes = SimpleNamespace(shape=(400, 400), cell_count=round(density * 400 * 400), row_sums=sums, column_sums=sums)
    return cast(Matrix, sizes)


@pytest.mark.parametrize(
    ("zeros", "device", "blocks", "density", "is_sampled"),
    [
        ("auto", "cpu", 4, 0.01, True),
        ("auto", "cpu", 1, 0.01, False),
        ("auto", "cpu", 4, 0.33, True),
        ("auto", "cpu", 4, 0.34, False),
        ("sampled", "cpu", 4, 0.34, True),
        ("auto", "cuda", 24, 0.01, False),
        ("auto", "cuda:1", 97, 0.01, False),
        ("auto", "mps", 4, 0.01, True),
        ("sampled", "cuda", 4, 0.01, True),
        ("all", "cpu", 97, 0.01, False),
    ],
)
def test_zeros_are_sampled_if_that_is_faster(
    zeros: str, device: str, blocks: int, density: float, is_sampled: bool
) -> None:
    config = TrainConfig(zeros=zeros)
    chosen = choose_zeros(matrix_of_density(density), config, device, (blocks, 2 * blocks))
    assert (chosen != ZeroSampling()) == is_sampled


def test_samples_of_a_few_rows_are_also_taken_of_a_single_block() -> None:
    config, matrix = TrainConfig(zeros="auto", sample_rows=512), matrix_of_density(0.01)
    assert choose_zeros(matrix, config, "cpu", (97, 1)).rows == 512
    assert choose_zeros(matrix, config, "cuda", (97, 1)) == ZeroSampling()


def test_dtype_is_chosen_for_the_work_of_a_run(planted: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def choose(*_: Any, cells: float, **__: Any) -> str:
        seen.append(cells)
        return "float32"

    monkeypatch.setattr(planning, "choose_dtype", choose)
    make_plan(planted, replace(CONFIG, epochs=3))
    make_plan(
        planted, replace(CONFIG, epochs=3, zeros="sampled", zeros_common=0.1, zeros_middle=0.4, zeros_share=0.001)
    )
    assert seen[0] == 3 * 62**2
    assert 0.2 < seen[1] / seen[0] < 0.9


class RecordingBackend:
    """Records when rounds are started and when their losses are asked for."""

    def __init__(self, rounds_ahead: int) -> None:
        self.rounds_ahead = rounds_ahead
        self.events: list[str] = []

    def announce(self, rounds: Any) -> None:
        pass

    def run(self, steps: list[Any], should_stop: Callable[[], bool]) -> PendingLosses:
        number = steps[0].seed[0]
        self.events.append(f"start {number}")

        def losses() -> list[Loss]:
            self.events.append(f"losses {number}")
            return [Loss()]

        return losses


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("stop", ["never", "start 1"])
def test_rounds_are_started_before_the_losses_of_earlier_ones(ahead: int, stop: str) -> None:
    backend = RecordingBackend(ahead)
    executor = object.__new__(LocalExecutor)
    executor._backend = backend  # type: ignore[assignment]
    executor._job = SimpleNamespace(  # type: ignore[assignment]
        should_stop=None, should_pause=lambda: stop in backend.events
    )
    rounds = [[Step((0, 0), 0.1, (number,))] for number in range(4)]
    done = list(executor.run(rounds, []))
    if stop != "never":
        assert len(done) == 2
        assert sorted(backend.events) == ["losses 0", "losses 1", "start 0", "start 1"]
    else:
        assert len(done) == 4
        for number in range(4):
            last = min(number + ahead, 3)
            assert backend.events.index(f"losses {number}") > backend.events.index(f"start {last}")
            if last < 3:
                assert backend.events.index(f"losses {number}") < backend.events.index(f"start {last + 1}")
