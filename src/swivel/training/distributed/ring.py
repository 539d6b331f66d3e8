"""An executor for ranks of torch.distributed: each rank keeps its row blocks, and column blocks move between ranks.

Every rank runs the whole training loop over the same rounds, but trains only the blocks of its own rows. The order of
blocks determines which rank needs a column block next, so that no requests are needed: after the last round in which a
rank uses a block, it sends the block to the next rank while it computes. With the order of `schedule.rounds_for_ranks`
the blocks move around a ring. The result does not depend on the number of ranks, bit for bit.

Ranks communicate through gloo (CPU) or NCCL (GPU). `torchrun` starts them and sets their environment variables.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

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

T = TypeVar("T")
PATIENCE = timedelta(minutes=10)  # A rank waits this long for another: longer than any step or checkpoint.
LAST_WAIT = timedelta(seconds=5)  # for pending messages when a rank closes
LOSS_FIELDS = 4  # numbers in a Loss


@dataclass(frozen=True, slots=True)
class _BlockMove:
    """The transfer of a block from one rank to another."""

    block: int
    source: int
    target: int

    @property
    def tag(self) -> int:
        """Tag of the message, unique because a block is in one transfer at a time. Messages without a tag have 0."""
        return self.block + 1


@dataclass(frozen=True, slots=True)
class _ReportedRound:
    """A round whose losses are being summed over all ranks."""

    round: Round
    values: torch.Tensor  # one row per block with its loss; the last row is positive if a rank requests a pause
    work: Any

    def wait(self) -> tuple[CompletedSteps, bool]:
        """Return the losses, and whether any rank requests a pause."""
        self.work.wait()
        *losses, pause = self.values.tolist()
        return CompletedSteps(self.round.blocks, [Loss(*values) for values in losses]), pause[0] > 0


class RingExecutor:
    """Runs the steps of this rank's row blocks."""

    min_block_size = 1

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        if not dist.is_initialized():
            _connect(patience)
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.is_leader = self.rank == 0
        self.moved = 0  # bytes of column blocks that this rank sent between rounds
        self._transfers: list[tuple[_BlockMove, torch.Tensor, Any]] = []  # pending ones, with buffer and handle
        self._reported: deque[_ReportedRound] = deque()  # rounds whose losses are pending

    def broadcast(self, value: T | None, decode: Callable[[Any], T]) -> T:
        """Return the leader's value, sent as JSON."""
        text = json.dumps(value, default=asdict)
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

        size = torch.tensor([len(data)])
        dist.broadcast(size, 0)
        if not self.is_leader:
            data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return decode(json.loads(data.numpy().tobytes().decode()))

    def any_rank(self, is_so: bool) -> bool:
        """Return whether `is_so` is true on any rank."""
        flag = torch.tensor([float(is_so)])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag > 0)

    def begin(self, job: TrainingJob, resources: LocalResources) -> None:
        """Create the backend of this rank, on a GPU of its own if the plan uses GPUs."""
        if job.plan.device == "cuda":
            job = replace(job, plan=replace(job.plan, device=_take_device()))
        self._backend = job.create_backend(resources.threads)
        self._job = job if self._backend.builds_layout else job.laid_out(resources)

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
        self._dim = self.broadcast(sides[0].vectors.shape[1] if sides else None, int)
        self._offsets = [self._broadcast_offsets(sides[side].offsets if sides else None, side) for side in (0, 1)]

        if self._backend.builds_layout:  # It stores all blocks, including those that other ranks train.
            rows, columns = sides or (self._zeros(self._offsets[0]), self._zeros(self._offsets[1]))
            self._backend.hold(rows, columns, self._job.starts)
            self._backend.take(self._job.matrix.stored)
        elif sides is not None:
            self._backend.hold(*sides, self._job.starts)
        else:
            empty = self._zeros(self._offsets[0][:0])
            row_blocks, column_blocks = self._job.blocks
            self._backend.hold(empty, empty, ([0] * (row_blocks + 1), [0] * (column_blocks + 1)))

        for block, owner in enumerate(self._row_owners):
            self._move_now(0, _BlockMove(block, 0, owner))
        self._drop_others()

    def _zeros(self, offsets: NDArray[np.float32]) -> ParameterBlock:
        zeros = np.broadcast_to(np.float32(0), (len(offsets), self._dim))
        return ParameterBlock(zeros, zeros, offsets)

    def _drop_others(self) -> None:
        """Free the memory of all blocks that other ranks have."""
        for side, owners in enumerate((self._row_owners, self._column_owners)):
            for block, owner in enumerate(owners):
                if owner != self.rank:
                    self._drop(side, block)

    def _drop(self, side: int, block: int) -> None:
        if not self._backend.builds_layout:
            self._backend.set_block(side, block, self._zeros(self._offsets[0][:0]))

    def _broadcast_offsets(self, offsets: NDArray[np.float32] | None, side: int) -> NDArray[np.float32]:
        size = int(self._job.starts[side][-1])
        values = torch.empty(size) if offsets is None else torch.from_numpy(np.array(offsets, np.float32))
        dist.broadcast(values, 0)
        return values.numpy()

    def describe(self) -> str:
        """Return the number of ranks, how they communicate, and the backend."""
        links = "NCCL" if self._device.type == "cuda" else "gloo"
        return f"{self.ranks} ranks ({links}), each {self._backend.describe()}"

    def run(
        self, rounds: Sequence[Round], ahead: Sequence[Sequence[Block]], requests: PauseRequests
    ) -> Iterator[CompletedSteps]:
        """Run this rank's blocks of each round. All ranks yield the same losses and pause after the same round."""
        order = [round_.blocks for round_ in rounds]
        moves = self._plan_moves([*order, *ahead], len(order))
        moved_before = self.moved
        self._start_moves(moves[0])
        self.moved = moved_before  # The initial distribution is not counted as traffic of an epoch.

        for number, round_ in enumerate(rounds):
            own = replace(round_, blocks=[block for block in round_.blocks if self._owns(block)])
            self._finish_moves({column for _, column in own.blocks})
            losses = self._backend.run(self._job.steps(own), lambda: False).losses()
            self._reported.append(self._report(round_, dict(zip(own.blocks, losses, strict=True)), requests.pause()))
            self._start_moves(moves[number + 1])

            # Losses and pause requests of a round are read one round later, so that no rank waits for the slowest.
            if len(self._reported) > 1:
                steps, pause = self._reported.popleft().wait()
                yield replace(steps, note=self._note())
                if pause:
                    break

        while self._reported:
            steps, _ = self._reported.popleft().wait()
            yield steps

    def _owns(self, block: Block) -> bool:
        return self._row_owners[block[0]] == self.rank

    def _note(self) -> str:
        return f", {format_bytes(self.moved)} sent"

    def _plan_moves(self, order: Sequence[Sequence[Block]], run: int) -> list[list[_BlockMove]]:
        """Return the moves before the first round and after each of `run` rounds.

        A column block moves to the next rank that needs it right after the last round in which its owner uses it.
        """
        moves: list[list[_BlockMove]] = [[] for _ in range(run + 1)]
        last_use = {block: (owner, -1) for block, owner in enumerate(self._column_owners)}  # rank and round
        for number, blocks in enumerate(order):
            for row, column in blocks:
                source, used = last_use[column]
                target = self._row_owners[row]
                if source != target and used < run:
                    moves[used + 1].append(_BlockMove(column, source, target))
                last_use[column] = target, number
        return moves

    def _start_moves(self, moves: Sequence[_BlockMove]) -> None:
        """Start to send and receive blocks, in parallel to the computation."""
        for move in moves:
            self._column_owners[move.block] = move.target
            if self.rank not in (move.source, move.target):
                continue

            self._finish_moves({move.block})  # The block may still be arriving.
            if self.rank == move.source:
                values = self._pack(1, move.block)
                self._transfers.append((move, values, dist.isend(values, move.target, tag=move.tag)))
                self._drop(1, move.block)
                self.moved += values.nbytes
            else:
                values = self._empty(1, move.block)
                self._transfers.append((move, values, dist.irecv(values, move.source, tag=move.tag)))

    def _finish_moves(self, blocks: set[int] | None = None) -> None:
        """Wait for the pending transfers of some blocks, or of all, and store the blocks that arrived."""
        pending = []
        for transfer in self._transfers:
            move, values, work = transfer
            if blocks is not None and move.block not in blocks:
                pending.append(transfer)
                continue
            work.wait()
            if move.target == self.rank:
                self._unpack(1, move.block, values)
        self._transfers = pending

    def _span(self, side: int, block: int) -> slice:
        starts = self._job.starts[side]
        return slice(int(starts[block]), int(starts[block + 1]))

    def _pack(self, side: int, block: int) -> torch.Tensor:
        """Return vectors and accumulators of a block as one tensor."""
        parameters = self._backend.get_block(side, block)
        return torch.stack([torch.as_tensor(parameters.vectors), torch.as_tensor(parameters.accumulators)])

    def _empty(self, side: int, block: int) -> torch.Tensor:
        span = self._span(side, block)
        return torch.empty(2, span.stop - span.start, self._dim, dtype=self._dtype, device=self._device)

    def _unpack(self, side: int, block: int, values: torch.Tensor) -> None:
        offsets = self._offsets[side][self._span(side, block)]
        self._backend.set_block(side, block, ParameterBlock(values[0], values[1], offsets))

    def _report(self, round_: Round, losses: dict[Block, Loss], pause: bool) -> _ReportedRound:
        """Start to sum the losses of a round over all ranks; every block has a loss on one rank and zeros elsewhere."""
        values = torch.zeros(len(round_.blocks) + 1, LOSS_FIELDS, dtype=torch.float64)
        for number, block in enumerate(round_.blocks):
            if block in losses:
                values[number] = torch.tensor(astuple(losses[block]), dtype=torch.float64)
        values[-1, 0] = float(pause)
        return _ReportedRound(round_, values, dist.all_reduce(values, async_op=True))

    def is_finite(self) -> bool:
        """Return whether the parameters of all ranks are finite, after pending transfers."""
        self._finish_moves()
        return not self.any_rank(not self._backend.is_finite())

    def fetch(self) -> Sides | None:
        """Gather all parameters on the leader and return them; return None on other ranks."""
        self._finish_moves()
        for block, owner in enumerate(self._row_owners):
            self._move_now(0, _BlockMove(block, owner, 0))
        for block, owner in enumerate(self._column_owners):
            self._move_now(1, _BlockMove(block, owner, 0))
        if not self.is_leader:
            return None

        gathered = self._backend.fetch()
        self._drop_others()
        return gathered

    def _move_now(self, side: int, move: _BlockMove) -> None:
        """Copy a block from one rank to another, and wait until it has arrived."""
        if move.source == move.target or self.rank not in (move.source, move.target):
            return

        if self.rank == move.source:
            dist.send(self._pack(side, move.block), move.target)
        else:
            values = self._empty(side, move.block)
            dist.recv(values, move.source)
            self._unpack(side, move.block, values)

    def close(self) -> None:
        """Close the backend. The ranks stay connected until the process ends."""
        # A pending message would keep the process from ending. Ranks stop after the same round, so that messages arrive
        # soon, unless another rank is lost.
        pending = [work for _, _, work in self._transfers] + [reported.work for reported in self._reported]
        for work in pending:
            with contextlib.suppress(RuntimeError):
                work.wait(LAST_WAIT)
        self._transfers.clear()
        self._reported.clear()

        if "_backend" in self.__dict__:
            self._backend.close()


def _connect(patience: timedelta) -> None:
    """Create the process group of the ranks that torchrun started."""
    kind = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(kind, timeout=patience)
    except (RuntimeError, ValueError) as error:
        raise ClusterError(
            f"the ranks could not connect ({str(error).splitlines()[0]}); start them with "
            "torchrun --nproc-per-node N -m swivel train ..."
        ) from error
    atexit.register(_disconnect)


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


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
