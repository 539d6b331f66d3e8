"""Text files, compressed or not, as blocks of whole lines.

Receives a file, hands on bytes and the number of their first line. It knows neither fields nor labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swivel.config import CorpusConfig
from swivel.corpus.sources import STDIN, open_streams
from swivel.errors import CountsError

LONGEST_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines, each ended by a line feed; `first` is the number of the first one, from 1."""

    name: str
    first: int
    data: bytes
    cost: int

    def place(self, index: int) -> str:
        """Return where a line is, in words."""
        return f"{self.name}, line {self.first + index:,}"


def read_lines(file: Path) -> Iterator[LineBlock]:
    """Yield a file's lines in blocks of a megabyte or so; CRLF becomes LF, a byte order mark goes."""
    name = "standard input" if file == STDIN else str(file)
    held, cost, first = b"", 0, 1
    for stream in open_streams(file, CorpusConfig()):
        for block in stream.blocks():
            cost += block.cost
            whole, feed, rest = block.data.rpartition(b"\n")
            if not feed:
                held += rest
            else:
                lines = LineBlock(name, first, _with_feeds(held + whole), cost)
                yield lines
                first, held, cost = first + lines.data.count(b"\n"), rest, 0
            if len(held) > LONGEST_LINE:
                raise CountsError(f"{name}, line {first:,}: longer than {LONGEST_LINE:,} bytes; is it text?")
    if held:
        yield LineBlock(name, first, _with_feeds(held), cost)


def _with_feeds(data: bytes) -> bytes:
    """Return lines with one line feed at the end of each."""
    data += b"\n"
    return data.replace(b"\r\n", b"\n") if b"\r" in data else data
