"""Growing tables of types: each distinct token with its number and its count.

A `TypeTable` owns the arrays that the kernels fill; `tokenizer_kernels` describes their layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.corpus import tokenizer_kernels as kernels
from swivel.corpus.character_classes import MAX_TOKEN_BYTES
from swivel.corpus.tokenizer_kernels import COUNT, START, STATE_SIZE, TYPES, USED

_INITIAL_TYPES = 1024
_PADDING = 16  # int64 values: two cache lines, because processors fetch cache lines in pairs


@dataclass(frozen=True, slots=True)
class PackedTypes:
    """Content of a table without its hash slots, for merging it into another table.

    Attributes
    ----------
    arena
        Bytes of all types, one after the other.
    types
        Start in the arena and count of each type, and one more row for the end of the last type.
    """

    arena: NDArray[np.uint8]
    types: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.types) - 1


class TypeTable:
    """Distinct tokens in the order of their first occurrence, with counts.

    >>> table = TypeTable()
    >>> len(table), table.counts(1), table.find(["a"]).tolist()
    (0, {}, [-1])
    """

    def __init__(self) -> None:
        # The padding avoids false sharing: the state changes with every character, so the states of two threads must
        # not be in the same cache lines.
        self.state = np.zeros(STATE_SIZE + 2 * _PADDING, np.int64)[_PADDING:-_PADDING]
        self.slots = np.zeros((2 * _INITIAL_TYPES, 2), np.uint64)
        self.arena = np.zeros(MAX_TOKEN_BYTES, np.uint8)
        self.types = np.zeros((_INITIAL_TYPES + 1, 2), np.int64)

    def __len__(self) -> int:
        return int(self.state[TYPES])

    @property
    def used_bytes(self) -> int:
        """Number of bytes of all types."""
        return int(self.state[USED])

    @property
    def token_count(self) -> int:
        """Number of tokens: the sum of the counts of all types."""
        return int(self.types[: len(self), COUNT].sum())

    def reserve(self, types: int, byte_count: int) -> None:
        """Enlarge the arrays so that `types` more types with `byte_count` more bytes fit."""
        needed_types = len(self) + types
        needed_bytes = self.used_bytes + byte_count

        if len(self.types) < needed_types + 1:
            grown = np.zeros((max(needed_types + 1, 2 * len(self.types)), 2), np.int64)
            grown[: len(self.types)] = self.types
            self.types = grown

        if len(self.arena) < needed_bytes:
            self.arena = np.concatenate([self.arena, np.zeros(max(needed_bytes, len(self.arena)), np.uint8)])

        # The hash table stays at most half full, so that lookups are short. Its size is a power of two.
        if len(self.slots) < 2 * needed_types:
            self.slots = np.zeros((1 << (2 * needed_types - 1).bit_length(), 2), np.uint64)
            kernels.fill_slots(self.slots, self.arena, self.types, len(self))

    def pack(self) -> PackedTypes:
        """Return views of the types and counts, for `merge` of another table."""
        return PackedTypes(self.arena[: self.used_bytes], self.types[: len(self) + 1])

    def merge(self, other: PackedTypes) -> NDArray[np.uint32]:
        """Add the types and counts of another table; return the number of each of its types in this table."""
        self.reserve(len(other), len(other.arena))
        numbers = np.empty(len(other), np.uint32)
        kernels.merge_types(other.arena, other.types, self.slots, self.arena, self.types, self.state, numbers)
        return numbers

    def find(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """Return the type number of each token; -1 if the token is not in the table."""
        encoded = [token.encode("utf-8", "surrogatepass") for token in tokens]
        ends = np.cumsum([len(token) for token in encoded], dtype=np.int64)

        numbers = np.empty(len(encoded), np.int64)
        data = np.frombuffer(bytearray().join(encoded), np.uint8)
        kernels.find_types(self.slots, self.arena, data, ends, numbers)
        return numbers

    def counts(self, min_count: int) -> dict[str, int]:
        """Return the tokens that occur at least `min_count` times, with their counts."""
        counts = self.types[: len(self), COUNT]
        chosen = np.flatnonzero(counts >= min_count)
        data = self.arena[: self.used_bytes].tobytes()

        starts = self.types[chosen, START].tolist()
        stops = self.types[chosen + 1, START].tolist()
        tokens = (data[start:stop].decode() for start, stop in zip(starts, stops, strict=True))
        return dict(zip(tokens, counts[chosen].tolist(), strict=True))
