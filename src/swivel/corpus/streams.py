"""Streams of text: files, compressed files, standard input and iterables, cut into pieces.

Every source becomes a `Stream`, a named sequence of UTF-8 bytes. Texts in memory become bytes, too: 0xFF, which does
not occur in UTF-8, ends each text or list of tokens, and 0xFE separates the tokens of a list.

Pieces of a stream can be tokenized in parallel. A piece ends at a line end if possible; the next piece can then be
tokenized independently. Otherwise it ends at a code point inside a line, and the next piece continues from the state at
its end. A line of any length therefore needs no more memory than a piece.

Tables and lists are read line by line; a line ends at a line feed, a carriage return, or both.

Several machines read file ranges of whole units independently. A range has nominal offsets. Its reader finds the real
ones: each offset moves to the end of the first line (for documents: the first blank line) that ends after it.
Neighboring ranges therefore meet at the same byte, and the files need not be read in advance. A compressed file, or a
file that is not in UTF-8, is a single range.
"""

from __future__ import annotations

import bz2
import codecs
import importlib.util
import itertools
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from swivel.config import CorpusConfig
from swivel.corpus.normalization import find_character
from swivel.corpus.sources import (
    FILE_TYPES,
    PACKED_SUFFIXES,
    STDIN,
    TEXT_IN_MEMORY,
    TextFile,
    Texts,
    check_items,
    clear_file_errors,
    files_of,
    is_missing,
    list_files,
    open_file,
    size_of,
    text_size,
)
from swivel.errors import ConfigError, CorpusError, CountsError, SwivelError, missing_extra
from swivel.runtime.progress import Task
from swivel.runtime.resources import format_bytes

BLOCK_BYTES = 1 << 20
PIECE_BYTES = 1 << 20  # small enough for the cache of a core
UTF8 = ("utf-8", "utf-8-sig")  # names of codecs
_MAX_CONTINUATION_BYTES = 3  # of a code point in UTF-8
SEPARATOR = "swivel.separator"
_XZ_BYTES = 1 << 30  # memory for decompression; files of `xz -9` take 65 MiB

MAX_LINE_BYTES = 1 << 26  # of a table, a list, or texts to encode; a line takes up to 16 times its size in memory
_SCAN_BYTES = 1 << 16  # searched for the end of a unit at a time


def _start_zstd() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


# Formats of compressed files: name, decompressor, and how many bytes it takes and returns at a time, because a few may
# become gigabytes. That of zstd knows no limit; 4 bytes become 128 KiB at most, so that 256 become 8 MiB.
_COMPRESSIONS: dict[str, tuple[str, Callable[[], Any], int, tuple[int, ...]]] = {
    ".gz": ("gzip", lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), 1 << 16, (BLOCK_BYTES,)),
    ".bz2": ("bzip2", bz2.BZ2Decompressor, 1 << 16, (BLOCK_BYTES,)),
    ".xz": ("xz", lambda: lzma.LZMADecompressor(memlimit=_XZ_BYTES), 1 << 16, (BLOCK_BYTES,)),
    ".zst": ("zstd", _start_zstd, 1 << 8, ()),
}


@dataclass(slots=True)
class Stream:
    """A named sequence of blocks of UTF-8."""

    name: str  # for error messages
    read: Callable[[Stream], Iterator[bytes]]  # opens the source, and adds what is read of it to `read_bytes`
    size: int | None = None  # in bytes; None if unknown
    has_marks: bool = False  # whether 0xFE and 0xFF end tokens and texts, because the source is in memory
    is_tokenized: bool = False  # whether the source consists of tokens
    read_bytes: int = 0  # of the source, which may be compressed; for progress bars

    def blocks(self) -> Iterator[bytes]:
        """Open the source and yield its blocks, none of which is empty."""
        return self.read(self)


def open_streams(texts: Texts, config: CorpusConfig) -> list[Stream]:
    """Return the streams of all kinds of texts; of an iterable, only the first item is read."""
    # A missing item of an iterable (None or NaN) is an empty text. Raises CorpusError if `texts` is of the wrong type
    # or a file does not exist.
    codec = find_codec(config.encoding)
    files = files_of(texts)
    if files is not None:
        return [file_stream(file, codec, config) for file in files]

    try:
        items: Iterator[Any] = iter(texts)  # type: ignore[arg-type]
    except TypeError:
        raise CorpusError(f"texts must be a path or an iterable, got {type(texts).__name__}") from None
    if hasattr(texts, "to_pylist"):  # a column of pyarrow, whose items are scalars of its own
        items = (scalar.as_py() for scalar in items)

    # The type of the first item that is not missing determines the type of all items.
    start = []
    for item in items:
        start.append(item)
        if not is_missing(item):
            break
    items = itertools.chain(start, items)

    if start and isinstance(start[-1], FILE_TYPES):
        files = list_files(check_items(items, FILE_TYPES, "a path"))
        return [file_stream(file, codec, config) for file in files]
    if start and not isinstance(start[-1], str):
        tokens = _pack_tokens(items, config)
        return [Stream(TEXT_IN_MEMORY, lambda stream: _pack(tokens, stream), has_marks=True, is_tokenized=True)]
    return [Stream(TEXT_IN_MEMORY, lambda stream: _pack(_pack_texts(items), stream), has_marks=True)]


def find_codec(encoding: str) -> codecs.CodecInfo:
    """Return the Python codec of a text encoding; raise ConfigError if there is none."""
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError):
        raise ConfigError(
            f"encoding must be the name of a Python codec, such as utf-8 or latin-1, got {encoding!r}",
            argument="encoding",
        ) from None
    if not getattr(codec, "_is_text_encoding", True):
        raise ConfigError(
            f"encoding must be a text encoding, such as utf-8 or latin-1, got {encoding!r}", argument="encoding"
        )
    return codec


def file_stream(file: TextFile, codec: codecs.CodecInfo, config: CorpusConfig) -> Stream:
    """Return the stream of a file, which is opened when the stream is read."""
    name = "standard input" if file == STDIN else str(file)

    def read(stream: Stream) -> Iterator[bytes]:
        blocks = _read_file(file, stream)
        return drop_bom(blocks if codec.name in UTF8 else _transcode(blocks, name, codec, config))

    return Stream(name, read, size_of(file))


def _read_file(file: TextFile, stream: Stream) -> Iterator[bytes]:
    raw = sys.stdin.buffer if file == STDIN else open_file(file)
    suffix = file.suffix.lower()
    blocks = _read_blocks(raw, stream)
    try:
        yield from _decompress(blocks, stream.name, suffix) if suffix in _COMPRESSIONS else blocks
    finally:
        if file != STDIN:
            raw.close()


def _read_blocks(raw: IO[bytes], stream: Stream) -> Iterator[bytes]:
    while True:
        with clear_file_errors(stream.name):
            data = raw.read(BLOCK_BYTES)
        if not data:
            return
        stream.read_bytes += len(data)
        yield data


def _decompress(blocks: Iterator[bytes], name: str, suffix: str) -> Iterator[bytes]:
    """Yield the decompressed blocks of a file, which may have several streams with zeros between them."""
    kind, start, taken_bytes, limit = _COMPRESSIONS[suffix]
    if suffix == ".zst" and importlib.util.find_spec("zstandard") is None:
        raise missing_extra(f"{name}: .zst files", "zstandard", "zstd")

    stream = start()
    is_open = False  # whether the last stream is incomplete
    for block in blocks:
        for first in range(0, len(block), taken_bytes):
            rest = block[first : first + taken_bytes]
            data = b"x"
            # A decompressor that may not return everything at once keeps the rest itself, or returns it (zlib).
            while rest or data:
                if stream.eof:
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    stream = start()
                try:
                    data = stream.decompress(rest, *limit)
                except Exception as error:  # Each library raises its own.
                    raise _describe_damage(name, kind, error) from error

                is_open = not stream.eof
                rest = stream.unused_data if stream.eof else getattr(stream, "unconsumed_tail", b"")
                if data:
                    yield data

    if is_open:
        raise _describe_damage(name, kind, "it is truncated")


def _describe_damage(name: str, kind: str, reason: object) -> CorpusError:
    if "usage limit" in str(reason):  # of xz
        limit = format_bytes(_XZ_BYTES)
        return CorpusError(
            f"{name}: needs more than {limit} of memory to decompress; compress it with a smaller dictionary, such as "
            "that of xz -9"
        )
    return CorpusError(f"{name}: not a {kind} file, or damaged ({reason})")


def drop_bom(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks without the UTF-8 byte order mark that some files start with."""
    pending = b""
    for block in blocks:
        pending += block
        if len(pending) >= len(codecs.BOM_UTF8):
            if text := pending.removeprefix(codecs.BOM_UTF8):
                yield text
            yield from blocks
            return

    if pending:
        yield pending


codecs.register_error(SEPARATOR, lambda error: ("\0", error.end))  # type: ignore[attr-defined]


def _transcode(blocks: Iterator[bytes], name: str, codec: codecs.CodecInfo, config: CorpusConfig) -> Iterator[bytes]:
    """Convert blocks from another encoding to UTF-8; invalid bytes become NUL, which separates tokens."""
    assert codec.incrementaldecoder is not None  # true for all text encodings of Python
    decoder = codec.incrementaldecoder("strict" if config.errors == "strict" else SEPARATOR)
    lines = 0  # before the block
    after_return = False

    # The last call is the final one: an earlier one would treat half a character at the end of a block as an error.
    for block in itertools.chain(blocks, [b""]):
        try:
            data = decoder.decode(block, final=not block).encode("utf-8", "surrogatepass")
        except UnicodeError as error:
            byte = None
            if isinstance(error, UnicodeDecodeError):
                byte = error.object[error.start]
                with suppress(UnicodeError):  # Some codecs cannot ignore errors; the line is then that of the block.
                    before = codec.decode(error.object[: error.start], "ignore")[0].encode()
                    lines += _count_lines(before, after_return=after_return)
            raise _encoding_error(name, lines + 1, codec.name, byte) from error

        if data:
            lines += _count_lines(data, after_return=after_return)
            after_return = data.endswith(b"\r")
            yield data


def _encoding_error(name: str, line: int, encoding: str, byte: int | None) -> CorpusError:
    where = "" if byte is None else f" (byte 0x{byte:02x})"
    return CorpusError(
        f"{name}, line {line}: not valid {encoding}{where}; pass encoding or errors='replace'", argument="encoding"
    )


def _count_lines(text: bytes, *, after_return: bool = False) -> int:
    """Return the number of line ends in UTF-8: line feeds, carriage returns, or both."""
    # A line feed at the start may belong to a carriage return at the end of the text before.
    lines = text.count(b"\n")
    if b"\r" in text:  # Few texts have any, and counting pairs of bytes takes longer than everything else.
        lines += text.count(b"\r") - text.count(b"\r\n")
    return lines - (after_return and text.startswith(b"\n"))


def _pack(parts: Iterator[bytes], stream: Stream) -> Iterator[bytes]:
    """Join parts to blocks of at least BLOCK_BYTES, because a block for each short text would take twice the time."""
    pending: list[bytes] = []
    size = 0

    for part in parts:
        pending.append(part)
        size += len(part)
        stream.read_bytes += len(part)
        if size >= BLOCK_BYTES:
            yield b"".join(pending)
            pending = []
            size = 0

    if size:
        yield b"".join(pending)


def _pack_texts(items: Iterable[Any]) -> Iterator[bytes]:
    for text in check_items(("" if is_missing(item) else item for item in items), str, "a string"):
        for start in range(0, len(text), BLOCK_BYTES):
            yield text[start : start + BLOCK_BYTES].encode("utf-8", "surrogatepass")
        yield b"\xff"


def _pack_tokens(items: Iterable[Any], config: CorpusConfig) -> Iterator[bytes]:
    for number, item in enumerate(items, 1):
        tokens = () if is_missing(item) else item
        if isinstance(tokens, bytes):
            raise CorpusError(f"item {number}: expected a string or a list of tokens, got bytes; decode them first")
        if isinstance(tokens, (str, Mapping)) or not isinstance(tokens, Iterable):
            raise CorpusError(f"item {number}: expected a list of tokens, got {type(tokens).__name__}")

        try:
            yield b"\xfe".join([token.encode("utf-8", config.errors) for token in tokens]) + b"\xff"
        except (AttributeError, TypeError):
            raise CorpusError(f"item {number}: all tokens must be strings") from None
        except UnicodeEncodeError:
            raise CorpusError(
                f"item {number}: a token contains a lone surrogate, which UTF-8 cannot encode; pass errors='replace'"
            ) from None


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some bytes of a stream, in UTF-8."""

    data: bytes
    stream: Stream  # for error messages
    number: int  # of the line that the piece starts with, or of the text if the stream is from memory, from 1
    is_continued: bool = False  # whether the previous piece was cut inside a line
    is_last: bool = False  # whether the stream ends here


def cut_stream(stream: Stream, piece_bytes: int) -> Iterator[TextPiece]:
    """Yield the pieces of a stream, each of about `piece_bytes`; an empty piece with `is_last` ends it."""
    mark = b"\xff" if stream.has_marks else b"\n"
    number = 1
    is_continued = False

    for data in _gather(stream, mark, piece_bytes):
        yield TextPiece(data, stream, number, is_continued)

        is_continued = not data.endswith(mark)
        number += data.count(mark) if stream.has_marks else _count_lines(data)

    yield TextPiece(b"", stream, number, is_continued, is_last=True)


def _gather(stream: Stream, mark: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of each piece, from blocks of any size."""
    pending = [b""]
    size = 0

    for block in stream.blocks():
        pending.append(block)
        size += len(block)
        if size < piece_bytes + _MAX_CONTINUATION_BYTES:
            continue

        data = b"".join(pending)
        start = 0
        while len(data) - start >= piece_bytes + _MAX_CONTINUATION_BYTES:
            stop = _find_cut(data, start, start + piece_bytes, mark)
            if stop is None:  # The next block shows where.
                break
            yield data[start:stop]
            start = stop

        pending = [data[start:]]
        size = len(data) - start

    if size:
        yield b"".join(pending)


def _find_cut(data: bytes, start: int, stop: int, mark: bytes) -> int | None:
    """Return the end of the last line before `stop`, or else the first position from `stop` on between characters.

    None if that may be after the data.
    """
    after_line = data.rfind(mark, start, stop) + 1
    if after_line > 0:
        return after_line

    return find_character(data, stop)


def describe_bad_byte(piece: TextPiece, at: int) -> CorpusError:
    """Return the error for invalid UTF-8 at a byte of a piece, with its line or its item."""
    before = piece.data[:at]
    if piece.stream.has_marks:
        item = piece.number + before.count(b"\xff")
        return CorpusError(f"item {item}: contains a lone surrogate, which UTF-8 cannot encode; pass errors='replace'")

    name = piece.stream.name
    if piece.number == 1 and piece.data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return CorpusError(f"{name}: looks like UTF-16; pass encoding='utf-16'")
    if b"\0" in piece.data:
        return CorpusError(
            f"{name}: looks binary, not text; leave it out, or pass encoding if it is text", argument="encoding"
        )
    return _encoding_error(name, piece.number + _count_lines(before), "UTF-8", piece.data[at])


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines, each with a line feed at its end; `first` is the number of the first line, from 1."""

    name: str
    first: int
    data: bytes

    def place(self, index: int) -> str:
        """Return the file and number of a line, for error messages."""
        return f"{self.name}, line {self.first + index:,}"

    def lines(self) -> list[bytes]:
        """Return the lines without their line feeds."""
        return self.data.split(b"\n")[:-1]

    def without_lines(self, count: int) -> LineBlock:
        """Return the block without its first lines."""
        return LineBlock(self.name, self.first + count, self.data.split(b"\n", count)[count])

    def decode(self, text: bytes, index: int) -> str:
        """Return a text of the line at an index as a string."""
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{text[error.start]:02x}"
            raise CountsError(f"{self.place(index)}: not valid UTF-8 ({wrong}); convert the file first") from None


def read_table_lines(file: Path, task: Task | None = None) -> Iterator[LineBlock]:
    """Yield the lines of a table in a text file in blocks of about a megabyte, and report its bytes as progress."""
    for stream in open_streams(file, CorpusConfig()):
        reported = 0
        for block in _split_lines(stream, CountsError):
            yield block
            if task is not None:
                task.advance(stream.read_bytes - reported)
                reported = stream.read_bytes


def read_lines(path: str | TextFile, config: CorpusConfig | None = None) -> Iterator[str]:
    """Yield the lines of the files of a path, which may be compressed; "-" is standard input.

    Raises CorpusError for invalid bytes; with `errors="replace"`, they become NUL, which separates tokens.
    """
    config = config or CorpusConfig()
    for stream in open_streams(path, config):
        for block in _split_lines(stream, CorpusError):
            try:
                text = block.data.decode("utf-8", "strict" if config.errors == "strict" else SEPARATOR)
            except UnicodeDecodeError as error:
                piece = TextPiece(block.data, stream, block.first)
                raise describe_bad_byte(piece, error.start) from error
            yield from text.split("\n")[:-1]


def _split_lines(stream: Stream, error: type[SwivelError]) -> Iterator[LineBlock]:
    """Yield the lines of a stream; raise an error of the given type for one that is too long."""
    begun: list[bytes] = []  # the parts of a line that continues in the next block
    after_return = False
    first = 1

    for block in stream.blocks():
        # A line feed at the start may belong to a carriage return at the end of the block before.
        data = block[1:] if after_return and block.startswith(b"\n") else block
        after_return = block.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

        whole, feed, rest = data.rpartition(b"\n")
        if feed:
            lines = LineBlock(stream.name, first, b"".join([*begun, whole, feed]))
            yield lines
            first += lines.data.count(b"\n")
            begun = []

        begun.append(rest)
        if sum(map(len, begun)) > MAX_LINE_BYTES:
            raise error(f"{stream.name}, line {first:,}: longer than {MAX_LINE_BYTES:,} bytes; is this a text file?")

    if any(begun):
        yield LineBlock(stream.name, first, b"".join([*begun, b"\n"]))


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file, with nominal offsets in bytes."""

    file: TextFile
    start: int
    stop: int | None  # None for the end of the file
    cost: int  # approximate number of bytes of text


def cut_files(files: Iterable[TextFile], config: CorpusConfig, range_bytes: int) -> list[FileRange]:
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
    with open_file(part.file) as raw, clear_file_errors(part.file):
        position = _find_unit_end(raw, part.start, part.stop, unit_ends) if part.start else 0
        if position is None:
            return  # A single unit spans the whole range; it belongs to the range where it starts.
        stop = None if part.stop is None else _find_unit_end(raw, part.stop, None, unit_ends)

        raw.seek(position)
        while stop is None or position < stop:
            data = raw.read(BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - position))
            if not data:
                return
            position += len(data)
            stream.read_bytes += len(data)
            yield data


def _find_unit_end(raw: IO[bytes], offset: int, stop: int | None, unit_ends: tuple[bytes, ...]) -> int | None:
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
