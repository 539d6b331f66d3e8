"""Small vectors and counts for the tests of the explorer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import swivel
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, MatrixBuilder, MatrixSpec
from swivel.explorer.queries import VectorSet
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.search import Floats
from swivel.vectors.subwords import fit_subwords

HTML = "<img src=x onerror=alert(1)>"
PLANTED = {"man": (0, 1, 0), "king": (1, 1, 0), "woman": (0, 0, 1), "queen": (1, 0, 1)}
WORDS, DIM, GROUPS = 300, 16, 6


def make_vocabulary(*, counted: bool = True) -> Vocabulary:
    """Return four common planted words, a word of HTML, a word with spaces and signs, and many words of six groups."""
    tokens = [*PLANTED, HTML, "rock - roll", "Guitar", "guitars"]
    tokens += [f"word{number}" for number in range(WORDS - len(tokens))]
    return Vocabulary(tokens, [10_000 // (rank + 1) for rank in range(WORDS)] if counted else None)


def make_vectors(*, columns: bool = True, seed: int = 1, counted: bool = True) -> Vectors:
    """Return vectors of 300 words: word n belongs to group n % 6, and king - man + woman is queen."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((GROUPS, DIM))
    values = centers[np.arange(WORDS) % GROUPS] + 0.4 * rng.standard_normal((WORDS, DIM))
    axes = np.eye(3, DIM)
    for number, parts in enumerate(PLANTED.values()):
        values[number] = 4 * np.asarray(parts) @ axes

    rows = values.astype(np.float32)
    vocabulary = make_vocabulary(counted=counted)
    if not columns:
        return Vectors(VectorTable(vocabulary, rows))

    other = rows + 0.1 * rng.standard_normal(rows.shape).astype(np.float32)
    return Vectors(
        VectorTable(vocabulary, rows), VectorTable(vocabulary, other), vectors=rows + other, columns_per_row=1
    )


def build_matrix(path: Path) -> Matrix:
    """Return counts of the same words: 7 of king with queen, and random ones."""
    rng = np.random.default_rng(2)
    rows, columns = rng.integers(10, WORDS, (2, 2_000))
    with MatrixBuilder(path, MatrixSpec(rows=make_vocabulary()), memory_bytes=1 << 20) as builder:
        builder.add(np.append(rows, 1), np.append(columns, 3), np.append(np.ones(2_000, np.int64), 7))
        return builder.finish()


def make_table_set() -> VectorSet:
    """Return a table of 40 rows, four of which are English words by accident, and 20 columns of two groups.

    Even rows have the even columns except one, odd rows the odd ones except one: row n lacks column n % 20.
    """
    rows = [*PLANTED, *(f"row{number}" for number in range(4, 40))]
    cells = [
        (row, f"item{column}", 1)
        for number, row in enumerate(rows)
        for column in range(number % 2, 20, 2)
        if column != number % 20
    ]
    table = swivel.import_counts(cells)
    return with_maps([VectorSet("likes", swivel.train(table, dim=4), table)])[0]


def make_guessing_set() -> VectorSet:
    """Return words that begin with one of four syllables, which their vectors say, with the vectors of n-grams."""
    rng = np.random.default_rng(3)
    starts = ("bala", "dote", "firu", "gomi")
    labels = [f"{starts[n % 4]}{''.join(rng.choice(list('abcdefghij'), 5))}" for n in range(1_200)]
    words = list(dict.fromkeys(labels))
    vocabulary = Vocabulary(words, [100] * len(words))
    values = np.stack([np.eye(4, dtype=np.float32)[starts.index(label[:4])] for label in words])
    values += 0.05 * rng.standard_normal(values.shape).astype(np.float32)
    subwords = fit_subwords(values, words, vocabulary.counts)
    return with_maps([VectorSet("guessing", Vectors(VectorTable(vocabulary, values), subwords=subwords))])[0]


def spread(components: Floats) -> Floats:
    """Return points on a circle, in place of UMAP, which takes a process."""
    angles = np.arange(len(components)) * 2.4
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def make_sets(matrix: Matrix | None = None, *, two: bool = False) -> list[VectorSet]:
    sets = [VectorSet("first", make_vectors(), matrix)]
    if two:
        sets.append(VectorSet("second", make_vectors(columns=False, seed=5, counted=False)))
    return with_maps(sets)


def with_maps(sets: list[VectorSet]) -> list[VectorSet]:
    """Return the sets with maps that are computed at once."""
    for each in sets:
        for view in each.views.values():
            view.map.compute = spread
    return sets
