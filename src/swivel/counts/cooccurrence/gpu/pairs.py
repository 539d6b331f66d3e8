"""Keys of the pairs in a corpus on a device: generated in plain torch or by `pair_kernels`, summed, copied to the host.

See `device_plan` for slots and keys. The keys of a range of shards are written in no particular order. Only keys are
sorted: the index of the weight is in their lowest bits, so equal keys are counted, and the few distinct weights of a
cell are summed afterwards.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts.cooccurrence.gpu.device_plan import PairRules
from swivel.counts.shards import SATURATED, CellArrays, shard_ranges
from swivel.errors import MissingExtra

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


def choose_writer(name: str, device: torch.device) -> str:
    """Return the name of the writer: `name`, or for "auto" triton on CUDA if it is installed, else torch."""
    has_triton = importlib.util.find_spec("triton") is not None
    if name == "triton" and not has_triton:
        raise MissingExtra("the pair writer 'triton' needs Triton: pip install triton, or use the writer 'torch'")
    if name != "auto":
        return name
    return "triton" if has_triton and device.type == "cuda" else "torch"


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
