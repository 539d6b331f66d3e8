"""Lines of text files, compressed or not. A line ends at a line feed, a carriage return, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swivel.config import CorpusConfig
from swivel.corpus.sources import TextFile
from swivel.corpus.streams import SEPARATOR, Stream, TextPiece, TextPlace, describe_bad_byte, open_streams
from swivel.errors import CountsError
from swivel.runtime.progress import Task
from swivel.runtime.resources import check_memory, format_bytes

MAX_LINE_BYTES = 1 << 24  # A longer line is none of a table.
_MEMORY_PER_BYTE = 16  # of a long line: its parts, the line, its characters, and what encodes them


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
            wrong = f"byte 0x{text[error.start]:02x} at column {error.start + 1}"
            raise CountsError(f"{self.place(index)}: not valid UTF-8 ({wrong}); convert the file first") from None


def read_table_lines(file: Path, task: Task | None = None) -> Iterator[LineBlock]:
    """Yield the lines of a table in a text file in blocks of about a megabyte, and report its bytes as progress."""

    def refuse_long_line(place: str, size: int) -> None:
        if size > MAX_LINE_BYTES:
            raise CountsError(f"{place}: longer than {MAX_LINE_BYTES:,} bytes; is this a text file?")

    for stream in open_streams(file, CorpusConfig()):
        reported = 0
        for block in _read_blocks(stream, refuse_long_line):
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
        for block in _read_blocks(stream, _refuse_line_beyond_memory):
            try:
                text = block.data.decode("utf-8", "strict" if config.errors == "strict" else SEPARATOR)
            except UnicodeDecodeError as error:
                piece = TextPiece(block.data, stream, TextPlace(block.first), items_before=0)
                raise describe_bad_byte(piece, error.start) from error
            yield from text.split("\n")[:-1]


def _refuse_line_beyond_memory(place: str, size: int) -> None:
    if size > MAX_LINE_BYTES:  # Asking for the free memory takes longer than reading a short line.
        check_memory(f"{place}: a line of {format_bytes(size)} or more", _MEMORY_PER_BYTE * size)


def _read_blocks(stream: Stream, refuse_line: Callable[[str, int], None]) -> Iterator[LineBlock]:
    """Yield the lines of a stream; `refuse_line` may raise an error for the place and the size of a line in bytes."""
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
        refuse_line(f"{stream.name}, line {first:,}", sum(map(len, begun)))

    if any(begun):
        yield LineBlock(stream.name, first, b"".join([*begun, b"\n"]))
