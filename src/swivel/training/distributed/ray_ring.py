"""Rotation on Ray: the ranks of the ring are actors, and the process of the command runs the training loop.

`Rank` is an actor with the `RingExecutor` that torchrun's ranks have, so that the result has the same bits.
`RayRingExecutor` places the actors, gives them rounds of blocks and collects their losses. It keeps a copy of all
parameters, and the rounds since then. If an actor is lost, it starts as many ranks as the cluster has places for, with
the copy, and repeats these rounds. Their order does not change, so that any number of ranks computes the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from time import monotonic as now
from time import sleep
from typing import Any

import numpy as np

from swivel.config import TrainConfig
from swivel.errors import ClusterError, ConfigError, first_line
from swivel.runtime.numbers import plural
from swivel.runtime.options import ClusterConfig
from swivel.runtime.ray import Places, await_nodes, check_node, choose_threads, connect, fetch, kill_actor, poll_calls
from swivel.training.backends import Step
from swivel.training.distributed.cluster_setup import ActorSetup, make_setup
from swivel.training.executor import CompletedSteps, Executor, Sides, TrainingJob
from swivel.training.schedule import Block
from swivel.training.training_plan import TrainingPlan, choose_backend

POLL_SECONDS = 0.1
COPY_SECONDS = 30.0  # between two copies of the parameters, at least
LOOK_SECONDS = 5.0  # between two searches for places on nodes that have joined, at least
OVERHEAD_SHARE = 0.02  # of the time, at most, is for copies, and for searches
MAX_SENT_STEPS = 500  # with a call to each rank; more are put into the store of each node
MAX_LOSSES = 5  # of ranks in a row that never end a run, however long it takes to start them again
_CONTROL = "control"  # the thread of an actor that answers while a round is trained


class Rank:
    """An actor with one rank of the ring."""

    def __init__(self) -> None:
        self._completed: deque[CompletedSteps] = deque()
        self._is_pausing = False

    def open_store(self, ranks: int, seconds: float) -> tuple[str, int]:
        """Open a store, at which the ranks meet if this one becomes the first; return its address."""
        import ray

        host = ray.util.get_node_ip_address()
        self._store = _open_store(host, 0, ranks, seconds, is_first=True)
        return host, self._store.port

    def begin(
        self, setup: ActorSetup, rank: int, ranks: int, seconds: float, store: tuple[str, int], sides: Sides | None
    ) -> str:
        """Meet the other ranks, get the parameters from the first one, which has them all, and describe the ring."""
        from swivel.training.distributed.ring import RingExecutor, connect_ranks

        meeting = self._store if rank == 0 else _open_store(*store, ranks, seconds)
        connect_ranks(timedelta(seconds=seconds), store=meeting, rank=rank, world_size=ranks)
        self._ring = RingExecutor()
        with setup.open_job() as job:
            self._ring.begin(replace(job, should_stop=lambda: self._is_pausing))
            # Arrays that Ray delivers are read-only.
            self._ring.hold(None if sides is None else (sides[0].map(np.array), sides[1].map(np.array)))
        return self._ring.describe()

    def run(self, work: tuple[Sequence[Sequence[Step]], Sequence[Sequence[Block]]]) -> None:
        """Run rounds, with those that follow them; the first rank keeps the losses until `poll` takes them."""
        self._is_pausing = False
        for completed in self._ring.run(*work):
            if self._ring.is_leader:
                self._completed.append(completed)

    def poll(self, pause: bool) -> tuple[list[CompletedSteps], str]:
        """Return the rounds that were completed since the last call, and the note; all ranks pause soon if asked to."""
        self._is_pausing = self._is_pausing or pause
        return [self._completed.popleft() for _ in range(len(self._completed))], self._ring.note

    def call(self, method: str) -> Any:
        """Return the result of a method of this rank of the ring."""
        return getattr(self._ring, method)()


def _open_store(host: str, port: int, ranks: int, seconds: float, *, is_first: bool = False) -> Any:
    import torch.distributed as dist

    patience = timedelta(seconds=seconds)
    return dist.TCPStore(host, port, ranks, is_first, patience, wait_for_workers=False)  # type: ignore[attr-defined]


class RayRingExecutor(Executor):
    """The ranks of a run, as actors on Ray. One thread of the process that runs the training loop makes all calls."""

    def __init__(self, address: str, config: ClusterConfig, training: TrainConfig) -> None:
        self.config = config
        self._actors: list[Any] = []
        self._losses = 0  # of ranks, since the last new round
        self._rounds: list[Sequence[Step]] = []  # completed since the copy
        self._ahead: Sequence[Sequence[Block]] = ()
        self._seconds_of_copy = 0.0
        self._seconds_of_search = 0.0
        self._searched = now()

        with ExitStack() as stack:
            # Connect here and not in `begin`: Ray installs a SIGTERM handler, which the loop then replaces by its own.
            cores = (config.workers or 0) * (config.worker_threads or 0)
            self._ray = stack.enter_context(connect(address, cores=cores or None))
            nodes = await_nodes(self._ray)

            self._gpus = float(choose_backend(training)[1] == "cuda")
            if training.device == "auto" and not self._gpus and any(node.gpus for node in nodes):
                problem = "the cluster has GPUs, this machine has none: run the command on one that has"
                raise ConfigError(f"{problem}, or set device to cpu", argument="device")
            self._threads = config.worker_threads or choose_threads(nodes, config.workers, self._gpus)
            self._places = Places(self._ray, self._threads, self._gpus)
            places = max(1, self._places.count())
            self.ranks = min(places, config.workers or places)
            self._resources = stack.pop_all()

    def begin(self, job: TrainingJob) -> None:
        self._job = job
        self._setup = make_setup(job, self._threads)

    def hold(self, sides: Sides | None) -> None:
        assert sides is not None
        self._keep(sides)
        self._last_round = now()
        self._start()

    def _keep(self, sides: Sides) -> None:
        """Make these parameters the copy."""
        self._copy = sides
        self._rounds.clear()
        self._copied = now()

    def _is_copy_due(self) -> bool:
        return now() - self._copied > max(COPY_SECONDS, self._seconds_of_copy / OVERHEAD_SHARE)

    def describe(self) -> str:
        workers = self.config.workers or 0
        missing = f"; there is no place for {workers:,}" if workers > len(self._actors) else ""
        return f"Ray, {self._description}{missing}"

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        """Let the ranks run rounds, and repeat what was lost with a rank. The parameters are copied now and then."""
        pending = deque(rounds)
        self._ahead = ahead

        while pending and not self._job.should_pause():
            if self._is_copy_due():
                self.fetch()
            try:
                for completed in self._run_ranks(list(pending), may_pause=True):
                    self._rounds.append(pending.popleft())
                    self._losses = 0
                    self._last_round = now()
                    yield completed
            except ClusterError as error:
                self._start(error)

    def _run_ranks(self, rounds: Sequence[Sequence[Step]], *, may_pause: bool) -> Iterator[CompletedSteps]:
        """Let the ranks run rounds until they are done or pause; raise ClusterError if a rank is lost."""
        work: Any = rounds, self._ahead
        if sum(map(len, rounds)) > MAX_SENT_STEPS:
            work = self._ray.put(work)
        references = [actor.run.remote(work) for actor in self._actors]
        control = self._actors[0].poll.options(concurrency_group=_CONTROL)

        self._last_progress = now()
        is_running = True
        while is_running:
            is_running = self._poll(references)
            pause = may_pause and (self._job.should_pause() or self._is_copy_due())
            reply = control.remote(pause)
            completed, self.note = fetch(self._ray, reply, seconds=self.config.patience_seconds)

            if completed:
                yield from completed
                self._last_progress = now()  # The caller's own time is not the ranks'.
            elif is_running:
                self._check_progress()

    def _wait(self, references: Sequence[Any]) -> list[Any]:
        """Return the results of calls; raise ClusterError if one of them fails, or takes too long."""
        self._last_progress = now()
        while self._poll(references):
            self._check_progress()
        return [fetch(self._ray, reference) for reference in references]

    def _poll(self, references: Sequence[Any]) -> bool:
        """Wait briefly for calls; return whether some are running, or raise the error of one that has failed."""
        is_running = poll_calls(self._ray, references, seconds=POLL_SECONDS)

        # An actor that was not created before its node was lost would wait for a place without any error.
        if is_running and not self._places.are_reserved():
            raise ClusterError("a node was lost")
        return is_running

    def _check_progress(self) -> None:
        idle = now() - self._last_progress
        if idle > self.config.patience_seconds:
            raise ClusterError(f"no progress for {idle:.0f} s")

    def _call(self, method: str) -> tuple[Any, float]:
        """Return the first rank's result of a method that all ranks run, and the seconds of the call.

        If a rank is lost, the ranks are started again, which does not count.
        """
        while True:
            started = now()
            try:
                results = self._wait([actor.call.remote(method) for actor in self._actors])
                return results[0], now() - started
            except ClusterError as error:
                self._start(error)

    def _start(self, error: ClusterError | None = None) -> None:
        """Start the ranks with the copy of the parameters, after an error again, and repeat the rounds since then."""
        while True:
            if error is not None:
                self._report_loss(error)

            try:
                self._start_ranks()
                if error is not None:
                    ranks, rounds = plural(len(self._actors), "rank"), plural(len(self._rounds), "round")
                    age = now() - self._copied
                    self._job.progress.message(f"{ranks} repeat {rounds}, from the copy of {age:.0f} s ago")

                for _ in self._run_ranks(self._rounds, may_pause=False):
                    pass
                return
            except ClusterError as again:
                error = again

    def _report_loss(self, error: ClusterError) -> None:
        """Report the loss of a rank; raise ClusterError if it makes no sense to start the ranks once more."""
        check_node(self._ray)
        self._losses += 1
        reason = first_line(error)
        self._job.progress.message(f"a rank was lost ({reason})")
        sleep(POLL_SECONDS * self._losses)

        # Nodes may be lost faster than ranks start, but only for a while; an error of the ranks themselves comes again.
        idle = now() - self._last_round
        if self._losses > MAX_LOSSES and idle > self.config.patience_seconds:
            raise ClusterError(
                f"ranks were lost {self._losses} times in a row, without a new round for {idle:.0f} s ({reason}); "
                "run the same command again to resume from the last checkpoint"
            )

    def _start_ranks(self) -> None:
        """Start as many ranks as there are places for, neighbors on one node, and give them the copy."""
        self._stop_ranks()
        patience = self.config.patience_seconds
        ranks = self._places.reserve(self._count_places, seconds=patience, should_stop=self._job.should_stop)

        kind = self._ray.remote(concurrency_groups={_CONTROL: 1})(Rank)
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actors = []
        options = {"num_cpus": self._threads, "num_gpus": self._gpus, "max_restarts": 0}
        for bundle in range(ranks):
            place = strategy(self._places.group, bundle)
            actors.append(kind.options(**options, scheduling_strategy=place).remote())
        self._actors = actors  # so that they are stopped if one is lost

        # The first rank by address opens the store, and ranks on one host follow each other.
        stores = self._wait([actor.open_store.remote(ranks, patience) for actor in actors])
        self._actors = [actors[number] for number in sorted(range(ranks), key=stores.__getitem__)]

        copy = self._ray.put(self._copy)
        references = []
        for rank, actor in enumerate(self._actors):
            parameters = copy if rank == 0 else None
            references.append(actor.begin.remote(self._setup, rank, ranks, patience, min(stores), parameters))
        self._description = self._wait(references)[0]

    def _count_places(self) -> int:
        """Return the number of ranks that the nodes have places for, if nothing else runs there; it may be 0."""
        # More ranks than the order is made for would have nothing to do.
        limits = self.config.workers, self._job.config.ranks, self._job.plan.row_blocks
        return min(self._places.count(), *(limit for limit in limits if limit is not None))

    def _stop_ranks(self) -> None:
        for actor in self._actors:
            kill_actor(self._ray, actor)
        self._actors = []
        self._places.release()

    def adapt(self, plan: TrainingPlan) -> TrainingPlan:
        """Use nodes that have joined, and make the order for the number of ranks, unless the settings have one."""
        ranks = len(self._actors)
        if now() - self._searched > max(LOOK_SECONDS, self._seconds_of_search / OVERHEAD_SHARE):
            started = now()
            ranks += self._places.count_free(self._count_places() - ranks)
            self._searched = now()
            self._seconds_of_search = self._searched - started

        adapted = plan
        if self._job.config.ranks is None and 1 < ranks != min(plan.ranks, plan.row_blocks):
            adapted = replace(plan, ranks=ranks)
        if ranks == len(self._actors) and adapted == plan:
            return plan

        self.fetch()
        self._setup = replace(self._setup, plan=adapted)
        self._start()
        self._job.progress.message(f"continuing with {plural(len(self._actors), 'rank')}")
        return adapted

    def is_finite(self) -> bool:
        return bool(self._call("is_finite")[0])

    def fetch(self) -> Sides:
        """Return all parameters, which are also the new copy."""
        if self._rounds:
            (rows, columns), seconds = self._call("fetch")
            started = now()
            self._keep((rows, columns))  # This frees the old copy, before there is memory for another one.
            self._copy = rows.map(np.array), columns.map(np.array)  # Arrays that Ray delivers are read-only.
            self._seconds_of_copy = seconds + now() - started
        return self._copy

    def close(self) -> None:
        """Stop the ranks, and disconnect from the cluster."""
        self._stop_ranks()
        self._resources.close()
