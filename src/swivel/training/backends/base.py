"""What the training loop and a backend say to each other.

A backend sees arrays, never folders: it takes the parameters on, runs the steps it is given, says what they lost and
gives the parameters back. `swivel.training.backends.create_backend` chooses one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swivel.training.objective import Loss, Objective


class ObservedCells(Protocol):
    """The observed cells of one block, as a matrix hands them out."""

    @property
    def positions(self) -> NDArray[np.uint32]:
        """Local row << 16 | local column, ascending."""

    @property
    def counts(self) -> NDArray[np.float32]:
        """Their counts, in the same order."""

    @property
    def mirrored(self) -> bool:
        """Whether rows and columns are to be read the other way round."""


class StoredCells(Protocol):
    """All observed cells of a matrix as they are stored, for backends that lay blocks out themselves.

    Shard (i, j), at `i * column_blocks + j` in `offsets`, holds rows i, i + row_blocks, ... and columns likewise. Of a
    symmetric matrix only shards with i <= j are there, those with i = j whole.
    """

    @property
    def blocks(self) -> tuple[int, int]:
        """Row blocks and column blocks."""

    @property
    def symmetric(self) -> bool:
        """Whether mirrored shards are left out."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each shard begins, and the end."""

    @property
    def positions(self) -> NDArray[np.uint32]:
        """Local row << 16 | local column."""

    def counts_of(self, first: int, last: int) -> NDArray[np.float32]:
        """Counts of the cells from `first` up to `last`."""


@dataclass(frozen=True, slots=True)
class ParameterBlock:
    """The rows, or the columns, of a matrix or block: what training changes, and their share of every target."""

    vectors: Any  # (size, dim); on the host, or the backend's own kind of array
    accumulators: Any  # (size, dim), Adagrad's
    offsets: Any  # (size,)

    def part(self, start: int, stop: int) -> ParameterBlock:
        """Return a contiguous piece; its arrays are views."""
        return ParameterBlock(self.vectors[start:stop], self.accumulators[start:stop], self.offsets[start:stop])


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a step at given vectors loses, and the gradients of both sides, weight decay included, as host arrays."""

    loss: Loss
    rows: NDArray[np.float32]
    columns: NDArray[np.float32]


Starts = tuple[Sequence[int] | NDArray[np.int64], Sequence[int] | NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Step:
    """One block to train."""

    block: tuple[int, int]
    load: Callable[[], ObservedCells]
    learning_rate: float
    seed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What a run asks of a device."""

    starts: Starts
    dim: int
    zeros: ZeroSampling
    cells: int  # observed ones that are laid out, at most
    is_halved: bool = False  # whether blocks below the diagonal are read from above it


class PendingSteps(Protocol):
    """Steps on their way."""

    @property
    def steps(self) -> int:
        """How many were begun; known at once."""

    def losses(self) -> list[Loss]:
        """Wait for them and return what each lost."""


@dataclass(frozen=True, slots=True)
class FinishedSteps:
    """Steps that are done."""

    found: list[Loss]

    @property
    def steps(self) -> int:
        """How many were run."""
        return len(self.found)

    def losses(self) -> list[Loss]:
        """Return what each lost."""
        return self.found


class HeldParameters:
    """Parameters block by block, each in arrays of its own."""

    builds_layout = False
    _blocks: tuple[list[ParameterBlock], list[ParameterBlock]]

    def take(self, cells: StoredCells) -> None:
        """Need nothing: every step loads its own cells."""

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Need not know: everything is at hand."""

    def put(self, array: NDArray[Any]) -> Any:
        """Return a copy of a host array as the backend's own kind."""
        raise NotImplementedError

    def get(self, array: Any) -> NDArray[Any]:
        """Return an array of the backend's own kind as a host array, in the backend's own precision."""
        raise NotImplementedError

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Take parameters on, in the order of blocks; `starts` says where each block of a side begins, and the end."""
        first, second = (
            [self._put_side(side.part(int(start), int(stop))) for start, stop in pairwise(edges)]
            for side, edges in zip((rows, columns), starts, strict=True)
        )
        self._blocks = first, second

    def _put_side(self, side: ParameterBlock) -> ParameterBlock:
        return ParameterBlock(self.put(side.vectors), self.put(side.accumulators), self.put(side.offsets))

    def fetch(self) -> tuple[ParameterBlock, ParameterBlock]:
        """Return the parameters as host arrays."""
        rows, columns = (self._join(blocks) for blocks in self._blocks)
        return rows, columns

    def _join(self, blocks: list[ParameterBlock]) -> ParameterBlock:
        parts = [(self.get(block.vectors), self.get(block.accumulators), self.get(block.offsets)) for block in blocks]
        vectors, accumulators, offsets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return ParameterBlock(vectors, accumulators, offsets)

    def is_finite(self) -> bool:
        """Return whether every vector and accumulator is finite."""
        blocks = [block for side in self._blocks for block in side]
        return all(_is_finite(block.vectors) and _is_finite(block.accumulators) for block in blocks)

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return a block's own arrays, of the rows (0) or the columns (1)."""
        return self._blocks[side][block]

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Take a block on, instead of the one that is held."""
        self._blocks[side][block] = self._put_side(values)

    def open_step(self, step: Step) -> tuple[ObservedCells, ParameterBlock, ParameterBlock]:
        """Return the cells of a step and the sides that their positions speak of.

        A mirrored block is trained with the sides swapped, which is the same step: the loss does not know rows
        from columns.
        """
        rows, columns = (self.get_block(side, block) for side, block in enumerate(step.block))
        cells = step.load()
        return (cells, columns, rows) if cells.mirrored else (cells, rows, columns)


def _is_finite(array: Any) -> bool:
    """Return whether all values of a NumPy array or torch tensor are finite, computed where the array is."""
    flags = np.isfinite(array) if isinstance(array, np.ndarray) else array.isfinite()
    return bool(flags.all())


@dataclass(frozen=True, slots=True)
class RowBand:
    """Rows of a step that meet the same columns."""

    start: int
    stop: int
    chosen: NDArray[np.int64] | None = None  # local columns, ascending; None: all
    weights: NDArray[np.float32] | None = None  # how often a zero of each chosen column counts; None: once

    def pieces(self, most: int) -> list[RowBand]:
        """Return the band in pieces of at most `most` rows."""
        if self.stop - self.start <= most:
            return [self]
        starts = range(self.start, self.stop, most)
        return [replace(self, start=start, stop=min(start + most, self.stop)) for start in starts]


@dataclass(frozen=True, slots=True)
class SamplingTier:
    """Rows of a block of one level, and the strides over the columns from each of which one column is taken."""

    start: int
    stop: int
    starts: NDArray[np.float64] | None = None  # None: every column is taken
    lengths: NDArray[np.float64] | None = None
    weights: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class ZeroSampling:
    """Which unobserved cells a step computes: all, or a sample of those between features that are not common.

    Rows and columns of a block are sorted by falling frequency and fall into three levels: common (the first
    `common` share of them), middle (up to `middle`) and rare. Zeros of a common row or column are all taken. Of the
    others, a fresh sample of the columns of a level is taken for the rows of a level, and its zeros count 1/rate
    times, so that the expected gradient is the full one's. The hinge pulls in proportion to the product of the
    frequencies, so the rate that keeps the variance lowest falls with it: share / (r s), with r and s the relative
    ranks of the two levels' middles.
    """

    common: float = 1.0
    middle: float = 1.0
    share: float = 1.0

    def bands(self, rows: int, columns: int, seed: Sequence[int]) -> Iterator[RowBand]:
        """Yield the pieces of one step; together they meet every row once."""
        for number, level in enumerate(self.levels(rows, columns), -1):
            if level.starts is None or level.lengths is None:
                yield RowBand(level.start, level.stop)
            else:
                chosen = level.starts + step_fraction(seed, number) * level.lengths
                yield RowBand(level.start, level.stop, chosen.astype(np.int64), level.weights)

    @lru_cache(maxsize=64)  # noqa: B019  (a handful of frozen instances, each a few block sizes)
    def levels(self, rows: int, columns: int) -> tuple[SamplingTier, ...]:
        """Return the levels of the rows of a block, the common first, and what each meets of the columns."""
        levels = self._levels(rows)
        found = [SamplingTier(0, self.common_of(rows))]
        for start, stop, rank in levels:
            starts, lengths, weights = self._strides(columns, rank)
            is_all = len(starts) == columns
            found.append(SamplingTier(start, stop) if is_all else SamplingTier(start, stop, starts, lengths, weights))
        return tuple(found)

    def common_of(self, size: int) -> int:
        """Return how many features of a block's side are common."""
        levels = self._levels(size)
        return levels[0][0] if levels else size

    @lru_cache(maxsize=64)  # noqa: B019  (a handful of frozen instances, each a few block sizes)
    def _levels(self, size: int) -> list[tuple[int, int, float]]:
        """Return start, stop and middle rank (relative, geometric) of the levels that are sampled."""
        edges = [round(size * self.common), round(size * max(self.middle, self.common)), size]
        return [
            (start, stop, math.sqrt((start + 0.5) * (stop - 0.5)) / size)
            for start, stop in pairwise(edges)
            if stop > start
        ]

    @lru_cache(maxsize=256)  # noqa: B019
    def _strides(
        self, columns: int, row_rank: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]]:
        """Return where the strides over the columns start that meet rows of one level, and twice how long each is.

        Columns of a level are taken at equal distances from a random start: each is as likely as any other, every
        frequency has its share, and the length of a stride is the weight of the zeros of the column taken from it.
        """
        levels = self._levels(columns)
        first = self.common_of(columns)
        starts: list[NDArray[np.float64]] = [np.arange(first, dtype=np.float64)]
        lengths: list[NDArray[np.float64]] = [np.ones(first)]
        for start, stop, rank in levels:
            size = stop - start
            taken = min(size, max(1, round(size * self.share / (row_rank * rank))))
            starts.append(np.asarray(start + np.arange(taken) * (size / taken), np.float64))
            lengths.append(np.full(taken, size / taken))
        whole = np.concatenate(lengths)
        return np.concatenate(starts), whole, whole.astype(np.float32)


def step_fraction(seed: Sequence[int], number: int) -> float:
    """Return where in every stride a step takes its column, for the rows of a level."""
    # Below 1, so that rounding does not reach the next stride.
    return min(random_fraction((*seed, number)), 1 - 1e-9)


def random_fraction(seed: Sequence[int]) -> float:
    """Return a number in [0, 1) that depends on the seed alone: splitmix64 over its parts.

    A numpy generator gives as good a number, but takes longer to set up than a step can spare.
    """
    state = 0
    for part in seed:
        state = (state + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return (state >> 11) / (1 << 53)


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What all steps of a run share."""

    objective: Objective
    zeros: ZeroSampling
    weight_decay: float


class Backend(Protocol):
    """What computes steps."""

    name: str
    builds_layout: bool  # whether it takes stored cells and lays blocks out itself; if not, every step loads its own

    def describe(self) -> str:
        """Say in a few words what runs, for people."""

    def take(self, cells: StoredCells) -> None:
        """Lay the cells of the whole matrix out; after `hold`, where `lays_out` is true."""

    def hold(self, rows: ParameterBlock, columns: ParameterBlock, starts: Starts) -> None:
        """Take parameters on, in the order of blocks; `starts` says where each block of a side begins, and the end."""

    def announce(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Hear which blocks will come next, in their order, so that they can be fetched ahead; a hint, no promise."""

    def run(self, steps: Sequence[Step], should_stop: Callable[[], bool]) -> PendingSteps:
        """Run steps that share no parameters, or the first ones of them.

        Asked to stop, it ends what it has begun and leaves the rest. Steps run in the order in which they are handed
        over, also those of different calls; their losses may be asked for later.
        """

    def fetch(self) -> tuple[ParameterBlock, ParameterBlock]:
        """Return the parameters after all steps so far as host arrays, in the backend's own precision."""

    def is_finite(self) -> bool:
        """Return whether all parameters are finite after all steps so far; computed where the parameters are."""

    def get_block(self, side: int, block: int) -> ParameterBlock:
        """Return the arrays of a block of rows (0) or columns (1) after all steps so far, of the backend's own kind."""

    def set_block(self, side: int, block: int, values: ParameterBlock) -> None:
        """Take a block on, instead of the one that is held; its arrays may be host arrays or torch's."""

    def gradients(self, step: Step, rows: ParameterBlock, columns: ParameterBlock) -> Gradients:
        """Return what a step at these vectors loses, and its gradients, which are good until the next call.

        Accumulators are not looked at; what the backend holds of the step's blocks is lost.
        """

    def close(self) -> None:
        """Give threads and memory back."""


def run_in_turn(run: Callable[[Step], Loss], steps: Sequence[Step], should_stop: Callable[[], bool]) -> FinishedSteps:
    """Run steps one after the other until someone says stop."""
    losses: list[Loss] = []
    for step in steps:
        if should_stop():
            break
        losses.append(run(step))
    return FinishedSteps(losses)
