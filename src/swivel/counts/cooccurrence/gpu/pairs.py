"""Generate the keys of the pairs in a corpus on a device, in plain torch; `pair_kernels` does the same in Triton.

See `device_plan` for slots and keys. The keys of a range of shards are written in no particular order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

from swivel.counts.cooccurrence.gpu.device_plan import PairRules
from swivel.errors import MissingExtra

# Called with a buffer for keys, a range of shards and a range of places, it writes the keys of these places in these
# shards, and returns their number, which may exceed the length of the buffer.
PairWriter: TypeAlias = Callable[[torch.Tensor, range, range], int]


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
