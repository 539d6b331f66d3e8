"""Generate the keys of the pairs in a corpus on a device, in plain torch; `pair_kernels` does the same in Triton.

See `device_plan` for slots and keys. The keys of a range of shards are written in no particular order.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from swivel.counts.cooccurrence.gpu.device_plan import PairRules
from swivel.errors import MissingExtra

if TYPE_CHECKING:
    from swivel.counts.cooccurrence.gpu.pair_kernels import TritonPairs


@dataclass(frozen=True, slots=True)
class TorchPairs:
    """Writes keys with plain torch operations, on any device, `tile` places at a time."""

    slots: torch.Tensor
    tables: torch.Tensor
    rules: PairRules
    tile: int

    def write(self, keys: torch.Tensor, shards: range, places: range) -> int:
        """Write the keys of `places` in `shards`; return their number, which may exceed the length of `keys`."""
        used = 0
        for first in range(places.start, places.stop, self.tile):
            for tile_keys in self._find(shards, first, min(first + self.tile, places.stop)):
                target = keys[used : used + tile_keys.numel()]
                target.copy_(tile_keys[: target.numel()])
                used += tile_keys.numel()
        return used

    def _find(self, shards: range, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys with the later word as column, and the keys with the earlier word as column."""
        reach = self.rules.reach
        word = self.slots[first:last, None]
        others = self.slots[first + 1 : last + reach].unfold(0, reach, 1)
        # A pair is linked if both places hold words and no break (-1) is between them.
        linked = (word >= 0) & (others >= 0) & (others.eq(-1).cumsum(1, dtype=torch.int32) == 0)
        word = word.expand_as(others)

        return (
            self._select(linked, word, others, self.tables[:2], shards),
            self._select(linked, others, word, self.tables[2:], shards),
        )

    def _select(
        self, linked: torch.Tensor, row: torch.Tensor, column: torch.Tensor, table: torch.Tensor, shards: range
    ) -> torch.Tensor:
        rules = self.rules
        part, weight = table
        shard = (row >> 16) * (rules.blocks * rules.parts) + (column >> 16) * rules.parts + part
        wanted = linked & (shard >= shards.start) & (shard < shards.stop) & (weight >= 0)
        if rules.symmetric:
            wanted &= (row >> 16) <= (column >> 16)

        # shard | local row | local column | weight index, from the highest to the lowest bits
        key: torch.Tensor = shard[wanted].long() - shards.start
        for field, bits in ((row, rules.local_bits), (column, rules.local_bits), (weight, rules.weight_bits)):
            value = field.expand_as(shard)[wanted].long()
            key = key << bits | (value if field is weight else value & 0xFFFF)

        return key


def choose_writer(name: str, device: torch.device) -> str:
    """Return the name of the writer: `name`, or for "auto" triton on CUDA if it is installed, else torch."""
    has_triton = importlib.util.find_spec("triton") is not None
    if name == "triton" and not has_triton:
        raise MissingExtra("the pair writer 'triton' needs Triton: pip install triton, or use the writer 'torch'")
    if name != "auto":
        return name
    return "triton" if has_triton and device.type == "cuda" else "torch"


def make_writer(name: str, slots: torch.Tensor, rules: PairRules, *, tile: int) -> TorchPairs | TritonPairs:
    """Return the writer of that name. `slots` must have `reach` places after the last one that is counted."""
    tables = torch.from_numpy(rules.tables).to(slots.device)
    if name == "torch":
        return TorchPairs(slots, tables, rules, tile)

    from swivel.counts.cooccurrence.gpu.pair_kernels import TritonPairs

    return TritonPairs(slots, tables.contiguous(), rules)
