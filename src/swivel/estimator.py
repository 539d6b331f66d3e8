"""The scikit-learn face: any table of counts in, one vector a row out.

Receives what scikit-learn's own validation takes (scipy sparse, arrays, data frames) and hands on arrays. The table is
written as a matrix into a temporary folder, trained by `pipeline`, and gone; new rows are folded in by `folding`.
It has no mathematics of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig, stage_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec, to_units
from swivel.errors import ConfigError, missing_extra
from swivel.pipeline.stages import train
from swivel.runtime.options import RunOptions
from swivel.storage import read_manifest

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data
except ImportError as error:
    raise missing_extra("estimators", "scikit-learn 1.6 or newer", "sklearn") from error

if TYPE_CHECKING:
    import scipy.sparse

# Counts that are no whole numbers are kept in a binary unit in which the largest takes 32 bits: the others are off by
# less than 2^-32 of it. A unit above 2^52 would say more than the float64 that they came as.
COUNT_BITS, FINEST_UNIT = 32, 52
TRAINING = ("dim", "epochs", "block_size", "learning_rate", "weight_decay", "zeros", "shift", "unseen")
CONFIDENCE = ("confidence_base", "confidence_scale", "confidence_power")
KNOBS = (*TRAINING, *CONFIDENCE, "dtype", "backend", "device")


class SwivelEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Embed the rows of a table of co-occurrence counts so that w_i . c_j is close to PMI(i; j).

    A setting that is None is the recipe's, or chosen when training; `swivel.config.TrainConfig` explains each.

    Parameters
    ----------
    dim
        Dimensions of a vector.
    recipe
        The named settings to start from: fast, default or paper.
    epochs, block_size, rate, decay, zeros, shift, unseen, confidence_base, confidence_scale, confidence_power
        How to train. Where counts are weights, `unseen` is the weight that stands in for 0.
    dtype, backend, device
        What to compute with.
    random_state
        Seed, or a generator to draw one from; None is the seed 1, so that equal counts give equal vectors.
    threads, memory
        What fitting may use, such as 2 and "1GiB"; None: every core, half of the free memory.

    Attributes
    ----------
    row_vectors_, column_vectors_ : float32 (rows, dim), (columns, dim)
        As trained. `transform` folds rows in, also those that were trained, and comes close to `row_vectors_`.
    row_sums_, column_sums_, total_ : float64
        Marginals of the table that was fitted.
    losses_ : list of dict
        Mean losses of each epoch: observed, unobserved, mean.
    config_ : TrainConfig
        Every setting that was used.
    n_features_in_, feature_names_in_
        scikit-learn's own.

    Examples
    --------
    >>> counts = np.array([[8, 6, 0, 0], [9, 7, 1, 0], [0, 1, 5, 9], [0, 0, 6, 7]])
    >>> embedding = SwivelEmbedding(dim=2).fit(counts)
    >>> vectors = embedding.transform([[5, 4, 0, 0], [0, 0, 3, 5]])
    >>> (vectors @ embedding.column_vectors_.T > 0).tolist()
    [[True, True, False, False], [False, False, True, True]]
    """

    def __init__(
        self,
        dim: int = 300,
        *,
        recipe: str = "fast",
        epochs: int | None = None,
        block_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        zeros: str | None = None,
        shift: float | None = None,
        unseen: float | None = None,
        confidence_base: float | None = None,
        confidence_scale: float | None = None,
        confidence_power: float | None = None,
        dtype: str | None = None,
        backend: str | None = None,
        device: str = "auto",
        random_state: Any = None,
        threads: int | None = None,
        memory: int | str | None = None,
    ) -> None:
        self.dim = dim
        self.recipe = recipe
        self.epochs = epochs
        self.block_size = block_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.zeros = zeros
        self.shift = shift
        self.unseen = unseen
        self.confidence_base = confidence_base
        self.confidence_scale = confidence_scale
        self.confidence_power = confidence_power
        self.dtype = dtype
        self.backend = backend
        self.device = device
        self.random_state = random_state
        self.threads = threads
        self.memory = memory

    def fit(self, X: Any, y: None = None) -> SwivelEmbedding:
        """Train rows and columns on a table of counts.

        Parameters
        ----------
        X
            (rows, columns): counts of 0 or more, sparse or dense; any finite weights will do.
        y
            Not used; scikit-learn's pipelines hand it on.
        """
        settings = {"seed": self._seed(), **{name: _plain(getattr(self, name)) for name in KNOBS}}
        config = stage_config(TrainConfig, self.recipe, **settings)
        if config.objective != "swivel":
            raise ConfigError(
                f"recipe must be one of fast, default, paper, got {self.recipe!r}: it cannot fold rows in"
            )
        options = RunOptions(threads=_plain(self.threads), memory=_plain(self.memory))
        cells = self._validate(X, reset=True).tocoo()
        row_order, column_order = (_falling_order(cells.sum(axis=axis)) for axis in (1, 0))
        with tempfile.TemporaryDirectory(prefix="swivel-", ignore_cleanup_errors=True) as folder:
            matrix = _build_matrix(Path(folder) / "matrix", cells, (row_order, column_order), options)
            vectors = train(
                matrix, Path(folder) / "vectors", recipe=self.recipe, options=options, combine="rows", **settings
            )
            self.losses_ = read_manifest(Path(folder) / "vectors").facts["losses"]
            self.row_vectors_ = _in_given_order(vectors.rows, row_order)
            self.column_vectors_ = _in_given_order(vectors.columns, column_order)
            self.row_sums_ = _in_given_order(matrix.row_sums, row_order)
            self.column_sums_ = _in_given_order(matrix.column_sums, column_order)
        self.total_, self.config_ = matrix.total, config
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return a vector for each row of counts, (rows, dim), by folding it into the trained columns.

        A row without counts is the zero vector; one that was fitted comes close to its row of `row_vectors_`.
        """
        from swivel.training.fold_in import fold_rows

        check_is_fitted(self)
        counts = self._validate(X, reset=False)
        return fold_rows(
            counts, self.column_vectors_, self.column_sums_, self.total_, self.config_, device=self.config_.device
        )

    def _validate(self, X: Any, *, reset: bool) -> scipy.sparse.csr_array:
        import scipy.sparse

        counts = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=np.float64)
        check_non_negative(counts, type(self).__name__)
        return scipy.sparse.csr_array(counts)

    def _seed(self) -> int:
        if self.random_state is None or isinstance(self.random_state, (int, np.integer)):
            return TrainConfig().seed if self.random_state is None else int(self.random_state)
        return int(check_random_state(self.random_state).randint(1 << 31))

    @property
    def _n_features_out(self) -> int:
        return int(self.column_vectors_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []  # Vectors are float32, whatever counts come as.
        return tags


def _plain(value: Any) -> Any:
    """Return a number as Python has it: a search over parameters hands NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def _falling_order(sums: Any) -> NDArray[np.int64]:
    """Return the ids by falling sum, as training wants rows and columns; equal ones keep their order."""
    return np.argsort(-np.asarray(sums).ravel(), kind="stable")


def _in_given_order(values: Any, order: NDArray[np.int64]) -> NDArray[Any]:
    """Return a copy in which value n is that of the id `order[n]`."""
    result: NDArray[Any] = np.empty_like(values, subok=False)
    result[order] = values
    return result


def _choose_unit(counts: NDArray[np.float64]) -> int:
    """Return the unit in which counts are kept: whole numbers as they are, others in a fine binary one.

    >>> _choose_unit(np.array([1.0, 7.0])), _choose_unit(np.array([0.5, 2.0])) == 2**30
    (1, True)
    """
    if not counts.size or (counts == np.rint(counts)).all():
        return 1
    _, exponent = np.frexp(counts.max())
    return 1 << min(max(COUNT_BITS - int(exponent), 0), FINEST_UNIT)


def _build_matrix(path: Path, cells: Any, orders: tuple[NDArray[np.int64], ...], options: RunOptions) -> Matrix:
    """Write the counts, rows and columns by falling sum; labels are the numbers that they had."""
    vocabularies = [Vocabulary(map(str, order.tolist())) for order in orders]
    ranks = [_in_given_order(np.arange(len(order)), order) for order in orders]
    unit = _choose_unit(cells.data)
    spec = MatrixSpec(rows=vocabularies[0], columns=vocabularies[1], unit=unit)
    with MatrixBuilder(path, spec, memory_bytes=options.memory_bytes, threads=options.thread_count) as builder:
        row, column = cells.coords
        builder.add(ranks[0][row], ranks[1][column], to_units(cells.data, unit))
        return builder.finish()
