"""The scikit-learn estimator `SwivelEmbedding` for tables of counts."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig, settings_of
from swivel.errors import needs_extra
from swivel.evaluation.table_ranking import drop_zeros, evaluate_ranking, split_table
from swivel.pipeline.train import fit_sparse
from swivel.recommender import ColumnRanking
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT

with needs_extra("estimators", "scikit-learn 1.6 or newer", "sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

if TYPE_CHECKING:
    import scipy.sparse


@dataclass(eq=False, repr=False)  # scikit-learn compares by identity and has its own repr.
class SwivelEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Embed the rows of a table of co-occurrence counts so that w_i . c_j is close to PMI(i; j).

    A parameter that is None has the value of the recipe or is chosen by training; `swivel.config.TrainConfig` describes
    all of them.

    Parameters
    ----------
    dim
        Number of dimensions.
    recipe : {"table", "fast", "default", "paper"}, optional
        Named settings to start from. By default `table`, whose weight decay follows from the table; `fast` if X is
        square, because then it probably has the co-occurrences of things of one kind.
    tune
        For recipe `table`: choose the weight decay and the part of popularity in rankings on held-out cells.
    epochs, block_size, learning_rate, weight_decay, zeros, shift, unseen
        Settings of training. If counts are weights, `unseen` is the weight that replaces 0.
    confidence_base, confidence_scale, confidence_power
        Weights of the loss, by count.
    dtype, backend, device
        Settings of the computation.
    random_state
        Seed, or a generator to draw a seed from. None is the seed 1, so that equal counts give equal vectors.
    threads, memory
        Resources of `fit`, such as 2 and "1GiB". None uses every core and half of the free memory.

    Attributes
    ----------
    row_vectors_ : ndarray of shape (n_rows, dim), float32
        Trained row vectors. `transform` also folds in rows that were trained; the result is close to `row_vectors_`.
    column_vectors_ : ndarray of shape (n_columns, dim), float32
        Trained column vectors.
    row_sums_, column_sums_, total_ : float64
        Marginal counts of the fitted table; with the recipe `table`, those of log(1 + X).
    losses_ : list of dict
        Mean losses of each epoch: observed, unobserved, mean.
    config_, recipe_ : TrainConfig, str
        All settings used, and the recipe that they are from.
    popularity_ : float or None
        Factor of a column's log sum in rankings, if the recipe (`table`) chooses one.
    n_features_in_, feature_names_in_
        As in other scikit-learn estimators.

    Examples
    --------
    >>> counts = np.array([[8, 6, 0, 0], [9, 7, 1, 0], [0, 1, 5, 9], [0, 0, 6, 7]])
    >>> embedding = SwivelEmbedding(dim=2).fit(counts)
    >>> vectors = embedding.transform([[5, 4, 0, 0], [0, 0, 3, 5]])
    >>> (vectors @ embedding.column_vectors_.T > 0).tolist()
    [[True, True, False, False], [False, False, True, True]]
    """

    dim: int = 300
    _: KW_ONLY
    recipe: str | None = None
    tune: bool = False
    epochs: int | None = None
    block_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    zeros: str | None = None
    shift: float | None = None
    unseen: float | None = None
    confidence_base: float | None = None
    confidence_scale: float | None = None
    confidence_power: float | None = None
    dtype: str | None = None
    backend: str | None = None
    device: str = "auto"
    random_state: Any = None
    threads: int | None = None
    memory: int | str | None = None

    def fit(self, X: Any, y: None = None) -> SwivelEmbedding:
        """Train row and column vectors on a table of counts; `y` is ignored.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            Counts, or other finite weights, of 0 or more.
        """
        settings = settings_of(self.get_params(), TrainConfig)
        options = RunOptions(threads=self.threads, memory=self.memory, progress=SILENT)
        counts = self._validate(X, reset=True)
        # A square table usually has the co-occurrences of one kind of things with each other.
        recipe = self.recipe or ("fast" if counts.shape[0] == counts.shape[1] else "table")
        fitted = fit_sparse(counts, recipe=recipe, tune=bool(self.tune), options=options, seed=self._seed(), **settings)

        assert fitted.row_sums is not None and fitted.column_sums is not None
        self.config_ = TrainConfig(**fitted.settings["train"])
        self.losses_ = fitted.facts["losses"]
        self.row_vectors_ = np.array(fitted.rows)
        self.column_vectors_ = np.array(fitted.columns)
        self.row_sums_ = fitted.row_sums
        self.column_sums_ = fitted.column_sums
        self.total_ = float(self.column_sums_.sum())
        self.recipe_ = recipe
        self.popularity_ = fitted.settings.get("ranking", {}).get("popularity")
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return a vector for each row of counts, computed with the trained columns held fixed.

        With more than 8,192 columns, the result is approximate, because the unobserved cells are sampled.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            Counts, with the columns of the fitted table.

        Returns
        -------
        ndarray of shape (n_rows, dim), float32
            Zeros for a row without counts; close to `row_vectors_` for a fitted row.
        """
        from swivel.training.fold_in import fold_in

        check_is_fitted(self)
        counts = self._validate(X, reset=False)
        return fold_in(
            counts, self.column_vectors_, self.column_sums_, self.total_, self.config_, device=self.config_.device
        )

    def score_columns(self, X: Any, *, popularity: float | None = None) -> NDArray[np.float32]:
        """Return scores that rank the columns of each row of counts, of shape (n_rows, n_columns).

        `popularity` is the factor of the logarithm of a column's sum; by default tuned, or following from the table.
        """
        return self._ranking(popularity).score(self.transform(X))

    def recommend(
        self, X: Any, count: int = 10, *, exclude_seen: bool = True, popularity: float | None = None
    ) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return the best columns of each row of counts and their scores, both of shape (n_rows, count), best first.

        Columns that a row of X has are left out by default; where fewer than `count` are left, the column is -1.
        """
        counts = drop_zeros(self._validate(X, reset=False))
        return self._ranking(popularity).find_best(self.transform(X), count, seen=counts if exclude_seen else None)

    def score(self, X: Any, y: None = None) -> float:
        """Return the recall@20 of a fifth of the cells of rows of counts, which need not have been fitted.

        The rows are folded in from their other cells. More is better, as `GridSearchCV` expects; `y` is ignored.
        """
        known, held_out = split_table(drop_zeros(self._validate(X, reset=False)))
        ranking, vectors = self._ranking(None), self.transform(known)
        return evaluate_ranking(lambda rows: ranking.score(vectors[rows]), held_out, known).recall

    def _ranking(self, popularity: float | None) -> ColumnRanking:
        check_is_fitted(self)
        if popularity is None:
            popularity = self.popularity_
        return ColumnRanking(self.column_vectors_, self.column_sums_, len(self.row_vectors_), popularity)

    def _validate(self, X: Any, *, reset: bool) -> scipy.sparse.csr_array:
        import scipy.sparse

        # Checks the number and the names of columns, as all estimators do.
        counts = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=np.float64)
        check_non_negative(counts, type(self).__name__)
        return scipy.sparse.csr_array(counts)

    def _seed(self) -> int:
        if self.random_state is None:
            return TrainConfig().seed
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(1 << 31))

    @property
    def _n_features_out(self) -> int:
        return int(self.column_vectors_.shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []  # Vectors are always float32.
        return tags
