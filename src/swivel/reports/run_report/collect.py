"""What there is to see of a finished run: losses, lengths, fit, neighbours.

Receives vectors with their manifest and a matrix, hands on plain numbers. Samples keep it to about a second, however
large the run was; the same run gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel import vectors as vectors_room
from swivel.config import TrainConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.reports.plots import EpochLoss, FitBucket, NormBucket, Norms
from swivel.storage import Manifest, read_manifest
from swivel.training.objective import Objective, column_offsets, observed_losses, observed_targets, row_offsets
from swivel.vectors import Neighbour, Vectors, VectorTable

Doubles = NDArray[np.float64]
BANDS = ("common", "middling", "rare")
WORDS_A_BAND, NEIGHBOURS = 5, 8
SKIPPED = 50  # words that are too common to have a meaning
SHORTEST = 3  # letters, where there are words that long
MOST_CANDIDATES = 200_000  # among which neighbours are looked for: the commonest, and the words asked about
MOST_POINTS, MOST_LENGTHS = 700, 50_000  # drawn, and measured
MOST_BLOCKS, CELLS_A_BLOCK, MOST_CELLS = 1_000, 20_000, 200_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A word, how common it is, and its nearest neighbours."""

    band: str
    word: str
    frequency: float
    nearest: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What there is to see of a run; `seconds` are those of the stages that ran now, by their names."""

    name: str
    shape: tuple[int, int]
    cells: int
    total: float
    dim: int
    manifest: Manifest
    epochs: tuple[EpochLoss, ...]
    norms: tuple[Norms, ...]
    fit: tuple[FitBucket, ...]
    asked: tuple[Asked, ...]
    seconds: Mapping[str, float]

    @property
    def training_seconds(self) -> float:
        """Seconds spent training, in all sittings."""
        return float(self.manifest.facts.get("training_seconds", 0.0))


def look_at_run(folder: Path, matrix: Matrix, seconds: Mapping[str, float] | None = None) -> RunSummary:
    """Return what there is to see of the vectors in a folder that were trained on a matrix."""
    vectors, manifest = vectors_room.load(folder), read_manifest(folder)
    place = folder.resolve()
    return RunSummary(
        name=place.parent.name if place.name == "vectors" else place.name,
        shape=matrix.shape,
        cells=matrix.cell_count,
        total=matrix.total,
        dim=vectors.dim,
        manifest=manifest,
        epochs=find_epochs(manifest),
        norms=find_norms(vectors),
        fit=find_fit(vectors, matrix, read_objective(manifest)),
        asked=ask_words(vectors),
        seconds=dict(seconds or {}),
    )


def find_epochs(manifest: Manifest) -> tuple[EpochLoss, ...]:
    """Return the mean losses of each epoch, as training wrote them down."""
    losses: list[dict[str, float]] = manifest.facts.get("losses", [])
    return tuple(EpochLoss(loss["mean"], loss["observed"], loss["unobserved"]) for loss in losses)


def read_objective(manifest: Manifest) -> Objective:
    """Return the loss that vectors were trained with; the default's where the manifest does not say."""
    return Objective.from_config(TrainConfig(**manifest.config.get("train", {})))


def find_frequencies(vectors: Vectors) -> Doubles | None:
    """Return how often each word was seen, or the sum of its row's counts; None where neither is known."""
    counts = vectors.vocabulary.counts.astype(np.float64)
    return counts if counts.any() else vectors.row_sums


def find_norms(vectors: Vectors) -> tuple[Norms, ...]:
    """Return the lengths of the trained rows and of the vectors that users get, against frequency."""
    frequencies = find_frequencies(vectors)
    if frequencies is None:
        return ()
    sides = {"rows, w": vectors.rows}
    if vectors.vectors is not vectors.rows and not np.shares_memory(vectors.vectors, vectors.rows):
        sides["vectors, as they are used"] = vectors.vectors
    # Evenly over the ranks: a share of the rare words, all of the few common ones.
    ids = spread_over_ranks(len(vectors), MOST_LENGTHS)
    seen = ids[frequencies[ids] > 0]
    return tuple(_norms(name, values, frequencies, seen) for name, values in sides.items() if len(seen))


def _norms(name: str, values: NDArray[np.float32], frequencies: Doubles, ids: NDArray[np.int64]) -> Norms:
    lengths, seen = np.linalg.norm(values[ids], axis=1).astype(np.float64), frequencies[ids]
    buckets = []
    for low, high, members in split_by_frequency(seen):
        tenth, median, ninetieth = np.quantile(lengths[members], (0.1, 0.5, 0.9)).tolist()
        buckets.append(NormBucket(low, high, int(members.sum()), tenth, median, ninetieth))
    drawn = spread_over_ranks(len(ids), MOST_POINTS)
    return Norms(name, seen[drawn], lengths[drawn], tuple(buckets))


def spread_over_ranks(size: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` ranks of `size`, half of them evenly, half evenly by their logarithm.

    >>> spread_over_ranks(5, 10).tolist(), len(spread_over_ranks(1_000_000, 100)) <= 100
    ([0, 1, 2, 3, 4], True)
    """
    if size <= most:
        return np.arange(size)
    even = np.linspace(0, size - 1, most // 2)
    return np.unique(np.concatenate([even, np.geomspace(1, size, most - most // 2) - 1]).astype(np.int64))


def split_by_frequency(frequencies: Doubles) -> Iterator[tuple[float, float, NDArray[np.bool_]]]:
    """Yield buckets of frequencies above 0 at 1, 3, 10, 30, ...: bounds, and who is inside; empty ones are left out.

    >>> [(low, high, int(members.sum())) for low, high, members in split_by_frequency(np.array([1.0, 2, 30, 40]))]
    [(1.0, 3.0, 2), (30.0, 100.0, 2)]
    """
    lowest, highest = float(frequencies.min()), float(frequencies.max())
    powers = range(int(np.floor(np.log10(lowest))), int(np.floor(np.log10(highest))) + 1)
    edges = [step * 10.0**power for power in powers for step in (1, 3)] + [10.0 ** (powers[-1] + 1)]
    for low, high in pairwise(edges):
        members = (frequencies >= low) & (frequencies < high)
        if members.any():
            yield low, high, members


def find_fit(vectors: Vectors, matrix: Matrix, objective: Objective) -> tuple[FitBucket, ...]:
    """Return, by the frequency of the row, the mean loss of observed cells and how far their products are off.

    From a sample of cells of blocks along the diagonals: blocks are interleaved, so that each has all frequencies.
    Without columns there are no products, and no buckets.
    """
    frequencies = find_frequencies(vectors)
    if vectors.columns is None or frequencies is None:
        return ()
    row_offset = row_offsets(matrix.row_sums, matrix.total, objective)
    column_offset = column_offsets(matrix.column_sums, objective)
    seen, losses, squares = [], [], []
    for rows, columns, counts in _sample_cells(matrix):
        products = np.einsum("nd,nd->n", vectors.rows[rows], vectors.columns[columns]).astype(np.float64)
        offsets = row_offset[rows] + column_offset[columns]
        seen.append(rows)
        losses.append(observed_losses(products, counts, offsets, objective))
        squares.append((products - observed_targets(counts, offsets)) ** 2)
    return _fit_buckets(frequencies, np.concatenate(seen), np.concatenate(losses), np.concatenate(squares))


def _fit_buckets(
    frequencies: Doubles, rows: NDArray[np.int64], losses: Doubles, squares: Doubles
) -> tuple[FitBucket, ...]:
    of_cells = frequencies[rows]
    known = of_cells > 0
    if not known.any():
        return ()
    losses, squares, rows, of_cells = losses[known], squares[known], rows[known], of_cells[known]
    found = []
    for low, high, members in split_by_frequency(of_cells):
        words = int(((frequencies >= low) & (frequencies < high)).sum())
        error = float(np.sqrt(squares[members].mean()))
        found.append(FitBucket(low, high, words, int(members.sum()), float(losses[members].mean()), error))
    return tuple(found)


def _sample_cells(matrix: Matrix) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Doubles]]:
    """Yield rows, columns and counts of some observed cells, block by block."""
    height, width = matrix.row_blocks, matrix.column_blocks
    rng = np.random.default_rng(1)
    taken = 0
    for n in range(min(MOST_BLOCKS, height * width)):
        # Diagonal after diagonal; the main one, where words meet themselves, comes last.
        i, j = n % height, (n % height + 1 + n // height) % width
        cells = matrix.cells(i, j)
        size = len(cells.counts)
        chosen = rng.choice(size, CELLS_A_BLOCK, replace=False, shuffle=False) if size > CELLS_A_BLOCK else slice(None)
        positions = cells.positions[chosen].astype(np.int64)
        first, second = positions >> 16, positions & 0xFFFF
        row, column = (second, first) if cells.mirrored else (first, second)
        yield row * height + i, column * width + j, cells.counts[chosen].astype(np.float64)
        taken += len(positions)
        if taken >= MOST_CELLS:
            break


def choose_words(vocabulary: Vocabulary) -> list[tuple[str, int]]:
    """Return some common, middling and rare words: the band and the number of each.

    >>> words = Vocabulary([f"word{n}" for n in range(1000)])
    >>> [number for band, number in choose_words(words) if band == "middling"]
    [400, 449, 499, 549, 599]
    """
    size = len(vocabulary)
    start = min(SKIPPED, size // 10)
    bounds = {
        "common": (start, max(start + WORDS_A_BAND, int(0.03 * size))),
        "middling": (int(0.4 * size), int(0.6 * size)),
        "rare": (int(0.9 * size), size),
    }
    chosen: dict[int, str] = {}
    for band, (low, high) in bounds.items():
        numbers = [number for number in range(low, min(high, size)) if number not in chosen]
        plain = [number for number in numbers if _is_plain(vocabulary[number])]
        pool = plain if len(plain) >= WORDS_A_BAND else numbers
        places = np.unique(np.linspace(0, len(pool) - 1, WORDS_A_BAND).astype(int)) if pool else ()
        chosen |= {pool[place]: band for place in places}
    return [(band, number) for number, band in chosen.items()]


def _is_plain(word: str) -> bool:
    return len(word) >= SHORTEST and word.isalpha() and word == word.lower()


def ask_words(vectors: Vectors) -> tuple[Asked, ...]:
    """Return common, middling and rare words with their nearest neighbours."""
    chosen, frequencies = choose_words(vectors.vocabulary), find_frequencies(vectors)
    among = vectors
    if len(vectors) > MOST_CANDIDATES:  # Scaling millions of vectors would take longer than all else here.
        ids = np.unique(np.concatenate([np.arange(MOST_CANDIDATES), [number for _, number in chosen]]))
        tokens = [vectors.vocabulary[number] for number in ids.tolist()]
        among = Vectors(VectorTable(Vocabulary(tokens), vectors.vectors[ids]))
    words = [vectors.vocabulary[number] for _, number in chosen]
    found = among.nearest_each(words, count=NEIGHBOURS) if words else []
    return tuple(
        Asked(band, word, 0.0 if frequencies is None else float(frequencies[number]), tuple(nearest))
        for (band, number), word, nearest in zip(chosen, words, found, strict=True)
    )


def facts_of(run: RunSummary) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of a run by stage, and what was chosen for it."""
    facts, config = run.manifest.facts, run.manifest.config
    counted = facts.get("counted_with", {})
    stages = {name: values for name, values in counted.items() if isinstance(values, Mapping)}
    return {**stages, **config, "chosen for this run": facts.get("plan", {})}
