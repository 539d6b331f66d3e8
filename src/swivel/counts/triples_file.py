"""Write the counts of a matrix as a text file of triples, which `import_counts` reads."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from swivel.config import POSITIVE, plain_number
from swivel.counts.matrix import Matrix, as_matrix
from swivel.errors import ConfigError, VocabularyError
from swivel.storage.files import create_file
from swivel.storage.output_folder import check_output_file

_CELLS_PER_PIECE = 1 << 16


def export_counts(
    matrix: Matrix | str | Path, file: str | Path, *, suppress_below: float | None = None, overwrite: bool = False
) -> int:
    """Write the counts of a matrix, a row, a column and a count per line, and return how many lines there are.

    Parameters
    ----------
    matrix
        A matrix, or the folder of one. Of a symmetric one, each pair is written once: import it with
        `sides="undirected"`.
    file
        The name ends in `.csv` for commas; otherwise tabs separate the fields. Nothing is compressed.
    suppress_below
        Leave out smaller counts, for publication: import with `suppressed_below`.
    overwrite
        Replace an existing file.

    Examples
    --------
    >>> import tempfile
    >>> from swivel import import_counts
    >>> matrix = import_counts([("tea", "milk", 20), ("tea", "sugar", 3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = export_counts(matrix, Path(folder) / "counts.tsv", suppress_below=11)
    ...     (Path(folder) / "counts.tsv").read_text()
    'tea\\tmilk\\t20\\n'
    """
    matrix = as_matrix(matrix)
    path = Path(file)
    if suppress_below is not None and not POSITIVE.holds(plain_number(suppress_below)):
        raise ConfigError(f"suppress_below must be {POSITIVE.words}, got {suppress_below!r}", argument="suppress_below")
    check_output_file(path, [] if matrix.path is None else [matrix.path], overwrite=overwrite)

    separator = "," if path.suffix.lower() == ".csv" else "\t"
    if separator == "\t":
        _refuse_separators(matrix)
    limit = 0.0 if suppress_below is None else suppress_below
    rows, columns = matrix.rows.tokens, matrix.columns.tokens
    lines = 0

    with create_file(path) as stream:
        for row_ids, column_ids, units in matrix.walk(_CELLS_PER_PIECE):
            counts = units / matrix.unit
            is_kept = counts >= limit
            if matrix.is_symmetric:  # which has x_ij and x_ji
                is_kept &= row_ids <= column_ids

            text = io.StringIO(newline="")
            writer = csv.writer(text, lineterminator="\n")
            if separator == "\t":
                writer = csv.writer(text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
            kept = (array[is_kept].tolist() for array in (row_ids, column_ids, counts))
            for row, column, count in zip(*kept, strict=True):
                writer.writerow((rows[row], columns[column], int(count) if count.is_integer() else count))
            stream.write(text.getvalue().encode())
            lines += int(np.count_nonzero(is_kept))
    return lines


def _refuse_separators(matrix: Matrix) -> None:
    for vocabulary in (matrix.rows, matrix.columns):
        for label in vocabulary:
            if any(char in label for char in "\t\r\n"):
                raise VocabularyError(f"the label {label!r} has a tab or a line end; write to a file that ends in .csv")
