"""Tables of types, which are the distinct tokens of a text with their counts, in memory and in scratch files.

`tokenizer_kernels` describes the arrays of a table.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus import tokenizer_kernels as kernels
from swivel.corpus.character_classes import MAX_TOKEN_BYTES, TokenizerRules
from swivel.storage.arrays import ArrayAppender

_INITIAL_TYPES = 1024
_MERGED_TYPES = 1 << 16  # per call of `merge_types`; the table is enlarged for the worst case before each call
_PADDING = 16  # int64 values: two cache lines, because processors fetch cache lines in pairs
_TYPE_BYTES = 48  # per type of a table, without its own bytes: up to four slots, a start and a count
_SAMPLED_PARTS = 64  # one part of so many is merged to estimate the number of all types


@dataclass(frozen=True, slots=True)
class PackedTypes:
    """Content of a table without its hash slots, in memory or mapped from files, for merging it into another table."""

    arena: NDArray[np.uint8]  # bytes of all types, one after the other
    types: NDArray[np.int64]  # start in the arena and count of each type; one more row for the end of the last type

    def __len__(self) -> int:
        return len(self.types) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Count of each type."""
        return self.types[:-1, kernels.COUNT]

    def tokens(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """Return the tokens of some types, in UTF-8."""
        starts = self.types[numbers, kernels.START].tolist()
        stops = self.types[numbers + 1, kernels.START].tolist()
        data = self.arena.data
        return [bytes(data[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def start_text() -> NDArray[np.int64]:
    """Return the state at the start of a text."""
    state = np.zeros(kernels.TEXT_STATE.stop, np.int64)
    state[kernels.HASH] = kernels.HASH_OF_NOTHING
    state[kernels.BLANK] = 1
    return state


class TypeTable:
    """Distinct tokens in the order of their first occurrence, with counts."""

    def __init__(self) -> None:
        # The padding avoids false sharing: the state changes with every character, so the states of two threads must
        # not be in the same cache lines.
        self.state = np.zeros(kernels.STATE_SIZE + 2 * _PADDING, np.int64)[_PADDING:-_PADDING]
        self.slots = np.zeros(2 * _INITIAL_TYPES, np.uint64)
        self.arena = np.zeros(MAX_TOKEN_BYTES, np.uint8)
        self.types = np.zeros((_INITIAL_TYPES + 1, 2), np.int64)

    def begin_scan(self, rules: TokenizerRules, text_state: NDArray[np.int64]) -> None:
        """Set the state for a call of a kernel: the settings, and how far the text before has come."""
        state = self.state
        state[kernels.TEXT_STATE] = text_state
        state[[kernels.OUT, kernels.BREAKS]] = 0
        state[kernels.BAD] = -1
        state[[kernels.UNIT, kernels.IS_STRICT, kernels.HAS_MARKS]] = rules.unit, rules.is_strict, rules.has_marks

    @classmethod
    def from_tokens(cls, tokens: Iterable[str], counts: Iterable[int] | None = None) -> TypeTable:
        """Return a table of distinct tokens with their counts, or zeros; the number of a token is its position."""
        encoded = [token.encode("utf-8", "surrogatepass") for token in tokens]
        types = np.zeros((len(encoded) + 1, 2), np.int64)
        types[1:, kernels.START] = np.cumsum([len(token) for token in encoded])
        if counts is not None:
            types[:-1, kernels.COUNT] = list(counts)

        table = cls()
        table.merge(PackedTypes(np.frombuffer(bytearray().join(encoded), np.uint8), types))
        return table

    def __len__(self) -> int:
        return int(self.state[kernels.TYPES])

    @property
    def arena_bytes(self) -> int:
        """Number of bytes of all types."""
        return int(self.state[kernels.USED])

    @property
    def memory_bytes(self) -> int:
        """Memory that the table takes; new pages of its arrays take memory when they are first written."""
        return int(self.slots.nbytes + self.types[: len(self)].nbytes + self.arena_bytes)

    def reserve(self, types: int, byte_count: int) -> None:
        """Enlarge the arrays so that `types` more types with `byte_count` more bytes fit."""
        needed_types = len(self) + types
        needed_bytes = self.arena_bytes + byte_count

        if len(self.types) < needed_types + 1:
            grown = np.zeros((max(needed_types + 1, 2 * len(self.types)), 2), np.int64)
            grown[: len(self) + 1] = self.types[: len(self) + 1]
            self.types = grown

        if len(self.arena) < needed_bytes:
            arena = np.zeros(max(needed_bytes, 2 * len(self.arena)), np.uint8)
            # The bytes of the current token follow those of the types.
            used = self.arena_bytes + int(self.state[kernels.LENGTH])
            arena[:used] = self.arena[:used]
            self.arena = arena

        # The hash table stays at most half full, so that lookups are short. Its size is a power of two.
        if len(self.slots) < 2 * needed_types:
            del self.slots  # It is filled from the other arrays; two at a time would take more memory.
            self.slots = np.zeros(1 << (2 * needed_types - 1).bit_length(), np.uint64)
            kernels.fill_slots(self.slots, self.arena, self.types, len(self))

    def pack(self) -> PackedTypes:
        """Return views of the types and counts, for `merge` of another table."""
        return PackedTypes(self.arena[: self.arena_bytes], self.types[: len(self) + 1])

    def save(self, folder: Path, name: str) -> PackedTypes:
        """Write the types and counts to two scratch files, and return them memory-mapped."""
        mapped: list[NDArray[Any]] = []
        packed = self.pack()
        arrays: dict[str, NDArray[Any]] = {"bytes": packed.arena, "types": packed.types.reshape(-1)}
        for kind, array in arrays.items():
            file = ArrayAppender(folder / f"{kind}-{name}.npy", array.dtype)
            with contextlib.closing(file):
                file.append(array)
            mapped.append(file.open())
        return PackedTypes(mapped[0], mapped[1].reshape(-1, 2))

    def merge(self, other: PackedTypes, part: int = 0, parts: int = 1) -> None:
        """Add the types and counts of another table, or those of one of several parts of all possible types."""
        for first in range(0, len(other), _MERGED_TYPES):
            last = min(first + _MERGED_TYPES, len(other))
            self.reserve(last - first, int(other.types[last, kernels.START] - other.types[first, kernels.START]))
            kernels.merge_types(
                other.arena, other.types, first, last, part, parts, self.slots, self.arena, self.types, self.state
            )

    def find(self, other: PackedTypes) -> NDArray[np.int64]:
        """Return the number of each type of another table in this one; -1 if it is not there."""
        numbers = np.empty(len(other), np.int64)
        kernels.find_types(self.slots, self.arena, self.types, other.arena, other.types, numbers)
        return numbers


class TypeCounts:
    """Counts of the distinct tokens of several tables together, which are merged in parts that fit in memory."""

    def __init__(self, tables: Sequence[PackedTypes], memory_bytes: int, threads: int = 1) -> None:
        self._tables = tables
        self._memory_bytes = memory_bytes
        self._threads = threads

    def merge(self, part: int = 0, parts: int = 1) -> TypeTable:
        """Return a table of all types, or of one of several parts of them."""
        merged = TypeTable()
        for table in self._tables:
            merged.merge(table, part, parts)
        return merged

    def most_frequent(self, min_count: int = 1, limit: int = 0) -> dict[str, int]:
        """Return tokens with their counts, in no particular order."""
        # These are all tokens that occur at least `min_count` times; with a `limit`, only that many of the most
        # frequent ones, and those that are as frequent as the last of these.
        parts = self._choose_parts()
        workers = 1
        if parts == 1:
            workers = parts = self._threads

        def choose(part: int) -> tuple[list[bytes], NDArray[np.int64]]:
            types = self.merge(part, parts).pack()
            indices = _find_frequent(types.counts, min_count, limit)
            return types.tokens(indices), types.counts[indices]

        with ThreadPoolExecutor(workers) as pool:
            frequent_types = list(pool.map(choose, range(parts)))

        tokens = [token for part, _ in frequent_types for token in part]
        counts = np.concatenate([part for _, part in frequent_types])
        indices = _find_frequent(counts, min_count, limit)
        return {tokens[number].decode(): int(counts[number]) for number in indices}

    def of_tokens(self, tokens: Iterable[str]) -> dict[str, int]:
        """Return the counts of those of the given tokens that occur."""
        names = list(dict.fromkeys(tokens))
        table = TypeTable.from_tokens(names)
        counts = np.zeros(len(names), np.int64)

        for other in self._tables:
            numbers = table.find(other)
            is_found = numbers >= 0
            counts[numbers[is_found]] += other.counts[is_found]

        return {token: count for token, count in zip(names, counts.tolist(), strict=True) if count}

    def _choose_parts(self) -> int:
        """Return the number of parts that are merged one after the other, so that each fits in memory."""
        types = sum(len(table) for table in self._tables)
        arena_bytes = sum(len(table.arena) for table in self._tables)
        type_bytes = _TYPE_BYTES + arena_bytes / max(types, 1)
        if types * type_bytes <= self._memory_bytes:
            return 1

        # Most types are in several tables. How many there are without repetition shows in a sample.
        distinct = _SAMPLED_PARTS * len(self.merge(0, _SAMPLED_PARTS))
        parts = math.ceil(distinct * type_bytes / self._memory_bytes)
        return min(max(parts, 1), _SAMPLED_PARTS)  # More parts would take longer than reading the text.


def _find_frequent(counts: NDArray[np.int64], min_count: int, limit: int) -> NDArray[np.int64]:
    """Return the indices of counts of at least `min_count`, or of at least the `limit`-th largest of them."""
    indices = np.flatnonzero(counts >= min_count)
    if limit and len(indices) > limit:
        least = np.partition(counts[indices], -limit)[-limit]
        indices = np.flatnonzero(counts >= least)
    return indices
