"""Prediction of links: how well vectors of nodes tell edges that were held out from pairs that have no edge."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.counts import Matrix, as_matrix
from swivel.counts.block_layout import Ints
from swivel.errors import EvaluationError
from swivel.vectors import Vectors
from swivel.vectors.folder import find_matrix
from swivel.vectors.formats import as_vectors

_TRIES = 100  # of finding a pair without an edge
_PAIRS_PER_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class LinkReport:
    """How well edges are told from as many pairs without an edge, whose nodes have the same degrees.

    Each of these pairs has a node of a held-out edge and one of another held-out edge. A score that only knows which
    nodes have many edges has an AUC of .5.
    """

    edges: int
    auc: float  # probability that an edge has a higher score than a pair without an edge; ties count half
    average_precision: float
    k: int
    hits: float  # share of the edges whose score is above that of the k-th best pair without an edge

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


def evaluate_links(
    vectors: Vectors | str | Path,
    held_out: Any,
    matrix: Matrix | str | Path | None = None,
    *,
    k: int = 50,
    seed: int = 1,
    **settings: Any,
) -> LinkReport:
    """Score held-out edges of a graph, and as many pairs without an edge, by the vectors of their nodes.

    The score is w_i . c_j + w_j . c_i, what the vectors were trained to say of a link; of vectors without columns, as
    of other tools, it is the cosine.

    Parameters
    ----------
    vectors
        Vectors of the nodes, or their file or folder.
    held_out
        The edges that were not trained with: a matrix, or what `swivel.import_counts` reads. Edges of nodes without a
        vector, or with one of zeros because they had no other edges, are left out.
    matrix
        The graph that was trained with, or its folder: its edges are no pairs without an edge. By default the folder
        `matrix` beside that of the vectors.
    k
        An edge whose score is above that of the k-th best pair without an edge is a hit; at most a tenth of the pairs.
    seed
        Of the random pairs.
    settings
        Of `swivel.import_counts`, if `held_out` is not a matrix: fields, header, separator.

    Examples
    --------
    >>> import swivel
    >>> two_rings = [(f"{ring}{i}", f"{ring}{(i + step) % 8}") for ring in "ab" for i in range(8) for step in (1, 2)]
    >>> graph = swivel.walk_counts(two_rings[1:-1], window=4)
    >>> report = evaluate_links(swivel.train(graph, dim=4), [two_rings[0], two_rings[-1]], graph)
    >>> report.edges, report.auc
    (2, 1.0)
    """
    vectors = as_vectors(vectors)
    known = find_matrix(vectors) if matrix is None else as_matrix(matrix)
    if not isinstance(held_out, Matrix):
        from swivel.counts.importers import import_counts

        held_out = import_counts(held_out, **{"sides": "undirected", **settings})

    size = len(vectors.vocabulary)
    edges = _number_pairs(_place_edges(vectors, held_out), size)
    pairs = np.stack(np.divmod(edges, size))
    taken = edges
    if known is not None:
        taken = np.union1d(edges, _number_pairs(_place_edges(vectors, known), size))

    others = _find_pairs(pairs, taken, size, np.random.default_rng(seed))
    if not others.size:
        raise EvaluationError("held_out has no edges of two known nodes, or there are no pairs without an edge")
    return _compare_scores(_score_pairs(vectors, pairs), _score_pairs(vectors, others), k)


def _place_edges(vectors: Vectors, matrix: Matrix) -> Ints:
    """Return the edges between nodes that have vectors, of shape (2, edges), by the numbers of the vectors."""
    import scipy.sparse

    cells = scipy.sparse.coo_array(matrix.to_scipy() if matrix.edges is None else matrix.edges)
    has_vector: Any = np.asarray(vectors.vectors).any(axis=1).tolist()
    ids = {label: number for label, number in vectors.vocabulary.ids.items() if has_vector[number]}
    sides = zip((matrix.rows, matrix.columns), cells.coords, strict=True)
    ends = np.array([np.array([ids.get(label, -1) for label in labels])[ends] for labels, ends in sides])
    return np.asarray(ends[:, (ends >= 0).all(axis=0)])


def _number_pairs(pairs: Ints, size: int) -> Ints:
    """Return the numbers of pairs of two nodes in either order, ascending, each once."""
    first, second = np.sort(pairs, axis=0)
    return np.unique((first * size + second)[first != second])


def _find_pairs(pairs: Ints, taken: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Return a pair whose number is not `taken` for each pair: one of its nodes, and one of another pair."""
    nodes = pairs.ravel()  # in proportion to their held-out edges
    found = [pairs[:, :0]]

    for _ in range(_TRIES):
        count = pairs.shape[1]
        if not count:
            break
        first, second = (
            pairs[rng.integers(2, size=count), np.arange(count)],
            nodes[rng.integers(nodes.size, size=count)],
        )
        numbers = np.minimum(first, second) * size + np.maximum(first, second)
        is_free = (first != second) & (taken[np.searchsorted(taken, numbers) % taken.size] != numbers)
        found.append(np.stack([first, second])[:, is_free])
        pairs = pairs[:, ~is_free]
    return np.concatenate(found, axis=1)


def _score_pairs(vectors: Vectors, pairs: Ints) -> NDArray[np.float64]:
    """Return the products of the rows and columns of pairs of nodes, or cosines if columns are not the same nodes."""
    rows = columns = vectors.unit_vectors
    if vectors.columns is not None and vectors.columns_per_row == 1:
        # In a graph of users and products, or of nouns and verbs, nodes with a link are no nearer than others.
        rows, columns = vectors.rows, vectors.columns
    scores = np.empty(pairs.shape[1])
    for begin in range(0, scores.size, _PAIRS_PER_CHUNK):
        piece = slice(begin, begin + _PAIRS_PER_CHUNK)
        first, second = pairs[:, piece]
        products = rows[first] * columns[second] + rows[second] * columns[first]
        scores[piece] = products.sum(axis=1)
    return scores


def _compare_scores(edges: NDArray[np.float64], others: NDArray[np.float64], k: int) -> LinkReport:
    """Return the measures of the scores of edges and of pairs without an edge."""
    ascending = np.sort(others)
    below = np.searchsorted(ascending, edges, "left")
    not_above = np.searchsorted(ascending, edges, "right")
    auc = float((below + not_above).mean() / (2 * others.size))
    k = max(min(k, others.size // 10), 1)
    hits = float((edges > ascending[-k]).mean())

    # Precision at each edge, among all pairs with at least its score.
    better_edges = edges.size - np.searchsorted(np.sort(edges), edges, "left")
    precision = better_edges / (better_edges + others.size - below)
    return LinkReport(edges.size, auc, float(precision.mean()), k, hits)
