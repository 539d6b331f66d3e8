"""Evaluation of vectors of texts: pairs of texts with scores of people, and texts with labels.

The kind of a file follows from its first line: `score text1 text2`, separated by tabs (pairs without a score are left
out), or `label text`, separated by a tab or a space. Each set is scored with `Vectors.encode` and with the plain mean
of the vectors of known words.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swivel.errors import EvaluationError, needs_extra
from swivel.evaluation import datasets
from swivel.evaluation.bootstrap import rank_correlation
from swivel.evaluation.datasets import CategorySet, Line, SimilaritySet
from swivel.evaluation.results import draw_figure
from swivel.runtime.display import draw_html
from swivel.runtime.progress import Progress, choose_progress, track
from swivel.vectors import Vectors
from swivel.vectors.formats import as_vectors
from swivel.vectors.search import Floats

ENCODE: Mapping[str, Any] = {}
PLAIN_MEAN: Mapping[str, Any] = {"smoothing": math.inf, "components": 0, "guess": False}
TEXT_TABLE_HEADER = ("set", "measure", "encode", "plain mean", "items")
FOLDS = 5
# C of the logistic regression for 3,000 texts and more. A weaker penalty takes many more steps, with hundreds of
# standardized dimensions. C multiplies a sum over texts, so that fewer of them need a larger one.
_INVERSE_PENALTY = 0.01
_USUAL_TEXTS = 3_000
_MAX_STEPS = 100
_EXPECTED = "expected score, text and text, separated by tabs, or label and text, separated by a tab or a space"


TextSet = SimilaritySet | CategorySet


@dataclass(frozen=True, slots=True)
class TextResult:
    """The figures of one set of texts, for two ways to make vectors of texts; None if a figure is not defined."""

    name: str
    measure: str  # Spearman's "rho" for pairs, "accuracy" for labels
    encode: float | None
    plain_mean: float | None
    items: int


@dataclass(frozen=True, slots=True)
class TextReport:
    """The results of all sets of texts."""

    results: tuple[TextResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {"sets": [dataclasses.asdict(result) for result in self.results]}

    def table(self) -> list[tuple[str, ...]]:
        """Return one row of text per set, and the mean of each measure that several sets have."""
        results = list(self.results)
        for measure in ("rho", "accuracy"):
            same = [result for result in self.results if result.measure == measure]
            if len(same) > 1:
                means = _mean([each.encode for each in same]), _mean([each.plain_mean for each in same])
                results.append(TextResult("mean", measure, *means, sum(each.items for each in same)))
        return [
            (each.name, each.measure, draw_figure(each.encode), draw_figure(each.plain_mean), f"{each.items:,}")
            for each in results
        ]

    def _repr_html_(self) -> str:
        return draw_html("Evaluation of texts", TEXT_TABLE_HEADER, self.table())


def _mean(figures: list[float | None]) -> float | None:
    """Return the mean of the figures that are defined."""
    defined = [figure for figure in figures if figure is not None]
    return float(np.mean(defined)) if defined else None


def evaluate_texts(
    vectors: Vectors | str | Path,
    source: str | Path | Iterable[str | Path] | None = None,
    *,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> TextReport:
    """Evaluate vectors of texts on semantic textual similarity and on classification.

    Pairs of texts have Spearman's rho between the cosines of their vectors and the scores. Labels have the accuracy of
    a logistic regression (scikit-learn, C = 0.01, on standardized vectors) in a cross-validation with five folds.

    Parameters
    ----------
    vectors
        The vectors to evaluate, or their file or folder.
    source
        A folder of sets of texts, or a list of files and folders. By default 23 sets of SemEval 2012 to 2016 and three
        sets of labels, downloaded on first use.
    threads
        Number of threads of `encode`.
    progress
        A receiver of progress events; by default a progress bar for work that takes longer than a second, False for
        none.

    Examples
    --------
    >>> import tempfile
    >>> from swivel.vectors import VectorTable
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> words = Vocabulary(["tea", "coffee", "car"])
    >>> vectors = Vectors(VectorTable(words, np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "drinks.tsv"
    ...     _ = file.write_text("5\\ta tea\\tthe coffee\\n0\\ttea\\ta car\\n")
    ...     evaluate_texts(vectors, file).results[0].encode
    1.0
    """
    vectors = as_vectors(vectors)
    receiver = choose_progress(progress)
    if source is None:
        source = datasets.fetch_sets(datasets.TEXT_SOURCES, progress=receiver, title="the sets of texts")
    sets = read_text_sets(source)

    results = []
    with track(receiver, "texts", len(sets), "sets") as task:
        for each in sets:
            encode = score_texts(vectors, each, ENCODE, threads=threads)
            plain = score_texts(vectors, each, PLAIN_MEAN, threads=threads)
            measure = "rho" if isinstance(each, SimilaritySet) else "accuracy"
            results.append(TextResult(each.name, measure, encode, plain, each.size))
            task.advance(1)
    return TextReport(tuple(results))


def read_text_sets(source: str | Path | Iterable[str | Path]) -> tuple[TextSet, ...]:
    """Read sets of texts from a file, the `.tsv` and `.txt` files of a folder, or a list of files and folders."""
    return tuple(_read_text_set(file) for file, _ in datasets.list_set_files(source, "sets of texts", _EXPECTED))


def _read_text_set(path: Path) -> TextSet:
    lines = datasets.read_lines(path, may_be_latin=True)
    if not lines:
        raise EvaluationError(f"{path}: the file is empty; {_EXPECTED}")
    if lines[0].text.count("\t") >= 2:
        return _parse_pairs(path.stem, lines)

    rows = []
    for line in lines:
        label, separator, text = line.text.partition("\t" if "\t" in line.text else " ")
        if not separator:
            line.fail(f"{_EXPECTED}, got {line.text!r}")
        rows.append((label, text))
    return CategorySet(path.stem, tuple(text for _, text in rows), tuple(label for label, _ in rows))


def _parse_pairs(name: str, lines: list[Line]) -> SimilaritySet:
    pairs = []
    scores = []
    for line in lines:
        score, *texts = line.text.split("\t")
        if len(texts) < 2:
            line.fail(f"expected score, text and text, got {line.text!r}")
        if score.strip():
            scores.append(line.parse_score(score))
            pairs.append((texts[0], texts[1]))
    return SimilaritySet(name, tuple(pairs), tuple(scores))


def score_texts(
    vectors: Vectors, texts: TextSet, way: Mapping[str, Any] = ENCODE, *, threads: int | None = None
) -> float | None:
    """Return the figure of one set of texts, with the arguments of `Vectors.encode`; None if it is not defined."""
    if isinstance(texts, CategorySet):
        encoded = vectors.encode(texts.items, normalize=True, threads=threads, **way)
        return _classify(encoded, texts)

    firsts, seconds = (
        vectors.encode([pair[side] for pair in texts.pairs], normalize=True, threads=threads, **way) for side in (0, 1)
    )
    cosines = np.einsum("ij,ij->i", firsts, seconds).astype(np.float64)
    return rank_correlation(cosines, np.array(texts.scores))


def _classify(encoded: Floats, texts: CategorySet) -> float | None:
    """Return the accuracy of a logistic regression in a cross-validation; None if a label has too few texts."""
    with needs_extra("sets of labels", "scikit-learn", "evaluate"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from threadpoolctl import threadpool_limits  # a requirement of scikit-learn

    _, labels, sizes = np.unique(texts.categories, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.min() < FOLDS:
        return None

    # Shuffled, because files list the texts of a label one after the other.
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=1)
    inverse_penalty = _INVERSE_PENALTY * max(1.0, _USUAL_TEXTS / texts.size)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=inverse_penalty, max_iter=_MAX_STEPS))
    # The products are small: several threads take 30 times as long on busy cores.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # about the number of steps
        return float(cross_val_score(model, encoded, labels, cv=folds).mean())
