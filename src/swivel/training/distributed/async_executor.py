"""An executor with asynchronous workers and parameter servers, on Ray.

The process that runs the training loop leases blocks to workers. A worker fetches parameters, computes gradients and
pushes them, without waiting for other workers. Every block is trained once per epoch, even if processes die: leases
expire, and servers apply each gradient once. If a server is lost, all blocks since the last copy of the parameters are
leased again. Every wait has a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from time import monotonic as now

from swivel.errors import ClusterError, first_line
from swivel.runtime.numbers import plural
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import await_nodes, check_node, connect, count_places
from swivel.runtime.resources import format_bytes
from swivel.training.backends import Step
from swivel.training.distributed.cluster_setup import make_setup
from swivel.training.distributed.leases import Leases
from swivel.training.distributed.parameter_server import MAX_RESTORES, RESUME_HINT, Result, ServerPool, WorkerPool
from swivel.training.executor import CompletedSteps, Executor, Sides, TrainingJob
from swivel.training.schedule import Block

POLL_SECONDS = 0.5


class AsyncExecutor(Executor):
    """Workers and servers on Ray. The process that runs the loop leases blocks to the workers.

    One thread of that process makes all calls, so that leases and pools need no locks. The servers own the parameters
    while `run` is active; afterwards the copy in `ServerPool.sides` equals theirs.
    """

    min_block_size = 1024  # about 60 blocks per second can be leased (experiments/notes.md)

    def __init__(self, address: str, config: ClusterConfig) -> None:
        self.config = config
        self.blocks = 0  # trained so far
        self.moved = 0  # bytes between workers and servers
        self._resources = ExitStack()
        self._threads = config.worker_threads or 1
        cores = None if config.workers is None else config.workers * self._threads

        # Connect here and not in `begin`: Ray installs a SIGTERM handler, which the loop then replaces by its own.
        self._ray = self._resources.enter_context(connect(address, cores=cores))

    def begin(self, job: TrainingJob) -> None:
        self._job = job
        config = self.config
        self._servers = ServerPool(self._ray, config, job)
        self._resources.callback(self._servers.close)

        gpus = config.worker_gpus if job.plan.device.startswith("cuda") else 0.0
        rows, columns = job.blocks
        places = config.workers or max(1, count_places(await_nodes(self._ray), self._threads, gpus))
        workers = min(places, rows * columns)  # Others would have nothing to do.
        self._workers = WorkerPool(self._ray, config, gpus, make_setup(job, self._threads), workers)
        self._resources.callback(self._workers.close)

        self._last_progress = now()
        while not self._workers.ready:
            self._wait_for_results()

    def hold(self, sides: Sides | None) -> None:
        assert sides is not None
        self._servers.hold(sides)
        self._started = now()

    def describe(self) -> str:
        workers = self._workers
        servers = plural(len(self._servers.handles), "server")
        return f"{len(workers)} asynchronous workers around {servers} on Ray, each {workers.description}"

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        """Lease blocks until all are done; if a server is lost, repeat those since the copy with new servers."""
        self._servers.run_id += 1
        leases = Leases(rounds)
        self._last_progress = self._last_new_block = now()
        losses = 0

        while True:
            try:
                while not leases.is_over:
                    if not leases.is_pausing and self._job.should_pause():
                        leases.is_pausing = True
                    yield from self._poll(leases)
                self._servers.save()
                return
            except self._ray.exceptions.RayError as error:
                # Servers may be lost faster than they start, but only for a while: they may need too much memory.
                losses += 1
                idle = now() - self._last_new_block
                if losses > MAX_RESTORES and idle > self.config.patience_seconds:
                    reason = f"servers were lost {losses} times, without a new block for {idle:.0f} s"
                    raise ClusterError(f"{reason} ({first_line(error)}); {RESUME_HINT}") from error
                self._servers.restart()
                self._servers.restored += 1
                self._workers.forget()
                leases.repeat()
                self._last_progress = now()

    def _poll(self, leases: Leases) -> Iterator[CompletedSteps]:
        """Lease blocks to free workers, wait for results, replace what is lost, and yield completed steps."""
        moment = now()
        # Twice, because a worker itself waits for a server up to `lease_seconds`.
        deadline = moment + 2 * self.config.lease_seconds
        while (worker := self._workers.free()) is not None:
            step = leases.take(worker, deadline)
            if step is None:
                break
            self._workers.assign(worker, step, self._servers.run_id, self._servers.handles)

        has_failures = False
        for worker, result in self._wait_for_results():
            if result is None:
                leases.lose(worker)
            elif result.failure:
                has_failures = True
                leases.fail(result.block)
            else:
                self.blocks += 1
                self.moved += result.moved
                if leases.finish(result.block):
                    self._last_new_block = now()
                    self.note = self._describe_progress()
                    yield [result.block], [result.loss]

        # Only after the results that have arrived: the last call may have taken longer than a lease.
        for worker in leases.find_late(moment):
            self._workers.failure = f"a block took longer than twice the lease_seconds ({self.config.lease_seconds:g})"
            self._workers.replace(worker)
            leases.lose(worker)

        if has_failures:
            self._servers.check()

    def _wait_for_results(self) -> list[tuple[int, Result | None]]:
        """Wait briefly for results of workers; raise ClusterError if nothing was finished for too long."""
        results = self._workers.wait(POLL_SECONDS)
        if not results:
            check_node(self._ray)

        # Workers that join and die again are no progress.
        for _, result in results:
            if result is not None and result.failure:
                self._workers.failure = result.failure
            elif result is not None:
                self._last_progress = now()

        idle = now() - self._last_progress
        if idle > self.config.patience_seconds:
            workers = self._workers
            failure = f"; the last failure was: {workers.failure}" if workers.failure else ""
            raise ClusterError(
                f"no progress for {idle:.0f} s: {workers.ready} of {len(workers)} workers have joined{failure} "
                f"(each worker needs {self._threads} free cores; see: ray status); {RESUME_HINT}"
            )
        return results

    def _describe_progress(self) -> str:
        """Return speed, traffic and workers for the progress line."""
        workers = self._workers
        speed = self.blocks / max(1e-9, now() - self._started)
        note = f", {speed:.3g} shards/s, {format_bytes(self.moved)} moved, {workers.ready} of {len(workers)} workers"
        if workers.replaced:
            note += f", {workers.replaced} replaced"
        if self._servers.restored:
            note += f", servers restored {self._servers.restored} times"
        return note

    def is_finite(self) -> bool:
        """Return whether the parameters were finite at the end of the last call of `run`, which read them."""
        return all(side.is_finite() for side in self._servers.sides)

    def fetch(self) -> Sides | None:
        """Return the parameters at the end of the last call of `run`."""
        return self._servers.sides

    def close(self) -> None:
        """Stop workers and servers, and disconnect from the cluster."""
        self._resources.close()
