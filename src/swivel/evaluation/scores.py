"""Scores of vectors on test sets of similarity, analogies and categories.

Similarity is Spearman's rank correlation of the cosines of pairs with human scores. An analogy, "a is to b as c is to
?", is answered by the best word of the whole vocabulary; the words of the question and vectors of zeros are never
answers. For categories, the known words are clustered by k-means on unit vectors, with as many clusters as categories;
each cluster is assigned its most frequent category, and purity is the fraction of words whose category is that of
their cluster. `EvaluationConfig` has the rules for unknown words.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from swivel.errors import ConfigError, EvaluationError, needs_extra
from swivel.evaluation import bootstrap
from swivel.evaluation.bootstrap import Doubles
from swivel.evaluation.datasets import (
    SUITES,
    AnalogySet,
    CategorySet,
    SimilaritySet,
    TestSet,
    fetch_sets,
    find_sets,
    split_set,
)
from swivel.evaluation.results import EvaluationConfig, Flags, Report, SetResult
from swivel.runtime.options import check_names
from swivel.runtime.parallel import run_in_chunks
from swivel.runtime.progress import SILENT, Progress, choose_progress, track
from swivel.runtime.resources import check_libraries, count_cores
from swivel.vectors import Vectors
from swivel.vectors.formats import as_vectors
from swivel.vectors.search import EPSILON, scale_to_unit, shift_cosine

DEFAULT_RULES = EvaluationConfig()
_TILE = 1_024  # words per tile
_TABLE = 1 << 24  # values in the tables of a tile (64 MiB); tiles are narrower if there are many words and pairs
_MIN_CHUNK = 64  # questions of a thread


def evaluate(
    vectors: Vectors | str | Path,
    source: str | Path | Iterable[str | Path] | None = None,
    *,
    suite: str | None = None,
    rules: EvaluationConfig = DEFAULT_RULES,
    progress: Progress | bool | None = None,
    **changes: Any,
) -> Report:
    """Evaluate vectors on the paper's eight test sets, the sets of a folder, or a list of files.

    Parameters
    ----------
    vectors
        The vectors to evaluate, or their file or folder.
    source
        A folder of test sets (see `swivel.evaluation.datasets`), or a list of files and folders. By default the paper's
        eight sets, downloaded on first use.
    suite : {"paper", "untuned"}
        Without a source, the sets to download: the paper's eight (the default), or SimVerb-3500, MTurk-771 and BATS,
        with which no setting of Swivel was chosen.
    rules
        How sets are scored; by default the rules of the paper.
    progress
        A receiver of progress events, with one task per set of analogies; by default a progress bar for work that takes
        longer than a second, False for none.
    changes
        Single rules by name, such as `method="3cosmul"` or `half="tune"`.

    Returns
    -------
    Report

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from swivel.vectors import VectorTable
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> vectors = Vectors(VectorTable(Vocabulary(["a", "b", "c"]), np.array([[1, 0], [1, 1], [0, 1]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "pairs.tsv").write_text("a\\tb\\t9\\na\\tc\\t1\\n")
    ...     evaluate(vectors, folder)["pairs"].figure
    1.0
    """
    check_names(changes, EvaluationConfig)
    rules = dataclasses.replace(rules, **changes)
    vectors = as_vectors(vectors)
    receiver = choose_progress(progress)
    sets, left_out = read_sets(source, rules, suite=suite, progress=receiver)
    results = score_sets(vectors, sets, rules, progress=receiver)
    return Report(results, rules, tuple(path.name for path in left_out))


def read_sets(
    source: str | Path | Iterable[str | Path] | None,
    rules: EvaluationConfig,
    *,
    suite: str | None = None,
    progress: Progress = SILENT,
) -> tuple[tuple[TestSet, ...], list[Path]]:
    """Return what `find_sets` does for `evaluate`: the sets are reduced to one half if the rules say so."""
    if suite is not None and suite not in SUITES:
        raise ConfigError(f"suite must be one of {', '.join(SUITES)}, got {suite!r}", argument="suite")
    if suite is not None and source is not None:
        raise ConfigError("suite has no effect with files or folders of sets; leave one of them out", argument="suite")
    if source is None:
        title, sources = SUITES[suite or "paper"]
        source = fetch_sets(sources, progress=progress, title=title)
    sets, left_out = find_sets(source, lowercase=rules.lowercase)

    for path in left_out:
        progress.message(f"{path.name}: skipped, not a test set")
    if rules.half is not None:
        sets = tuple(split_set(test_set, rules.half) for test_set in sets)
    return sets, left_out


def score_sets(
    vectors: Vectors, sets: Sequence[TestSet], rules: EvaluationConfig, *, progress: Progress = SILENT
) -> tuple[SetResult, ...]:
    """Evaluate vectors on given test sets; the rule `half` is ignored.

    Raises
    ------
    EvaluationError
        If no item of any set is known.
    """
    results = []
    for each in sets:
        if isinstance(each, SimilaritySet):
            results.append(score_similarity(vectors, each, rules))
        elif isinstance(each, CategorySet):
            results.append(score_categories(vectors, each, rules))
        else:
            results.append(score_analogies(vectors, each, rules, progress=progress))

    # A set in another language, or with capital letters, has no known word. That is an error only if all are so.
    unknown = [result.name for result in results if result.known == 0]
    if not any(result.total for result in results):
        raise EvaluationError(f"this half of {', '.join(unknown)} has no items to evaluate: leave out half")
    if len(unknown) == len(results):
        raise EvaluationError(
            f"no item of {', '.join(unknown)} is in the vocabulary: check that sets and vectors have the same "
            "language, and that both or neither are lower-cased"
        )
    for name in unknown:
        progress.message(f"{name}: no item is in the vocabulary")

    return tuple(results)


def _find_ids(vectors: Vectors, words: tuple[str, ...], rules: EvaluationConfig) -> list[int]:
    """Return the ids of words, with -1 for words that do not count as known."""
    vocabulary = vectors.vocabulary
    limit = len(vectors) if rules.top is None else min(rules.top, len(vectors))

    # Words are sorted by frequency: the first `limit` are the most frequent ones.
    numbers = map(vocabulary.find, words)
    return [-1 if number is None or number >= limit else number for number in numbers]


def score_similarity(vectors: Vectors, pairs: SimilaritySet, rules: EvaluationConfig = DEFAULT_RULES) -> SetResult:
    """Return the rank correlation between the cosines of the pairs and their human scores."""
    ids = np.array([_find_ids(vectors, pair, rules) for pair in pairs.pairs], np.int64).reshape(-1, 2)
    is_known = (ids >= 0).all(axis=1)

    # Unit vectors of the words of each pair, with a stand-in for unknown words.
    rows = vectors.unit_vectors[np.maximum(ids, 0)].astype(np.float64)
    rows[ids < 0] = 0
    if rules.unknown_pairs == "mean":
        mean = vectors.vectors[: rules.top].mean(axis=0, dtype=np.float64)
        rows[ids < 0] = scale_to_unit(mean[None])
    elif rules.unknown_pairs == "guess" and not is_known.all():
        unknown = [pair[side] for pair, row in zip(pairs.pairs, ids, strict=True) for side in (0, 1) if row[side] < 0]
        rows[ids < 0] = scale_to_unit(vectors.guesser.guess(unknown))

    # In float64: pairs that differ in the last bits of float32 would be ties.
    cosines = np.einsum("ij,ij->i", rows[:, 0], rows[:, 1])
    if rules.unknown_pairs == "skip":
        cosines[~is_known] = np.nan

    return summarize_pairs(pairs, cosines, known=int(is_known.sum()), draws=rules.draws)


def summarize_pairs(
    pairs: SimilaritySet, cosines: ArrayLike, *, known: int | None = None, draws: int = DEFAULT_RULES.draws
) -> SetResult:
    """Return the result for given cosines, one per pair; NaN for a pair to skip.

    >>> pairs = SimilaritySet("p", (("a", "b"), ("a", "c"), ("b", "c")), (9, 5, 1))
    >>> summarize_pairs(pairs, [0.5, 0.4, np.nan], draws=0).figure
    1.0
    """
    values = np.array(cosines, np.float64)
    scores = np.array(pairs.scores, np.float64)
    is_counted = ~np.isnan(values)
    if known is None:
        known = int(is_counted.sum())

    figure = interval = known_only = all_items = None
    if known:
        figure = bootstrap.rank_correlation(values[is_counted], scores[is_counted])
        all_items = bootstrap.rank_correlation(np.nan_to_num(values), scores)
    if is_counted.sum() == known:
        known_only = figure
    if figure is not None:
        resampled = bootstrap.draw_correlations([values[is_counted]], scores[is_counted], draws=draws)
        interval = bootstrap.percentile_interval(resampled[0])

    figures = (figure, interval, known, pairs.size, known_only, all_items)
    return SetResult("similarity", pairs.name, *figures, values=values, scores=scores, items=pairs.pairs)


def score_analogies(
    vectors: Vectors, questions: AnalogySet, rules: EvaluationConfig = DEFAULT_RULES, *, progress: Progress = SILENT
) -> SetResult:
    """Answer every question of a set and return the accuracies."""
    ids = np.array([_find_ids(vectors, words[:3], rules) for words in questions.questions], np.int64).reshape(-1, 3)
    # Many questions of a set have the same answers.
    right_answers = questions.right_answers
    right_ids = {words: set(_find_ids(vectors, words, rules)) - {-1} for words in set(right_answers)}
    has_answer = np.array([bool(right_ids[words]) for words in right_answers], bool)
    is_known = np.asarray((ids >= 0).all(axis=1) & has_answer)

    known_questions = ids[is_known]
    with track(progress, questions.name, len(known_questions), "questions") as task:
        answers = answer_questions(vectors, known_questions, rules.method, top=rules.top, advance=task.advance)

    is_right = np.zeros(len(ids), bool)
    given = zip(answers.tolist(), compress(right_answers, is_known), strict=True)
    is_right[is_known] = [answer in right_ids[words] for answer, words in given]
    return summarize_answers(questions, is_right, is_known, rules)


def answer_questions(
    vectors: Vectors,
    questions: NDArray[np.int64],
    method: str = "3cosadd",
    *,
    top: int | None = None,
    advance: Callable[[float], None] = lambda _: None,
) -> NDArray[np.int64]:
    """Return the id of the best answer to each question, ids of (a, b, c); ties by id, -1 if there is no answer.

    The words of a question and vectors of zeros are never answers, nor are words after the first `top`. `advance` is
    called with the number of questions completed since the last call, a fraction.
    """
    check_libraries("answering questions")
    from swivel.vectors.vector_kernels import keep_answers

    # A test set asks many questions about few words and few pairs (a, b). For a tile of the vocabulary, the cosines
    # with those words are one matrix product, and the contribution of a and b is computed once per pair; a question
    # then only adds two rows (for 3CosMul, multiplies them).
    words, places = np.unique(questions, return_inverse=True)
    a, b, third_of = places.reshape(-1, 3).T
    # A pair (a, b) is encoded as the number a * n + b to find the different pairs.
    pairs, pair_of = np.unique(a * len(words) + b, return_inverse=True)
    firsts, seconds = np.divmod(pairs, max(len(words), 1))
    parts_of = np.column_stack([third_of, pair_of])

    best = np.full(len(questions), -np.inf, np.float32)
    answers = np.full(len(questions), -1, np.int64)
    known = vectors.unit_vectors[words]
    size = len(vectors) if top is None else min(top, len(vectors))
    width = min(_TILE, max(1, _TABLE // max(len(words) + len(pairs), 1)))
    threads = count_cores()
    chunk = max(-(-len(questions) // threads), _MIN_CHUNK)

    for first in range(0, size, width):
        tile = slice(first, min(first + width, size))
        thirds = known @ vectors.unit_vectors[tile].T
        if method == "3cosmul":
            thirds = np.maximum(shift_cosine(thirds), 0)  # Rounding may give a negative value.
            of_pairs = thirds[seconds] / (thirds[firsts] + EPSILON)
        else:
            of_pairs = thirds[seconds] - thirds[firsts]
        zeros = np.flatnonzero(vectors.is_zero[tile])
        thirds[:, zeros] = -np.inf  # Vectors of zeros are never answers.
        of_pairs[:, zeros] = 1

        # Threads answer different questions, so they write to different elements of `best` and `answers`.
        tables = (thirds, of_pairs, thirds.max(axis=1), of_pairs.max(axis=1))
        keep = partial(keep_answers, *tables, method == "3cosmul", first)
        run_in_chunks(
            lambda part, keep=keep: keep(questions[part], parts_of[part], best[part], answers[part]),  # type: ignore[misc]
            len(questions),
            rows=chunk,
            threads=threads,
        )
        advance(len(questions) * (tile.stop - first) / size)

    return answers


def summarize_answers(
    questions: AnalogySet, is_right: Flags, is_known: Flags, rules: EvaluationConfig = DEFAULT_RULES
) -> SetResult:
    """Return the accuracies of given answers; both arrays have the order of the file.

    >>> questions = AnalogySet("q", (("a", "b", "c", "d"), ("a", "b", "e", "f")), ("section", "section"))
    >>> summarize_answers(questions, np.array([True, False]), np.array([True, False]), EvaluationConfig(draws=0)).figure
    0.5
    """
    values = np.where(is_known, is_right, np.nan)
    section_of = np.array(questions.sections, object)
    sections = [_tally("section", name, values[section_of == name], rules) for name in dict.fromkeys(section_of)]

    result = _tally("analogies", questions.name, values, rules)
    return dataclasses.replace(result, sections=tuple(sections), items=questions.questions)


def _tally(kind: str, name: str, values: Doubles, rules: EvaluationConfig) -> SetResult:
    """Return the result of items that are right (1), wrong (0) or not known (NaN)."""
    correct = int(np.nansum(values))
    known = int((~np.isnan(values)).sum())
    total = len(values)
    if known == 0:  # None and not 0 %: no question was asked.
        return SetResult(kind, name, None, None, 0, total, None, None, values=values)

    # The paper counts a question with an unknown word as wrong: a small vocabulary is no advantage.
    counted = total if rules.unknown == "wrong" else known
    interval = bootstrap.share_interval(correct, counted, draws=rules.draws)
    shares = (correct / known, correct / total)
    return SetResult(kind, name, correct / counted, interval, known, total, *shares, values=values)


def score_categories(vectors: Vectors, words: CategorySet, rules: EvaluationConfig = DEFAULT_RULES) -> SetResult:
    """Cluster the known words of a set and return the purity of the clusters."""
    with needs_extra("sets of categories", "scikit-learn", "evaluate"):
        from sklearn.cluster import KMeans

    ids = np.array(_find_ids(vectors, words.items, rules), np.int64)
    is_known = ids >= 0
    names, categories = np.unique(np.array(words.categories)[is_known], return_inverse=True)
    values = np.where(is_known, 0.0, np.nan)
    result = SetResult("categories", words.name, None, None, int(is_known.sum()), len(ids), None, None, values=values)
    if len(names) >= 2:
        unit = vectors.unit_vectors[ids[is_known]].astype(np.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Equal vectors may leave a cluster empty, which does not affect purity.
            clusters = KMeans(len(names), n_init=10, random_state=1).fit_predict(unit)

        table = np.zeros((len(names), len(names)), np.int64)
        np.add.at(table, (clusters, categories), 1)
        # Of equally frequent categories of a cluster, `argmax` returns the first one.
        values[is_known] = table.argmax(axis=1)[clusters] == categories
        result = _tally("categories", words.name, values, dataclasses.replace(rules, unknown="skip"))
    return dataclasses.replace(result, items=words.items)
