"""Train on a SciPy sparse matrix and return vectors in the order of its rows and columns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig, recorded_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, to_units
from swivel.pipeline.train import train
from swivel.runtime.options import RunOptions
from swivel.storage import read_manifest, scratch_folder
from swivel.vectors.ranking import ColumnRanking
from swivel.vectors.search import Floats

# Fractional counts are stored as multiples of 1 / unit, where unit is a power of two chosen so that the largest count
# has 32 bits; rounding errors are below 2^-32 of it. A unit above 2^52 would exceed the precision of float64.
COUNT_BITS = 32
MAX_UNIT_BITS = 52


@dataclass(frozen=True, slots=True)
class SparseFit:
    """Trained rows and columns in the order of the counts, the marginal sums, all settings, and losses by epoch.

    `popularity` is that of the ranking, if the recipe chooses one.
    """

    rows: Floats
    columns: Floats
    row_sums: NDArray[np.float64]
    column_sums: NDArray[np.float64]
    config: TrainConfig
    losses: list[dict[str, float]]
    popularity: float | None = None

    def scores(self, popularity: float | None = None) -> Callable[[NDArray[np.int64]], Floats]:
        """Return a function that scores all columns for some rows, as `evaluate_ranking` takes it."""
        if popularity is None:
            popularity = self.popularity
        ranking = ColumnRanking(self.columns, self.column_sums, len(self.rows), popularity)
        return lambda rows: ranking.score(self.rows[rows])


def fit_sparse(counts: Any, *, recipe: str = "table", options: RunOptions, **settings: Any) -> SparseFit:
    """Train on a sparse matrix of counts in a temporary folder; `settings` are those of `swivel.train`."""
    cells = counts.tocoo()
    row_order = _descending_order(cells.sum(axis=1))
    column_order = _descending_order(cells.sum(axis=0))

    # Training needs rows and columns by descending sum; results are returned in the order of the counts.
    with scratch_folder(Path(tempfile.gettempdir())) as folder:
        matrix = _build_matrix(folder / "matrix", cells, (row_order, column_order), options)
        vectors = train(matrix, folder / "vectors", recipe=recipe, options=options, combine="rows", **settings)
        manifest = read_manifest(folder / "vectors")

        return SparseFit(
            rows=_restore_order(vectors.rows, row_order),
            columns=_restore_order(vectors.columns, column_order),
            row_sums=_restore_order(vectors.row_sums, row_order),
            column_sums=_restore_order(vectors.column_sums, column_order),
            config=recorded_config(TrainConfig, manifest.config["train"]),
            losses=manifest.facts["losses"],
            popularity=manifest.config.get("ranking", {}).get("popularity"),
        )


def _descending_order(sums: Any) -> NDArray[np.int64]:
    """Return ids by descending sum, as training requires; equal sums keep their order."""
    return np.argsort(-np.asarray(sums).ravel(), kind="stable")


def _restore_order(values: Any, order: NDArray[np.int64]) -> NDArray[Any]:
    """Return a copy in which value n is stored at index `order[n]`."""
    result: NDArray[Any] = np.empty_like(values, subok=False)
    result[order] = values
    return result


def choose_unit(counts: NDArray[np.float64]) -> int:
    """Return the unit of the stored counts: 1 for integers, otherwise a power of two.

    >>> choose_unit(np.array([1.0, 7.0])), choose_unit(np.array([0.5, 2.0])) == 2**30
    (1, True)
    """
    if not counts.size or (counts == np.rint(counts)).all():
        return 1
    _, exponent = np.frexp(counts.max())
    return 1 << min(max(COUNT_BITS - int(exponent), 0), MAX_UNIT_BITS)


def _build_matrix(path: Path, cells: Any, orders: tuple[NDArray[np.int64], ...], options: RunOptions) -> Matrix:
    """Write the counts with rows and columns by descending sum; labels are the original indices."""
    vocabularies = [Vocabulary(map(str, order.tolist())) for order in orders]
    ranks = [_restore_order(np.arange(len(order)), order) for order in orders]

    unit = choose_unit(cells.data)
    spec = MatrixSpec(rows=vocabularies[0], columns=vocabularies[1], unit=unit)

    with MatrixBuilder(path, spec, memory_bytes=options.memory_bytes, threads=options.thread_count) as builder:
        row, column = cells.coords
        builder.add(ranks[0][row], ranks[1][column], to_units(cells.data, unit))
        return builder.finish()
