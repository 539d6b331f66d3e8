"""Tokens to cells on a device that torch knows, by sorting.

Receives ids in host memory, a layout and a window; hands on pieces for the matrix builder, in the order of the shards.
The corpus goes to the device once; then, one group of shards after the other, the pairs that fall to the group become
keys, which are sorted and summed. Groups share no cell: nothing is merged. A corpus that does not fit is counted in
chunks, each a run of the builder. It does not write.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.counts.cooccurrence.gpu.cells import DeviceCounts, FetchedPiece, Fetcher, merge_cells, sort_pairs, sum_pairs
from swivel.counts.cooccurrence.gpu.pairs import PairWriter, choose_writer, make_writer
from swivel.counts.cooccurrence.gpu.plan import (
    PairRules,
    choose_capacity,
    estimate_pairs,
    make_rules,
    share_memory,
    split_shards,
)
from swivel.counts.cooccurrence.plan import Forecast
from swivel.counts.layout import Layout
from swivel.counts.shards import ShardPiece
from swivel.errors import ConfigError
from swivel.runtime.parallel import take_in_order
from swivel.runtime.resources import format_bytes, free_memory

_SAMPLE_PLACES = 1 << 24  # of which the words are tallied by block
_SHARE_OF_FREE = 0.9
_PAIRS_A_SECOND = 3.8e9  # of a prototype on an H200, with all that belongs to it: for the forecast only


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCountOptions:
    """What counting may use; none of it changes the counts.

    Attributes
    ----------
    device
        A name that torch knows: "cuda", "cuda:1", "mps", "cpu".
    memory_bytes
        Of the device; None: 90 % of what is free.
    piece_cells
        Cells that come to the host at a time, unless a shard has more.
    threads
        How many copy the corpus.
    writer
        "triton", "torch", or "auto": triton where there is CUDA.
    """

    device: str = "cuda"
    memory_bytes: int | None = None
    piece_cells: int = 1 << 26
    threads: int = 1
    writer: str = "auto"


@dataclass(frozen=True, slots=True)
class Counted:
    """A piece, and which share of its chunk's work is done with it."""

    piece: ShardPiece
    done: float


class DeviceCounter:
    """Counts a corpus, chunk by chunk.

    Attributes
    ----------
    rules, share, writer
        What is counted, how memory is shared out, and who writes the pairs.
    seconds
        Time of each part of the work so far: copy, generate, sort, sum, and waiting for what is fetched.
    groups
        Groups of shards sorted so far.

    Examples
    --------
    >>> ids = np.array([0, 1, 0], np.uint32)
    >>> counter = DeviceCounter(ids, Layout(2, 2, 1, 1, True), CountConfig(window=2), DeviceCountOptions(device="cpu"))
    >>> [counted.piece.counts.tolist() for chunk in counter.chunks() for counted in counter.count_chunk(*chunk)]
    [[2, 4, 4]]
    """

    def __init__(
        self,
        ids: NDArray[np.uint32],
        layout: Layout,
        config: CountConfig,
        options: DeviceCountOptions,
        *,
        longest: int | None = None,
    ) -> None:
        """Look at nothing yet; `longest` is that of the units, in places, where it is known."""
        self.ids = ids
        self.options = options
        self.device = open_device(options.device)
        self.memory_bytes = free_device_memory(self.device) if options.memory_bytes is None else options.memory_bytes
        self.rules = make_rules(layout, config, longest=ids.size if longest is None else longest)
        self.share = share_memory(self.memory_bytes, ids.size, self.rules)
        self.writer = choose_writer(options.writer, self.device)
        self.seconds = dict.fromkeys(("copy", "generate", "sort", "sum", "fetch"), 0.0)
        self.groups = 0
        self._fetcher = Fetcher(self.device, self.rules, most_cells=options.piece_cells)

    def __str__(self) -> str:
        return f"counting on {self.device}, pairs by {self.writer}, in {format_bytes(self.memory_bytes)} of its memory"

    def forecast(self, cells: int) -> Forecast:
        """Return what counting a matrix of so many cells will take, of the host's memory and disk."""
        rules, chunks = self.rules, len(self.chunks())
        stored = cells * (1 + 1 / rules.blocks) / 2 if rules.symmetric else cells
        pairs = self.ids.size * rules.reach * (1 if rules.symmetric else 2)
        memory = 8 * self.share.staged_places + 32 * min(self.options.piece_cells, int(stored))
        disk = 8 * stored * (1 if chunks <= 1 else 1 + min(chunks, 3))
        return Forecast(cells, int(disk), memory, pairs / _PAIRS_A_SECOND)

    def chunks(self) -> list[tuple[int, int]]:
        """Return the ranges of places to count one by one: all at once, if they fit on the device."""
        count = -(-self.ids.size // self.share.chunk_places)
        edges = [self.ids.size * number // count for number in range(count + 1)] if count else []
        return list(pairwise(edges))

    def count_chunk(self, first: int, last: int) -> Iterator[Counted]:
        """Yield the cells of the pairs whose earlier place is in the chunk, all shards once, in order.

        The device works on the next piece while the caller has this one.
        """
        with self._timed("copy"):
            slots = upload_slots(self, first, last)
            estimates = estimate_pairs(self.rules, _tally_blocks(slots, self.rules), places=last - first)
        chunk = _CorpusChunk(self, slots, last - first, choose_capacity(estimates, self.share, self.rules))
        done = np.concatenate([[0.0], np.cumsum(estimates)]) / max(float(estimates.sum()), 1e-9)
        pieces = self._fetch(chunk, estimates)
        with ThreadPoolExecutor(1) as pool:
            following = iter(lambda: pool.submit(next, pieces, None), None)
            for fetched in take_in_order(following, ahead=2):
                if fetched is None:
                    return
                started = time.perf_counter()
                piece = fetched.wait()
                self.seconds["fetch"] += time.perf_counter() - started
                yield Counted(piece, float(done[fetched.stop]) if fetched.stop < self.rules.shards else 1.0)

    def release(self) -> None:
        """Give the device's memory back to others; torch would keep it for this process."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _fetch(self, chunk: _CorpusChunk, estimates: NDArray[np.float64]) -> Iterator[FetchedPiece]:
        groups = split_shards(estimates, most_pairs=chunk.keys.numel(), most_shards=self.rules.most_shards)
        for shards in groups:
            for cells in chunk.count_shards(shards, range(chunk.places)):
                yield from self._fetcher.fetch(cells)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - started


class _CorpusChunk:
    """A chunk of the corpus on the device, and the room for its keys."""

    def __init__(self, counter: DeviceCounter, slots: torch.Tensor, places: int, capacity: int) -> None:
        self.counter = counter
        self.places = places
        self.keys = torch.empty(capacity, dtype=torch.int64, device=counter.device)
        self._writer: PairWriter = make_writer(counter.writer, slots, counter.rules, tile=counter.share.tile_places)

    def count_shards(self, shards: range, places: range) -> Iterator[DeviceCounts]:
        """Yield the cells of `shards`, in several parts where they are more than was thought."""
        found = self._count_once(shards, places)
        if found is not None:
            yield found
        elif len(shards) > 1:
            for half in _halve(shards):
                yield from self.count_shards(half, places)
        else:
            yield self._count_by_places(shards, places)

    def _count_by_places(self, shards: range, places: range) -> DeviceCounts:
        """Return the cells of one shard that has more pairs than there is room for."""
        halves = [self._count_once(shards, half) or self._count_by_places(shards, half) for half in _halve(places)]
        return merge_cells(*halves)

    def _count_once(self, shards: range, places: range) -> DeviceCounts | None:
        """Return the cells, or None where there is no room for the keys of all pairs."""
        # Each part ends with a number that the host waits for, so that its time is its own.
        timed, rules = self.counter._timed, self.counter.rules
        with timed("generate"):
            total = self._writer.write(self.keys, shards, places)
        if total > self.keys.numel():
            return None
        self.counter.groups += 1
        with timed("sort"):
            found, counts = sort_pairs(self.keys[:total])
        with timed("sum"):
            return DeviceCounts(shards, *sum_pairs(found, counts, rules))


def _halve(numbers: range) -> tuple[range, range]:
    middle = numbers.start + len(numbers) // 2
    return range(numbers.start, middle), range(middle, numbers.stop)


def open_device(name: str) -> torch.device:
    """Return the device of that name, or raise ConfigError where it cannot be used.

    >>> open_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device {name!r} cannot be used for counting: {reason}; choose another, or cpu") from error
    return device


def free_device_memory(device: torch.device) -> int:
    """Return the bytes that counting may take of a device: 90 % of what is free; of the host's memory, half."""
    if device.type != "cuda":
        return free_memory() // 2
    torch.cuda.empty_cache()
    return int(_SHARE_OF_FREE * torch.cuda.mem_get_info(device)[0])


def _tally_blocks(slots: torch.Tensor, rules: PairRules) -> NDArray[np.int64]:
    """Return the words of each block in a sample of the places; the last entry: places without a word."""
    sample = slots[:: -(-slots.numel() // _SAMPLE_PLACES)] >> 16
    blocks = torch.where(sample < 0, rules.blocks, sample)
    return torch.bincount(blocks, minlength=rules.blocks + 1).cpu().numpy()


def upload_slots(counter: DeviceCounter, first: int, last: int) -> torch.Tensor:
    """Return the places from `first` up to `last` as slots on the device, and as many after them as a window reaches.

    Two pinned buffers take turns: one is filled, on several threads, while the other is copied.
    """
    ids, reach, staged = counter.ids, counter.rules.reach, counter.share.staged_places
    slots = torch.full((last - first + reach,), -1, dtype=torch.int32, device=counter.device)
    is_cuda = counter.device.type == "cuda"
    buffers = [_Staging(min(staged, slots.numel()), pin=is_cuda) for _ in range(2)]
    stop = min(last + reach, ids.size)
    with ThreadPoolExecutor(counter.options.threads) as pool:
        for number, start in enumerate(range(first, stop, staged)):
            piece = ids[start : min(start + staged, stop)]
            target = slots[start - first : start - first + piece.size]
            buffers[number % 2].send(piece, target, pool, counter.options.threads)
            target.copy_(_to_slots(target, counter.rules.blocks))
    if is_cuda:
        torch.cuda.synchronize(counter.device)
    return slots


class _Staging:
    """A buffer between the ids and the device; pinned, so that its copying does not keep the host waiting."""

    def __init__(self, places: int, *, pin: bool) -> None:
        self.buffer = torch.empty(places, dtype=torch.int32, pin_memory=pin)
        self.copied = torch.cuda.Event() if pin else None  # type: ignore[no-untyped-call]

    def send(self, ids: NDArray[np.uint32], target: torch.Tensor, pool: ThreadPoolExecutor, threads: int) -> None:
        """Copy ids to the device when the buffer is free."""
        if self.copied is not None:
            self.copied.synchronize()  # returns at once where nothing was recorded
        filled = self.buffer[: ids.size].numpy().view(np.uint32)
        edges = np.linspace(0, ids.size, threads + 1).astype(np.int64).tolist()
        list(pool.map(lambda edge: np.copyto(filled[edge[0] : edge[1]], ids[edge[0] : edge[1]]), pairwise(edges)))
        target.copy_(self.buffer[: ids.size], non_blocking=self.copied is not None)
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(target.device))


def _to_slots(ids: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return block << 16 | place in the block of words; what is no word stays -1 or -2."""
    slots = (ids % blocks) << 16 | torch.div(ids, blocks, rounding_mode="floor")
    return torch.where(ids < 0, ids, slots)
