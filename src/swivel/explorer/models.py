"""The vectors that are looked at, and the ways of reading them.

Receives paths, hands on `VectorSet`s: each has views (the vectors as they were saved, w, c, w + c), every one of which
is a `Vectors` made when it is first asked for. It answers no questions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import VectorsConfig
from swivel.errors import ConfigError, StorageError
from swivel.explorer.spelling import Speller
from swivel.storage import MANIFEST, read_manifest
from swivel.vectors import Vectors, VectorTable, combine_vectors
from swivel.vectors.formats import find_vectors, open_vectors

if TYPE_CHECKING:
    from swivel.counts import Matrix

_EXAMPLE_RANKS = (300, 480, 700, 950, 1_300, 1_900, 2_800)  # common enough to be known, too rare to be grammar
_EXPRESSIONS = ("king - man + woman", "paris - france + italy", "larger - large + small", "music + film")
_ROWS_COMPARED = 64  # enough to tell whether saved vectors are w + c


class View:
    """One way of reading a set of vectors, made when it is first asked for.

    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> view = View("w", "w", lambda: Vectors(VectorTable(Vocabulary(["a"]), np.ones((1, 2), np.float32))))
    >>> view.vectors.vocabulary[0]
    'a'
    """

    def __init__(self, key: str, label: str, make: Callable[[], Vectors]) -> None:
        self.key = key
        self.label = label
        self._make = make
        self._lock = threading.Lock()
        self._made: Vectors | None = None

    @property
    def vectors(self) -> Vectors:
        """The vectors, with their lengths computed: threads that come meanwhile wait for the first one."""
        with self._lock:
            if self._made is None:
                made = self._make()
                _ = made.unit_vectors, made.is_zero
                self._made = made
            return self._made

    @cached_property
    def speller(self) -> Speller:
        """Completion and close spellings over the view's labels."""
        return Speller(self.vectors.vocabulary.tokens)

    @cached_property
    def _is_counted(self) -> bool:
        return bool(self.vectors.vocabulary.counts.any())

    def facts(self, number: int) -> dict[str, Any]:
        """Return what is known of a label, by its id."""
        vocabulary = self.vectors.vocabulary
        count = int(vocabulary.counts[number]) if self._is_counted else None
        return {"token": vocabulary[number], "count": count, "rank": number + 1, "of": len(vocabulary)}


class VectorSet:
    """Vectors under a name, with the counts they were trained on where those are at hand."""

    def __init__(self, name: str, vectors: Vectors, matrix: Matrix | None = None) -> None:
        if matrix is not None and matrix.shape[0] != len(vectors):
            raise ConfigError(
                f"{matrix.path}: {matrix.shape[0]:,} rows, but {name} has {len(vectors):,}: "
                "pass the matrix that these vectors were trained on"
            )
        self.name = name
        self.vectors = vectors
        self.matrix = matrix
        self.views: Mapping[str, View] = {view.key: view for view in _list_views(vectors)}

    def view(self, key: str) -> View:
        """Return a view by its key, the first one for an empty key."""
        if not key:
            return next(iter(self.views.values()))
        if key not in self.views:
            raise ConfigError(f"view must be one of {', '.join(self.views)}, got {key[:40]!r}")
        return self.views[key]

    @cached_property
    def dead_columns(self) -> NDArray[np.intp]:
        """Columns that are all zeros: they never co-occurred, and go with nothing."""
        columns = self.vectors.columns
        return np.empty(0, np.intp) if columns is None else np.flatnonzero(~columns.any(axis=1))

    def count(self, row: str, column: str) -> float | None:
        """Return how often two features co-occurred, None where the matrix does not say."""
        if self.matrix is None or row not in self.matrix.rows or column not in self.matrix.columns:
            return None
        return self.matrix.count(row, column)

    def describe(self) -> dict[str, Any]:
        """Return what the page must know of the set."""
        vectors = self.vectors
        return {
            "name": self.name,
            "tokens": len(vectors),
            "dim": vectors.dim,
            "columns": 0 if vectors.columns is None else len(vectors.columns),
            "has_counts": bool(vectors.vocabulary.counts.any()),
            "has_matrix": self.matrix is not None,
            "examples": self._choose_examples(),
            "expressions": [text for text in _EXPRESSIONS if all(word in vectors for word in text.split()[::2])],
            "views": [{"key": view.key, "label": view.label} for view in self.views.values()],
        }

    def _choose_examples(self) -> list[str]:
        tokens = self.vectors.vocabulary.tokens
        return [tokens[rank] for rank in _EXAMPLE_RANKS if rank < len(tokens)] or list(tokens[:6])


def _list_views(vectors: Vectors) -> list[View]:
    """Return the ways of reading, the one that was saved first; the same vectors are not listed twice."""
    columns, kind = vectors.contents.columns, _saved_as(vectors)
    saved = View("saved", "as saved", lambda: vectors)
    if columns is None:
        return [saved]
    made = [View("w", "w", lambda: Vectors(vectors.contents.rows)), View("c", "c", lambda: Vectors(columns))]
    if vectors.columns_per_row:
        made.append(View("w+c", "w + c", lambda: Vectors(_sum_sides(vectors))))
    if kind == "other":
        return [saved, *made]
    first = next(view for view in made if view.key == kind)
    return [first, *(view for view in made if view is not first)]


def _saved_as(vectors: Vectors) -> str:
    """Return which of w and w + c the saved vectors are, or `other`."""
    if vectors.vectors is vectors.rows:
        return "w"
    if vectors.columns is None or not vectors.columns_per_row or vectors.dim != vectors.rows.shape[1]:
        return "other"
    first = slice(0, _ROWS_COMPARED)
    columns = vectors.columns[: _ROWS_COMPARED * vectors.columns_per_row]
    summed = vectors.rows[first] + columns.reshape(-1, vectors.columns_per_row, vectors.dim).sum(axis=1)
    return "w+c" if np.allclose(summed, vectors.vectors[first], atol=1e-5) else "other"


def _sum_sides(vectors: Vectors) -> VectorTable:
    summed = combine_vectors(vectors.rows, vectors.columns, vectors.columns_per_row, VectorsConfig(combine="sum"))
    return VectorTable(vectors.vocabulary, summed)


def open_set(path: str | Path, matrix: str | Path | None = None) -> VectorSet:
    """Return the vectors at a path, with the matrix named, or else the one beside them that they were trained on.

    Raises StorageError for what cannot be read, ConfigError for a matrix of other rows.
    """
    from swivel.counts import open_matrix

    vectors = open_vectors(path)
    found = find_vectors(path)
    counts = open_matrix(matrix) if matrix is not None else _find_matrix(found)
    if matrix is not None and counts is not None and counts.rows.tokens != vectors.vocabulary.tokens:
        raise ConfigError(
            f"{matrix}: its rows are not the words of {found}; pass the matrix that these vectors were trained on"
        )
    return VectorSet(_name_set(found), vectors, counts)


def _name_set(path: Path) -> str:
    """Return what to call vectors: the folder's or file's name, of a run the run's."""
    path = path.resolve()
    return path.parent.name if path.name == "vectors" else path.name


def _find_matrix(path: Path) -> Matrix | None:
    """Return the matrix beside a folder of vectors, where it is the one that the vectors' manifest names."""
    from swivel.counts import open_matrix

    try:
        provenance = read_manifest(path).inputs.get("matrix") if (path / MANIFEST).exists() else None
        beside = path.parent / "matrix"
        if provenance is None or not (beside / MANIFEST).exists():
            return None
        matrix = open_matrix(beside)
    except StorageError:
        return None  # Nobody asked for it: without it there are no counts, and all else works.
    return matrix if matrix.fingerprint == provenance else None
