"""Parameter servers and workers without a cluster: arithmetic, and that every change is applied once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from step_contract import HAS_GPU
from stored import folder_of
from strips import make_strip
from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import ClusterError
from swivel.training.backends import ParameterBlock
from swivel.training.backends.base import BackendSettings, Step
from swivel.training.backends.reference import ReferenceBackend
from swivel.training.distributed.leases import Part
from swivel.training.distributed.parameter_server import REFUSED, Push, Server, server_of
from swivel.training.distributed.worker import (
    Links,
    Unanswered,
    Worker,
    WorkerSetup,
)
from swivel.training.objective import Objective, column_offsets, row_offsets, update_parameters
from swivel.training.training_plan import choose_zeros, make_plan

CONFIG = TrainConfig(dim=12, block_size=21, epochs=3, backend="cpu", weight_decay=1e-4)


def make_setup(matrix: Matrix, config: TrainConfig = CONFIG) -> WorkerSetup:
    if config.backend != "triton":
        return WorkerSetup(folder_of(matrix), matrix.fingerprint, config, make_plan(matrix, config), 1)
    pytest.importorskip("triton")
    plan = make_plan(matrix, replace(config, backend="cpu"))  # Without a GPU, kernels run in the interpreter.
    on_device = replace(plan, backend="triton", device="cuda" if HAS_GPU else "cpu", dtype="float32")
    return WorkerSetup(folder_of(matrix), matrix.fingerprint, config, on_device, 1)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def start_server(rng: np.random.Generator, part: Part = (0, 0), size: int = 5) -> tuple[Server, np.ndarray, np.ndarray]:
    server = Server()
    vectors, accumulators = draw(rng, size, 4), draw(rng, size, 4) ** 2 + 1
    server.hold(part, vectors, accumulators, (), run_id=1)
    return server, vectors.copy(), accumulators.copy()


class LocalLinks(Links):
    """Connections to servers in this process; requests of the kinds in `silent` get no response."""

    def __init__(self, servers: list[Server]) -> None:
        super().__init__(servers, seconds=0)
        self.servers = servers
        self.asked: list[tuple[str, Part]] = []
        self.silent: set[str] = set()

    def fetch(self, part: Part, with_state: bool) -> Any:
        self.asked.append(("fetch", part))
        fetched = self._server(part).fetch(part, with_state)
        state = None if fetched.state is None else fetched.state.copy()
        return "fetch", replace(fetched, vectors=fetched.vectors.copy(), state=state)

    def push(self, push: Push) -> Any:
        self.asked.append(("push", push.part))
        return "push", self._server(push.part).push(push)

    def take(self, request: Any) -> Any:
        kind, answer = request
        if kind in self.silent:
            raise Unanswered("server lost")
        return answer


def serve(matrix: Matrix, count: int, dim: int = 12) -> LocalLinks:
    rng = np.random.default_rng(3)
    servers = [Server() for _ in range(count)]

    for side, size in enumerate(matrix.shape):
        for block in range(3):
            length = len(range(block, size, 3))
            vectors = draw(rng, length, dim) * np.float32(0.3)
            part = side, block
            servers[server_of(part, count)].hold(part, vectors, np.full_like(vectors, 1e-3), (), run_id=1)
    return LocalLinks(servers)


@contextmanager
def begin(setup: WorkerSetup) -> Iterator[Worker]:
    worker = Worker(5.0)
    worker.begin(setup)
    yield worker
    worker.close()


@pytest.fixture
def worker(planted: Matrix) -> Iterator[Worker]:
    with begin(make_setup(planted)) as made:
        yield made


def test_a_gradient_is_applied_once_as_an_adagrad_step() -> None:
    rng = np.random.default_rng(1)
    server, vectors, accumulators = start_server(rng)
    gradient = draw(rng, 5, 4)
    push = Push(1, (0, 0), (7,), 0, gradient, learning_rate=0.1)

    assert server.push(push) == 0
    assert server.push(push) == REFUSED

    exact, squares = vectors.astype(np.float64), accumulators.astype(np.float64)
    update_parameters(exact, squares, gradient.astype(np.float64), 0.1)
    kept = server.read((0, 0))

    np.testing.assert_allclose(kept.vectors, exact, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(kept.state, squares, rtol=1e-6)
    assert kept.applied == {7}


def test_a_difference_is_added_to_vectors_and_accumulators_and_applied_once() -> None:
    rng = np.random.default_rng(2)
    server, vectors, accumulators = start_server(rng)
    change = draw(rng, 5, 4)
    push = Push(1, (0, 0), (2, 3), 0, change, change**2)

    assert [server.push(push), server.push(push)] == [0, REFUSED]

    kept = server.read((0, 0))

    np.testing.assert_array_equal(kept.vectors, vectors + change)
    np.testing.assert_array_equal(kept.state, accumulators + change**2)
    assert kept.applied == {2, 3}


def test_accumulators_decay_once_for_every_step_of_a_push() -> None:
    rng = np.random.default_rng(3)
    server, _, accumulators = start_server(rng)
    change = draw(rng, 5, 4)

    assert server.push(Push(1, (0, 0), (2, 3), 0, change, change**2, optimizer=(0.5,))) == 0
    np.testing.assert_allclose(server.read((0, 0)).state, 0.25 * accumulators + change**2, rtol=1e-6)


def test_changes_of_another_run_are_refused_and_a_run_starts_without_changes() -> None:
    rng = np.random.default_rng(3)
    server, _, _ = start_server(rng)
    push = Push(1, (0, 0), (7,), 0, draw(rng, 5, 4), learning_rate=0.1)
    assert server.push(push) == 0

    server.begin(2)
    assert server.ping() == os.getpid()

    before = server.read((0, 0))
    assert before.applied == frozenset()
    assert server.push(push._replace(others=(8,))) == REFUSED
    assert server.push(push._replace(run_id=3)) == REFUSED
    assert server.push(push._replace(run_id=2, version=1)) == 0


def test_staleness_is_the_changes_by_others_since_the_fetch() -> None:
    rng = np.random.default_rng(4)
    server, _, _ = start_server(rng)
    version = server.fetch((0, 0), False).version
    assert server.push(Push(1, (0, 0), (1, 2, 3), version, draw(rng, 5, 4))) == 0
    assert server.push(Push(1, (0, 0), (4,), version, draw(rng, 5, 4), learning_rate=0.1)) == 3


def test_accumulators_are_sent_on_request_only() -> None:
    server, _, accumulators = start_server(np.random.default_rng(5))
    assert server.fetch((0, 0), False).state is None
    np.testing.assert_array_equal(server.fetch((0, 0), True).state, accumulators)


def test_missing_block_raises_cluster_error() -> None:
    server, _, _ = start_server(np.random.default_rng(6))
    with pytest.raises(ClusterError, match="does not have column block 4"):
        server.fetch((1, 4), False)


def test_server_copies_the_arrays_it_gets() -> None:
    server = Server()
    given = np.ones((2, 2), np.float32)
    server.hold((0, 0), given, given, (5,), run_id=1)
    assert server.push(Push(1, (0, 0), (5,), 0, given, learning_rate=1.0)) == REFUSED
    assert server.push(Push(1, (0, 0), (6,), 0, given, learning_rate=1.0)) == 0
    assert (given == 1).all()


@pytest.mark.parametrize("backend", ["cpu", "torch", "reference", "triton"])
@pytest.mark.parametrize("zeros", ["all", "sampled"])
def test_gradients_of_every_backend_equal_those_of_the_reference(planted: Matrix, backend: str, zeros: str) -> None:
    config = replace(
        CONFIG, backend=backend, device="cpu", zeros=zeros, zeros_common=0.1, zeros_middle=0.4, zeros_share=0.1
    )
    objective = Objective.from_config(config)
    rng = np.random.default_rng(8)
    block = (2, 1)
    offsets = row_offsets(planted.row_sums, planted.total, objective), column_offsets(planted.column_sums)
    sides = [ParameterBlock(draw(rng, len(own), 12), None, own) for own in (offsets[0][2::3], offsets[1][1::3])]
    with begin(make_setup(planted, config)) as stepper, begin(make_setup(planted)) as laid_out:
        found_loss, *gradients = stepper.gradients(
            Step(block, 1.0, (config.seed, 2, 4, *block)), (sides[0].vectors, sides[1].vectors)
        )
        settings = BackendSettings(objective, choose_zeros(planted, config, "cpu", (3, 3)), 0.0)
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


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_strip_has_the_effect_of_its_blocks_in_the_same_order(planted: Matrix, decay: float) -> None:
    worker = Worker(5.0)
    worker.begin(make_setup(planted, replace(CONFIG, accumulator_decay=decay)))
    together, apart = serve(planted, 2), serve(planted, 2)
    blocks, rates = ((1, 0), (1, 2), (1, 1)), (0.1, 0.09, 0.08)
    result = worker.train(make_strip(0, 2, blocks, rates, 0), 1, together)
    assert not result.failure

    losses = [
        worker.train(make_strip(n, 2, (block,), (rate,)), 1, apart).losses[0]
        for n, (block, rate) in enumerate(zip(blocks, rates, strict=True))
    ]
    assert [loss.mean for loss in result.losses] == pytest.approx([loss.mean for loss in losses], rel=1e-5)

    for part in [(0, 1), (1, 0), (1, 1), (1, 2), (0, 0)]:
        one, other = (links.servers[server_of(part, 2)].read(part) for links in (together, apart))
        np.testing.assert_allclose(one.vectors, other.vectors, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(one.state, other.state, rtol=1e-4, atol=1e-9)
        assert one.applied == other.applied
    worker.close()


def test_worker_with_triton_has_the_effect_of_a_cpu_worker(planted: Matrix, worker: Worker) -> None:
    blocks, rates = ((1, 0), (1, 2), (1, 1)), (0.1, 0.09, 0.08)
    device, here, there = Worker(5.0), serve(planted, 2), serve(planted, 2)

    assert "triton" in device.begin(make_setup(planted, replace(CONFIG, backend="triton")))

    for strip in (make_strip(0, 2, blocks, rates, 0), make_strip(1, 2, ((0, 2),), (0.1,))):
        ours, theirs = worker.train(strip, 1, here), device.train(strip, 1, there)
        assert not ours.failure and not theirs.failure
        assert [loss.mean for loss in ours.losses] == pytest.approx([loss.mean for loss in theirs.losses], rel=1e-4)
    device.close()
    for part in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]:
        one, other = (links.servers[server_of(part, 2)].read(part) for links in (here, there))
        np.testing.assert_allclose(one.vectors, other.vectors, rtol=1e-3, atol=1e-5)
        assert one.applied == other.applied


def test_shared_block_is_moved_once_and_traffic_is_minimal(planted: Matrix, worker: Worker) -> None:
    links = serve(planted, 1)
    result = worker.train(make_strip(0, 0, ((0, 0), (0, 1), (0, 2)), (0.1,) * 3, 0), 1, links)
    assert links.asked.count(("fetch", (0, 0))) == links.asked.count(("push", (0, 0))) == 1
    rows, columns = planted.shape
    least = 4 * 12 * (4 * len(range(0, rows, 3)) + 2 * columns)
    assert result.moved == least
    assert result.staleness == (0, 0, 0, 0)


def test_next_block_is_requested_before_the_current_one_is_computed(planted: Matrix, worker: Worker) -> None:
    links = serve(planted, 1)
    worker.train(make_strip(0, 0, ((0, 0), (0, 1)), (0.1, 0.1), 0), 1, links)
    assert links.asked.index(("fetch", (1, 1))) < links.asked.index(("push", (1, 0)))


@pytest.mark.parametrize(("silent", "changes"), [("fetch", 0), ("push", 2)])
def test_unresponsive_server_gives_a_failure_and_the_strip_can_be_repeated(
    planted: Matrix, worker: Worker, silent: str, changes: int
) -> None:
    links = serve(planted, 1)
    links.silent = {silent}
    result = worker.train(make_strip(0, 0, ((0, 0),), (0.1,)), 1, links)

    assert (result.failure, result.losses) == ("server lost", ())

    links.silent = set()
    again = worker.train(make_strip(0, 0, ((0, 0),), (0.1,)), 1, links)

    assert not again.failure
    assert again.staleness == (0, 0)[changes:]  # Changes that the server has applied are refused.
    assert links.servers[0].read((0, 0)).applied == {0}


def test_waiting_for_the_previous_strip_has_a_time_limit(planted: Matrix) -> None:
    worker = Worker(0.05)
    worker.begin(make_setup(planted))
    with worker._computing:
        result = worker.train(make_strip(0, 0, ((0, 0),), (0.1,)), 1, serve(planted, 1))
    worker.close()
    assert "the previous strip has not finished in time" in result.failure


def test_concurrent_strips_are_trained_one_after_the_other(planted: Matrix, worker: Worker) -> None:
    links = serve(planted, 1)
    strips = [make_strip(n, 0, ((n, 0), (n, 1), (n, 2)), (0.1,) * 3, 0) for n in range(3)]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda s=strip: results.append(worker.train(s, 1, links))) for strip in strips]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(result.number for result in results) == [0, 1, 2]
    assert not any(result.failure for result in results)
    assert links.servers[0].read((1, 1)).applied == {0, 1, 2}


def test_worker_rejects_another_matrix_and_another_version(planted: Matrix) -> None:
    setup = make_setup(planted)
    with pytest.raises(ClusterError, match="another matrix"), begin(replace(setup, fingerprint="x")):
        pass
    with pytest.raises(ClusterError, match="install the same version"), begin(replace(setup, version="0")):
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
