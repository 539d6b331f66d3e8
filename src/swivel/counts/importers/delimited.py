"""Read triples from text: a row, a column and optionally a count on each line.

A block in which all lines have the same number of fields is split with one call of `bytes.split`, about a third of a
microsecond per line. Only unusual blocks are split line by line.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.counts.importers.config import SEPARATORS, ImportConfig, pick_fields
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import Place
from swivel.counts.importers.lines import LineBlock, read_lines
from swivel.counts.importers.spill import ImportChunk
from swivel.errors import CountsError

_KNOWN_NUMBERS = 1 << 16  # cache size: counts by their text
_CSV_LINES = 1 << 15


@dataclass(frozen=True, slots=True)
class _FieldBatch:
    """Fields of some lines, `width` per line, and the number of each line."""

    name: str
    fields: list[bytes]
    width: int
    numbers: Sequence[int]
    cost: int

    def place(self, index: int) -> str:
        return f"{self.name}, line {self.numbers[index]:,}"

    def without_first(self) -> _FieldBatch:
        return _FieldBatch(self.name, self.fields[self.width :], self.width, self.numbers[1:], self.cost)


class _Numbers(dict[bytes, float]):
    """Cache of counts by their text."""

    def __missing__(self, text: bytes) -> float:
        if b"_" in text:  # float() accepts 1_000, other tools do not
            raise ValueError
        value = float(text)
        if len(self) < _KNOWN_NUMBERS:
            self[text] = value
        return value

    def parse(self, texts: list[bytes], place: Place) -> NDArray[np.float64]:
        """Return counts as numbers; raise CountsError with the place of a text that is not a number."""
        try:
            return np.fromiter(map(self.__getitem__, texts), np.float64, len(texts))
        except ValueError:
            index = next(index for index, text in enumerate(texts) if not _is_number(text))
            shown = texts[index][:40].decode(errors="backslashreplace")
            hint = "; pass header if the first line is a header" if place(index).endswith("line 1") else ""
            raise CountsError(f"{place(index)}: the count {shown!r} is not a number{hint}") from None


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return b"_" not in text


def read_triples(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a text file: `row SEPARATOR column SEPARATOR count`; without a third field the count is 1."""
    config = context.config
    numbers = _Numbers()
    batches = _read_batches(file, config, context)
    first = next(batches, None)
    if first is None:
        return

    names = None
    if config.header:
        names = [field.decode(errors="replace") for field in first.fields[: first.width]]
        first = first.without_first()

    picks = pick_fields(config, names, first.width, str(file))

    for batch in itertools.chain([first], batches):
        rows, columns, *counts = (batch.fields[pick :: batch.width] for pick in picks)
        yield ImportChunk(
            context.rows.look_up(rows, batch.place),
            context.columns.look_up(columns, batch.place),
            numbers.parse(counts[0], batch.place) if counts else None,
            batch.place,
        )


def _read_batches(file: Path, config: ImportConfig, context: ImportContext) -> Iterator[_FieldBatch]:
    """Yield the fields of a file in batches, without blank lines and comments.

    Every line must have as many fields as the first one.
    """
    blocks = read_lines(file)
    separator = b""
    width = 0

    for lines in blocks:
        if not separator:
            sample = next(_kept_lines(lines, config.comment), None)
            if sample is None:
                continue
            separator = choose_separator(file, config, sample[1])
            width = len(_split(sample[1], separator))
            if separator == b"," and b'"' in sample[1]:
                width = 0  # commas inside quotation marks do not separate; csv.reader finds the width

        if separator == b"," and b'"' in lines.data:
            yield from _read_quoted(itertools.chain([lines], blocks), config, context, width)
            return

        context.advance(lines.cost)
        even = None if config.comment else _split_evenly(lines, separator, width)
        yield even or _split_lines(lines, separator, width, config.comment)


def choose_separator(file: Path, config: ImportConfig, sample: bytes) -> bytes:
    """Return the separator: the configured one, a comma for .csv, a tab if the sample has one, else a space."""
    if config.separator is not None:
        return SEPARATORS[config.separator]
    if ".csv" in (suffix.lower() for suffix in file.suffixes[-2:]):
        return b","
    return b"\t" if b"\t" in sample else b" "


def _split(line: bytes, separator: bytes) -> list[bytes]:
    return line.split() if separator == b" " else line.split(separator)


def _kept_lines(lines: LineBlock, comment: str | None) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the lines that are not blank and not comments."""
    mark = comment.encode() if comment else None
    for number, line in enumerate(lines.data.split(b"\n"), lines.first):
        if line.strip(b" \r\v\f") and not (mark and line.startswith(mark)):
            yield number, line


def _split_evenly(lines: LineBlock, separator: bytes, width: int) -> _FieldBatch | None:
    """Return the fields of a block if every line has `width` fields, else None."""
    codes = np.frombuffer(lines.data, np.uint8)
    ends = codes == ord("\n")
    marks = np.flatnonzero(ends | (codes == ord(separator)))
    if not width or marks.size % width:
        return None

    # With `width` fields per line, every width-th separator is a line feed and no other one is.
    is_end = ends[marks].reshape(-1, width)
    blank = separator == b" " and (marks[0] == 0 or bool((np.diff(marks) == 1).any()) or b"\t" in lines.data)
    if blank or not is_end[:, -1].all() or is_end[:, :-1].any():
        return None

    fields = lines.data.replace(b"\n", separator).split(separator)
    fields.pop()
    return _FieldBatch(lines.name, fields, width, range(lines.first, lines.first + len(is_end)), lines.cost)


def _split_lines(lines: LineBlock, separator: bytes, width: int, comment: str | None) -> _FieldBatch:
    fields: list[bytes] = []
    numbers = []

    for number, line in _kept_lines(lines, comment):
        split = _split(line, separator)
        _refuse_uneven(lines.name, number, len(split), width)
        fields += split
        numbers.append(number)

    return _FieldBatch(lines.name, fields, width, numbers, lines.cost)


def _refuse_uneven(name: str, number: int, count: int, width: int) -> None:
    if count != width:
        raise CountsError(f"{name}, line {number:,}: {count} fields, but the first line has {width}")


def _read_quoted(
    blocks: Iterator[LineBlock], config: ImportConfig, context: ImportContext, width: int
) -> Iterator[_FieldBatch]:
    """Yield the rest of a .csv file with quoted fields, which may contain commas and line ends."""
    first = next(blocks)
    rows = csv.reader(_decode_lines(itertools.chain([first], blocks), context), strict=True)
    begin = first.first - 1

    while True:
        fields: list[bytes] = []
        numbers: list[int] = []

        try:
            for row in itertools.islice(rows, _CSV_LINES):
                number = begin + rows.line_num
                if not row or (config.comment and row[0].startswith(config.comment)):
                    continue
                width = width or len(row)
                _refuse_uneven(first.name, number, len(row), width)
                fields += [field.encode() for field in row]
                numbers.append(number)
        except csv.Error as error:
            raise CountsError(f"{first.name}, line {begin + rows.line_num:,}: not CSV ({error})") from None

        if not numbers:
            return

        yield _FieldBatch(first.name, fields, width, numbers, 0)


def _decode_lines(blocks: Iterator[LineBlock], context: ImportContext) -> Iterator[str]:
    for lines in blocks:
        context.advance(lines.cost)
        for index, line in enumerate(lines.data.split(b"\n")[:-1]):
            try:
                yield line.decode() + "\n"
            except UnicodeDecodeError as error:
                wrong = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
                raise CountsError(f"{lines.place(index)}: not valid UTF-8 ({wrong}); convert the file first") from None
