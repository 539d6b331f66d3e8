"""An executor with asynchronous workers and parameter servers, on Ray.

The process that runs the training loop leases strips of blocks to workers. A worker fetches parameters, computes
gradients and pushes them, without waiting for other workers. Every block is trained once per epoch, even if processes
die: leases expire, servers apply each change once, and changes that a restored server does not have are leased again
before the epoch ends. Every wait has a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic as now

import numpy as np

from swivel.errors import ClusterError, ConfigError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import await_nodes, check_node, connect
from swivel.runtime.resources import format_bytes
from swivel.training.backends import Step
from swivel.training.distributed.leases import MAX_BLOCKS_PER_STRIP, Leases, Part, Strip, compose_strips
from swivel.training.distributed.server_pool import ServerPool
from swivel.training.distributed.worker import Result, WorkerSetup
from swivel.training.distributed.worker_pool import WorkerPool
from swivel.training.executor import CompletedSteps, Executor, Sides, TrainingJob
from swivel.training.schedule import Block

POLL_SECONDS = 0.5
LEASE_FACTOR = 5  # A strip is leased again after this many times its expected duration.
SMOOTHING = 0.95  # weight of the past in the moving average of the time per block


@dataclass(slots=True)
class RunStatistics:
    """Counters of a run, for the progress line and for benchmarks."""

    blocks: int = 0
    moved: int = 0  # bytes between workers and servers
    pushes: int = 0
    stale: int = 0  # changes by other workers between fetch and push, summed over all pushes
    seconds_per_block: float = 0.0  # moving average, of one worker

    def add(self, result: Result, blocks: int) -> None:
        """Add the result of a strip of `blocks` blocks."""
        self.moved += result.moved
        if result.failure:
            return

        self.pushes += len(result.staleness)
        self.stale += sum(result.staleness)
        seconds = result.seconds / blocks
        average = self.seconds_per_block or seconds
        self.seconds_per_block = SMOOTHING * average + (1 - SMOOTHING) * seconds

    @property
    def staleness(self) -> float:
        """Mean number of changes by other workers between fetch and push."""
        return self.stale / max(1, self.pushes)


class AsyncExecutor(Executor):
    """Workers and servers on Ray. The process that runs the loop leases strips to the workers.

    One thread of that process makes all calls, so that leases and pools need no locks. The servers own the parameters
    while `run` is active; afterwards the copy in `ServerPool.sides` equals theirs.
    """

    min_block_size = 1024  # about 60 blocks per second can be leased (experiments/notes.md)

    def __init__(self, address: str, config: ClusterConfig) -> None:
        self.config = config
        self.statistics = RunStatistics()
        self._resources = ExitStack()
        cores = None if config.workers is None else config.workers * config.worker_threads

        # Connect here and not in `begin`: Ray installs a SIGTERM handler, which the loop then replaces by its own.
        self._ray = self._resources.enter_context(connect(address, cores=cores))
        self._run_id = 0  # number of the call of `run`; servers refuse changes of other calls

    def begin(self, job: TrainingJob) -> None:
        self._job = job
        config = self.config
        self._check_counts()
        self._servers = ServerPool(self._ray, config, job)
        self._resources.callback(self._servers.close)

        path = job.matrix.path
        if path is None:
            raise ConfigError(
                "training on Ray needs a matrix in a folder that all nodes see: save it, or pass out", argument="out"
            )
        setup = WorkerSetup(path.resolve(), job.matrix.fingerprint, job.config, job.plan, config.worker_threads)
        self._workers = WorkerPool(self._ray, config, setup, config.workers or self._count_places())
        self._resources.callback(self._workers.close)

        self._last_progress = now()
        while not self._workers.ready:
            self._workers.maintain(now())
            self._wait_for_results()

    def _check_counts(self) -> None:
        """Raise ConfigError if some workers or servers would have nothing to do."""
        rows, columns = self._job.blocks
        for name, count, limit in (
            ("workers", self.config.workers or 1, rows * columns),
            ("servers", self.config.servers, rows + columns),
        ):
            if count > limit:
                raise ConfigError(
                    f"{name} must be at most {limit:,} for {rows:,} x {columns:,} blocks, got {count:,}; "
                    f"use fewer {name}, or a smaller block_size",
                    argument=(name, "block_size"),
                )

    def _count_places(self) -> int:
        """Return the number of workers that the cores of the cluster, and its GPUs if needed, allow."""
        places = sum(int(node.cores) // self.config.worker_threads for node in await_nodes(self._ray))
        if self._job.plan.device.startswith("cuda"):
            places = min(places, int(self._ray.cluster_resources().get("GPU", 0) / self.config.worker_gpus))
        return max(1, places)

    def hold(self, sides: Sides | None) -> None:
        assert sides is not None
        self._servers.hold(sides)
        self._started = now()

    def describe(self) -> str:
        workers = self._workers
        servers = f"{self.config.servers} server{'s' * (self.config.servers > 1)}"
        return f"{len(workers)} asynchronous workers around {servers} on Ray, each {workers.description}"

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        """Lease rounds as strips until all are done, and repeat the changes that a lost server had."""
        self._run_id += 1
        self._servers.begin(self._run_id)
        strips = compose_strips(rounds, len(self._workers))
        leases = Leases(strips)
        self._last_progress = now()

        while True:
            while not leases.is_over:
                if not leases.is_pausing and self._job.should_pause():
                    leases.is_pausing = True
                yield from self._poll(leases, strips)

            # Reading the parameters shows which changes the servers really have. Changes that a server lost, or that
            # went to a server which was replaced since, are leased again.
            self._servers.save()
            for part, applied in self._servers.applied.items():
                leases.undo(part, applied)
            self._last_progress = now()
            if leases.is_over:
                return

    def _poll(self, leases: Leases, strips: Sequence[Strip]) -> Iterator[CompletedSteps]:
        """Check servers and workers once, lease strips to free workers, and yield completed steps."""
        moment = now()
        restored = self._servers.maintain(moment)
        for part, applied in restored.items():
            leases.undo(part, applied)
        if restored:
            moment = now()  # Restoring takes a while.
            self._last_progress = moment

        for lost in self._workers.maintain(moment):
            leases.lose(lost)
        self._workers.mark_late(leases.expire(moment), moment)

        # A worker may have several strips before the one that it gets.
        deadline = moment + max(self.config.lease_seconds, LEASE_FACTOR * self._expected_seconds())
        while (worker := self._workers.free()) is not None:
            strip = leases.take(worker, deadline)
            if strip is None:
                break
            self._workers.assign(worker, strip, self._run_id, self._servers.handles)

        for worker, result in self._wait_for_results():
            if result.run_id == self._run_id:
                steps = self._handle(worker, result, leases, strips[result.number])
                if steps is not None:
                    yield steps

    def _expected_seconds(self) -> float:
        """Return how long the longest strips take that a worker can have at a time."""
        return MAX_BLOCKS_PER_STRIP * self.config.ahead * self.statistics.seconds_per_block

    def _wait_for_results(self) -> list[tuple[int, Result]]:
        """Wait briefly for results of workers; raise ClusterError if nothing was finished for too long."""
        results = self._workers.wait(POLL_SECONDS)
        if not results:
            check_node(self._ray)

        # Workers that join and die again are no progress.
        patience = max(self.config.patience_seconds, 2 * LEASE_FACTOR * self._expected_seconds())
        if any(not result.failure for _, result in results):
            self._last_progress = now()
        elif now() - self._last_progress > patience:
            raise self._no_progress()
        return results

    def _no_progress(self) -> ClusterError:
        """Return an error that lists what does not respond."""
        reasons = []
        if self._workers.unresponsive:
            reasons.append(f"{self._workers.unresponsive} of {len(self._workers)} workers do not respond")
        for number in self._servers.unresponsive(now()):
            reasons.append(f"server {number} does not respond")
        if self._workers.failure:
            reasons.append(f"the last failure was: {self._workers.failure}")

        return ClusterError(
            f"no progress for {now() - self._last_progress:.0f} s: {'; '.join(reasons) or 'the reason is unknown'} "
            f"(each worker needs {self.config.worker_threads} free cores; see: ray status); "
            "run the same command again to resume from the last checkpoint"
        )

    def _handle(self, worker: int, result: Result, leases: Leases, strip: Strip) -> CompletedSteps | None:
        """Update the leases, and return the blocks that a result reports for the first time."""
        self.statistics.add(result, len(strip.blocks))

        if result.failure:
            self._workers.failure = result.failure
            leases.fail(worker, result.number)
            return None

        blocks = leases.finish(worker, result.number)
        if not blocks:
            return None
        self.statistics.blocks += len(blocks)
        self.note = self._describe_progress()
        return blocks, result.losses

    def _describe_progress(self) -> str:
        """Return speed, traffic and workers for the progress line."""
        statistics = self.statistics
        workers = self._workers
        seconds = max(1e-9, now() - self._started)
        parts = [
            f"{statistics.blocks / seconds:.3g} shards/s",
            f"{format_bytes(statistics.moved)} moved",
            f"staleness {statistics.staleness:.2f}",
            f"{workers.ready} of {len(workers)} workers",
        ]
        if workers.replaced:
            parts.append(f"{workers.replaced} replaced")
        if self._servers.restored:
            parts.append(f"{self._servers.restored} servers restored")
        return "".join(f", {part}" for part in parts)

    @property
    def applied(self) -> dict[Part, frozenset[int]]:
        """For each part, the blocks of the other side whose changes it got in the last call of `run`."""
        return self._servers.applied

    def is_finite(self) -> bool:
        """Return whether the parameters were finite at the end of the last call of `run`, which read them."""
        rows, columns = self._servers.sides
        arrays = rows.vectors, rows.state, columns.vectors, columns.state
        return all(bool(np.isfinite(array).all()) for array in arrays)

    def fetch(self) -> Sides | None:
        """Return the parameters at the end of the last call of `run`."""
        return self._servers.sides

    def close(self) -> None:
        """Stop workers and servers, and disconnect from the cluster."""
        self._resources.close()
