"""Compiled functions that count pairs of adjacent tokens and join phrases, on arrays of token numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import BREAK
from swivel.runtime.kernels import njit_cached

_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_compile = njit_cached(**_OPTIONS)
_inline = njit_cached(forceinline=True, **_OPTIONS)

Ids = NDArray[np.uint32]
Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]


@_inline
def _mix(key: Any) -> Any:
    """Return a key with its bits mixed by multiplication and shifts."""
    value = key * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ (value >> np.uint64(32))


@_compile
def count_pairs(ids: Ids, part: int, parts: int, keys: Keys, counts: Ints) -> int:
    """Count the pairs of adjacent tokens that belong to a part of all pairs, in a hash table with open addressing."""
    # The key of a pair is (first + 1) << 32 | second. Returns the number of distinct pairs, or -1 if the table is more
    # than half full.
    mask = np.uint64(keys.size - 1)  # The number of slots is a power of two.
    distinct = 0
    for position in range(ids.size - 1):
        first = ids[position]
        second = ids[position + 1]
        if first == BREAK or second == BREAK:
            continue

        key = ((np.uint64(first) + np.uint64(1)) << np.uint64(32)) | np.uint64(second)
        mixed = _mix(key)
        if (mixed >> np.uint64(48)) % np.uint64(parts) != np.uint64(part):
            continue

        slot = mixed & mask
        while keys[slot] != np.uint64(0) and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == np.uint64(0):
            keys[slot] = key
            distinct += 1
            if 2 * distinct > keys.size:
                return -1
        counts[slot] += 1
    return distinct


@_compile
def fill_trie(new_keys: Keys, new_nodes: Ints, keys: Keys, nodes: Ints) -> None:
    """Insert distinct keys with their nodes into empty slots; at most half of the slots are used."""
    mask = np.uint64(keys.size - 1)
    for number in range(new_keys.size):
        slot = _mix(new_keys[number]) & mask
        while keys[slot] != np.uint64(0):
            slot = (slot + np.uint64(1)) & mask
        keys[slot] = new_keys[number]
        nodes[slot] = new_nodes[number]


@_inline
def _find_node(keys: Keys, nodes: Ints, state: int, member: Any) -> Any:
    """Return the node after a state and a token, or -1."""
    mask = np.uint64(keys.size - 1)
    key = ((np.uint64(state) + np.uint64(1)) << np.uint64(32)) | np.uint64(member)
    slot = _mix(key) & mask
    while keys[slot] != np.uint64(0):
        if keys[slot] == key:
            return nodes[slot]
        slot = (slot + np.uint64(1)) & mask
    return np.int64(-1)


@_compile
def join_phrases(ids: Ids, tokens: int, keys: Keys, nodes: Ints, targets: Ints, out: Ids, places: Ints) -> int:
    """Replace the longest phrase that starts at each position, from left to right; return the number of ids written."""
    # A state is a token, or a node of the trie from `tokens` on; `targets` has the phrase of a node, or -1. `places` is
    # filled with the position where each written id began.
    size = 0
    position = 0
    while position < ids.size:
        first = ids[position]
        target = np.int64(first)
        stop = position + 1

        if first != BREAK:
            state = np.int64(first)
            after = position + 1
            while after < ids.size and ids[after] != BREAK:
                state = _find_node(keys, nodes, state, ids[after])
                if state < 0:
                    break
                after += 1
                if targets[state - tokens] >= 0:
                    target = targets[state - tokens]
                    stop = after

        out[size] = target
        places[size] = position
        size += 1
        position = stop
    return size
