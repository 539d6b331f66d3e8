"""Parallel tokenization: text to type numbers, on several threads.

The text is read once. The result is an `EncodedCorpus`: type numbers in scratch files and tables of types with their
counts. The vocabulary is chosen afterwards from the counts, and `write_ids` converts type numbers to vocabulary ids.

Each worker has a scratch file of type numbers and a table of types. A table that takes more than its share of the
memory is written to scratch files, and the worker continues with an empty one. Which worker processes which piece, and
where a table ends, does not affect the results of `counts` and `write_ids`. `tokenizer_kernels` describes the arrays
of a table.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig
from swivel.corpus import tokenizer_kernels as kernels
from swivel.corpus.character_classes import MAX_TOKEN_BYTES, TokenizerRules, build_rules
from swivel.corpus.normalization import normalize_bytes
from swivel.corpus.segmentation import Splitter
from swivel.corpus.sources import Texts
from swivel.corpus.streams import PIECE_BYTES, Stream, TextPiece, cut_stream, describe_bad_byte, open_streams
from swivel.corpus.vocabulary import BREAK, GAP, Vocabulary
from swivel.errors import CorpusError
from swivel.runtime.parallel import map_in_order, take_in_order
from swivel.runtime.progress import SILENT, Progress, Task, track
from swivel.runtime.resources import release_freed_memory
from swivel.storage.arrays import ArrayAppender
from swivel.storage.manifest import open_array

Ids: TypeAlias = NDArray[np.uint32]

_FREE_TYPES = kernels.STEP_TYPES + (1 << 12)  # that a table has space for before a call of `scan_text`
_FREE_BYTES = kernels.STEP_BYTES + (1 << 16)
_MAP_IDS = 1 << 18  # per call of `map_ids`
_MIN_TABLE_BYTES = 1 << 22  # A smaller table would be full after one piece of text.
_WORKER_BYTES = 1 << 24  # of a worker and its pieces of text; with less memory there are fewer workers


# State of a text at the end of a piece: the state of the kernel and the bytes of an incomplete token.
Carry = tuple[NDArray[np.int64], NDArray[np.uint8]]
_INITIAL_TYPES = 1024
_MERGED_TYPES = 1 << 16  # per call of `merge_types`; the table is enlarged for the worst case before each call
_PADDING = 16  # int64 values: two cache lines, because processors fetch cache lines in pairs
_TYPE_BYTES = 48  # per type of a table, without its own bytes: up to four slots, a start and a count
_SAMPLED_PARTS = 64  # one part of so many is merged to estimate the number of all types


@dataclass(frozen=True, slots=True)
class Segment:
    """Location of the ids of one piece."""

    worker: int  # number of the worker whose scratch file contains the ids
    table: int  # number of the table of that worker to which the ids belong
    start: int  # position in that file
    stop: int
    breaks: int  # number of breaks among the ids
    opens: bool  # whether the first id is a break
    closes: bool  # whether the last id is a break
    carry: Carry  # state of the text at the end of the piece


class EncodeWorker:
    """A table of types and a scratch file, which the kernels fill from pieces of text."""

    def __init__(self, number: int, scratch: Path, max_table_bytes: int) -> None:
        self.number = number
        self.types = TypeTable()
        self.tables: list[PackedTypes] = []  # tables that were full, in scratch files
        self.path = scratch / f"ids-{number}.npy"
        self.ids = ArrayAppender(self.path, np.uint32)
        self._scratch = scratch
        self._max_table_bytes = max_table_bytes
        self._out = np.empty(0, np.uint32)

    def encode(self, piece: TextPiece, carry: Carry, rules: TokenizerRules) -> Segment:
        """Tokenize one piece, append its type numbers to the scratch file and return their location."""
        piece = replace(piece, data=normalize_bytes(piece.data, rules.form))
        # At most one id or break per byte, and those that are pending from the previous piece.
        if len(self._out) < len(piece.data) + 8:
            self._out = np.empty(len(piece.data) + 8, np.uint32)

        # Continue from the state at the end of the previous piece: the bytes of an incomplete token are after the used
        # part of the arena.
        text_state, token = carry
        self.types.reserve(_FREE_TYPES, _FREE_BYTES)
        used = self.types.arena_bytes
        self.types.arena[used : used + len(token)] = token
        self.types.begin_scan(rules, text_state)
        self._scan(piece, rules)

        if piece.is_last:
            types = self.types
            kernels.end_text(types.slots, types.arena, types.types, types.state, self._out)

        segment = self._append_ids(piece)
        if self.types.memory_bytes > self._max_table_bytes:
            self.save_types()
        return segment

    def save_types(self) -> None:
        """Write the table to scratch files and continue with an empty one."""
        self.tables.append(self.types.save(self._scratch, f"{self.number}-{len(self.tables)}"))
        self.types = TypeTable()

    def _scan(self, piece: TextPiece, rules: TokenizerRules) -> None:
        """Tokenize a piece; raise CorpusError for invalid UTF-8 in strict mode."""
        data = np.frombuffer(piece.data, np.uint8)
        types = self.types
        tables = rules.kinds, rules.plain, rules.lower, rules.abbreviations

        at = 0
        while at < len(data):
            types.reserve(_FREE_TYPES, _FREE_BYTES)  # This may replace the arrays of the table.
            at = kernels.scan_text(
                data, at, len(data), *tables, types.slots, types.arena, types.types, types.state, self._out
            )

            if types.state[kernels.BAD] >= 0:
                raise describe_bad_byte(piece, int(types.state[kernels.BAD]))

    def _append_ids(self, piece: TextPiece) -> Segment:
        state = self.types.state
        written = self._out[: state[kernels.OUT]]
        start = self.ids.length
        self.ids.append(written)

        used = self.types.arena_bytes
        token = self.types.arena[used : used + state[kernels.LENGTH]].copy()
        return Segment(
            worker=self.number,
            table=len(self.tables),
            start=start,
            stop=self.ids.length,
            breaks=int(state[kernels.BREAKS]),
            opens=bool(len(written) and written[0] == BREAK),
            closes=bool(len(written) and written[-1] == BREAK),
            carry=(state[kernels.TEXT_STATE].copy(), token),
        )


def encode_corpus(
    texts: Texts | list[Stream],
    config: CorpusConfig,
    *,
    scratch: Path,
    threads: int,
    memory_bytes: int = 1 << 30,
    progress: Progress = SILENT,
    piece_bytes: int = PIECE_BYTES,
    check: Callable[[], None] | None = None,
) -> EncodedCorpus:
    """Tokenize texts once and return them as type numbers, in scratch files inside the folder `scratch`.

    Texts are paths, globs, ``-`` for standard input, texts, or lists of tokens; a piece of about `piece_bytes` of
    them is processed at a time. Distinct tokens that do not fit in `memory_bytes` are in scratch files, too. `check` is
    called after each piece, and reading ends with the error that it raises.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     encoded = encode_corpus(["To be or not to be"], CorpusConfig(), scratch=Path(folder), threads=1)
    ...     encoded.token_count, encoded.counts(min_count=2)
    (6, {'to': 2, 'be': 2})
    """
    is_open = isinstance(texts, list) and bool(texts) and isinstance(texts[0], Stream)
    streams: list[Stream] = texts if is_open else open_streams(texts, config)  # type: ignore[assignment, arg-type]
    threads = min(threads, max(1, memory_bytes // _WORKER_BYTES))
    sizes = [stream.size for stream in streams if stream.size is not None]
    total = sum(sizes) if len(sizes) == len(streams) else None

    segments = []
    with contextlib.ExitStack() as stack:
        task = stack.enter_context(track(progress, "reading", total, "bytes"))
        if Splitter.is_needed(config) and not streams[0].is_tokenized:
            splitter = stack.enter_context(Splitter(config, threads))
            streams = [splitter.split(stream) for stream in streams]
        rules = build_rules(config, is_tokenized=streams[0].is_tokenized, has_marks=streams[0].has_marks)
        # A table may become twice as large within one piece.
        max_table_bytes = max(memory_bytes // 2 // threads, _MIN_TABLE_BYTES)
        workers = [EncodeWorker(number, scratch, max_table_bytes) for number in range(threads)]
        for worker in workers:
            stack.callback(worker.ids.close)

        pool = stack.enter_context(ThreadPoolExecutor(threads))
        futures = _submit_pieces(pool, workers, streams, rules, piece_bytes, task)
        for segment in take_in_order(futures, ahead=threads + 3):
            segments.append(segment)
            if check is not None:
                check()

        for worker in workers:
            worker.save_types()

    release_freed_memory()
    return EncodedCorpus([(worker.path, worker.tables) for worker in workers], segments, memory_bytes)


def _submit_pieces(
    pool: ThreadPoolExecutor,
    workers: list[EncodeWorker],
    streams: list[Stream],
    rules: TokenizerRules,
    piece_bytes: int,
    task: Task,
) -> Iterator[Future[Segment]]:
    """Submit every piece to the pool and yield its future."""
    # A piece that starts inside a line waits for the previous one and continues from its state. This cannot deadlock:
    # the pool starts tasks in order of submission, and a task takes an idle worker only after it has waited.
    idle: SimpleQueue[EncodeWorker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def encode(piece: TextPiece, before: Future[Segment] | None) -> Segment:
        carry = before.result().carry if before else (start_text(), np.empty(0, np.uint8))
        worker = idle.get()
        try:
            return worker.encode(piece, carry, rules)
        finally:
            idle.put(worker)

    future: Future[Segment] | None = None
    try:
        for stream in streams:
            reported = 0
            for piece in cut_stream(stream, piece_bytes):
                future = pool.submit(encode, piece, future if piece.is_continued else None)
                task.advance(stream.read_bytes - reported)
                reported = stream.read_bytes
                yield future
    except CorpusError as error:  # Raise it in order, after the errors of the pieces before it.
        failed: Future[Segment] = Future()
        failed.set_exception(error)
        yield failed


class EncodedCorpus:
    """A corpus as type numbers, and the tables of its types with their counts, all in scratch files of each worker."""

    def __init__(self, files: list[tuple[Path, list[PackedTypes]]], segments: list[Segment], memory_bytes: int) -> None:
        self._segments = [segment for segment in segments if segment.stop > segment.start]
        self._ids = [open_array(path) for path, _ in files]
        self._tables = [tables for _, tables in files]

        tables = list(itertools.chain.from_iterable(self._tables))
        self.types = TypeCounts(tables, memory_bytes, threads=len(files))
        self.token_count = sum(int(table.counts.sum()) for table in tables)
        self.unit_count = self._count_units()  # units with at least one token

    def _count_units(self) -> int:
        """Return the number of breaks, where two adjacent breaks of neighboring segments count once."""
        # Every unit ends with a break. A break at the start of the corpus ends no unit.
        units = 0
        is_broken = True
        for segment in self._segments:
            units += segment.breaks - (segment.opens and is_broken)
            is_broken = segment.closes
        return units

    def counts(self, min_count: int = 1) -> dict[str, int]:
        """Return the tokens that occur at least `min_count` times with their counts, in no particular order."""
        return self.types.most_frequent(min_count)

    def write_ids(self, vocabulary: Vocabulary, *, keep_gaps: bool, path: Path, threads: int) -> Ids:
        """Write the corpus in order as vocabulary ids, and return them as a memory map.

        BREAK separates units; it is never repeated and not at either end. Tokens that are not in the vocabulary become
        GAP with `keep_gaps`; otherwise they are left out.
        """
        return write_parts(self._list_parts(vocabulary, GAP if keep_gaps else BREAK), path, threads)

    def _list_parts(self, vocabulary: Vocabulary, absent: np.uint32) -> Iterator[tuple[Ids, Ids]]:
        """Yield the vocabulary ids by type number, and some type numbers, for all parts of the corpus in order."""
        words = TypeTable.from_tokens(vocabulary.tokens)  # The number of a word is its id.
        current: dict[int, tuple[int, Ids]] = {}  # the last table that was used of each worker, and its ids

        for segment in self._segments:
            table, ids = current.get(segment.worker, (-1, None))
            if ids is None or table != segment.table:
                numbers = words.find(self._tables[segment.worker][segment.table])
                ids = np.where(numbers < 0, absent, numbers).astype(np.uint32)
                current[segment.worker] = (segment.table, ids)

            for start in range(segment.start, segment.stop, _MAP_IDS):
                yield ids, self._ids[segment.worker][start : min(start + _MAP_IDS, segment.stop)]


def write_parts(parts: Iterable[tuple[Ids, Ids]], path: Path, threads: int) -> Ids:
    """Write parts of a corpus as vocabulary ids, from the ids by type number, and the type numbers of each part."""
    file = ArrayAppender(path, np.uint32)
    is_broken = False  # whether a break is due before the next id
    with contextlib.closing(file):
        for ids, opens, closes in map_in_order(_map_part, parts, threads=threads, ahead=threads + 3):
            if len(ids):
                if (is_broken or opens) and file.length:
                    file.append(np.array([BREAK]))
                file.append(ids)
            is_broken = closes or (is_broken and not len(ids))

    release_freed_memory()
    return open_array(path)


def _map_part(part: tuple[Ids, Ids]) -> tuple[Ids, bool, bool]:
    """Return the vocabulary ids of a part, and whether a break is due before and after them."""
    numbers, ids = part
    out = np.empty(len(ids), np.uint32)
    size, opens, closes = kernels.map_ids(ids, numbers, out)
    return out[:size], bool(opens), bool(closes)


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
