"""Text to numbers, on every core.

Receives whatever `sources` can read, hands on an `EncodedCorpus`: the corpus as numbers of types in scratch files,
and the table of types. One epoch over the text: the vocabulary is chosen afterwards, from the counts, and `write_ids`
turns the numbers into its ids. It does not choose the vocabulary.

Each worker has a table and a scratch file of its own; who takes which piece is chance, and leaves no trace in what
`counts` and `write_ids` return.
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

PIECE_BYTES = 1 << 20  # small enough for a core's cache
_SLICE_BYTES = 1 << 16  # read by one call of the kernel, for which there is always room
_MAP_IDS = 1 << 20  # mapped by one call of the kernel


@dataclass(frozen=True, slots=True)
class Carry:
    """What a text that goes on in the next piece is in the middle of: the kernel's state, and half a token."""

    state: NDArray[np.int64]
    token: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Segment:
    """Where the ids of one piece lie: in which worker's scratch file, from where to where."""

    worker: int
    start: int
    stop: int
    breaks: int
    opens: bool  # with a break
    closes: bool  # with a break
    carry: Carry
    cost: int


def _fresh() -> Carry:
    state = np.zeros(kernels.TEXT_STATE.stop, np.int64)
    state[kernels.HASH], state[kernels.BLANK] = kernels.HASH_OF_NOTHING, 1
    return Carry(state, np.empty(0, np.uint8))


class EncodeWorker:
    """One table of types, one scratch file, and the kernel between them."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.types = TypeTable()
        self.ids = ArrayAppender(path, np.uint32)
        self._out = np.empty(0, np.uint32)

    def encode(self, piece: TextPiece, carry: Carry, rules: TokenizerRules) -> Segment:
        """Read one piece, write its ids and return where they are."""
        if len(self._out) < len(piece.data) + 8:  # At most one id or break a byte, and those that were pending.
            self._out = np.empty(len(piece.data) + 8, np.uint32)
        self._take_over(carry, rules)
        self._scan(piece, rules)
        if piece.is_last:
            types = self.types
            kernels.end_text(types.slots, types.arena, types.types, types.state, self._out)
        return self._finish(piece)

    def _take_over(self, carry: Carry, rules: TokenizerRules) -> None:
        self._make_room()
        used, state = self.types.used_bytes, self.types.state
        self.types.arena[used : used + len(carry.token)] = carry.token
        state[kernels.TEXT_STATE] = carry.state
        state[kernels.OUT] = state[kernels.BREAKS] = 0
        state[kernels.BAD] = -1
        state[kernels.UNIT], state[kernels.IS_STRICT] = rules.unit, rules.is_strict
        state[kernels.HAS_MARKS] = rules.has_marks

    def _make_room(self) -> None:
        # Lower case has at most half as many bytes again, and a token may have begun before.
        self.types.make_room(_SLICE_BYTES, 2 * _SLICE_BYTES + MAX_TOKEN_BYTES)

    def _scan(self, piece: TextPiece, rules: TokenizerRules) -> None:
        data, at, types = np.frombuffer(piece.data, np.uint8), 0, self.types
        tables = rules.kinds, rules.plain, rules.lower, rules.abbreviations
        while at < len(data):
            self._make_room()
            stop = min(at + _SLICE_BYTES, len(data))
            at = kernels.scan_text(
                data, at, stop, *tables, types.slots, types.arena, types.types, types.state, self._out
            )
            if types.state[kernels.BAD] >= 0:
                raise describe_bad_byte(piece, int(types.state[kernels.BAD]))

    def _finish(self, piece: TextPiece) -> Segment:
        state, used = self.types.state, self.types.used_bytes
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
    """Read texts once and return them as numbers, in scratch files inside the folder `scratch`.

    Raises CorpusError where a text cannot be read, ConfigError for an unknown encoding.

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
    """Read streams once, as `encode_corpus` reads those of texts; no window crosses from one to the next."""
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
    """Hand every piece to the pool; one that goes on inside a line waits for the one before it."""
    idle: SimpleQueue[EncodeWorker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def encode(piece: TextPiece, before: Future[Segment] | None) -> Segment:
        carry = before.result().carry if before else _fresh()
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
    except CorpusError as error:  # It comes after the errors of the pieces before it.
        failed: Future[Segment] = Future()
        failed.set_exception(error)
        yield failed


class EncodedCorpus:
    """A corpus as numbers, in scratch files, with its types and their counts."""

    def __init__(self, workers: list[EncodeWorker], segments: list[Segment]) -> None:
        self._segments = [segment for segment in segments if segment.stop > segment.start]
        self._ids = [open_array(worker.ids.path) for worker in workers]
        self._types = workers[0].types
        same = np.arange(len(self._types), dtype=np.uint32)
        self._numbers = [same] + [self._types.merge(worker.types.pack()) for worker in workers[1:]]
        self.token_count: int = self._types.token_count
        self.unit_count: int = self._count_units()

    def _count_units(self) -> int:
        """Every unit ends in a break; two that meet between pieces are one, and the first text has none before it."""
        units, is_broken = 0, True
        for segment in self._segments:
            units += segment.breaks - (segment.opens and is_broken)
            is_broken = segment.closes
        return units

    @property
    def type_count(self) -> int:
        """Distinct tokens."""
        return len(self._types)

    def pack_types(self) -> PackedTypes:
        """Return the types and their counts, to be merged with those of other texts."""
        return self._types.pack()

    def counts(self, min_count: int = 1) -> dict[str, int]:
        """Return the tokens seen `min_count` times or more with their counts, in no particular order."""
        return self._types.counts(min_count)

    def write_ids(self, vocabulary: Vocabulary, *, keep_gaps: bool, path: Path, threads: int) -> NDArray[np.uint32]:
        """Write the corpus in order as ids of a vocabulary, and return it mapped from the file.

        BREAK stands between units, never twice in a row and at neither end; tokens outside the vocabulary are left
        out, or are GAP where `keep_gaps`.
        """
        numbers = self._vocabulary_ids(vocabulary, GAP if keep_gaps else BREAK)
        parts = [
            (numbers[segment.worker], self._ids[segment.worker][start : min(start + _MAP_IDS, segment.stop)])
            for segment in self._segments
            for start in range(segment.start, segment.stop, _MAP_IDS)
        ]
        file, is_broken = ArrayAppender(path, np.uint32), False
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
        """Return, for each worker, the vocabulary id of each of its types."""
        ids = np.full(len(self._types), unknown, np.uint32)
        found = self._types.find(vocabulary.tokens)
        ids[found[found >= 0]] = np.flatnonzero(found >= 0)
        return [ids[numbers] for numbers in self._numbers]


def _map_part(numbers: NDArray[np.uint32], ids: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], bool, bool]:
    out = np.empty(len(ids), np.uint32)
    size, opens, closes = kernels.map_ids(ids, numbers, out)
    return out[:size], bool(opens), bool(closes)
