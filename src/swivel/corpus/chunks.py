"""Streams cut into pieces that can be tokenized in parallel.

A piece ends at a line end if possible; the next piece can then be tokenized independently. Otherwise it ends at a code
point inside a line, and the next piece continues from the state at its end. A line of any length therefore needs no
more memory than a piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from swivel.corpus.sources import Stream, TextPlace
from swivel.errors import CorpusError

_MAX_CONTINUATION_BYTES = 3  # of a code point in UTF-8


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some bytes of a stream.

    Attributes
    ----------
    data
        Bytes of UTF-8.
    stream
        The stream, for error messages.
    place
        Line and column of the first byte.
    items_before
        Number of texts before the piece, in a stream from memory.
    cost
        Bytes of the source, for progress bars.
    is_continued
        Whether the previous piece was cut inside a line.
    is_last
        Whether the stream ends here.
    """

    data: bytes
    stream: Stream
    place: TextPlace
    items_before: int
    cost: int
    is_continued: bool = False
    is_last: bool = False


def cut_stream(stream: Stream, piece_bytes: int) -> Iterator[TextPiece]:
    """Yield the pieces of a stream, each of about `piece_bytes`; an empty piece with `is_last` ends it."""
    mark = b"\xff" if stream.has_marks else b"\n"
    place = TextPlace()
    items = 0
    is_continued = False

    for data, cost in _gather(stream, mark, piece_bytes):
        yield TextPiece(data, stream, replace(place), items, cost, is_continued)

        is_continued = not data.endswith(mark)
        if stream.has_marks:
            items += data.count(mark)
        else:
            place.move(data)

    yield TextPiece(b"", stream, place, items, 0, is_continued, is_last=True)


def _gather(stream: Stream, mark: bytes, piece_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes and the cost of each piece, from blocks of any size."""
    held = [b""]
    size = 0
    cost = 0

    for block in stream.blocks():
        held.append(block.data)
        size += len(block.data)
        cost += block.cost
        if size < piece_bytes + _MAX_CONTINUATION_BYTES:
            continue

        data = b"".join(held)
        start = 0
        while len(data) - start >= piece_bytes + _MAX_CONTINUATION_BYTES:
            stop = _find_cut(data, start, start + piece_bytes, mark)
            yield data[start:stop], cost
            start = stop
            cost = 0

        held = [data[start:]]
        size = len(data) - start

    if size:
        yield b"".join(held), cost


def _find_cut(data: bytes, start: int, stop: int, mark: bytes) -> int:
    """Return the end of the last line before `stop`, or else the first position from `stop` on between code points."""
    after_line = data.rfind(mark, start, stop) + 1
    if after_line > 0:
        return after_line

    following = data[stop : stop + _MAX_CONTINUATION_BYTES]
    for offset, byte in enumerate(following):
        if byte & 0xC0 != 0x80:  # not a continuation byte
            return stop + offset
    return stop + len(following)


def describe_bad_byte(piece: TextPiece, at: int) -> CorpusError:
    """Return the error for invalid UTF-8 at a byte of a piece, with its line and column or its item."""
    if piece.stream.has_marks:
        item = piece.items_before + piece.data.count(b"\xff", 0, at) + 1
        return CorpusError(f"item {item}: contains a lone surrogate, which UTF-8 cannot encode; pass errors='replace'")

    place = replace(piece.place)
    place.move(piece.data[:at])
    return CorpusError(
        f"{piece.stream.name}, line {place.line}: not valid UTF-8 (byte 0x{piece.data[at]:02x} at column "
        f"{place.column}); pass encoding (--encoding) or errors='replace' (--errors replace)"
    )
