"""Plan a count on a device: the bits of a key, the groups of shards, the division of memory. Pure arithmetic, no torch.

A *slot* is a word as `block << 16 | local position`; BREAK and GAP are -1 and -2. A *key* encodes one pair of places:
its shard (relative to the first of the group), local row, local column, and in the lowest bits the index of its weight.
Sorted keys are cells in storage order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.counts.block_layout import Layout
from swivel.counts.cooccurrence.count_plan import split_evenly
from swivel.counts.cooccurrence.windows import place_parts, window_weights
from swivel.errors import MemoryBudgetError
from swivel.runtime.resources import format_bytes

MAX_KEYS = (1 << 31) - 1  # the longest array that torch sorts on CUDA
BYTES_PER_KEY = 64  # key, sorted copy, distinct keys and their frequencies, cells and their sums
BYTES_PER_PAIR = 96  # of a tile in `TorchPairs`: slots, shards, keys and masks
_KEY_BITS = 62
_FILL = 0.9  # target fill of a group: pairs are estimated, and a group with too many is generated again
_MIN_KEYS = 64
_MERGED_CELLS = 1 << 20  # of a shard that is counted in parts of the corpus and merged
_STAGED_PLACES = 1 << 24  # per copy to the device


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
    tile_places: int  # per tile of `TorchPairs`
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
