"""Read Matrix Market files (.mtx) of coordinates. Dense (`array`), complex and skew matrices are rejected."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swivel.corpus.streams import LineBlock, read_table_lines
from swivel.counts.block_layout import Ints
from swivel.counts.importers.context import ImportChunk, ImportContext, refuse_ids
from swivel.counts.importers.delimited import FieldBatch, parse_numbers, split_fields
from swivel.errors import CountsError

_HEADER = "%%MatrixMarket matrix coordinate"


def read_market(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a Matrix Market file: real, integer or pattern; general or symmetric."""
    blocks = read_table_lines(file, context.task)
    kind, symmetry, size, rest = _read_header(file, blocks)
    rows, columns, announced_entries = size

    if symmetry == "symmetric" and context.config.sides is None:
        context.sides = "undirected"
    if symmetry == "symmetric" and context.sides == "apart":
        raise CountsError(
            f"{file}: rows and columns of a symmetric matrix are the same things; omit sides", argument="sides"
        )

    context.set_shape(rows, columns, str(file))
    width = 2 if kind == "pattern" else 3  # a pattern has no counts
    entries = 0

    for block in itertools.chain([rest], blocks):
        batch = split_fields(block, b" ", width, rule=f"{kind} matrices have")
        counts = None if width == 2 else parse_numbers(batch.column(2), batch.place, "count")
        yield ImportChunk(_read_ids(batch, 0, rows), _read_ids(batch, 1, columns), counts, batch.place)
        entries += len(batch.numbers)

    if entries != announced_entries:
        raise CountsError(f"{file}: the header announces {announced_entries:,} entries, but there are {entries:,}")


def _read_header(file: Path, blocks: Iterator[LineBlock]) -> tuple[str, str, list[int], LineBlock]:
    """Return kind, symmetry, the numbers of rows, columns and entries, and the rest of the block of these lines."""
    kinds: list[str] = []

    for block in blocks:
        for index, line in enumerate(block.lines()):
            if not kinds:
                kinds = _parse_kinds(line, block.place(index))
            elif line.strip() and not line.startswith(b"%"):
                words = line.split()
                if len(words) != 3 or not all(word.isdigit() and len(word) < 19 for word in words):
                    raise CountsError(f"{block.place(index)}: expected rows, columns and entries, got {line[:60]!r}")
                return kinds[0], kinds[1], list(map(int, words)), block.without_lines(index + 1)

    raise CountsError(f"{file}: the file ends before the first entry")


def _parse_kinds(line: bytes, place: str) -> list[str]:
    words = line.decode("ascii", "replace").lower().split()
    if len(words) != 5 or " ".join(words[:3]) != _HEADER.lower():
        raise CountsError(f"{place}: expected {_HEADER!r} and two more words, got {line[:60]!r}")

    kind, symmetry = words[3:]
    if kind not in ("real", "double", "integer", "pattern") or symmetry not in ("general", "symmetric"):
        raise CountsError(f"{place}: expected real, integer or pattern and general or symmetric, got {kind} {symmetry}")

    return [kind, symmetry]


def _read_ids(batch: FieldBatch, column: int, size: int) -> Ints:
    values = parse_numbers(batch.column(column), batch.place, "index")
    is_wrong = ~((values >= 1) & (values <= size) & (values == np.floor(values)))
    refuse_ids(is_wrong, values, batch.place, "index", f"is not in 1 to {size:,}")
    return values.astype(np.int64) - 1
