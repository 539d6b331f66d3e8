"""Read the co-occurrence files of GloVe: cooccurrence.bin (or the shuffled one) with vocab.txt.

A record is int32 word, int32 word, float64 count, little-endian. Words are numbered from 1: word n is line n of the
vocabulary. The counts in the vocabulary are not used, because rows are sorted by the sums of the cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swivel.corpus.streams import read_table_lines
from swivel.counts.importers.context import PIECE, ImportChunk, ImportContext, number_places, refuse_ids
from swivel.errors import CountsError

VOCABULARY = "vocab.txt"
_RECORD = np.dtype([("row", "<i4"), ("column", "<i4"), ("count", "<f8")])


def read_glove(file: Path, context: ImportContext) -> Iterator[ImportChunk]:
    """Yield the cells of a cooccurrence.bin file."""
    if context.row_labels is None:
        vocabulary = file.with_name(VOCABULARY)
        if not vocabulary.is_file():
            raise CountsError(
                f"{file}: the vocabulary {vocabulary} does not exist; pass row_labels", argument="row_labels"
            )
        context.row_labels = read_label_file(vocabulary)
    if context.sides == "apart":
        context.column_labels = context.row_labels

    words = len(context.row_labels)
    context.set_shape(words, words, str(file))

    size = file.stat().st_size
    if size % _RECORD.itemsize:
        raise CountsError(
            f"{file}: {size:,} bytes are not a multiple of {_RECORD.itemsize}; damaged, or not from GloVe"
        )

    for first in range(0, size // _RECORD.itemsize, PIECE):
        records = np.fromfile(file, _RECORD, PIECE, offset=first * _RECORD.itemsize)
        place = number_places(str(file), "record", first)
        for ids in (records["row"], records["column"]):
            refuse_ids((ids < 1) | (ids > words), ids, place, "word", f"in a vocabulary of {words:,}")

        rows = records["row"].astype(np.int64) - 1
        columns = records["column"].astype(np.int64) - 1
        yield ImportChunk(rows, columns, records["count"].astype(np.float64), place)
        context.task.advance(records.nbytes)


def read_label_file(file: Path) -> list[str]:
    """Return the labels in a text file with one label per line, without anything after a tab and without a count."""
    # This reads vocabularies of GloVe and word2vec (`word 123`), 10x Genomics files (`id TAB name`) and plain lists.
    labels = []
    for block in read_table_lines(file):
        for index, line in enumerate(block.lines()):
            label = line.partition(b"\t")[0]
            word, blank, number = label.rpartition(b" ")
            labels.append(block.decode(word if blank and number.isdigit() else label, index))

    while labels and not labels[-1]:
        labels.pop()

    return labels
