"""A corpus cut into file ranges of whole units, which several machines read independently.

A range has nominal offsets. Its reader finds the real ones: each offset moves to the end of the first line (for
documents: the first blank line) that ends after it. Neighboring ranges therefore meet at the same byte, and the files
need not be read in advance. A compressed file, or a file that is not in UTF-8, is a single range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swivel.config import CorpusConfig
from swivel.corpus.sources import PACKED_SUFFIXES, open_file, text_size
from swivel.corpus.streams import BLOCK_BYTES, UTF8, Stream, drop_bom, file_stream, find_codec
from swivel.errors import CorpusError, clear_errors

_SCAN_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file, with nominal offsets in bytes."""

    file: Path
    start: int
    stop: int | None  # None for the end of the file
    cost: int  # approximate number of bytes of text


def cut_files(files: Iterable[Path], config: CorpusConfig, range_bytes: int) -> list[FileRange]:
    """Return ranges of about `range_bytes` that cover the files in order."""
    is_utf8 = find_codec(config.encoding).name in UTF8
    ranges = []

    for file in files:
        size = text_size(file)
        can_cut = is_utf8 and file.suffix.lower() not in PACKED_SUFFIXES
        count = max(1, -(-size // range_bytes)) if can_cut else 1

        for number in range(count):
            start = size * number // count
            stop = size * (number + 1) // count
            ranges.append(FileRange(file, start, stop if number < count - 1 else None, stop - start))

    return ranges


def group_ranges(ranges: Iterable[FileRange], group_bytes: int) -> list[tuple[FileRange, ...]]:
    """Return the ranges in order, in groups of about `group_bytes`, so that many small files form one task."""
    groups: list[list[FileRange]] = []
    size = 0

    for part in ranges:
        if not groups or size + part.cost > group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.cost

    return [tuple(group) for group in groups]


def open_range(part: FileRange, config: CorpusConfig) -> Stream:
    """Return the stream of a range, which is read lazily."""
    if part.start == 0 and part.stop is None:
        return file_stream(part.file, find_codec(config.encoding), config)

    # Byte sequences after which a unit has ended. Blank lines of other forms need not be recognized.
    unit_ends = (b"\n\n", b"\n\r\n") if config.unit == "document" else (b"\n",)

    def read(stream: Stream) -> Iterator[bytes]:
        blocks = _read_between(part, unit_ends, stream)
        return drop_bom(blocks) if part.start == 0 else blocks

    return Stream(str(part.file), read, part.cost)


def _read_between(part: FileRange, unit_ends: tuple[bytes, ...], stream: Stream) -> Iterator[bytes]:
    """Yield the bytes of the units that start in a range."""
    with open_file(part.file) as raw, clear_errors(part.file, CorpusError):
        position = _find_cut(raw, part.start, part.stop, unit_ends) if part.start else 0
        if position is None:
            return  # A single unit spans the whole range; it belongs to the range where it starts.
        stop = None if part.stop is None else _find_cut(raw, part.stop, None, unit_ends)

        raw.seek(position)
        while stop is None or position < stop:
            data = raw.read(BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - position))
            if not data:
                return
            position += len(data)
            stream.read_bytes += len(data)
            yield data


def _find_cut(raw: IO[bytes], offset: int, stop: int | None, unit_ends: tuple[bytes, ...]) -> int | None:
    """Return the position after the first unit end at or after `offset`, or None if there is none before `stop`."""
    # The search starts the length of the longest unit end before `offset`. The result depends on `offset` alone and
    # does not decrease with it, so neighboring ranges agree on the position where they meet.
    longest = max(map(len, unit_ends))
    position = max(offset - longest, 0)
    raw.seek(position)

    tail = b""  # the last bytes of the previous block: a unit end may span two blocks
    while stop is None or position < stop:
        data = raw.read(_SCAN_BYTES if stop is None else min(_SCAN_BYTES, stop - position))
        if not data:
            return None

        text = tail + data
        ends = [text.find(unit_end) + len(unit_end) for unit_end in unit_ends if unit_end in text]
        if ends:
            return position - len(tail) + min(ends)

        tail = text[len(text) - min(longest - 1, len(text)) :]
        position += len(data)

    return None
