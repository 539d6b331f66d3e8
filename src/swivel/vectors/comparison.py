"""Comparison of two models trained on different texts: which words changed their neighbors.

A low cosine after alignment is not enough to call a word changed. Rare words are noisy and have lower cosines in any
comparison, so words are ranked by `rank_z`: how far the cosine is below the median of words of similar frequency, in
units of their spread. Two trainings on the same text also differ. Given such a second training (`noise_baseline`),
`same_text` is the usual cosine between the two trainings for words of similar frequency, and `moved_z` is how far the
word's cosine is below it.

Cosines are transformed by arctanh, which makes the spread comparable near 1 and near 0. Center and spread are the
median and the median absolute deviation, which a few changed words do not affect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import NATURAL, POSITIVE_INT, check_fields, config_field
from swivel.corpus.vocabulary import Vocabulary, escape
from swivel.errors import ConfigError
from swivel.runtime.options import check_names
from swivel.runtime.resources import check_memory
from swivel.storage.files import write_file
from swivel.storage.output_folder import check_format
from swivel.vectors import Vectors, VectorTable, shared_words
from swivel.vectors.formats import as_vectors
from swivel.vectors.search import LABEL_BYTES

Doubles = NDArray[np.float64]

FORMATS = ("tsv", "json")
MAD_TO_STD = 1.4826  # standard deviation of a normal distribution / its median absolute deviation
MIN_SPREAD = 0.01  # of arctanh(cosine); the spread of two equal models is 0
MAX_COSINE = 1 - 1e-6  # arctanh(1) is infinite
WINDOW_WORDS = 400  # words of similar frequency: half of them more frequent, half less
_CHUNK_ROWS = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """Settings of a comparison: the words to compare and the number of neighbors."""

    top: int = config_field(20_000, "compare the N most frequent shared words", POSITIVE_INT)
    min_count: int = config_field(20, "skip words that occur fewer times in either text, if counts are known", NATURAL)
    neighbors: int = config_field(10, "number of neighbors per word, among the words compared", POSITIVE_INT)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Word:
    """The comparison of one word; `same_text` and `moved_z` are None without a noise baseline."""

    word: str
    count_before: int
    count_after: int
    cosine: float  # of its two vectors after alignment
    usual: float  # median cosine of words of similar frequency
    rank_z: float  # how far the cosine is below `usual`, in units of spread; words are ranked by it
    same_text: float | None  # the same as `usual` and `rank_z`, relative to two trainings on one text
    moved_z: float | None
    overlap: float  # fraction of its nearest neighbors that both models have in common
    before: tuple[str, ...]  # its nearest neighbors in the first and in the second model
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How similar two models are, as means over all words compared."""

    cosine: float  # mean cosine after alignment
    overlap: float  # mean fraction of common nearest neighbors


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """The result of a comparison: words by descending `rank_z`, and the agreement of the models."""

    words: tuple[Word, ...]
    whole: Agreement
    noise_baseline: Agreement | None

    def __iter__(self) -> Iterator[Word]:
        return iter(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def to_dict(self, count: int | None = None) -> dict[str, Any]:
        """Return a dictionary for JSON, with the first `count` words (by default all)."""
        words = [asdict(word) for word in self.words[:count]]
        noise_baseline = None if self.noise_baseline is None else asdict(self.noise_baseline)
        return {"compared": len(self), "whole": asdict(self.whole), "noise_baseline": noise_baseline, "words": words}

    def write(self, file: str | Path) -> None:
        """Write all words to a `.tsv` table or, with the agreement, to a `.json` file."""
        path = Path(file)
        if check_format(path, FORMATS, "comparisons") == "tsv":
            rows = [Word.__dataclass_fields__, *(map(_cell, asdict(word).values()) for word in self.words)]
            text = "".join("\t".join(row) + "\n" for row in rows)
        else:
            text = json.dumps(self.to_dict(), ensure_ascii=False)

        # A label may have half a surrogate pair, of which UTF-8 has no bytes; its escape is that of JSON, too.
        write_file(path, text.encode(errors="backslashreplace"))


def _cell(value: Any) -> str:
    # Words are escaped as in `rows.txt`.
    if isinstance(value, tuple):
        return " ".join(escape(word) for word in value)
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape(str(value))


def compare(
    before: Vectors | str | Path,
    after: Vectors | str | Path,
    *,
    noise_baseline: Vectors | str | Path | None = None,
    **settings: Any,
) -> ModelComparison:
    """Return the words that two models share, those that changed most first.

    Parameters
    ----------
    before, after
        Models of two texts with the same number of dimensions, or their paths.
    noise_baseline
        A second training on the text of `before` with another seed, or its path. It shows how much vectors differ
        between two trainings on the same text.
    settings
        Fields of CompareConfig: top, min_count, neighbors.

    Raises
    ------
    ConfigError
        If the models share too few words or have different numbers of dimensions.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> words, table = [f"w{n}" for n in range(50)], rng.normal(size=(50, 4)).astype(np.float32)
    >>> moved = table.copy()
    >>> moved[7] *= -1
    >>> before, after = (Vectors(VectorTable(Vocabulary(words), values)) for values in (table, moved[:, ::-1]))
    >>> compare(before, after).words[0].word
    'w7'
    """
    check_names(settings, CompareConfig)
    config = CompareConfig(**settings)
    models = [as_vectors(model) for model in (before, after, noise_baseline) if model is not None]
    check_memory("comparing", sum(2 * model.vectors.nbytes + LABEL_BYTES * len(model) for model in models))

    # All models are restricted to the same words in the same order, so that row n is the same word in each.
    words = _choose_words(models, config)
    models = [_restrict(model, words) for model in models]
    neighbors = [
        [tuple(near.token for near in line) for line in model.nearest_each(words, config.neighbors)] for model in models
    ]
    # A model of few words has fewer neighbors than requested.
    max_shared = max(min(config.neighbors, len(words) - 1), 1)

    def measure(first: int, second: int) -> tuple[Doubles, Doubles]:
        """Return the cosine of each word in two models, and the fraction of neighbors that they share."""
        aligned = models[first].align(models[second]).unit_vectors
        cosines = np.einsum("ij,ij->i", aligned, models[second].unit_vectors, dtype=np.float64)
        pairs = zip(neighbors[first], neighbors[second], strict=True)
        overlaps = [len({*a} & {*b}) / max_shared for a, b in pairs]
        return np.clip(cosines, -1, 1), np.array(overlaps)

    # 0 and 1 are the models of the two texts, 2 is the second training on the first text.
    cosines, overlaps = measure(0, 1)
    baseline = None
    baseline_cosines = None
    if noise_baseline is not None:
        baseline_cosines, baseline_overlaps = measure(2, 0)
        baseline = Agreement(float(baseline_cosines.mean()), float(baseline_overlaps.mean()))

    ranked = _rank_words(models, neighbors, cosines, overlaps, baseline_cosines)
    return ModelComparison(tuple(ranked), Agreement(float(cosines.mean()), float(overlaps.mean())), baseline)


def _rank_words(
    models: Sequence[Vectors],
    neighbors: Sequence[Sequence[tuple[str, ...]]],
    cosines: Doubles,
    overlaps: Doubles,
    baseline_cosines: Doubles | None,
) -> list[Word]:
    """Return the words by descending `rank_z`; `baseline_cosines` are those of two trainings on one text."""
    before = models[0].vocabulary
    after = models[1].vocabulary
    angles = _to_angles(cosines)  # in the order of frequency
    usual, spread = running_middle(angles)
    rank_z = (usual - angles) / spread

    same_text: list[float | None] = [None] * len(cosines)
    moved_z: list[float | None] = [None] * len(cosines)
    if baseline_cosines is not None:
        same_usual, same_spread = running_middle(_to_angles(baseline_cosines))
        same_text = np.tanh(same_usual).tolist()
        moved_z = ((same_usual - angles) / same_spread).tolist()

    arrays = (before.counts, after.counts, cosines, np.tanh(usual), rank_z)
    columns = (before.tokens, *(array.tolist() for array in arrays), same_text, moved_z, overlaps.tolist())
    words = list(map(Word, *columns, *neighbors[:2]))
    return [words[n] for n in np.argsort(-rank_z, kind="stable").tolist()]


def _choose_words(models: Sequence[Vectors], config: CompareConfig) -> list[str]:
    """Return the words to compare, most frequent first: in all models, with a vector, and frequent enough."""
    words = shared_words(models[0].vocabulary, models[1].vocabulary)
    for model in models:
        counts = model.vocabulary.counts
        # A count of 0 is unknown, as in files of other tools.
        is_usable = ((counts == 0) | (counts >= config.min_count)) & ~model.is_zero
        words = [word for word in words if word in model and is_usable[model.vocabulary.id(word)]]

    if not words:
        raise ConfigError(
            f"the models share no word that has a vector and at least {config.min_count} occurrences: lower min_count",
            argument="min_count",
        )
    return words[: config.top]


def _restrict(model: Vectors, words: Sequence[str]) -> Vectors:
    """Return the model with only these words, in this order."""
    ids = [model.vocabulary.id(word) for word in words]
    return Vectors(VectorTable(Vocabulary(words, model.vocabulary.counts[ids]), model.unit_vectors[ids]))


def _to_angles(cosines: Doubles) -> Doubles:
    return np.arctanh(np.clip(cosines, -MAX_COSINE, MAX_COSINE))


def running_middle(values: Doubles) -> tuple[Doubles, Doubles]:
    """Return for each value the median and the spread of a window of values around it."""
    # Values are ordered by the frequency of their words, so a window holds words of similar frequency.
    width = min(WINDOW_WORDS, len(values))
    starts = np.clip(np.arange(len(values)) - width // 2, 0, len(values) - width)
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    middle = np.empty(len(windows))
    spread = np.empty(len(windows))

    # In chunks: np.median copies its input, and all windows together are 400 times the size of `values`.
    for start in range(0, len(windows), _CHUNK_ROWS):
        piece = slice(start, start + _CHUNK_ROWS)
        middle[piece] = np.median(windows[piece], axis=1)
        spread[piece] = np.median(np.abs(windows[piece] - middle[piece, None]), axis=1)

    return middle[starts], np.maximum(MAD_TO_STD * spread, MIN_SPREAD)[starts]
