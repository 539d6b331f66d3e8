"""GloVe's own files: cooccurrence.bin (or the shuffled one) with vocab.txt.

Receives the file of records (int32 word, int32 word, float64 count; words from 1, little-endian), hands on chunks of
cells. Word n is line n of the vocabulary; its count there is not used: vocabularies here are sorted by their sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.labels import Place
from swivel.counts.importers.lines import read_lines
from swivel.counts.importers.spill import PIECE, ImportChunk
from swivel.errors import CountsError

VOCABULARY = "vocab.txt"
_RECORD = np.dtype([("row", "<i4"), ("column", "<i4"), ("count", "<f8")])


def read_glove(file: Path, reading: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a cooccurrence.bin."""
    if reading.row_labels is None:
        reading.row_labels = _read_words(file.parent / VOCABULARY, file)
    if reading.sides == "apart":
        reading.column_labels = reading.row_labels
    words = len(reading.row_labels)
    reading.set_shape(words, words, str(file))
    size = file.stat().st_size
    if size % _RECORD.itemsize:
        raise CountsError(
            f"{file}: {size:,} bytes are not whole records of {_RECORD.itemsize}; damaged, or not GloVe's"
        )
    for first in range(0, size // _RECORD.itemsize, PIECE):
        records = np.fromfile(file, _RECORD, PIECE, offset=first * _RECORD.itemsize)
        place = _placer(file, first)
        for side in ("row", "column"):
            wrong = (records[side] < 1) | (records[side] > words)
            if wrong.any():
                index = int(wrong.argmax())
                raise CountsError(f"{place(index)}: word {records[side][index]} of a vocabulary of {words:,}")
        rows, columns = (records[side].astype(np.int64) - 1 for side in ("row", "column"))
        yield ImportChunk(rows, columns, records["count"].astype(np.float64), place)
        reading.advance(records.nbytes)


def _placer(file: Path, first: int) -> Place:
    return lambda index: f"{file}, record {first + index + 1:,}"


def _read_words(vocabulary: Path, file: Path) -> list[str]:
    if not vocabulary.is_file():
        raise CountsError(f"{file}: its words stand in {vocabulary}, which is not there; --row-labels says where")
    return read_label_file(vocabulary)


def read_label_file(file: Path) -> list[str]:
    """Return the labels in a text file, one a line; what stands behind a tab, or a blank and a number, is left out.

    GloVe's and word2vec's lines (`word 123`), 10x Genomics' (`id TAB name`) and plain ones are all read so.
    """
    labels = []
    for lines in read_lines(file):
        for index, line in enumerate(lines.data.split(b"\n")[:-1]):
            label = line.partition(b"\t")[0]
            word, blank, number = label.rpartition(b" ")
            try:
                labels.append((word if blank and number.isdigit() else label).decode())
            except UnicodeDecodeError:
                raise CountsError(f"{lines.place(index)}: a label is not valid UTF-8; convert the file first") from None
    while labels and not labels[-1]:
        labels.pop()
    return labels
