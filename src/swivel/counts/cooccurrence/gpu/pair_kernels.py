"""Triton kernel that writes the keys of the pairs in a corpus (see `counter` for slots and keys).

Keys are written in no particular order, into a buffer of the caller. Runs on CUDA devices or in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from swivel.counts.cooccurrence.gpu.counter import PairRules

BLOCK = 512  # places per program
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _is_wanted(linked, row, column, shard, weight, shards, SYMMETRIC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which pairs are in the window and in the range of shards; `shard` is relative to its first shard."""
    # A weight of -1 is a distance that this side of the window does not reach. Of a symmetric matrix, only the cells in
    # and above the diagonal blocks are stored.
    wanted = linked & (shard >= 0) & (shard < shards) & (weight >= 0)
    if SYMMETRIC:
        wanted = wanted & ((row >> 16) <= (column >> 16))
    return wanted


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _make_keys(row, column, shard, weight, local_bits, WEIGHT_BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    # The order of the bits is that in which cells are stored, so that sorting the keys sorts the cells.
    position = ((row & 0xFFFF).to(tl.int64) << local_bits) | (column & 0xFFFF).to(tl.int64)
    return (((shard.to(tl.int64) << (2 * local_bits)) | position) << WEIGHT_BITS) | weight.to(tl.int64)


# What depends on the vocabulary is not a constant, so that one kernel serves all texts and can be loaded before the
# vocabulary is known.
@triton.jit(  # type: ignore[untyped-decorator, unused-ignore]
    do_not_specialize=["first", "last", "capacity", "first_shard", "shards", "blocks", "local_bits"]
)
def write_pairs(  # type: ignore[no-untyped-def]
    slots, tables, keys, used, first, last, capacity, first_shard, shards, blocks, local_bits,
    PARTS: tl.constexpr, REACH: tl.constexpr, SYMMETRIC: tl.constexpr, WEIGHT_BITS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Append the keys of pairs whose earlier place is `first` to `last - 1`; `used` also counts keys beyond `capacity`.

    `tables` is `PairRules.tables`, [4, REACH]. Each program handles SIZE places and visits their pairs twice: first it
    counts the keys, so that one atomic addition reserves space for all of them, then it writes them.
    """
    # One place per lane: its word, block and number of keys stay in registers, and the loop over the window loads one
    # neighbor per step. These loads overlap with those of the step before, so most come from the cache.
    place = first + tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = place < last
    word = tl.load(slots + place, mask=inside, other=-2)
    block = word >> 16  # -1 for a break or a gap; masked by `alive`

    # Count the keys of each place. A place is alive until a break (-1) ends its unit.
    key_counts = tl.zeros([SIZE], tl.int32)
    alive = word >= 0

    for step in range(REACH):
        other = tl.load(slots + place + step + 1, mask=inside, other=-1)
        alive = alive & (other != -1)
        linked = alive & (other >= 0)
        # Shards of (word, other) and of (other, word): row block * column blocks + column block.
        later = block * (blocks * PARTS) + (other >> 16) * PARTS + tl.load(tables + step) - first_shard
        earlier = (other >> 16) * (blocks * PARTS) + block * PARTS + tl.load(tables + 2 * REACH + step) - first_shard
        weight = tl.load(tables + REACH + step)
        back = tl.load(tables + 3 * REACH + step)
        key_counts += _is_wanted(linked, word, other, later, weight, shards, SYMMETRIC).to(tl.int32)
        key_counts += _is_wanted(linked, other, word, earlier, back, shards, SYMMETRIC).to(tl.int32)

    # Reserve space for all keys of this program; the exclusive prefix sum gives the first index of each place.
    total = tl.sum(key_counts, 0)
    if total > 0:
        start = tl.atomic_add(used, total.to(tl.int64), sem="relaxed")
        # int64: a corpus of 3e9 places has more than 2^31 keys.
        index = start + (tl.cumsum(key_counts, 0) - key_counts).to(tl.int64)
        alive = word >= 0

        for step in range(REACH):
            other = tl.load(slots + place + step + 1, mask=inside, other=-1)
            alive = alive & (other != -1)
            linked = alive & (other >= 0)
            later = block * (blocks * PARTS) + (other >> 16) * PARTS + tl.load(tables + step) - first_shard
            earlier = (
                (other >> 16) * (blocks * PARTS) + block * PARTS + tl.load(tables + 2 * REACH + step) - first_shard
            )
            weight = tl.load(tables + REACH + step)
            back = tl.load(tables + 3 * REACH + step)

            wanted = _is_wanted(linked, word, other, later, weight, shards, SYMMETRIC)
            # `index` counts beyond the capacity, so that the caller learns how much is missing.
            key = _make_keys(word, other, later, weight, local_bits, WEIGHT_BITS)
            tl.store(keys + index, key, mask=wanted & (index < capacity))
            index += wanted.to(tl.int64)

            wanted = _is_wanted(linked, other, word, earlier, back, shards, SYMMETRIC)
            key = _make_keys(other, word, earlier, back, local_bits, WEIGHT_BITS)
            tl.store(keys + index, key, mask=wanted & (index < capacity))
            index += wanted.to(tl.int64)


def launch_pairs(
    slots: torch.Tensor, tables: torch.Tensor, rules: PairRules, keys: torch.Tensor, shards: range, places: range
) -> int:
    """Write the keys of a corpus on a CUDA device; see `PairWriter`."""
    used = torch.zeros(1, dtype=torch.int64, device=slots.device)
    grid = (-(-len(places) // BLOCK),)

    with torch.cuda.device_of(slots):  # type: ignore[no-untyped-call]
        write_pairs[grid](
            slots, tables, keys, used, places.start, places.stop, keys.numel(), shards.start, len(shards),
            rules.blocks, rules.local_bits,
            PARTS=rules.parts, REACH=rules.reach, SYMMETRIC=rules.symmetric, WEIGHT_BITS=rules.weight_bits,
            SIZE=BLOCK, num_warps=WARPS,
        )  # fmt: skip

    return int(used.item())
