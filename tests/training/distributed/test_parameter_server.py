"""Parameter servers and workers without a cluster: arithmetic, and that every change is applied once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from step_contract import HAS_GPU
from stored import folder_of
from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import TrainingError
from swivel.training.backends import ParameterBlock
from swivel.training.backends.base import BackendSettings, Step
from swivel.training.backends.reference import ReferenceBackend
from swivel.training.distributed.cluster_setup import ActorSetup
from swivel.training.distributed.leases import Part
from swivel.training.distributed.parameter_server import ServedBlock, Server, Unanswered, Worker, server_of
from swivel.training.objective import column_offsets, row_offsets, update_parameters
from swivel.training.schedule import Block
from swivel.training.training_plan import choose_zeros, make_plan

CONFIG = TrainConfig(dim=12, block_size=21, epochs=3, backend="cpu", weight_decay=1e-4)


def make_setup(matrix: Matrix, config: TrainConfig = CONFIG) -> ActorSetup:
    plan = make_plan(matrix, replace(config, backend="cpu") if config.backend == "triton" else config)
    if config.backend == "triton":
        pytest.importorskip("triton")
        # Without a GPU, kernels run in the interpreter.
        plan = replace(plan, backend="triton", device="cuda" if HAS_GPU else "cpu", dtype="float32")
    return ActorSetup(folder_of(matrix), matrix.fingerprint, config, plan, threads=1)


def make_step(block: Block, rate: float = 0.1, epoch: int = 0) -> Step:
    return Step(block, rate, (1, 2, epoch, *block))


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def start_server(rng: np.random.Generator, accumulator_decay: float = 1.0) -> tuple[Server, np.ndarray, np.ndarray]:
    server = Server(accumulator_decay)
    vectors, accumulators = draw(rng, 5, 4), draw(rng, 5) ** 2 + 1
    server.hold((0, 0), vectors, accumulators, run_id=1)
    return server, vectors.copy(), accumulators.copy()


class LocalServer:
    """A server in this process, with the interface of a Ray handle; what it was asked is listed in `asked`."""

    def __init__(self, asked: list[tuple[str, Part]]) -> None:
        self.server = Server()
        self.asked = asked
        self.fetch, self.push = SimpleNamespace(remote=self._fetch), SimpleNamespace(remote=self._push)

    def _fetch(self, part: Part) -> Any:
        self.asked.append(("fetch", part))
        return "fetch", self.server.fetch(part).copy()

    def _push(self, part: Part, *change: Any) -> Any:
        self.asked.append(("push", part))
        return "push", self.server.push(part, *change)


class LocalWorker(Worker):
    """A worker of servers in this process; requests of the kinds in `silent` get no response."""

    silent: frozenset[str] = frozenset()

    def take(self, request: Any) -> Any:
        kind, answer = request
        if kind in self.silent:
            raise Unanswered("server lost")
        return answer


def serve(matrix: Matrix, count: int, dim: int = 12) -> list[LocalServer]:
    rng = np.random.default_rng(3)
    asked: list[tuple[str, Part]] = []
    servers = [LocalServer(asked) for _ in range(count)]

    for side, size in enumerate(matrix.shape):
        for block in range(3):
            length = len(range(block, size, 3))
            vectors = draw(rng, length, dim) * np.float32(0.3)
            part = side, block
            servers[server_of(part, count)].server.hold(
                part, vectors, np.full(len(vectors), 1e-3, np.float32), run_id=1
            )
    return servers


def read(servers: list[LocalServer], part: Part) -> ServedBlock:
    return servers[server_of(part, len(servers))].server.read(part)


@contextmanager
def begin(setup: ActorSetup) -> Iterator[LocalWorker]:
    worker = LocalWorker(5.0)
    worker.begin(setup)
    yield worker
    worker.backend.close()


@pytest.fixture
def worker(planted: Matrix) -> Iterator[LocalWorker]:
    with begin(make_setup(planted)) as made:
        yield made


def test_a_gradient_is_applied_once_as_an_adagrad_step() -> None:
    rng = np.random.default_rng(1)
    server, vectors, accumulators = start_server(rng)
    gradient = draw(rng, 5, 4)

    assert [server.push((0, 0), 7, 1, gradient, 0.1) for _ in range(2)] == [True, False]

    exact, squares = vectors.astype(np.float64), accumulators.astype(np.float64)
    update_parameters(exact, squares, gradient.astype(np.float64), 0.1)
    kept = server.read((0, 0))

    np.testing.assert_allclose(kept.vectors, exact, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(kept.state, squares, rtol=1e-6)
    assert kept.applied == {7}


def test_accumulators_decay_with_every_gradient() -> None:
    rng = np.random.default_rng(3)
    server, _, accumulators = start_server(rng, accumulator_decay=0.5)
    gradient = draw(rng, 5, 4)

    assert server.push((0, 0), 2, 1, gradient, 0.1)
    np.testing.assert_allclose(server.read((0, 0)).state, 0.5 * accumulators + (gradient**2).mean(1), rtol=1e-6)


def test_gradients_of_earlier_runs_are_refused_and_a_run_starts_without_gradients() -> None:
    rng = np.random.default_rng(3)
    server, _, _ = start_server(rng)
    gradient = draw(rng, 5, 4)
    assert server.push((0, 0), 7, 1, gradient, 0.1)
    assert server.ping() == os.getpid()

    assert server.push((0, 0), 8, 2, gradient, 0.1)
    assert not server.push((0, 0), 9, 1, gradient, 0.1)
    assert server.read((0, 0)).applied == {8}
    assert server.push((0, 0), 7, 2, gradient, 0.1)


def test_server_copies_the_arrays_it_gets() -> None:
    server = Server()
    given = np.ones((2, 2), np.float32)
    state = np.ones(2, np.float32)
    server.hold((0, 0), given, state, run_id=1)
    assert server.push((0, 0), 6, 1, given, 1.0)
    assert (given == 1).all()
    assert (state == 1).all()


@pytest.mark.parametrize(
    ("backend", "zeros"),
    [("triton", "all"), *((name, zeros) for name in ("cpu", "torch", "reference") for zeros in ("all", "sampled"))],
)
def test_gradients_of_every_backend_equal_those_of_the_reference(planted: Matrix, backend: str, zeros: str) -> None:
    config = replace(
        CONFIG, backend=backend, device="cpu", zeros=zeros, zeros_common=0.1, zeros_middle=0.4, zeros_share=0.1
    )
    rng = np.random.default_rng(8)
    block = (2, 1)
    offsets = row_offsets(planted.row_sums, planted.total, config), column_offsets(planted.column_sums)
    sides = [ParameterBlock(draw(rng, len(own), 12), None, own) for own in (offsets[0][2::3], offsets[1][1::3])]
    with begin(make_setup(planted, config)) as stepper, begin(make_setup(planted)) as laid_out:
        found_loss, *gradients = stepper.gradients(
            Step(block, 1.0, (config.seed, 2, 4, *block)), (sides[0].vectors, sides[1].vectors)
        )
        settings = BackendSettings(config, choose_zeros(planted, config, "cpu", (3, 3)))
        cells = laid_out.job.matrix.cells(*block)
        order = (1, 0) if cells.mirrored else (0, 1)
        reference = ReferenceBackend(settings)
        loss, *exact = reference.add_gradients(cells, (sides[order[0]], sides[order[1]]), (config.seed, 2, 4, *block))

    assert found_loss.mean == pytest.approx(loss.mean, rel=1e-5)

    for side, gradient in enumerate(gradients):
        other = sides[1 - side].vectors
        expected = exact[order[side]] / len(other) + config.weight_decay * sides[side].vectors
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())


def test_workers_transform_the_counts_that_they_read(planted: Matrix) -> None:
    setup = make_setup(planted, replace(CONFIG, transform="log"))
    with begin(setup) as stepper, begin(make_setup(planted)) as original:
        found, raw = (each.job.matrix.cells(2, 1).counts for each in (stepper, original))
    np.testing.assert_allclose(found, np.log1p(raw), rtol=1e-6)


def test_worker_with_triton_has_the_effect_of_a_cpu_worker(planted: Matrix, worker: LocalWorker) -> None:
    device, here, there = LocalWorker(5.0), serve(planted, 2), serve(planted, 2)

    assert "triton" in device.begin(make_setup(planted, replace(CONFIG, backend="triton")))

    for step in (make_step((1, 0)), make_step((1, 2), 0.09), make_step((1, 1), 0.08), make_step((0, 2))):
        ours, theirs = worker.train(step, 1, here), device.train(step, 1, there)
        assert not ours.failure and not theirs.failure
        assert ours.loss.mean == pytest.approx(theirs.loss.mean, rel=1e-4)
    device.backend.close()
    for part in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]:
        one, other = (read(servers, part) for servers in (here, there))
        np.testing.assert_allclose(one.vectors, other.vectors, rtol=1e-3, atol=1e-5)
        assert one.applied == other.applied


def test_vectors_and_gradients_of_both_sides_are_moved_once(planted: Matrix, worker: LocalWorker) -> None:
    servers = serve(planted, 1)
    result = worker.train(make_step((0, 1)), 1, servers)
    assert servers[0].asked == [("fetch", (0, 0)), ("fetch", (1, 1)), ("push", (0, 0)), ("push", (1, 1))]
    rows, columns = planted.shape
    assert result.moved == 2 * 4 * 12 * (len(range(0, rows, 3)) + len(range(1, columns, 3)))


def test_next_block_is_fetched_while_one_is_computed(planted: Matrix, worker: LocalWorker) -> None:
    servers = serve(planted, 1)
    with worker._computing:
        waiting = threading.Thread(target=worker.train, args=(make_step((0, 0)), 1, servers))
        waiting.start()
        while len(servers[0].asked) < 2:
            time.sleep(0.01)
        assert servers[0].asked == [("fetch", (0, 0)), ("fetch", (1, 0))]
    waiting.join()
    assert len(servers[0].asked) == 4


@pytest.mark.parametrize("silent", ["fetch", "push"])
def test_unresponsive_server_gives_a_failure_and_the_block_can_be_repeated(
    planted: Matrix, worker: LocalWorker, silent: str
) -> None:
    servers = serve(planted, 1)
    worker.silent = frozenset({silent})
    result = worker.train(make_step((0, 0)), 1, servers)

    assert (result.failure, result.loss.observed_cells) == ("server lost", 0)

    worker.silent = frozenset()
    again = worker.train(make_step((0, 0)), 1, servers)

    assert not again.failure
    once = serve(planted, 1)
    assert not worker.train(make_step((0, 0)), 1, once).failure
    for part in ((0, 0), (1, 0)):  # A gradient that the server has applied is refused.
        repeated, single = read(servers, part), read(once, part)
        assert repeated.applied == single.applied == {0}
        np.testing.assert_array_equal(repeated.state, single.state)


def test_waiting_for_the_previous_block_has_a_time_limit(planted: Matrix) -> None:
    worker = LocalWorker(0.05)
    worker.begin(make_setup(planted))
    with worker._computing:
        result = worker.train(make_step((0, 0)), 1, serve(planted, 1))
    worker.backend.close()
    assert "the previous block has not finished in time" in result.failure


def test_concurrent_blocks_are_trained_one_after_the_other(planted: Matrix, worker: LocalWorker) -> None:
    servers = serve(planted, 1)
    steps = [make_step((i, j)) for i in range(3) for j in range(3)]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda s=step: results.append(worker.train(s, 1, servers))) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(result.block for result in results) == [step.block for step in steps]
    assert not any(result.failure for result in results)
    assert read(servers, (1, 1)).applied == {0, 1, 2}


def test_worker_rejects_another_matrix_and_another_version(planted: Matrix) -> None:
    setup = make_setup(planted)
    with pytest.raises(TrainingError, match="another matrix"), begin(replace(setup, fingerprint="x")):
        pass
    with pytest.raises(TrainingError, match="install the same version"), begin(replace(setup, version="0")):
        pass


def test_worker_reblocks_a_matrix_with_other_blocks(planted: Matrix, tmp_path: Path) -> None:
    assert planted.row_blocks != 3
    with begin(make_setup(planted)) as stepper:
        assert stepper.job.matrix.row_blocks == 3


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot remove files that are mapped")
def test_a_worker_that_is_killed_leaves_no_files(
    planted: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with begin(make_setup(planted)) as stepper:
        assert list(tmp_path.iterdir()) == []
        cells = [stepper.job.matrix.cells(i, j).counts for i in range(3) for j in range(3)]
        assert sum(map(len, cells)) > 0
