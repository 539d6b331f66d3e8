"""Asynchronous workers around parameter servers, on Ray: `Workers` of the one training loop.

Receives rounds from the loop, hands on what they lost. The command leases strips of blocks to workers; a worker
fetches, computes and pushes, and waits for nobody. Every block is trained once an epoch whatever dies: leases run out,
servers apply each change once, and what a restored server has not got is leased again before the epoch ends. Nothing
here waits without a limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from swivel.errors import ClusterError
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import await_nodes, connect
from swivel.runtime.resources import format_bytes
from swivel.training.distributed.leases import MOST_BLOCKS, Leases, Part, Strip, compose_strips
from swivel.training.distributed.server_pool import ServerPool, now
from swivel.training.distributed.worker import Result, WorkerSetup
from swivel.training.distributed.worker_pool import WorkerMessage, WorkerPool
from swivel.training.executor import CompletedSteps, LocalResources, PauseRequests, Round, Sides, TrainingJob
from swivel.training.objective import Objective
from swivel.training.schedule import Block

POLL_SECONDS = 0.5
TIMES_TYPICAL = 5  # what a strip may take, before it is leased again
RECENT = 0.95  # how slowly the measured time of a block follows


@dataclass(slots=True)
class RunStatistics:
    """What a run has done so far: figures for people and for benchmarks."""

    blocks: int = 0
    moved: int = 0  # bytes between workers and servers
    least: int = 0  # bytes that had to move, for the strips as they were
    pushes: int = 0
    stale: int = 0  # changes by others between fetches and pushes, all together
    failures: int = 0
    seconds_per_block: float = 0.0  # of a worker, lately

    def add(self, result: Result, blocks: int) -> None:
        """Count a strip of so many blocks."""
        self.moved += result.moved
        if result.failure:
            self.failures += not result.is_untouched  # One that rests has not failed.
            return
        self.pushes += len(result.staleness)
        self.stale += sum(result.staleness)
        seconds = result.seconds / blocks
        before = self.seconds_per_block or seconds
        self.seconds_per_block = RECENT * before + (1 - RECENT) * seconds

    @property
    def staleness(self) -> float:
        """How many changes by others a push finds that its vectors had not."""
        return self.stale / max(1, self.pushes)


class AsyncExecutor:
    """Workers and servers on Ray; the process that runs the loop leases work to them."""

    is_leader, ranks = True, 1
    min_block_size = 1024  # some 60 shards a second can be leased (docs/cluster.md)

    def __init__(self, address: str, config: ClusterConfig) -> None:
        self.config = config
        self.tally = RunStatistics()
        self._resources = ExitStack()
        cores = None if config.workers is None else config.workers * config.worker_threads
        # Here and not in `begin`: Ray takes SIGTERM for itself, which the loop then turns into a request.
        self._ray = self._resources.enter_context(connect(address, cores=cores))
        self._run_id = 0
        self._failure = ""

    def broadcast(self, text: str) -> str:
        """Return the text itself: one process runs the loop."""
        return text

    def any_rank(self, is_so: bool) -> bool:
        """Return what was said."""
        return is_so

    def begin(self, job: TrainingJob, here: LocalResources) -> None:
        """Start servers and workers, and wait for the first of these."""
        path = getattr(job.matrix, "path", None)
        if path is None:
            raise ClusterError("workers on other nodes read the matrix from its folder, and this one has none")
        self._job = job
        self._bytes = 4 * (job.config.dim + Objective.from_config(job.config).extra_dims)
        config = self.config
        self._bank = ServerPool(self._ray, config, job.starts)
        self._resources.callback(self._bank.close)
        order = WorkerSetup(
            path.resolve(), job.matrix.fingerprint, job.config, job.plan, config.worker_threads, config.lease_seconds
        )
        self._crew = WorkerPool(self._ray, config, order, config.workers or self._count_places())
        self._resources.callback(self._crew.close)
        self._advanced = now()
        while not self._crew.ready:
            self._crew.tend(now())
            self._listen()

    def _count_places(self) -> int:
        """Return how many workers the cluster has cores for, and GPUs where each needs one."""
        places = sum(int(node.cores) // self.config.worker_threads for node in await_nodes(self._ray))
        if self._job.plan.device.startswith("cuda"):
            places = min(places, int(self._ray.cluster_resources().get("GPU", 0) / self.config.worker_gpus))
        return max(1, places)

    def hold(self, sides: Sides | None) -> None:
        """Give the servers the parameters."""
        assert sides is not None
        self._bank.hold(sides)
        self._began = now()

    def describe(self) -> str:
        """Say what runs."""
        crew, servers = len(self._crew), self.config.servers
        plural = "s" * (servers > 1)
        return f"{crew} asynchronous workers around {servers} server{plural} on Ray, each {self._crew.description}"

    def run(
        self, rounds: Sequence[Round], ahead: Sequence[Sequence[Block]], wishes: PauseRequests
    ) -> Iterator[CompletedSteps]:
        """Lease rounds as strips until all are done; what a lost server had is done again before the end."""
        self._run_id += 1
        self._bank.begin(self._run_id)
        strips = compose_strips(rounds, len(self._crew))
        table = Leases(strips)
        self._advanced = now()
        while True:
            while not table.is_over:
                if not table.is_pausing and wishes.pause():
                    table.is_pausing = True
                    self._crew.rest(self._run_id)
                yield from self._turn(table, strips)
            # The servers say what was applied: what one has lost, or what came from one that is no longer there, is
            # found here and leased again.
            for part, applied in self._bank.save().items():
                table.undo(part, applied)
            self._advanced = now()
            if table.is_over:
                return

    def _turn(self, table: Leases, strips: Sequence[Strip]) -> Iterator[CompletedSteps]:
        """See to everybody once."""
        moment = now()
        restored = self._bank.tend(moment)
        for part, applied in restored.items():
            table.undo(part, applied)
        if restored:
            self._advanced = moment = now()
        for worker in self._crew.tend(moment):
            table.lose(worker)
        self._crew.mark_late(table.expire(moment), moment)
        while (worker_ := self._crew.free()) is not None:
            strip = table.take(worker_, moment + self._allowed_seconds())
            if strip is None:
                break
            handles = self._bank.handles
            self._crew.lend(worker_, strip, self._run_id, handles, is_last=table.is_pausing)
        for heard in self._listen():
            done = self._hear(heard, table, strips)
            if done is not None:
                yield done

    def _allowed_seconds(self) -> float:
        """Return how long a worker may take for the strips that it has."""
        return max(self.config.lease_seconds, TIMES_TYPICAL * self._longest_seconds())

    def _longest_seconds(self) -> float:
        return MOST_BLOCKS * self.config.ahead * self.tally.seconds_per_block

    def _listen(self) -> list[WorkerMessage]:
        """Wait a moment for news; raise where there has been none for long."""
        references = self._crew.references()
        if references:
            self._ray.wait(references, num_returns=1, timeout=POLL_SECONDS)
            references, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        else:
            time.sleep(POLL_SECONDS)
        heard = list(self._crew.hear(references, now()))
        if any(each.result is not None and not each.result.failure for each in heard):
            self._advanced = now()
        elif now() - self._advanced > max(self.config.patience_seconds, 2 * TIMES_TYPICAL * self._longest_seconds()):
            raise self._stuck()
        return heard

    def _stuck(self) -> ClusterError:
        workers, servers = self._crew.silent(), self._bank.silent(now())
        what = [f"of {len(self._crew)} workers {len(workers)} do not answer"] if workers else []
        what += [f"server {number} does not answer" for number in servers]
        what += [f"the last failure was: {self._failure}"] if self._failure else []
        each = f"each needs {self.config.worker_threads} free cores"
        return ClusterError(
            f"nothing has advanced for {now() - self._advanced:.0f} s: {'; '.join(what) or 'nobody says why'} "
            f"({each}; see: ray status); the same command goes on from the last checkpoint"
        )

    def _hear(self, heard: WorkerMessage, table: Leases, strips: Sequence[Strip]) -> CompletedSteps | None:
        if heard.is_lost:
            self._failure = heard.reason or self._failure
            table.lose(heard.worker)
        result = heard.result
        if result is None or result.run_id != self._run_id:
            return None
        strip = strips[result.number]
        self.tally.add(result, len(strip.blocks))
        if result.failure:
            if not table.is_pausing:
                self._failure = result.failure
                self._bank.hurry()
            table.fail(heard.worker, result.number, untouched=result.is_untouched)
            return None
        blocks = table.finish(heard.worker, result.number)
        if not blocks:
            return None
        self.tally.blocks += len(blocks)
        self.tally.least += self._least_bytes(strip)
        return CompletedSteps(blocks, result.losses, self._note())

    def _least_bytes(self, strip: Strip) -> int:
        """Return what has to move for a strip: vectors down and gradients up; of a shared block, accumulators too."""
        total = 0
        for side, block in {part for part, _ in strip.parts()}:
            edges = self._job.starts[side]
            times = 4 if side == strip.shared else 2
            total += times * int(edges[block + 1] - edges[block]) * self._bytes
        return total

    def _note(self) -> str:
        tally, crew = self.tally, self._crew
        seconds = max(1e-9, now() - self._began)
        changed = [f"{crew.replaced} replaced"] if crew.replaced else []
        changed += [f"{self._bank.restored} servers restored"] if self._bank.restored else []
        told = [
            f"{tally.blocks / seconds:.3g} shards/s",
            f"{format_bytes(tally.moved)} moved",
            f"staleness {tally.staleness:.2f}",
            f"{crew.ready} of {len(crew)} workers",
        ]
        return "".join(f", {part}" for part in told + changed)

    @property
    def applied(self) -> dict[Part, frozenset[int]]:
        """What each part of the parameters was trained with in the last call of `run`, as its server said."""
        return self._bank.applied

    def is_finite(self) -> bool:
        """Return whether the parameters were finite when the last call of `run` ended: they were read then."""
        sides = self._bank.sides
        return all(bool(np.isfinite(array).all()) for side in sides for array in (side.vectors, side.accumulators))

    def fetch(self) -> Sides | None:
        """Return the parameters as they were when the last call of `run` ended."""
        return self._bank.sides

    def close(self) -> None:
        """End workers and servers; leave the cluster."""
        self._resources.close()
