"""`swivel add`: matrices to their sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swivel.counts import Matrix, as_matrix, open_matrix
from swivel.counts.matrix_sum import add_matrices, shared_config
from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions, check_names, make_options
from swivel.runtime.resources import check_libraries
from swivel.storage.output_folder import check_output, has_result, open_work_folder


def add(
    *matrices: Matrix | str | Path, out: str | Path | None = None, options: RunOptions | None = None, **given: Any
) -> Matrix:
    """Return the sum of matrices, cell by cell of equal labels, in memory or opened from the folder `out`.

    Vocabularies may differ: the sum has the labels of all matrices, by decreasing count. Matrices counted from parts
    of a text with the same words add up to the matrix that is counted from the whole text, bit for bit. If the matrices
    lack small counts (`import_counts(..., suppressed_below=11)`), their limits add up, too: a cell that is in none of
    three matrices with counts of 11 and more has at most 30.

    Parameters
    ----------
    matrices
        Two or more matrices, or their folders, counted with the same window, weight and columns.
    options, given
        As in `swivel.count`.

    Examples
    --------
    >>> from swivel.pipeline.count import count
    >>> settings = {"min_count": 1, "columns": "symmetric"}
    >>> total = add(count(["tea milk"], **settings), count(["milk sugar", "tea milk"], **settings))
    >>> total.count("tea", "milk"), total.rows.tokens
    (2.0, ('milk', 'tea', 'sugar'))
    """
    options = make_options(options, given)
    check_names(given)
    if len(matrices) < 2:
        raise ConfigError(f"there must be two or more matrices to add, got {len(matrices)}")

    addends = [as_matrix(matrix) for matrix in matrices]
    # The order matters to provenance only: sums are exact integers.
    inputs = {f"matrix {number}": matrix.fingerprint for number, matrix in enumerate(addends, 1)}
    provenance = {"config": shared_config(addends), "inputs": inputs}

    output = check_output(out, [matrix.path for matrix in addends], options)
    if output is not None and has_result(output, "matrix", provenance, options):
        return open_matrix(output)

    with open_work_folder(output) as path:
        check_libraries("adding")
        # A damaged matrix must not become part of a sum that looks valid.
        for matrix in addends:
            matrix.verify()
        total = add_matrices(addends, path, provenance, options)
        return total if output is not None else total.to_memory()
