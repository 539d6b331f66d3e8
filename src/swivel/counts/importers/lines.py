"""Read text files, compressed or not, in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swivel.config import CorpusConfig
from swivel.corpus.sources import STDIN
from swivel.corpus.streams import open_streams
from swivel.errors import CountsError

MAX_LINE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines, each with a line feed at its end; `first` is the number of the first line, from 1."""

    name: str
    first: int
    data: bytes
    cost: int

    def place(self, index: int) -> str:
        """Return the file and number of a line, for error messages."""
        return f"{self.name}, line {self.first + index:,}"

    def lines(self) -> list[bytes]:
        """Return the lines without their line feeds."""
        return self.data.split(b"\n")[:-1]

    def without_lines(self, count: int) -> LineBlock:
        """Return the block without its first lines."""
        return LineBlock(self.name, self.first + count, self.data.split(b"\n", count)[count], self.cost)

    def decode(self, text: bytes, index: int) -> str:
        """Return a text of the line at an index as a string."""
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{text[error.start]:02x} at column {error.start + 1}"
            raise CountsError(f"{self.place(index)}: not valid UTF-8 ({wrong}); convert the file first") from None


def read_lines(file: Path) -> Iterator[LineBlock]:
    """Yield the lines of a file in blocks of about a megabyte, with LF line ends and no byte order mark."""
    name = "standard input" if file == STDIN else str(file)
    begun_line = b""  # the start of a line that continues in the next block
    cost = 0
    first = 1

    for stream in open_streams(file, CorpusConfig()):
        for block in stream.blocks():
            cost += block.cost
            whole, feed, rest = block.data.rpartition(b"\n")
            if not feed:
                begun_line += rest
            else:
                lines = LineBlock(name, first, _with_feeds(begun_line + whole), cost)
                yield lines
                first += lines.data.count(b"\n")
                begun_line = rest
                cost = 0

            if len(begun_line) > MAX_LINE_BYTES:
                raise CountsError(f"{name}, line {first:,}: longer than {MAX_LINE_BYTES:,} bytes; is this a text file?")

    if begun_line:
        yield LineBlock(name, first, _with_feeds(begun_line), cost)


def _with_feeds(data: bytes) -> bytes:
    """Return `data` with LF line ends, also at the end of the last line."""
    data += b"\n"
    return data.replace(b"\r\n", b"\n") if b"\r" in data else data
