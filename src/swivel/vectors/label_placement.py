"""How informative labels are, and places for a few hundred of them on a small map."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swivel.vectors.search import Floats
from swivel.vectors.vectors import Vectors

_PERPLEXITY = 12.0  # about how many neighbors of a point count
_STEPS = 250
_EXAGGERATED_STEPS = 60


def weigh_labels(vectors: Vectors, count: int) -> Floats:
    """Return how informative each of the first labels is: the length of its row times the logarithm of its count.

    w . c is the PMI of two words, so a row is short if its word occurs with all others as often as by chance: "of" and
    "and" are not informative. Without counts, the rank by count replaces them.
    """
    lengths = np.linalg.norm(vectors.rows[:count], axis=1)
    counts = vectors.vocabulary.counts[:count]
    frequencies = counts if counts.any() else len(vectors) / (np.arange(count) + 1)
    return np.asarray(lengths * np.log1p(frequencies), np.float32)


def place_points(unit: Floats) -> Floats:
    """Return coordinates (n, 2) in -1 .. 1 of a few hundred vectors of length 1, by exact t-SNE; deterministic.

    >>> groups = np.repeat(np.eye(2, 8, dtype=np.float32), 10, axis=0)
    >>> points = place_points(groups)
    >>> bool(np.linalg.norm(points[0] - points[9]) < np.linalg.norm(points[0] - points[10]))
    True
    """
    if len(unit) < 2:
        return np.zeros((len(unit), 2), np.float32)

    # van der Maaten and Hinton (2008): p are the similarities of the vectors, q those of the points.
    values = unit.astype(np.float64)
    p = _find_similarities(values)

    # Start from the two main axes, scaled to be small: t-SNE then keeps the large-scale order of the groups.
    coordinates, strengths, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    points = np.zeros((len(values), 2))
    points[:, : coordinates.shape[1]] = (coordinates * strengths)[:, :2]
    points *= 1e-2 / max(float(points.std()), 1e-12)
    points += 1e-4 * np.random.default_rng(1).standard_normal(points.shape)  # Equal vectors get different places.

    velocity = np.zeros_like(points)
    for step in range(_STEPS):
        # Larger attraction at first pulls groups together before repulsion fixes their places.
        exaggeration = 4.0 if step < _EXAGGERATED_STEPS else 1.0
        lengths = (points**2).sum(axis=1)
        closeness = 1 / (1 + np.maximum(lengths[:, None] + lengths - 2 * points @ points.T, 0))
        np.fill_diagonal(closeness, 0)
        q = closeness / closeness.sum()
        # The gradient of KL(p || q) is 4 sum_j (p_ij - q_ij) (y_i - y_j) / (1 + |y_i - y_j|^2).
        pull = (exaggeration * p - q) * closeness
        gradient = 4 * (pull.sum(axis=1)[:, None] * points - pull @ points)
        velocity = (0.5 if step < _EXAGGERATED_STEPS else 0.8) * velocity - 20 * gradient
        points += velocity

    centered = points - (points.max(axis=0) + points.min(axis=0)) / 2
    return np.asarray(centered / np.maximum(np.abs(centered).max(axis=0), 1e-12), np.float32)


def _find_similarities(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the similarities p of t-SNE: Gaussians of the distances, as wide as the perplexity asks for."""
    squares = np.maximum(2 - 2 * values @ values.T, 0)
    np.fill_diagonal(squares, np.inf)
    target_entropy = np.log(min(_PERPLEXITY, max(len(values) / 3, 1.5)))

    low, high = np.zeros(len(values)), np.full(len(values), np.inf)
    precision = np.ones(len(values))
    # Bisection for the precision of each row whose Gaussian has the entropy log(perplexity); the bracket doubles
    # until it has an upper end.
    for _ in range(40):
        weights = np.exp(-precision[:, None] * squares)
        p = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
        is_wide = entropy > target_entropy
        low, high = np.where(is_wide, precision, low), np.where(is_wide, high, precision)
        precision = np.where(np.isinf(high), 2 * precision, (low + high) / 2)
    return np.asarray((p + p.T) / (2 * len(values)))
