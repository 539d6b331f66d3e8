"""Classification of nodes, or of any rows: how well a logistic regression predicts labels from vectors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts import Matrix
from swivel.errors import ConfigError, EvaluationError, needs_extra
from swivel.runtime.progress import Progress, choose_progress, track
from swivel.vectors import Vectors
from swivel.vectors.formats import as_vectors
from swivel.vectors.search import check_count

SHARES = (0.1, 0.5, 0.9)
SPLITS = 5
PENALTIES = (1.0, 10.0, 100.0)  # C of the logistic regression, the best of which is chosen on known rows
CHECKED = 0.2  # share of the known rows on which it is chosen
_MAX_STEPS = 1_000
LABEL_TABLE_HEADER = ("labels known", "micro-F1", "macro-F1")


@dataclass(frozen=True, slots=True)
class LabelScore:
    """F1 of the predicted labels if a share of the rows has known ones: the mean of several splits."""

    share: float
    micro: float  # of all labels of all rows together
    macro: float  # the mean over the labels


@dataclass(frozen=True, slots=True)
class LabelReport:
    """The scores of a classification."""

    rows: int
    labels: int
    splits: int
    scores: tuple[LabelScore, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)

    def table(self) -> list[tuple[str, ...]]:
        """Return one row of text for each share."""
        return [(f"{each.share:.0%}", f"{each.micro:.3f}", f"{each.macro:.3f}") for each in self.scores]


def evaluate_labels(
    vectors: Vectors | str | Path,
    labels: Any,
    *,
    shares: Sequence[float] = SHARES,
    splits: int = SPLITS,
    seed: int = 1,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> LabelReport:
    """Predict labels of rows from their vectors, as in the evaluation of DeepWalk.

    A logistic regression for each label (scikit-learn, on vectors of length 1) learns from a share of the rows. Its C
    is 1, 10 or 100, the best for a fifth of these rows. Of the others, as many labels are predicted as each has, those
    with the highest scores.

    Parameters
    ----------
    vectors
        Vectors of the rows, or their file or folder.
    labels
        A matrix of rows by labels, or what `swivel.import_counts` reads: pairs of a row and one of its labels. Rows
        without a vector are left out.
    shares
        Shares of the rows whose labels are known.
    splits
        Random choices of these rows.
    seed
        Of the choices.
    progress
        As in `swivel.evaluate`.
    settings
        Of `swivel.import_counts`: fields, header, separator.

    Examples
    --------
    >>> import swivel
    >>> two_rings = [(f"{ring}{i}", f"{ring}{(i + step) % 8}") for ring in "ab" for i in range(8) for step in (1, 2)]
    >>> vectors = swivel.train(swivel.walk_counts(two_rings, window=4), dim=4)
    >>> report = evaluate_labels(vectors, [(node, node[0]) for node in vectors.vocabulary], shares=[0.5])
    >>> report.scores[0].micro
    1.0
    """
    for share in shares:
        if not 0 < share < 1:
            raise ConfigError(f"shares must be between 0 and 1, got {share}", argument="shares")
    check_count(splits, "splits")

    vectors = as_vectors(vectors)
    if not isinstance(labels, Matrix):
        from swivel.counts.importers import import_counts

        labels = import_counts(labels, sides="apart", **settings)
    ids = np.array([vectors.vocabulary.ids.get(label, -1) for label in labels.rows])
    truth = labels.to_scipy().toarray()[ids >= 0] > 0
    if len(truth) < 3:
        raise EvaluationError("labels has no rows with a vector, or fewer than three")
    features = vectors.unit_vectors[ids[ids >= 0]].astype(np.float64)

    scores = []
    with track(choose_progress(progress), "classifying", len(shares) * splits, "splits") as task:
        for share in shares:
            results = []
            penalty = 0.0  # not chosen yet
            for split in range(splits):
                order = np.random.default_rng([seed, split]).permutation(len(truth))
                known = min(max(round(share * len(truth)), 2), len(truth) - 1)
                penalty = penalty or _choose_penalty(features, truth, order[:known])
                results.append(_classify(features, truth, order[:known], order[known:], penalty))
                task.advance()
            micro, macro = np.mean(results, axis=0).tolist()
            scores.append(LabelScore(float(share), micro, macro))
    return LabelReport(len(truth), truth.shape[1], splits, tuple(scores))


def _choose_penalty(features: NDArray[np.float64], truth: NDArray[np.bool_], known: NDArray[np.int64]) -> float:
    """Return the C with the best micro-F1 on a share of the known rows, if it is learned from the others."""
    checked = math.ceil(CHECKED * len(known))
    scores = [_classify(features, truth, known[checked:], known[:checked], penalty)[0] for penalty in PENALTIES]
    return PENALTIES[int(np.argmax(scores))]


def _classify(
    features: NDArray[np.float64],
    truth: NDArray[np.bool_],
    learned: NDArray[np.int64],
    tested: NDArray[np.int64],
    penalty: float,
) -> tuple[float, float]:
    """Return micro-F1 and macro-F1 of predictions for some rows that are learned from others."""
    with needs_extra("labels", "scikit-learn", "evaluate"):
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import f1_score

    # A label that none, or all, of the known rows have has the same score everywhere.
    scores = np.where(truth[learned].all(axis=0), np.inf, -np.inf) * np.ones((len(tested), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for label in np.flatnonzero(truth[learned].any(axis=0) & ~truth[learned].all(axis=0)):
            model = LogisticRegression(C=penalty, max_iter=_MAX_STEPS).fit(features[learned], truth[learned, label])
            scores[:, label] = model.decision_function(features[tested])

    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    predicted = ranks < truth[tested].sum(axis=1, keepdims=True)
    # NaN leaves out a label that no row has and none is predicted to have.
    micro, macro = (
        float(f1_score(truth[tested], predicted, average=average, zero_division=np.nan))
        for average in ("micro", "macro")
    )
    return micro, macro
