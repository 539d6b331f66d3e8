"""Where a training starts: small random vectors, or vectors that were trained before.

Receives marginals and a configuration, and perhaps older vectors with their labels; hands on the arrays that the loop
begins with. It trains nothing and knows no file.

A warm start keeps old words near their place and lets new ones join. An old word begins at its old row and columns,
and Adagrad's accumulators of them at `WARM_ACCUMULATOR`, so that the first steps are no larger than what is left to
learn. So does a new word where `joining` found a place for it; else it begins as in any training. docs/experiments.md
has the figures.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError
from swivel.training.objective import Objective, add_biases
from swivel.vectors import Vectors, VectorTable

Array = NDArray[np.float32]
Ids = NDArray[np.int64]
ROWS_DRAWN = 4096  # initial vectors that are drawn at a time
# A training of default length ends with accumulators of about 1e-2: started there, old words hardly move (cosine .99)
# and a third of the epochs does not reach the loss of a training from scratch. With 1e-6, as new words have, it is
# reached, and old words keep a cosine of .91. In between (8,000 words, 30 % more text; benchmarks/more_data.py):
WARM_ACCUMULATOR = 1e-4
WARM_SHARE = 3  # a warm start takes the third part of the epochs


class Labelled(Protocol):
    """What is asked of a matrix."""

    @property
    def rows(self) -> Vocabulary:
        """What the rows are."""

    @property
    def columns(self) -> Vocabulary:
        """What the columns are."""

    @property
    def columns_per_row(self) -> int:
        """How many columns each row has; 0 where columns are something else."""


@dataclass(frozen=True, slots=True)
class Known:
    """Old vectors of one side: places in the matrix, and a vector for each."""

    places: Ids
    vectors: Array


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What a warm start begins with; `fingerprint` is of all old vectors, whatever was found of them."""

    rows: Known
    columns: Known
    fingerprint: str


def find_start(matrix: Labelled, vectors: Vectors, config: TrainConfig) -> WarmStart:
    """Return the old vectors of a matrix's rows and columns, by label.

    Parameters
    ----------
    matrix
        What is to be trained.
    vectors
        Trained before, with rows and columns.
    config
        Of the training to come.

    Raises
    ------
    ConfigError
        The vectors have no columns, others than the matrix has, another `dim`, or no word of the matrix.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> old, new = Vocabulary(["tea", "milk"]), Vocabulary(["milk", "sugar", "tea"])
    >>> vectors = Vectors(*(VectorTable(old, np.ones((2, 4), np.float32)) for _ in range(2)), columns_per_row=1)
    >>> matrix = SimpleNamespace(rows=new, columns=new, columns_per_row=1)
    >>> find_start(matrix, vectors, TrainConfig(dim=4)).rows.places.tolist()
    [2, 0]
    """
    rows, columns = vectors.contents.rows, _need_columns(vectors, config)
    if vectors.columns_per_row != matrix.columns_per_row:
        raise ConfigError(
            f"init has {_describe(vectors.columns_per_row)}, the matrix has {_describe(matrix.columns_per_row)}: "
            "count with the --columns that init was counted with, or train without init"
        )
    if rows.values.shape[1] != config.dim:
        raise ConfigError(
            f"dim must be {rows.values.shape[1]}, as init's, got {config.dim}; leave it out, or train without init"
        )
    start = WarmStart(_find(matrix.rows, rows), _find(matrix.columns, columns), fingerprint_vectors(vectors))
    if not len(start.rows.places) or not len(start.columns.places):
        raise ConfigError(
            f"init shares no words with the matrix: its first is {rows.vocabulary[0]!r}, the matrix's "
            f"{matrix.rows[0]!r}"
        )
    return start


def _need_columns(vectors: Vectors, config: TrainConfig) -> VectorTable:
    if config.objective != "swivel":
        raise ConfigError(f"objective must be swivel with init, got {config.objective!r}: its biases are not kept")
    columns = vectors.contents.columns
    if columns is None:
        raise ConfigError(
            "init has one vector a word and no columns, and w . c of a lone w says nothing; "
            "take a folder that training wrote with objective swivel"
        )
    return columns


def _describe(columns_per_row: int) -> str:
    if not columns_per_row:
        return "columns with labels of their own"
    return f"{columns_per_row} column{'s' * (columns_per_row > 1)} a row"


def _find(vocabulary: Vocabulary, side: VectorTable) -> Known:
    """Return what is known of a vocabulary; a vector of zeros is no knowledge: its word had no counts."""
    usable = np.count_nonzero(side.values, axis=1)
    found = [(vocabulary.ids[token], number) for number, token in enumerate(side.vocabulary) if token in vocabulary]
    pairs = np.array([(place, number) for place, number in found if usable[number]], np.int64).reshape(-1, 2)
    vectors = np.asarray(side.values[pairs[:, 1]], np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise ConfigError(f"init: the vector of {vocabulary[int(pairs[np.argmin(finite), 0])]!r} is not finite")
    return Known(pairs[:, 0], vectors)


def fingerprint_vectors(vectors: Vectors) -> str:
    """Return a digest of labels, rows and columns, the same for a folder and for what was loaded from it."""
    digest = hashlib.sha256()
    for side in (vectors.contents.rows, vectors.contents.columns):
        if side is not None:
            digest.update("\n".join(side.vocabulary.to_lines()).encode("utf-8", "surrogatepass"))
            digest.update(np.ascontiguousarray(side.values).data)
    return digest.hexdigest()[:16]


def fewer_epochs(epochs: int) -> int:
    """Return how many epochs a warm start takes where a training from scratch takes `epochs`.

    >>> [fewer_epochs(epochs) for epochs in (20, 5, 2)]
    [6, 1, 1]
    """
    return max(1, epochs // WARM_SHARE)


def make_arrays(
    sums: Sequence[NDArray[np.float64]],
    orders: Sequence[Ids],
    config: TrainConfig,
    *,
    start: WarmStart | None = None,
    threads: int = 1,
) -> dict[str, Array]:
    """Return what the loop begins with: vectors and accumulators of rows and of columns, in the order of blocks.

    Parameters
    ----------
    sums
        Of the rows and of the columns: without counts, a vector is zero.
    orders
        Rows and columns, in the order of blocks.
    start
        Old vectors; what they lack, or everything without them, is drawn.

    >>> arrays = make_arrays([np.ones(3), np.ones(2)], [np.arange(3), np.arange(2)], TrainConfig(dim=4))
    >>> arrays["rows"].shape, arrays["columns_accumulators"].shape
    ((3, 4), (2, 4))
    """
    arrays: dict[str, Array] = {}
    for side, name in enumerate(("rows", "columns")):
        vectors = _draw(side, sums[side], config, threads)
        accumulators = np.full_like(vectors, np.float32(config.initial_accumulator))
        if start is not None:
            known = start.columns if side else start.rows
            vectors[known.places] = known.vectors
            accumulators[known.places] = np.float32(max(config.initial_accumulator, WARM_ACCUMULATOR))
            vectors[sums[side] <= 0] = 0
        vectors, accumulators = vectors[orders[side]], accumulators[orders[side]]
        if Objective.from_config(config).has_biases:
            vectors, accumulators = add_biases(vectors, accumulators, side)
        arrays |= {name: vectors, f"{name}_accumulators": accumulators}
    return arrays


def _draw(side: int, sums: NDArray[np.float64], config: TrainConfig, threads: int) -> Array:
    """Draw piece by piece, each from a seed of its own: the same for any number of threads."""
    vectors = np.empty((len(sums), config.dim), np.float32)

    def draw(first: int) -> None:
        piece = vectors[first : first + ROWS_DRAWN]
        np.random.default_rng((config.seed, 0, side, first)).standard_normal(out=piece, dtype=np.float32)
        piece *= np.float32(1 / math.sqrt(config.dim))
        piece[sums[first : first + ROWS_DRAWN] <= 0] = 0

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, range(0, len(sums), ROWS_DRAWN)))
    return vectors
