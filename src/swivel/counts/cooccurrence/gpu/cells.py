"""Keys to cells: sorted, summed, brought to the host.

Receives the keys of pairs on a device (see `device_plan`); hands on pieces for the matrix builder. Only keys are
sorted: the weight stands in a key's lowest bits, so that equal keys need counting alone, and the few left summing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from swivel.counts.cooccurrence.gpu.plan import PairRules
from swivel.counts.shards import SATURATED, ShardPiece

_SLICE = 1 << 24  # distinct keys that are weighed at a time


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """The cells of a range of shards, on the device, in the order in which they are stored.

    Attributes
    ----------
    keys
        (shard - first shard) << cell bits | local row << local bits | local column.
    units
        Exact sums, int64.
    """

    shards: range
    keys: torch.Tensor
    units: torch.Tensor


def sort_pairs(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct keys, ascending, and how often each occurs."""
    found, counts = torch.unique(keys, return_counts=True)
    return found, counts


def sum_pairs(found: torch.Tensor, counts: torch.Tensor, rules: PairRules) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cells of distinct keys and their units; both arguments are overwritten.

    >>> rules = PairRules(np.zeros((4, 1), np.int32), np.array([3, 6]), 1, 1, True, 2, 1)
    >>> [values.tolist() for values in sum_pairs(torch.tensor([4, 5, 9]), torch.tensor([1, 2, 1]), rules)]
    [[2, 4], [15, 6]]
    """
    weights = torch.from_numpy(rules.weights).to(found.device)
    mask = (1 << rules.weight_bits) - 1
    for first in range(0, found.numel(), _SLICE):
        part = slice(first, first + _SLICE)
        counts[part] *= weights[found[part] & mask]
    found >>= rules.weight_bits
    return sum_equal(found, counts)


def sum_equal(keys: torch.Tensor, units: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each of the ascending `keys` once, and the sums of their units, which are overwritten.

    Sums are differences of running sums: exact, since whole numbers modulo 2^64 are.
    """
    is_last = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
    is_last[:-1] = keys[1:] != keys[:-1]
    ends = is_last.nonzero().squeeze(1)
    sums = units.cumsum_(0)[ends]
    return keys[ends], torch.diff(sums, prepend=sums.new_zeros(1))


def merge_cells(one: DeviceCounts, two: DeviceCounts) -> DeviceCounts:
    """Return the sum of two counts of the same shards."""
    keys, order = torch.cat([one.keys, two.keys]).sort()
    return DeviceCounts(one.shards, *sum_equal(keys, torch.cat([one.units, two.units])[order]))


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """A piece on its way to the host, and the last shard it holds, plus one."""

    stop: int
    arrival: torch.cuda.Event | None
    lengths: NDArray[np.int64]
    positions: torch.Tensor
    counts: torch.Tensor
    large_cells: NDArray[np.int64]
    large_counts: NDArray[np.int64]

    def wait(self) -> ShardPiece:
        """Return the piece when it has arrived. Its arrays are pinned memory, used again once they are gone."""
        if self.arrival is not None:
            self.arrival.synchronize()
        positions, counts = (values.numpy().view(np.uint32) for values in (self.positions, self.counts))
        return ShardPiece(self.lengths, positions, counts, self.large_cells, self.large_counts)


class Fetcher:
    """Brings cells to the host beside the device's other work."""

    def __init__(self, device: torch.device, rules: PairRules, *, most_cells: int) -> None:
        self.rules = rules
        self.most_cells = most_cells
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fetch(self, cells: DeviceCounts) -> Iterator[FetchedPiece]:
        """Yield the cells in pieces of whole shards, of at most `most_cells` if a shard has no more."""
        edges = torch.arange(len(cells.shards) + 1, device=cells.keys.device) << self.rules.cell_bits
        ends = torch.searchsorted(cells.keys, edges).cpu().numpy()
        first, shards = 0, len(cells.shards)
        while first < shards:
            last = int(np.searchsorted(ends, ends[first] + self.most_cells, side="right")) - 1
            last = min(max(last, first + 1), shards)
            part = slice(int(ends[first]), int(ends[last]))
            lengths = np.diff(ends[first : last + 1])
            yield self._send(cells.shards.start + last, lengths, cells.keys[part], cells.units[part])
            first = last

    def _send(self, stop: int, lengths: NDArray[np.int64], keys: torch.Tensor, units: torch.Tensor) -> FetchedPiece:
        large = (units >= SATURATED).nonzero().squeeze(1)
        bits = self.rules.local_bits
        mask = (1 << bits) - 1
        positions = _to_32_bits((keys >> bits & mask) << 16 | keys & mask)
        counts = _to_32_bits(units.clamp(max=SATURATED))
        (positions, counts), arrival = self._copy(positions, counts)
        return FetchedPiece(stop, arrival, lengths, positions, counts, large.cpu().numpy(), units[large].cpu().numpy())

    def _copy(self, *tensors: torch.Tensor) -> tuple[list[torch.Tensor], torch.cuda.Event | None]:
        if self._stream is None:
            return [tensor.cpu() for tensor in tensors], None
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
    """Return values below 2^32 as int32 of the same bits."""
    return (((values + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)).to(torch.int32)
