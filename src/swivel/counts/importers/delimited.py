"""Read triples from text, a row, a column and optionally a count on each line, and crosstabs, with a column per label.

A block in which all lines have the same number of fields is split with one call of `bytes.split`, about a third of a
microsecond per line. Only unusual blocks are split line by line.
"""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.streams import LineBlock, read_table_lines
from swivel.counts.importers.context import MARK, ImportChunk, ImportContext, Place
from swivel.counts.importers.import_config import SEPARATORS, ImportConfig, pick_fields
from swivel.errors import CountsError, SwivelWarning
from swivel.runtime.display import escape_controls
from swivel.runtime.numbers import is_integer, is_number, is_plain, parse_float
from swivel.runtime.progress import Task

_CSV_LINES = 1 << 15
_HEADER_LINES = 1_000  # looked at to find out whether the first one is a header
_RULE = "the first line has"  # where the expected number of fields comes from
# A line of networkx' `write_edgelist`: two nodes, and the attributes of the edge as a Python dictionary.
_EDGE_LINE = re.compile(rb"^([^\s,;|]+[ \t,;|]+[^\s,;|]+)([ \t,;|])[ \t]*\{('[^\n]*)?\}[ \r]*$", re.MULTILINE)
_EDGE_WEIGHT = re.compile(rb"'weight': *([^,]*)")


@dataclass(frozen=True, slots=True)
class FieldBatch:
    """Fields of some lines, `width` per line, and the number of each line."""

    name: str
    fields: list[bytes]
    width: int
    numbers: Sequence[int]

    def place(self, index: int) -> str:
        """Return the file and number of a line, for error messages."""
        return f"{self.name}, line {self.numbers[index]:,}"

    def column(self, index: int) -> list[bytes]:
        """Return the field at an index of every line."""
        return self.fields[index :: self.width]


def parse_numbers(texts: list[bytes], place: Place, kind: str) -> NDArray[np.float64]:
    """Return texts as numbers; raise CountsError with the place of a text that is not a number."""
    # One check for all: that of each text takes as long as its conversion.
    convert: Callable[[bytes], float] = float if is_plain(b"".join(texts)) else parse_float
    items = iter(texts)
    try:
        return np.fromiter(map(convert, items), np.float64, len(texts))
    except ValueError:
        index = len(texts) - length_hint(items) - 1  # the last one that was taken
        shown = texts[index][:40].decode(errors="backslashreplace")
        hint = "; pass header if the first line is a header" if place(index).endswith("line 1") else ""
        if kind == "count" and shown.strip()[:1] in ("", "*", "<"):
            hint = "; pass suppressed_below=11, for example, if it marks a suppressed count"
        if kind == "time":
            hint = "; pass within with a unit, such as 30d, if times are dates"
        raise CountsError(f"{place(index)}: the {kind} {shown!r} is not a number{hint}") from None


def parse_counts(texts: list[bytes], place: Place, context: ImportContext) -> NDArray[np.float64]:
    """Return texts as counts, NaN for those that mark a suppressed cell; those of events as times."""
    if context.config.has_dates:
        return context.read_times(texts, place)
    try:
        return parse_numbers(texts, place, context.number_name)
    except CountsError:
        if context.config.suppressed_below is None:
            raise

    numbers = []
    for index, text in enumerate(texts):
        try:
            is_mark = context.is_mark(text.decode(errors="replace"))
        except CountsError as error:
            raise CountsError(f"{place(index)}: {error}", argument="suppressed_below") from None
        numbers.append(b"nan" if is_mark else text)
    return parse_numbers(numbers, place, "count")


def read_label_numbers(file: Path) -> Iterator[tuple[list[bytes], NDArray[np.float64], Place]]:
    """Yield the labels and numbers of a text file with a label and a number on each line, and their places."""
    config = ImportConfig()
    for number, batch in enumerate(_read_batches(file, config)):
        if batch.width != 2:
            raise CountsError(f"{batch.place(0)}: {batch.width} fields, but a label and a number are needed")
        rest = _drop_header(batch) if number == 0 and _has_header(batch, config) else batch
        yield rest.column(0), parse_numbers(rest.column(1), rest.place, "sum"), rest.place


def read_triples(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a text file: `row SEPARATOR column SEPARATOR count`; without a third field the count is 1."""
    config = context.config
    batches = _read_batches(file, config, context.task)
    first = next(batches, None)
    if first is None:
        return

    names = None
    if _has_header(first, config):
        names = [field.decode(errors="replace") for field in first.fields[: first.width]]
        first = _drop_header(first)

    picks = pick_fields(config, names, first.width, str(file))
    if names is not None and config.header is None and not {*config.field_names} & {*names}:
        shown = escape_controls(", ".join(names))
        warnings.warn(
            f"{file}: the first line ({shown}) is taken for a header; pass header=True if it is, header=False if not",
            SwivelWarning,
            stacklevel=2,
        )
    for batch in itertools.chain([first], batches):
        rows, columns, *others = map(batch.column, picks)
        counts = parse_counts(others[0], batch.place, context) if others else None
        yield context.make_chunk(rows, columns, counts, batch.place)


def _has_header(batch: FieldBatch, config: ImportConfig) -> bool:
    """Return whether the first line is a header: by the settings, or because it is text above numbers."""
    if config.header is not None:
        return config.header

    names = batch.fields[: batch.width]
    wanted = {name for name in config.field_names if not is_integer(name)}
    if wanted:
        return wanted <= {name.decode(errors="replace") for name in names}

    def is_count(text: bytes) -> bool:
        has_marks = config.suppressed_below is not None
        return is_number(text) or (has_marks and MARK.fullmatch(text.decode(errors="replace").strip()) is not None)

    lines = batch.fields[batch.width : _HEADER_LINES * batch.width]
    columns = [lines[number :: batch.width] for number in range(batch.width)]
    is_header = not any(map(is_count, names)) and any(all(map(is_count, column)) for column in columns)
    return bool(lines) and is_header


def _drop_header(batch: FieldBatch) -> FieldBatch:
    """Return the lines after the first one."""
    return FieldBatch(batch.name, batch.fields[batch.width :], batch.width, batch.numbers[1:])


def read_crosstab(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a wide table: the first line names the columns, the first field of the others the row."""
    batches = _read_batches(file, context.config, context.task)
    first = next(batches, None)
    if first is None:
        return

    columns = context.find_columns(first.fields[1 : first.width], f"{file}, line 1")
    for batch in itertools.chain([_drop_header(first)], batches):
        rows = context.rows.look_up(batch.column(0), batch.place)
        for number, column in enumerate(columns.tolist(), 1):
            texts = [text.strip() or b"0" for text in batch.column(number)]  # An empty cell is like an absent one.
            counts = parse_counts(texts, batch.place, context)
            yield ImportChunk(rows, np.full(len(rows), column), counts, batch.place)


def _read_batches(file: Path, config: ImportConfig, task: Task | None = None) -> Iterator[FieldBatch]:
    """Yield the fields of a file in batches, without blank lines and comments."""
    # Every line must have as many fields as the first one.
    blocks = read_table_lines(file, task)
    separator = b""
    width = 0

    for lines in blocks:
        if b"}" in lines.data:
            lines = LineBlock(lines.name, lines.first, expand_edge_data(lines.data))
        if not separator:
            _, sample = next(_kept_lines(lines, config.comment), (0, None))
            if sample is None:
                continue
            separator = _choose_separator(file, config, sample)
            width = len(sample.split(None if separator == b" " else separator))
            if separator == b"," and b'"' in sample:
                width = 0  # commas inside quotation marks do not separate; csv.reader finds the width

        # From the first quotation mark on, a field may contain line feeds, so blocks cannot be split one by one.
        if separator == b"," and b'"' in lines.data:
            yield from _read_quoted(lines, blocks, config, width)
            return

        yield split_fields(lines, separator, width, comment=config.comment)


def expand_edge_data(data: bytes) -> bytes:
    r"""Return lines with the weight of an edge in place of the dictionary of attributes that networkx writes.

    >>> expand_edge_data(b"a b {}\na c {'weight': 2.5, 'color': 'red'}\na d 3\n")
    b'a b 1\na c 2.5\na d 3\n'
    """

    def take_weight(match: re.Match[bytes]) -> bytes:
        nodes, separator, attributes = match.groups(b"")
        weight = _EDGE_WEIGHT.search(attributes)
        return bytes(nodes + separator + (weight[1] if weight else b"1"))

    return _EDGE_LINE.sub(take_weight, data)


def _choose_separator(file: Path, config: ImportConfig, sample: bytes) -> bytes:
    if config.separator is not None:
        return SEPARATORS[config.separator]
    if ".csv" in (suffix.lower() for suffix in file.suffixes[-2:]):
        return b","
    return b"\t" if b"\t" in sample else b" "


def _kept_lines(lines: LineBlock, comment: str | None) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the lines that are not blank and not comments."""
    mark = comment.encode() if comment else None
    for number, line in enumerate(lines.data.split(b"\n"), lines.first):
        if line.strip(b" \r\v\f") and not (mark and line.startswith(mark)):
            yield number, line


def split_fields(
    lines: LineBlock, separator: bytes, width: int, *, comment: str | None = None, rule: str = _RULE
) -> FieldBatch:
    """Return the fields of a block, without blank lines and comments; a space as separator is any white space."""
    # A line that has not `width` fields raises CountsError; `rule` tells where the width comes from.
    even = None if comment else _split_evenly(lines, separator, width)
    if even:
        return even

    fields: list[bytes] = []
    numbers = []

    for number, line in _kept_lines(lines, comment):
        split = line.split(None if separator == b" " else separator)
        if len(split) != width:
            raise CountsError(f"{lines.name}, line {number:,}: {len(split)} fields, but {rule} {width}")
        fields += split
        numbers.append(number)

    return FieldBatch(lines.name, fields, width, numbers)


def _split_evenly(lines: LineBlock, separator: bytes, width: int) -> FieldBatch | None:
    """Return the fields of a block if every line has `width` fields, else None."""
    codes = np.frombuffer(lines.data, np.uint8)
    ends = codes == ord("\n")
    marks = np.flatnonzero(ends | (codes == ord(separator)))
    if not marks.size or not width or marks.size % width:
        return None

    # With `width` fields per line, every width-th separator is a line feed and no other one is.
    is_end = ends[marks].reshape(-1, width)
    blank = separator == b" " and (marks[0] == 0 or bool((np.diff(marks) == 1).any()) or b"\t" in lines.data)
    if blank or not is_end[:, -1].all() or is_end[:, :-1].any():
        return None

    # One call of `split` for all lines: line feeds become separators, and the last one ends an empty field.
    fields = lines.data.replace(b"\n", separator).split(separator)
    fields.pop()
    return FieldBatch(lines.name, fields, width, range(lines.first, lines.first + len(is_end)))


def _read_quoted(
    first: LineBlock, blocks: Iterator[LineBlock], config: ImportConfig, width: int
) -> Iterator[FieldBatch]:
    """Yield the rest of a .csv file with quoted fields, which may contain commas and line ends."""

    def decode_lines() -> Iterator[str]:
        for block in itertools.chain([first], blocks):
            for index, line in enumerate(block.lines()):
                yield block.decode(line, index) + "\n"

    rows = csv.reader(decode_lines(), strict=True)
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
                if len(row) != width:
                    raise CountsError(f"{first.name}, line {number:,}: {len(row)} fields, but {_RULE} {width}")
                fields += [field.encode() for field in row]
                numbers.append(number)
        except csv.Error as error:
            raise CountsError(f"{first.name}, line {begin + rows.line_num:,}: not CSV ({error})") from None

        if not numbers:
            return

        yield FieldBatch(first.name, fields, width, numbers)
