"""Tables of types that grow: each distinct token once, with a number and a count.

Owns the arrays that the kernels fill, makes room in them, merges tables and looks tokens up. It reads no text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.corpus import tokenizer_kernels as kernels
from swivel.corpus.character_classes import MAX_TOKEN_BYTES
from swivel.corpus.tokenizer_kernels import COUNT, START, STATE_SIZE, TYPES, USED

_FEW = 1024
_CACHE_LINES = 16  # two of them, in int64s: processors fetch them in pairs


@dataclass(frozen=True, slots=True)
class PackedTypes:
    """The content of a table without its slots, to be sent elsewhere.

    `arena` has the bytes of all types, `types` where each begins in it and its count, and one row more.
    """

    arena: NDArray[np.uint8]
    types: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.types) - 1


class TypeTable:
    """Distinct tokens in the order in which they were met.

    >>> table = TypeTable()
    >>> len(table), table.counts(1), table.find(["a"]).tolist()
    (0, {}, [-1])
    """

    def __init__(self) -> None:
        # Written for every character: no other thread's state may lie in the same lines of the cache.
        self.state = np.zeros(STATE_SIZE + 2 * _CACHE_LINES, np.int64)[_CACHE_LINES:-_CACHE_LINES]
        self.slots = np.zeros((2 * _FEW, 2), np.uint64)
        self.arena = np.zeros(MAX_TOKEN_BYTES, np.uint8)
        self.types = np.zeros((_FEW + 1, 2), np.int64)

    def __len__(self) -> int:
        return int(self.state[TYPES])

    @property
    def used_bytes(self) -> int:
        """Bytes of all types together."""
        return int(self.state[USED])

    @property
    def token_count(self) -> int:
        """Tokens counted, all types together."""
        return int(self.types[: len(self), COUNT].sum())

    def make_room(self, types: int, byte_count: int) -> None:
        """Make room for so many more types and bytes."""
        needed, needed_bytes = len(self) + types, self.used_bytes + byte_count
        if len(self.types) < needed + 1:
            grown = np.zeros((max(needed + 1, 2 * len(self.types)), 2), np.int64)
            grown[: len(self.types)] = self.types
            self.types = grown
        if len(self.arena) < needed_bytes:
            self.arena = np.concatenate([self.arena, np.zeros(max(needed_bytes, len(self.arena)), np.uint8)])
        if len(self.slots) < 2 * needed:  # At most half full, so that a search is short.
            self.slots = np.zeros((1 << (2 * needed - 1).bit_length(), 2), np.uint64)
            kernels.fill_slots(self.slots, self.arena, self.types, len(self))

    def pack(self) -> PackedTypes:
        """Return the types and counts, to be merged into another table."""
        return PackedTypes(self.arena[: self.used_bytes], self.types[: len(self) + 1])

    def merge(self, other: PackedTypes) -> NDArray[np.uint32]:
        """Add another table's types and counts; return the number that each of its types has here."""
        self.make_room(len(other), len(other.arena))
        numbers = np.empty(len(other), np.uint32)
        kernels.merge_types(other.arena, other.types, self.slots, self.arena, self.types, self.state, numbers)
        return numbers

    def find(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """Return the number of each token, -1 for one that is not here."""
        encoded = [token.encode("utf-8", "surrogatepass") for token in tokens]
        ends = np.cumsum([len(token) for token in encoded], dtype=np.int64)
        numbers = np.empty(len(encoded), np.int64)
        data = np.frombuffer(bytearray().join(encoded), np.uint8)
        kernels.find_types(self.slots, self.arena, data, ends, numbers)
        return numbers

    def counts(self, min_count: int) -> dict[str, int]:
        """Return the tokens seen `min_count` times or more, with their counts."""
        counts = self.types[: len(self), COUNT]
        chosen = np.flatnonzero(counts >= min_count)
        data = self.arena[: self.used_bytes].tobytes()
        starts, stops = self.types[chosen, START].tolist(), self.types[chosen + 1, START].tolist()
        tokens = (data[start:stop].decode() for start, stop in zip(starts, stops, strict=True))
        return dict(zip(tokens, counts[chosen].tolist(), strict=True))
