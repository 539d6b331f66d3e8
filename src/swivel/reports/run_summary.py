"""The numbers in the report of a run: neighbors, a small map, analogies, losses, lengths of vectors and fit.

Lengths, cells and candidates are sampled, so that the time is about a second for a run of any size. The samples are
deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swivel.config import TrainConfig, recorded_config
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.evaluation import EvaluationConfig, SetResult, read_bundled, score_analogies
from swivel.reports.plots import FitBucket, NormBucket, Norms
from swivel.training.objective import Objective, column_offsets, observed_losses, observed_targets, row_offsets
from swivel.vectors import Neighbor, Vectors, VectorTable
from swivel.vectors.projection import compute_umap, fit_to_frame, reduce_vectors, weigh_labels
from swivel.vectors.search import scale_to_unit

Doubles = NDArray[np.float64]
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

# Samples: lengths that are computed and points that are drawn; blocks and cells for the loss by frequency.
MAX_LENGTHS = 50_000
MAX_POINTS = 700
MAX_BLOCKS = 1_000
CELLS_PER_BLOCK = 20_000
MAX_CELLS = 200_000


class Asked(NamedTuple):
    """A word, its frequency and the band it was chosen from, and its nearest neighbors."""

    band: str
    word: str
    frequency: float
    nearest: tuple[Neighbor, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The numbers in the report of a run; `seconds` are those of the stages that ran in this call, by name."""

    name: str
    vectors: Vectors
    matrix: Matrix
    epochs: Losses
    norms: tuple[Norms, ...]
    fit: tuple[FitBucket, ...]
    asked: tuple[Asked, ...]
    map: tuple[list[str], NDArray[np.float32]]  # words, and their coordinates (n, 2)
    analogies: SetResult
    seconds: Mapping[str, float]

    @property
    def training_seconds(self) -> float:
        """Seconds spent training, including earlier calls that were interrupted."""
        return float(self.vectors.facts.get("training_seconds", 0.0))


def summarize_run(
    vectors: Vectors,
    matrix: Matrix,
    seconds: Mapping[str, float] | None = None,
    *,
    folder: Path | None = None,
    fit: tuple[FitBucket, ...] | None = None,
) -> RunSummary:
    """Return the numbers for the report on vectors, which were trained on `matrix`."""
    # `folder` is that of the vectors, if these are not written yet; `fit` is the result of `find_fit`, if it is
    # known.
    path = (folder or vectors.path or Path("vectors")).resolve()

    return RunSummary(
        name=path.parent.name if path.name == "vectors" else path.name,
        vectors=vectors,
        matrix=matrix,
        epochs=vectors.facts.get("losses", []),  # none if the vectors were not trained by Swivel
        norms=find_norms(vectors),
        fit=find_fit(vectors, matrix) if fit is None else fit,
        asked=ask_words(vectors),
        map=find_map(vectors),
        analogies=score_analogies(vectors, read_bundled(), EvaluationConfig(top=MAX_ANSWERS, draws=0)),
        seconds=dict(seconds or {}),
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


def read_objective(vectors: Vectors) -> Objective:
    """Return the objective of the training, or the default objective if it is not known."""
    return Objective.from_config(recorded_config(TrainConfig, vectors.settings.get("train", {})))


def find_frequencies(vectors: Vectors) -> Doubles | None:
    """Return the count of each word in the text, else the sum of its row; None if neither is known."""
    counts = vectors.vocabulary.counts.astype(np.float64)
    return counts if counts.any() else vectors.row_sums


def find_norms(vectors: Vectors) -> tuple[Norms, ...]:
    """Return the lengths of the row vectors w, and of the combined vectors if they differ, against frequency."""
    frequencies = find_frequencies(vectors)
    if frequencies is None:
        return ()

    # The rows show what the training did; the combined vectors may be scaled, or projected.
    sides = {"rows, w": vectors.rows}
    if not np.shares_memory(vectors.vectors, vectors.rows):
        sides["vectors, as they are used"] = vectors.vectors

    # A sample of the many rare words, and all of the few common ones.
    ids = spread_over_ranks(len(vectors), MAX_LENGTHS)
    ids = ids[frequencies[ids] > 0]
    if not len(ids):
        return ()
    sampled = frequencies[ids]
    drawn = spread_over_ranks(len(ids), MAX_POINTS)

    norms = []
    for name, values in sides.items():
        lengths = np.linalg.norm(values[ids], axis=1).astype(np.float64)
        buckets = []
        for low, high, members in split_by_frequency(sampled):
            tenth, median, ninetieth = np.quantile(lengths[members], (0.1, 0.5, 0.9)).tolist()
            buckets.append(NormBucket(low, high, int(members.sum()), tenth, median, ninetieth))
        norms.append(Norms(name, sampled[drawn], lengths[drawn], tuple(buckets)))
    return tuple(norms)


def spread_over_ranks(size: int, limit: int) -> NDArray[np.int64]:
    """Return at most `limit` of the ranks 0 to `size` - 1: half evenly spaced, half on a logarithmic scale.

    >>> spread_over_ranks(5, 10).tolist(), len(spread_over_ranks(1_000_000, 100)) <= 100
    ([0, 1, 2, 3, 4], True)
    """
    if size <= limit:
        return np.arange(size)

    # Frequencies follow Zipf's law: evenly spaced ranks alone would leave out most of the common words.
    even = np.linspace(0, size - 1, limit // 2)
    logarithmic = np.geomspace(1, size, limit - limit // 2) - 1
    return np.unique(np.concatenate([even, logarithmic]).astype(np.int64))


def split_by_frequency(frequencies: Doubles) -> Iterator[tuple[float, float, NDArray[np.bool_]]]:
    """Yield the non-empty buckets [1, 3), [3, 10), [10, 30), ...: low, high, and a mask of the members.

    All frequencies must be above 0.

    >>> [(low, high, int(members.sum())) for low, high, members in split_by_frequency(np.array([1.0, 2, 30, 40]))]
    [(1.0, 3.0, 2), (30.0, 100.0, 2)]
    """
    lowest = int(np.floor(np.log10(float(frequencies.min()))))
    highest = int(np.floor(np.log10(float(frequencies.max()))))
    edges = [step * 10.0**power for power in range(lowest, highest + 1) for step in (1, 3)] + [10.0 ** (highest + 1)]

    for low, high in pairwise(edges):
        members = (frequencies >= low) & (frequencies < high)
        if members.any():
            yield low, high, members


def find_fit(vectors: Vectors, matrix: Matrix) -> tuple[FitBucket, ...]:
    """Return the mean loss of observed cells and the error of their predictions, by the frequency of the row.

    The cells are a sample of those that the vectors were trained on, or of their logarithms if `transform` says so. The
    result is empty if the vectors have no columns or no frequencies.
    """
    frequencies = find_frequencies(vectors)
    if vectors.columns is None or frequencies is None:
        return ()
    matrix = matrix.transformed(vectors.settings.get("train", {}).get("transform", "none"))
    objective = read_objective(vectors)

    # Target of an observed cell: log x_ij + log D - log x_i* - log x_*j. The offsets are all but the first term.
    row_offset = row_offsets(matrix.row_sums, matrix.total, objective)
    column_offset = column_offsets(matrix.column_sums)
    samples = []
    for rows, columns, counts in _sample_cells(matrix):
        products = np.einsum("nd,nd->n", vectors.rows[rows], vectors.columns[columns]).astype(np.float64)
        offsets = row_offset[rows] + column_offset[columns]
        # The loss is weighted by f(x); the distance is not, so that it can be compared between frequencies.
        losses = observed_losses(products, counts, offsets, objective)
        squares = (products - observed_targets(counts, offsets)) ** 2
        samples.append(np.stack([frequencies[rows], losses, squares]))

    sampled = np.concatenate(samples, axis=1)
    cell_frequencies, losses, squares = sampled[:, sampled[0] > 0]
    if not len(cell_frequencies):
        return ()

    buckets = []
    for low, high, members in split_by_frequency(cell_frequencies):
        words = int(((frequencies >= low) & (frequencies < high)).sum())
        error = float(np.sqrt(squares[members].mean()))
        buckets.append(FitBucket(low, high, words, int(members.sum()), float(losses[members].mean()), error))
    return tuple(buckets)


def _sample_cells(matrix: Matrix) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Doubles]]:
    """Yield rows, columns and counts of sampled observed cells, block by block."""
    # Blocks are interleaved, so that a few of them contain words of all frequencies.
    height = matrix.row_blocks
    width = matrix.column_blocks
    rng = np.random.default_rng(1)
    sampled = 0

    for n in range(min(MAX_BLOCKS, height * width)):
        # Go through the diagonals. The main diagonal, with the cells of each word with itself, comes last.
        i = n % height
        j = (i + 1 + n // height) % width
        cells = matrix.cells(i, j)

        chosen: NDArray[np.int64] | slice = slice(None)
        if len(cells.counts) > CELLS_PER_BLOCK:
            chosen = rng.choice(len(cells.counts), CELLS_PER_BLOCK, replace=False, shuffle=False)

        # A position packs (first << 16 | second); in a mirrored block, `first` is the column.
        positions = cells.positions[chosen].astype(np.int64)
        row = positions >> 16
        column = positions & 0xFFFF
        if cells.mirrored:
            row, column = column, row
        yield row * height + i, column * width + j, cells.counts[chosen].astype(np.float64)

        sampled += len(positions)
        if sampled >= MAX_CELLS:
            break


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
