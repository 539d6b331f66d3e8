"""Streams cut into pieces that workers can take apart.

Receives `Stream`s, hands on `TextPiece`s. A piece ends at a line end where there is one, and then the next can be read
without knowing this one; else it ends at some code point and the next one goes on where it stopped, so that a line
of any length needs no more memory than any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from swivel.corpus.sources import Stream, TextPlace
from swivel.errors import CorpusError

_MOST_CONTINUATION = 3  # bytes of a code point behind its first


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Bytes of one stream, and where they stood in it."""

    data: bytes
    stream: Stream
    place: TextPlace
    items_before: int
    cost: int
    is_continued: bool = False  # the piece before it was cut inside a line
    is_last: bool = False


def cut_stream(stream: Stream, piece_bytes: int) -> Iterator[TextPiece]:
    """Yield the pieces of a stream, each of about `piece_bytes`; the last one, maybe empty, says so."""
    mark = b"\xff" if stream.has_marks else b"\n"
    place, items, is_continued = TextPlace(), 0, False
    for data, cost in _gather(stream, mark, piece_bytes):
        yield TextPiece(data, stream, replace(place), items, cost, is_continued)
        is_continued = not data.endswith(mark)
        if stream.has_marks:
            items += data.count(mark)
        else:
            place.move(data)
    yield TextPiece(b"", stream, place, items, 0, is_continued, is_last=True)


def _gather(stream: Stream, mark: bytes, piece_bytes: int) -> Iterator[tuple[bytes, int]]:
    held, size, cost = [b""], 0, 0
    for block in stream.blocks():
        held.append(block.data)
        size, cost = size + len(block.data), cost + block.cost
        if size < piece_bytes + _MOST_CONTINUATION:
            continue
        data, start = b"".join(held), 0
        while len(data) - start >= piece_bytes + _MOST_CONTINUATION:
            stop = _find_cut(data, start, start + piece_bytes, mark)
            yield data[start:stop], cost
            start, cost = stop, 0
        held, size = [data[start:]], len(data) - start
    if size:
        yield b"".join(held), cost


def _find_cut(data: bytes, start: int, stop: int, mark: bytes) -> int:
    """Return the end of the last line before `stop`, else the first place from there that splits no code point."""
    after_line = data.rfind(mark, start, stop) + 1
    if after_line > 0:
        return after_line
    following = data[stop : stop + _MOST_CONTINUATION]
    return stop + next((at for at, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))


def describe_bad_byte(piece: TextPiece, at: int) -> CorpusError:
    """Return the error that says where a byte of a piece is not UTF-8."""
    if piece.stream.has_marks:
        item = piece.items_before + piece.data.count(b"\xff", 0, at) + 1
        return CorpusError(f"item {item}: a lone surrogate, which UTF-8 cannot hold; pass errors='replace'")
    place = replace(piece.place)
    place.move(piece.data[:at])
    return CorpusError(
        f"{piece.stream.name}, line {place.line}: not valid UTF-8 (byte 0x{piece.data[at]:02x} at column "
        f"{place.column}); pass --encoding or --errors replace"
    )
