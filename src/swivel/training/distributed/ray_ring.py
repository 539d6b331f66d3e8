"""Rotation on Ray: the ranks of the ring are actors, and the process of the command runs the training loop.

`Rank` is an actor with the `RingExecutor` that torchrun's ranks have, so that the result has the same bits.
`RayRingExecutor` places the actors, gives them rounds of blocks and passes on their losses. It keeps a copy of all
parameters and the rounds since then. If an actor is lost, it starts the ranks again, as many as there is room for, with
the copy, and repeats these rounds. With other numbers of ranks they have the same bits, as their order stays.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from swivel.runtime.ray import await_nodes, check_node, choose_threads, connect, count_places, fetch, kill_actor
from swivel.training.backends import Step
from swivel.training.distributed.cluster_setup import ActorSetup, make_setup
from swivel.training.executor import CompletedSteps, Executor, Sides, TrainingJob
from swivel.training.schedule import Block
from swivel.training.training_plan import TrainingPlan, choose_backend

POLL_SECONDS = 0.1
PLACE_SECONDS = 5.0  # Ranks that find no place for so long are tried with one less.
LOOK_SECONDS = 5.0  # between two looks for nodes that have joined
COPY_SECONDS = 30.0  # between two copies of the parameters, or longer:
COPY_SHARE = 0.02  # of the time is for copies at most
MAX_SENT_STEPS = 500  # with a call to each rank; more are put into the store of each node
MAX_LOSSES = 5  # of ranks without a new round in between, before the run fails
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
        self._group: Any = None  # the placement group of the actors
        self._losses = 0  # of ranks, since the last new round
        self._rounds: list[Sequence[Step]] = []  # completed since the copy
        self._ahead: Sequence[Sequence[Block]] = ()
        self._seconds_of_copy = 0.0
        self._looked = now()

        with ExitStack() as stack:
            # Connect here and not in `begin`: Ray installs a SIGTERM handler, which the loop then replaces by its own.
            cores = (config.workers or 0) * (config.worker_threads or 0)
            self._ray = stack.enter_context(connect(address, cores=cores or None))
            nodes = await_nodes(self._ray)

            self._gpus = float(choose_backend(training)[1] == "cuda")
            if training.device == "auto" and not self._gpus and any(node.gpus for node in nodes):
                problem = (
                    "the cluster has GPUs, but this machine has none: run the command on one that has, or set device"
                )
                raise ConfigError(f"{problem} to cpu", argument="device")
            self._threads = config.worker_threads or choose_threads(nodes, config.workers, self._gpus)
            places = max(1, count_places(nodes, self._threads, self._gpus))
            self.ranks = min(places, config.workers or places)
            self._resources = stack.pop_all()

    def begin(self, job: TrainingJob) -> None:
        self._job = job
        self._setup = make_setup(job, self._threads)

    def hold(self, sides: Sides | None) -> None:
        assert sides is not None
        self._keep(sides)
        self._start()

    def _keep(self, sides: Sides) -> None:
        """Make these parameters the copy."""
        self._copy = sides
        self._rounds.clear()
        self._copied = now()

    def _should_pause(self) -> bool:
        return self._job.should_pause() or self._is_copy_due()

    def _is_copy_due(self) -> bool:
        return now() - self._copied > max(COPY_SECONDS, self._seconds_of_copy / COPY_SHARE)

    def describe(self) -> str:
        return f"Ray, {self._description}"

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        """Let the ranks run rounds, and repeat what was lost with a rank. The parameters are copied now and then."""
        pending = deque(rounds)
        self._ahead = ahead

        while pending and not self._job.should_pause():
            if self._is_copy_due():
                self.fetch()
            try:
                for completed in self._run_ranks(list(pending), self._should_pause):
                    self._rounds.append(pending.popleft())
                    self._losses = 0
                    yield completed
            except ClusterError as error:
                self._start(error)

    def _run_ranks(
        self, rounds: Sequence[Sequence[Step]], should_pause: Callable[[], bool] = lambda: False
    ) -> Iterator[CompletedSteps]:
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
            reply = control.remote(should_pause())
            completed, self.note = fetch(self._ray, reply, seconds=self.config.patience_seconds)
            if completed:
                self._last_progress = now()
            yield from completed

    def _wait(self, references: Sequence[Any]) -> list[Any]:
        """Return the results of calls; raise ClusterError if one of them fails, or takes too long."""
        self._last_progress = now()
        while self._poll(references):
            pass
        return [fetch(self._ray, reference) for reference in references]

    def _poll(self, references: Sequence[Any]) -> bool:
        """Wait briefly for calls; return whether some are running, or raise the error of one that has failed."""
        done, running = self._ray.wait(references, num_returns=len(references), timeout=POLL_SECONDS)
        failures = []
        for reference in done:
            try:
                fetch(self._ray, reference)
            except ClusterError as error:
                failures.append(error)
        # A rank that is lost makes the calls of others fail, too: its own error says more.
        if failures:
            raise min(failures, key=lambda error: "was lost" not in str(error))

        check_node(self._ray)
        idle = now() - self._last_progress
        if running and idle > self.config.patience_seconds:
            raise ClusterError(f"no progress for {idle:.0f} s")
        return bool(running)

    def _call(self, method: str) -> Any:
        """Return the result of the first rank of a method that all ranks run; if one is lost, start them again."""
        while True:
            try:
                return self._wait([actor.call.remote(method) for actor in self._actors])[0]
            except ClusterError as error:
                self._start(error)

    def _start(self, error: ClusterError | None = None) -> None:
        """Start the ranks with the copy of the parameters, after an error again, and repeat the rounds since then."""
        while True:
            if error is not None:
                check_node(self._ray)
                self._losses += 1
                if self._losses > MAX_LOSSES:
                    losses = f"ranks were lost {self._losses} times in a row ({first_line(error)})"
                    raise ClusterError(f"{losses}; run the same command again to resume from the last checkpoint")
            try:
                self._start_ranks()
                if error is not None:
                    self._job.progress.message(
                        f"a rank was lost ({first_line(error)}): {plural(len(self._actors), 'rank')} repeat "
                        f"{plural(len(self._rounds), 'round')}, from the copy of {now() - self._copied:.0f} s ago"
                    )
                for _ in self._run_ranks(self._rounds):
                    pass
                return
            except ClusterError as again:
                error = again

    def _start_ranks(self) -> None:
        """Start as many ranks as there is room for, neighbors on one node, and give them the copy."""
        self._stop_ranks()
        ranks = self._reserve()
        kind = self._ray.remote(concurrency_groups={_CONTROL: 1})(Rank)
        options = {"num_cpus": self._threads, "num_gpus": self._gpus, "max_restarts": 0}
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actors = [kind.options(**options, scheduling_strategy=strategy(self._group, n)).remote() for n in range(ranks)]
        self._actors = actors  # so that they are stopped if one is lost

        patience = ranks, self.config.patience_seconds
        stores = self._wait([actor.open_store.remote(*patience) for actor in actors])
        self._actors = [actors[number] for number in sorted(range(ranks), key=stores.__getitem__)]
        place = *patience, min(stores)
        copy = self._ray.put(self._copy)
        references = []
        for rank, actor in enumerate(self._actors):
            references.append(actor.begin.remote(self._setup, rank, *place, copy if rank == 0 else None))
        self._description = self._wait(references)[0]

    def _reserve(self) -> int:
        """Reserve the cores and GPUs of the ranks, as many as there is room for; return how many these are."""
        bundle = {"CPU": self._threads} | ({"GPU": self._gpus} if self._gpus else {})
        deadline = now() + self.config.patience_seconds
        ranks = 0
        while True:
            ranks = ranks - 1 if ranks > 1 else self._count_places()
            if ranks:
                self._group = self._ray.util.placement_group([bundle] * ranks, strategy="PACK")
                if self._group.wait(min(PLACE_SECONDS, max(0.1, deadline - now()))):
                    return ranks
                self._stop_ranks()
            else:
                sleep(POLL_SECONDS)
            check_node(self._ray)
            if now() > deadline:
                needed = f"{self._threads} free cores{' and a GPU' if self._gpus else ''}"
                raise ConfigError(
                    f"no node of the cluster has had {needed} for {self.config.patience_seconds:.0f} s; "
                    "set worker_threads, or see: ray status",
                    argument="worker_threads",
                )

    def _count_places(self) -> int:
        """Return the number of ranks that the nodes have room for, if nothing else runs there; 0 if there is none."""
        nodes = await_nodes(self._ray)
        places = count_places(nodes, self._threads, self._gpus)
        return min(places, self.config.workers or places, self._job.plan.row_blocks)

    def _stop_ranks(self) -> None:
        for actor in self._actors:
            kill_actor(self._ray, actor)
        self._actors = []
        if self._group is not None:
            with contextlib.suppress(Exception):  # The cluster is lost.
                self._ray.util.remove_placement_group(self._group)
        self._group = None

    def adapt(self, plan: TrainingPlan) -> TrainingPlan:
        """Use nodes that have joined, and make the order for the number of ranks, unless the settings have one."""
        ranks = len(self._actors)
        if now() - self._looked > LOOK_SECONDS:
            self._looked = now()
            free = self._ray.available_resources()
            more = int(free.get("CPU", 0) / self._threads)
            more = min(more, int(free.get("GPU", 0) / self._gpus)) if self._gpus else more
            ranks = max(ranks, min(self._count_places(), ranks + more))

        adapted = plan
        if self._job.config.ranks is None and 1 < ranks != min(plan.ranks, plan.row_blocks):
            adapted = replace(plan, ranks=ranks)
        if ranks == len(self._actors) and adapted == plan:
            return plan

        self.fetch()
        self._setup = replace(self._setup, plan=adapted)
        self._job.progress.message(f"going on with {plural(ranks, 'rank')} from now on")
        self._start()
        return adapted

    def is_finite(self) -> bool:
        return bool(self._call("is_finite"))

    def fetch(self) -> Sides:
        """Return all parameters, which are also the new copy."""
        if self._rounds:
            started = now()
            rows, columns = self._call("fetch")
            self._keep((rows.map(np.array), columns.map(np.array)))
            self._seconds_of_copy = now() - started
        return self._copy

    def close(self) -> None:
        """Stop the ranks, and disconnect from the cluster."""
        self._stop_ranks()
        self._resources.close()
