"""Sort and sum the keys of pairs on a device, and copy the resulting cells to the host.

Only keys are sorted. The index of the weight is in the lowest bits of a key (see `device_plan`), so equal keys are counted,
and the few distinct weights of a cell are summed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts.cooccurrence.gpu.device_plan import PairRules
from swivel.counts.shards import SATURATED, ShardPiece, shard_ranges

_SLICE = 1 << 24  # distinct keys per multiplication by weights, to bound temporary memory


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """The cells of a range of shards, on the device, in storage order."""

    shards: range
    keys: torch.Tensor  # (shard - first shard) << cell bits | local row << local bits | local column
    units: torch.Tensor  # exact sums, int64


def sum_pairs(keys: torch.Tensor, counts: torch.Tensor, rules: PairRules) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cells of distinct keys and their units. Both arguments are overwritten."""
    weights = torch.from_numpy(rules.weights).to(keys.device)
    mask = (1 << rules.weight_bits) - 1
    for first in range(0, keys.numel(), _SLICE):
        part = slice(first, first + _SLICE)
        counts[part] *= weights[keys[part] & mask]
    keys >>= rules.weight_bits
    return sum_equal(keys, counts)


def sum_equal(keys: torch.Tensor, units: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct values of ascending `keys` and the sums of their units. `units` is overwritten.

    Sums are differences of cumulative sums, which is exact in integer arithmetic modulo 2^64.
    """
    is_last = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
    is_last[:-1] = keys[1:] != keys[:-1]
    ends = is_last.nonzero().squeeze(1)
    sums = units.cumsum_(0)[ends]
    return keys[ends], torch.diff(sums, prepend=sums.new_zeros(1))


def merge_cells(one: DeviceCounts, two: DeviceCounts) -> DeviceCounts:
    """Return the sum of the counts of two parts of the corpus for the same shards."""
    keys, order = torch.cat([one.keys, two.keys]).sort()
    return DeviceCounts(one.shards, *sum_equal(keys, torch.cat([one.units, two.units])[order]))


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """A piece that is being copied to the host. torch reuses its pinned memory once its arrays are freed."""

    stop: int  # last shard plus one
    arrival: torch.cuda.Event | None
    piece: ShardPiece

    def wait(self) -> ShardPiece:
        """Wait for the copy and return the piece."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.piece


class Fetcher:
    """Copies cells to the host on its own CUDA stream, concurrently with counting."""

    def __init__(self, device: torch.device, rules: PairRules, *, max_cells: int) -> None:
        self.rules = rules
        self.max_cells = max_cells
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, cells: DeviceCounts) -> Iterator[FetchedPiece]:
        """Yield the cells in pieces of whole shards with at most `max_cells` cells, or of a single shard."""
        edges = torch.arange(len(cells.shards) + 1, device=cells.keys.device) << self.rules.cell_bits
        ends = torch.searchsorted(cells.keys, edges).cpu().numpy()

        for first, last in shard_ranges(ends[None], self.max_cells):
            part = slice(int(ends[first]), int(ends[last]))
            lengths = np.diff(ends[first : last + 1])
            yield self._send(cells.shards.start + last, lengths, cells.keys[part], cells.units[part])

    def _send(self, stop: int, lengths: NDArray[np.int64], keys: torch.Tensor, units: torch.Tensor) -> FetchedPiece:
        large = (units >= SATURATED).nonzero().squeeze(1)
        bits = self.rules.local_bits
        mask = (1 << bits) - 1
        positions = _to_32_bits((keys >> bits & mask) << 16 | keys & mask)
        counts = _to_32_bits(units.clamp(max=SATURATED))
        hosts, arrival = self._copy(positions, counts)
        positions_host, counts_host = (host.numpy().view(np.uint32) for host in hosts)
        large_counts = units[large].cpu().numpy()
        piece = ShardPiece(lengths, positions_host, counts_host, large.cpu().numpy(), large_counts)
        return FetchedPiece(stop, arrival, piece)

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
