"""Ranks of torch.distributed: each keeps its row blocks, column blocks travel between them.

Every rank runs the whole training loop over the same rounds and trains only the blocks of its own rows. Where a column
block is needed next follows from the order alone, so nobody asks for anything: after the round in which a rank used it
for the last time, the block is on its way to the next one, beside the computation. With the order that
`schedule.rounds_for_ranks` makes, that is a ring. What is trained does not depend on the number of ranks, bit for bit.

The links are gloo's between CPUs and NCCL's between GPUs. `torchrun` starts the ranks and says who they are.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from swivel.errors import ClusterError
from swivel.runtime.resources import format_bytes
from swivel.training.backends import ParameterBlock
from swivel.training.executor import CompletedSteps, LocalResources, PauseRequests, Round, Sides, TrainingJob
from swivel.training.objective import Loss
from swivel.training.schedule import Block, rank_of_row

PATIENCE = timedelta(minutes=10)  # that a rank waits for another: the longest step, or the longest checkpoint
LAST_WAIT = timedelta(seconds=5)  # for what is under way when a rank leaves
FIELDS = 4  # of a loss


@dataclass(frozen=True, slots=True)
class _BlockMove:
    """A column block on its way."""

    block: int
    source: int
    target: int

    @property
    def tag(self) -> int:
        """What tells its message from others: a block is under way once at a time; what has no tag has 0."""
        return self.block + 1


@dataclass(frozen=True, slots=True)
class _ReportedRound:
    """A round whose losses the ranks are telling each other; the last line is whether anyone wishes a pause."""

    round: Round
    values: torch.Tensor
    work: Any

    def wait(self) -> tuple[CompletedSteps, bool]:
        self.work.wait()
        *losses, (pause, *_) = self.values.tolist()
        return CompletedSteps(self.round.blocks, [Loss(*values) for values in losses]), pause > 0


class RingExecutor:
    """One rank of several."""

    min_block_size = 1

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        if not dist.is_initialized():
            _find_each_other(patience)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.is_leader = self.rank == 0
        self.moved = 0  # bytes that this rank sent, between rounds
        self._under_way: list[tuple[_BlockMove, torch.Tensor, Any]] = []
        self._told: deque[_ReportedRound] = deque()

    def broadcast(self, text: str) -> str:
        """Return the leading rank's text."""
        data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0)
        if not self.is_leader:
            data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return data.numpy().tobytes().decode()

    def any_rank(self, is_so: bool) -> bool:
        """Return whether it is so for any rank."""
        said = torch.tensor([float(is_so)])
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return bool(said > 0)

    def begin(self, job: TrainingJob, here: LocalResources) -> None:
        """Create this rank's backend on its own device."""
        if job.plan.device == "cuda":
            job = replace(job, plan=replace(job.plan, device=_take_device()))
        self._backend = job.create_backend(here.threads)
        self._job = job if self._backend.builds_layout else job.laid_out(here)
        rows, columns = job.blocks
        self._keepers = [
            rank_of_row(rows, job.plan.ranks, block) * self.ranks // job.plan.ranks for block in range(rows)
        ]
        self._holders = [0] * columns
        self._device = torch.device(job.plan.device)
        self._dtype = torch.float64 if job.plan.dtype == "float64" else torch.float32

    def hold(self, sides: Sides | None) -> None:
        """Take from the leading rank what this one begins with: its row blocks. Column blocks come when needed."""
        self._dim = int(self.broadcast(str(sides[0].vectors.shape[1] if sides else "")))
        self._offsets = [self._share_offsets(sides[side].offsets if sides else None, side) for side in (0, 1)]
        if self._backend.builds_layout:  # It has a place for every block, whoever holds it.
            rows, columns = sides or (self._room(self._offsets[0]), self._room(self._offsets[1]))
            self._backend.hold(rows, columns, self._job.starts)
            self._backend.take(self._job.matrix.stored)
        elif sides is not None:
            self._backend.hold(*sides, self._job.starts)
        else:
            nothing, starts = self._room(self._offsets[0][:0]), [[0] * (blocks + 1) for blocks in self._job.blocks]
            self._backend.hold(nothing, nothing, (starts[0], starts[1]))
        for block, keeper in enumerate(self._keepers):
            self._move_now(0, _BlockMove(block, 0, keeper))
        self._forget_others()

    def _room(self, offsets: NDArray[np.float32]) -> ParameterBlock:
        room = np.broadcast_to(np.float32(0), (len(offsets), self._dim))
        return ParameterBlock(room, room, offsets)

    def _forget_others(self) -> None:
        """Keep the memory of no block that another rank has."""
        for side, owners in enumerate((self._keepers, self._holders)):
            for block, owner in enumerate(owners):
                if owner != self.rank:
                    self._drop(side, block)

    def _drop(self, side: int, block: int) -> None:
        if not self._backend.builds_layout:
            self._backend.set_block(side, block, self._room(self._offsets[0][:0]))

    def _share_offsets(self, offsets: NDArray[np.float32] | None, side: int) -> NDArray[np.float32]:
        size = int(self._job.starts[side][-1])
        values = torch.empty(size) if offsets is None else torch.from_numpy(np.array(offsets, np.float32))
        dist.broadcast(values, 0)
        return values.numpy()

    def describe(self) -> str:
        """Say what runs."""
        links = "NCCL" if self._device.type == "cuda" else "gloo"
        return f"{self.ranks} ranks ({links}), each {self._backend.describe()}"

    def run(
        self, rounds: Sequence[Round], ahead: Sequence[Sequence[Block]], wishes: PauseRequests
    ) -> Iterator[CompletedSteps]:
        """Run this rank's share of rounds; all ranks tell the same, and pause after the same round."""
        order = [round_.blocks for round_ in rounds]
        moves = self._plan_moves([*order, *ahead], len(order))
        before = self.moved
        self._start(moves[0])
        self.moved = before  # Handing blocks out is no part of an epoch.
        for number, round_ in enumerate(rounds):
            mine = replace(round_, blocks=[block for block in round_.blocks if self._is_mine(block)])
            self._receive({column for _, column in mine.blocks})
            losses = self._backend.run(self._job.steps(mine), lambda: False).losses()
            self._told.append(self._tell(round_, dict(zip(mine.blocks, losses, strict=True)), wishes.pause()))
            self._start(moves[number + 1])
            # A round's losses, and anyone's wish to pause, are heard a round later: nobody waits for the slowest.
            if len(self._told) > 1:
                done, pause = self._told.popleft().wait()
                yield replace(done, note=self._note())
                if pause:
                    break
        while self._told:
            yield self._told.popleft().wait()[0]

    def _is_mine(self, block: Block) -> bool:
        return self._keepers[block[0]] == self.rank

    def _note(self) -> str:
        return f", {format_bytes(self.moved)} sent"

    def _plan_moves(self, order: Sequence[Sequence[Block]], run: int) -> list[list[_BlockMove]]:
        """Return the moves before the first round and after each: a block leaves once its rank has used it."""
        moves: list[list[_BlockMove]] = [[] for _ in range(run + 1)]
        last = {block: (holder, -1) for block, holder in enumerate(self._holders)}
        for number, blocks in enumerate(order):
            for row, column in blocks:
                (holder, used), keeper = last[column], self._keepers[row]
                if holder != keeper and used < run:
                    moves[used + 1].append(_BlockMove(column, holder, keeper))
                last[column] = keeper, number
        return moves

    def _start(self, moves: Sequence[_BlockMove]) -> None:
        """Send and receive blocks beside what is computed."""
        for move in moves:
            self._holders[move.block] = move.target
            if self.rank == move.source:
                self._settle(move.block)
                values = self._pack(1, move.block)
                self._under_way.append((move, values, dist.isend(values, move.target, tag=move.tag)))
                self._drop(1, move.block)
                self.moved += values.nbytes
            elif self.rank == move.target:
                self._settle(move.block)
                values = self._empty(1, move.block)
                self._under_way.append((move, values, dist.irecv(values, move.source, tag=move.tag)))

    def _settle(self, block: int) -> None:
        """Wait until nothing that concerns a block is under way."""
        self._finish([entry for entry in self._under_way if entry[0].block == block])

    def _receive(self, blocks: set[int]) -> None:
        """Wait for the blocks that a round needs."""
        self._finish([entry for entry in self._under_way if entry[0].block in blocks])

    def _finish(self, entries: list[tuple[_BlockMove, torch.Tensor, Any]]) -> None:
        for move, values, work in entries:
            work.wait()
            if move.target == self.rank:
                self._unpack(1, move.block, values)
        finished = {id(values) for _, values, _ in entries}
        self._under_way = [entry for entry in self._under_way if id(entry[1]) not in finished]

    def _span(self, side: int, block: int) -> slice:
        starts = self._job.starts[side]
        return slice(int(starts[block]), int(starts[block + 1]))

    def _pack(self, side: int, block: int) -> torch.Tensor:
        mine = self._backend.get_block(side, block)
        return torch.stack([torch.as_tensor(mine.vectors), torch.as_tensor(mine.accumulators)])

    def _empty(self, side: int, block: int) -> torch.Tensor:
        span = self._span(side, block)
        return torch.empty(2, span.stop - span.start, self._dim, dtype=self._dtype, device=self._device)

    def _unpack(self, side: int, block: int, values: torch.Tensor) -> None:
        offsets = self._offsets[side][self._span(side, block)]
        self._backend.set_block(side, block, ParameterBlock(values[0], values[1], offsets))

    def _tell(self, round_: Round, losses: dict[Block, Loss], pause: bool) -> _ReportedRound:
        values = torch.zeros(len(round_.blocks) + 1, FIELDS, dtype=torch.float64)
        for place, block in enumerate(round_.blocks):
            if block in losses:
                values[place] = torch.tensor(astuple(losses[block]), dtype=torch.float64)
        values[-1, 0] = float(pause)
        return _ReportedRound(round_, values, dist.all_reduce(values, async_op=True))

    def is_finite(self) -> bool:
        """Return whether the parameters of all ranks are finite; blocks on their way are waited for."""
        self._finish(list(self._under_way))
        return not self.any_rank(not self._backend.is_finite())

    def fetch(self) -> Sides | None:
        """Gather all parameters at the leading rank."""
        self._finish(list(self._under_way))
        for block, keeper in enumerate(self._keepers):
            self._move_now(0, _BlockMove(block, keeper, 0))
        for block, holder in enumerate(self._holders):
            self._move_now(1, _BlockMove(block, holder, 0))
        if not self.is_leader:
            return None
        gathered = self._backend.fetch()
        self._forget_others()
        return gathered

    def _move_now(self, side: int, move: _BlockMove) -> None:
        """Copy a block from a rank to another and wait for it."""
        if move.source == move.target or self.rank not in (move.source, move.target):
            return
        if self.rank == move.source:
            dist.send(self._pack(side, move.block), move.target)
        else:
            values = self._empty(side, move.block)
            dist.recv(values, move.source)
            self._unpack(side, move.block, values)

    def close(self) -> None:
        """Close the backend; ranks stay in touch until the process ends."""
        # What is under way would keep the process from ending. Ranks stop after the same round, so it soon arrives; if
        # another rank is gone, it never does.
        for work in [*(work for *_, work in self._under_way), *(told.work for told in self._told)]:
            with contextlib.suppress(RuntimeError):
                work.wait(LAST_WAIT)
        self._under_way.clear()
        self._told.clear()
        if "_backend" in self.__dict__:
            self._backend.close()


def _find_each_other(patience: timedelta) -> None:
    kind = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(kind, timeout=patience)
    except (RuntimeError, ValueError) as error:
        raise ClusterError(
            f"the ranks did not find each other ({str(error).splitlines()[0]}); start them with "
            "torchrun --nproc-per-node N -m swivel train ..."
        ) from error
    atexit.register(_part)


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _take_device() -> str:
    """Return the GPU of this rank's number on its machine."""
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise ClusterError(
            f"rank {number} of this machine has no GPU of its own: there are {there}; "
            "start as many ranks here at most, or pass --device cpu"
        )
    torch.cuda.set_device(number)
    return f"cuda:{number}"
