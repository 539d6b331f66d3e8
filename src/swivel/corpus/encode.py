"""Parallel tokenization: text to type numbers, on several threads.

The text is read once. The result is an `EncodedCorpus`: type numbers in scratch files and a table of types with their
counts. The vocabulary is chosen afterwards from the counts, and `write_ids` converts type numbers to vocabulary ids.

Each worker has its own table and scratch file; `tokenizer_kernels` describes the arrays of a table. Which worker
processes which piece is not deterministic, but it does not affect the results of `counts` and `write_ids`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig
from swivel.corpus import tokenizer_kernels as kernels
from swivel.corpus.character_classes import MAX_TOKEN_BYTES, TokenizerRules, build_rules
from swivel.corpus.streams import PIECE_BYTES, Stream, TextPiece, cut_stream, describe_bad_byte
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary
from swivel.errors import CorpusError
from swivel.runtime.parallel import take_in_order
from swivel.runtime.progress import SILENT, Progress, track
from swivel.storage import ArrayAppender, open_array

_SLICE_BYTES = 1 << 16  # per call of `scan_text`; the table is enlarged for the worst case before each call
_MAP_IDS = 1 << 20  # per call of `map_ids`
_INITIAL_TYPES = 1024
_PADDING = 16  # int64 values: two cache lines, because processors fetch cache lines in pairs


@dataclass(frozen=True, slots=True)
class PackedTypes:
    """Content of a table without its hash slots, for merging it into another table."""

    arena: NDArray[np.uint8]  # bytes of all types, one after the other
    types: NDArray[np.int64]  # start in the arena and count of each type; one more row for the end of the last type

    def __len__(self) -> int:
        return len(self.types) - 1


class TypeTable:
    """Distinct tokens in the order of their first occurrence, with counts."""

    def __init__(self) -> None:
        # The padding avoids false sharing: the state changes with every character, so the states of two threads must
        # not be in the same cache lines.
        self.state = np.zeros(kernels.STATE_SIZE + 2 * _PADDING, np.int64)[_PADDING:-_PADDING]
        self.slots = np.zeros((2 * _INITIAL_TYPES, 2), np.uint64)
        self.arena = np.zeros(MAX_TOKEN_BYTES, np.uint8)
        self.types = np.zeros((_INITIAL_TYPES + 1, 2), np.int64)

    def __len__(self) -> int:
        return int(self.state[kernels.TYPES])

    @property
    def used_bytes(self) -> int:
        """Number of bytes of all types."""
        return int(self.state[kernels.USED])

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
        counts = self.types[: len(self), kernels.COUNT]
        chosen = np.flatnonzero(counts >= min_count)
        data = self.arena[: self.used_bytes].tobytes()

        starts = self.types[chosen, kernels.START].tolist()
        stops = self.types[chosen + 1, kernels.START].tolist()
        tokens = (data[start:stop].decode() for start, stop in zip(starts, stops, strict=True))
        return dict(zip(tokens, counts[chosen].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Carry:
    """State of a text at the end of a piece: the state of the kernel and the bytes of an incomplete token."""

    state: NDArray[np.int64]
    token: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Segment:
    """Location of the ids of one piece."""

    worker: int  # number of the worker whose scratch file contains the ids
    start: int  # position in that file
    stop: int
    breaks: int  # number of breaks among the ids
    opens: bool  # whether the first id is a break
    closes: bool  # whether the last id is a break
    carry: Carry  # state of the text at the end of the piece
    cost: int  # bytes of the source, for progress bars


def _initial_carry() -> Carry:
    """Return the state at the start of a text."""
    state = np.zeros(kernels.TEXT_STATE.stop, np.int64)
    state[kernels.HASH] = kernels.HASH_OF_NOTHING
    state[kernels.BLANK] = 1
    return Carry(state, np.empty(0, np.uint8))


class EncodeWorker:
    """A table of types and a scratch file, which the kernels fill from pieces of text."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.types = TypeTable()
        self.ids = ArrayAppender(path, np.uint32)
        self._out = np.empty(0, np.uint32)

    def encode(self, piece: TextPiece, carry: Carry, rules: TokenizerRules) -> Segment:
        """Tokenize one piece, append its type numbers to the scratch file and return their location."""
        # At most one id or break per byte, and those that are pending from the previous piece.
        if len(self._out) < len(piece.data) + 8:
            self._out = np.empty(len(piece.data) + 8, np.uint32)

        self._restore(carry, rules)
        self._scan(piece, rules)

        if piece.is_last:
            types = self.types
            kernels.end_text(types.slots, types.arena, types.types, types.state, self._out)

        return self._append_ids(piece)

    def _restore(self, carry: Carry, rules: TokenizerRules) -> None:
        """Set the state of the kernel to that at the end of the previous piece."""
        self._reserve()

        # The bytes of the current token are after the used part of the arena.
        used = self.types.used_bytes
        self.types.arena[used : used + len(carry.token)] = carry.token

        state = self.types.state
        state[kernels.TEXT_STATE] = carry.state
        state[kernels.OUT] = 0
        state[kernels.BREAKS] = 0
        state[kernels.BAD] = -1
        state[kernels.UNIT] = rules.unit
        state[kernels.IS_STRICT] = rules.is_strict
        state[kernels.HAS_MARKS] = rules.has_marks

    def _reserve(self) -> None:
        # Lower case has at most 1.5 times as many bytes, and the current token may have started before the slice.
        self.types.reserve(_SLICE_BYTES, 2 * _SLICE_BYTES + MAX_TOKEN_BYTES)

    def _scan(self, piece: TextPiece, rules: TokenizerRules) -> None:
        """Tokenize a piece slice by slice; raise CorpusError for invalid UTF-8 in strict mode."""
        data = np.frombuffer(piece.data, np.uint8)
        types = self.types
        tables = rules.kinds, rules.plain, rules.lower, rules.abbreviations

        at = 0
        while at < len(data):
            self._reserve()  # This may replace the arrays of the table.
            stop = min(at + _SLICE_BYTES, len(data))
            at = kernels.scan_text(
                data, at, stop, *tables, types.slots, types.arena, types.types, types.state, self._out
            )

            if types.state[kernels.BAD] >= 0:
                raise describe_bad_byte(piece, int(types.state[kernels.BAD]))

    def _append_ids(self, piece: TextPiece) -> Segment:
        state = self.types.state
        used = self.types.used_bytes
        written = self._out[: state[kernels.OUT]]

        start = self.ids.length
        self.ids.append(written)

        return Segment(
            worker=self.number,
            start=start,
            stop=self.ids.length,
            breaks=int(state[kernels.BREAKS]),
            opens=bool(len(written) and written[0] == BREAK),
            closes=bool(len(written) and written[-1] == BREAK),
            carry=Carry(state[kernels.TEXT_STATE].copy(), self.types.arena[used : used + state[kernels.LENGTH]].copy()),
            cost=piece.cost,
        )


def encode_streams(
    streams: list[Stream],
    config: CorpusConfig,
    *,
    scratch: Path,
    threads: int,
    progress: Progress = SILENT,
    piece_bytes: int = PIECE_BYTES,
) -> EncodedCorpus:
    """Tokenize streams once, as `swivel.corpus.encode_corpus` does with texts; units end with their stream."""
    rules = build_rules(config, is_tokenized=streams[0].is_tokenized, has_marks=streams[0].has_marks)
    sizes = [stream.size for stream in streams if stream.size is not None]
    total = sum(sizes) if len(sizes) == len(streams) else None

    segments = []
    with contextlib.ExitStack() as stack:
        task = stack.enter_context(track(progress, "reading", total, "bytes"))
        workers = [EncodeWorker(number, scratch / f"ids-{number}.npy") for number in range(threads)]
        for worker in workers:
            stack.callback(worker.ids.close)

        pool = stack.enter_context(ThreadPoolExecutor(threads))
        futures = _submit_pieces(pool, workers, streams, rules, piece_bytes)
        for segment in take_in_order(futures, ahead=threads + 3):
            segments.append(segment)
            task.advance(segment.cost)

    return EncodedCorpus(workers, segments)


def _submit_pieces(
    pool: ThreadPoolExecutor,
    workers: list[EncodeWorker],
    streams: list[Stream],
    rules: TokenizerRules,
    piece_bytes: int,
) -> Iterator[Future[Segment]]:
    """Submit every piece to the pool and yield its future.

    A piece that starts inside a line waits for the previous one and continues from its state. This cannot deadlock: the
    pool starts tasks in order of submission, and a task takes an idle worker only after it has waited.
    """
    idle: SimpleQueue[EncodeWorker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def encode(piece: TextPiece, before: Future[Segment] | None) -> Segment:
        carry = before.result().carry if before else _initial_carry()
        worker = idle.get()
        try:
            return worker.encode(piece, carry, rules)
        finally:
            idle.put(worker)

    future: Future[Segment] | None = None
    try:
        for stream in streams:
            for piece in cut_stream(stream, piece_bytes):
                future = pool.submit(encode, piece, future if piece.is_continued else None)
                yield future
    except CorpusError as error:  # Raise it in order, after the errors of the pieces before it.
        failed: Future[Segment] = Future()
        failed.set_exception(error)
        yield failed


class EncodedCorpus:
    """A corpus as type numbers in scratch files, with a table of its types and their counts."""

    def __init__(self, workers: list[EncodeWorker], segments: list[Segment]) -> None:
        self._segments = [segment for segment in segments if segment.stop > segment.start]
        self._ids = [open_array(worker.ids.path) for worker in workers]

        # Merge all tables into the first one. _numbers[w][n] is the merged number of type n of worker w.
        self.types = workers[0].types
        self._numbers = [np.arange(len(self.types), dtype=np.uint32)]
        for worker in workers[1:]:
            self._numbers.append(self.types.merge(worker.types.pack()))

        self.token_count = int(self.types.pack().types[:-1, kernels.COUNT].sum())
        self.unit_count = self._count_units()  # units with at least one token

    def _count_units(self) -> int:
        """Return the number of breaks, where two adjacent breaks of neighboring segments count once.

        Every unit ends with a break. A break at the start of the corpus ends no unit.
        """
        units = 0
        is_broken = True
        for segment in self._segments:
            units += segment.breaks - (segment.opens and is_broken)
            is_broken = segment.closes
        return units

    def counts(self, min_count: int = 1) -> dict[str, int]:
        """Return the tokens that occur at least `min_count` times with their counts, in no particular order."""
        return self.types.counts(min_count)

    def write_ids(self, vocabulary: Vocabulary, *, keep_gaps: bool, path: Path, threads: int) -> NDArray[np.uint32]:
        """Write the corpus in order as vocabulary ids, and return them as a memory map.

        BREAK separates units; it is never repeated and not at either end. Tokens that are not in the vocabulary become
        GAP with `keep_gaps`; otherwise they are left out.
        """
        # Vocabulary ids by the type numbers of the merged table, then by those of each worker.
        merged_ids = np.full(len(self.types), GAP if keep_gaps else BREAK)
        types = self.types.find(vocabulary.tokens)  # type of each vocabulary id, -1 if it does not occur
        merged_ids[types[types >= 0]] = np.flatnonzero(types >= 0)
        worker_ids = [merged_ids[numbers] for numbers in self._numbers]

        parts = []
        for segment in self._segments:
            for start in range(segment.start, segment.stop, _MAP_IDS):
                stop = min(start + _MAP_IDS, segment.stop)
                parts.append((worker_ids[segment.worker], self._ids[segment.worker][start:stop]))

        file = ArrayAppender(path, np.uint32)
        is_broken = False  # whether a break is due before the next id
        with contextlib.closing(file), ThreadPoolExecutor(threads) as pool:
            futures = (pool.submit(_map_part, *part) for part in parts)
            for ids, opens, closes in take_in_order(futures, ahead=threads + 3):
                is_broken |= opens
                if len(ids):
                    if is_broken and file.length:
                        file.append(np.array([BREAK]))
                    file.append(ids)
                    is_broken = closes
                else:
                    is_broken |= closes

        return open_array(path)


def _map_part(numbers: NDArray[np.uint32], ids: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], bool, bool]:
    """Return the vocabulary ids of a part, and whether a break is due before and after them."""
    out = np.empty(len(ids), np.uint32)
    size, opens, closes = kernels.map_ids(ids, numbers, out)
    return out[:size], bool(opens), bool(closes)
