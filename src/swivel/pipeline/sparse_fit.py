"""Train on a SciPy sparse matrix and return vectors in the order of its rows and columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts.importers import import_counts
from swivel.pipeline.train import train
from swivel.runtime.options import RunOptions
from swivel.vectors import Vectors, VectorTable


def fit_sparse(counts: Any, *, recipe: str = "table", options: RunOptions, **settings: Any) -> Vectors:
    """Return vectors of the rows and columns of a sparse matrix, labeled with their positions, in its order.

    `settings` are those of `swivel.train`. Nothing is written.
    """
    # Labels are positions, because training needs rows and columns by descending sum.
    matrix = import_counts(counts, options=options)
    vectors = train(matrix, recipe=recipe, options=options, combine="rows", **settings)
    assert vectors.row_sums is not None and vectors.columns is not None and vectors.column_sums is not None
    return vectors.replace(
        rows=_restore_order(vectors.vocabulary, vectors.rows, vectors.row_sums),
        columns=_restore_order(matrix.columns, vectors.columns, vectors.column_sums),
        columns_per_row=0,
    )


def _restore_order(labels: Vocabulary, values: NDArray[np.float32], sums: NDArray[np.float64]) -> VectorTable:
    """Return the vectors and sums in the order of the positions that are their labels."""
    order = np.argsort(np.array(labels.tokens, np.int64))
    positions = Vocabulary(map(str, range(len(order))), labels.counts[order])
    return VectorTable(positions, values[order], sums[order])
