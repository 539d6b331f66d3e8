"""A corpus cut for several machines: ranges of files, each of whole units, that are read apart.

Receives files, hands on `FileRange`s, groups of them of about equal size, and what `encode` makes of a group. Where a
range really begins and ends is found by who reads it: behind the first line end (for documents: the first blank line)
from its nominal place on, so that nobody has to look into the files first, and nothing is read twice or left out. A
compressed file, or one in another encoding than UTF-8, is one range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from swivel.config import CorpusConfig
from swivel.corpus.remote import clear_remote_errors
from swivel.corpus.sources import (
    BLOCK_BYTES,
    PACKED_SUFFIXES,
    Stream,
    TextBlock,
    TextFile,
    drop_bom,
    file_stream,
    find_codec,
    open_file,
    text_size,
)
from swivel.errors import CorpusError

if TYPE_CHECKING:
    from swivel.corpus.encode import EncodedCorpus

_SCAN_BYTES = 1 << 16
_MARKS = {"document": (b"\n\n", b"\n\r\n")}  # behind one of them no unit goes on; other blank lines are no matter
_LINE = (b"\n",)


@dataclass(frozen=True, slots=True)
class FileRange:
    """From `start` up to `stop` of a file, nominally; None where it is read whole. `cost`: its bytes of text, about."""

    file: TextFile
    start: int
    stop: int | None
    cost: int


def cut_files(files: Iterable[TextFile], config: CorpusConfig, range_bytes: int) -> list[FileRange]:
    """Return ranges of about `range_bytes` that together are the files, in order."""
    can_cut = find_codec(config.encoding).name in ("utf-8", "utf-8-sig")
    return [part for file in files for part in _cut_file(file, range_bytes, can_cut=can_cut)]


def _cut_file(file: TextFile, range_bytes: int, *, can_cut: bool) -> Iterator[FileRange]:
    size = text_size(file)
    if not can_cut or file.suffix.lower() in PACKED_SUFFIXES:
        yield FileRange(file, 0, None, size)
        return
    count = max(1, -(-size // range_bytes))
    for number in range(count):
        start, stop = size * number // count, size * (number + 1) // count
        yield FileRange(file, start, stop if stop < size else None, stop - start)


def group_ranges(ranges: Iterable[FileRange], group_bytes: int) -> list[tuple[FileRange, ...]]:
    """Return the ranges in order, in groups of about `group_bytes`: many small files are one piece of work."""
    groups: list[list[FileRange]] = []
    size = 0
    for part in ranges:
        if not groups or size + part.cost > group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.cost
    return [tuple(group) for group in groups]


def encode_ranges(ranges: tuple[FileRange, ...], config: CorpusConfig, *, scratch: Path) -> EncodedCorpus:
    """Read ranges on one thread; raise CorpusError, with the line of the file, where one cannot be read."""
    from swivel.corpus.encode import encode_streams

    def encode(parts: tuple[FileRange, ...]) -> EncodedCorpus:
        return encode_streams([open_range(part, config) for part in parts], config, scratch=scratch, threads=1)

    try:
        return encode(ranges)
    except CorpusError:
        if all(part.start == 0 for part in ranges):
            raise
        encode(tuple(replace(part, start=0) for part in ranges))  # The same error, with lines counted from the first.
        raise


def open_range(part: FileRange, config: CorpusConfig) -> Stream:
    """Return the stream of a range."""
    if part.start == 0 and part.stop is None:
        return file_stream(part.file, find_codec(config.encoding), config)
    marks = _MARKS.get(config.unit, _LINE)

    def read() -> Iterator[TextBlock]:
        blocks = _read_between(part, marks)
        return drop_bom(blocks) if part.start == 0 else blocks

    return Stream(str(part.file), read, part.cost)


def _read_between(part: FileRange, marks: tuple[bytes, ...]) -> Iterator[TextBlock]:
    with open_file(part.file) as raw, clear_remote_errors(str(part.file)):
        first: int | None = 0
        if part.start:
            first = _find_cut(raw, part.start, part.stop, marks)
        if first is None:
            return  # One unit goes from before this range to behind it: it belongs to the range where it begins.
        last = None if part.stop is None else _find_cut(raw, part.stop, None, marks)
        raw.seek(first)
        while last is None or first < last:
            data = raw.read(BLOCK_BYTES if last is None else min(BLOCK_BYTES, last - first))
            if not data:
                return
            first += len(data)
            yield TextBlock(data, len(data))


def _find_cut(raw: IO[bytes], place: int, stop: int | None, marks: tuple[bytes, ...]) -> int | None:
    """Return the end of the first mark that begins less than a mark's length before `place` or later, up to `stop`.

    It depends on the place alone, and a later place has no earlier cut: neighbours agree on where they meet.
    """
    longest = max(map(len, marks))
    at = max(place - longest, 0)
    raw.seek(at)
    held = b""
    while stop is None or at < stop:
        data = raw.read(_SCAN_BYTES if stop is None else min(_SCAN_BYTES, stop - at))
        if not data:
            return None
        text = held + data
        ends = [text.find(mark) + len(mark) for mark in marks if mark in text]
        if ends:
            return at - len(held) + min(ends)
        held = text[len(text) - min(longest - 1, len(text)) :]
        at += len(data)
    return None
