"""The pairs of a corpus as keys, in Triton: CUDA devices, or Triton's interpreter.

Receives slots on the device (see `device_plan` for slots and keys); hands on the keys of the pairs that fall to a range
of shards, in no order. It does not sort, and allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]

from swivel.counts.cooccurrence.gpu.plan import PairRules

BLOCK = 512  # places of a program
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _is_wanted(linked, row, column, shard, weight, shards, SYMMETRIC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which pairs are in the window and in a shard of the range, `shard` counted from its first on."""
    wanted = linked & (shard >= 0) & (shard < shards) & (weight >= 0)
    if SYMMETRIC:
        wanted = wanted & ((row >> 16) <= (column >> 16))
    return wanted


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _make_keys(  # type: ignore[no-untyped-def]
    row, column, shard, weight, LOCAL_BITS: tl.constexpr, WEIGHT_BITS: tl.constexpr
):
    position = ((row & 0xFFFF).to(tl.int64) << LOCAL_BITS) | (column & 0xFFFF).to(tl.int64)
    return (((shard.to(tl.int64) << (2 * LOCAL_BITS)) | position) << WEIGHT_BITS) | weight.to(tl.int64)


@triton.jit(do_not_specialize=["first", "last", "capacity", "first_shard", "shards"])  # type: ignore[untyped-decorator, unused-ignore]
def write_pairs(  # type: ignore[no-untyped-def]
    slots, tables, keys, used, first, last, capacity, first_shard, shards,
    BLOCKS: tl.constexpr, PARTS: tl.constexpr, REACH: tl.constexpr, SYMMETRIC: tl.constexpr,
    LOCAL_BITS: tl.constexpr, WEIGHT_BITS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Append the keys of pairs whose earlier place is from `first` up to `last`; `used` counts also what has no room.

    Pairs are looked at twice: counted, so that one atomic addition reserves the room of all SIZE places, then written.
    """
    place = first + tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < last
    word = tl.load(slots + place, mask=inside, other=-2)
    block = word >> 16
    found = tl.zeros([SIZE], tl.int32)
    alive = word >= 0
    for step in range(REACH):
        other = tl.load(slots + place + step + 1, mask=inside, other=-1)
        alive = alive & (other != -1)
        linked = alive & (other >= 0)
        later = block * (BLOCKS * PARTS) + (other >> 16) * PARTS + tl.load(tables + step) - first_shard
        earlier = (other >> 16) * (BLOCKS * PARTS) + block * PARTS + tl.load(tables + 2 * REACH + step) - first_shard
        weight, back = tl.load(tables + REACH + step), tl.load(tables + 3 * REACH + step)
        found += _is_wanted(linked, word, other, later, weight, shards, SYMMETRIC).to(tl.int32)
        found += _is_wanted(linked, other, word, earlier, back, shards, SYMMETRIC).to(tl.int32)
    total = tl.sum(found, 0)
    if total > 0:
        start = tl.atomic_add(used, total.to(tl.int64), sem="relaxed")
        index = start + (tl.cumsum(found, 0) - found).to(tl.int64)
        alive = word >= 0
        for step in range(REACH):
            other = tl.load(slots + place + step + 1, mask=inside, other=-1)
            alive = alive & (other != -1)
            linked = alive & (other >= 0)
            later = block * (BLOCKS * PARTS) + (other >> 16) * PARTS + tl.load(tables + step) - first_shard
            earlier = (
                (other >> 16) * (BLOCKS * PARTS) + block * PARTS + tl.load(tables + 2 * REACH + step) - first_shard
            )
            weight, back = tl.load(tables + REACH + step), tl.load(tables + 3 * REACH + step)
            wanted = _is_wanted(linked, word, other, later, weight, shards, SYMMETRIC)
            key = _make_keys(word, other, later, weight, LOCAL_BITS, WEIGHT_BITS)
            tl.store(keys + index, key, mask=wanted & (index < capacity))
            index += wanted.to(tl.int64)
            wanted = _is_wanted(linked, other, word, earlier, back, shards, SYMMETRIC)
            key = _make_keys(other, word, earlier, back, LOCAL_BITS, WEIGHT_BITS)
            tl.store(keys + index, key, mask=wanted & (index < capacity))
            index += wanted.to(tl.int64)


@dataclass(frozen=True, slots=True)
class TritonPairs:
    """Writes the pairs of a corpus that lies on a CUDA device (see `device_pairs.PairWriter`)."""

    slots: torch.Tensor
    tables: torch.Tensor
    rules: PairRules

    def write(self, keys: torch.Tensor, shards: range, places: range) -> int:
        """Write the keys of `shards` from `places` and return how many there are, whether they had room or not."""
        rules = self.rules
        used = torch.zeros(1, dtype=torch.int64, device=self.slots.device)
        grid = (-(-len(places) // BLOCK),)
        with torch.cuda.device_of(self.slots):  # type: ignore[no-untyped-call]
            write_pairs[grid](
                self.slots, self.tables, keys, used, places.start, places.stop, keys.numel(), shards.start, len(shards),
                BLOCKS=rules.blocks, PARTS=rules.parts, REACH=rules.reach, SYMMETRIC=rules.symmetric,
                LOCAL_BITS=rules.local_bits, WEIGHT_BITS=rules.weight_bits, SIZE=BLOCK, num_warps=WARPS,
            )  # fmt: skip
        return int(used.item())
