"""Count a corpus on a torch device by sorting.

The corpus is copied to the device once. Then, for one group of shards after another, the pairs of the group become
keys, which are sorted and summed. Groups share no cells, so nothing is merged. A corpus that does not fit is counted in
chunks, each a run of the builder.

A *slot* is a word as `block << 16 | local position`; BREAK and GAP are -1 and -2. A *key* encodes one pair of places:
its shard (relative to the first of the group), local row, local column, and in the lowest bits the index of its weight.
Sorted keys are cells in storage order: equal keys are counted, and the few distinct weights of a cell are summed
afterwards. Keys are written by `pair_kernels` or by plain torch operations, in no particular order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.corpus.vocabulary import GAP, Vocabulary
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence.corpus_count import (
    Survey,
    estimate_disk,
    make_spec,
    place_parts,
    split_places,
    survey_corpus,
    window_weights,
)
from swivel.counts.shards import SATURATED, CellArrays, shard_ranges, split_evenly
from swivel.errors import ConfigError, MemoryBudgetError
from swivel.runtime.options import RunOptions
from swivel.runtime.parallel import take_in_order
from swivel.runtime.resources import explain_device, format_bytes, free_memory, parse_bytes

_SAMPLE_PLACES = 1 << 24  # sample in which the words of each block are counted
_SHARE_OF_FREE = 0.9
_WARM_UP_MEMORY = "64MiB"
_MAX_WARM_WINDOW = 1_000
_PIECE_BYTES_PER_CELL = 64  # position and count of the up to four pieces in flight, with a margin
_SLICE = 1 << 24  # distinct keys per multiplication by weights, to bound temporary memory
# Called with a buffer for keys, a range of shards and a range of places, it writes the keys of these places in these
# shards, and returns their number, which may exceed the length of the buffer.
PairWriter: TypeAlias = Callable[[torch.Tensor, range, range], int]
# The cells of a range of shards, on the device, in storage order: their keys, (shard - first shard) << cell bits |
# local row << local bits | local column, and their exact units, int64.
DeviceCells: TypeAlias = tuple[torch.Tensor, torch.Tensor]
# The last shard plus one of a piece, the piece, which is being copied to the host, and the event at the end of the
# copy. torch reuses the pinned memory of a piece once its arrays are freed.
FetchedPiece: TypeAlias = "tuple[int, CellArrays, torch.cuda.Event | None]"
MAX_KEYS = (1 << 31) - 1  # the longest array that torch sorts on CUDA
BYTES_PER_KEY = 64  # key, sorted copy, distinct keys and their frequencies, cells and their sums
BYTES_PER_PAIR = 96  # of a tile that torch writes: slots, shards, keys and masks
_KEY_BITS = 62
_FILL = 0.9  # target fill of a group: pairs are estimated, and a group with too many is generated again
_MIN_KEYS = 64
_MERGED_CELLS = 1 << 20  # of a shard that is counted in parts of the corpus and merged
_STAGED_PLACES = 1 << 24  # per copy to the device


class DeviceCounter:
    """Counts a corpus on a device, chunk by chunk. `writer` is "triton" or "torch"; by default triton on CUDA."""

    def __init__(
        self,
        ids: NDArray[np.uint32],
        layout: Layout,
        config: CountConfig,
        survey: Survey,
        options: RunOptions,
        device: str,
        *,
        writer: str | None = None,
    ) -> None:
        self.ids = ids
        self.layout = layout
        self.tokens = survey.tokens
        self.threads = options.thread_count
        self.device = open_device(device)
        self.memory_bytes = device_budget(self.device, config)
        self.rules = make_rules(layout, config, longest=survey.longest)
        self.share = share_memory(self.memory_bytes, ids.size, self.rules)
        has_triton = self.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        self.writer = writer or ("triton" if has_triton else "torch")
        self.piece_cells = max(1, options.memory_bytes // _PIECE_BYTES_PER_CELL)
        self._fetcher = Fetcher(self.device, self.rules, max_cells=self.piece_cells)

    def __str__(self) -> str:
        return f"counting on {self.device} with {self.writer}, using {format_bytes(self.memory_bytes)} of its memory"

    def forecast(self, cells: int) -> tuple[int, int]:
        """Return the estimated disk and memory of the host, in bytes, that counting `cells` cells takes."""
        stored, disk = estimate_disk(cells, self.layout, len(self.chunks()))
        return disk, 8 * self.share.staged_places + 32 * min(self.piece_cells, int(stored))

    def chunks(self) -> list[tuple[int, int]]:
        """Return the ranges of places to count: a single one if the corpus fits on the device."""
        return split_places(self.ids.size, self.share.chunk_places)

    def count_chunk(self, first: int, last: int) -> Iterator[tuple[CellArrays, int]]:
        """Yield the cells of the pairs whose earlier place is in the chunk, shard by shard, and the tokens done."""
        slots = upload_slots(self, first, last)
        estimates = estimate_pairs(self.rules, _tally_blocks(slots, self.rules), places=last - first)

        chunk = _CorpusChunk(self, slots, last - first, choose_capacity(estimates, self.share, self.rules))
        share = np.concatenate([[0.0], np.cumsum(estimates)]) / max(float(estimates.sum()), 1e-9)
        reported = self.tokens * first // self.ids.size
        pieces = self._fetch(chunk, estimates)

        # One thread drives the device, two pieces ahead of the caller.
        with ThreadPoolExecutor(1) as pool:
            futures = iter(lambda: pool.submit(next, pieces, None), None)
            for fetched in take_in_order(futures, ahead=2):
                if fetched is None:
                    return
                stop, piece, arrival = fetched
                if arrival is not None:
                    arrival.synchronize()

                is_last = stop == self.layout.shards
                places = last if is_last else first + int(share[stop] * (last - first))
                reached = self.tokens * places // self.ids.size
                yield piece, reached - reported
                reported = reached

    def release(self) -> None:
        """Free the memory on the device that torch caches for this process."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _fetch(self, chunk: _CorpusChunk, estimates: NDArray[np.float64]) -> Iterator[FetchedPiece]:
        for shards in split_shards(estimates, max_pairs=chunk.keys.numel(), max_shards=self.rules.max_shards):
            for part, cells in chunk.count_shards(shards, range(chunk.places)):
                yield from self._fetcher.fetch(part, cells)


class _CorpusChunk:
    """A chunk of the corpus on the device, and the buffer for its keys."""

    def __init__(self, counter: DeviceCounter, slots: torch.Tensor, places: int, capacity: int) -> None:
        self.counter = counter
        self.places = places
        self.keys = torch.empty(capacity, dtype=torch.int64, device=counter.device)
        self._write = make_writer(counter.writer, slots, counter.rules, tile=counter.share.tile_places)

    def count_shards(self, shards: range, places: range) -> Iterator[tuple[range, DeviceCells]]:
        """Yield `shards` and their cells, in several parts if they have more pairs than estimated."""
        cells = self._count_once(shards, places)
        if cells is not None:
            yield shards, cells
        elif len(shards) > 1:
            for half in _halve(shards):
                yield from self.count_shards(half, places)
        else:
            yield shards, self._count_by_places(shards, places)

    def _count_by_places(self, shards: range, places: range) -> DeviceCells:
        """Return the cells of one shard whose pairs do not fit in the buffer, counted by halves of the corpus."""
        halves = [self._count_once(shards, half) or self._count_by_places(shards, half) for half in _halve(places)]
        return merge_cells(*halves)

    def _count_once(self, shards: range, places: range) -> DeviceCells | None:
        """Return the cells, or None if the keys of all pairs do not fit in the buffer."""
        total = self._write(self.keys, shards, places)
        if total > self.keys.numel():
            return None

        keys, counts = torch.unique(self.keys[:total], return_counts=True)
        return sum_pairs(keys, counts, self.counter.rules)


def _halve(numbers: range) -> tuple[range, range]:
    middle = numbers.start + len(numbers) // 2
    return range(numbers.start, middle), range(middle, numbers.stop)


def open_device(name: str) -> torch.device:
    """Return the device of that name, or raise ConfigError if it cannot be used."""
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # A device such as meta has no values.
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = explain_device(error)
        raise ConfigError(f"device {name!r} cannot be used for counting: {reason}; choose another, or cpu") from error
    return device


def warm_up(device: str, config: CountConfig) -> None:
    """Count a tiny corpus, so that kernels are loaded, or compiled, before they are needed.

    >>> warm_up("cpu", CountConfig(window=2))
    """
    window = max(config.window_left, config.window_right)
    if window > _MAX_WARM_WINDOW:  # Windows are cut to the longest unit, which is not known yet.
        return

    ids = np.full(window + 2, GAP, np.uint32)
    ids[[0, 1, -1]] = 0  # neighbors, and a pair as far apart as the window allows
    layout = make_spec(Vocabulary(["word"]), config).layout()
    config = replace(config, device_memory=_WARM_UP_MEMORY)
    survey = survey_corpus(ids, layout.rows, config, threads=1)
    counter = DeviceCounter(ids, layout, config, survey, RunOptions(threads=1, memory=_WARM_UP_MEMORY), device)
    for first, last in counter.chunks():
        for _ in counter.count_chunk(first, last):
            pass


def device_budget(device: torch.device, config: CountConfig) -> int:
    """Return the bytes of device memory to use: by default 90 % of the free memory, or half of it on the host."""
    if config.device_memory is not None:
        return parse_bytes(config.device_memory)
    if device.type != "cuda":
        return free_memory() // 2
    torch.cuda.empty_cache()
    return int(_SHARE_OF_FREE * torch.cuda.mem_get_info(device)[0])


def _tally_blocks(slots: torch.Tensor, rules: PairRules) -> NDArray[np.int64]:
    """Return the number of words of each block in a sample; the last entry counts places without a word."""
    sample = slots[:: -(-slots.numel() // _SAMPLE_PLACES)] >> 16
    blocks = torch.where(sample < 0, rules.blocks, sample)
    return torch.bincount(blocks, minlength=rules.blocks + 1).cpu().numpy()


def upload_slots(counter: DeviceCounter, first: int, last: int) -> torch.Tensor:
    """Return the places `first` to `last - 1`, and `reach` places after them, as slots on the device."""
    # Two pinned buffers alternate: threads fill one while the other is copied to the device.
    ids = counter.ids
    reach = counter.rules.reach
    blocks = counter.rules.blocks
    staged = counter.share.staged_places
    slots = torch.full((last - first + reach,), -1, dtype=torch.int32, device=counter.device)
    is_cuda = counter.device.type == "cuda"
    buffers = [_Staging(min(staged, slots.numel()), pin=is_cuda) for _ in range(2)]
    stop = min(last + reach, ids.size)

    with ThreadPoolExecutor(counter.threads) as pool:
        for number, start in enumerate(range(first, stop, staged)):
            piece = ids[start : min(start + staged, stop)]
            target = slots[start - first : start - first + piece.size]
            buffers[number % 2].send(piece, target, pool, counter.threads)
            # block << 16 | local position of words; BREAK and GAP stay -1 and -2.
            slots_of_words = (target % blocks) << 16 | torch.div(target, blocks, rounding_mode="floor")
            target.copy_(torch.where(target < 0, target, slots_of_words))

    if is_cuda:
        torch.cuda.synchronize(counter.device)

    return slots


class _Staging:
    """A buffer between the ids and the device; pinned on CUDA, so that the copy is asynchronous."""

    def __init__(self, places: int, *, pin: bool) -> None:
        self.buffer = torch.empty(places, dtype=torch.int32, pin_memory=pin)
        self.copied = torch.cuda.Event() if pin else None  # type: ignore[no-untyped-call]

    def send(self, ids: NDArray[np.uint32], target: torch.Tensor, pool: ThreadPoolExecutor, threads: int) -> None:
        """Copy ids to the device through the buffer, after its previous copy has finished."""
        if self.copied is not None:
            self.copied.synchronize()  # returns at once if nothing was recorded

        filled = self.buffer[: ids.size].numpy().view(np.uint32)
        edges = np.linspace(0, ids.size, threads + 1).astype(np.int64).tolist()
        list(pool.map(lambda edge: np.copyto(filled[edge[0] : edge[1]], ids[edge[0] : edge[1]]), pairwise(edges)))
        target.copy_(self.buffer[: ids.size], non_blocking=self.copied is not None)
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(target.device))


def write_tiles(
    slots: torch.Tensor,
    tables: torch.Tensor,
    rules: PairRules,
    tile: int,
    keys: torch.Tensor,
    shards: range,
    places: range,
) -> int:
    """Write keys with plain torch operations, on any device, `tile` places at a time; see `PairWriter`."""
    reach = rules.reach
    used = 0

    for first in range(places.start, places.stop, tile):
        last = min(first + tile, places.stop)
        word = slots[first:last, None]
        others = slots[first + 1 : last + reach].unfold(0, reach, 1)
        # A pair is linked if both places hold words and no break (-1) is between them.
        linked = (word >= 0) & (others >= 0) & (others.eq(-1).cumsum(1, dtype=torch.int32) == 0)
        word = word.expand_as(others)

        # The later word as column of the earlier one, then the earlier word as column of the later one.
        for row, column, table in ((word, others, tables[:2]), (others, word, tables[2:])):
            pair_keys = _make_keys(linked, row, column, table, rules, shards)
            target = keys[used : used + pair_keys.numel()]
            target.copy_(pair_keys[: target.numel()])
            used += pair_keys.numel()

    return used


def _make_keys(
    linked: torch.Tensor, row: torch.Tensor, column: torch.Tensor, table: torch.Tensor, rules: PairRules, shards: range
) -> torch.Tensor:
    part, weight = table
    shard = (row >> 16) * (rules.blocks * rules.parts) + (column >> 16) * rules.parts + part
    is_counted = linked & (shard >= shards.start) & (shard < shards.stop) & (weight >= 0)
    if rules.symmetric:
        is_counted &= (row >> 16) <= (column >> 16)

    # shard | local row | local column | weight index, from the highest to the lowest bits
    key: torch.Tensor = shard[is_counted].long() - shards.start
    for local in (row, column):
        key = key << rules.local_bits | local[is_counted].long() & 0xFFFF
    return torch.bitwise_or(key << rules.weight_bits, weight.expand_as(shard)[is_counted].long())


def make_writer(name: str, slots: torch.Tensor, rules: PairRules, *, tile: int) -> PairWriter:
    """Return the writer of that name. `slots` must have `reach` places after the last one that is counted."""
    tables = torch.from_numpy(rules.tables).to(slots.device)
    if name == "torch":
        return partial(write_tiles, slots, tables, rules, tile)

    from swivel.counts.cooccurrence.gpu.pair_kernels import launch_pairs

    return partial(launch_pairs, slots, tables, rules)


def sum_pairs(keys: torch.Tensor, counts: torch.Tensor, rules: PairRules) -> DeviceCells:
    """Return the cells of distinct keys and their units. Both arguments are overwritten."""
    weights = torch.from_numpy(rules.weights).to(keys.device)
    mask = (1 << rules.weight_bits) - 1
    # x_ij = sum over distances t of (number of pairs at t) * weight(t), in units.
    for first in range(0, keys.numel(), _SLICE):
        part = slice(first, first + _SLICE)
        counts[part] *= weights[keys[part] & mask]
    keys >>= rules.weight_bits
    return sum_equal(keys, counts)


def sum_equal(keys: torch.Tensor, units: torch.Tensor) -> DeviceCells:
    """Return the distinct values of ascending `keys` and the sums of their units. `units` is overwritten."""
    # Sums are differences of cumulative sums, which is exact in integer arithmetic modulo 2^64.
    is_last = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
    is_last[:-1] = keys[1:] != keys[:-1]
    ends = is_last.nonzero().squeeze(1)
    sums = units.cumsum_(0)[ends]
    return keys[ends], torch.diff(sums, prepend=sums.new_zeros(1))


def merge_cells(one: DeviceCells, two: DeviceCells) -> DeviceCells:
    """Return the sum of the counts of two parts of the corpus for the same shards."""
    keys, units = (torch.cat(tensors) for tensors in zip(one, two, strict=True))
    keys, order = keys.sort()
    return sum_equal(keys, units[order])


class Fetcher:
    """Copies cells to the host on its own CUDA stream, concurrently with counting."""

    def __init__(self, device: torch.device, rules: PairRules, *, max_cells: int) -> None:
        self.rules = rules
        self.max_cells = max_cells
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, shards: range, cells: DeviceCells) -> Iterator[FetchedPiece]:
        """Yield the cells of shards in pieces of whole shards with at most `max_cells` cells, or of a single shard."""
        keys, units = cells
        edges = torch.arange(len(shards) + 1, device=keys.device) << self.rules.cell_bits
        ends = torch.searchsorted(keys, edges).cpu().numpy()

        for first, last in shard_ranges(ends[None], self.max_cells):
            part = slice(int(ends[first]), int(ends[last]))
            offsets = (ends[first : last + 1] - ends[first])[None]
            yield shards.start + last, *self._send(offsets, keys[part], units[part])

    def _send(
        self, offsets: NDArray[np.int64], keys: torch.Tensor, units: torch.Tensor
    ) -> tuple[CellArrays, torch.cuda.Event | None]:
        large = (units >= SATURATED).nonzero().squeeze(1)
        bits = self.rules.local_bits
        mask = (1 << bits) - 1
        positions = _to_32_bits((keys >> bits & mask) << 16 | keys & mask)
        counts = _to_32_bits(units.clamp(max=SATURATED))
        hosts, arrival = self._copy(positions, counts)
        positions_host, counts_host = (host.numpy().view(np.uint32) for host in hosts)
        large_counts = units[large].cpu().numpy()
        piece = CellArrays(offsets, positions_host, counts_host, large.cpu().numpy(), large_counts)
        return piece, arrival

    def _copy(self, *tensors: torch.Tensor) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
        if self._stream is None:
            return [tensor.cpu() for tensor in tensors], None

        # The copy starts after the kernels that write the tensors; record_stream keeps their memory until it ends.
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

        with torch.cuda.stream(self._stream):
            hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
                tensor.record_stream(self._stream)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record(self._stream)

        return hosts, arrival


def _to_32_bits(values: torch.Tensor) -> torch.Tensor:
    """Return values below 2^32 as int32 with the same bits."""
    return (((values + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)).to(torch.int32)


@dataclass(frozen=True, slots=True)
class PairRules:
    """Which pairs of places are counted, in which cells and with which weight.

    `tables` is [4, reach], one column per distance: part and weight of the later word as column of the earlier one,
    then part and weight of the earlier word as column of the later one. A weight is an index into `weights`, or -1
    outside the window.
    """

    tables: NDArray[np.int32]
    weights: NDArray[np.int64]  # distinct weights in units
    blocks: int  # of words
    parts: int  # columns per word
    symmetric: bool  # whether only shards with row block <= column block are stored
    local_bits: int  # of a local row or column
    weight_bits: int  # of the index of a weight

    @property
    def reach(self) -> int:
        """Largest distance in the window."""
        return int(self.tables.shape[1])

    @property
    def cell_bits(self) -> int:
        """Bits of a local row and a local column together."""
        return 2 * self.local_bits

    @property
    def max_shards(self) -> int:
        """Number of shards that fit in a key: at least 1, because a position has 32 bits and weights fewer than 30."""
        return 1 << min(_KEY_BITS - self.cell_bits - self.weight_bits, 20)


def make_rules(layout: Layout, config: CountConfig, *, longest: int) -> PairRules:
    """Return the pair rules for units of at most `longest` places.

    >>> rules = make_rules(Layout(4, 4, 2, 2, True), CountConfig(window=10), longest=3)
    >>> rules.tables.tolist(), rules.weights.tolist()
    ([[0, 0], [1, 0], [0, 0], [1, 0]], [1260, 2520])
    """
    max_distance = max(longest - 1, 1)  # of two places in one unit
    left, right = window_weights(config, max_distance)
    distinct = np.unique(np.concatenate([left, right]))
    parts = place_parts(config, max_distance)

    tables = np.full((4, max(left.size, right.size)), -1, np.int32)
    tables[0, : right.size] = parts[left.size + 1 :]
    tables[1, : right.size] = np.searchsorted(distinct, right)
    tables[2, : left.size] = parts[: left.size][::-1]
    tables[3, : left.size] = np.searchsorted(distinct, left)

    return PairRules(
        tables=tables,
        weights=distinct,
        blocks=layout.row_blocks,
        parts=layout.column_blocks // layout.row_blocks,
        symmetric=layout.symmetric,
        local_bits=(layout.largest_rows - 1).bit_length(),
        weight_bits=(distinct.size - 1).bit_length(),
    )


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Sizes of the buffers on the device."""

    chunk_places: int  # places of the corpus on the device at a time
    keys: int  # pairs sorted at a time
    tile_places: int  # per tile that torch writes
    staged_places: int  # per copy to the device


def share_memory(memory: int, places: int, rules: PairRules) -> MemoryShare:
    """Return buffer sizes for `memory` bytes on the device, or raise MemoryBudgetError with the bytes needed."""
    # The corpus gets at most a quarter, tiles get an eighth, keys get the rest.
    min_keys = max(_MIN_KEYS, 2 * rules.reach)  # pairs of one place
    merging_bytes = BYTES_PER_KEY * min(1 << rules.cell_bits, _MERGED_CELLS)
    needed = merging_bytes + 2 * (BYTES_PER_KEY * min_keys + (BYTES_PER_PAIR + 8) * rules.reach)

    if memory < needed:
        raise MemoryBudgetError(
            f"counting on a device needs at least {format_bytes(needed)} of its memory, got {format_bytes(memory)}"
        )

    available = memory - merging_bytes
    staged = max(1, min(_STAGED_PLACES, available // 256))
    chunk = max(1, min(places, available // 16 - rules.reach))
    keys = (available - 4 * (chunk + rules.reach) - available // 8) // BYTES_PER_KEY
    tile = max(1, min(available // 8 // (BYTES_PER_PAIR * rules.reach), 1 << 22))

    return MemoryShare(chunk, min(max(keys, min_keys), MAX_KEYS), tile, staged)


def estimate_pairs(rules: PairRules, tallies: NDArray[np.int64], *, places: int) -> NDArray[np.float64]:
    """Return the expected number of pairs of each shard, in so many places, if words were independent."""
    # `tallies` are the numbers of words of each block in a sample; the last entry counts places without a word.
    share = tallies / max(int(tallies.sum()), 1)
    is_inside = rules.tables[1::2] >= 0
    offsets = np.bincount(rules.tables[0::2][is_inside], minlength=rules.parts)
    # Expected pairs of blocks i and j at one distance: places * P(word in i) * P(word in j).
    pairs = places * share[:-1, None, None] * share[None, :-1, None] * offsets[None, None, :]
    if rules.symmetric:
        pairs *= np.triu(np.ones((rules.blocks, rules.blocks)))[:, :, None]
    return pairs.reshape(-1)


def choose_capacity(estimates: NDArray[np.float64], share: MemoryShare, rules: PairRules) -> int:
    """Return the capacity of the key buffer: at most `share.keys`, and not much more than the estimate."""
    expected_keys = int(1.05 / _FILL * estimates.sum()) + 4_096
    return max(min(share.keys, expected_keys), 2 * rules.reach)


def split_shards(estimates: NDArray[np.float64], *, max_pairs: int, max_shards: int) -> Iterator[range]:
    """Yield all shards in as few ranges of about equal work as `max_pairs` and `max_shards` allow."""
    groups = max(1, int(np.ceil(estimates.sum() / (_FILL * max_pairs))))
    for first, last in split_evenly(estimates, groups):
        for start in range(first, last, max_shards):
            yield range(start, min(start + max_shards, last))
