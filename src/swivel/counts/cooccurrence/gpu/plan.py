"""How the work of a device is cut: what a key holds, which shards are counted together, and how memory is shared out.

Receives a layout, a window and a budget of memory; hands on numbers. Pure arithmetic: it knows no torch.

Legend: a *slot* is a word as `block << 16 | place in the block`, BREAK and GAP are -1 and -2. A *key* is one pair of
places: shard (from the first of the group on), local row, local column, and in its lowest bits which weight. Keys in
order are cells in the order in which they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.config import CountConfig
from swivel.counts.cooccurrence.windows import place_parts, window_weights
from swivel.counts.layout import Layout
from swivel.errors import MemoryBudgetError
from swivel.runtime.resources import format_bytes

MOST_KEYS = (1 << 31) - 1  # torch sorts no more at a time on CUDA
BYTES_A_KEY = 64  # the key; its sorted copy; distinct keys and how often each; then cells and their sums
BYTES_A_PAIR = 96  # while plain torch looks at pairs: slots, shards, keys and masks of a tile
_KEY_BITS = 62
_FILL = 0.9  # how full a group is meant to be: its pairs are estimated, and too many cost a second look
_LEAST_KEYS = 64
_MERGED_CELLS = 1 << 20  # of a shard that is counted in pieces of the corpus
_STAGED_PLACES = 1 << 24  # on their way to the device at a time


@dataclass(frozen=True, slots=True)
class PairRules:
    """Which pairs of places count, in which cells.

    Attributes
    ----------
    tables
        int32 [4, reach], a column for each distance: part and weight of the later word as a column of the earlier
        one, then of the earlier as a column of the later. A weight is a number in `weights`; -1: out of the window.
    weights
        Units, int64, each once.
    blocks, parts, symmetric
        Blocks of words, columns of a word, and whether only shards with row block <= column block are stored.
    local_bits, weight_bits
        Bits of a local row or column, and of the number of a weight.
    """

    tables: NDArray[np.int32]
    weights: NDArray[np.int64]
    blocks: int
    parts: int
    symmetric: bool
    local_bits: int
    weight_bits: int

    @property
    def reach(self) -> int:
        """Places from a word to the farthest in its window."""
        return int(self.tables.shape[1])

    @property
    def shards(self) -> int:
        """Shards of the matrix, those that are not stored included."""
        return self.blocks * self.blocks * self.parts

    @property
    def cell_bits(self) -> int:
        """Bits of a position in a shard."""
        return 2 * self.local_bits

    @property
    def most_shards(self) -> int:
        """Shards that a key can tell apart: one at least, since a position has 32 bits and no window 2^30 weights."""
        return 1 << min(_KEY_BITS - self.cell_bits - self.weight_bits, 20)


def make_rules(layout: Layout, config: CountConfig, *, longest: int) -> PairRules:
    """Return the rules of a window over units of at most `longest` places.

    >>> rules = make_rules(Layout(4, 4, 2, 2, True), CountConfig(window=10), longest=3)
    >>> rules.tables.tolist(), rules.weights.tolist()
    ([[0, 0], [1, 0], [0, 0], [1, 0]], [1260, 2520])
    """
    most = max(longest - 1, 1)  # no two places are farther from each other
    weights = window_weights(config)
    left, right = weights.left[:most], weights.right[:most]
    distinct = np.unique(np.concatenate([left, right]))
    parts = place_parts(config)
    tables = np.full((4, max(left.size, right.size)), -1, np.int32)
    tables[0, : right.size] = parts[config.window_left + 1 :][: right.size]
    tables[1, : right.size] = np.searchsorted(distinct, right)
    tables[2, : left.size] = parts[: config.window_left][::-1][: left.size]
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
    """What each part of the work may take.

    Attributes
    ----------
    chunk_places
        Places of the corpus that are on the device at a time.
    keys
        Pairs that are sorted at a time.
    tile_places
        Places that plain torch looks at, at a time.
    staged_places
        Places on their way to the device at a time.
    """

    chunk_places: int
    keys: int
    tile_places: int
    staged_places: int


def share_memory(memory: int, places: int, rules: PairRules) -> MemoryShare:
    """Return the shares of `memory` bytes on the device, or raise MemoryBudgetError with what is needed.

    A quarter at most is for the corpus, an eighth for tiles, the rest for keys.

    >>> rules = make_rules(Layout(397_312, 397_312, 388, 388, True), CountConfig(), longest=256)
    >>> share_memory(127 * 10**9, 3_300_000_000, rules).chunk_places
    3300000000
    """
    least_keys = max(_LEAST_KEYS, 2 * rules.reach)  # of one place
    merged = BYTES_A_KEY * min(1 << rules.cell_bits, _MERGED_CELLS)
    needed = merged + 2 * (BYTES_A_KEY * least_keys + (BYTES_A_PAIR + 8) * rules.reach)
    if memory < needed:
        raise MemoryBudgetError(
            f"counting on a device needs {format_bytes(needed)} of its memory or more, got {format_bytes(memory)}"
        )
    room = memory - merged
    staged = max(1, min(_STAGED_PLACES, room // 256))
    chunk = max(1, min(places, room // 16 - rules.reach))
    keys = (room - 4 * (chunk + rules.reach) - room // 8) // BYTES_A_KEY
    tile = max(1, min(room // 8 // (BYTES_A_PAIR * rules.reach), 1 << 22))
    return MemoryShare(chunk, min(max(keys, least_keys), MOST_KEYS), tile, staged)


def estimate_pairs(rules: PairRules, tallies: NDArray[np.int64], *, places: int) -> NDArray[np.float64]:
    """Return about how many pairs each shard gets, as if words came independently.

    Parameters
    ----------
    tallies
        Words of each block in a sample; the last entry is that of places without a word.
    places
        Places that the sample stands for.
    """
    share = tallies / max(int(tallies.sum()), 1)
    kept = rules.tables[1::2] >= 0
    offsets = np.bincount(rules.tables[0::2][kept], minlength=rules.parts)
    pairs = places * share[:-1, None, None] * share[None, :-1, None] * offsets[None, None, :]
    if rules.symmetric:
        pairs *= np.triu(np.ones((rules.blocks, rules.blocks)))[:, :, None]
    return pairs.reshape(-1)


def choose_capacity(estimates: NDArray[np.float64], share: MemoryShare, rules: PairRules) -> int:
    """Return for how many keys to make room: no more than will be needed."""
    wanted = int(1.05 / _FILL * estimates.sum()) + 4_096
    return max(min(share.keys, wanted), 2 * rules.reach)


def split_shards(estimates: NDArray[np.float64], *, most_pairs: int, most_shards: int) -> Iterator[range]:
    """Yield all shards in the fewest ranges of about equal work that hold about `most_pairs` and `most_shards`.

    >>> [list(shards) for shards in split_shards(np.array([5.0, 1, 1, 5]), most_pairs=8, most_shards=9)]
    [[0, 1], [2, 3]]
    """
    groups = max(1, int(np.ceil(estimates.sum() / (_FILL * most_pairs))))
    ends = np.cumsum(estimates)
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, groups) / groups, side="left") + 1
    edges = np.unique(np.concatenate([[0], edges, [estimates.size]]))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        for start in range(first, last, most_shards):
            yield range(start, min(start + most_shards, last))
