"""An executor for ranks of torch.distributed: each rank keeps its row blocks, and column blocks move between ranks.

Every rank runs the whole training loop over the same rounds, but trains only the blocks of its own rows. The order of
blocks determines which rank needs a column block next, so that no requests are needed: after the last round in which a
rank uses a block, it sends the block to the next rank while it computes. With the order of `schedule.rounds_for_ranks`
the blocks move around a ring. The result does not depend on the number of ranks, bit for bit.

Ranks communicate through gloo (CPU) or NCCL (GPU). `torchrun` starts them and sets their environment variables, or
they are actors (`swivel.training.distributed.ray_ring`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from swivel.errors import ClusterError
from swivel.runtime.numbers import plural
from swivel.runtime.resources import format_bytes
from swivel.training.backends import ParameterBlock, Step
from swivel.training.executor import CompletedSteps, LocalExecutor, Sides, TrainingJob
from swivel.training.objective import Loss
from swivel.training.schedule import Block, rank_of_row

T = TypeVar("T")
PATIENCE = timedelta(minutes=10)  # A rank waits this long for another: longer than any step or checkpoint.
LAST_WAIT = timedelta(seconds=5)  # for pending messages when a rank closes
LOSS_FIELDS = 4  # numbers in a Loss
Move = tuple[int, int, int]  # transfer of a column block: its number, the rank that sends it, the rank that gets it


class RingExecutor(LocalExecutor):
    """Runs the steps of this rank's row blocks.

    One thread of each rank makes all calls. `_row_owners` and `_column_owners` say which rank has the parameters of a
    block. While a column block is in `_arriving`, neither the sender's nor the receiver's backend has it. All ranks
    plan the same moves from the same order, so that what one rank sends another one expects, without a request.
    """

    in_place = False  # The leader gathers what the ranks have.
    is_alone = False

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        if not dist.is_initialized():
            connect_ranks(patience)
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.is_leader = self.rank == 0
        self.moved = 0  # bytes of column blocks that this rank sent between rounds
        self._arriving: dict[int, tuple[torch.Tensor, Any]] = {}  # column blocks, with buffer and handle
        self._sent: deque[tuple[int, torch.Tensor, Any]] = deque()  # round after which a copy was sent, copy and handle
        # Blocks that this rank owns but the backend does not have, by side and number: those that have arrived and are
        # not needed yet, and on the leader those that still have their initial values, in host memory.
        self._waiting: dict[tuple[int, int], ParameterBlock] = {}
        self._reported: deque[tuple[list[Block], torch.Tensor, Any]] = deque()  # rounds whose losses are being summed

    def broadcast(self, value: T) -> T:
        values = [value]
        dist.broadcast_object_list(values, 0, device=torch.device("cpu"))
        return values[0]

    def any_rank(self, is_so: bool) -> bool:
        flag = torch.tensor([float(is_so)])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag > 0)

    def begin(self, job: TrainingJob) -> None:
        """Create the backend of this rank, on a GPU of its own if the plan uses GPUs."""
        if job.plan.device == "cuda":
            job = replace(job, plan=replace(job.plan, device=_take_device()))
        super().begin(job)
        self._offsets = job.offsets()

        # The order may be made for more ranks than there are: each rank then does the work of several.
        rows, columns = job.blocks
        self._row_owners = [
            rank_of_row(rows, job.plan.ranks, block) * self.ranks // job.plan.ranks for block in range(rows)
        ]
        self._column_owners = [0] * columns  # ranks that have each column block now: at first the leader has all
        self._device = torch.device(job.plan.device)
        self._dtype = torch.float64 if job.plan.dtype == "float64" else torch.float32

    def hold(self, sides: Sides | None) -> None:
        """Get the row blocks of this rank from the leader. Column blocks arrive when they are needed."""
        self._job.hold(self._backend, None, self._capacity())
        self._waiting = {}
        if sides is not None:
            for side, owners in enumerate((self._row_owners, self._column_owners)):
                for block in range(len(owners)):
                    span = self._job.span(side, block)
                    self._waiting[side, block] = sides[side].part(span.start, span.stop)

        for block, owner in enumerate(self._row_owners):
            if owner == self.rank and self.is_leader:
                self._bring_in(0, block)
            elif self.is_leader:
                dist.send(self._pack(0, block), owner)
                self._drop(0, block)
            elif owner == self.rank:
                values = self._empty(0, block)
                dist.recv(values, 0)
                self._backend.set_block(0, block, self._as_block(0, block, values))

    def _capacity(self) -> tuple[int, int]:
        """Return how many row blocks and column blocks this rank has at a time, at most."""
        # While a chunk of columns is trained, the next one may arrive. The order may be made for more ranks than there
        # are: then a rank has the chunks of several.
        plan = self._job.plan
        rows = max(1, self._row_owners.count(self.rank))
        if plan.row_blocks < plan.ranks:
            return rows, plan.column_blocks  # Some ranks have no rows, and no columns stay with them.
        chunks = 2 * -(-plan.ranks // self.ranks)
        columns = chunks * -(-plan.column_blocks // (2 * plan.ranks))
        return rows, min(columns, plan.column_blocks)

    def _bring_in(self, side: int, block: int) -> None:
        """Give a block that has arrived, or still has its initial values, to the backend."""
        values = self._waiting.pop((side, block), None)
        if values is not None:
            self._backend.set_block(side, block, values)

    def _drop(self, side: int, block: int) -> None:
        """Free the memory of a block that another rank has now."""
        if self._waiting.pop((side, block), None) is None:
            self._backend.drop_block(side, block)

    def describe(self) -> str:
        links = "NCCL" if self._device.type == "cuda" else "gloo"
        return f"{plural(self.ranks, 'rank')} ({links}), each {self._backend.describe()}"

    def run(self, rounds: Sequence[Sequence[Step]], ahead: Sequence[Sequence[Block]]) -> Iterator[CompletedSteps]:
        """Run this rank's blocks of each round. All ranks yield the same losses and pause after the same round."""
        order = [[step.block for step in steps] for steps in rounds]
        moves = self._plan_moves([*order, *ahead], len(rounds))
        moved_before = self.moved
        self._start_moves(moves[0], -1)
        self._wait_for_sends(-1)  # The leader would need memory for copies of all initial columns.
        self.moved = moved_before  # The initial distribution is not counted as traffic of an epoch.

        for number, steps in enumerate(rounds):
            own = [step for step in steps if self._row_owners[step.block[0]] == self.rank]
            for column in sorted(step.block[1] for step in own):
                self._finish_move(column)
                self._bring_in(1, column)

            # A rank that skipped steps of its own would not match the others: all stop after the same round.
            losses = self._backend.run(own, lambda: False)()
            own_losses = {step.block: loss for step, loss in zip(own, losses, strict=True)}
            self._report(order[number], own_losses, self._job.should_pause())
            self._start_moves(moves[number + 1], number)

            # Losses and pause requests of a round are read one round later, so that no rank waits for the slowest.
            if len(self._reported) > 1:
                completed, pause = self._take_report()
                # All ranks have reported the round before this one, so they receive what was sent before it.
                self._wait_for_sends(number - 2)
                yield completed
                if pause:
                    break

        while self._reported:
            yield self._take_report()[0]

    def _plan_moves(self, order: Sequence[Sequence[Block]], run: int) -> list[list[Move]]:
        """Return the moves before the first round and after each of `run` rounds.

        A column block moves to the next rank that needs it right after the last round in which its owner uses it.
        """
        moves: list[list[Move]] = [[] for _ in range(run + 1)]
        last_use = {block: (owner, -1) for block, owner in enumerate(self._column_owners)}  # rank and round
        for number, blocks in enumerate(order):
            for row, column in blocks:
                source, used = last_use[column]
                target = self._row_owners[row]
                if source != target and used < run:
                    moves[used + 1].append((column, source, target))
                last_use[column] = target, number
        return moves

    def _start_moves(self, moves: Sequence[Move], number: int) -> None:
        """Start to send and receive blocks after round `number`, in parallel to the computation."""
        for block, source, target in moves:
            self._column_owners[block] = target
            if self.rank not in (source, target):
                continue

            self._finish_move(block)  # The block may still be arriving.
            # A block is in one transfer at a time, so that its number identifies the message. Messages that are sent
            # without a tag have the tag 0.
            tag = block + 1
            if self.rank == source:
                values = self._pack(1, block)
                self._sent.append((number, values, dist.isend(values, target, tag=tag)))
                self._drop(1, block)
                self.moved += values.nbytes
            else:
                values = self._empty(1, block)
                self._arriving[block] = values, dist.irecv(values, source, tag=tag)

    def _finish_move(self, block: int) -> None:
        """Wait until a column block has arrived, if it is under way; it stays outside until a step needs it."""
        if block in self._arriving:
            values, work = self._arriving.pop(block)
            work.wait()
            self._waiting[1, block] = self._as_block(1, block, values)

    def _finish_moves(self) -> None:
        """Wait until all column blocks that are under way have arrived."""
        for block in list(self._arriving):
            self._finish_move(block)

    def _wait_for_sends(self, last: int | None = None) -> None:
        """Wait until the blocks that were sent after round `last` or earlier have left, and free their copies."""
        while self._sent and (last is None or self._sent[0][0] <= last):
            _, _, work = self._sent.popleft()
            work.wait()

    def _pack(self, side: int, block: int) -> torch.Tensor:
        """Return vectors and state of a block as one tensor."""
        parameters = self._waiting.get((side, block)) or self._backend.get_block(side, block)
        both = [torch.as_tensor(values).flatten() for values in (parameters.vectors, parameters.state)]
        return torch.cat(both).to(self._device, self._dtype)

    def _empty(self, side: int, block: int) -> torch.Tensor:
        span = self._job.span(side, block)
        size = (span.stop - span.start) * (self._job.config.dim + 1)
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def _as_block(self, side: int, block: int, values: torch.Tensor) -> ParameterBlock:
        """Return a block from the tensor that `_pack` made of it."""
        offsets = self._offsets[side][self._job.span(side, block)]
        vectors = values[: -len(offsets)].view(len(offsets), -1)
        return ParameterBlock(vectors, values[-len(offsets) :], offsets)

    def _report(self, blocks: list[Block], losses: dict[Block, Loss], pause: bool) -> None:
        """Start to sum the losses of a round over all ranks; every block has a loss on one rank and zeros elsewhere."""
        values = torch.zeros(len(blocks) + 1, LOSS_FIELDS, dtype=torch.float64)
        for number, block in enumerate(blocks):
            if block in losses:
                values[number] = torch.tensor(astuple(losses[block]), dtype=torch.float64)
        values[-1, 0] = float(pause)  # The last row is positive if a rank requests a pause.
        self._reported.append((blocks, values, dist.all_reduce(values, async_op=True)))

    def _take_report(self) -> tuple[CompletedSteps, bool]:
        """Wait for the oldest pending sum; return the losses, and whether any rank requests a pause."""
        blocks, values, work = self._reported.popleft()
        work.wait()
        *losses, pause = values.tolist()
        self.note = f", {format_bytes(self.moved)} sent"
        return (blocks, [Loss(*fields) for fields in losses]), pause[0] > 0

    def is_finite(self) -> bool:
        self._finish_moves()
        self._wait_for_sends()
        is_finite = super().is_finite() and all(block.is_finite() for block in self._waiting.values())
        return not self.any_rank(not is_finite)

    def fetch(self) -> Sides | None:
        """Gather all parameters in the memory of the leader and return them; return None on other ranks."""
        self._finish_moves()
        rows = self._gather(0, self._row_owners)
        columns = self._gather(1, self._column_owners)
        return None if rows is None or columns is None else (rows, columns)

    def _gather(self, side: int, owners: Sequence[int]) -> ParameterBlock | None:
        """Send the blocks of this rank to the leader; return all blocks on the leader."""
        if not self.is_leader:
            for block, owner in enumerate(owners):
                if owner == self.rank:
                    dist.send(self._pack(side, block), 0)
            return None

        size = len(self._offsets[side])
        dtype = np.float64 if self._dtype == torch.float64 else np.float32
        vectors, state = np.empty((size, self._job.config.dim), dtype), np.empty(size, dtype)
        for block, owner in enumerate(owners):
            if owner == self.rank:
                values = self._pack(side, block)
            else:
                values = self._empty(side, block)
                dist.recv(values, owner)
            span = self._job.span(side, block)
            parameters = self._as_block(side, block, values.cpu())
            vectors[span], state[span] = parameters.vectors.numpy(), parameters.state.numpy()
        return ParameterBlock(vectors, state, self._offsets[side])

    def close(self) -> None:
        """Close the backend. The ranks stay connected until the process ends."""
        # A pending message would keep the process from ending. Ranks stop after the same round, so that messages arrive
        # soon, unless another rank is lost.
        for transfer in (*self._arriving.values(), *self._sent, *self._reported):
            work: Any = transfer[-1]
            with contextlib.suppress(RuntimeError):
                work.wait(LAST_WAIT)
        self._arriving.clear()
        self._sent.clear()
        self._waiting.clear()
        self._reported.clear()
        super().close()


def connect_ranks(patience: timedelta, **place: Any) -> None:
    """Create the process group of the ranks: those that torchrun started, or those that meet at the store `place`."""
    kind = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(kind, timeout=patience, **place)
    except (RuntimeError, ValueError) as error:
        raise ClusterError(
            f"the ranks could not connect ({str(error).splitlines()[0]}); start them with "
            "torchrun --nproc-per-node N -m swivel train ..."
        ) from error
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


def _take_device() -> str:
    """Return the GPU of this rank: the one with its number among the ranks of this machine."""
    number = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if number >= count:
        raise ClusterError(
            f"local rank {number} has no GPU: this machine has {count}; start at most one rank per GPU, "
            "or set device to cpu"
        )

    torch.cuda.set_device(number)
    return f"cuda:{number}"
