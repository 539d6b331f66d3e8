"""Parallel tokenization: text to type numbers, on several threads.

The text is read once. The result is an `EncodedCorpus`: type numbers in scratch files and a table of types with their
counts. The vocabulary is chosen afterwards from the counts, and `write_ids` converts type numbers to vocabulary ids.

Each worker has its own table and scratch file. Which worker processes which piece is not deterministic, but it does
not affect the results of `counts` and `write_ids`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig
from swivel.corpus import tokenizer_kernels as kernels
from swivel.corpus.character_classes import MAX_TOKEN_BYTES, TokenizerRules, build_rules
from swivel.corpus.chunks import TextPiece, cut_stream, describe_bad_byte
from swivel.corpus.sentinels import BREAK, GAP
from swivel.corpus.sources import Stream, Texts, open_streams
from swivel.corpus.type_table import PackedTypes, TypeTable
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import CorpusError
from swivel.runtime.parallel import take_in_order
from swivel.runtime.progress import SILENT, Progress, track
from swivel.storage import ArrayAppender, open_array

PIECE_BYTES = 1 << 20  # small enough for the cache of a core
_SLICE_BYTES = 1 << 16  # per call of `scan_text`; the table is enlarged for the worst case before each call
_MAP_IDS = 1 << 20  # per call of `map_ids`


@dataclass(frozen=True, slots=True)
class Carry:
    """State of a text at the end of a piece: the state of the kernel and the bytes of an incomplete token."""

    state: NDArray[np.int64]
    token: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Segment:
    """Location of the ids of one piece.

    Attributes
    ----------
    worker
        Number of the worker whose scratch file contains the ids.
    start, stop
        Position in that file.
    breaks
        Number of breaks among the ids.
    opens, closes
        Whether the first and the last id are breaks.
    carry
        State of the text at the end of the piece.
    cost
        Bytes of the source, for progress bars.
    """

    worker: int
    start: int
    stop: int
    breaks: int
    opens: bool
    closes: bool
    carry: Carry
    cost: int


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


def encode_corpus(
    texts: Texts,
    config: CorpusConfig,
    *,
    scratch: Path,
    threads: int,
    progress: Progress = SILENT,
    piece_bytes: int = PIECE_BYTES,
) -> EncodedCorpus:
    """Tokenize texts once and return them as type numbers, in scratch files inside the folder `scratch`.

    `swivel.corpus.encode_corpus` describes the parameters; a thread processes about `piece_bytes` at a time.
    Raises CorpusError if a text cannot be read, and ConfigError if the encoding is unknown.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     encoded = encode_corpus(["To be or not to be"], CorpusConfig(), scratch=Path(folder), threads=1)
    ...     encoded.token_count, encoded.counts(min_count=2)
    (6, {'to': 2, 'be': 2})
    """
    streams = open_streams(texts, config)
    return encode_streams(streams, config, scratch=scratch, threads=threads, progress=progress, piece_bytes=piece_bytes)


def encode_streams(
    streams: list[Stream],
    config: CorpusConfig,
    *,
    scratch: Path,
    threads: int,
    progress: Progress = SILENT,
    piece_bytes: int = PIECE_BYTES,
) -> EncodedCorpus:
    """Tokenize streams once, as `encode_corpus` does with texts; no window crosses from one stream to the next."""
    rules = build_rules(config, is_tokenised=streams[0].is_tokenised, has_marks=streams[0].has_marks)
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
    """A corpus as type numbers in scratch files, with a table of its types and their counts.

    Attributes
    ----------
    token_count
        Number of tokens.
    unit_count
        Number of units with at least one token.
    """

    def __init__(self, workers: list[EncodeWorker], segments: list[Segment]) -> None:
        self._segments = [segment for segment in segments if segment.stop > segment.start]
        self._ids = [open_array(worker.ids.path) for worker in workers]

        # Merge all tables into the first one. _numbers[w][n] is the merged number of type n of worker w.
        self._types = workers[0].types
        self._numbers = [np.arange(len(self._types), dtype=np.uint32)]
        for worker in workers[1:]:
            self._numbers.append(self._types.merge(worker.types.pack()))

        self.token_count: int = self._types.token_count
        self.unit_count: int = self._count_units()

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

    @property
    def type_count(self) -> int:
        """Number of distinct tokens."""
        return len(self._types)

    def pack_types(self) -> PackedTypes:
        """Return the types and their counts, for merging them with those of other texts."""
        return self._types.pack()

    def counts(self, min_count: int = 1) -> dict[str, int]:
        """Return the tokens that occur at least `min_count` times with their counts, in no particular order."""
        return self._types.counts(min_count)

    def write_ids(self, vocabulary: Vocabulary, *, keep_gaps: bool, path: Path, threads: int) -> NDArray[np.uint32]:
        """Write the corpus in order as vocabulary ids, and return them as a memory map.

        BREAK separates units; it is never repeated and not at either end.

        Parameters
        ----------
        vocabulary
            Vocabulary whose ids are written.
        keep_gaps
            Whether tokens that are not in the vocabulary become GAP; otherwise they are left out.
        path
            `.npy` file to write.
        threads
            Number of threads.

        Returns
        -------
        ndarray of shape (n_ids,), uint32
            Ids, BREAK and GAP.
        """
        numbers = self._vocabulary_ids(vocabulary, GAP if keep_gaps else BREAK)

        parts = []
        for segment in self._segments:
            for start in range(segment.start, segment.stop, _MAP_IDS):
                stop = min(start + _MAP_IDS, segment.stop)
                parts.append((numbers[segment.worker], self._ids[segment.worker][start:stop]))

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

    def _vocabulary_ids(self, vocabulary: Vocabulary, unknown: np.uint32) -> list[NDArray[np.uint32]]:
        """Return the vocabulary id of each type, or `unknown`, in one array per worker."""
        ids = np.full(len(self._types), unknown, np.uint32)
        types = self._types.find(vocabulary.tokens)  # type of each vocabulary id, -1 if it does not occur
        ids[types[types >= 0]] = np.flatnonzero(types >= 0)
        return [ids[numbers] for numbers in self._numbers]


def _map_part(numbers: NDArray[np.uint32], ids: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], bool, bool]:
    """Return the vocabulary ids of a part, and whether a break is due before and after them."""
    out = np.empty(len(ids), np.uint32)
    size, opens, closes = kernels.map_ids(ids, numbers, out)
    return out[:size], bool(opens), bool(closes)
