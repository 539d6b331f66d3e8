"""What the report of a run shows: neighbors, a small map, analogies and losses.

Only common words are candidates, so that the time is about a second for a run of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.evaluation import AnalogyResult, EvaluationConfig, read_bundled, score_analogies
from swivel.vectors import Neighbor, Vectors, VectorTable
from swivel.vectors.projection import compute_umap, fit_to_frame, reduce_vectors, weigh_labels
from swivel.vectors.search import scale_to_unit

Losses = list[dict[str, float]]  # `mean`, `observed` and `unobserved` of each epoch
BANDS = ("common", "middling", "rare")
WORDS_PER_BAND = 5
NEIGHBORS = 8
SKIPPED = 50  # the most common words are function words, whose neighbors are not informative
MIN_LETTERS = 3  # shorter words are chosen only if there are too few longer ones
MAX_CANDIDATES = 200_000  # neighbors are searched among this many most common words, and the chosen words

MAX_ANSWERS = 30_000  # analogies are answered with this many most common words
MAP_WORDS = 120
MAP_CANDIDATES = 3_000


class Asked(NamedTuple):
    """A word, its frequency and the band it was chosen from, and its nearest neighbors."""

    band: str
    word: str
    frequency: float
    nearest: tuple[Neighbor, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What the report of a run shows."""

    name: str
    vectors: Vectors
    matrix: Matrix
    asked: tuple[Asked, ...]
    map: tuple[list[str], NDArray[np.float32]]  # words, and their coordinates (n, 2)
    analogies: AnalogyResult

    @property
    def epochs(self) -> Losses:
        """The losses of the training; none if the vectors were not trained by Swivel."""
        losses: Losses = self.vectors.facts.get("losses", [])
        return losses

    @property
    def training_seconds(self) -> float:
        """Seconds spent training, including earlier calls that were interrupted."""
        return float(self.vectors.facts.get("training_seconds", 0.0))


def summarize_run(vectors: Vectors, matrix: Matrix, folder: Path | None = None) -> RunSummary:
    """Return what the report shows of vectors, which were trained on `matrix` and are, or will be, in `folder`."""
    path = (folder or vectors.path or Path("vectors")).resolve()
    return RunSummary(
        name=path.parent.name if path.name == "vectors" else path.name,
        vectors=vectors,
        matrix=matrix,
        asked=ask_words(vectors),
        map=find_map(vectors),
        analogies=score_analogies(vectors, read_bundled(), EvaluationConfig(top=MAX_ANSWERS, draws=0)),
    )


def find_map(vectors: Vectors) -> tuple[list[str], NDArray[np.float32]]:
    """Return the most informative of the common words, and their coordinates (n, 2)."""
    common = min(len(vectors), MAP_CANDIDATES)
    weights = weigh_labels(vectors, common)
    # In the order of frequency, because labels are placed in the order of the points.
    ids = np.sort(np.argsort(-weights, kind="stable")[:MAP_WORDS])
    ids = ids[weights[ids] > 0]
    points = np.empty((0, 2), np.float32)
    if len(ids):
        points = fit_to_frame(compute_umap(reduce_vectors(scale_to_unit(vectors.vectors[ids]))))
    return [vectors.vocabulary[number] for number in ids.tolist()], points


def find_frequencies(vectors: Vectors) -> NDArray[np.float64] | None:
    """Return the count of each word in the text, else the sum of its row; None if neither is known."""
    counts = vectors.vocabulary.counts.astype(np.float64)
    return counts if counts.any() else vectors.row_sums


def choose_words(vocabulary: Vocabulary) -> list[tuple[str, int]]:
    """Return some common, middling and rare words: pairs of a band and the id of a word.

    >>> words = Vocabulary([f"word{n}" for n in range(1000)])
    >>> [number for band, number in choose_words(words) if band == "middling"]
    [400, 449, 499, 549, 599]
    """
    size = len(vocabulary)
    start = min(SKIPPED, size // 10)
    bounds = {
        "common": (start, max(start + WORDS_PER_BAND, int(0.03 * size))),
        "middling": (int(0.4 * size), int(0.6 * size)),
        "rare": (int(0.9 * size), size),
    }

    # In a small vocabulary the bands overlap; a word belongs to the first one.
    chosen: dict[int, str] = {}
    for band, (low, high) in bounds.items():
        numbers = [number for number in range(low, min(high, size)) if number not in chosen]
        # Names, numbers and abbreviations say less to a reader than words.
        plain = [number for number in numbers if is_plain_word(vocabulary[number])]
        pool = plain if len(plain) >= WORDS_PER_BAND else numbers
        if pool:
            positions = np.unique(np.linspace(0, len(pool) - 1, WORDS_PER_BAND).astype(int))
            chosen |= {pool[position]: band for position in positions}

    return [(band, number) for number, band in chosen.items()]


def is_plain_word(word: str) -> bool:
    """Return whether a word has only lower-case letters, and not too few of them."""
    return len(word) >= MIN_LETTERS and word.isalpha() and word == word.lower()


def ask_words(vectors: Vectors) -> tuple[Asked, ...]:
    """Return common, middling and rare words with their nearest neighbors."""
    chosen = choose_words(vectors.vocabulary)
    words = [vectors.vocabulary[number] for _, number in chosen]
    frequencies = find_frequencies(vectors)

    candidates = vectors
    if len(vectors) > MAX_CANDIDATES:  # Normalizing millions of vectors would take longer than the rest of the report.
        ids = np.unique(np.concatenate([np.arange(MAX_CANDIDATES), [number for _, number in chosen]]))
        tokens = [vectors.vocabulary[number] for number in ids.tolist()]
        candidates = Vectors(VectorTable(Vocabulary(tokens), vectors.vectors[ids]))
    neighbors = candidates.nearest_each(words, count=NEIGHBORS) if words else []

    asked = []
    for (band, number), word, nearest in zip(chosen, words, neighbors, strict=True):
        frequency = 0.0 if frequencies is None else float(frequencies[number])
        asked.append(Asked(band, word, frequency, tuple(nearest)))
    return tuple(asked)
